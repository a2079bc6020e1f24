//! Months under faults as rows, beside what ByteRobust (arXiv 2509.16293) reports.

use odeon_actors::simulate::faults::{
    ConstantOrigin, FaultOutcome, OverSeeds, ResolutionRow, RestartRow, RunPhase, Rung,
    SensitivityRow,
};

use super::super::said;
use super::Compared;
use crate::figures;
use crate::print::{self, Table, Unshown};

pub(super) fn print(compared: &Compared) -> Result<(), Unshown> {
    let outcomes = &compared.outcomes;
    policies(outcomes)?;
    print::line("")?;
    phases(outcomes)?;
    if let Some(last) = outcomes.last() {
        print::line("")?;
        rungs(last)?;
        print::line("")?;
        resolutions(last, outcomes.first().filter(|it| !it.policy.inspection))?;
    }
    print::line("")?;
    restarts(&compared.restarts)?;
    if !compared.sensitivity.is_empty() {
        print::line("")?;
        sensitivity(&compared.sensitivity)?;
    }
    Ok(())
}

fn policies(outcomes: &[FaultOutcome]) -> Result<(), Unshown> {
    let table = Table::new([
        "policy",
        "ETTR",
        "\u{b1}",
        "worst hour",
        "hours below half",
        "incidents",
        "restarts",
        "lost steps",
        "evicted",
        "sound of them",
        "standbys",
        "idle",
        "too few",
        "updates merged",
    ]);
    let mut table = table.expendable(&[
        "updates merged",
        "idle",
        "standbys",
        "too few",
        "incidents",
        "\u{b1}",
        "hours below half",
        "worst hour",
    ]);
    for outcome in outcomes {
        table.row([
            figures::plain(&outcome.policy.name),
            percent(outcome.ettr.mean, 2),
            percent(outcome.ettr.deviation, 2),
            percent(outcome.sliding_least.mean, 1),
            percent(outcome.sliding_below_half.mean, 1),
            whole(outcome.incidents),
            whole(outcome.restarts),
            whole(outcome.lost_steps),
            whole(outcome.evicted),
            whole(outcome.over_evicted),
            outcome.standbys.to_string(),
            format!("{:.1}", outcome.idle_standbys.mean),
            whole(outcome.shortages),
            whole(outcome.merged_updates),
        ]);
    }
    table.print()
}

fn percent(part: f64, digits: usize) -> String {
    format!("{:.digits$} %", 100.0 * part)
}

fn whole(of: OverSeeds) -> String {
    figures::count(of.mean.round() as u64)
}

fn phases(outcomes: &[FaultOutcome]) -> Result<(), Unshown> {
    let mut table = Table::new([
        "time goes into",
        "productive",
        "stall",
        "detect",
        "localise",
        "wait",
        "recover",
        "recompute",
    ])
    .expendable(&["wait", "stall"]);
    for outcome in outcomes {
        let part = |phase: RunPhase| {
            let part = outcome.phases.get(&phase).map_or(0.0, |it| it.mean);
            format!("{:.2} %", 100.0 * part)
        };
        let [
            productive,
            stall,
            detect,
            localise,
            wait,
            recover,
            recompute,
        ] = RunPhase::ALL.map(part);
        table.row([
            figures::plain(&outcome.policy.name),
            productive,
            stall,
            detect,
            localise,
            wait,
            recover,
            recompute,
        ]);
    }
    table.print()
}

fn rungs(outcome: &FaultOutcome) -> Result<(), Unshown> {
    let heading = format!("{}: ended by", figures::plain(&outcome.policy.name));
    let mut table = Table::new([heading.as_str(), "incidents", "share", "reported"]);
    for (rung, count) in &outcome.resolved_by_rung {
        let reported = REPORTED_RUNGS.iter().find(|(it, _)| it == rung);
        table.row([
            said(rung),
            format!("{:.1}", count.mean),
            percent(outcome.resolved_share(*rung), 1),
            reported.map_or_else(String::new, |(_, share)| (*share).to_owned()),
        ]);
    }
    table.print()
}

/// Seconds until faults are over; without inspection beside, where that was simulated.
fn resolutions(outcome: &FaultOutcome, without: Option<&FaultOutcome>) -> Result<(), Unshown> {
    let heading = format!("{}: over after", figures::plain(&outcome.policy.name));
    let table = Table::new([
        heading.as_str(),
        "faults",
        "mean",
        "most",
        "reported mean",
        "reported most",
        "without inspection",
        "reported stress test",
    ]);
    let mut table = table.expendable(&["faults", "reported most", "most"]);
    for (at, row) in outcome.resolutions.iter().enumerate() {
        let seconds = |row: &ResolutionRow, value: f64| match row.count {
            0 => "-".to_owned(),
            _ => format!("{value:.0} s"),
        };
        let reported = |of: &dyn Fn() -> Option<String>| of().unwrap_or_default();
        let of = row.reported;
        let other = without.and_then(|it| it.resolutions.get(at));
        table.row([
            figures::plain(&row.class),
            row.count.to_string(),
            seconds(row, row.mean_s),
            seconds(row, row.most_s),
            reported(&|| Some(format!("{:.0} s", of?.mean_s))),
            reported(&|| Some(format!("{:.0} s", of?.most_s))),
            other.map_or_else(String::new, |it| seconds(it, it.mean_s)),
            reported(&|| {
                let test = of?.stress_test_s;
                Some(test.map_or_else(|| "never".to_owned(), |it| format!("{it:.0} s")))
            }),
        ]);
    }
    table.print()
}

fn restarts(rows: &[RestartRow]) -> Result<(), Unshown> {
    let table = Table::new([
        "machines",
        "requeue",
        "reported",
        "in place",
        "reported",
        "times",
        "reported",
        "reschedule",
        "standbys",
        "with as many as it takes",
        "pool",
    ]);
    let mut table = table.expendable(&["pool", "with as many as it takes", "reschedule"]);
    for row in rows {
        let seconds = |value: f64| format!("{value:.0} s");
        let times = |of: f64, over: f64| format!("{:.1}", of / over);
        table.row([
            figures::count(row.machines.into()),
            seconds(row.requeue_s),
            seconds(row.reported_requeue_s),
            seconds(row.in_place_s),
            seconds(row.reported_in_place_s),
            times(row.requeue_s, row.in_place_s),
            times(row.reported_requeue_s, row.reported_in_place_s),
            seconds(row.reschedule_s),
            seconds(row.standby_s),
            seconds(row.oracle_s),
            row.standbys.to_string(),
        ]);
    }
    table.print()?;
    let mean = |of: &dyn Fn(&RestartRow) -> f64| {
        rows.iter().map(of).sum::<f64>() / (rows.len() as f64).max(1.0)
    };
    let ratios = [
        (
            "requeue over in place",
            mean(&|it| it.requeue_s / it.in_place_s),
            "11.04",
        ),
        (
            "requeue over standbys",
            mean(&|it| it.requeue_s / it.standby_s),
            "10.87",
        ),
        (
            "reschedule over standbys",
            mean(&|it| it.reschedule_s / it.standby_s),
            "5.36",
        ),
        (
            "standbys over as many as it takes",
            mean(&|it| it.standby_s / it.oracle_s),
            "1.0519",
        ),
    ];
    print::line("")?;
    let mut table = Table::new(["mean over sizes", "times", "reported"]);
    for (what, ratio, reported) in ratios {
        table.row([what.to_owned(), format!("{ratio:.2}"), reported.to_owned()]);
    }
    table.print()
}

fn sensitivity(rows: &[SensitivityRow]) -> Result<(), Unshown> {
    let mut table = Table::new(["constant", "origin", "ETTR with half", "ETTR with twice"]);
    for row in rows {
        let origin = match row.origin {
            ConstantOrigin::Paper => "paper",
            ConstantOrigin::Fitted => "fitted",
            ConstantOrigin::Guessed => "guessed",
        };
        table.row([
            row.field.to_owned(),
            origin.to_owned(),
            percent(row.halved.mean, 2),
            percent(row.doubled.mean, 2),
        ]);
    }
    table.print()
}

/// Shares of the ladder in 19 jobs of 9,600 cards and more.
const REPORTED_RUNGS: [(Rung, &str); 4] = [
    (Rung::Eviction, "32.52 %"),
    (Rung::Reattempt, "22.70 %"),
    (Rung::Rollback, "9.20 %"),
    (Rung::Replay, "1.23 %"),
];
