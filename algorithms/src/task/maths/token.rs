//! The words of mathematical writing.

use super::expression::Function;

/// A word, and whether space stands before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Token<'a> {
    pub(super) kind: Kind<'a>,
    pub(super) spaced: bool,
}

/// The kind of a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind<'a> {
    /// Digits, maybe with separators, a point, repeating digits and a power of ten.
    Number(&'a str),
    /// The name of a symbol or of a constant.
    Letter(&'a str),
    /// A word of a language, or a unit.
    Word(&'a str),
    Function(Function),
    /// A logarithm that names no base, or names it below.
    Logarithm,
    /// `\frac` and its like.
    Fraction,
    /// `\binom` and its like.
    Binomial,
    /// `\choose`, between the two numbers of a binomial coefficient.
    Choose,
    /// `\sqrt` and its like.
    Root,
    Open(Bracket),
    Close(Bracket),
    /// A sign, where there are several ways of writing by one of them.
    Sign(char),
    /// The begin of an environment, with its name.
    Begin(&'a str),
    /// The end of an environment.
    End(&'a str),
    /// The end of a row.
    Row,
    /// A word that is not understood.
    Other(&'a str),
}

/// A pair of brackets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bracket {
    Round,
    Square,
    /// Braces that are seen.
    Brace,
    /// Braces that are not seen.
    Group,
    Angle,
    Floor,
    Ceiling,
}

/// A reading of writing that can be read in two ways.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Reading {
    pub(super) commas: Commas,
    pub(super) logarithms: Logarithms,
    pub(super) letters: Letters,
}

/// The role of a comma directly before three digits, where no bracket is open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Commas {
    /// It groups digits.
    #[default]
    Group,
    /// It separates numbers.
    Separate,
}

/// The base of a logarithm that names none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Logarithms {
    #[default]
    Natural,
    Decimal,
}

/// The role of a letter after a number and space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Letters {
    /// A unit, where it can be one.
    #[default]
    Units,
    /// A symbol.
    Symbols,
}

/// Which readings a text can have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Ambiguities {
    pub(super) commas: bool,
    pub(super) logarithms: bool,
    pub(super) letters: bool,
}

impl Reading {
    /// All readings of two texts, the usual one first.
    pub(super) fn all(of: Ambiguities) -> impl Iterator<Item = Self> {
        let commas = [Commas::Group, Commas::Separate]
            .into_iter()
            .take(1 + usize::from(of.commas));
        commas.flat_map(move |commas| {
            let logarithms = [Logarithms::Natural, Logarithms::Decimal];
            let count = 1 + usize::from(of.logarithms);
            logarithms
                .into_iter()
                .take(count)
                .flat_map(move |logarithms| {
                    let letters = [Letters::Units, Letters::Symbols];
                    let count = 1 + usize::from(of.letters);
                    letters.into_iter().take(count).map(move |letters| Self {
                        commas,
                        logarithms,
                        letters,
                    })
                })
        })
    }
}

impl Ambiguities {
    pub(super) fn or(self, other: Self) -> Self {
        Self {
            commas: self.commas | other.commas,
            logarithms: self.logarithms | other.logarithms,
            letters: self.letters | other.letters,
        }
    }
}

impl Kind<'_> {
    pub(super) fn is_sign(&self, sign: char) -> bool {
        *self == Kind::Sign(sign)
    }
}

/// Writes words in one way, without formatting.
pub(super) fn plain(tokens: &[Token<'_>]) -> String {
    let is_group = |at: Option<usize>| {
        let kind = |at: usize| tokens.get(at).map(|token| token.kind);
        let closed = at.map(|at| (kind(at), kind(at + 2)));
        closed
            == Some((
                Some(Kind::Open(Bracket::Group)),
                Some(Kind::Close(Bracket::Group)),
            ))
    };
    let mut text = String::new();
    for (at, token) in tokens.iter().enumerate() {
        // Braces around one word say nothing.
        if is_group(Some(at)) || is_group(at.checked_sub(2)) {
            continue;
        }
        if !text.is_empty() {
            text.push(' ');
        }
        match token.kind {
            Kind::Number(digits) => {
                text.extend(digits.chars().filter(|c| !",{}\\! ~".contains(*c)));
            }
            Kind::Letter(name) | Kind::Other(name) => text.push_str(name),
            Kind::Word(word) => text.push_str(&word.to_lowercase()),
            Kind::Function(function) => text.push_str(&format!("{function:?}")),
            Kind::Logarithm => text.push_str("log"),
            Kind::Fraction => text.push_str("frac"),
            Kind::Binomial => text.push_str("binom"),
            Kind::Choose => text.push_str("choose"),
            Kind::Root => text.push_str("sqrt"),
            Kind::Open(bracket) => text.push_str(bracket.pair().0),
            Kind::Close(bracket) => text.push_str(bracket.pair().1),
            Kind::Sign(sign) => text.push(sign),
            Kind::Begin(name) => text.push_str(&format!("begin{{{name}}}")),
            Kind::End(name) => text.push_str(&format!("end{{{name}}}")),
            Kind::Row => text.push_str("\\\\"),
        }
    }
    text
}

impl Bracket {
    fn pair(self) -> (&'static str, &'static str) {
        match self {
            Self::Round => ("(", ")"),
            Self::Square => ("[", "]"),
            Self::Brace => ("\\{", "\\}"),
            Self::Group => ("{", "}"),
            Self::Angle => ("<", ">"),
            Self::Floor => ("floor(", ")"),
            Self::Ceiling => ("ceil(", ")"),
        }
    }
}
