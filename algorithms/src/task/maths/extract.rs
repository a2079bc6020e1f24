//! The final answer in a reply.

/// Finds the final answer of a reply.
///
/// What stands before the last `</think>` does not count. Then the first of these that there is:
///
/// 1. the last `\boxed{...}` or `\fbox{...}` whose braces are balanced;
/// 2. what stands after the last `####`, `answer is`, `answers are`, `answer:` or `answer =`, up to
///    the end of its sentence;
/// 3. the last line with a number or mathematics between dollar signs: all of it where it is
///    nothing but mathematics, else its last mathematics, with all that is listed before it;
/// 4. what is emphasised on the last line, or all of it where it has at most three words.
///
/// The time is linear in the length, whatever the text is.
///
/// ```
/// use odeon_algorithms::task::maths::final_answer;
///
/// assert_eq!(final_answer(r"So $x = 3$ and \boxed{\frac{1}{2}}."), Some(r"\frac{1}{2}"));
/// assert_eq!(final_answer("The answer is 1,250 dollars."), Some("1,250 dollars"));
/// assert_eq!(final_answer("It is 3 or 4."), Some("3 or 4"));
/// ```
#[must_use]
pub fn final_answer(reply: &str) -> Option<&str> {
    let text = spoken(reply);
    let found = match boxed_answers(text).pop() {
        Some(boxed) => Some(boxed),
        None => marked(text).or_else(|| listed(text)),
    };
    found.map(bare).filter(|answer| !answer.is_empty())
}

/// The contents of the boxes in a reply, in the order of their ends. Boxes inside of others are
/// parts of these.
#[must_use]
pub fn boxed_answers(reply: &str) -> Vec<&str> {
    let text = spoken(reply);
    // Where the contents of each open brace begin, and whether it is that of a box.
    let mut open: Vec<(usize, Brace)> = Vec::new();
    let mut found: Vec<(usize, usize)> = Vec::new();
    let mut at = 0;
    while let Some(next) = text[at..].find(['\\', '{', '}']) {
        at += next;
        let rest = &text[at..];
        if let Some(command) = rest.strip_prefix('\\') {
            let boxed = BOXES.iter().find_map(|name| rest.strip_prefix(name));
            match boxed.map(|after| (after, after.trim_start())) {
                Some((_, inner)) if inner.starts_with('{') => {
                    at = text.len() - inner.len() + 1;
                    open.push((at, Brace::Box));
                }
                Some((after, inner)) if after.len() > inner.len() && starts_number(inner) => {
                    // As in `\boxed 5`.
                    let start = text.len() - inner.len();
                    let end = inner.find(|c: char| c.is_whitespace() || "$.,}".contains(c));
                    at = start + end.unwrap_or(inner.len());
                    found.push((start, at));
                }
                _ => at += 1 + command.chars().next().map_or(0, char::len_utf8),
            }
            continue;
        }
        at += 1;
        if rest.starts_with('{') {
            open.push((at, Brace::Other));
        } else if let Some((start, Brace::Box)) = open.pop() {
            let inner = found
                .iter()
                .rev()
                .take_while(|(inside, _)| *inside >= start)
                .count();
            found.truncate(found.len() - inner);
            found.push((start, at - 1));
        }
    }
    found
        .into_iter()
        .map(|(start, end)| text[start..end].trim())
        .collect()
}

fn starts_number(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_digit() || c == '-')
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Brace {
    Box,
    Other,
}

/// The text after the thoughts of a model.
fn spoken(reply: &str) -> &str {
    reply
        .rsplit_once("</think>")
        .map_or(reply, |(_, spoken)| spoken)
}

/// The text after the last mark of an answer, up to the end of its sentence.
fn marked(text: &str) -> Option<&str> {
    let hashes = text.rfind("####").map(|at| at + 4);
    let after = [hashes, after_answer(text)].into_iter().flatten().max()?;
    let mut tail = &text[after..];
    loop {
        let inner = tail.trim_start_matches(|c: char| c.is_whitespace() || ":*#=".contains(c));
        let displayed = ["\\[", "$$"]
            .iter()
            .find_map(|open| inner.strip_prefix(open));
        tail = displayed.unwrap_or(inner);
        if displayed.is_none() {
            break;
        }
    }
    let line = tail.lines().next()?;
    let sentence = &line[..sentence_end(line)];
    (!sentence.trim().is_empty()).then_some(sentence)
}

/// The place after the last `answer is` or its like.
fn after_answer(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    let starts = |at: usize, word: &str| {
        bytes
            .get(at..at + word.len())
            .is_some_and(|found| found.eq_ignore_ascii_case(word.as_bytes()))
    };
    let mut end = bytes.len();
    loop {
        let at = (0..end).rev().find(|at| starts(*at, "answer"))?;
        end = at;
        let mut after = at + "answer".len();
        after += usize::from(starts(after, "s"));
        while starts(after, "*") || starts(after, " ") {
            after += 1;
        }
        for verb in ["is", "are", ":", "="] {
            let word = verb.len() > 1
                && bytes
                    .get(after + verb.len())
                    .is_some_and(u8::is_ascii_alphabetic);
            if starts(after, verb) && !word {
                return Some(after + verb.len());
            }
        }
    }
}

/// Where a sentence ends: at a full stop before space, or where it goes on in words.
fn sentence_end(line: &str) -> usize {
    let stop = line.find(". ").unwrap_or(line.len());
    let ends = [
        ", which",
        ", because",
        ", since",
        ", so ",
        ", as ",
        " because ",
        " since ",
    ];
    let reason = ends.iter().filter_map(|end| line.find(end)).min();
    let end = reason.unwrap_or(stop).min(stop);
    // Mathematics between dollar signs at the beginning is all of it, if only words follow.
    let Some(inner) = line[..end].strip_prefix('$') else {
        return end;
    };
    match inner.find('$') {
        Some(close) if close > 0 && !has_mathematics(&inner[close + 1..end - 1]) => close + 2,
        _ => end,
    }
}

fn has_mathematics(text: &str) -> bool {
    text.contains(|c: char| c.is_ascii_digit() || "$\\".contains(c))
}

/// The last mathematics, with what is listed before it.
fn listed(text: &str) -> Option<&str> {
    // Signs around displayed mathematics may stand on lines of their own.
    let is_empty = |line: &&str| {
        line.chars()
            .all(|c| c.is_whitespace() || "\\[]()$*.".contains(c))
    };
    let lines = || {
        text.lines()
            .rev()
            .map(str::trim)
            .filter(|line| !is_empty(line))
    };
    let Some(line) = lines().find(|line| has_mathematics(line)) else {
        let last = lines().next()?;
        let mut emphasised = last.rsplit("**").skip(1);
        let short = || Some(last).filter(|line| line.split_whitespace().count() <= 3);
        return emphasised
            .next()
            .filter(|word| !word.is_empty())
            .or_else(short);
    };
    let tokens = tokens(line);
    let last = tokens
        .iter()
        .rposition(|token| token.weight == Weight::Mathematics)?;
    let mut first = last;
    while first > 0
        && tokens[first - 1].weight != Weight::Word
        && !tokens[first - 1].text.ends_with([':', '.'])
    {
        first -= 1;
    }
    // A letter or a joining word does not begin mathematics.
    while first < last && tokens[first].weight == Weight::Joint {
        first += 1;
    }
    let mut end = last;
    while tokens
        .get(end + 1)
        .is_some_and(|next| next.weight == Weight::Letter)
        && ends_with_operator(tokens[end].text)
    {
        end += 1;
    }
    if let Some(unit) = tokens.get(end + 1)
        && super::unit::is_known(unit.text.trim_end_matches(['.', ',']))
    {
        end += 1;
    }
    Some(&line[tokens[first].start..tokens[end].start + tokens[end].text.len()])
}

struct Piece<'a> {
    text: &'a str,
    start: usize,
    weight: Weight,
}

/// The kind of a piece of a line.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Weight {
    Mathematics,
    /// A letter that is part of mathematics when there is an operator beside it.
    Letter,
    /// A comma or a joining word between mathematics.
    Joint,
    Word,
}

/// Cuts a line at space, but not inside of dollar signs.
fn tokens(line: &str) -> Vec<Piece<'_>> {
    let mut found: Vec<Piece<'_>> = Vec::new();
    let mut start = None;
    let mut dollars = line.bytes().filter(|b| *b == b'$').count();
    let mut inside = false;
    for (at, c) in line.char_indices().chain([(line.len(), ' ')]) {
        // A dollar sign without another after it is one of money.
        inside ^= c == '$' && (inside || dollars > 1);
        dollars -= usize::from(c == '$');
        match (c.is_whitespace() && !inside, start) {
            (true, Some(begin)) => {
                found.push(piece(&line[begin..at], begin));
                start = None;
            }
            (false, None) => start = Some(at),
            _ => {}
        }
    }
    if let Some(begin) = start {
        found.push(piece(&line[begin..], begin));
    }
    join_letters(&mut found);
    found
}

fn piece(text: &str, start: usize) -> Piece<'_> {
    let core = text.trim_matches(|c: char| ",.;:*".contains(c));
    let mut letters = core.chars();
    let single = letters.next().is_some_and(char::is_alphabetic) && letters.next().is_none();
    let weight = if has_mathematics(core) || (!text.is_empty() && core.chars().all(is_operator)) {
        if core.is_empty() {
            Weight::Joint
        } else {
            Weight::Mathematics
        }
    } else if matches!(core, "and" | "or") {
        Weight::Joint
    } else if single {
        Weight::Letter
    } else {
        Weight::Word
    };
    Piece {
        text,
        start,
        weight,
    }
}

/// Letters beside operators are mathematics, others are words.
fn join_letters(pieces: &mut [Piece<'_>]) {
    for at in 0..pieces.len() {
        if pieces[at].weight != Weight::Letter {
            continue;
        }
        let before = at
            .checked_sub(1)
            .is_some_and(|at| ends_with_operator(pieces[at].text));
        let after = pieces
            .get(at + 1)
            .is_some_and(|next| next.text.starts_with(is_operator));
        pieces[at].weight = if before || after {
            Weight::Mathematics
        } else {
            Weight::Word
        };
    }
}

fn is_operator(c: char) -> bool {
    "+-*/^=<>()[]{}|≤≥±×÷√π∞−".contains(c)
}

fn ends_with_operator(text: &str) -> bool {
    text.ends_with(is_operator)
}

/// Without space, emphasis, quotes and a full stop around it.
fn bare(answer: &str) -> &str {
    let mut answer = answer.trim();
    for _ in 0..LAYERS {
        let mut inner = answer.trim_end_matches(['.', ',', ';', ':']).trim();
        for mark in ["**", "*", "__", "`", "\""] {
            let stripped = inner
                .strip_prefix(mark)
                .and_then(|inner| inner.strip_suffix(mark));
            inner = stripped.unwrap_or(inner).trim();
        }
        if inner.ends_with("**") && inner.matches("**").count() == 1 {
            inner = inner[..inner.len() - 2].trim();
        }
        answer = inner;
    }
    answer
}

/// More layers of emphasis than anybody puts around an answer.
const LAYERS: usize = 4;

const BOXES: [&str; 2] = ["\\boxed", "\\fbox"];
