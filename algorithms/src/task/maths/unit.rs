//! Units: what they measure, and how much of it they are.

use std::collections::BTreeMap;

use super::{
    budget::{Budget, Unknown},
    expression::Constant,
    fraction::Fraction,
    monomial::Generator,
    token::{Kind, Token},
};

/// A product of powers of units.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Unit {
    /// The quantity that it measures: base units with their exponents. None for percent and
    /// degrees.
    measures: BTreeMap<String, i64>,
    /// Number of base units that it is.
    scale: Fraction,
}

/// A unit of the table: its names, its base units, and how many of them it is.
struct Entry {
    names: &'static [&'static str],
    measures: &'static [(&'static str, i64)],
    scale: (u64, u64),
}

impl Unit {
    pub(super) fn scale(&self) -> &Fraction {
        &self.scale
    }

    pub(super) fn measures_as(&self, other: &Self) -> bool {
        self.measures == other.measures
    }

    /// Returns true when it only scales a number, as percent and degrees do.
    pub(super) fn is_scale(&self) -> bool {
        self.measures.is_empty()
    }

    /// The unit that a sign stands for.
    pub(super) fn of_sign(sign: char, budget: &mut Budget) -> Result<Option<Self>, Unknown> {
        Ok(match sign {
            '$' => Some(Self::base("dollar")),
            '£' => Some(Self::base("pound sterling")),
            '€' => Some(Self::base("euro")),
            '%' => Some(Self::scaling(Fraction::ratio(1, 100, budget)?)),
            '°' => Some(Self::degree(budget)?),
            _ => None,
        })
    }

    /// Degrees of temperature, by the letter of their scale.
    pub(super) fn of_temperature(scale: &str) -> Option<Self> {
        match scale {
            "C" | "celsius" => Some(Self::base("degree Celsius")),
            "F" | "fahrenheit" => Some(Self::base("degree Fahrenheit")),
            _ => None,
        }
    }

    /// The unit that all of these words are. Words that are no units of the table are one
    /// together: `apples`.
    pub(super) fn of_words(
        words: &[Token<'_>],
        budget: &mut Budget,
    ) -> Result<Option<Self>, Unknown> {
        let mut parser = Parser { words, at: 0 };
        if let Some(unit) = parser.product(budget)?
            && parser.at == words.len()
        {
            return Ok(Some(unit));
        }
        if words.len() > WORDS_MAX {
            return Ok(None);
        }
        let mut name = String::new();
        for word in words {
            let Kind::Word(word) = word.kind else {
                return Ok(None);
            };
            if !name.is_empty() {
                name.push(' ');
            }
            name.push_str(&word.to_lowercase());
        }
        Ok(Some(Self::base(singular(&name))))
    }

    /// Returns true when it is one of words that are not in the table.
    pub(super) fn is_named(&self) -> bool {
        let in_table = |name: &String| {
            let mut bases = TABLE.iter().flat_map(|entry| entry.measures);
            bases.any(|(base, _)| base == name) || OTHER_BASES.contains(&name.as_str())
        };
        !self.measures.keys().all(in_table)
    }

    fn base(name: &str) -> Self {
        Self {
            measures: BTreeMap::from([(name.to_owned(), 1)]),
            scale: Fraction::one(),
        }
    }

    fn scaling(scale: Fraction) -> Self {
        Self {
            measures: BTreeMap::new(),
            scale,
        }
    }

    fn degree(budget: &mut Budget) -> Result<Self, Unknown> {
        let pi = Fraction::generator(Generator::Constant(Constant::Pi));
        Ok(Self::scaling(pi.over(&Fraction::integer(180), budget)?))
    }

    fn named(name: &str, budget: &mut Budget) -> Result<Option<Self>, Unknown> {
        if let Some(entry) = find(name) {
            let measures = entry
                .measures
                .iter()
                .map(|(base, times)| ((*base).to_owned(), *times));
            let scale = Fraction::ratio(entry.scale.0, entry.scale.1, budget)?;
            return Ok(Some(Self {
                measures: measures.collect(),
                scale,
            }));
        }
        match singular(&name.to_lowercase()) {
            "percent" => Self::of_sign('%', budget),
            "degree" | "deg" => Self::of_sign('°', budget),
            "radian" | "rad" => Ok(Some(Self::scaling(Fraction::one()))),
            _ => Ok(None),
        }
    }

    fn times(mut self, other: &Self, power: i64, budget: &mut Budget) -> Result<Self, Unknown> {
        for (base, times) in &other.measures {
            *self.measures.entry(base.clone()).or_default() += times * power;
        }
        self.measures.retain(|_, times| *times != 0);
        self.scale = self
            .scale
            .times(&other.scale.power(power, budget)?, budget)?;
        Ok(self)
    }
}

/// Returns true when a run of letters is the name of a unit, also where it is not marked as text.
pub(super) fn is_known(name: &str) -> bool {
    find(name).is_some()
}

/// Returns true when a single letter may be a unit after a number.
pub(super) fn is_letter(name: &str) -> bool {
    LETTERS.contains(&name)
}

/// Symbols are as they are written; longer names may be plural and capital.
fn find(name: &str) -> Option<&'static Entry> {
    let lower = name.to_lowercase();
    let singular = singular(&lower);
    TABLE.iter().find(|entry| {
        let mut names = entry.names.iter();
        names.any(|known| *known == name || (known.len() > 2 && *known == singular))
    })
}

fn singular(name: &str) -> &str {
    match name {
        "inches" => "inch",
        "feet" => "foot",
        "centuries" => "century",
        _ => name
            .strip_suffix('s')
            .filter(|name| name.len() > 1)
            .unwrap_or(name),
    }
}

struct Parser<'a> {
    words: &'a [Token<'a>],
    at: usize,
}

impl Parser<'_> {
    fn product(&mut self, budget: &mut Budget) -> Result<Option<Unit>, Unknown> {
        let mut unit = Unit::scaling(Fraction::one());
        let mut sign = 1;
        while self.at < self.words.len() {
            match self.words[self.at].kind {
                Kind::Sign('/') | Kind::Word("per") if self.at > 0 => {
                    self.at += 1;
                    sign = -1;
                }
                Kind::Sign('*') if self.at > 0 => self.at += 1,
                _ => {}
            }
            let Some((factor, power)) = self.factor(budget)? else {
                return Ok(None);
            };
            unit = unit.times(&factor, power * sign, budget)?;
        }
        Ok(Some(unit))
    }

    fn factor(&mut self, budget: &mut Budget) -> Result<Option<(Unit, i64)>, Unknown> {
        let mut power = 1;
        if let Some(Kind::Word(word)) = self.kind() {
            power = match word.to_lowercase().as_str() {
                "square" | "sq" => 2,
                "cubic" | "cu" => 3,
                _ => 1,
            };
            self.at += usize::from(power > 1);
        }
        let Some(Kind::Word(name) | Kind::Letter(name)) = self.kind() else {
            return Ok(None);
        };
        let Some(unit) = Unit::named(name, budget)? else {
            return Ok(None);
        };
        self.at += 1;
        if matches!(self.kind(), Some(Kind::Sign('^'))) {
            let Some((taken, found)) = self.exponent() else {
                return Ok(None);
            };
            self.at += taken;
            power = found;
        } else if let Some(Kind::Word(word)) = self.kind() {
            let found = match word {
                "squared" => 2,
                "cubed" => 3,
                _ => 0,
            };
            if found > 0 {
                self.at += 1;
                power = found;
            }
        }
        Ok(Some((unit, power)))
    }

    /// The exponent here, and of how many words it is.
    fn exponent(&self) -> Option<(usize, i64)> {
        let kinds = self.words[self.at + 1..].iter().map(|word| word.kind);
        let kinds: Vec<Kind<'_>> = kinds.take(4).collect();
        let (sign, digits, taken) = match kinds[..] {
            [Kind::Number(digits), ..] => (1, digits, 2),
            [Kind::Open(_), Kind::Number(digits), Kind::Close(_), ..] => (1, digits, 4),
            [
                Kind::Open(_),
                Kind::Sign('-'),
                Kind::Number(digits),
                Kind::Close(_),
            ] => (-1, digits, 5),
            _ => return None,
        };
        let size = ["1", "2", "3"].iter().position(|known| *known == digits)?;
        Some((taken, sign * [1, 2, 3][size]))
    }

    fn kind(&self) -> Option<Kind<'_>> {
        self.words.get(self.at).map(|word| word.kind)
    }
}

const fn entry(
    names: &'static [&'static str],
    measures: &'static [(&'static str, i64)],
    numerator: u64,
    denominator: u64,
) -> Entry {
    Entry {
        names,
        measures,
        scale: (numerator, denominator),
    }
}

const LENGTH: &[(&str, i64)] = &[("meter", 1)];
const VOLUME: &[(&str, i64)] = &[("meter", 3)];
const MASS: &[(&str, i64)] = &[("gram", 1)];
const TIME: &[(&str, i64)] = &[("second", 1)];
const YEARS: &[(&str, i64)] = &[("month", 1)];
const MONEY: &[(&str, i64)] = &[("dollar", 1)];
const FORCE: &[(&str, i64)] = &[("gram", 1), ("meter", 1), ("second", -2)];
const ENERGY: &[(&str, i64)] = &[("gram", 1), ("meter", 2), ("second", -2)];
const POWER: &[(&str, i64)] = &[("gram", 1), ("meter", 2), ("second", -3)];
const PRESSURE: &[(&str, i64)] = &[("gram", 1), ("meter", -1), ("second", -2)];

/// International units, and those of the United States as the law defines them by the others.
const TABLE: &[Entry] = &[
    entry(&["m", "meter", "metre"], LENGTH, 1, 1),
    entry(&["km", "kilometer", "kilometre"], LENGTH, 1000, 1),
    entry(&["dm", "decimeter", "decimetre"], LENGTH, 1, 10),
    entry(&["cm", "centimeter", "centimetre"], LENGTH, 1, 100),
    entry(&["mm", "millimeter", "millimetre"], LENGTH, 1, 1000),
    entry(&["in", "inch"], LENGTH, 254, 10_000),
    entry(&["ft", "foot"], LENGTH, 3048, 10_000),
    entry(&["yd", "yard"], LENGTH, 9144, 10_000),
    entry(&["mi", "mile"], LENGTH, 1_609_344, 1000),
    entry(&["L", "l", "liter", "litre"], VOLUME, 1, 1000),
    entry(
        &["mL", "ml", "milliliter", "millilitre"],
        VOLUME,
        1,
        1_000_000,
    ),
    entry(&["gal", "gallon"], VOLUME, 3_785_411_784, 1_000_000_000_000),
    entry(&["qt", "quart"], VOLUME, 3_785_411_784, 4_000_000_000_000),
    entry(&["pt", "pint"], VOLUME, 3_785_411_784, 8_000_000_000_000),
    entry(&["cup"], VOLUME, 3_785_411_784, 16_000_000_000_000),
    entry(&["g", "gram"], MASS, 1, 1),
    entry(&["kg", "kilogram"], MASS, 1000, 1),
    entry(&["mg", "milligram"], MASS, 1, 1000),
    entry(&["lb", "lbs", "pound"], MASS, 45_359_237, 100_000),
    entry(&["oz", "ounce"], MASS, 45_359_237, 1_600_000),
    entry(&["s", "sec", "second"], TIME, 1, 1),
    entry(&["ms", "millisecond"], TIME, 1, 1000),
    entry(&["min", "minute"], TIME, 60, 1),
    entry(&["h", "hr", "hrs", "hour"], TIME, 3600, 1),
    entry(&["day"], TIME, 86_400, 1),
    entry(&["week"], TIME, 604_800, 1),
    entry(&["month"], YEARS, 1, 1),
    entry(&["yr", "yrs", "year"], YEARS, 12, 1),
    entry(&["decade"], YEARS, 120, 1),
    entry(&["century"], YEARS, 1200, 1),
    entry(&["dollar", "usd"], MONEY, 1, 1),
    entry(&["cent"], MONEY, 1, 100),
    entry(
        &["mph"],
        &[("meter", 1), ("second", -1)],
        1_609_344,
        3_600_000,
    ),
    entry(&["kph"], &[("meter", 1), ("second", -1)], 1000, 3600),
    entry(&["Hz", "hertz"], &[("second", -1)], 1, 1),
    entry(&["N", "newton"], FORCE, 1000, 1),
    entry(&["J", "joule"], ENERGY, 1000, 1),
    entry(&["kJ", "kilojoule"], ENERGY, 1_000_000, 1),
    entry(&["W", "watt"], POWER, 1000, 1),
    entry(&["kW", "kilowatt"], POWER, 1_000_000, 1),
    entry(&["Pa", "pascal"], PRESSURE, 1000, 1),
    entry(&["K", "kelvin"], &[("kelvin", 1)], 1, 1),
    entry(&["mol", "mole"], &[("mole", 1)], 1, 1),
    entry(&["V", "volt"], &[("volt", 1)], 1, 1),
    entry(&["ampere", "amp"], &[("ampere", 1)], 1, 1),
];

const OTHER_BASES: [&str; 4] = [
    "pound sterling",
    "euro",
    "degree Celsius",
    "degree Fahrenheit",
];

const LETTERS: [&str; 10] = ["m", "g", "s", "h", "L", "l", "N", "J", "W", "V"];

/// More words than a thing that is counted has.
const WORDS_MAX: usize = 4;
