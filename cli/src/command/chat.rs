//! `odeon chat`: a conversation, line by line, until the input ends.

use std::io::{BufRead, IsTerminal};

use anyhow::{Result, anyhow};
use odeon_actors::engine::compute::Sampling;
use odeon_algorithms::tokenizer::Message;

use super::model;
use crate::args::ChatArgs;
use crate::print;

pub(crate) fn run(args: &ChatArgs) -> Result<()> {
    let sampling = Sampling {
        temperature: args.temperature,
        top_p: 0.95,
        response_max: args.response_max,
    };
    let mut model = model::load(&args.model, sampling, args.threads)?;
    let chats = model.tokenizer.chat().is_some();
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
        let prompt = if chats {
            model.tokenizer.encode_chat(&turns)?
        } else {
            // A model without turns sees each line by itself.
            let mut tokens: Vec<u32> = model.tokenizer.bos().into_iter().collect();
            tokens.extend(model.tokenizer.encode(&line)?);
            tokens
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
