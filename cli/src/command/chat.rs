//! `odeon chat`: a conversation, line by line, until the input ends.

use std::io::{BufRead, IsTerminal};

use anyhow::{Result, anyhow, bail};
use odeon_algorithms::tokenizer::{Message, Tokenizer};

use super::model;
use crate::args::ChatArgs;
use crate::print;

pub(crate) fn run(args: &ChatArgs) -> Result<()> {
    let mut model = model::load_sampler(&args.sampler, 0.95)?;
    if std::io::stdin().is_terminal() {
        print::say("Say something; an empty line or Ctrl-D ends.");
    }
    let mut turns = vec![];
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        if line.trim().is_empty() {
            break;
        }
        turns.push(Message::user(&line));
        let room = model.context - args.sampler.response_max;
        let prompt = match prompt(&model.tokenizer, &mut turns, &line, room) {
            Ok(prompt) => prompt,
            Err(error) => {
                turns.pop();
                print::say(format!("{error:#}; say it in another way"));
                continue;
            }
        };
        let mut printed = String::new();
        let mut shown = Ok(());
        let mut show = |text: &str| {
            let fresh = fresh(&printed, text);
            if shown.is_ok() {
                shown = print::part(fresh);
            }
            printed.push_str(fresh);
        };
        let showing = |tokens: &[u32]| {
            // What cannot be read yet is told at the end.
            if let Ok(text) = model.tokenizer.decode_reply(tokens) {
                show(readable(&text));
            }
        };
        let tokens = model
            .sampler
            .answer_showing(&prompt, showing)
            .map_err(|failure| anyhow!("{failure}"))?;
        let text = model.tokenizer.decode_reply(&tokens)?;
        show(text.trim());
        shown.and_then(|()| print::line(""))?;
        turns.push(Message::assistant(text));
    }
    Ok(())
}

/// The part of an unfinished reply that can be printed: no space around it, which may come to be
/// its end, and no character that lacks its last bytes.
fn readable(text: &str) -> &str {
    let half = |c: char| c.is_whitespace() || c == char::REPLACEMENT_CHARACTER;
    text.trim_start().trim_end_matches(half)
}

/// The text that comes after what is printed.
fn fresh<'a>(printed: &str, text: &'a str) -> &'a str {
    text.strip_prefix(printed).unwrap_or_default()
}

/// The tokens of the prompt that the model sees. The oldest turns are left out when there is no
/// room for all.
fn prompt(
    tokenizer: &Tokenizer,
    turns: &mut Vec<Message>,
    line: &str,
    room: usize,
) -> Result<Vec<u32>> {
    loop {
        let prompt = if tokenizer.chat().is_some() {
            tokenizer.encode_chat(turns)?
        } else {
            // A model without turns sees each line by itself.
            turns.drain(..turns.len() - 1);
            tokenizer.encode_whole(line)?
        };
        if prompt.len() <= room {
            return Ok(prompt);
        }
        if turns.len() < 3 {
            bail!(
                "that is too long: {} tokens, and there is room for {room}",
                prompt.len()
            );
        }
        // A question and its answer.
        turns.drain(..2);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_a_reply_are_the_reply() {
        let reply = " \nGrüße  an 🙂 alle.\n ";
        let mut printed = String::new();
        for end in 0..=reply.len() {
            let text = String::from_utf8_lossy(&reply.as_bytes()[..end]);
            let part = fresh(&printed, readable(&text)).to_owned();
            assert!(!part.contains(char::REPLACEMENT_CHARACTER), "{part}");
            printed += &part;
        }
        printed += fresh(&printed.clone(), reply.trim());
        assert_eq!(printed, reply.trim());
    }
}
