//! Words into an expression.
//!
//! Products without a sign bind as those with one: `1/2x` is half of `x`. An integer directly
//! before a proper fraction of integers is a mixed number. `i` is the imaginary unit, `e` is
//! Euler's number.

mod atom;

use super::{
    expression::{Expression, Function, Operation, Sign},
    token::{Kind, Logarithms, Token},
};

/// Why words are no expression.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The word with this number does not belong there.
    Unexpected(usize),
    /// Brackets are nested too deep.
    TooDeep,
}

/// The expression that all of these words are.
pub(super) fn expression(words: &[Token<'_>], logarithms: Logarithms) -> Result<Expression, Fault> {
    let mut parser = Parser {
        words: words.to_vec(),
        at: 0,
        depth: 0,
        bars: 0,
        logarithms,
    };
    let found = parser.group()?;
    if parser.at < words.len() {
        return Err(Fault::Unexpected(parser.at));
    }
    Ok(found)
}

struct Parser<'a> {
    words: Vec<Token<'a>>,
    at: usize,
    depth: u32,
    /// Open bars of absolute values: a bar after a value closes one.
    bars: u32,
    logarithms: Logarithms,
}

impl<'a> Parser<'a> {
    fn kind(&self) -> Option<Kind<'a>> {
        self.words.get(self.at).map(|word| word.kind)
    }

    fn after(&self, by: usize) -> Option<Kind<'a>> {
        self.words.get(self.at + by).map(|word| word.kind)
    }

    fn unexpected<T>(&self) -> Result<T, Fault> {
        Err(Fault::Unexpected(self.at))
    }

    /// Goes on when the next word is this one.
    fn expect(&mut self, kind: Kind<'_>) -> Result<(), Fault> {
        if self.kind() != Some(kind) {
            return self.unexpected();
        }
        self.at += 1;
        Ok(())
    }

    /// Reads the contents of a bracket: a sum, or two with `\choose` between them.
    fn group(&mut self) -> Result<Expression, Fault> {
        let upper = self.sum()?;
        if self.kind() != Some(Kind::Choose) {
            return Ok(upper);
        }
        self.at += 1;
        Ok(Expression::Call(
            Function::Binomial,
            vec![upper, self.sum()?],
        ))
    }

    fn sum(&mut self) -> Result<Expression, Fault> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(Fault::TooDeep);
        }
        let mut terms = vec![(self.leading_sign()?, self.product()?)];
        while let Some(sign) = self.sign()? {
            terms.push((sign, self.product()?));
        }
        self.depth -= 1;
        Ok(match terms.pop() {
            Some((Sign::Plus, term)) if terms.is_empty() => term,
            Some(last) => {
                terms.push(last);
                Expression::Sum(terms)
            }
            None => return self.unexpected(),
        })
    }

    /// The sign of a first term, which may go without.
    fn leading_sign(&mut self) -> Result<Sign, Fault> {
        Ok(self.sign()?.unwrap_or(Sign::Plus))
    }

    /// All signs before a term as one.
    fn sign(&mut self) -> Result<Option<Sign>, Fault> {
        let mut sign = None;
        while let Some(Kind::Sign(next @ ('+' | '-' | '±' | '∓'))) = self.kind() {
            let next = match next {
                '+' => Sign::Plus,
                '-' => Sign::Minus,
                '±' => Sign::PlusMinus,
                _ => Sign::MinusPlus,
            };
            sign = Some(match (sign, next) {
                (None | Some(Sign::Plus), next) => next,
                (Some(sign), Sign::Plus) => sign,
                (Some(Sign::Minus), Sign::Minus) => Sign::Plus,
                _ => return self.unexpected(),
            });
            self.at += 1;
        }
        Ok(sign)
    }

    fn product(&mut self) -> Result<Expression, Fault> {
        let mut factors = vec![(Operation::Times, self.power()?)];
        loop {
            let operation = match self.kind() {
                Some(Kind::Sign('*')) => Operation::Times,
                Some(Kind::Sign('/' | ':')) => Operation::Over,
                _ if self.begins_factor() => {
                    factors.push((Operation::Times, self.power()?));
                    continue;
                }
                _ => break,
            };
            self.at += 1;
            let sign = self.leading_sign()?;
            factors.push((operation, signed(sign, self.power()?)));
        }
        Ok(match factors.pop() {
            Some((Operation::Times, factor)) if factors.is_empty() => factor,
            Some(last) => {
                factors.push(last);
                Expression::Product(factors)
            }
            None => return self.unexpected(),
        })
    }

    /// Returns true when a factor begins here that no sign stands before.
    fn begins_factor(&self) -> bool {
        match self.kind() {
            Some(Kind::Letter(_) | Kind::Function(_) | Kind::Logarithm) => true,
            Some(Kind::Fraction | Kind::Binomial | Kind::Root | Kind::Open(_)) => true,
            Some(Kind::Sign('|')) => self.bars == 0,
            // Two numbers side by side are a slip, not a product.
            Some(Kind::Number(_)) => !matches!(self.words[self.at - 1].kind, Kind::Number(_)),
            _ => false,
        }
    }

    fn power(&mut self) -> Result<Expression, Fault> {
        let mut base = self.atom()?;
        loop {
            match self.kind() {
                Some(Kind::Sign('^')) => match self.degrees() {
                    Some(length) => {
                        self.at += length;
                        base = Expression::Call(Function::Degrees, vec![base]);
                    }
                    None => {
                        self.at += 1;
                        base = Expression::power(base, self.exponent()?);
                    }
                },
                Some(Kind::Sign('!')) => base = self.postfix(Function::Factorial, base)?,
                Some(Kind::Sign('%')) => base = self.postfix(Function::Percent, base)?,
                Some(Kind::Sign('°')) => base = self.postfix(Function::Degrees, base)?,
                _ => return Ok(base),
            }
        }
    }

    fn postfix(&mut self, function: Function, base: Expression) -> Result<Expression, Fault> {
        if matches!(base, Expression::Call(inner, _) if inner == function) {
            return self.unexpected();
        }
        self.at += 1;
        Ok(Expression::Call(function, vec![base]))
    }

    /// The number of words of `^\circ`.
    fn degrees(&self) -> Option<usize> {
        match (self.after(1), self.after(2), self.after(3)) {
            (Some(Kind::Sign('°')), ..) => Some(2),
            (Some(Kind::Open(_)), Some(Kind::Sign('°')), Some(Kind::Close(_))) => Some(4),
            _ => None,
        }
    }

    fn exponent(&mut self) -> Result<Expression, Fault> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(Fault::TooDeep);
        }
        let sign = self.leading_sign()?;
        let mut exponent = self.atom()?;
        if self.kind() == Some(Kind::Sign('^')) {
            self.at += 1;
            exponent = Expression::power(exponent, self.exponent()?);
        }
        self.depth -= 1;
        Ok(signed(sign, exponent))
    }
}

fn signed(sign: Sign, expression: Expression) -> Expression {
    match sign {
        Sign::Plus => expression,
        _ => Expression::Sum(vec![(sign, expression)]),
    }
}

/// The deepest nesting of brackets, exponents and arguments.
const DEPTH_MAX: u32 = 32;
