//! Numbers and expressions, with the unit after them.

use super::{
    answer::{Answer, Cause},
    budget::{Budget, Unknown},
    evaluate::evaluate,
    expression::Branch,
    fraction::{Fraction, Sameness},
    parse::{Fault, expression},
    read::Reader,
    token::{Kind, Letters, Reading, Token, plain},
    unit::{Unit, is_letter},
};

/// Reads words that no sign of a list, a set or a relation stands between.
pub(super) fn quantity(reader: &mut Reader<'_>, words: &[Token<'_>]) -> Answer {
    // A letter that is set as text is that letter.
    if let [
        Token {
            kind: Kind::Word(letter),
            spaced,
        },
    ] = *words
        && letter.len() == 1
    {
        let kind = Kind::Letter(letter);
        return quantity(reader, &[Token { kind, spaced }]);
    }
    if is_time_of_day(words) {
        return Answer::Prose(plain(words).replace(' ', "").to_lowercase());
    }
    let unread = |cause| Answer::Unread(plain(words), cause);
    let (value, unit) = match parts(words, reader.reading, reader.budget) {
        Ok(Some(parts)) => parts,
        Ok(None) if is_prose(words) => return Answer::Prose(plain(words)),
        Ok(None) => return unread(Cause::Form),
        Err(error) => return unread(Cause::Value(error)),
    };
    let expression = match expression(&value, reader.reading.logarithms) {
        Ok(expression) => expression,
        Err(Fault::TooDeep) => return unread(Cause::TooDeep),
        Err(Fault::Unexpected(_)) if is_prose(words) => return Answer::Prose(plain(words)),
        Err(Fault::Unexpected(_)) => return unread(Cause::Form),
    };
    let mut values = Vec::new();
    let branches = [Branch::Upper, Branch::Lower];
    for branch in branches
        .into_iter()
        .take(1 + usize::from(expression.has_branches()))
    {
        match evaluate(&expression, branch, reader.budget) {
            Ok(value) => values.push(value),
            Err(error) => return unread(Cause::Value(error)),
        }
    }
    match &values[..] {
        [value] => Answer::Number(value.clone(), unit),
        [upper, lower] if upper.same(lower, reader.budget) == Ok(Sameness::Same) => {
            Answer::Number(upper.clone(), unit)
        }
        _ => {
            let number = |value: Fraction| Answer::Number(value, unit.clone());
            Answer::List(values.into_iter().map(number).collect())
        }
    }
}

/// The words of a value, and its unit.
type Parts<'a> = (Vec<Token<'a>>, Option<Unit>);

/// The parts of words. `None` where words are neither.
fn parts<'a>(
    words: &[Token<'a>],
    reading: Reading,
    budget: &mut Budget,
) -> Result<Option<Parts<'a>>, Unknown> {
    if let Some((value, unit)) = currency(words, budget)? {
        return Ok(Some((value, Some(unit))));
    }
    if let Some((value, unit)) = sign_after(words, budget)? {
        return Ok(Some((value.to_vec(), Some(unit))));
    }
    let first = first_word(words);
    let first = match (letter(words), reading.letters) {
        (Some(letter), Letters::Units) if first.is_none_or(|first| letter < first) => Some(letter),
        _ => first,
    };
    match first {
        None => Ok(Some((words.to_vec(), None))),
        Some(0) => Ok(None),
        Some(first) => {
            let value = words[..first].to_vec();
            let written = matches!(words[first].kind, Kind::Word(_));
            match Unit::of_words(&words[first..], budget)? {
                Some(unit) => Ok(Some((value, Some(unit)))),
                None if written => Ok(None),
                None => Ok(Some((words.to_vec(), None))),
            }
        }
    }
}

/// The position of the first word of a language that is not inside of brackets.
fn first_word(words: &[Token<'_>]) -> Option<usize> {
    let mut depth = 0_u32;
    words.iter().position(|word| {
        match word.kind {
            Kind::Open(_) => depth += 1,
            Kind::Close(_) => depth = depth.saturating_sub(1),
            _ => {}
        }
        depth == 0 && matches!(word.kind, Kind::Word(_))
    })
}

/// `$5` and `-$5`.
fn currency<'a>(
    words: &[Token<'a>],
    budget: &mut Budget,
) -> Result<Option<(Vec<Token<'a>>, Unit)>, Unknown> {
    let at = usize::from(words[0].kind.is_sign('-'));
    let Some(Kind::Sign(sign @ ('$' | '£' | '€'))) = words.get(at).map(|word| word.kind) else {
        return Ok(None);
    };
    let mut value = words.to_vec();
    value.remove(at);
    // The same said twice: `$5 dollars`.
    if let Some(first) = value
        .iter()
        .position(|word| matches!(word.kind, Kind::Word(_)))
    {
        value.truncate(first);
    }
    Ok(Unit::of_sign(sign, budget)?.map(|unit| (value, unit)))
}

/// `50%`, `90°`, `90^\circ`, `20°C` and `5£`.
fn sign_after<'w, 'a>(
    words: &'w [Token<'a>],
    budget: &mut Budget,
) -> Result<Option<(&'w [Token<'a>], Unit)>, Unknown> {
    // What stands behind the argument of a function belongs to that.
    let of_function = |word: &Token<'_>| matches!(word.kind, Kind::Function(_) | Kind::Logarithm);
    if words.iter().any(of_function) {
        return Ok(None);
    }
    let kind = |back: usize| words.len().checked_sub(back).map(|at| words[at].kind);
    if let Some(Kind::Letter(scale) | Kind::Word(scale)) = kind(1)
        && let Some(before) = degrees(&words[..words.len() - 1])
        && let Some(unit) = Unit::of_temperature(scale)
    {
        return Ok(Some((before, unit)));
    }
    if let Some(before) = degrees(words) {
        return Ok(Unit::of_sign('°', budget)?.map(|unit| (before, unit)));
    }
    let Some(Kind::Sign(sign @ ('%' | '$' | '£' | '€'))) = kind(1) else {
        return Ok(None);
    };
    let before = &words[..words.len() - 1];
    Ok(Unit::of_sign(sign, budget)?.map(|unit| (before, unit)))
}

/// The words before a sign of degrees at the end.
fn degrees<'w, 'a>(words: &'w [Token<'a>]) -> Option<&'w [Token<'a>]> {
    let before = match words {
        [
            before @ ..,
            Token {
                kind: Kind::Sign('^'),
                ..
            },
            Token {
                kind: Kind::Open(_),
                ..
            },
            Token {
                kind: Kind::Sign('°'),
                ..
            },
            Token {
                kind: Kind::Close(_),
                ..
            },
        ] => before,
        [
            before @ ..,
            Token {
                kind: Kind::Sign('^'),
                ..
            },
            Token {
                kind: Kind::Sign('°'),
                ..
            },
        ] => before,
        [
            before @ ..,
            Token {
                kind: Kind::Sign('°'),
                ..
            },
        ] => before,
        _ => return None,
    };
    (!before.is_empty()).then_some(before)
}

/// The position of a letter that may be a unit: after a number and space.
fn letter(words: &[Token<'_>]) -> Option<usize> {
    let mut pairs = words.windows(2);
    let at = pairs.position(|pair| {
        let unit = matches!(pair[1].kind, Kind::Letter(name) if is_letter(name));
        unit && pair[1].spaced && matches!(pair[0].kind, Kind::Number(_))
    })?;
    Some(at + 1)
}

/// Returns true for a time of day and no ratio: `7:00`, `2:30 p.m.`.
fn is_time_of_day(words: &[Token<'_>]) -> bool {
    let [hours, colon, minutes, rest @ ..] = words else {
        return false;
    };
    let (Kind::Number(hours), Kind::Number(minutes)) = (hours.kind, minutes.kind) else {
        return false;
    };
    let half = rest.first().is_some_and(|word| match word.kind {
        Kind::Letter(name) | Kind::Word(name) => name.starts_with(['a', 'p', 'A', 'P']),
        _ => false,
    });
    let full = rest.is_empty() && minutes.starts_with('0');
    colon.kind.is_sign(':') && hours.len() <= 2 && minutes.len() == 2 && (half || full)
}

/// Returns true for words of a language, beside numbers and letters.
fn is_prose(words: &[Token<'_>]) -> bool {
    let mut found = false;
    for word in words {
        match word.kind {
            Kind::Word(_) => found = true,
            Kind::Letter(_) | Kind::Number(_) | Kind::Open(_) | Kind::Close(_) => {}
            Kind::Sign(sign) if "!'-%$&:°/+".contains(sign) => {}
            _ => return false,
        }
    }
    found
}
