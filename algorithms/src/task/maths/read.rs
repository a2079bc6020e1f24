//! Words into an answer.

use super::{
    answer::{Answer, Cause, End, Ends, OPEN, infinity},
    budget::Budget,
    quantity::quantity,
    relation::related,
    token::{Bracket, Kind, Reading, Token, plain},
};

/// Reads words. What is not understood is told in the answer.
pub(super) fn answer(words: &[Token<'_>], reading: Reading, budget: &mut Budget) -> Answer {
    Reader {
        reading,
        depth: 0,
        budget,
    }
    .read(words)
}

pub(super) struct Reader<'b> {
    pub(super) reading: Reading,
    depth: u32,
    pub(super) budget: &'b mut Budget,
}

impl Reader<'_> {
    pub(super) fn read(&mut self, words: &[Token<'_>]) -> Answer {
        let words = trimmed(words);
        if words.is_empty() {
            return Answer::Unread(String::new(), Cause::Empty);
        }
        self.depth += 1;
        let read = match self.budget.spend(words.len() as u64) {
            Ok(()) if self.depth <= DEPTH_MAX => self.read_parts(words),
            Ok(()) => Answer::Unread(plain(words), Cause::TooDeep),
            Err(error) => Answer::Unread(plain(words), Cause::Value(error)),
        };
        self.depth -= 1;
        read
    }

    fn read_parts(&mut self, words: &[Token<'_>]) -> Answer {
        let parts = split(words, is_separator);
        if parts.len() > 1 {
            return self.list(words, &parts);
        }
        let parts = split(words, |kind| kind.is_sign('∪'));
        if parts.len() > 1 {
            return Answer::Union(parts.iter().map(|part| self.read(part)).collect());
        }
        if let [name, set] = split(words, |kind| kind.is_sign('∈'))[..] {
            return self.member(words, name, set);
        }
        if let Some(answer) = related(self, words) {
            return answer;
        }
        let parts = split(words, |kind| kind.is_sign(':'));
        if parts.len() > 2 {
            return self.ratio(words, &parts);
        }
        if let Some(answer) = self.matrix(words) {
            return answer;
        }
        if let Some(answer) = self.bracketed(words) {
            return answer;
        }
        match words {
            [
                Token {
                    kind: Kind::Letter("∅"),
                    ..
                },
            ] => Answer::Set(Vec::new()),
            [
                Token {
                    kind: Kind::Letter("ℝ"),
                    ..
                },
            ] => Answer::Tuple(
                OPEN,
                vec![
                    Answer::Number(infinity().negated(), None),
                    Answer::Number(infinity(), None),
                ],
            ),
            _ => quantity(self, words),
        }
    }

    /// Several answers. Bounds of one name that are joined are one region.
    fn list(&mut self, words: &[Token<'_>], parts: &[&[Token<'_>]]) -> Answer {
        let parts = parts.iter().filter(|part| !part.is_empty());
        let mut items: Vec<Answer> = parts.map(|part| self.read(part)).collect();
        if let [only] = &mut items[..] {
            return std::mem::replace(only, Answer::List(Vec::new()));
        }
        let joins = |word: &str| words.iter().any(|token| token.kind == Kind::Word(word));
        let regions: Option<Vec<(&String, &Answer)>> = items
            .iter()
            .map(|item| match item {
                Answer::Region(name, set) => Some((name, set.as_ref())),
                _ => None,
            })
            .collect();
        if let Some(regions) = regions
            && regions.iter().all(|(name, _)| *name == regions[0].0)
        {
            let name = regions[0].0.clone();
            if joins("or") {
                let sets = regions.into_iter().map(|(_, set)| set.clone()).collect();
                return Answer::Region(name, Box::new(Answer::Union(sets)));
            }
            if let [(_, first), (_, second)] = regions[..]
                && let Some(both) = intersection(first, second)
            {
                return Answer::Region(name, Box::new(both));
            }
        }
        // What is one or the other has no order at all.
        if joins("or") {
            Answer::Set(items)
        } else {
            Answer::List(items)
        }
    }

    /// A name, or a point of names, and the set that it is in.
    fn member(&mut self, words: &[Token<'_>], name: &[Token<'_>], set: &[Token<'_>]) -> Answer {
        let is_name = |word: &Token<'_>| {
            let bracket = matches!(word.kind, Kind::Open(_) | Kind::Close(_));
            bracket || matches!(word.kind, Kind::Letter(_) | Kind::Sign(','))
        };
        let read = self.read(set);
        let named = !name.is_empty() && name.iter().all(is_name);
        let many = matches!(read, Answer::Tuple(..) | Answer::Set(_) | Answer::Union(_));
        match read {
            read if named && many => Answer::Region(plain(name), Box::new(read)),
            Answer::Unread(..) => read,
            _ => Answer::Unread(plain(words), Cause::Form),
        }
    }

    fn ratio(&mut self, words: &[Token<'_>], parts: &[&[Token<'_>]]) -> Answer {
        let mut values = Vec::new();
        for part in parts {
            let Answer::Number(value, None) = self.read(part) else {
                return Answer::Unread(plain(words), Cause::Form);
            };
            values.push(value);
        }
        let first = values[0].clone();
        let scaled = values.iter().map(|value| value.over(&first, self.budget));
        match scaled.collect::<Result<Vec<_>, _>>() {
            Ok(values) => Answer::Ratio(
                values
                    .into_iter()
                    .map(|value| Answer::Number(value, None))
                    .collect(),
            ),
            Err(error) => Answer::Unread(plain(words), Cause::Value(error)),
        }
    }

    fn matrix(&mut self, words: &[Token<'_>]) -> Option<Answer> {
        let [
            Token {
                kind: Kind::Begin(name),
                ..
            },
            inner @ ..,
            Token {
                kind: Kind::End(end),
                ..
            },
        ] = words
        else {
            return None;
        };
        if name != end || closing(words) != Some(words.len() - 1) {
            return None;
        }
        let inner = match *name {
            "pmatrix" | "bmatrix" | "matrix" | "Bmatrix" | "smallmatrix" => inner,
            // The columns are described in a group.
            "array" => &inner[closing(inner)? + 1..],
            _ => return Some(Answer::Unread(plain(words), Cause::Form)),
        };
        let rows = split(inner, |kind| *kind == Kind::Row);
        let rows = rows.iter().filter(|row| !row.is_empty());
        let cells = rows.map(|row| {
            let cells = split(row, |kind| kind.is_sign('&'));
            cells.iter().map(|cell| self.read(cell)).collect()
        });
        Some(Answer::Matrix(cells.collect()))
    }

    /// A tuple, an interval, a set, or what stands in one pair of brackets.
    fn bracketed(&mut self, words: &[Token<'_>]) -> Option<Answer> {
        let (Kind::Open(open), Kind::Close(close)) = (words[0].kind, words.last()?.kind) else {
            return None;
        };
        if closing(words) != Some(words.len() - 1) {
            return None;
        }
        let inner = &words[1..words.len() - 1];
        let items = split(inner, |kind| matches!(kind, Kind::Sign(',' | ';')));
        match (open, close) {
            (Bracket::Brace, Bracket::Brace) => Some(self.set(inner, &items)),
            (Bracket::Group, Bracket::Group) if items.len() > 1 => Some(self.set(inner, &items)),
            (Bracket::Group, Bracket::Group) => Some(self.read(inner)),
            _ => {
                let ends = Ends {
                    open: end(open)?,
                    close: end(close)?,
                };
                if items.len() > 1 {
                    let items = items.iter().map(|item| self.read(item)).collect();
                    return Some(Answer::Tuple(ends, items));
                }
                (ends.open == ends.close).then(|| self.read(inner))
            }
        }
    }

    /// A set by its elements, or by what they satisfy.
    fn set(&mut self, inner: &[Token<'_>], items: &[&[Token<'_>]]) -> Answer {
        if let [
            Token {
                kind: Kind::Letter(_),
                ..
            },
            Token {
                kind: Kind::Sign('|' | ':'),
                ..
            },
            rest @ ..,
        ] = inner
        {
            return self.read(rest);
        }
        if inner.is_empty() {
            return Answer::Set(Vec::new());
        }
        Answer::Set(items.iter().map(|item| self.read(item)).collect())
    }
}

/// Cuts words at those that are not inside of brackets.
pub(super) fn split<'w, 'a>(
    words: &'w [Token<'a>],
    at: impl Fn(&Kind<'a>) -> bool,
) -> Vec<&'w [Token<'a>]> {
    let mut parts = Vec::new();
    let (mut depth, mut start) = (0_u32, 0);
    for (position, word) in words.iter().enumerate() {
        match word.kind {
            Kind::Open(_) | Kind::Begin(_) => depth += 1,
            Kind::Close(_) | Kind::End(_) => depth = depth.saturating_sub(1),
            kind if depth == 0 && at(&kind) => {
                parts.push(&words[start..position]);
                start = position + 1;
            }
            _ => {}
        }
    }
    parts.push(&words[start..]);
    parts
}

/// The position of the bracket that closes the first.
fn closing(words: &[Token<'_>]) -> Option<usize> {
    let mut depth = 0_u32;
    for (position, word) in words.iter().enumerate() {
        match word.kind {
            Kind::Open(_) | Kind::Begin(_) => depth += 1,
            Kind::Close(_) | Kind::End(_) => {
                depth = depth.checked_sub(1)?;
                if depth == 0 {
                    return Some(position);
                }
            }
            _ if depth == 0 => return None,
            _ => {}
        }
    }
    None
}

fn is_separator(kind: &Kind<'_>) -> bool {
    matches!(kind, Kind::Sign(',' | ';') | Kind::Word("and" | "or"))
}

/// Without separators and full stops at its ends.
fn trimmed<'w, 'a>(mut words: &'w [Token<'a>]) -> &'w [Token<'a>] {
    let is_empty = |word: &Token<'_>| is_separator(&word.kind) || word.kind.is_sign('.');
    while let [first, rest @ ..] = words
        && is_empty(first)
    {
        words = rest;
    }
    while let [rest @ .., last] = words
        && is_empty(last)
    {
        words = rest;
    }
    words
}

fn end(bracket: Bracket) -> Option<End> {
    match bracket {
        Bracket::Round | Bracket::Angle => Some(End::Round),
        Bracket::Square => Some(End::Square),
        _ => None,
    }
}

/// The common part of two rays that point at each other.
pub(super) fn intersection(first: &Answer, second: &Answer) -> Option<Answer> {
    let (Answer::Tuple(a, first), Answer::Tuple(b, second)) = (first, second) else {
        return None;
    };
    let ([a_low, a_high], [b_low, b_high]) = (&first[..], &second[..]) else {
        return None;
    };
    let least = Answer::Number(infinity().negated(), None);
    let most = Answer::Number(infinity(), None);
    let (open, low) = match (*a_low == least, *b_low == least) {
        (false, true) => (a.open, a_low),
        (true, _) => (b.open, b_low),
        (false, false) => return None,
    };
    let (close, high) = match (*a_high == most, *b_high == most) {
        (false, true) => (a.close, a_high),
        (true, _) => (b.close, b_high),
        (false, false) => return None,
    };
    Some(Answer::Tuple(
        Ends { open, close },
        vec![low.clone(), high.clone()],
    ))
}

/// The deepest nesting of brackets around answers.
const DEPTH_MAX: u32 = 24;
