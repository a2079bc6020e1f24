//! `odeon pipeline`: schedules of pipelines compared, and drawn as lanes.

use anyhow::{Result, bail};
use odeon_replay::{
    LEGEND, PipelineCosts, PipelineSchedule, PipelineSummary, ScheduleError, StageCosts, draw,
};
use serde::Serialize;

use crate::args::{PipelineArgs, PipelineKind};
use crate::print;

/// The most passes of all schedules together: some seconds of planning.
const PASSES_MAX: usize = 4_000_000;

/// A schedule with its summary.
#[derive(Debug)]
struct Planned {
    kind: PipelineKind,
    costs: PipelineCosts,
    schedule: PipelineSchedule,
    summary: PipelineSummary,
}

/// One row as JSON.
#[derive(Debug, Serialize)]
struct Row {
    schedule: &'static str,
    makespan_seconds: f64,
    bubble_share: f64,
    bubble_of_ideal: f64,
    /// Of each rank, in micro-batches of a whole rank's layers.
    in_flight_max: Vec<f64>,
}

pub(crate) fn run(args: &PipelineArgs) -> Result<()> {
    let kinds = match args.schedule {
        Some(kind) => vec![kind],
        None => PipelineKind::ALL.to_vec(),
    };
    let passes = 3 * args.ranks * args.micro_batches * args.chunks * kinds.len();
    if passes > PASSES_MAX {
        bail!(
            "{} ranks, {} micro-batches and {} chunks are {passes} passes, of {PASSES_MAX} at most: give fewer, or \
             one --schedule",
            args.ranks,
            args.micro_batches,
            args.chunks
        );
    }
    let planned = kinds.into_iter().map(|kind| planned(args, kind));
    let planned: Vec<Planned> = planned.collect::<Result<_, _>>()?;
    if args.json {
        let rows: Vec<Row> = planned.iter().map(Row::of).collect();
        return Ok(print::line(serde_json::to_string(&rows)?)?);
    }
    let rows: Vec<Vec<String>> = planned.iter().map(cells).collect();
    print::table(&HEADINGS, &rows)?;
    match &planned[..] {
        [one] => drawn(one),
        _ => {
            print::say("--schedule NAME draws one");
            Ok(())
        }
    }
}

const HEADINGS: [&str; 5] = [
    "schedule",
    "step",
    "bubble",
    "of ideal time",
    "in flight at first, at last rank",
];

fn planned(args: &PipelineArgs, kind: PipelineKind) -> Result<Planned, ScheduleError> {
    let (ranks, micro_batches) = (args.ranks, args.micro_batches);
    let chunks = match kind {
        PipelineKind::Interleaved => args.chunks,
        _ => 1,
    };
    let part = chunks as f64;
    let stage = StageCosts::new(
        args.forward / part,
        args.input_gradient / part,
        args.weight_gradient / part,
    );
    let costs = PipelineCosts::uniform(ranks * chunks, stage, args.transfer);
    let schedule = match kind {
        PipelineKind::Gpipe => PipelineSchedule::gpipe(ranks, micro_batches),
        PipelineKind::OneForwardOneBackward => {
            PipelineSchedule::one_forward_one_backward(ranks, micro_batches)
        }
        PipelineKind::Interleaved => PipelineSchedule::interleaved(ranks, micro_batches, chunks),
        PipelineKind::ZeroBubbleH1 => PipelineSchedule::zero_bubble_h1(ranks, micro_batches),
        PipelineKind::ZeroBubble => {
            let bound = args.in_flight.unwrap_or(2 * ranks);
            PipelineSchedule::zero_bubble(&costs, micro_batches, bound)
        }
    }?;
    schedule.check()?;
    let summary = schedule.summary(&costs)?;
    Ok(Planned {
        kind,
        costs,
        schedule,
        summary,
    })
}

impl Row {
    fn of(planned: &Planned) -> Self {
        let Planned { kind, summary, .. } = planned;
        Self {
            schedule: kind.word(),
            makespan_seconds: summary.makespan_s,
            bubble_share: summary.bubble_share,
            bubble_of_ideal: summary.bubble_of_ideal(),
            in_flight_max: in_flight(planned).collect(),
        }
    }
}

/// The most micro-batches in flight at each rank, each counted by the part of the rank's layers that it is in.
fn in_flight(planned: &Planned) -> impl Iterator<Item = f64> {
    let chunks = planned.schedule.chunks() as f64;
    let ranks = planned.summary.ranks.iter();
    ranks.map(move |rank| rank.in_flight_max as f64 / chunks)
}

fn cells(planned: &Planned) -> Vec<String> {
    let Planned { kind, summary, .. } = planned;
    let percent = |part: f64| format!("{:.1} %", 100.0 * part);
    let held: Vec<f64> = in_flight(planned).collect();
    let ends = [held.first(), held.last()].map(|it| it.map_or(0.0, |it| *it));
    vec![
        kind.word().to_owned(),
        format!("{:.3} s", summary.makespan_s),
        percent(summary.bubble_share),
        percent(summary.bubble_of_ideal()),
        format!("{}, {}", ends[0], ends[1]),
    ]
}

/// The lanes of a schedule, one a rank, as wide as the terminal.
fn drawn(planned: &Planned) -> Result<()> {
    let graph = planned.schedule.graph(&planned.costs)?;
    let replay = graph.replay().map_err(ScheduleError::from)?;
    for lane in draw(&graph, &replay, print::columns()) {
        print::line(lane)?;
    }
    print::say(LEGEND);
    Ok(())
}
