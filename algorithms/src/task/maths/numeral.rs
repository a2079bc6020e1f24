//! Numbers as they are written.

use num_bigint::BigInt;

use super::{expression::Expression, lexer::argument};

/// The value of digits with separators, a point, repeating digits and a power of ten. `None` when
/// the power is too high.
pub(super) fn number(text: &str) -> Option<Expression> {
    let (text, repeating) = match text.split_once("\\overline") {
        Some((before, after)) => {
            let (digits, taken) = argument(after)?;
            (format!("{before}{}", &after[taken..]), digits)
        }
        None => (text.to_owned(), ""),
    };
    let (mantissa, power) = match text.split_once(['e', 'E']) {
        Some((mantissa, power)) => (mantissa, power.parse::<i32>().ok()?),
        None => (text.as_str(), 0),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = |text: &str| {
        text.chars()
            .filter(char::is_ascii_digit)
            .collect::<String>()
    };
    let (whole, fraction) = (digits(whole), digits(fraction));
    let shift = i32::try_from(fraction.len()).ok()?.checked_sub(power)?;
    if shift.unsigned_abs() > SHIFT_MAX {
        return None;
    }
    let mut numerator = integer(&format!("0{whole}{fraction}"), 10)?;
    let mut denominator = BigInt::from(1);
    if !repeating.is_empty() {
        // Repeating digits are themselves over as many nines.
        let nines = BigInt::from(10).pow(u32::try_from(repeating.len()).ok()?) - 1;
        numerator = numerator * &nines + integer(repeating, 10)?;
        denominator = nines;
    }
    let scale = BigInt::from(10).pow(shift.unsigned_abs());
    if shift > 0 {
        denominator *= scale;
    } else {
        numerator *= scale;
    }
    Some(Expression::Number(numerator, denominator))
}

/// An integer to a base between 2 and 36.
pub(super) fn integer(digits: &str, base: u32) -> Option<BigInt> {
    BigInt::parse_bytes(digits.as_bytes(), base)
}

/// More zeros than a number is written with.
const SHIFT_MAX: u32 = 4096;
