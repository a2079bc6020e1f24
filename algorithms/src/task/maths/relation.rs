//! Equations and inequalities.

use num_bigint::BigInt;

use super::{
    answer::{Answer, Cause, Comparison, End, Ends, OPEN, infinity},
    budget::{Budget, Unknown},
    exponent::Exponent,
    fraction::{Fraction, is_below_zero},
    monomial::{Generator, Monomial},
    polynomial::Polynomial,
    read::{Reader, intersection, split},
    token::{Kind, Token, plain},
};

/// Reads words with signs of relations. `None` where there is no such sign.
pub(super) fn related(reader: &mut Reader<'_>, words: &[Token<'_>]) -> Option<Answer> {
    let sides = split(words, is_relation);
    if sides.len() == 1 {
        return None;
    }
    let mut signs = Vec::new();
    let mut end = 0;
    for side in &sides[..sides.len() - 1] {
        end += side.len();
        if let Kind::Sign(sign) = words[end].kind {
            signs.push(sign);
        }
        end += 1;
    }
    let unread = || Answer::Unread(plain(words), Cause::Form);
    if let Some(at) = signs.iter().position(|sign| *sign == '≈') {
        // What is exact stands before a number that is about it, except in `x ≈ 2`.
        let kept: usize = sides[..=at].iter().map(|side| side.len() + 1).sum();
        let about = reader.read(&words[kept..]);
        return Some(match (sides[0], about) {
            (
                [
                    Token {
                        kind: Kind::Letter(_),
                        ..
                    },
                ],
                about,
            ) if at == 0 => about,
            (_, Answer::Number(value, _)) if value.as_ratio().is_some() => {
                reader.read(&words[..kept - 1])
            }
            _ => unread(),
        });
    }
    let read: Vec<Answer> = sides.iter().map(|side| reader.read(side)).collect();
    if signs.iter().all(|sign| *sign == '=') {
        return Some(Answer::Equation(read));
    }
    let mut values = Vec::new();
    for side in &read {
        match side {
            Answer::Number(value, None) => values.push(value),
            _ => return Some(unread()),
        }
    }
    let mut found = Vec::new();
    for (pair, sign) in values.windows(2).zip(signs) {
        match bound(pair[0], pair[1], sign, reader.budget) {
            Ok(Some(answer)) => found.push(answer),
            Ok(None) => return Some(unread()),
            Err(error) => return Some(Answer::Unread(plain(words), Cause::Value(error))),
        }
    }
    Some(match &found[..] {
        [only] => only.clone(),
        [Answer::Region(name, first), Answer::Region(other, second)] if name == other => {
            match intersection(first, second) {
                Some(both) => Answer::Region(name.clone(), Box::new(both)),
                None => Answer::List(found),
            }
        }
        _ => Answer::List(found),
    })
}

fn is_relation(kind: &Kind<'_>) -> bool {
    matches!(kind, Kind::Sign('=' | '<' | '>' | '≤' | '≥' | '≠' | '≈'))
}

/// One inequality: a region where it is linear in one symbol.
fn bound(
    left: &Fraction,
    right: &Fraction,
    sign: char,
    budget: &mut Budget,
) -> Result<Option<Answer>, Unknown> {
    let (difference, comparison) = match sign {
        '>' => (left.minus(right, budget)?, Comparison::Above),
        '≥' => (left.minus(right, budget)?, Comparison::AtLeast),
        '<' => (right.minus(left, budget)?, Comparison::Above),
        '≤' => (right.minus(left, budget)?, Comparison::AtLeast),
        '≠' => (left.minus(right, budget)?, Comparison::Unequal),
        _ => return Ok(None),
    };
    let linear = linear(&difference, budget)?.filter(|_| comparison != Comparison::Unequal);
    let Some((name, slope, limit)) = linear else {
        return Ok(Some(Answer::Inequality(difference, comparison)));
    };
    let end = if comparison == Comparison::Above {
        End::Round
    } else {
        End::Square
    };
    let limit = Answer::Number(limit, None);
    let (ends, items) = if is_below_zero(&slope) {
        let least = Answer::Number(infinity().negated(), None);
        (Ends { close: end, ..OPEN }, vec![least, limit])
    } else {
        (
            Ends { open: end, ..OPEN },
            vec![limit, Answer::Number(infinity(), None)],
        )
    };
    Ok(Some(Answer::Region(
        name,
        Box::new(Answer::Tuple(ends, items)),
    )))
}

/// The symbol of a linear polynomial, its coefficient, and where the polynomial is zero.
fn linear(
    difference: &Fraction,
    budget: &mut Budget,
) -> Result<Option<(String, BigInt, Fraction)>, Unknown> {
    if difference.denominator().as_integer().is_none() {
        return Ok(None);
    }
    let mut found = None;
    let mut rest = Polynomial::zero();
    for (monomial, coefficient) in difference.numerator().terms() {
        if monomial.is_constant() {
            let term = Polynomial::term(coefficient.clone(), monomial.clone());
            rest = rest.plus(term, budget)?;
            continue;
        }
        let mut powers = monomial.powers();
        match (powers.next(), powers.next(), &found) {
            (Some((Generator::Symbol(name), Exponent::ONE)), None, None) => {
                found = Some((name.to_string(), coefficient.clone()));
            }
            _ => return Ok(None),
        }
    }
    let Some((name, slope)) = found else {
        return Ok(None);
    };
    let limit = Fraction::new(rest.negated(), Polynomial::integer(slope.clone()), budget)?;
    Ok(Some((name, slope, limit)))
}

/// Returns true when one polynomial is a constant times the other, so that both are zero at the
/// same places.
pub(super) fn is_multiple(
    first: &Fraction,
    second: &Fraction,
    budget: &mut Budget,
) -> Result<bool, Unknown> {
    let (first, second) = (cleared(first, budget)?, cleared(second, budget)?);
    let Some((leading, _)) = first.terms().next() else {
        return Ok(second.is_zero());
    };
    let symbols = leading.parts().1;
    let a = coefficient(&first, &symbols, budget)?;
    let b = coefficient(&second, &symbols, budget)?;
    if b.is_zero() {
        return Ok(false);
    }
    let difference = first
        .times(&b, budget)?
        .plus(second.times(&a, budget)?.negated(), budget)?;
    Ok(difference.is_zero())
}

/// Returns true when one fraction is a positive rational number times the other.
pub(super) fn is_positive_multiple(
    first: &Fraction,
    second: &Fraction,
    budget: &mut Budget,
) -> Result<bool, Unknown> {
    if first.is_zero() || second.is_zero() {
        return Ok(first.is_zero() && second.is_zero());
    }
    let quotient = first.over(second, budget)?;
    let (Some((_, a)), Some((_, b))) = (
        quotient.numerator().terms().next(),
        quotient.denominator().terms().next(),
    ) else {
        return Ok(false);
    };
    let scaled = Fraction::ratio(a.clone(), b.clone(), budget)?;
    let same = scaled.same(&quotient, budget)?;
    Ok(same == super::fraction::Sameness::Same && !scaled.numerator().is_negative())
}

/// The numerator, times the powers of symbols that it is divided by.
fn cleared(fraction: &Fraction, budget: &mut Budget) -> Result<Polynomial, Unknown> {
    let numerator = fraction.numerator();
    let mut factor = Monomial::one();
    for (generator, exponent) in numerator.common_monomial(budget)?.powers() {
        if exponent.is_negative() {
            factor = factor.times(&Monomial::of(generator.clone(), exponent.negated()))?;
        }
    }
    numerator.clone().shifted(&factor)
}

/// The coefficient of a product of symbols.
fn coefficient(
    of: &Polynomial,
    symbols: &Monomial,
    budget: &mut Budget,
) -> Result<Polynomial, Unknown> {
    let mut sum = Polynomial::zero();
    for (monomial, coefficient) in of.terms() {
        let (constant, symbolic) = monomial.parts();
        if symbolic == *symbols {
            sum = sum.plus(Polynomial::term(coefficient.clone(), constant), budget)?;
        }
    }
    Ok(sum)
}
