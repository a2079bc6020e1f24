//! The exact value of an expression.

use num_bigint::BigInt;
use num_integer::Integer;

use super::{
    angle::{cosine_and_sine, inverse},
    budget::{BITS_MAX, Budget, Unknown},
    expression::{Branch, Constant, Expression, Function, Operation, Sign},
    fraction::{Fraction, is_below_zero},
    logarithm::{logarithm, logarithm_to},
    monomial::Generator,
    polynomial::Polynomial,
    power::power,
    root::root,
};

/// The value of an expression, with the signs of one branch.
pub(super) fn evaluate(
    expression: &Expression,
    branch: Branch,
    budget: &mut Budget,
) -> Result<Fraction, Unknown> {
    budget.spend(1)?;
    match expression {
        Expression::Number(numerator, denominator) => {
            if numerator.bits().max(denominator.bits()) > BITS_MAX {
                return Err(Unknown::TooLarge);
            }
            Fraction::ratio(numerator.clone(), denominator.clone(), budget)
        }
        Expression::Constant(constant) => Ok(Fraction::generator(Generator::Constant(*constant))),
        Expression::Imaginary => Ok(Fraction::generator(Generator::Imaginary)),
        Expression::Symbol(name) => Ok(Fraction::generator(Generator::Symbol(name.clone()))),
        Expression::Sum(terms) => {
            let mut sum = Fraction::zero();
            for (sign, term) in terms {
                let term = evaluate(term, branch, budget)?;
                let term = if is_minus(*sign, branch) {
                    term.negated()
                } else {
                    term
                };
                sum = sum.plus(&term, budget)?;
            }
            Ok(sum)
        }
        Expression::Product(factors) => {
            let mut product = Fraction::one();
            for (operation, factor) in factors {
                let factor = evaluate(factor, branch, budget)?;
                product = match operation {
                    Operation::Times => product.times(&factor, budget)?,
                    Operation::Over => product.over(&factor, budget)?,
                };
            }
            Ok(product)
        }
        Expression::Power(parts) => {
            let base = evaluate(&parts.0, branch, budget)?;
            let exponent = evaluate(&parts.1, branch, budget)?;
            power(&base, &exponent, budget)
        }
        Expression::Root(index, radicand) => {
            root(&evaluate(radicand, branch, budget)?, *index, budget)
        }
        Expression::Call(function, arguments) => {
            let arguments = arguments
                .iter()
                .map(|argument| evaluate(argument, branch, budget));
            let arguments: Vec<Fraction> = arguments.collect::<Result<_, _>>()?;
            call(*function, &arguments, budget)
        }
    }
}

fn is_minus(sign: Sign, branch: Branch) -> bool {
    match sign {
        Sign::Plus => false,
        Sign::Minus => true,
        Sign::PlusMinus => branch == Branch::Lower,
        Sign::MinusPlus => branch == Branch::Upper,
    }
}

fn call(
    function: Function,
    arguments: &[Fraction],
    budget: &mut Budget,
) -> Result<Fraction, Unknown> {
    match arguments {
        [argument] => call_one(function, argument, budget),
        [first, second] => match function {
            Function::LogarithmTo => logarithm_to(first, second, budget),
            Function::Binomial => binomial(first, second, budget),
            _ => power(first, second, budget),
        },
        _ => Err(Unknown::NotHandled),
    }
}

fn call_one(
    function: Function,
    argument: &Fraction,
    budget: &mut Budget,
) -> Result<Fraction, Unknown> {
    let one = Fraction::one();
    match function {
        Function::Sine => Ok(cosine_and_sine(argument, budget)?.1),
        Function::Cosine => Ok(cosine_and_sine(argument, budget)?.0),
        Function::Tangent => {
            let (cosine, sine) = cosine_and_sine(argument, budget)?;
            sine.over(&cosine, budget)
        }
        Function::Cotangent => {
            let (cosine, sine) = cosine_and_sine(argument, budget)?;
            cosine.over(&sine, budget)
        }
        Function::Secant => one.over(&cosine_and_sine(argument, budget)?.0, budget),
        Function::Cosecant => one.over(&cosine_and_sine(argument, budget)?.1, budget),
        Function::ArcSine | Function::ArcTangent => inverse(function, argument, budget),
        Function::ArcCosine => {
            let quarter = Fraction::ratio(1, 2, budget)?;
            let quarter = quarter.times(&constant(Constant::Pi), budget)?;
            quarter.minus(&inverse(Function::ArcSine, argument, budget)?, budget)
        }
        Function::HyperbolicSine | Function::HyperbolicCosine | Function::HyperbolicTangent => {
            hyperbolic(function, argument, budget)
        }
        Function::Exponential => power(&constant(Constant::Euler), argument, budget),
        Function::Logarithm => logarithm(argument, budget),
        Function::Absolute => absolute(argument, budget),
        Function::Floor | Function::Ceiling => match argument.as_ratio() {
            Some((numerator, denominator)) if function == Function::Floor => {
                Ok(Fraction::integer(numerator.div_floor(&denominator)))
            }
            Some((numerator, denominator)) => {
                Ok(Fraction::integer(numerator.div_ceil(&denominator)))
            }
            None => Ok(opaque(function, &[argument])),
        },
        Function::Factorial => factorial(argument, budget),
        Function::Percent => argument.over(&Fraction::integer(100), budget),
        Function::Degrees => {
            let turn = constant(Constant::Pi).over(&Fraction::integer(180), budget)?;
            argument.times(&turn, budget)
        }
        Function::LogarithmTo | Function::Binomial | Function::Power => Err(Unknown::NotHandled),
    }
}

fn constant(constant: Constant) -> Fraction {
    Fraction::generator(Generator::Constant(constant))
}

fn opaque(function: Function, arguments: &[&Fraction]) -> Fraction {
    let arguments = arguments
        .iter()
        .map(|argument| (*argument).clone())
        .collect();
    Fraction::generator(Generator::Call(function, arguments))
}

fn hyperbolic(
    function: Function,
    argument: &Fraction,
    budget: &mut Budget,
) -> Result<Fraction, Unknown> {
    let up = power(&constant(Constant::Euler), argument, budget)?;
    let down = Fraction::one().over(&up, budget)?;
    let difference = up.minus(&down, budget)?;
    let sum = up.plus(&down, budget)?;
    match function {
        Function::HyperbolicSine => difference.over(&Fraction::integer(2), budget),
        Function::HyperbolicCosine => sum.over(&Fraction::integer(2), budget),
        _ => difference.over(&sum, budget),
    }
}

/// The absolute value: of a positive factor it is that factor.
fn absolute(argument: &Fraction, budget: &mut Budget) -> Result<Fraction, Unknown> {
    let numerator = absolute_of_polynomial(argument.numerator(), budget)?;
    let denominator = absolute_of_polynomial(argument.denominator(), budget)?;
    numerator.over(&denominator, budget)
}

fn absolute_of_polynomial(inner: &Polynomial, budget: &mut Budget) -> Result<Fraction, Unknown> {
    let content = inner.content(BigInt::ZERO, budget)?;
    let outside = Fraction::integer(content.clone());
    let Some((monomial, _)) = inner.single() else {
        if inner.is_zero() {
            return Ok(Fraction::zero());
        }
        let inner = inner.clone().divided(&content);
        let inner = if inner.is_negative() {
            inner.negated()
        } else {
            inner
        };
        let inside = Fraction::generator(Generator::Absolute(inner.into()));
        return outside.times(&inside, budget);
    };
    let mut product = outside;
    for (generator, exponent) in monomial.powers() {
        let generator = match generator {
            Generator::Imaginary | Generator::MinusOne => continue,
            Generator::Absolute(_) => generator.clone(),
            _ if generator.is_positive() => generator.clone(),
            _ => Generator::Absolute(Polynomial::generator(generator.clone()).into()),
        };
        let factor = Fraction::generator_power(generator, exponent, budget)?;
        product = product.times(&factor, budget)?;
    }
    Ok(product)
}

fn factorial(argument: &Fraction, budget: &mut Budget) -> Result<Fraction, Unknown> {
    let Some(value) = argument.as_integer() else {
        return Ok(opaque(Function::Factorial, &[argument]));
    };
    if is_below_zero(&value) {
        return Err(Unknown::NotHandled);
    }
    let value = u32::try_from(&value).map_err(|_| Unknown::TooLarge)?;
    let mut product = BigInt::from(1);
    for factor in 2..=value {
        budget.spend_product(&product, &BigInt::from(factor))?;
        product *= factor;
    }
    Ok(Fraction::integer(product))
}

/// The binomial coefficient, as a polynomial where only the upper number has symbols.
fn binomial(upper: &Fraction, lower: &Fraction, budget: &mut Budget) -> Result<Fraction, Unknown> {
    let Some(count) = lower.as_integer() else {
        return Ok(opaque(Function::Binomial, &[upper, lower]));
    };
    if is_below_zero(&count) {
        return Err(Unknown::NotHandled);
    }
    if let Some(upper) = upper.as_integer() {
        return binomial_of_integers(&upper, count, budget);
    }
    let Ok(count @ 0..=EXPANDED_BINOMIAL_MAX) = u32::try_from(&count) else {
        return Ok(opaque(Function::Binomial, &[upper, lower]));
    };
    let mut product = Fraction::one();
    for step in 0..count {
        let factor = upper.minus(&Fraction::integer(step), budget)?;
        let factor = factor.over(&Fraction::integer(step + 1), budget)?;
        product = product.times(&factor, budget)?;
    }
    Ok(product)
}

fn binomial_of_integers(
    upper: &BigInt,
    lower: BigInt,
    budget: &mut Budget,
) -> Result<Fraction, Unknown> {
    if is_below_zero(upper) {
        return Err(Unknown::NotHandled);
    }
    if lower > *upper {
        return Ok(Fraction::zero());
    }
    let count = u32::try_from((upper - &lower).min(lower)).map_err(|_| Unknown::TooLarge)?;
    let mut product = BigInt::from(1);
    for step in 0..count {
        budget.spend_product(&product, upper)?;
        budget.spend(product.bits() >> 10)?;
        product = product * (upper - step) / (step + 1);
    }
    Ok(Fraction::integer(product))
}

/// The largest lower number with which a binomial coefficient of symbols is written out.
const EXPANDED_BINOMIAL_MAX: u32 = 12;
