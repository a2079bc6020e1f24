//! The ranks of a workload on their mesh, and the passes of a pipeline of them.

use odeon_client::inspect::{MeshRank, Pipeline, PipelineLane, RankSeconds, Run, RunMesh};

use super::page::{about, cell, dim, row};
use super::rows::{Cell, Column, Opens, Row, Section};
use super::signs::Tone;
use crate::figures::{bytes, measured, percent, span};

/// Places of a lane in a row.
const LANE: usize = 60;
/// A number that is above the median by so much of a step is marked.
const FAR: f64 = 0.15;

/// The sections of a workload whose ranks share a model.
pub(super) fn sections(run: &Run) -> Vec<Section> {
    let mesh = run.mesh.iter().flat_map(|mesh| {
        let ranks = mesh.ranks.iter().map(|rank| of_rank(run, mesh, rank));
        let sizes = mesh
            .dims
            .iter()
            .map(|dim| format!("{} {}", dim.name, dim.size));
        let sizes: Vec<String> = sizes.collect();
        let ranks = Section {
            title: format!(
                "{} ranks: {}{}",
                mesh.ranks.len(),
                sizes.join(", "),
                standbys(mesh)
            ),
            columns: vec![
                Column::text("rank", 4, 6),
                Column::text("at", 4, 30),
                Column::text("state", 8, 12),
                Column::number("computes"),
                Column::number("exchanges"),
                Column::number("waits").spare(2),
                Column::number("memory").spare(3),
                Column::number("resident").spare(1),
                Column::text("node", 6, 20).spare(4),
                Column::text("process", 4, 16).spare(6),
                Column::text("device", 6, 16).spare(5),
            ],
            rows: ranks.collect(),
            empty: String::new(),
        };
        [ranks, means(run, mesh)]
    });
    let mesh: Vec<Section> = mesh.collect();
    let pipeline = run.pipeline.iter().map(|it| pipeline(run, it));
    mesh.into_iter().chain(pipeline).collect()
}

/// The standbys beside ranks, where there are some.
fn standbys(mesh: &RunMesh) -> String {
    let nodes: Vec<&str> = mesh.standbys.iter().map(|it| &*it.node).collect();
    match nodes.len() {
        0 => String::new(),
        1 => format!("; 1 standby on {}", nodes[0]),
        many => format!("; {many} standbys on {}", nodes.join(", ")),
    }
}

/// The seconds of a rank or the mean of some, marked where they are far above the median.
fn seconds(of: Option<&RankSeconds>, median: Option<&RankSeconds>) -> [Cell; 3] {
    let parts: [fn(&RankSeconds) -> f64; 3] = [|it| it.compute, |it| it.exchange, |it| it.wait];
    parts.map(|part| {
        let above = |median: &RankSeconds| {
            let step: f64 = parts.iter().map(|part| part(median)).sum();
            of.is_some_and(|of| part(of) - part(median) > FAR * step)
        };
        let tone = match median.is_some_and(above) {
            true => Tone::Waiting,
            false => Tone::Plain,
        };
        Cell::toned(
            of.map_or_else(|| "-".to_owned(), |of| span(part(of) * 1e3)),
            tone,
        )
    })
}

fn of_rank(run: &Run, mesh: &RunMesh, rank: &MeshRank) -> Row {
    let places = mesh.dims.iter().zip(&rank.coordinates);
    let places: Vec<String> = places
        .map(|(dim, at)| format!("{} {at}", dim.name))
        .collect();
    let [compute, exchange, wait] = seconds(rank.last.as_ref(), mesh.median.as_ref());
    let memory = rank.memory.as_ref().map(|it| {
        let all = it.parameters + it.gradients + it.optimizer + it.gathered;
        bytes(all as f64)
    });
    let cells = vec![
        cell(rank.rank.to_string()),
        dim(places.join(", ")),
        Cell::state(&rank.state),
        compute,
        exchange,
        wait,
        cell(memory.unwrap_or_else(|| "-".to_owned())),
        cell(measured(&rank.resident, bytes)),
        dim(&rank.node),
        dim(&rank.process),
        dim(rank.devices.join(" ")),
    ];
    row(
        format!("rank {} {}", run.id, rank.rank),
        cells,
        about(rank.actor.as_ref()),
    )
}

/// The means by dimension and place.
fn means(run: &Run, mesh: &RunMesh) -> Section {
    let dims = mesh.dims.iter().filter(|dim| dim.size > 1);
    let rows = dims.flat_map(|dim| {
        let middle = middle(&dim.means);
        dim.means.iter().enumerate().map(move |(at, mean)| {
            let [compute, exchange, wait] = seconds(mean.as_ref(), middle.as_ref());
            let cells = vec![cell(format!("{} {at}", dim.name)), compute, exchange, wait];
            row(
                format!("mean {} {} {at}", run.id, dim.name),
                cells,
                Opens::More,
            )
        })
    });
    Section {
        title: "Means over ranks and 8 steps".to_owned(),
        columns: vec![
            Column::text("at", 4, 12),
            Column::number("compute"),
            Column::number("exchange"),
            Column::number("wait"),
        ],
        rows: rows.collect(),
        empty: "one rank is all there is".to_owned(),
    }
}

/// The median of the means of a dimension: of two the smaller.
fn middle(means: &[Option<RankSeconds>]) -> Option<RankSeconds> {
    let known: Vec<&RankSeconds> = means.iter().flatten().collect();
    let of = |part: fn(&RankSeconds) -> f64| {
        let mut all: Vec<f64> = known.iter().map(|it| part(it)).collect();
        all.sort_by(f64::total_cmp);
        all[(all.len() - 1) / 2]
    };
    (!known.is_empty()).then(|| RankSeconds {
        compute: of(|it| it.compute),
        exchange: of(|it| it.exchange),
        wait: of(|it| it.wait),
    })
}

fn pipeline(run: &Run, of: &Pipeline) -> Section {
    let lanes = of.lanes.iter().map(|lane| {
        let cells = vec![
            cell(lane.rank.to_string()),
            cell(percent(lane.idle_share)),
            Cell::toned(drawn(lane, of.ms), Tone::Busy),
        ];
        row(format!("lane {} {}", run.id, lane.rank), cells, Opens::More)
    });
    let mut passes = of.lanes.iter().flat_map(|lane| &lane.passes);
    let legend = match passes.any(|(_, _, kind, ..)| kind == "weight") {
        true => "0-9 forward, a-j gradients of rows, A-J of weights",
        false => "0-9 forward, a-j backward",
    };
    Section {
        title: format!(
            "Pipeline, step {}: {} micro-batches in {}, idle {}, where {} asks for {}",
            of.step,
            of.micro_batches,
            span(of.ms),
            percent(of.idle_share),
            of.schedule,
            percent(of.schedule_idle_share),
        ),
        columns: vec![
            Column::text("rank", 4, 6),
            Column::number("idle"),
            Column::text(legend, 10, LANE),
        ],
        rows: lanes.collect(),
        empty: String::new(),
    }
}

/// A lane as text: forward passes by digits, backward passes by letters, large ones for weights alone, those of
/// micro-batch 10 like those of 0.
fn drawn(lane: &PipelineLane, ms: f64) -> String {
    let at = |place: usize| {
        let time = (place as f64 + 0.5) / LANE as f64 * ms;
        let mut passes = lane.passes.iter();
        let pass = passes.find(|(from, to, ..)| (*from..*to).contains(&time));
        pass.map_or('.', |(_, _, kind, micro, _)| {
            let first = match kind.as_str() {
                "forward" => b'0',
                "weight" => b'A',
                _ => b'a',
            };
            char::from(first + (micro % 10) as u8)
        })
    };
    (0..LANE).map(at).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_rank_has_a_row_and_one_that_computes_far_longer_is_marked() {
        let seconds = |compute: f64| json!({"compute": compute, "exchange": 0.1, "wait": 0.0});
        let rank = |rank: u64, compute: f64| {
            json!({"rank": rank, "coordinates": [rank], "state": "running", "node": "n1",
                "actor": {"kind": "actor", "id": "1.7", "name": "rank-1"}, "process": "p1",
                "devices": [], "step": 3, "last": seconds(compute), "resident": 4096.0,
                "memory": {"parameters": 1024, "gradients": 1024, "optimizer": 2048, "gathered": 0}})
        };
        let dim = json!({"name": "dp", "size": 2, "means": [seconds(0.5), seconds(0.9)]});
        let run = json!({"id": "r1", "name": "", "kind": "train", "recipe": "", "folder": "",
            "state": "running", "started": 0.0, "ended": null, "progress": null, "facts": [],
            "curves": [], "histograms": [], "rollouts": [], "store": null, "board": null,
            "heat": null, "sources": [], "pipeline": null,
            "mesh": {"dims": [dim], "ranks": [rank(0, 0.5), rank(1, 0.9)], "median": seconds(0.5)}});
        let run: Run = serde_json::from_value(run).unwrap();
        let [ranks, means] = &sections(&run)[..] else {
            panic!("ranks and means");
        };
        assert_eq!(ranks.title, "2 ranks: dp 2");
        let row = &ranks.rows[1];
        assert_eq!(row.opens, Opens::Actor("1.7".to_owned()));
        let texts: Vec<&str> = row.cells.iter().map(|cell| cell.text.as_str()).collect();
        assert_eq!(texts[..2], ["1", "dp 1"]);
        assert_eq!(texts[3..6], ["900 ms", "100 ms", "0 s"]);
        assert_eq!(texts[6..8], ["4.00 KiB", "4.00 KiB"]);
        let marked = |row: &Row, at: usize| row.cells[at].tone == Tone::Waiting;
        assert_eq!(
            [0, 1].map(|rank| marked(&ranks.rows[rank], 3)),
            [false, true]
        );
        assert_eq!(
            [0, 1].map(|place| marked(&means.rows[place], 1)),
            [false, true]
        );
    }

    #[test]
    fn a_lane_has_passes_as_signs_and_bubbles_as_dots() {
        let pass = |from, to, kind: &str, micro| (from, to, kind.to_owned(), micro, 0);
        let lane = PipelineLane {
            rank: 0,
            idle_share: 0.5,
            passes: vec![pass(0.0, 1.0, "forward", 0), pass(3.0, 4.0, "backward", 11)],
        };
        let (first, bubble, last) = ("0".repeat(15), ".".repeat(30), "b".repeat(15));
        assert_eq!(drawn(&lane, 4.0), first + &bubble + &last);
    }
}
