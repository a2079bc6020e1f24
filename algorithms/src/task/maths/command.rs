//! Meanings of LaTeX commands and of single characters.

use super::{
    expression::Function,
    name::function,
    token::{Bracket, Kind},
};

/// The meaning of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    Token(Kind<'static>),
    Space,
    /// It changes the look only; its argument stays.
    Nothing,
    /// It draws a line over its argument, which may be the name of a segment.
    Line,
    /// It changes the size of the bracket after it, which may be a full stop for none.
    Delimiter,
    /// Its argument is prose.
    Prose,
    /// It begins or ends an environment.
    Environment,
    /// Its argument names a set of numbers.
    Blackboard,
    Unknown,
}

/// The meaning of a command without its backslash.
pub(super) fn meaning(name: &str) -> Meaning {
    if let Some(kind) = function(name) {
        return Meaning::Token(kind);
    }
    Meaning::Token(match name {
        "left" | "right" | "middle" | "big" | "Big" | "bigg" | "Bigg" | "bigl" | "bigr"
        | "Bigl" | "Bigr" | "biggl" | "biggr" => return Meaning::Delimiter,
        "vec" | "hat" | "bar" | "overline" | "overrightarrow" => return Meaning::Line,
        "displaystyle" | "textstyle" | "limits" | "mathbf" | "boldsymbol" | "bm" | "mathit"
        | "boxed" | "fbox" | "rm" | "bf" | "it" | "!" | "/" | "(" | ")" | "[" | "]" => {
            return Meaning::Nothing;
        }
        "," | ";" | ":" | ">" | " " | "quad" | "qquad" | "thinspace" | "hspace" => {
            return Meaning::Space;
        }
        "text" | "mathrm" | "textbf" | "textit" | "mbox" | "hbox" | "textrm" | "textsf"
        | "texttt" | "mathsf" | "operatorname" | "textnormal" | "emph" => return Meaning::Prose,
        "begin" | "end" => return Meaning::Environment,
        "mathbb" => return Meaning::Blackboard,
        "frac" | "dfrac" | "tfrac" | "cfrac" => Kind::Fraction,
        "dbinom" | "tbinom" => Kind::Binomial,
        "choose" => Kind::Choose,
        "R" | "reals" => Kind::Letter("ℝ"),
        "emptyset" | "varnothing" => Kind::Letter("∅"),
        "cdot" | "times" | "ast" => Kind::Sign('*'),
        "div" => Kind::Sign('/'),
        "pm" => Kind::Sign('±'),
        "mp" => Kind::Sign('∓'),
        "le" | "leq" | "leqslant" => Kind::Sign('≤'),
        "ge" | "geq" | "geqslant" => Kind::Sign('≥'),
        "lt" => Kind::Sign('<'),
        "gt" => Kind::Sign('>'),
        "ne" | "neq" => Kind::Sign('≠'),
        "approx" | "simeq" | "thickapprox" => Kind::Sign('≈'),
        "cup" => Kind::Sign('∪'),
        "in" => Kind::Sign('∈'),
        "lor" | "vee" => Kind::Word("or"),
        "land" | "wedge" => Kind::Word("and"),
        "circ" | "degree" => Kind::Sign('°'),
        "prime" => Kind::Sign('\''),
        "vert" | "lvert" | "rvert" | "mid" | "|" => Kind::Sign('|'),
        "%" => Kind::Sign('%'),
        "$" => Kind::Sign('$'),
        "pounds" => Kind::Sign('£'),
        "euro" => Kind::Sign('€'),
        "{" | "lbrace" => Kind::Open(Bracket::Brace),
        "}" | "rbrace" => Kind::Close(Bracket::Brace),
        "langle" => Kind::Open(Bracket::Angle),
        "rangle" => Kind::Close(Bracket::Angle),
        "lfloor" => Kind::Open(Bracket::Floor),
        "rfloor" => Kind::Close(Bracket::Floor),
        "lceil" => Kind::Open(Bracket::Ceiling),
        "rceil" => Kind::Close(Bracket::Ceiling),
        "lbrack" => Kind::Open(Bracket::Square),
        "rbrack" => Kind::Close(Bracket::Square),
        "\\" | "cr" => Kind::Row,
        "lg" => Kind::Logarithm,
        "ell" => Kind::Letter("ℓ"),
        _ => match GREEK.iter().find(|greek| **greek == name) {
            Some(greek) => Kind::Letter(greek),
            None => return Meaning::Unknown,
        },
    })
}

/// The words that a character stands for.
pub(super) fn of_char(c: char) -> Option<&'static [Kind<'static>]> {
    Some(match c {
        '+' => &[Kind::Sign('+')],
        '-' | '−' | '–' | '—' => &[Kind::Sign('-')],
        '*' | '×' | '·' | '⋅' | '∙' => &[Kind::Sign('*')],
        '/' | '÷' | '∕' => &[Kind::Sign('/')],
        '^' => &[Kind::Sign('^')],
        '_' => &[Kind::Sign('_')],
        '!' => &[Kind::Sign('!')],
        '=' => &[Kind::Sign('=')],
        '<' => &[Kind::Sign('<')],
        '>' => &[Kind::Sign('>')],
        '≤' | '⩽' => &[Kind::Sign('≤')],
        '≥' | '⩾' => &[Kind::Sign('≥')],
        '≠' => &[Kind::Sign('≠')],
        '≈' => &[Kind::Sign('≈')],
        '±' => &[Kind::Sign('±')],
        '∓' => &[Kind::Sign('∓')],
        '∪' => &[Kind::Sign('∪')],
        '∈' => &[Kind::Sign('∈')],
        ',' => &[Kind::Sign(',')],
        ';' => &[Kind::Sign(';')],
        ':' => &[Kind::Sign(':')],
        '&' => &[Kind::Sign('&')],
        '\'' | '′' => &[Kind::Sign('\'')],
        '|' => &[Kind::Sign('|')],
        '%' => &[Kind::Sign('%')],
        '£' => &[Kind::Sign('£')],
        '€' => &[Kind::Sign('€')],
        '°' => &[Kind::Sign('°')],
        '(' => &[Kind::Open(Bracket::Round)],
        ')' => &[Kind::Close(Bracket::Round)],
        '[' => &[Kind::Open(Bracket::Square)],
        ']' => &[Kind::Close(Bracket::Square)],
        '⟨' => &[Kind::Open(Bracket::Angle)],
        '⟩' => &[Kind::Close(Bracket::Angle)],
        '√' => &[Kind::Root],
        'π' => &[Kind::Letter("pi")],
        '∞' => &[Kind::Letter("infinity")],
        'ℝ' => &[Kind::Letter("ℝ")],
        '∅' => &[Kind::Letter("∅")],
        'α' => &[Kind::Letter("alpha")],
        'β' => &[Kind::Letter("beta")],
        'γ' => &[Kind::Letter("gamma")],
        'θ' => &[Kind::Letter("theta")],
        'λ' => &[Kind::Letter("lambda")],
        'φ' => &[Kind::Letter("phi")],
        'ω' => &[Kind::Letter("omega")],
        '²' => &[Kind::Sign('^'), Kind::Number("2")],
        '³' => &[Kind::Sign('^'), Kind::Number("3")],
        '½' => &[Kind::Fraction, Kind::Number("1"), Kind::Number("2")],
        '¼' => &[Kind::Fraction, Kind::Number("1"), Kind::Number("4")],
        '¾' => &[Kind::Fraction, Kind::Number("3"), Kind::Number("4")],
        _ => return None,
    })
}

/// The function whose value is the angle of another.
pub(super) fn inverse_of(function: Function) -> Option<Function> {
    Some(match function {
        Function::Sine => Function::ArcSine,
        Function::Cosine => Function::ArcCosine,
        Function::Tangent => Function::ArcTangent,
        _ => return None,
    })
}

const GREEK: [&str; 34] = [
    "alpha",
    "beta",
    "gamma",
    "delta",
    "epsilon",
    "varepsilon",
    "zeta",
    "eta",
    "theta",
    "vartheta",
    "iota",
    "kappa",
    "lambda",
    "mu",
    "nu",
    "xi",
    "rho",
    "sigma",
    "tau",
    "upsilon",
    "phi",
    "varphi",
    "chi",
    "psi",
    "omega",
    "Gamma",
    "Delta",
    "Theta",
    "Lambda",
    "Sigma",
    "Phi",
    "Psi",
    "Omega",
    "angle",
];
