//! The state that all routes of inspection share: the observer, the facts and the source of both.

use std::sync::Arc;

use odeon::System;
use odeon_client::inspect as told;
use odeon_observe::{Observer, bounds};
use odeon_otel::Counting;

use super::dto::{self, Shown};
use super::facts::Facts;
use super::replay::Replay;
use super::scrape::Scraped;
use super::view::Counted;

/// State that the routes share.
#[derive(Clone, Debug)]
pub(crate) struct Inspect {
    pub(super) observer: Observer,
    pub(super) facts: Facts,
    pub(super) origin: Origin,
    pub(super) allow_actions: bool,
    pub(super) scraped: Arc<Scraped>,
}

/// The source of what is looked at.
#[derive(Clone, Debug)]
pub(crate) enum Origin {
    /// A system that runs.
    Living(System),
    /// One that has run.
    Recorded(Replay),
}

impl Inspect {
    pub(crate) fn new(
        observer: Observer,
        facts: Facts,
        origin: Origin,
        counting: Option<Counting>,
    ) -> Self {
        Self {
            observer,
            facts,
            origin,
            allow_actions: false,
            scraped: Arc::new(Scraped::new(counting)),
        }
    }

    /// Allows actors to be stopped and restarted from here, or not.
    pub(crate) const fn allow_actions(mut self, allow: bool) -> Self {
        self.allow_actions = allow;
        self
    }

    /// Looks at what is seen.
    pub(super) fn shown<T>(&self, look: impl FnOnce(Shown<'_>) -> T) -> T {
        let facts = self.facts.nodes();
        self.observer.read(|seen| {
            look(Shown {
                seen,
                facts: &facts,
                now: self.observer.now(),
            })
        })
    }

    /// Says how true data is.
    pub(super) fn envelope<T>(&self, (data, shown, total): Counted<T>) -> told::Envelope<T> {
        let observer = &self.observer;
        self.shown(|it| {
            let error = it.seen.clock_error();
            let forgotten = it.seen.spans().forgotten();
            told::Envelope {
                epoch: format!("{:x}", observer.epoch()),
                seq: it.seen.seq(),
                captured_at: it.now.as_ms(),
                shown: shown as u64,
                total: total as u64,
                dropped: it.seen.spans_lost(),
                forgotten: forgotten.map_or(0, |it| it.spans),
                kept_from: forgotten.map(|it| it.to.as_ms()),
                sampled: dto::rounded(it.seen.sampled_one_in()),
                clock_error_us: error.map(|error| error.as_secs_f64() * 1e6),
                missing: missing(&it),
                head: told::Head {
                    replay: self.replayed(),
                    ..head(&it, observer.name())
                },
                data,
            }
        })
    }

    /// Jobs, the newest first, with what is seen of their actors.
    pub(super) fn jobs(&self) -> Vec<told::Job> {
        let mut jobs = self.facts.jobs();
        self.shown(|it| it.fill_in(&mut jobs));
        jobs
    }

    /// How long stages of a job's start took.
    pub(super) fn startup(&self, job: &str) -> Vec<told::StartupStage> {
        let known = self.facts.startup(job);
        self.shown(|it| it.startup(job, known))
    }

    fn replayed(&self) -> Option<told::Replay> {
        match &self.origin {
            Origin::Living(_) => None,
            Origin::Recorded(replay) => Some(replay.head()),
        }
    }
}

fn missing(it: &Shown<'_>) -> Vec<told::MissingNode> {
    let silent = it
        .seen
        .nodes()
        .filter(|node| node.gone.is_none() && it.now.since(node.seen) >= bounds::SUSPECT);
    silent
        .map(|node| told::MissingNode {
            node: node.name.clone(),
            since: node.seen.as_ms(),
            why: "it does not answer".to_owned(),
        })
        .collect()
}

fn head(it: &Shown<'_>, name: &str) -> told::Head {
    let nodes = || it.seen.nodes();
    let actors = || {
        it.seen
            .actors()
            .iter()
            .filter(|actor| !dto::is_system(actor))
    };
    let devices = nodes().filter_map(|node| node.hardware.as_ref());
    let problems = |severity| {
        let problems = it.seen.findings().iter();
        problems
            .filter(|problem| problem.cause.severity == severity)
            .count() as u64
    };
    told::Head {
        name: name.to_owned(),
        nodes: told::NodeCount {
            up: nodes().filter(|node| node.gone.is_none()).count() as u64,
            all: nodes().count() as u64,
        },
        devices: devices.map(|view| view.node.devices.len() as u64).sum(),
        actors: told::ActorCount {
            all: actors().count() as u64,
            failed: actors().filter(|actor| dto::has_failed(actor)).count() as u64,
        },
        problems: told::ProblemCount {
            error: problems(odeon_observe::event::Severity::Error),
            warning: problems(odeon_observe::event::Severity::Warning),
        },
        spans_per_s: dto::rounded(it.seen.spans_per_s()),
        replay: None,
    }
}
