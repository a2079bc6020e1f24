//! Parses the operands between operators.

use num_bigint::BigInt;

use super::{
    super::{
        command::inverse_of,
        expression::{Constant, Expression, Function, Operation, Sign},
        numeral::{integer, number},
        token::{Bracket, Kind, Logarithms, Token},
    },
    DEPTH_MAX, Fault, Parser, signed,
};

impl Parser<'_> {
    pub(super) fn atom(&mut self) -> Result<Expression, Fault> {
        let Some(kind) = self.kind() else {
            return self.unexpected();
        };
        match kind {
            Kind::Number(digits) => {
                self.at += 1;
                self.number(digits)
            }
            Kind::Letter(name) => {
                self.at += 1;
                self.symbol(name)
            }
            Kind::Function(function) => {
                self.at += 1;
                self.call(function)
            }
            Kind::Logarithm => {
                self.at += 1;
                self.logarithm()
            }
            Kind::Fraction => {
                self.at += 1;
                let numerator = self.argument()?;
                Ok(Expression::over(numerator, self.argument()?))
            }
            Kind::Binomial => {
                self.at += 1;
                let upper = self.argument()?;
                Ok(Expression::Call(
                    Function::Binomial,
                    vec![upper, self.argument()?],
                ))
            }
            Kind::Root => {
                self.at += 1;
                self.root()
            }
            Kind::Open(bracket) => self.bracketed(bracket),
            Kind::Sign('|') => {
                self.at += 1;
                let outside = std::mem::replace(&mut self.bars, 1);
                let inside = self.sum()?;
                self.bars = outside;
                self.expect(Kind::Sign('|'))?;
                Ok(Expression::Call(Function::Absolute, vec![inside]))
            }
            _ => self.unexpected(),
        }
    }

    fn bracketed(&mut self, bracket: Bracket) -> Result<Expression, Fault> {
        if bracket == Bracket::Brace {
            return self.unexpected();
        }
        self.at += 1;
        let outside = std::mem::take(&mut self.bars);
        let inside = self.group()?;
        self.bars = outside;
        self.expect(Kind::Close(bracket))?;
        Ok(match bracket {
            Bracket::Floor => Expression::Call(Function::Floor, vec![inside]),
            Bracket::Ceiling => Expression::Call(Function::Ceiling, vec![inside]),
            _ => inside,
        })
    }

    /// A number, a number to another base, or a mixed number.
    fn number(&mut self, digits: &str) -> Result<Expression, Fault> {
        let plain = digits.bytes().all(|b| b.is_ascii_digit());
        if self.kind() == Some(Kind::Sign('_')) {
            self.at += 1;
            let base = self.small_integer()?;
            let value = (2..=36)
                .contains(&base)
                .then(|| integer(digits, base))
                .flatten();
            return match value {
                Some(value) if plain => Ok(Expression::integer(value)),
                _ => self.unexpected(),
            };
        }
        let Some(value) = number(digits) else {
            return self.unexpected();
        };
        let Some(fraction) = self.fraction_of_integers().filter(|_| plain) else {
            return Ok(value);
        };
        let (numerator, denominator, length) = fraction;
        if numerator >= denominator {
            return Ok(value);
        }
        self.at += length;
        let fraction = Expression::Number(numerator, denominator);
        Ok(Expression::Sum(vec![
            (Sign::Plus, value),
            (Sign::Plus, fraction),
        ]))
    }

    /// The fraction of a mixed number: `\frac{1}{2}`, or `1/2` after space.
    fn fraction_of_integers(&self) -> Option<(BigInt, BigInt, usize)> {
        let words = &self.words[self.at..];
        let part = |words: &[Token<'_>]| match words {
            [
                Token {
                    kind: Kind::Number(digits),
                    ..
                },
                ..,
            ] => Some((integer(digits, 10)?, 1)),
            [
                Token {
                    kind: Kind::Open(Bracket::Group),
                    ..
                },
                Token {
                    kind: Kind::Number(digits),
                    ..
                },
                Token {
                    kind: Kind::Close(Bracket::Group),
                    ..
                },
                ..,
            ] => Some((integer(digits, 10)?, 3)),
            _ => None,
        };
        match words {
            [
                Token {
                    kind: Kind::Fraction,
                    ..
                },
                Token {
                    kind: Kind::Number(digits),
                    ..
                },
                ..,
            ] if digits.len() == 2 => {
                // The two digits are the two arguments.
                let (first, second) = digits.split_at(1);
                Some((integer(first, 10)?, integer(second, 10)?, 2))
            }
            [
                Token {
                    kind: Kind::Fraction,
                    ..
                },
                rest @ ..,
            ] => {
                let (numerator, first) = part(rest)?;
                let (denominator, second) = part(&rest[first..])?;
                Some((numerator, denominator, 1 + first + second))
            }
            [
                Token {
                    kind: Kind::Number(numerator),
                    spaced: true,
                },
                Token {
                    kind: Kind::Sign('/'),
                    ..
                },
                Token {
                    kind: Kind::Number(denominator),
                    ..
                },
                ..,
            ] => Some((integer(numerator, 10)?, integer(denominator, 10)?, 3)),
            _ => None,
        }
    }

    /// A name with what stands below it, or a constant.
    fn symbol(&mut self, name: &str) -> Result<Expression, Fault> {
        let mut full = name.to_owned();
        if self.kind() == Some(Kind::Sign('_')) {
            self.at += 1;
            full.push('_');
            match self.kind() {
                Some(Kind::Number(part) | Kind::Letter(part) | Kind::Word(part)) => {
                    self.at += 1;
                    full.push_str(part);
                }
                Some(Kind::Open(Bracket::Group)) => {
                    self.at += 1;
                    while let Some(Kind::Number(part) | Kind::Letter(part) | Kind::Word(part)) =
                        self.kind()
                    {
                        self.at += 1;
                        full.push_str(part);
                    }
                    self.expect(Kind::Close(Bracket::Group))?;
                }
                _ => return self.unexpected(),
            }
        }
        while self.kind() == Some(Kind::Sign('\'')) {
            self.at += 1;
            full.push('\'');
        }
        Ok(match full.as_str() {
            "pi" => Expression::Constant(Constant::Pi),
            "e" => Expression::Constant(Constant::Euler),
            "infinity" => Expression::Constant(Constant::Infinity),
            "i" => Expression::Imaginary,
            _ => Expression::symbol(&full),
        })
    }

    fn call(&mut self, function: Function) -> Result<Expression, Fault> {
        let mut function = function;
        let mut exponent = None;
        if self.kind() == Some(Kind::Sign('^')) {
            self.at += 1;
            let found = self.exponent()?;
            let minus_one = Expression::integer(1).negated();
            match inverse_of(function).filter(|_| found == minus_one) {
                Some(inverse) => function = inverse,
                None => exponent = Some(found),
            }
        }
        let argument = self.function_argument()?;
        let call = Expression::Call(function, vec![argument]);
        Ok(match exponent {
            Some(exponent) => Expression::power(call, exponent),
            None => call,
        })
    }

    fn logarithm(&mut self) -> Result<Expression, Fault> {
        let base = if self.kind() == Some(Kind::Sign('_')) {
            self.at += 1;
            Some(self.argument()?)
        } else {
            None
        };
        let exponent = if self.kind() == Some(Kind::Sign('^')) {
            self.at += 1;
            Some(self.exponent()?)
        } else {
            None
        };
        let argument = self.function_argument()?;
        let call = match (base, self.logarithms) {
            (Some(base), _) => Expression::Call(Function::LogarithmTo, vec![base, argument]),
            (None, Logarithms::Natural) => Expression::Call(Function::Logarithm, vec![argument]),
            (None, Logarithms::Decimal) => Expression::Call(
                Function::LogarithmTo,
                vec![Expression::integer(10), argument],
            ),
        };
        Ok(match exponent {
            Some(exponent) => Expression::power(call, exponent),
            None => call,
        })
    }

    /// Reads the argument of a function: a bracket, or factors without a sign up to the next
    /// function.
    fn function_argument(&mut self) -> Result<Expression, Fault> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(Fault::TooDeep);
        }
        let argument = match self.kind() {
            Some(Kind::Open(bracket @ (Bracket::Round | Bracket::Square | Bracket::Group))) => {
                self.bracketed(bracket)
            }
            Some(Kind::Sign('|')) if self.bars == 0 => self.atom(),
            _ => {
                let sign = self.leading_sign()?;
                let mut factors = vec![(Operation::Times, self.power()?)];
                while self.begins_factor()
                    && !matches!(self.kind(), Some(Kind::Function(_) | Kind::Logarithm))
                {
                    factors.push((Operation::Times, self.power()?));
                }
                let product = Expression::Product(factors);
                Ok(signed(sign, product))
            }
        };
        self.depth -= 1;
        argument
    }

    fn root(&mut self) -> Result<Expression, Fault> {
        let mut index = 2;
        if self.kind() == Some(Kind::Open(Bracket::Square)) {
            self.at += 1;
            let Some(Kind::Number(digits)) = self.kind() else {
                return self.unexpected();
            };
            let Ok(found) = digits.parse() else {
                return self.unexpected();
            };
            index = found;
            self.at += 1;
            self.expect(Kind::Close(Bracket::Square))?;
        }
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(Fault::TooDeep);
        }
        let radicand = self.atom()?;
        self.depth -= 1;
        Ok(Expression::Root(index, Box::new(radicand)))
    }

    /// An argument of a command: a group, or the next digit or letter.
    fn argument(&mut self) -> Result<Expression, Fault> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(Fault::TooDeep);
        }
        let argument = match self.kind() {
            Some(Kind::Number(digits)) => {
                let (first, rest) = digits.split_at(1);
                let Some(value) = number(first).filter(|_| first != ".") else {
                    return self.unexpected();
                };
                match rest {
                    "" => self.at += 1,
                    _ => self.words[self.at].kind = Kind::Number(rest),
                }
                Ok(value)
            }
            _ => self.atom(),
        };
        self.depth -= 1;
        argument
    }

    fn small_integer(&mut self) -> Result<u32, Fault> {
        let braced = self.kind() == Some(Kind::Open(Bracket::Group));
        self.at += usize::from(braced);
        let value = match self.kind() {
            Some(Kind::Number(digits)) => digits.parse().ok(),
            Some(Kind::Word("two")) => Some(2),
            Some(Kind::Word("eight")) => Some(8),
            Some(Kind::Word("ten")) => Some(10),
            _ => None,
        };
        let Some(value) = value else {
            return self.unexpected();
        };
        self.at += 1;
        if braced {
            self.expect(Kind::Close(Bracket::Group))?;
        }
        Ok(value)
    }
}
