//! LaTeX and plain text, cut into words.
//!
//! What only changes the look is left out: space, `\left`, `\displaystyle`, dollar signs around
//! mathematics. One pass, no recursion.

use super::{
    command::{Meaning, meaning, of_char},
    name::{WORDS, blackboard, function, pieces},
    token::{Ambiguities, Bracket, Commas, Kind, Reading, Token},
    unit,
};

/// The words of a text, and the readings that it can have.
pub(super) fn words(text: &str, reading: Reading) -> (Vec<Token<'_>>, Ambiguities) {
    let text = without_dollars(text.trim());
    let mut lexer = Lexer {
        text,
        at: 0,
        dollars: text.bytes().filter(|b| *b == b'$').count(),
        reading,
        braces: Vec::new(),
        brackets: 0,
        prose: 0,
        spaced: false,
        tokens: Vec::new(),
        ambiguities: Ambiguities::default(),
    };
    while lexer.at < text.len() {
        lexer.step();
    }
    (lexer.tokens, lexer.ambiguities)
}

struct Lexer<'a> {
    text: &'a str,
    at: usize,
    /// Number of dollar signs: one alone is money.
    dollars: usize,
    reading: Reading,
    braces: Vec<Brace>,
    /// Open brackets in which a comma separates.
    brackets: usize,
    /// Open braces of commands whose argument is prose.
    prose: usize,
    spaced: bool,
    tokens: Vec<Token<'a>>,
    ambiguities: Ambiguities,
}

/// The group that an opening brace began.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Brace {
    Group,
    /// A group that may be a set.
    Outer,
    Prose,
}

impl<'a> Lexer<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn push(&mut self, kind: Kind<'a>, length: usize) {
        self.at += length;
        self.tokens.push(Token {
            kind,
            spaced: std::mem::take(&mut self.spaced),
        });
    }

    fn previous(&self) -> Option<Kind<'a>> {
        self.tokens.last().map(|token| token.kind)
    }

    fn step(&mut self) {
        let rest = self.rest();
        let Some(c) = rest.chars().next() else {
            return;
        };
        let digit_at = |at: usize| rest.as_bytes().get(at).is_some_and(u8::is_ascii_digit);
        match c {
            _ if c.is_whitespace() || c == '~' => {
                self.at += c.len_utf8();
                self.spaced = true;
            }
            '\\' => self.command(),
            '{' => self.open_brace(),
            '}' => self.close_brace(),
            _ if c.is_ascii_digit() || (c == '.' && digit_at(1)) => self.number(),
            _ if c.is_ascii_alphabetic() => self.letters(),
            '.' => self.full_stop(),
            '$' if digit_at(1) && self.dollars == 1 => {
                self.push(Kind::Sign('$'), 1);
            }
            '$' | '`' | '"' => self.at += 1,
            _ => self.sign(c),
        }
    }

    fn sign(&mut self, c: char) {
        let rest = self.rest();
        for (written, sign) in DIGRAPHS {
            if rest.starts_with(written) {
                return self.push(Kind::Sign(sign), written.len());
            }
        }
        let length = c.len_utf8();
        match c {
            '(' | '[' => self.brackets += 1,
            ')' | ']' => self.brackets = self.brackets.saturating_sub(1),
            _ => {}
        }
        match of_char(c) {
            Some(kinds) => {
                for kind in kinds {
                    self.push(*kind, 0);
                }
                self.at += length;
            }
            None if c.is_alphabetic() => {
                let end = rest
                    .find(|c: char| !c.is_alphabetic())
                    .unwrap_or(rest.len());
                self.push(Kind::Word(&rest[..end]), end);
            }
            None => self.push(Kind::Other(&rest[..length]), length),
        }
    }

    /// A full stop ends a text, and nothing else.
    fn full_stop(&mut self) {
        if self.rest()[1..].trim_end().is_empty() || self.prose > 0 {
            self.at += 1;
        } else {
            self.push(Kind::Sign('.'), 1);
        }
    }

    fn open_brace(&mut self) {
        let outer = match self.previous() {
            None => true,
            Some(Kind::Sign(sign)) => matches!(sign, ',' | '=' | '∪' | '∈'),
            Some(_) => false,
        };
        self.braces
            .push(if outer { Brace::Outer } else { Brace::Group });
        self.brackets += usize::from(outer);
        self.push(Kind::Open(Bracket::Group), 1);
    }

    fn close_brace(&mut self) {
        match self.braces.pop() {
            Some(Brace::Prose) => {
                self.prose -= 1;
                self.at += 1;
                self.spaced = true;
                return;
            }
            Some(Brace::Outer) => self.brackets = self.brackets.saturating_sub(1),
            Some(Brace::Group) | None => {}
        }
        self.push(Kind::Close(Bracket::Group), 1);
    }

    fn command(&mut self) {
        let rest = self.rest();
        let letters = rest[1..]
            .find(|c: char| !c.is_ascii_alphabetic())
            .unwrap_or(rest.len() - 1);
        let length = match (letters, rest[1..].chars().next()) {
            (0, Some(c)) => 1 + c.len_utf8(),
            _ => 1 + letters,
        };
        let name = &rest[1..length];
        match meaning(name) {
            Meaning::Token(kind) => {
                match kind {
                    Kind::Open(Bracket::Brace | Bracket::Angle) => self.brackets += 1,
                    Kind::Close(Bracket::Brace | Bracket::Angle) => {
                        self.brackets = self.brackets.saturating_sub(1);
                    }
                    Kind::Logarithm => self.ambiguities.logarithms = true,
                    _ => {}
                }
                self.push(kind, length);
            }
            Meaning::Space => {
                self.at += length;
                self.spaced = true;
            }
            Meaning::Nothing => self.at += length,
            Meaning::Line => match argument(&rest[length..]) {
                Some((inner, taken)) if are_capitals(inner) => {
                    self.push(Kind::Word(inner), length + taken);
                }
                _ => self.at += length,
            },
            Meaning::Delimiter => {
                self.at += length + usize::from(rest[length..].starts_with('.'));
            }
            Meaning::Prose => self.prose(length),
            Meaning::Environment => match argument(&rest[length..]) {
                Some((inner, taken)) if name == "begin" => {
                    self.push(Kind::Begin(inner), length + taken);
                }
                Some((inner, taken)) => self.push(Kind::End(inner), length + taken),
                None => self.push(Kind::Other(name), length),
            },
            Meaning::Blackboard => self.blackboard(name, length),
            Meaning::Unknown => self.push(Kind::Other(name), length),
        }
    }

    /// A set of numbers, with or without braces around its letter.
    fn blackboard(&mut self, name: &'a str, length: usize) {
        let rest = &self.rest()[length..];
        let bare = rest.trim_start();
        let letter = bare
            .get(..1)
            .map(|letter| (letter, rest.len() - bare.len() + 1));
        let found = argument(rest).or(letter);
        match found.and_then(|(letter, taken)| Some((blackboard(letter)?, taken))) {
            Some((set, taken)) => self.push(Kind::Letter(set), length + taken),
            None => self.push(Kind::Other(name), length),
        }
    }

    /// A command whose argument is prose. Upright letters may be names of constants or functions.
    fn prose(&mut self, length: usize) {
        let rest = &self.rest()[length..];
        if let Some((inner, taken)) = argument(rest) {
            let kind = match inner {
                "e" | "i" | "d" => Some(Kind::Letter(inner)),
                _ => function(inner),
            };
            if let Some(kind) = kind {
                return self.push(kind, length + taken);
            }
        }
        self.at += length;
        self.spaced = true;
        if let Some(inner) = rest.trim_start().strip_prefix('{') {
            self.at = self.text.len() - inner.len();
            self.braces.push(Brace::Prose);
            self.prose += 1;
        }
    }

    fn letters(&mut self) {
        let rest = self.rest();
        let end = rest
            .find(|c: char| !c.is_ascii_alphabetic())
            .unwrap_or(rest.len());
        let run = &rest[..end];
        if self.prose > 0 || self.is_word(run) {
            return self.push(Kind::Word(run), end);
        }
        let pieces = pieces(run);
        let letters = pieces
            .iter()
            .filter(|kind| matches!(kind, Kind::Letter(name) if name.len() == 1));
        if letters.count() > LETTERS_MAX {
            return self.push(Kind::Word(run), end);
        }
        let after_number = self.spaced && matches!(self.previous(), Some(Kind::Number(_)));
        self.ambiguities.letters |= after_number && unit::is_letter(run);
        for piece in pieces {
            self.ambiguities.logarithms |= piece == Kind::Logarithm;
            self.push(piece, 0);
        }
        self.at += end;
    }

    fn is_word(&self, run: &str) -> bool {
        let lower = run.to_ascii_lowercase();
        let alone = run.len() == self.text.len();
        if WORDS.contains(&lower.as_str()) || (alone && are_capitals(run)) {
            return true;
        }
        let after_value = match self.previous() {
            Some(Kind::Number(_) | Kind::Close(_) | Kind::Word(_)) => true,
            Some(Kind::Sign('/')) => {
                let before = self
                    .tokens
                    .len()
                    .checked_sub(2)
                    .map(|at| self.tokens[at].kind);
                matches!(before, Some(Kind::Word(_)))
            }
            _ => false,
        };
        run.len() > 1 && after_value && unit::is_known(run)
    }

    fn number(&mut self) {
        let rest = self.rest();
        let mut end = digits(rest);
        if end <= 3 && end > 0 {
            while let Some(separator) = self.separator(&rest[end..]) {
                end += separator + 3;
            }
        }
        if rest[end..].starts_with('.') {
            let fraction = digits(&rest[end + 1..]);
            if let Some((inner, taken)) = rest[end + 1 + fraction..]
                .strip_prefix("\\overline")
                .and_then(argument)
                .filter(|(inner, _)| !inner.is_empty() && digits(inner) == inner.len())
            {
                debug_assert!(inner.len() < taken);
                end += 1 + fraction + "\\overline".len() + taken;
            } else if fraction > 0 {
                end += 1 + fraction;
            }
        }
        end += power_of_ten(&rest[end..]);
        self.push(Kind::Number(&rest[..end]), end);
    }

    /// The length of what groups digits, when exactly three digits follow it.
    fn separator(&mut self, rest: &str) -> Option<usize> {
        let (written, comma) = SEPARATORS
            .iter()
            .find(|(written, _)| rest.starts_with(written))?;
        if digits(&rest[written.len()..]) != 3 {
            return None;
        }
        if *comma {
            if self.brackets > 0 {
                return None;
            }
            self.ambiguities.commas = true;
            if self.reading.commas == Commas::Separate {
                return None;
            }
        }
        Some(written.len())
    }
}

/// Takes dollar signs off that stand around all of a text.
fn without_dollars(text: &str) -> &str {
    for (open, close) in [("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]")] {
        let inner = text
            .strip_prefix(open)
            .and_then(|inner| inner.strip_suffix(close));
        if let Some(inner) = inner {
            return inner.trim();
        }
    }
    text
}

/// The text in the braces at the beginning of another, if no brace is in it, and the length of all
/// of it.
pub(super) fn argument(text: &str) -> Option<(&str, usize)> {
    let inner = text.trim_start().strip_prefix('{')?;
    let end = inner.find(['{', '}'])?;
    let taken = text.len() - inner.len() + end + 1;
    inner[end..]
        .starts_with('}')
        .then(|| (inner[..end].trim(), taken))
}

/// Returns true for more than one letter, all of them capitals.
fn are_capitals(text: &str) -> bool {
    text.len() > 1 && text.bytes().all(|b| b.is_ascii_uppercase())
}

fn digits(text: &str) -> usize {
    text.bytes().take_while(u8::is_ascii_digit).count()
}

/// The length of `e5` or `E-5`.
fn power_of_ten(text: &str) -> usize {
    let Some(rest) = text.strip_prefix(['e', 'E']) else {
        return 0;
    };
    let sign = usize::from(rest.starts_with(['-', '+']));
    let count = digits(&rest[sign..]);
    let after = rest[sign + count..].chars().next();
    if count == 0 || after.is_some_and(char::is_alphabetic) {
        return 0;
    }
    1 + sign + count
}

/// The separators between groups of digits, each with true for a comma that could separate as well.
const SEPARATORS: [(&str, bool); 9] = [
    (",\\! ", false),
    (",\\!", false),
    ("{,}", false),
    ("\\,", false),
    ("\\ ", false),
    ("\\;", false),
    (",", true),
    ("~", false),
    (" ", true),
];

const DIGRAPHS: [(&str, char); 8] = [
    ("<=", '≤'),
    (">=", '≥'),
    ("!=", '≠'),
    ("==", '='),
    ("+/-", '±'),
    ("+-", '±'),
    ("**", '^'),
    ("=>", '⇒'),
];

/// A product of more letters is taken for a word.
const LETTERS_MAX: usize = 3;
