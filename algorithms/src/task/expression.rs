//! Arithmetic expressions, evaluated exactly.

use std::fmt::{self, Display};

/// The outcome of evaluating an expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expression {
    /// The value as a fraction in lowest terms; the denominator is positive.
    pub value: (i128, i128),
    /// The numbers that the expression uses, from left to right.
    pub numbers: Vec<u64>,
}

/// Why a text is not an expression with a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ExpressionError {
    /// Something else stands where a number or an opening bracket belongs.
    #[error("a number is missing at byte {at}")]
    NumberMissing {
        /// Offset in bytes.
        at: usize,
    },
    /// An opening bracket has no partner.
    #[error("a bracket is not closed at byte {at}")]
    Unclosed {
        /// Offset in bytes.
        at: usize,
    },
    /// The expression ends before the text does.
    #[error("unexpected text at byte {at}")]
    Trailing {
        /// Offset in bytes.
        at: usize,
    },
    /// A division by zero.
    #[error("division by zero")]
    DivisionByZero,
    /// A number or an intermediate result is too large.
    #[error("number too large")]
    Overflow,
    /// Brackets are nested more than 32 deep.
    #[error("nested too deep")]
    TooDeep,
}

/// Evaluates an expression of unsigned integers, `+`, `-`, `*` (also `×`), `/` (also `÷`) and
/// round brackets, with the usual precedence and exact rational arithmetic.
///
/// # Errors
/// [`ExpressionError`] says what is wrong and where.
pub fn evaluate(text: &str) -> Result<Expression, ExpressionError> {
    let mut parser = Parser {
        text,
        at: 0,
        depth: 0,
        numbers: Vec::new(),
    };
    let value = parser.sum()?;
    match parser.peek() {
        Some(_) => Err(ExpressionError::Trailing { at: parser.at }),
        None => Ok(Expression {
            value: (value.numerator, value.denominator),
            numbers: parser.numbers,
        }),
    }
}

impl Display for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.value {
            (numerator, 1) => write!(f, "{numerator}"),
            (numerator, denominator) => write!(f, "{numerator}/{denominator}"),
        }
    }
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
    depth: usize,
    numbers: Vec<u64>,
}

impl Parser<'_> {
    fn sum(&mut self) -> Result<Ratio, ExpressionError> {
        let mut value = self.product()?;
        while let Some(operator @ ('+' | '-' | MINUS)) = self.peek() {
            self.at += operator.len_utf8();
            let right = self.product()?;
            value = if operator == '+' {
                value.add(right)
            } else {
                value.subtract(right)
            }?;
        }
        Ok(value)
    }

    fn product(&mut self) -> Result<Ratio, ExpressionError> {
        let mut value = self.factor()?;
        while let Some(operator @ ('*' | '×' | '/' | '÷')) = self.peek() {
            self.at += operator.len_utf8();
            let right = self.factor()?;
            value = match operator {
                '*' | '×' => value.multiply(right),
                _ => value.divide(right),
            }?;
        }
        Ok(value)
    }

    fn factor(&mut self) -> Result<Ratio, ExpressionError> {
        match self.peek() {
            Some('(') if self.depth == DEPTH_MAX => Err(ExpressionError::TooDeep),
            Some('(') => {
                self.at += 1;
                self.depth += 1;
                let value = self.sum()?;
                if self.peek() != Some(')') {
                    return Err(ExpressionError::Unclosed { at: self.at });
                }
                self.at += 1;
                self.depth -= 1;
                Ok(value)
            }
            Some(c) if c.is_ascii_digit() => self.number(),
            _ => Err(ExpressionError::NumberMissing { at: self.at }),
        }
    }

    fn number(&mut self) -> Result<Ratio, ExpressionError> {
        let rest = &self.text[self.at..];
        let length = rest
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(rest.len());
        let number: u64 = rest[..length]
            .parse()
            .map_err(|_| ExpressionError::Overflow)?;
        self.at += length;
        self.numbers.push(number);
        Ok(Ratio {
            numerator: i128::from(number),
            denominator: 1,
        })
    }

    /// The next character that is not white space; moves to it.
    fn peek(&mut self) -> Option<char> {
        let rest = &self.text[self.at..];
        self.at += rest.len() - rest.trim_start().len();
        self.text[self.at..].chars().next()
    }
}

/// A fraction in lowest terms with a positive denominator.
#[derive(Clone, Copy)]
struct Ratio {
    numerator: i128,
    denominator: i128,
}

impl Ratio {
    fn new(numerator: Option<i128>, denominator: Option<i128>) -> Result<Self, ExpressionError> {
        let (Some(numerator), Some(denominator)) = (numerator, denominator) else {
            return Err(ExpressionError::Overflow);
        };
        let divisor = i128::try_from(gcd(numerator.unsigned_abs(), denominator.unsigned_abs()))
            .map_err(|_| ExpressionError::Overflow)?;
        let divisor = if denominator < 0 { -divisor } else { divisor };
        let (numerator, denominator) = (
            numerator.checked_div(divisor),
            denominator.checked_div(divisor),
        );
        let (numerator, denominator) = numerator
            .zip(denominator)
            .ok_or(ExpressionError::Overflow)?;
        Ok(Self {
            numerator,
            denominator,
        })
    }

    fn add(self, right: Self) -> Result<Self, ExpressionError> {
        let left = self.numerator.checked_mul(right.denominator);
        let other = right.numerator.checked_mul(self.denominator);
        let numerator = left.zip(other).and_then(|(a, b)| a.checked_add(b));
        Self::new(numerator, self.denominator.checked_mul(right.denominator))
    }

    fn subtract(self, right: Self) -> Result<Self, ExpressionError> {
        let numerator = right
            .numerator
            .checked_neg()
            .ok_or(ExpressionError::Overflow)?;
        self.add(Self { numerator, ..right })
    }

    fn multiply(self, right: Self) -> Result<Self, ExpressionError> {
        Self::new(
            self.numerator.checked_mul(right.numerator),
            self.denominator.checked_mul(right.denominator),
        )
    }

    fn divide(self, right: Self) -> Result<Self, ExpressionError> {
        if right.numerator == 0 {
            return Err(ExpressionError::DivisionByZero);
        }
        Self::new(
            self.numerator.checked_mul(right.denominator),
            self.denominator.checked_mul(right.numerator),
        )
    }
}

/// The greatest common divisor; `b` is not zero where it is called.
fn gcd(a: u128, b: u128) -> u128 {
    let (mut a, mut b) = (a, b);
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

const DEPTH_MAX: usize = 32;
const MINUS: char = '\u{2212}';

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn precedence_brackets_and_fractions_are_exact() {
        let check = |text: &str, value: (i128, i128)| {
            assert_eq!(evaluate(text).map(|e| e.value), Ok(value), "{text}");
        };
        check("3*5+7", (22, 1));
        check("7+3*5", (22, 1));
        check(" ( 7 + 3 ) * 5 ", (50, 1));
        check("10-2-3", (5, 1));
        check("100/10/5", (2, 1));
        check("1/3+1/6", (1, 2));
        check("8/(3-8/3)", (24, 1));
        check("2-5", (-3, 1));
        check("1/(2-5)", (-1, 3));
        check("6 ÷ 2 × 3", (9, 1));
        check("0/7", (0, 1));
    }

    #[test]
    fn what_is_no_expression_is_refused_with_a_place() {
        let check = |text: &str, error: ExpressionError| {
            assert_eq!(evaluate(text), Err(error), "{text}");
        };
        check("", ExpressionError::NumberMissing { at: 0 });
        check("-3", ExpressionError::NumberMissing { at: 0 });
        check("3+", ExpressionError::NumberMissing { at: 2 });
        check("3 4", ExpressionError::Trailing { at: 2 });
        check("(3", ExpressionError::Unclosed { at: 2 });
        check("3)", ExpressionError::Trailing { at: 1 });
        check("3=3", ExpressionError::Trailing { at: 1 });
        check("1/(2-2)", ExpressionError::DivisionByZero);
        check("99999999999999999999", ExpressionError::Overflow);
        check(
            &["18446744073709551615"; 4].join("*"),
            ExpressionError::Overflow,
        );
        // The smallest 128-bit integer has no negative.
        let smallest = "(0-9223372036854775808)*9223372036854775808*2";
        check(&format!("{smallest}/(0-1)"), ExpressionError::Overflow);
        check(&"(".repeat(100_000), ExpressionError::TooDeep);
    }
}
