//! `odeon eval`: held-out problems answered greedily.

use anyhow::{Context, Result, bail};
use indicatif::ProgressBar;
use odeon::Failure;
use odeon_actors::engine::compute::Sampling;
use odeon_actors::recipe::{EnvironmentSection, Recipe};
use odeon_actors::rl::prompt::encode_prompt;
use odeon_actors::rl::referee::Referee;
use odeon_actors::rl::toolbox::Toolbox;
use odeon_algorithms::fetch;
use odeon_algorithms::task::{CountdownConfig, Gsm8kConfig, Split, SumsConfig, SumsForm, TaskSpec};

use super::model;
use crate::args::EvalArgs;
use crate::print;
use crate::waiter::Waiter;

pub(crate) fn run(args: &EvalArgs) -> Result<()> {
    // A misspelt name shall not be asked for its task.
    model::find(&args.model)?;
    let of_run = model::recipe_of_run(&args.model);
    let programs = of_run.as_ref().map(Recipe::programs).unwrap_or_default();
    // Of a task that a run has not learnt nothing is known of its tool.
    let own = of_run.as_ref().filter(|_| args.task.is_none());
    let environment = own.and_then(|it| it.environment.as_ref());
    let environment = environment.map(EnvironmentSection::config);
    let (spec, seed, response_max) = match (&args.task, of_run) {
        (Some(name), _) => (task(name)?, 0, RESPONSE_MAX),
        (None, Some(recipe)) => (recipe.task, recipe.run.seed, recipe.rl.response_max),
        (None, None) => bail!("say which task: --task {}", NAMES.join(", ")),
    };
    let seed = args.seed.unwrap_or(seed);
    let response_max = args.response_max.unwrap_or(response_max);
    // Programs in answers are run from here.
    let runtime = Waiter::with_threads()?;
    let referee = runtime.block_on(Referee::open(&spec, &programs))?;
    let toolbox = match &environment {
        Some(environment) => Some(runtime.block_on(Toolbox::open(environment, &programs))?),
        None => None,
    };
    let task = referee.task();
    let sampling = Sampling {
        temperature: 0.0,
        top_p: 1.0,
        response_max,
    };
    let mut model = model::load(&args.model, sampling, args.threads, seed, environment)?;
    let most = task.problem_count(Split::HeldOut).unwrap_or(u64::MAX);
    let count = most.min(args.problems as u64);
    let problems: Vec<_> = (0..count)
        .map(|index| task.problem(seed, Split::HeldOut, index))
        .collect();
    let prompts = problems
        .iter()
        .map(|problem| encode_prompt(&model.tokenizer, task.style(), &problem.prompt))
        .collect::<Result<Vec<_>, _>>()
        .with_context(|| format!("{} cannot read this task's prompts", args.model))?;
    // Draws nothing where standard error is no terminal.
    let bar = ProgressBar::new(count);
    let mut calls = |inputs: Vec<String>| match &toolbox {
        Some(toolbox) => runtime.block_on(toolbox.run_all(&inputs)),
        None => Err(Failure::error("there is no tool to call")),
    };
    let answers = model
        .sampler
        .answer_calling(&prompts, &mut calls, |answered| bar.set_position(answered))
        .map_err(|failure| anyhow::anyhow!("{failure}"))?;
    bar.finish_and_clear();
    let mut replies = vec![];
    for (problem, tokens) in problems.into_iter().zip(&answers) {
        replies.push((problem, model.tokenizer.decode_reply(tokens)?));
    }
    let verdicts = runtime.block_on(referee.judge_all(&replies))?;
    let mut correct = 0u64;
    for (index, ((problem, text), verdict)) in replies.iter().zip(verdicts).enumerate() {
        correct += u64::from(verdict.correct);
        if index < args.show {
            let mark = if verdict.correct { "right" } else { "wrong" };
            print::line(format!(
                "{mark}  {}  ->  {}  (answer {})",
                one_line(&problem.prompt),
                one_line(text),
                problem.answer
            ))?;
        }
    }
    let percent = 100.0 * correct as f64 / count.max(1) as f64;
    print::line(format!(
        "{}: {correct} of {count} right ({percent:.1} %)",
        task.name()
    ))?;
    Ok(())
}

/// A text on one line; of a long one the beginning and the end, where the answer is.
fn one_line(text: &str) -> String {
    let text = text.trim().replace('\n', " / ");
    let count = text.chars().count();
    if count <= 2 * END + 3 {
        return text;
    }
    let first: String = text.chars().take(END).collect();
    let last: String = text.chars().skip(count - END).collect();
    format!("{first}...{last}")
}

/// Characters of each end of a long text that are shown.
const END: usize = 80;

/// The longest response, where neither the command nor a run says it.
const RESPONSE_MAX: usize = 256;

const NAMES: [&str; 4] = ["sums", "sums-spoken", "countdown", "gsm8k"];

fn task(name: &str) -> Result<TaskSpec> {
    Ok(match name {
        "sums" => TaskSpec::Sums(SumsConfig::default()),
        "sums-spoken" => TaskSpec::Sums(SumsConfig {
            form: SumsForm::Spoken,
            ..SumsConfig::default()
        }),
        "countdown" => TaskSpec::Countdown(CountdownConfig::default()),
        "gsm8k" => {
            let artefact = fetch::Artefact::named("gsm8k").context("gsm8k has no pinned source")?;
            let path = model::models().join(artefact.file);
            if !path.exists() {
                bail!(
                    "{} is not here yet; run `odeon fetch gsm8k` first",
                    path.display()
                );
            }
            TaskSpec::Gsm8k(Gsm8kConfig::new(path))
        }
        other => bail!("unknown task `{other}`; there are {}", NAMES.join(", ")),
    })
}
