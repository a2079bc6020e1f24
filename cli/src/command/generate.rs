//! `odeon generate`: continues prompts as they stand.

use anyhow::{Context, Result, anyhow};
use odeon_actors::engine::compute::Sampling;

use super::model;
use crate::args::GenerateArgs;
use crate::print;

pub(crate) fn run(args: &GenerateArgs) -> Result<()> {
    let sampling = Sampling {
        temperature: args.temperature,
        top_p: 1.0,
        response_max: args.response_max,
    };
    let mut model = model::load(&args.model, sampling, args.threads, args.seed)?;
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
        print::line(format!("{prompt}{}", model.tokenizer.decode(tokens)?));
    }
    Ok(())
}
