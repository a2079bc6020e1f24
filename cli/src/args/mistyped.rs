//! The answer to a command that does not exist: the commands that are like it, and where all of them
//! are listed.

use std::ffi::{OsStr, OsString};

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, Error, Parser};

use super::Args;

/// Reads the command line of this program. An error is printed and ends it.
pub(crate) fn read_arguments() -> Args {
    let words: Vec<OsString> = std::env::args_os().collect();
    read(&words).unwrap_or_else(|error| error.exit())
}

fn read(words: &[OsString]) -> Result<Args, Error> {
    Args::try_parse_from(words).map_err(|error| {
        let first = words.get(1).map(OsString::as_os_str);
        with_tips(error, first)
    })
}

/// Adds to the error of an unknown command what helps to find the one that was meant.
fn with_tips(mut error: Error, first: Option<&OsStr>) -> Error {
    if error.kind() != ErrorKind::InvalidSubcommand {
        return error;
    }
    // Clap compares whole words, so of short ones it finds others alike, as `jobs` to `jbo`, or none.
    let alike = match error.get(ContextKind::InvalidSubcommand) {
        // Another word, as in `odeon key rn`, is none of these commands.
        Some(ContextValue::String(word)) if first == Some(OsStr::new(word)) => commands_near(word),
        _ => vec![],
    };
    if !alike.is_empty() {
        error.insert(
            ContextKind::SuggestedSubcommand,
            ContextValue::Strings(alike),
        );
    }
    let mut tips = match error.remove(ContextKind::Suggested) {
        Some(ContextValue::StyledStrs(tips)) => tips,
        _ => vec![],
    };
    tips.push(StyledStr::from("'odeon --help' lists all commands"));
    error.insert(ContextKind::Suggested, ContextValue::StyledStrs(tips));
    error
}

fn commands_near(word: &str) -> Vec<String> {
    let odeon = Args::command();
    let names = odeon.get_subcommands().map(clap::Command::get_name);
    let near = names.filter(|name| is_one_slip_away(word, name));
    near.map(str::to_owned).collect()
}

/// Returns true when one word becomes the other by one letter that is added, left out or another, or
/// by two that change places.
fn is_one_slip_away(word: &str, other: &str) -> bool {
    let (a, b) = (word.as_bytes(), other.as_bytes());
    let same = a.iter().zip(b).take_while(|(a, b)| a == b).count();
    match (&a[same..], &b[same..]) {
        ([x, y, a @ ..], [v, w, b @ ..]) if (x, y) == (w, v) && a == b => true,
        ([_, a @ ..], b) if a == b => true,
        (a, [_, b @ ..]) if a == b => true,
        ([_, a @ ..], [_, b @ ..]) => a == b,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_is_one_letter_more_less_or_other_or_two_that_change_places() {
        for near in ["rn", "runn", "rum", "rnu", "urn", "un"] {
            assert!(is_one_slip_away(near, "run"), "{near}");
            assert!(is_one_slip_away("run", near), "{near}");
        }
        for far in ["run", "", "r", "nru", "ps", "running"] {
            assert!(!is_one_slip_away(far, "run"), "{far}");
        }
    }

    fn answer(words: &str) -> String {
        let words: Vec<OsString> = words.split(' ').map(OsString::from).collect();
        read(&words).unwrap_err().to_string()
    }

    #[test]
    fn an_unknown_command_is_answered_with_those_like_it_and_where_all_are_listed() {
        for (words, like) in [
            ("odeon rn", "exists: 'run'"),
            ("odeon jbo", "exists: 'job'"),
            ("odeon replya", "'replay'"),
            ("odeon ckpt lst", "exists: 'ls'"),
        ] {
            let told = answer(words);
            assert!(told.contains(like), "{words}: {told}");
            assert!(told.contains("'odeon --help' lists all"), "{words}: {told}");
        }
        for words in ["odeon frobnicate", "odeon key rn", "odeon help rn"] {
            let told = answer(words);
            assert!(!told.contains("similar"), "{words}: {told}");
            assert!(told.contains("'odeon --help' lists all"), "{words}: {told}");
        }
    }

    /// What is wrong with a flag is told as before.
    #[test]
    fn other_errors_are_left_alone() {
        let told = answer("odeon ps --fliter x");
        assert!(told.contains("'--filter'"), "{told}");
        assert!(!told.contains("lists all commands"), "{told}");
    }
}
