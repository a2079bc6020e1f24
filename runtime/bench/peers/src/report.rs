//! The table of all rounds.

use crate::figures::Figures;
use crate::subject::Subject;

/// The figures of one subject, round by round.
pub(crate) type Measured = (Subject, Vec<Figures>);

/// Two tables in Markdown: what was measured, and how it compares. Figures are medians over the
/// rounds; how many times faster Odeon is is the median of the rounds' ratios, so that what slows a
/// whole round down does not count.
pub(crate) fn tables(measured: &[Measured]) -> String {
    let figures = measured.iter().map(|(subject, rounds)| {
        let of = |part: fn(&Figures) -> f64| median(rounds.iter().map(part));
        [
            subject.title().to_owned(),
            format!("{:.0}", of(|figures| figures.p50)),
            format!("{:.0}", of(|figures| figures.p99)),
            format!("{:.1}k", of(|figures| figures.one_task) / 1e3),
            format!("{:.1}k", of(|figures| figures.many_tasks) / 1e3),
            format!("{:.0} %", of(|figures| figures.failed) * 100.0),
        ]
    });
    let pairs = measured.iter().flat_map(|theirs| {
        let ours = measured.iter().filter(|(ours, _)| ours.is_odeon());
        ours.filter(|_| !theirs.0.is_odeon())
            .map(move |ours| compared(ours, theirs))
    });
    let figures = table(
        [
            "subject",
            "p50 µs",
            "p99 µs",
            "asks/s, one task",
            "asks/s, many tasks",
            "failed",
        ],
        figures,
    );
    let pairs = table(
        [
            "faster is",
            "than",
            "latency",
            "rate, one task",
            "rate, many tasks",
            "aim",
            "in latency",
            "in rate",
        ],
        pairs,
    );
    format!("{figures}\n{pairs}")
}

/// Compares Odeon with another subject: the factors by which it is faster, its aim, and the
/// verdicts.
fn compared((ours, our_rounds): &Measured, (theirs, their_rounds): &Measured) -> [String; 8] {
    let factor = |of: fn(&Figures, &Figures) -> f64| {
        let rounds = our_rounds.iter().zip(their_rounds);
        median(rounds.map(|(ours, theirs)| of(ours, theirs)))
    };
    let latency = factor(|ours, theirs| theirs.p50 / ours.p50);
    let one_task = factor(|ours, theirs| ours.one_task / theirs.one_task);
    let many_tasks = factor(|ours, theirs| ours.many_tasks / theirs.many_tasks);
    let aim = theirs.aim().filter(|(judge, _)| judge == ours);
    let verdict = |factor: f64| match aim {
        None => "",
        Some((_, aim)) if factor >= aim => "met",
        Some(_) => "MISSED",
    };
    [
        ours.title().to_owned(),
        theirs.title().to_owned(),
        format!("{latency:.1} x"),
        format!("{one_task:.1} x"),
        format!("{many_tasks:.1} x"),
        aim.map_or_else(String::new, |(_, aim)| format!("{aim} x")),
        verdict(latency).to_owned(),
        verdict(one_task.min(many_tasks)).to_owned(),
    ]
}

fn table<const N: usize>(heads: [&str; N], rows: impl Iterator<Item = [String; N]>) -> String {
    let head = [heads.map(str::to_owned), heads.map(|_| "---".to_owned())];
    head.into_iter()
        .chain(rows)
        .map(|cells| format!("| {} |\n", cells.join(" | ")))
        .collect()
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = values.collect();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => sorted[n / 2],
        n => f64::midpoint(sorted[n / 2 - 1], sorted[n / 2]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_are_paired_by_round_and_judged_within_a_class() {
        let rounds = |p50: f64, rate: f64| {
            // The second round is slow for everybody.
            let round = |slow: f64| Figures {
                p50: p50 * slow,
                p99: 0.0,
                one_task: rate / slow,
                many_tasks: rate / slow,
                failed: 0.0,
            };
            [1.0, 10.0, 1.0].map(round).to_vec()
        };
        let text = tables(&[
            (Subject::OdeonUnix, rounds(10.0, 100e3)),
            (Subject::OdeonQuic, rounds(20.0, 50e3)),
            (Subject::KameoQuic, rounds(390.0, 2e3)),
        ]);
        for line in [
            "| odeon, unix socket | kameo, QUIC | 39.0 x | 50.0 x | 50.0 x |  |  |  |",
            "| odeon, QUIC | kameo, QUIC | 19.5 x | 25.0 x | 25.0 x | 20 x | MISSED | met |",
        ] {
            assert!(text.lines().any(|found| found == line), "{text}");
        }
    }
}
