//! `odeon curves`: how well runs answered held-out problems as they learnt, compared.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail};
use odeon_actors::recipe::Recipe;
use odeon_actors::rl::report::Report;

use super::run::{RECIPE, reports};
use crate::args::CurvesArgs;
use crate::plot::{Axis, Bars, Line, Lines, side_by_side};
use crate::print;

/// What was right at each step, by runs that differ in their seed alone.
type Curves = BTreeMap<String, BTreeMap<u64, Vec<f64>>>;

pub(crate) fn run(args: &CurvesArgs) -> Result<()> {
    let mut curves = Curves::new();
    for folder in &args.runs {
        let (name, points) = read(folder)?;
        let curve = curves.entry(name).or_default();
        for (step, accuracy) in points {
            curve.entry(step).or_default().push(accuracy);
        }
    }
    let percent = || {
        Axis::new("held-out problems right")
            .unit("%")
            .within(0.0, 100.0)
    };
    let mut lines = Lines::new("Learning", Axis::new("step"), percent());
    let (mut rows, mut last) = (vec![], vec![]);
    for (name, curve) in &curves {
        let steps = curve
            .iter()
            .map(|(step, all)| (*step as f64, all.as_slice()));
        lines = lines.line(Line::spread(name, steps));
        let (Some((_, before)), Some((step, after))) =
            (curve.first_key_value(), curve.last_key_value())
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
    let picture = side_by_side(&[lines.into(), bars.into()]);
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

/// The algorithm of a run, and the part of the held-out problems that was right, in percent, after so
/// many steps. What a later life of the trainer has answered again stands for what was before.
fn read(folder: &Path) -> Result<(String, BTreeMap<u64, f64>)> {
    let recipe = Recipe::read(&folder.join(RECIPE))?;
    let name = serde_json::to_value(recipe.rl.algorithm)?;
    let name = name.as_str().unwrap_or_default().to_owned();
    let mut points = BTreeMap::new();
    for report in reports(folder) {
        if let Report::Evaluated { version, stats } = report {
            points.insert(version, 100.0 * stats.accuracy());
        }
    }
    if points.is_empty() {
        bail!(
            "{}: no held-out problems were answered yet",
            folder.display()
        );
    }
    Ok((name, points))
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
