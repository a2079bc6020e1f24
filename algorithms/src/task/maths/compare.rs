//! The comparison of two answers.

mod unordered;

use num_bigint::BigInt;

use self::unordered::{in_pairs, without_order};
use super::{
    Equality,
    answer::{Answer, Comparison, End, Ends, OPEN},
    budget::{Budget, Unknown},
    fraction::{Fraction, Sameness},
    lexer::words,
    monomial::{Generator, Monomial},
    read::answer,
    relation::{is_multiple, is_positive_multiple},
    token::{Bracket, Kind, Reading, Token, plain},
    unit::Unit,
};

/// Compares two texts in all readings that they can have. The first that makes them equal counts.
pub(super) fn texts(reference: &str, given: &str, budget: &mut Budget) -> Equality {
    let ambiguities = [reference, given].map(|text| words(text, Reading::default()).1);
    let mut found = None;
    for reading in Reading::all(ambiguities[0].or(ambiguities[1])) {
        let (reference, given) = (words(reference, reading).0, words(given, reading).0);
        let equality = in_reading(&reference, &given, reading, budget);
        if equality == Equality::Equal {
            return equality;
        }
        found.get_or_insert(equality);
    }
    found.unwrap_or(Equality::Undecided)
}

fn in_reading(
    reference: &[Token<'_>],
    given: &[Token<'_>],
    reading: Reading,
    budget: &mut Budget,
) -> Equality {
    if reference.is_empty() || given.is_empty() {
        return Equality::Undecided;
    }
    if plain(reference) == plain(given) {
        return Equality::Equal;
    }
    let (first, second) = match (choice(reference), choice(given)) {
        (Some(first), Some(second)) => return equal_if(first.0 == second.0),
        (Some((_, rest)), None) if !rest.is_empty() => (rest, given),
        (None, Some((_, rest))) if !rest.is_empty() => (reference, rest),
        _ => (reference, given),
    };
    let first = answer(first, reading, budget);
    let second = answer(second, reading, budget);
    answers(&first, &second, budget)
}

/// The letter of a choice, in capitals, and what stands after it: `A`, `(A)`, `(A) 12`, `B. 12`.
fn choice<'w, 'a>(words: &'w [Token<'a>]) -> Option<(char, &'w [Token<'a>])> {
    let letter = |kind: Kind<'_>| match kind {
        Kind::Letter(name) | Kind::Word(name) => {
            let mut letters = name.chars();
            let first = letters
                .next()
                .filter(|c| ('a'..='j').contains(&c.to_ascii_lowercase()));
            first.filter(|_| letters.next().is_none())
        }
        _ => None,
    };
    let (found, rest) = match words {
        [only] => (letter(only.kind)?, &words[1..]),
        [
            Token {
                kind: Kind::Open(_),
                ..
            },
            inner,
            Token {
                kind: Kind::Close(_),
                ..
            },
            rest @ ..,
        ] => (letter(inner.kind)?, rest),
        [first, after, rest @ ..] => match after.kind {
            Kind::Close(Bracket::Round) | Kind::Sign('.' | ':') => (letter(first.kind)?, rest),
            _ => return None,
        },
        _ => return None,
    };
    // Other letters, or an operator, make it something else.
    let single = |word: &Token<'_>| match word.kind {
        Kind::Sign(sign) => "%$°!.".contains(sign),
        Kind::Letter(_) => false,
        Kind::Word(word) => word.len() > 1 && !matches!(word, "and" | "or"),
        _ => true,
    };
    let alone = rest.is_empty() || (found.is_ascii_uppercase() && rest.iter().all(single));
    alone.then_some((found.to_ascii_uppercase(), rest))
}

fn equal_if(equal: bool) -> Equality {
    if equal {
        Equality::Equal
    } else {
        Equality::Different
    }
}

/// Compares two answers.
pub(super) fn answers(first: &Answer, second: &Answer, budget: &mut Budget) -> Equality {
    if budget.spend(1).is_err() {
        return Equality::Undecided;
    }
    match (first, second) {
        (Answer::Unread(a, _), Answer::Unread(b, _)) if a == b => Equality::Equal,
        (Answer::Unread(..), _) | (_, Answer::Unread(..)) => Equality::Undecided,
        (Answer::Number(a, u), Answer::Number(b, v)) => {
            decided(quantities((a, u.as_ref()), (b, v.as_ref()), budget))
        }
        (Answer::Prose(a), Answer::Prose(b)) => equal_if(a == b),
        (Answer::Equation(a), Answer::Equation(b)) => equations(a, b, budget),
        (Answer::Equation(a), other) | (other, Answer::Equation(a)) => match value(a, budget) {
            Some(value) => answers(value, other, budget),
            None => Equality::Different,
        },
        (Answer::Region(a, first), Answer::Region(b, second)) => {
            if a == b {
                answers(first, second, budget)
            } else {
                Equality::Different
            }
        }
        (Answer::Region(..), Answer::List(_)) | (Answer::List(_), Answer::Region(..)) => {
            Equality::Different
        }
        (Answer::Region(_, set), other) | (other, Answer::Region(_, set)) => {
            answers(set, other, budget)
        }
        (Answer::Inequality(a, how), Answer::Inequality(b, as_well)) => {
            if how != as_well {
                return Equality::Different;
            }
            decided(inequalities(a, b, *how, budget))
        }
        (Answer::Tuple(a, first), Answer::Tuple(b, second)) => {
            if a == b {
                in_order(first, second, budget)
            } else {
                Equality::Different
            }
        }
        (Answer::Tuple(OPEN, first), Answer::List(second))
        | (Answer::List(first), Answer::Tuple(OPEN, second)) => in_order(first, second, budget),
        (Answer::Ratio(a), Answer::Ratio(b)) => in_order(a, b, budget),
        (Answer::List(a), Answer::List(b)) => in_pairs(a, b, budget),
        (Answer::Union(a), Answer::Union(b)) => without_order(a, b, budget),
        (Answer::Set(a) | Answer::List(a), Answer::Set(b) | Answer::List(b)) => {
            without_order(a, b, budget)
        }
        (Answer::Set(items), other) | (other, Answer::Set(items)) if items.len() == 1 => {
            answers(&items[0], other, budget)
        }
        (Answer::Matrix(a), Answer::Matrix(b)) => {
            let shape = |rows: &[Vec<Answer>]| rows.iter().map(Vec::len).collect::<Vec<_>>();
            if shape(a) != shape(b) {
                return Equality::Different;
            }
            let pairs = a.iter().flatten().zip(b.iter().flatten());
            all(pairs.map(|(a, b)| answers(a, b, budget)))
        }
        (Answer::Matrix(rows), Answer::Tuple(Ends { open, close }, items))
        | (Answer::Tuple(Ends { open, close }, items), Answer::Matrix(rows)) => {
            let row_or_column = rows.len() == 1 || rows.iter().all(|row| row.len() == 1);
            let cells: Vec<&Answer> = rows.iter().flatten().collect();
            if !row_or_column
                || cells.len() != items.len()
                || (*open == End::Round) != (*close == End::Round)
            {
                return Equality::Different;
            }
            all(cells
                .into_iter()
                .zip(items)
                .map(|(a, b)| answers(a, b, budget)))
        }
        _ => Equality::Different,
    }
}

fn decided(sameness: Result<Sameness, Unknown>) -> Equality {
    match sameness {
        Ok(Sameness::Same) => Equality::Equal,
        Ok(Sameness::Other) => Equality::Different,
        Ok(Sameness::Open) | Err(_) => Equality::Undecided,
    }
}

/// Equal where all are, different where one is.
fn all(equalities: impl Iterator<Item = Equality>) -> Equality {
    let mut found = Equality::Equal;
    for equality in equalities {
        match equality {
            Equality::Equal => {}
            Equality::Different => return equality,
            Equality::Undecided => found = equality,
        }
    }
    found
}

fn in_order(first: &[Answer], second: &[Answer], budget: &mut Budget) -> Equality {
    if first.len() != second.len() {
        return Equality::Different;
    }
    all(first.iter().zip(second).map(|(a, b)| answers(a, b, budget)))
}

/// Numbers with units. Where only one has a unit, the other is taken to have the same; percent and
/// degrees may also be worked out.
fn quantities(
    (first, unit): (&Fraction, Option<&Unit>),
    (second, other): (&Fraction, Option<&Unit>),
    budget: &mut Budget,
) -> Result<Sameness, Unknown> {
    match (unit, other) {
        (None, None) => first.same(second, budget),
        (Some(unit), Some(other)) if unit.measures_as(other) => {
            let first = first.times(unit.scale(), budget)?;
            first.same(&second.times(other.scale(), budget)?, budget)
        }
        (Some(unit), Some(other)) if unit.is_named() || other.is_named() => Ok(Sameness::Open),
        (Some(_), Some(_)) => Ok(Sameness::Other),
        (Some(unit), None) | (None, Some(unit)) => {
            let found = first.same(second, budget)?;
            if found == Sameness::Same || !unit.is_scale() {
                return Ok(found);
            }
            let (scaled, other) = if other.is_none() {
                (first, second)
            } else {
                (second, first)
            };
            scaled.times(unit.scale(), budget)?.same(other, budget)
        }
    }
}

/// Two equations are equal when they are zero at the same places, by a constant factor. Where one
/// has no symbols, or names its value in words, the values are compared.
fn equations(first: &[Answer], second: &[Answer], budget: &mut Budget) -> Equality {
    let (a, b) = (difference(first, budget), difference(second, budget));
    let (Some(a), Some(b)) = (a, b) else {
        return match (value(first, budget), value(second, budget)) {
            (Some(a), Some(b)) => answers(&a.clone(), &b.clone(), budget),
            _ => in_order(first, second, budget),
        };
    };
    if a.is_constant() || b.is_constant() {
        return in_order(first, second, budget);
    }
    match is_multiple(&a, &b, budget) {
        Ok(true) => Equality::Equal,
        Ok(false) => {
            let open = |difference: &Fraction| {
                difference.numerator().is_opaque() || difference.denominator().is_opaque()
            };
            if open(&a) || open(&b) {
                Equality::Undecided
            } else {
                Equality::Different
            }
        }
        Err(_) => Equality::Undecided,
    }
}

/// The difference of the two sides of an equation between expressions.
fn difference(sides: &[Answer], budget: &mut Budget) -> Option<Fraction> {
    match sides {
        [Answer::Number(left, None), Answer::Number(right, None)] => left.minus(right, budget).ok(),
        _ => None,
    }
}

/// The value that an equation gives: that of its sides without symbols, which must agree; else
/// what stands after a name.
fn value<'a>(sides: &'a [Answer], budget: &mut Budget) -> Option<&'a Answer> {
    let (names, values): (Vec<&Answer>, Vec<&Answer>) =
        sides.iter().partition(|side| has_names(side));
    let values = match (names.first(), values.is_empty()) {
        (_, false) => values,
        (Some(first), true) if is_name(first) => names[1..].to_vec(),
        (Some(_), true) if names.last().is_some_and(|last| is_name(last)) => {
            names[..names.len() - 1].to_vec()
        }
        _ => return None,
    };
    let first = *values.first()?;
    let agree = values
        .iter()
        .all(|value| answers(first, value, budget) == Equality::Equal);
    agree.then_some(first)
}

/// Returns true when symbols or words are in it.
fn has_names(side: &Answer) -> bool {
    match side {
        Answer::Number(value, _) => !value.is_constant(),
        Answer::Prose(_) => true,
        Answer::Tuple(_, items) => items.iter().any(has_names),
        _ => false,
    }
}

/// Returns true for a symbol, a product as `f(x)` and `dy/dx` look like, or words.
fn is_name(side: &Answer) -> bool {
    match side {
        Answer::Number(value, None) => {
            let is_product = |(monomial, factor): (&Monomial, &BigInt)| {
                let mut powers = monomial.powers();
                let symbols = powers.all(|(power, _)| matches!(power, Generator::Symbol(_)));
                symbols && *factor == BigInt::from(1)
            };
            value.denominator().is_one() && value.numerator().single().is_some_and(is_product)
        }
        Answer::Prose(_) => true,
        Answer::Tuple(_, items) => items.iter().all(is_name),
        _ => false,
    }
}

fn inequalities(
    first: &Fraction,
    second: &Fraction,
    how: Comparison,
    budget: &mut Budget,
) -> Result<Sameness, Unknown> {
    let same = match how {
        Comparison::Unequal => is_multiple(first, second, budget)?,
        _ => is_positive_multiple(first, second, budget)?,
    };
    let constant = |fraction: &Fraction| fraction.denominator().is_constant();
    let opaque = first.numerator().is_opaque() || second.numerator().is_opaque();
    Ok(if same {
        Sameness::Same
    } else if opaque || !constant(first) || !constant(second) {
        Sameness::Open
    } else {
        Sameness::Other
    })
}
