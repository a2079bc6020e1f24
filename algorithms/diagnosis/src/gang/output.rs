//! Progress of a program by the lines that it prints: the step that one names, and losses that are no numbers.

/// The facts about progress in a line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LineProgress {
    /// The step that it names.
    pub step: Option<u64>,
    /// The name of a loss or of a norm of gradients in it, and the kind of its value.
    pub number: Option<(String, NumberKind)>,
}

/// The kind of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NumberKind {
    /// A number.
    Finite,
    /// Infinite, or no number.
    NotFinite,
}

impl LineProgress {
    /// Reads a line: `step 12 loss 3.4`, `[12/100] train_loss=nan`, `{"iter": 12, "grad_norm": 0.3}` and their like.
    #[must_use]
    pub fn of(line: &str) -> Self {
        let tokens = tokens(line);
        let step = tokens.iter().enumerate().find_map(|(at, it)| match it {
            Token::Word(word) if names_a_step(word, &tokens[..at]) => integer_after(&tokens, at),
            _ => None,
        });
        let mut numbers = tokens.iter().enumerate().filter_map(|(at, it)| match it {
            Token::Word(name) if names_a_loss(name, &tokens[..at]) => {
                Some((*name, kind_after(&tokens, at)?))
            }
            _ => None,
        });
        let first = numbers.next();
        let odd = first
            .filter(|(_, kind)| *kind == NumberKind::NotFinite)
            .or_else(|| numbers.find(|(_, kind)| *kind == NumberKind::NotFinite));
        Self {
            step: step.or_else(|| part_of_a_whole(&tokens)),
            number: odd.or(first).map(|(name, kind)| (name.to_owned(), kind)),
        }
    }
}

/// A part of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token<'a> {
    /// Letters, digits and `_`, beginning with a letter.
    Word(&'a str),
    /// Digits, with what else a number has.
    Number(&'a str),
    /// Anything else that is no blank.
    Sign(char),
}

fn tokens(line: &str) -> Vec<Token<'_>> {
    let mut tokens = vec![];
    let mut rest = line;
    while let Some(first) = rest.chars().next() {
        if tokens.len() == TOKENS_MAX {
            break;
        }
        let is_part: fn(char) -> bool = match first {
            it if it.is_alphabetic() || it == '_' => |it| it.is_alphanumeric() || it == '_',
            it if it.is_ascii_digit() => |it| it.is_ascii_alphanumeric() || it == '.' || it == '_',
            _ => |_| false,
        };
        let end = rest.find(|it| !is_part(it)).unwrap_or(rest.len());
        let end = end.max(first.len_utf8());
        let (part, left) = rest.split_at(end);
        rest = left;
        match first {
            it if it.is_whitespace() => {}
            it if it.is_alphabetic() || it == '_' => tokens.push(Token::Word(part)),
            it if it.is_ascii_digit() => tokens.push(Token::Number(part)),
            it => tokens.push(Token::Sign(it)),
        }
    }
    tokens
}

/// Returns true for the name of the step of now, after the tokens before it: `global_step`, and neither `max_steps` nor
/// `total steps`.
fn names_a_step(word: &str, before: &[Token<'_>]) -> bool {
    let last = parts(word).pop();
    last.is_some_and(|it| STEPS.contains(&it.as_str())) && !is_of(word, before, NO_STEPS)
}

/// Returns true for the name of a loss or of a norm of gradients of now, after the tokens before it; the best one so
/// far is infinite at first.
fn names_a_loss(word: &str, before: &[Token<'_>]) -> bool {
    let mut parts = parts(word).into_iter();
    parts.any(|it| LOSSES.contains(&it.as_str())) && !is_of(word, before, NO_LOSSES)
}

/// Returns true where a part of a name, or of one of the words just before it, is among these.
fn is_of(word: &str, before: &[Token<'_>], parts: &[&str]) -> bool {
    let before = before.iter().rev().take(WORDS_BEFORE);
    let before = before.map_while(|it| match it {
        Token::Word(word) => Some(*word),
        _ => None,
    });
    let mut all = before.chain([word]).flat_map(self::parts);
    all.any(|it| parts.contains(&it.as_str()))
}

/// The letters of a name between all else, in lower case: `train`, `loss` of `train_loss` and of `trainLoss2`.
fn parts(word: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut is_small = false;
    for letter in word.chars() {
        let begins = is_small && letter.is_uppercase() || !letter.is_alphabetic();
        if let Some(part) = parts.last_mut().filter(|_| !begins) {
            part.extend(letter.to_lowercase());
        } else {
            parts.push(
                letter
                    .to_lowercase()
                    .filter(|it| it.is_alphabetic())
                    .collect(),
            );
        }
        is_small = letter.is_lowercase();
    }
    parts.retain(|part| !part.is_empty());
    parts
}

/// The value behind a name, over the signs and the few words that may stand between: `loss: tensor(nan)`.
fn after<'a>(tokens: &'a [Token<'a>], at: usize) -> Option<&'a Token<'a>> {
    let between = |it: &&Token<'_>| match it {
        Token::Sign(sign) => "=:[(\"'#-+".contains(*sign),
        Token::Word(word) => ["tensor", "is", "array"].contains(word),
        Token::Number(_) => false,
    };
    let behind = tokens.get(at + 1..)?;
    let skipped = behind.iter().take(BETWEEN_MAX).take_while(between).count();
    behind.get(skipped)
}

fn integer_after(tokens: &[Token<'_>], at: usize) -> Option<u64> {
    match after(tokens, at)? {
        Token::Number(digits) => digits.parse().ok(),
        _ => None,
    }
}

fn kind_after(tokens: &[Token<'_>], at: usize) -> Option<NumberKind> {
    match after(tokens, at)? {
        Token::Number(digits) => digits
            .starts_with(|it: char| it.is_ascii_digit())
            .then_some(NumberKind::Finite),
        Token::Word(word) => {
            let word = word.to_lowercase();
            let is_odd = ["nan", "inf", "infinity"].contains(&word.as_str());
            is_odd.then_some(NumberKind::NotFinite)
        }
        Token::Sign(_) => None,
    }
}

/// The first number of `12/100`, which bars of progress show; dates have three.
fn part_of_a_whole(tokens: &[Token<'_>]) -> Option<u64> {
    let mut at = 0;
    while let Some(window) = tokens.get(at..at + 3) {
        at += 1;
        let [Token::Number(part), Token::Sign('/'), Token::Number(whole)] = window else {
            continue;
        };
        let is_date = tokens.get(at + 2) == Some(&Token::Sign('/'));
        let is_tail = at >= 2 && tokens.get(at - 2) == Some(&Token::Sign('/'));
        if let (Ok(part), Ok(whole), false) =
            (part.parse::<u64>(), whole.parse(), is_date || is_tail)
            && part <= whole
        {
            return Some(part);
        }
    }
    None
}

/// Last parts of names of steps.
const STEPS: &[&str] = &["step", "steps", "iter", "iteration", "batch", "update"];
/// Parts of names of numbers of steps that are not the step of now.
const NO_STEPS: &[&str] = &[
    "max",
    "total",
    "num",
    "warmup",
    "save",
    "eval",
    "logging",
    "accumulation",
];
/// Parts of names of losses and of norms of gradients.
const LOSSES: &[&str] = &[
    "loss",
    "losses",
    "grad",
    "grads",
    "gradient",
    "gradients",
    "gradnorm",
    "gnorm",
    "perplexity",
    "ppl",
];
/// Parts of names of numbers about these that are none of now.
const NO_LOSSES: &[&str] = &[
    "best",
    "min",
    "max",
    "scale",
    "scaler",
    "scaling",
    "clip",
    "clipped",
    "clipping",
    "accumulation",
];
/// Words before a name that are looked at: `total optimization steps`.
const WORDS_BEFORE: usize = 2;
/// Parts of a line that are looked at.
const TOKENS_MAX: usize = 200;
/// Parts between a name and its value.
const BETWEEN_MAX: usize = 4;

#[cfg(test)]
mod tests {
    use proptest::proptest;

    use super::*;

    #[test]
    fn steps_and_losses_are_read_as_programs_print_them() {
        use NumberKind::{Finite, NotFinite};
        let check = |line: &str, step: Option<u64>, number: Option<(&str, NumberKind)>| {
            let number = number.map(|(name, kind)| (name.to_owned(), kind));
            assert_eq!(
                LineProgress::of(line),
                LineProgress { step, number },
                "{line}"
            );
        };
        check("step 12 loss 3.41", Some(12), Some(("loss", Finite)));
        check(
            "[rank 3] iter=7 | train_loss: nan",
            Some(7),
            Some(("train_loss", NotFinite)),
        );
        check(
            r#"{"global_step": 40, "grad_norm": Infinity}"#,
            Some(40),
            Some(("grad_norm", NotFinite)),
        );
        check(
            "Epoch 3: [ 120/5000]  Loss 2.1e-3 (2.3)",
            Some(120),
            Some(("Loss", Finite)),
        );
        check(" 12%|##   | 61/500 [00:12<01:30]", Some(61), None);
        check(
            "loss tensor(-inf, device='cuda:0')",
            None,
            Some(("loss", NotFinite)),
        );
        check("loss 2.0 grad nan", None, Some(("grad", NotFinite)));
        check(
            "Iteration: 5, losses [nan, 1.0]",
            Some(5),
            Some(("losses", NotFinite)),
        );
        // Neither is a number of now.
        check("best_loss=inf", None, None);
        check("best loss: inf", None, None);
        check("max_grad_norm=inf clipped_grad nan", None, None);
        check("no nan found in the loss of step two", None, None);
        check("loaded 3 files on 2026/11/29", None, None);
        check("loss is computed in nanoseconds", None, None);
        check("batch_size 32, batch of 12", None, None);
        check("", None, None);
    }

    #[test]
    fn names_count_by_their_whole_parts() {
        let check = |line: &str, step: Option<u64>, name: Option<&str>| {
            let seen = LineProgress::of(line);
            let number = seen.number.as_ref().map(|(name, _)| name.as_str());
            assert_eq!((seen.step, number), (step, name), "{line}");
        };
        check("glossary nan, upgrade inf, graduate 3", None, None);
        check("gradient_accumulation_steps=4", None, None);
        for line in [
            "max_steps=1000",
            "maxSteps: 1000",
            "total steps 1000",
            "Total optimization steps = 1000",
            "num_train_steps: 1000",
            "warmup_steps=100, save_steps 500",
        ] {
            check(line, None, None);
        }
        check("max_steps=1000 step=12", Some(12), None);
        check("total: 1000, step 12", Some(12), None);
        check("globalStep 12 trainLoss 0.5", Some(12), Some("trainLoss"));
        check("loss_2 nan", None, Some("loss_2"));
        check("total loss nan", None, Some("loss"));
        check("gradient_norm=inf", None, Some("gradient_norm"));
    }

    proptest! {
        #[test]
        fn no_line_breaks_the_reader(line in ".*") {
            let _ = LineProgress::of(&line);
        }
    }
}
