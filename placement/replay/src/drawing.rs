//! The drawing of a schedule's replay as lines of text.

use crate::graph::{EventGraph, Lane, LaneStream, Replay};
use crate::pipeline::{Pass, PassKind, PipelineOperation};

/// The marks of a drawing in words, for whoever shows one.
pub const LEGEND: &str = "0-9 forward, a-j backward or input gradient, A-J weight gradient \
     (micro-batches by last digit), . bubble";

/// The mark of a column in which a rank does not compute.
const BUBBLE: u8 = b'.';

/// Draws what each rank computes, one line a rank, of at most `width` columns: the rank's number, a space, and
/// the time from 0 to the makespan.
///
/// Each column shows the pass that has most of its time; one that has less in all columns than others is not
/// seen. A forward pass is the last digit of its micro-batch, 0 to 9; a backward pass or input gradient the letter
/// of that place, a to j; a weight gradient A to J. Bubbles are dots. Each rank has one column of time at least.
#[must_use]
pub fn draw(graph: &EventGraph<PipelineOperation>, replay: &Replay, width: usize) -> Vec<String> {
    let lanes = graph
        .lanes()
        .filter(|lane| lane.stream == LaneStream::Compute);
    let lanes: Vec<Lane> = lanes.collect();
    let digits = lanes.iter().map(|lane| lane.rank.to_string().len()).max();
    let digits = digits.unwrap_or_default();
    let columns = width.saturating_sub(digits + 1).max(1);
    let line = |lane: &Lane| {
        let marks = marks(graph, replay, *lane, columns);
        format!("{:>digits$} {marks}", lane.rank)
    };
    lanes.iter().map(line).collect()
}

/// The marks of a lane in so many columns.
fn marks(
    graph: &EventGraph<PipelineOperation>,
    replay: &Replay,
    lane: Lane,
    columns: usize,
) -> String {
    let column_s = replay.makespan_s() / columns as f64;
    // The mark of each column with the seconds that it stands for; a bubble has what passes leave.
    let mut cells = vec![(BUBBLE, 0.0_f64, column_s); columns];
    for (number, operation) in graph.operations().iter().enumerate() {
        let PipelineOperation::Pass(pass) = operation.name else {
            continue;
        };
        let (begin_s, end_s) = (replay.begins_s()[number], replay.ends_s()[number]);
        if operation.lane != lane || end_s <= begin_s {
            continue;
        }
        // Rounds towards 0; the last column ends at the makespan.
        let first = ((begin_s / column_s) as usize).min(columns - 1);
        for (column, (mark, most_s, left_s)) in cells.iter_mut().enumerate().skip(first) {
            let from_s = column as f64 * column_s;
            let seconds = end_s.min(from_s + column_s) - begin_s.max(from_s);
            if from_s >= end_s {
                break;
            }
            *left_s -= seconds.max(0.0);
            if seconds > *most_s {
                (*mark, *most_s) = (mark_of(pass), seconds);
            }
        }
    }
    let shown = cells.into_iter().map(|(mark, most_s, left_s)| {
        let is_bubble = left_s > most_s;
        char::from(if is_bubble { BUBBLE } else { mark })
    });
    shown.collect()
}

/// The mark of a pass.
const fn mark_of(pass: Pass) -> u8 {
    let first = match pass.kind {
        PassKind::Forward => b'0',
        PassKind::Backward | PassKind::BackwardInput => b'a',
        PassKind::BackwardWeight => b'A',
    };
    first + (pass.micro_batch % 10) as u8
}
