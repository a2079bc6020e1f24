//! The machines of a workload that do the same: each with the metric in which it is furthest from the others.

use std::cmp::Reverse;

use odeon_client::View;
use odeon_client::inspect::{MachineCell, MachineMetric, Run, RunMachine, RunMachines};

use super::page::{cell, dim, quoted, row};
use super::rows::{Cell, Column, Opens, Row, Section};
use super::signs::Tone;
use crate::figures::{count, value};

/// A machine that is so many robust standard deviations from the median is odd, if that lasts.
const ODD: f64 = 3.0;

/// The sections of a workload on several machines, one for those that do the same.
pub(super) fn sections(run: &Run) -> Vec<Section> {
    run.machines
        .iter()
        .map(|group| section(run, group))
        .collect()
}

fn section(run: &Run, group: &RunMachines) -> Section {
    let mut machines: Vec<_> = (group.machines.iter())
        .map(|machine| (furthest(group, machine), machine))
        .collect();
    machines.sort_by_key(|(far, _)| {
        Reverse(far.map_or(0, |(_, it)| (1e3 * deviations(it).abs()) as u64))
    });
    let rows = machines
        .into_iter()
        .map(|(far, machine)| of_machine(run, far, machine));
    Section {
        title: format!(
            "{} machines: means of {:.0} min",
            count(group.total),
            group.seconds / 60.0
        ),
        columns: vec![
            Column::text("machine", 6, 24),
            Column::number("ranks").spare(2),
            Column::text("furthest in", 8, 20),
            Column::number("at"),
            Column::number("median").spare(1),
            Column::number("deviations"),
        ],
        rows: rows.collect(),
        empty: String::new(),
    }
}

/// The metric in which a machine is furthest from the median.
fn furthest<'a>(
    group: &'a RunMachines,
    machine: &'a RunMachine,
) -> Option<(&'a MachineMetric, &'a MachineCell)> {
    let cells = group.metrics.iter().zip(&machine.cells);
    let known = cells.filter_map(|(metric, cell)| Some((metric, cell.as_ref()?)));
    known.max_by(|(_, a), (_, b)| deviations(a).abs().total_cmp(&deviations(b).abs()))
}

fn deviations(of: &MachineCell) -> f64 {
    of.deviations.unwrap_or(0.0)
}

fn of_machine(run: &Run, far: Option<(&MachineMetric, &MachineCell)>, machine: &RunMachine) -> Row {
    let [metric, at, median, by] = match far {
        Some((metric, it)) => {
            let tone = match deviations(it).abs() >= ODD {
                true => Tone::Waiting,
                false => Tone::Plain,
            };
            let by = it
                .deviations
                .map_or_else(|| "-".to_owned(), |by| format!("{by:+.1}"));
            [
                cell(&metric.title),
                cell(value(it.mean, &metric.unit)),
                dim(value(metric.median, &metric.unit)),
                Cell::toned(by, tone),
            ]
        }
        None => [(); 4].map(|()| dim("-")),
    };
    let cells = vec![
        cell(&machine.node),
        dim(count(machine.ranks)),
        metric,
        at,
        median,
        by,
    ];
    let filter = format!("node:{}", quoted(&machine.node));
    let opens = Opens::Page(View::Actors, filter);
    row(format!("machine {} {}", run.id, machine.node), cells, opens)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_machine_that_is_furthest_comes_first_with_its_metric() {
        let machine = |node: &str, clock: serde_json::Value, compute: f64, by: f64| {
            let compute = json!({"mean": compute, "deviations": by, "points": []});
            json!({"node": node, "ranks": 8, "cells": [clock, compute]})
        };
        let clock = json!({"mean": 1.98e9, "deviations": -0.5, "points": []});
        let group = json!({"stages": ["compute"], "seconds": 300.0, "total": 3,
            "metrics": [
                {"name": "clock", "title": "clock", "unit": "Hz", "median": 1.98e9},
                {"name": "compute", "title": "compute", "unit": "s", "median": 0.2}],
            "machines": [
                machine("a", clock.clone(), 0.2, 0.0),
                machine("b", clock, 0.29, 7.25),
                machine("c", json!(null), 0.19, -0.9)]});
        let run = json!({"id": "r1", "name": "", "kind": "train", "recipe": "", "folder": "",
            "state": "running", "started": 0.0, "ended": null, "progress": null, "facts": [],
            "curves": [], "histograms": [], "rollouts": [], "store": null, "board": null,
            "heat": null, "sources": [], "machines": [group]});
        let run: Run = serde_json::from_value(run).unwrap();
        let [section] = &sections(&run)[..] else {
            panic!("one group");
        };
        assert_eq!(section.title, "3 machines: means of 5 min");
        let texts =
            |row: &Row| -> Vec<String> { row.cells.iter().map(|it| it.text.clone()).collect() };
        assert_eq!(
            texts(&section.rows[0]),
            ["b", "8", "compute", "290 ms", "200 ms", "+7.2"]
        );
        assert_eq!(section.rows[0].cells[5].tone, Tone::Waiting);
        assert_eq!(texts(&section.rows[1])[..3], ["c", "8", "compute"]);
        assert_eq!(
            texts(&section.rows[2])[2..],
            ["clock", "1980 MHz", "1980 MHz", "-0.5"]
        );
        assert_eq!(section.rows[2].cells[5].tone, Tone::Plain);
    }
}
