//! Numbers in running text, compared exactly as canonical decimals.

use std::fmt::{self, Display};

use serde::{Deserialize, Serialize};

/// A decimal number of any length in canonical form, so that equality of text is equality of value.
///
/// Canonical: no plus sign, no leading zeros, no trailing zeros after the point, no negative zero.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Decimal(String);

impl Decimal {
    /// Reads a number such as `-1,250.50`: an optional minus sign, digits with optional grouping
    /// by commas, and an optional fraction. `None` when the text is anything else.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (negative, magnitude) = match text.strip_prefix(['-', MINUS]) {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let length = number_length(magnitude)?;
        (length == magnitude.len()).then(|| Self::canonical(negative, magnitude))
    }

    /// Reads a number as answers of data sets have it: as [`Decimal::parse`] does, with a sign of
    /// dollars before it or a full stop behind it, with an exponent (`1e3`), or as a fraction whose value
    /// has an end (`1/2`).
    #[must_use]
    pub fn written(text: &str) -> Option<Self> {
        let text = text.trim_end_matches('.').trim();
        let (sign, rest) = match text.strip_prefix(['-', MINUS]) {
            Some(rest) => ("-", rest),
            None => ("", text),
        };
        let text = format!("{sign}{}", rest.trim_start_matches('$').trim_start());
        if let Some(number) = Self::parse(&text) {
            return Some(number);
        }
        if let Some((mantissa, exponent)) = text.split_once(['e', 'E']) {
            let exponent: i32 = exponent.parse().ok()?;
            return Self::parse(mantissa)?.shifted(exponent);
        }
        let (above, below) = text.split_once('/')?;
        let above: i128 = above.trim().parse().ok()?;
        Self::quotient(above, below.trim().parse().ok()?)
    }

    /// Its point moved to the right by so many places.
    fn shifted(&self, places: i32) -> Option<Self> {
        if places.unsigned_abs() > PLACES_MAX {
            return None;
        }
        let negative = self.0.starts_with('-');
        let (integer, fraction) = self.0.split_once('.').unwrap_or((&self.0, ""));
        let digits = format!("{}{fraction}", integer.trim_start_matches('-'));
        let point = digits.len() as i32 - fraction.len() as i32 + places;
        let before = "0".repeat(usize::try_from(1 - point).unwrap_or(0));
        let behind = "0".repeat(usize::try_from(point - digits.len() as i32).unwrap_or(0));
        let digits = format!("{before}{digits}{behind}");
        let (integer, fraction) = digits.split_at(point.max(1) as usize);
        Some(Self::canonical(negative, &format!("{integer}.{fraction}")))
    }

    /// The quotient of two whole numbers, if its decimals have an end.
    fn quotient(above: i128, below: i128) -> Option<Self> {
        if below <= 0 {
            return None;
        }
        let negative = above < 0;
        let (above, below) = (above.unsigned_abs(), below.unsigned_abs());
        let (whole, mut rest) = (above / below, above % below);
        let mut fraction = String::new();
        while rest != 0 {
            if fraction.len() == PLACES_MAX as usize {
                return None;
            }
            rest = rest.checked_mul(10)?;
            fraction.push_str(&(rest / below).to_string());
            rest %= below;
        }
        Some(Self::canonical(negative, &format!("{whole}.{fraction}")))
    }

    /// The canonical text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// `magnitude` is what [`number_length`] accepts.
    fn canonical(negative: bool, magnitude: &str) -> Self {
        let (integer, fraction) = magnitude.split_once('.').unwrap_or((magnitude, ""));
        let integer = integer.replace(',', "");
        let integer = integer.trim_start_matches('0');
        let fraction = fraction.trim_end_matches('0');
        let mut text = String::with_capacity(integer.len() + fraction.len() + 3);
        if negative && !(integer.is_empty() && fraction.is_empty()) {
            text.push('-');
        }
        text.push_str(if integer.is_empty() { "0" } else { integer });
        if !fraction.is_empty() {
            text.push('.');
            text.push_str(fraction);
        }
        Self(text)
    }
}

impl From<i64> for Decimal {
    fn from(value: i64) -> Self {
        Self(value.to_string())
    }
}

impl Display for Decimal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Finds the last number in a text.
///
/// A minus sign belongs to the number when it stands directly before it and nothing that could be
/// a left operand (letter, digit, closing bracket) stands directly before the sign. A full stop
/// without digits after it ends the sentence, not the number.
#[must_use]
pub fn last_number(text: &str) -> Option<Decimal> {
    numbers(text).last()
}

/// Finds the first number in a text, by the rules of [`last_number`].
pub(super) fn first_number(text: &str) -> Option<Decimal> {
    numbers(text).next()
}

fn numbers(text: &str) -> impl Iterator<Item = Decimal> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let start = at + text[at..].find(|c: char| c.is_ascii_digit())?;
        let length = number_length(&text[start..]).expect("it starts with a digit");
        at = start + length;
        let mut before = text[..start].chars().rev();
        let sign = matches!(before.next(), Some('-' | MINUS));
        let operand = before
            .next()
            .is_some_and(|c| c.is_alphanumeric() || matches!(c, ')' | ']'));
        Some(Decimal::canonical(sign && !operand, &text[start..at]))
    })
}

/// The length in bytes of the unsigned number at the beginning of the text.
fn number_length(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    let digits = |from: usize| {
        bytes[from..]
            .iter()
            .take_while(|b| b.is_ascii_digit())
            .count()
    };
    let mut end = digits(0);
    if end == 0 {
        return None;
    }
    // A comma groups digits only before exactly three of them: "7, 8" and "1,23" are lists.
    if end <= 3 {
        while bytes.get(end) == Some(&b',') && digits(end + 1) == 3 {
            end += 4;
        }
    }
    if bytes.get(end) == Some(&b'.') {
        let fraction = digits(end + 1);
        if fraction > 0 {
            end += 1 + fraction;
        }
    }
    Some(end)
}

/// More places are no answer that anybody writes.
const PLACES_MAX: u32 = 64;

/// U+2212, which some models write for a minus sign.
const MINUS: char = '\u{2212}';

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read_as_data_sets_write_them() {
        let check = |text: &str, expected: Option<&str>| {
            let written = Decimal::written(text);
            assert_eq!(written.as_ref().map(Decimal::as_str), expected, "{text}");
        };
        check("$18", Some("18"));
        check("-$1,250.50", Some("-1250.5"));
        check("72.", Some("72"));
        check("1e3", Some("1000"));
        check("1.5e-3", Some("0.0015"));
        check("-12.5E1", Some("-125"));
        check("1/2", Some("0.5"));
        check("-6/4", Some("-1.5"));
        check("1/3", None);
        check("1/0", None);
        check("1e999999999", None);
        check("", None);
        check("none", None);
        check("18 dollars", None);
    }

    #[test]
    fn the_last_number_of_a_text_is_read_by_value() {
        let check = |text: &str, expected: Option<&str>| {
            assert_eq!(
                last_number(text).as_ref().map(Decimal::as_str),
                expected,
                "{text}"
            );
        };
        check("", None);
        check("no digits", None);
        check("19", Some("19"));
        check("The answer is 19.", Some("19"));
        check("7 + 12 = 19", Some("19"));
        check("7-12", Some("12"));
        check("7 - 12 = -5", Some("-5"));
        check("(3)-4", Some("4"));
        check("it is \u{2212}5", Some("-5"));
        check("$1,250.50 in total", Some("1250.5"));
        check("1,23", Some("23"));
        check("1234,567", Some("567"));
        check("18.00", Some("18"));
        check("-0.0", Some("0"));
        check("007", Some("7"));
        check("v2", Some("2"));
        check("3.14.15", Some("15"));
        check("é5é", Some("5"));
    }

    #[test]
    fn a_decimal_is_the_whole_text() {
        assert_eq!(
            Decimal::parse("-1,250.50").map(|d| d.0),
            Some("-1250.5".into())
        );
        for text in ["", "-", "1 ", "+1", "1.", ".5", "1,2", "--1", "0x10"] {
            assert_eq!(Decimal::parse(text), None, "{text}");
        }
    }
}
