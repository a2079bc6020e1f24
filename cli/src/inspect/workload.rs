//! The pages of workloads, from the numbers and spans that their actors record.
//!
//! A workload is known by the names of what it records: `rl.` for reinforcement, `train.` for
//! training, `data.` for sources. Each job that records any is a run.

use std::collections::BTreeMap;
use std::time::Duration;

use odeon::ActorId;
use odeon::telemetry::Label;
use odeon::trace::SpanKind;
use odeon_client::inspect as told;
use odeon_observe::ClusterView;
use odeon_observe::cluster_view::Recorded;
use odeon_observe::machines::AlikeMachines;
use odeon_observe::spans::Span;

use super::dto::{Shown, rounded};
use super::mesh::RanksSeen;

/// Names that are facts with a limit rather than curves.
const PLAIN: [&str; 8] = [
    "rl.store.rows",
    "rl.store.most",
    "rl.store.waiting",
    "rl.store.in_use",
    "rl.progress.done",
    "rl.progress.of",
    "weights.version",
    "rl.staleness",
];
/// Trajectories that are shown of one rollout: more than a lane has room for.
const TRAJECTORIES_MAX: usize = 400;
/// The part of time for which they are shown.
const LANE: Duration = Duration::from_secs(60);
/// Versions that a board shows.
const VERSIONS_MAX: usize = 12;
/// Points of a curve.
pub(super) const POINTS_MAX: usize = 600;
/// A number without meaning; its labels say which recipe runs, and in which folder.
const ABOUT: &str = "run.about";
/// The name of a trajectory's span.
const TRAJECTORY: &str = "trajectory";

fn kind_of(name: &str) -> Option<&'static str> {
    match name.split_once('.')?.0 {
        "rl" => Some("rl"),
        "train" => Some("train"),
        "data" => Some("data"),
        _ => None,
    }
}

pub(super) fn label(recorded: &Recorded, name: &str) -> Option<Label> {
    let labels = recorded.labels.iter();
    let mut found = labels.filter(|(it, _)| it == name);
    found.next().map(|(_, label)| label.clone())
}

fn last(recorded: &Recorded) -> f64 {
    recorded.points.back().map_or(0.0, |(.., value)| *value)
}

fn job_of(seen: &ClusterView, recorded: &Recorded) -> String {
    let actor = seen.actors().get(recorded.actor).map(|it| it.job.clone());
    let process = || seen.process(recorded.actor.home).map(|it| it.job.clone());
    actor.or_else(process).unwrap_or_default()
}

impl Shown<'_> {
    /// The numbers of each run, by its job.
    pub(super) fn recorded_by_run(&self) -> BTreeMap<String, Vec<&Recorded>> {
        let mut jobs: BTreeMap<String, Vec<&Recorded>> = BTreeMap::new();
        for recorded in self.seen.recorded() {
            let more = recorded.name == ABOUT || recorded.name.starts_with("weights.");
            if more || kind_of(&recorded.name).is_some() {
                jobs.entry(job_of(self.seen, recorded))
                    .or_default()
                    .push(recorded);
            }
        }
        // Weights alone make no run, nor does its name.
        jobs.retain(|_, recorded| recorded.iter().any(|it| kind_of(&it.name).is_some()));
        jobs
    }

    pub(super) fn runs_page(&self) -> told::Runs {
        let alike = self.seen.alike_machines();
        let runs = self
            .recorded_by_run()
            .into_iter()
            .map(|(job, recorded)| self.run(&job, &recorded, &alike));
        told::Runs {
            runs: runs.collect(),
        }
    }

    fn run(&self, job: &str, recorded: &[&Recorded], alike: &[AlikeMachines]) -> told::Run {
        let started = recorded
            .iter()
            .filter_map(|it| it.points.front())
            .map(|it| it.0)
            .min();
        let own = || self.seen.processes().filter(|it| it.job == job);
        let ended = own().map(|it| it.ended).max().flatten();
        let ended = ended.filter(|_| own().all(|it| it.ended.is_some()));
        let number = |name: &str| {
            recorded
                .iter()
                .find(|it| it.name == name)
                .map(|it| last(it))
        };
        let about = recorded.iter().rfind(|it| it.name == ABOUT);
        let about = |name| {
            let text = about.and_then(|about| label(about, name));
            text.map_or(String::new(), |text| text.to_string())
        };
        // One that trains on what it makes records of its training and its data, too.
        let kinds = ["rl", "train", "data"].into_iter();
        let mut kinds =
            kinds.filter(|kind| recorded.iter().any(|it| kind_of(&it.name) == Some(*kind)));
        let kind = kinds.next().unwrap_or("other");
        let store = number("rl.store.rows").map(|rows| told::Store {
            rows: rows as u64,
            most: number("rl.store.most").unwrap_or(0.0) as u64,
            waiting: number("rl.store.waiting").unwrap_or(0.0) as u64,
            in_use: number("rl.store.in_use").unwrap_or(0.0) as u64,
        });
        let progress = number("rl.progress.of").map(|of| told::Progress {
            done: number("rl.progress.done").unwrap_or(0.0),
            of,
            unit: "steps".to_owned(),
        });
        let ranks = RanksSeen::of(recorded);
        let heat = match ranks {
            Some(_) => None,
            None => heat(recorded),
        };
        told::Run {
            id: job.to_owned(),
            name: job.to_owned(),
            kind: kind.to_owned(),
            recipe: about("recipe"),
            folder: about("folder"),
            state: if ended.is_some() {
                "finished"
            } else {
                "running"
            }
            .to_owned(),
            started: started.unwrap_or(self.now).as_ms(),
            ended: ended.map(odeon_observe::Date::as_ms),
            progress,
            facts: facts(recorded),
            curves: curves(recorded),
            histograms: histograms(recorded),
            rollouts: self.rollouts(job, recorded),
            store,
            board: self.board_of(job, recorded),
            heat,
            sources: sources(recorded),
            mesh: ranks.as_ref().map(|ranks| self.mesh(ranks, job)),
            pipeline: ranks.and_then(|ranks| self.pipeline(&ranks)),
            machines: self.machines_of(job, alike),
        }
    }

    fn rollouts(&self, job: &str, recorded: &[&Recorded]) -> Vec<told::Rollout> {
        let mut by: BTreeMap<_, Vec<&Span>> = BTreeMap::new();
        let spans = self.seen.spans();
        let from = self.now.before(LANE);
        let ended = spans.ended().filter(|it| it.end_or(self.now) >= from);
        for span in ended
            .chain(spans.going_on())
            .filter(|it| &*it.name == TRAJECTORY)
        {
            let of_job = |it: &odeon_observe::actor::Actor| it.job == job;
            if self.seen.actors().get(span.by).is_none_or(|it| !of_job(it)) {
                continue;
            }
            by.entry(span.by).or_default().push(span);
        }
        let version = |id| {
            let mut versions = recorded.iter().filter(|it| it.name == "weights.version");
            versions.find(|it| it.actor == id).map(|it| last(it) as i64)
        };
        by.into_iter()
            .map(|(id, mut spans)| {
                spans.sort_by_key(|span| span.start);
                let all: Vec<_> = spans.into_iter().map(trajectory).collect();
                let count = |state: &str| all.iter().filter(|it| it.4 == state).count() as u64;
                let (done, going, dropped) = (count("done"), count("going"), count("dropped"));
                let every = all.len().div_ceil(TRAJECTORIES_MAX).max(1);
                told::Rollout {
                    subject: self.actor_subject(id),
                    name: self.seen.title_of(id),
                    version: version(id),
                    done,
                    going,
                    dropped,
                    tokens: all.iter().map(|it| it.3).sum(),
                    trajectories: all.into_iter().step_by(every).collect(),
                }
            })
            .collect()
    }

    /// The boards of weights, of all jobs that have some: who has which version.
    pub(super) fn boards(&self) -> Vec<told::Board> {
        let mut jobs: BTreeMap<String, Vec<&Recorded>> = BTreeMap::new();
        for recorded in self
            .seen
            .recorded()
            .filter(|it| it.name.starts_with("weights."))
        {
            jobs.entry(job_of(self.seen, recorded))
                .or_default()
                .push(recorded);
        }
        jobs.into_iter()
            .filter_map(|(job, recorded)| self.board_of(&job, &recorded))
            .collect()
    }

    fn board_of(&self, job: &str, recorded: &[&Recorded]) -> Option<told::Board> {
        let published = recorded.iter().find(|it| it.name == "weights.published")?;
        let mut versions: Vec<i64> = published.points.iter().map(|it| it.2 as i64).collect();
        versions.dedup();
        let skip = versions.len().saturating_sub(VERSIONS_MAX);
        let versions = versions.split_off(skip);
        let holders = recorded.iter().filter(|it| it.name == "weights.version");
        let rows = holders.map(|holder| {
            let had: Vec<i64> = holder.points.iter().map(|it| it.2 as i64).collect();
            let at = had.last().copied();
            let cell = |version: &i64| {
                let state = match at {
                    Some(at) if at == *version => "used",
                    _ if had.contains(version) => "whole",
                    _ => "none",
                };
                told::Cell {
                    state: state.to_owned(),
                    share: if state == "none" { 0.0 } else { 1.0 },
                }
            };
            told::BoardRow {
                name: self.seen.title_of(holder.actor),
                subject: self.actor_subject(holder.actor),
                cells: versions.iter().map(cell).collect(),
            }
        });
        let rows: Vec<_> = rows.collect();
        let holders = recorded.iter().filter(|it| it.name == "weights.version");
        let rates: Vec<_> = holders
            .map(|holder| self.rate_to(published.actor, holder.actor))
            .collect();
        let slow = slow_below(&rates);
        let unmeasured = "it maps the memory of its node";
        let edges = rates.iter().enumerate().map(|(to, rate)| told::Edge {
            from: -1,
            to: to as i64,
            gb_per_s: told::Measured::new(*rate, unmeasured),
            straggler: rate.is_some_and(|rate| rate < slow),
        });
        Some(told::Board {
            id: format!("weights:{job}"),
            name: "weights".to_owned(),
            edges: edges.collect(),
            rows,
            versions,
            source: self.actor_subject(published.actor),
        })
    }

    /// The rate at which the last copy of something of the publisher's node came to the node of a
    /// holder, in gigabytes a second; `None` where nothing had to be copied.
    fn rate_to(&self, publisher: ActorId, holder: ActorId) -> Option<f64> {
        let node_of = |actor| self.seen.actors().get(actor).map(|it| it.node.as_str());
        let node_at = |process| self.seen.process(process).map(|it| it.node.as_str());
        let (from, to) = (node_of(publisher)?, node_of(holder)?);
        let copies = self.seen.spans().ended().rev();
        let mut copies = copies.filter(|span| span.kind == SpanKind::Copy && span.ok);
        let copy = copies.find(|span| {
            let owner = span.label("owner");
            let mut processes = self.seen.processes();
            let owner = processes.find(|it| Some(it.id.to_string()) == owner);
            let came = owner.is_some_and(|owner| owner.node == from);
            came && node_at(span.process) == Some(to)
        })?;
        let took = copy.end?.since(copy.start).as_secs_f64();
        let bytes = copy.label("bytes")?.parse::<f64>().ok()?;
        (took > 0.0).then(|| bytes / took / 1e9)
    }
}

/// Below this a way is a straggler: half the median of those that were measured.
fn slow_below(rates: &[Option<f64>]) -> f64 {
    let mut rates: Vec<f64> = rates.iter().flatten().copied().collect();
    rates.sort_by(f64::total_cmp);
    match rates.len() {
        0..=2 => 0.0,
        many => rates[many / 2] / 2.0,
    }
}

fn trajectory(span: &Span) -> (f64, Option<f64>, i64, u64, String, Option<f64>) {
    let number = |name: &str| span.label(name).and_then(|it| it.parse::<f64>().ok());
    let state = match (span.end, span.ok) {
        (None, _) => "going",
        (Some(_), true) => "done",
        (Some(_), false) => "dropped",
    };
    (
        span.start.as_ms(),
        span.end.map(odeon_observe::Date::as_ms),
        number("version").unwrap_or(0.0) as i64,
        number("tokens").unwrap_or(0.0) as u64,
        state.to_owned(),
        number("reward"),
    )
}

/// The name without its beginning, for people.
fn title(name: &str) -> String {
    let rest = name.split_once('.').map_or(name, |(_, rest)| rest);
    rest.replace(['.', '_'], " ")
}

fn unit_of(recorded: &Recorded) -> String {
    label(recorded, "unit").map_or(String::new(), |label| label.to_string())
}

fn is_curve(recorded: &Recorded) -> bool {
    let plain = PLAIN.contains(&recorded.name.as_str());
    let of_part = ["rank", "stage", "source"];
    !plain && !of_part.iter().any(|name| label(recorded, name).is_some())
}

fn facts(recorded: &[&Recorded]) -> Vec<told::Fact> {
    let curves = recorded
        .iter()
        .filter(|it| is_curve(it) && kind_of(&it.name).is_some());
    let fact = |it: &&&Recorded| told::Fact {
        name: title(&it.name),
        value: rounded(last(it)),
        unit: unit_of(it),
    };
    curves.map(|it| fact(&it)).collect()
}

fn curves(recorded: &[&Recorded]) -> Vec<told::Curve> {
    let curves = recorded
        .iter()
        .filter(|it| is_curve(it) && kind_of(&it.name).is_some());
    let curve = |it: &&Recorded| {
        let by_step = it.points.iter().any(|(_, step, _)| step.is_some());
        let every = it.points.len().div_ceil(POINTS_MAX).max(1);
        let points = it.points.iter().rev().step_by(every);
        let point = |(at, step, value): &(odeon_observe::Date, Option<f64>, f64)| {
            let x = if by_step {
                step.unwrap_or(0.0)
            } else {
                at.as_ms()
            };
            (x, *value)
        };
        let mut points: Vec<_> = points.map(point).collect();
        points.reverse();
        told::Curve {
            name: it.name.clone(),
            title: title(&it.name),
            unit: unit_of(it),
            x: if by_step { "step" } else { "time" }.to_owned(),
            points,
        }
    };
    curves.map(curve).collect()
}

/// The staleness of what was trained on: one bin for each number of steps.
fn histograms(recorded: &[&Recorded]) -> Vec<told::Histogram> {
    let stale = recorded.iter().find(|it| it.name == "rl.staleness");
    let histogram = stale.map(|stale| {
        let mut bins: BTreeMap<i64, u64> = BTreeMap::new();
        for (.., value) in &stale.points {
            *bins.entry(value.round() as i64).or_default() += 1;
        }
        let bin = |(steps, count): (i64, u64)| (steps as f64, steps as f64 + 1.0, count);
        told::Histogram {
            name: "rl.staleness".to_owned(),
            title: "staleness of trained trajectories".to_owned(),
            unit: "versions".to_owned(),
            bins: bins.into_iter().map(bin).collect(),
        }
    });
    histogram.into_iter().collect()
}

/// Times by rank and stage.
fn heat(recorded: &[&Recorded]) -> Option<told::Heat> {
    let mut cells: BTreeMap<(i64, String), f64> = BTreeMap::new();
    for it in recorded.iter().filter(|it| it.name == "train.stage_s") {
        let (Some(Label::Int(rank)), Some(stage)) = (label(it, "rank"), label(it, "stage")) else {
            continue;
        };
        cells.insert((rank, stage.to_string()), last(it));
    }
    let mut ranks: Vec<i64> = cells.keys().map(|(rank, _)| *rank).collect();
    ranks.dedup();
    let mut stages: Vec<String> = cells.keys().map(|(_, stage)| stage.clone()).collect();
    stages.sort();
    stages.dedup();
    (!cells.is_empty()).then(|| {
        let cell = |rank: i64, stage: &String| cells.get(&(rank, stage.clone())).copied();
        let row = |rank: &i64| {
            stages
                .iter()
                .map(|it| cell(*rank, it).unwrap_or(0.0))
                .collect()
        };
        told::Heat {
            title: "time of a step by rank and stage".to_owned(),
            unit: "s".to_owned(),
            values: ranks.iter().map(row).collect(),
            rows: ranks.iter().map(|rank| format!("rank {rank}")).collect(),
            columns: stages,
        }
    })
}

fn sources(recorded: &[&Recorded]) -> Vec<told::Source> {
    let rates = recorded.iter().filter(|it| it.name == "data.rate");
    let source = |it: &&Recorded| {
        let name = label(it, "source")?;
        let of = |what: &str| {
            let same =
                |it: &&&Recorded| it.name == what && label(it, "source").as_ref() == Some(&name);
            recorded.iter().find(same).map(|it| last(it))
        };
        Some(told::Source {
            name: name.to_string(),
            rate: rounded(last(it)),
            unit: "samples/s".to_owned(),
            buffer: of("data.buffer").unwrap_or(0.0),
            buffer_max: of("data.buffer_max").unwrap_or(0.0),
            shadow: match of("data.shadow_behind") {
                Some(behind) => format!("{behind} samples behind"),
                None => "none".to_owned(),
            },
        })
    };
    rates.filter_map(source).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_straggler_is_less_than_half_as_fast_as_the_median_of_at_least_three() {
        let slow = |rates: &[f64]| {
            let rates: Vec<_> = rates.iter().copied().map(Some).collect();
            let least = slow_below(&rates);
            let slow = rates.into_iter().flatten().filter(|it| *it < least);
            slow.collect::<Vec<_>>()
        };
        assert_eq!(slow(&[1.0, 0.9, 0.4]), [0.4]);
        assert!(slow(&[1.0, 0.9, 0.5]).is_empty());
        assert!(slow(&[1.0, 0.1]).is_empty());
        assert!(slow(&[]).is_empty());
        assert_eq!(slow_below(&[None, Some(1.0), None]), 0.0);
    }
}
