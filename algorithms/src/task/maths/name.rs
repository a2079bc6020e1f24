//! Names in plain writing.

use super::{expression::Function, token::Kind};

/// Cuts a run of letters into names of functions and single letters.
pub(super) fn pieces(run: &str) -> Vec<Kind<'_>> {
    let mut found = Vec::new();
    let mut at = 0;
    while at < run.len() {
        let named = (2..=NAME_MAX.min(run.len() - at))
            .rev()
            .find_map(|length| Some((function(&run[at..at + length])?, length)));
        let (kind, length) = named.unwrap_or_else(|| (Kind::Letter(&run[at..=at]), 1));
        found.push(kind);
        at += length;
    }
    found
}

/// The letter of a set of numbers.
pub(super) fn blackboard(name: &str) -> Option<&'static str> {
    Some(match name {
        "N" => "ℕ",
        "Z" => "ℤ",
        "Q" => "ℚ",
        "R" => "ℝ",
        "C" => "ℂ",
        _ => return None,
    })
}

/// The meaning of a name in plain writing.
pub(super) fn function(name: &str) -> Option<Kind<'static>> {
    Some(match name {
        "sin" => Kind::Function(Function::Sine),
        "cos" => Kind::Function(Function::Cosine),
        "tan" => Kind::Function(Function::Tangent),
        "cot" => Kind::Function(Function::Cotangent),
        "sec" => Kind::Function(Function::Secant),
        "csc" => Kind::Function(Function::Cosecant),
        "arcsin" => Kind::Function(Function::ArcSine),
        "arccos" => Kind::Function(Function::ArcCosine),
        "arctan" => Kind::Function(Function::ArcTangent),
        "sinh" => Kind::Function(Function::HyperbolicSine),
        "cosh" => Kind::Function(Function::HyperbolicCosine),
        "tanh" => Kind::Function(Function::HyperbolicTangent),
        "exp" => Kind::Function(Function::Exponential),
        "ln" => Kind::Function(Function::Logarithm),
        "abs" => Kind::Function(Function::Absolute),
        "floor" => Kind::Function(Function::Floor),
        "ceil" => Kind::Function(Function::Ceiling),
        "binom" => Kind::Binomial,
        "log" => Kind::Logarithm,
        "sqrt" => Kind::Root,
        "pi" => Kind::Letter("pi"),
        "inf" | "infty" | "infinity" | "oo" => Kind::Letter("infinity"),
        _ => return None,
    })
}

/// The longest name of [`function`].
const NAME_MAX: usize = 8;

/// Short words that are no products of symbols.
pub(super) const WORDS: [&str; 30] = [
    "all", "and", "are", "dne", "for", "has", "he", "his", "is", "it", "no", "none", "not", "odd",
    "of", "one", "or", "red", "she", "six", "ten", "the", "to", "two", "yes", "true", "even",
    "per", "if", "sum",
];
