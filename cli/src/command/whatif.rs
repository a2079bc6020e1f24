//! `odeon whatif`: a trace of steps, and how quick they would be without stragglers.

mod file;

use anyhow::{Context, Result};
use odeon_replay::{
    LeftOutStep, MendedShare, PartSlowdown, StepTrace, StragglerReport, TracedWorker, WhatIf,
};
use serde_json::{Value, json};

use crate::args::WhatifArgs;
use crate::inspect::Replay;
use crate::print;

/// Copies of the model and workers that are shown.
const SHOWN_MAX: usize = 8;
/// Steps that are told to be left out one by one.
const LEFT_OUT_MAX: usize = 5;

pub(crate) fn run(args: &WhatifArgs) -> Result<()> {
    let named = || args.trace.display().to_string();
    let trace = match file::read(&args.trace)? {
        Some(rows) => StepTrace::new(rows).with_context(named)?,
        None => Replay::open(&args.trace, 1.0, false)?
            .traced_steps()
            .with_context(named)?,
    };
    let what_if = WhatIf::new(&trace).with_context(named)?;
    let report = StragglerReport::new(&trace, &what_if);
    if args.json {
        let told = as_json(&trace, &report, what_if.left_out());
        return Ok(print::line(serde_json::to_string(&told)?)?);
    }
    for it in what_if.left_out().iter().take(LEFT_OUT_MAX) {
        print::say(format!("step {} is left out: {}", it.step, it.why));
    }
    if let Some(more) = what_if.left_out().len().checked_sub(LEFT_OUT_MAX + 1) {
        print::say(format!(
            "{} more steps are left out (--json has all)",
            more + 1
        ));
    }
    tell(&trace, &report)
}

fn tell(trace: &StepTrace, report: &StragglerReport) -> Result<()> {
    let of = |count: usize, one: &str, more: &str| match count {
        1 => format!("1 {one}"),
        _ => format!("{count} {more}"),
    };
    print::line(format!(
        "{} of {}, {} and {}",
        of(report.steps.len(), "step", "steps"),
        of(trace.stages(), "stage", "stages"),
        of(trace.copies(), "copy", "copies"),
        of(trace.micro_batches(), "micro-batch", "micro-batches"),
    ))?;
    print::line(format!(
        "a step takes {}; with no delay of launches {}; with no stragglers {}",
        seconds(report.traced_s),
        seconds(report.replayed_s),
        seconds(report.ideal_s)
    ))?;
    let mut steps = report.by_step.clone();
    steps.sort_by(f64::total_cmp);
    print::line(format!(
        "slowdown {:.3} ({:.3} to {:.3} by step): {:.1} % of the workers' time is lost",
        report.slowdown(),
        steps[0],
        steps[steps.len() - 1],
        report.waste() * 100.0
    ))?;
    for cause in &report.causes {
        print::line(format!("cause: {cause}"))?;
    }
    print::line("")?;
    let mut rows = vec![];
    rows.extend(report.by_kind.iter().map(|it| cells(it, report)));
    rows.extend(report.by_stage.iter().map(|it| cells(it, report)));
    let mut copies: Vec<&PartSlowdown> = report.by_copy.iter().collect();
    copies.sort_by(|a, b| b.slowdown.total_cmp(&a.slowdown));
    rows.extend(
        copies
            .into_iter()
            .take(SHOWN_MAX)
            .map(|it| cells(it, report)),
    );
    for (worker, slowdown) in report.by_worker.iter().take(SHOWN_MAX) {
        rows.push(vec![
            worker.to_string(),
            format!("{slowdown:.3}"),
            String::new(),
        ]);
    }
    print::table(
        &["part", "slowdown alone", "a step if it were ideal"],
        &rows,
    )?;
    print::line(format!(
        "the slowest workers explain {:.1} % of the slowdown (M_W), the last stage {:.1} % (M_S)",
        report.slowest_workers.share * 100.0,
        report.last_stage.share * 100.0
    ))?;
    if report.by_copy.len() > SHOWN_MAX {
        print::say(format!(
            "the slowest {SHOWN_MAX} copies and workers are shown; --json has all"
        ));
    }
    Ok(())
}

fn cells(it: &PartSlowdown, report: &StragglerReport) -> Vec<String> {
    let less = (it.mended_s / report.replayed_s - 1.0) * 100.0;
    vec![
        it.part.to_string(),
        format!("{:.3}", it.slowdown),
        format!("{} ({less:+.1} %)", seconds(it.mended_s)),
    ]
}

fn seconds(seconds: f64) -> String {
    match seconds {
        it if it >= 0.1 => format!("{it:.3} s"),
        it => format!("{:.3} ms", it * 1e3),
    }
}

fn as_json(trace: &StepTrace, report: &StragglerReport, left_out: &[LeftOutStep]) -> Value {
    let parts = |parts: &[PartSlowdown]| -> Vec<Value> {
        let told = |it: &PartSlowdown| {
            json!({
                "part": it.part.to_string(),
                "slowdown": it.slowdown,
                "by_step": it.by_step,
                "mended_seconds": it.mended_s,
            })
        };
        parts.iter().map(told).collect()
    };
    let worker = |it: &TracedWorker| json!({ "stage": it.stage, "copy": it.copy });
    let share = |it: &MendedShare| {
        json!({
            "workers": it.workers.iter().map(worker).collect::<Vec<_>>(),
            "mended_seconds": it.mended_s,
            "share": it.share,
        })
    };
    let workers = report.by_worker.iter();
    let workers = workers
        .map(|(it, slowdown)| json!({ "stage": it.stage, "copy": it.copy, "slowdown": slowdown }));
    let left_out = left_out.iter();
    let left_out = left_out.map(|it| json!({ "step": it.step, "why": it.why }));
    json!({
        "stages": trace.stages(),
        "copies": trace.copies(),
        "micro_batches": trace.micro_batches(),
        "steps": report.steps,
        "left_out": left_out.collect::<Vec<_>>(),
        "traced_seconds": report.traced_s,
        "replayed_seconds": report.replayed_s,
        "ideal_seconds": report.ideal_s,
        "slowdown": report.slowdown(),
        "waste": report.waste(),
        "launch_slowdown": report.launch_slowdown(),
        "by_step": report.by_step,
        "by_kind": parts(&report.by_kind),
        "by_stage": parts(&report.by_stage),
        "by_copy": parts(&report.by_copy),
        "by_worker": workers.collect::<Vec<_>>(),
        "slowest_workers": share(&report.slowest_workers),
        "last_stage": share(&report.last_stage),
        "pass_correlation": report.pass_correlation,
        "causes": report.causes.iter().map(ToString::to_string).collect::<Vec<_>>(),
    })
}
