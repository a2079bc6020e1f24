//! `odeon generate`: continues prompts as they stand. A model that learnt to call a tool has it here
//! too.

use anyhow::{Context, Result, anyhow};
use odeon::Failure;
use odeon_actors::engine::compute::Sampling;
use odeon_actors::recipe::{EnvironmentSection, Recipe};
use odeon_actors::rl::toolbox::Toolbox;

use super::model;
use crate::args::GenerateArgs;
use crate::print;
use crate::waiter::Waiter;

pub(crate) fn run(args: &GenerateArgs) -> Result<()> {
    let sampler = &args.sampler;
    let of_run = model::recipe_of_run(&sampler.model);
    let programs = of_run.as_ref().map(Recipe::programs).unwrap_or_default();
    let environment = of_run.and_then(|it| it.environment);
    let environment = environment.as_ref().map(EnvironmentSection::config);
    let sampling = Sampling {
        temperature: sampler.temperature,
        top_p: 1.0,
        response_max: sampler.response_max,
    };
    let mut model = model::load(
        &sampler.model,
        sampling,
        sampler.threads,
        sampler.seed,
        environment,
    )?;
    let mut prompts = vec![];
    for prompt in &args.prompts {
        let encoded = model.tokenizer.encode_whole(prompt);
        prompts.push(encoded.with_context(|| format!("the model cannot read {prompt:?}"))?);
    }
    // Programs in answers are run from here.
    let runtime = Waiter::with_threads()?;
    let toolbox = match &environment {
        Some(environment) => Some(runtime.block_on(Toolbox::open(environment, &programs))?),
        None => None,
    };
    let mut calls = |inputs: Vec<String>| match &toolbox {
        Some(toolbox) => runtime.block_on(toolbox.run_all(&inputs)),
        None => Err(Failure::error("there is no tool to call")),
    };
    let answers = model
        .sampler
        .answer_calling(&prompts, &mut calls, |_| {})
        .map_err(|failure| anyhow!("{failure}"))?;
    for (prompt, tokens) in args.prompts.iter().zip(&answers) {
        print::line(format!("{prompt}{}", model.tokenizer.decode_reply(tokens)?))?;
    }
    Ok(())
}
