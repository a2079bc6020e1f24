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
        let answers = model
            .sampler
            .answer(&[prompt])
            .map_err(|failure| anyhow!("{failure}"))?;
        let text = model.tokenizer.decode(&answers.concat())?;
        print::line(text.trim());
        turns.push(Message::assistant(text));
    }
    Ok(())
}

/// What the model sees. The oldest turns are left out when there is no room for all.
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
            let mut tokens: Vec<u32> = tokenizer.bos().into_iter().collect();
            tokens.extend(tokenizer.encode(line)?);
            turns.drain(..turns.len() - 1);
            tokens
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
