//! Communication that passes hide: of gathers of shards and sums of their gradients the seconds that they take, and those
//! for which passes wait, by the begin and the end of each.
//!
//! The first table is of runs: processes train a small model on the cores of this machine, which move bytes, too. The
//! second is of two ranks with a core each, over links on which bytes take the time of a wire and none of a core.
//!
//! ```sh
//! RUNS=3 WIDTH=256 cargo bench -p odeon-actors --bench hidden
//! ```
//!
//! With the argument `runs` or `links` there is one table; others are plans of the first on four ranks, such as
//! `"zero = 3, tp = 2"`. Plans take turns, so that each meets the machine in all its moods; figures are medians over the
//! runs of the median of all steps but the first two of each, with the least and the most of what is hidden.

#![allow(clippy::print_stdout, reason = "its table is what it is for")]
#![allow(clippy::disallowed_methods, reason = "a benchmark measures real time")]

mod links;

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use odeon::System;
use odeon_actors::pretrain::report::{Report, StepReport};
use odeon_actors::pretrain::{Desk, PretrainPlan, run as pretrain};
use odeon_actors::recipe::Source;
use tokio::sync::{mpsc, watch};

/// Ranks and plans of the runs.
const PLANS: [(u32, &str); 6] = [
    (2, "zero = 3"),
    (2, "zero = 3, prefetch = 2"),
    (2, "zero = 2"),
    (4, "zero = 3"),
    (4, "zero = 3, fsdp = 2"),
    (4, "zero = 3, tp = 2"),
];
/// Megabytes a second of the links.
const LINKS: [f64; 3] = [400.0, 200.0, 100.0];
const STEPS: u64 = 6;
/// Steps in which memory is made, and processes find each other.
const BEFORE: u64 = 2;

fn main() -> anyhow::Result<()> {
    odeon_actors::job().run(run)
}

/// A number of the environment.
fn told(name: &str, usual: usize) -> anyhow::Result<usize> {
    match std::env::var(name) {
        Ok(text) => text.parse().with_context(|| format!("{name}={text}")),
        Err(_) => Ok(usual),
    }
}

fn median<T>(all: &[T], of: impl Fn(&T) -> f64) -> f64 {
    let mut all: Vec<f64> = all.iter().map(of).collect();
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

async fn run(system: System) -> anyhow::Result<()> {
    let (runs, width) = (told("RUNS", 3)?, told("WIDTH", 256)?);
    let asked: Vec<String> = std::env::args().skip(1).collect();
    let asked = asked.iter().filter(|it| *it != "--bench");
    let asked: Vec<(u32, &str)> = asked.map(|it| (4, it.as_str())).collect();
    match asked.as_slice() {
        [] => {
            of_runs(&system, &PLANS, runs, width).await?;
            over_links(runs, width)
        }
        [(_, "links")] => over_links(runs, width),
        [(_, "runs")] => of_runs(&system, &PLANS, runs, width).await,
        plans => of_runs(&system, plans, runs, width).await,
    }
}

/// The first table.
async fn of_runs(
    system: &System,
    plans: &[(u32, &str)],
    runs: usize,
    width: usize,
) -> anyhow::Result<()> {
    let mut all = vec![vec![]; plans.len()];
    for _ in 0..runs {
        for ((ranks, fields), figures) in plans.iter().zip(&mut all) {
            let folder = tempfile::tempdir()?;
            let plan = plan(folder.path(), *ranks, width, fields)?;
            let steps = measured(system, &plan).await?;
            let each = |of: fn(&StepReport) -> f64| 1e3 * median(&steps, of) / f64::from(*ranks);
            figures.push(Figures {
                step: 1e3 * median(&steps, |step| step.seconds),
                moved: each(|step| step.moving_seconds),
                waited: each(|step| step.moving_waits),
            });
        }
    }
    println!("| ranks, width {width} | `[parallel]` | a step | moved | waited for | hidden |");
    println!("| --- | --- | --- | --- | --- | --- |");
    for ((ranks, fields), figures) in plans.iter().zip(&all) {
        println!("| {ranks} | `{fields}` | {} |", cells(figures));
    }
    Ok(())
}

/// Medians over the steps of a run, in milliseconds.
#[derive(Clone, Copy, Debug)]
struct Figures {
    step: f64,
    moved: f64,
    waited: f64,
}

/// Medians over the runs; of what passes hide also the least and the most, in percent.
fn cells(runs: &[Figures]) -> String {
    let hidden: Vec<f64> = runs
        .iter()
        .map(|run| 100.0 * (1.0 - run.waited / run.moved))
        .collect();
    let (least, most) = hidden
        .iter()
        .fold((f64::INFINITY, f64::NEG_INFINITY), |(least, most), it| {
            (least.min(*it), most.max(*it))
        });
    format!(
        "{:.0} ms | {:.0} ms | {:.0} ms | {:.0} % ({least:.0} to {most:.0})",
        median(runs, |run| run.step),
        median(runs, |run| run.moved),
        median(runs, |run| run.waited),
        median(&hidden, |it| *it),
    )
}

/// The second table.
fn over_links(runs: usize, width: usize) -> anyhow::Result<()> {
    let cases: Vec<_> = links::PLANS
        .iter()
        .flat_map(|plan| LINKS.map(|link| (plan, link)))
        .collect();
    let ms = |time: Duration| 1e3 * time.as_secs_f64();
    let mut all = vec![vec![]; cases.len()];
    for _ in 0..runs {
        for (((_, sharing), link), figures) in cases.iter().zip(&mut all) {
            let steps = links::steps(*sharing, width, link * 1e6)?;
            figures.push(Figures {
                step: median(&steps, |step| ms(step.took)),
                moved: median(&steps, |step| ms(step.shards.moving)),
                waited: median(&steps, |step| ms(step.shards.waited)),
            });
        }
    }
    println!();
    println!("| `[parallel]`, width {width} | link | a step | moved | waited for | hidden |");
    println!("| --- | --- | --- | --- | --- | --- |");
    for (((fields, _), link), figures) in cases.iter().zip(&all) {
        println!("| `{fields}` | {link:.0} MB/s | {} |", cells(figures));
    }
    Ok(())
}

/// Runs a plan: all of its steps but the first.
async fn measured(system: &System, plan: &PretrainPlan) -> anyhow::Result<Vec<StepReport>> {
    let (reports, mut told) = mpsc::unbounded_channel();
    // Nobody asks it to halt, or for other ranks.
    let (_halting, halt) = watch::channel(false);
    let (_resizing, ranks) = watch::channel(None);
    let desk = Desk {
        reports,
        members: watch::channel(vec![]).0,
        halt,
        ranks,
    };
    let done = pretrain(system, plan, desk).await;
    done.map_err(|failure| anyhow::anyhow!("{failure}"))?;
    let mut steps = vec![];
    while let Ok(report) = told.try_recv() {
        if let Report::Step(step) = report
            && step.step > BEFORE
        {
            steps.push(step);
        }
    }
    Ok(steps)
}

/// A model of eight layers of this width on ranks that share it so.
fn plan(folder: &Path, ranks: u32, width: usize, fields: &str) -> anyhow::Result<PretrainPlan> {
    let mut text = String::new();
    for record in 0..4000 {
        let line = format!("record {record} of a text. ").repeat(1 + record % 20);
        writeln!(text, "{line}")?;
    }
    fs::write(folder.join("text.txt"), text)?;
    let place = folder.display();
    let (ffn, fields) = (3 * width, fields.replace(", ", "\n"));
    let tokens = 512 * ranks;
    let recipe = format!(
        r#"
        [run]
        name = "hidden"
        out = "{place}"
        [model]
        hidden = {width}
        layers = 8
        heads = 4
        kv_heads = 4
        ffn = {ffn}
        context = 256
        [pretrain]
        steps = {STEPS}
        checkpoint_every = {STEPS}
        [processes]
        ranks = {ranks}
        [parallel]
        {fields}
        [data]
        cache = "{place}/cache"
        [plan]
        step = {{ tokens = {tokens} }}
        [plan.microbatch]
        tokens = 256
        [plan.mixture.sources.text]
        weight = {{ constant = 1.0 }}
        [[source]]
        name = "text"
        path = "{place}/text.txt"
        format = {{ text = {{ document = "line" }} }}
        context = 256
        "#
    );
    let source = Source::new(Path::new("hidden.toml"), &recipe);
    let recipe = source.pretrain_recipe()?;
    let plan = recipe.plan(folder.join("checkpoint"));
    plan.map_err(|failure| anyhow::anyhow!("{failure}"))
}
