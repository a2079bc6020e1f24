//! `odeon generate`: continues prompts as they stand.

use anyhow::{Context, Result, anyhow};

use super::model;
use crate::args::GenerateArgs;
use crate::print;

pub(crate) fn run(args: &GenerateArgs) -> Result<()> {
    let mut model = model::load_sampler(&args.sampler, 1.0)?;
    let mut prompts = vec![];
    for prompt in &args.prompts {
        let mut tokens: Vec<u32> = model.tokenizer.bos().into_iter().collect();
        let encoded = model.tokenizer.encode(prompt);
        tokens.extend(encoded.with_context(|| format!("the model cannot read {prompt:?}"))?);
        prompts.push(tokens);
    }
    let answers = model
        .sampler
        .answer(&prompts)
        .map_err(|failure| anyhow!("{failure}"))?;
    for (prompt, tokens) in args.prompts.iter().zip(&answers) {
        print::line(format!("{prompt}{}", model.tokenizer.decode(tokens)?))?;
    }
    Ok(())
}
