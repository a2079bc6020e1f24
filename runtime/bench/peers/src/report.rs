//! The tables of all rounds.

use crate::figures::Figures;
use crate::subject::{Processes, Subject};

/// The figures of one subject, round by round; `None` where a script failed.
pub(crate) type Measured = (Subject, Vec<Option<Figures>>);

/// All tables, in Markdown. Figures are medians over the rounds; how many times faster Odeon is is
/// the median of the rounds' ratios, so that what slows a whole round down does not count.
pub(crate) fn tables(measured: &[Measured]) -> String {
    let short = table(
        [
            "",
            "ask, median",
            "1,000 outstanding",
            "50 processes ready",
            "killed to next answer",
        ],
        measured
            .iter()
            .filter(|(subject, _)| subject.is_shown_first())
            .map(|(subject, rounds)| {
                let [start, restart] = processes(*subject, rounds);
                [
                    subject.title().to_owned(),
                    format!("{:.0} µs", of(rounds, |figures| figures.p50)),
                    format!("{}/s", thousands(best_rate(rounds))),
                    start,
                    restart,
                ]
            }),
    );
    let all = table(
        [
            "subject",
            "p50 µs",
            "p99 µs",
            "asks/s, one task",
            "asks/s, many tasks",
            "failed",
            "50 processes",
            "killed to next answer",
        ],
        measured.iter().map(|(subject, rounds)| {
            let [start, restart] = processes(*subject, rounds);
            [
                subject.title().to_owned(),
                format!("{:.0}", of(rounds, |figures| figures.p50)),
                format!("{:.0}", of(rounds, |figures| figures.p99)),
                thousands(of(rounds, |figures| figures.one_task)),
                thousands(of(rounds, |figures| figures.many_tasks)),
                format!("{:.0} %", of(rounds, |figures| figures.failed) * 100.0),
                start,
                restart,
            ]
        }),
    );
    let compared = table(
        [
            "Odeon against",
            "unix socket: latency",
            "rate",
            "QUIC: latency",
            "rate",
            "aim",
            "in latency",
            "in rate",
        ],
        measured
            .iter()
            .filter(|(subject, _)| !subject.is_odeon())
            .map(|theirs| compared(measured, theirs)),
    );
    let others: String = measured.iter().flat_map(others).collect();
    format!("{short}\n{all}\n{compared}\n{others}")
}

/// The times that processes take to start, and to start again.
fn processes(subject: Subject, rounds: &[Option<Figures>]) -> [String; 2] {
    let start = || seconds(all(rounds).filter_map(|figures| figures.start));
    let restart = || seconds(all(rounds).filter_map(|figures| figures.restart));
    match subject.processes() {
        Processes::None => ["none", "none"].map(str::to_owned),
        Processes::AsAbove => ["the same", "the same"].map(str::to_owned),
        Processes::Restarted => [start(), restart()],
        Processes::RestartedByHand => [start(), format!("{}, by hand", restart())],
    }
}

/// The factors by which Odeon is faster over each of its transports, the aim, and the verdicts.
fn compared(measured: &[Measured], (theirs, their_rounds): &Measured) -> [String; 8] {
    let aim = theirs.aim();
    let mut verdicts = [String::new(), String::new()];
    let mut factors = vec![];
    for transport in [Subject::OdeonUnix, Subject::OdeonQuic] {
        let ours = measured.iter().find(|(ours, _)| *ours == transport);
        let factor = |of: fn(&Figures, &Figures) -> f64| {
            let ours = ours.into_iter().flat_map(|(_, rounds)| rounds);
            let both = ours.zip(their_rounds);
            median(both.filter_map(|(ours, theirs)| Some(of(ours.as_ref()?, theirs.as_ref()?))))
        };
        let latency = factor(|ours, theirs| theirs.p50 / ours.p50);
        let rate = factor(|ours, theirs| ours.rate() / theirs.rate());
        if let Some((_, aim)) = aim.filter(|(judge, _)| *judge == transport) {
            let verdict = |factor| if factor >= aim { "met" } else { "MISSED" };
            verdicts = [latency, rate].map(|factor| verdict(factor).to_owned());
        }
        factors.extend([latency, rate].map(|factor| format!("{factor:.1} x")));
    }
    let aim = aim.map_or_else(String::new, |(judge, aim)| {
        let (_, transport) = judge.title().split_once(", ").unwrap_or_default();
        format!("{aim} x over {transport}")
    });
    let mut cells = factors.into_iter();
    let mut next = || cells.next().unwrap_or_default();
    let [latency, rate] = verdicts;
    let title = theirs.title().to_owned();
    [title, next(), next(), next(), next(), aim, latency, rate]
}

/// A line for each further figure of a script, and one for rounds that failed.
fn others((subject, rounds): &Measured) -> Vec<String> {
    let title = subject.title();
    let first = all(rounds).next().into_iter();
    let names = first.flat_map(|figures| figures.others.keys());
    let figures = names.map(|name| {
        let values = all(rounds).filter_map(|figures| figures.others.get(name).copied());
        format!("- {title}, {name}: {:.2}\n", median(values))
    });
    let (failed, of) = (
        rounds.iter().filter(|round| round.is_none()).count(),
        rounds.len(),
    );
    let failed = (failed > 0).then(|| format!("- {title}: {failed} of {of} rounds failed\n"));
    figures.chain(failed).collect()
}

fn all(rounds: &[Option<Figures>]) -> impl Iterator<Item = &Figures> {
    rounds.iter().flatten()
}

fn of(rounds: &[Option<Figures>], part: fn(&Figures) -> f64) -> f64 {
    median(all(rounds).map(part))
}

/// Of the two ways to have many asks under way, the better one.
fn best_rate(rounds: &[Option<Figures>]) -> f64 {
    of(rounds, |figures| figures.one_task).max(of(rounds, |figures| figures.many_tasks))
}

fn thousands(rate: f64) -> String {
    let places = usize::from(rate < 100e3);
    format!("{:.places$}k", rate / 1e3)
}

fn seconds(values: impl Iterator<Item = f64>) -> String {
    match median(values) {
        seconds if seconds.is_nan() => "failed".to_owned(),
        seconds if seconds < 0.1 => format!("{:.0} ms", seconds * 1e3),
        seconds if seconds < 10.0 => format!("{seconds:.2} s"),
        seconds => format!("{seconds:.0} s"),
    }
}

fn table<const N: usize>(heads: [&str; N], rows: impl Iterator<Item = [String; N]>) -> String {
    let head = [heads.map(str::to_owned), heads.map(|_| "---".to_owned())];
    head.into_iter()
        .chain(rows)
        .map(|cells| format!("| {} |\n", cells.join(" | ")))
        .collect()
}

pub(crate) fn median(values: impl Iterator<Item = f64>) -> f64 {
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

    fn rounds(p50: f64, rate: f64) -> Vec<Option<Figures>> {
        // The second round is slow for everybody.
        let round = |slow: f64| {
            Some(Figures {
                p50: p50 * slow,
                one_task: rate / slow,
                many_tasks: rate / slow / 2.0,
                ..Figures::default()
            })
        };
        [1.0, 10.0, 1.0].map(round).to_vec()
    }

    #[test]
    fn factors_are_paired_by_round_and_judged_within_a_class() {
        let mut ray = rounds(500.0, 1e3);
        ray[0] = None;
        let text = tables(&[
            (Subject::OdeonUnix, rounds(10.0, 100e3)),
            (Subject::OdeonQuic, rounds(20.0, 50e3)),
            (Subject::Ray, ray),
            (Subject::KameoQuic, rounds(390.0, 2e3)),
        ]);
        for line in [
            "| Ray | 50.0 x | 100.0 x | 25.0 x | 50.0 x |  |  |  |",
            "| kameo, QUIC | 39.0 x | 50.0 x | 19.5 x | 25.0 x | 20 x over QUIC | MISSED | met |",
        ] {
            assert!(text.lines().any(|found| found == line), "{text}");
        }
    }

    #[test]
    fn a_peer_without_processes_says_so() {
        let mut odeon = rounds(10.0, 200e3);
        for figures in odeon.iter_mut().flatten() {
            figures.start = Some(0.13);
            figures.restart = Some(0.016);
        }
        let text = tables(&[
            (Subject::OdeonUnix, odeon),
            (Subject::RactorUnix, rounds(20.0, 50e3)),
        ]);
        for line in [
            "| Odeon, unix socket | 10 µs | 200k/s | 0.13 s | 16 ms |",
            "| ractor_cluster, unix socket | 20 µs | 50.0k/s | none | none |",
        ] {
            assert!(text.lines().any(|found| found == line), "{text}");
        }
    }
}
