//! `odeon curves`: how well runs answered held-out problems as they learnt, compared.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail};
use odeon_actors::recipe::{Recipe, RewardBy};
use odeon_actors::rl::report::Report;

use super::run::{RECIPE, reports};
use crate::args::CurvesArgs;
use crate::plot::{Axis, Bars, Line, Lines, side_by_side};
use crate::print;

/// Numbers at each step, one of each run that differs from the others in its seed alone.
type Points = BTreeMap<u64, Vec<f64>>;

/// Curves that runs of one kind have told.
#[derive(Debug, Default)]
struct Curves {
    /// Part of the held-out problems that was right, in percent.
    held_out: Points,
    /// Mean of what was trained on, over ten steps.
    reward: Points,
    /// Part of it that the checker called right, over ten steps.
    right: Points,
}

pub(crate) fn run(args: &CurvesArgs) -> Result<()> {
    let mut all: BTreeMap<String, Curves> = BTreeMap::new();
    let mut learnt = false;
    for folder in &args.runs {
        let recipe = Recipe::read(&folder.join(RECIPE))?;
        learnt |= recipe.reward.is_learnt();
        read(folder, all.entry(name(&recipe)?).or_default())?;
    }
    let percent = || {
        Axis::new("held-out problems right")
            .unit("%")
            .within(0.0, 100.0)
    };
    let (mut rows, mut last) = (vec![], vec![]);
    for (name, Curves { held_out, .. }) in &all {
        let (Some((_, before)), Some((step, after))) =
            (held_out.first_key_value(), held_out.last_key_value())
        else {
            continue;
        };
        rows.push(vec![
            name.clone(),
            after.len().to_string(),
            step.to_string(),
            format!("{:.1} %", mean(before)),
            format!("{:.1} %", mean(after)),
            format!("{:.1} to {:.1} %", least(after), most(after)),
        ]);
        last.push((name.clone(), mean(after), (least(after), most(after))));
    }
    let names = last.iter().map(|(name, ..)| name.as_str());
    let bars = Bars::new("At the end", "algorithm", percent(), names)
        .series("mean, least and most", last.iter().map(|it| it.1))
        .spread(last.iter().map(|it| it.2));
    let mut figures = vec![
        lines("Learning", percent(), &all, |it| &it.held_out).into(),
        bars.into(),
    ];
    if learnt {
        let part = |what: &str| Axis::new(what).within(0.0, 1.0);
        let reward = lines("What is trained on", part("mean reward"), &all, |it| {
            &it.reward
        });
        let right = part("part right, by the checker");
        let right = lines("What of it is right", right, &all, |it| &it.right);
        figures.extend([reward.into(), right.into()]);
    }
    let picture = side_by_side(&figures);
    std::fs::write(&args.out, picture).with_context(|| format!("{}", args.out.display()))?;
    let headings = [
        "algorithm",
        "runs",
        "step",
        "before",
        "after",
        "least to most",
    ];
    print::table(&headings, &rows)?;
    print::say(format!("picture: {}", args.out.display()));
    Ok(())
}

fn lines(
    title: &str,
    axis: Axis,
    all: &BTreeMap<String, Curves>,
    of: fn(&Curves) -> &Points,
) -> Lines {
    let mut lines = Lines::new(title, Axis::new("step"), axis);
    for (name, curves) in all {
        let steps = of(curves).iter();
        let steps = steps.map(|(step, all)| (*step as f64, all.as_slice()));
        lines = lines.line(Line::spread(name, steps));
    }
    lines
}

/// The algorithm of a run, and the reward where that is learnt.
fn name(recipe: &Recipe) -> Result<String> {
    let word = |value: serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    let algorithm = word(serde_json::to_value(recipe.rl.algorithm)?);
    let reward = &recipe.reward;
    let kind = word(serde_json::to_value(reward.kind.unwrap_or_default())?);
    Ok(match reward.by {
        RewardBy::Checker => algorithm,
        RewardBy::Model => format!("{algorithm}, {kind} reward"),
        RewardBy::Both => format!("{algorithm}, {kind} reward and checker"),
    })
}

/// Adds what a run has told. What a later life of the trainer has done again stands for what was before.
fn read(folder: &Path, curves: &mut Curves) -> Result<()> {
    let (mut held_out, mut steps) = (BTreeMap::new(), BTreeMap::new());
    for report in reports(folder) {
        match report {
            Report::Evaluated { version, stats } => {
                held_out.insert(version, 100.0 * stats.accuracy());
            }
            Report::Step(step) => {
                steps.insert(step.version, (step.reward, step.accuracy));
            }
            _ => {}
        }
    }
    if held_out.is_empty() {
        bail!(
            "{}: no held-out problems were answered yet",
            folder.display()
        );
    }
    for (step, accuracy) in held_out {
        curves.held_out.entry(step).or_default().push(accuracy);
    }
    let steps: Vec<(u64, (f64, f64))> = steps.into_iter().collect();
    for ten in steps.chunks(10) {
        let Some((step, _)) = ten.last() else {
            continue;
        };
        let (rewards, rights): (Vec<f64>, Vec<f64>) = ten.iter().map(|(_, it)| *it).unzip();
        curves.reward.entry(*step).or_default().push(mean(&rewards));
        curves.right.entry(*step).or_default().push(mean(&rights));
    }
    Ok(())
}

fn mean(all: &[f64]) -> f64 {
    all.iter().sum::<f64>() / all.len().max(1) as f64
}

fn least(all: &[f64]) -> f64 {
    all.iter().copied().fold(f64::INFINITY, f64::min)
}

fn most(all: &[f64]) -> f64 {
    all.iter().copied().fold(f64::NEG_INFINITY, f64::max)
}
