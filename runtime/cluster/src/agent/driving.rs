//! A try on its node, from its files to the outcome of its driver.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use odeon::{Clock, DetachedActor, Driver, ProcessExit, WorkerCommand};
use odeon_artifacts::Shares;
use tokio::sync::{oneshot, watch};

use super::Agent;
use super::environments::with_environment;
use super::handoff::AttemptHandoff;
use super::preparing::{Ready, millis, ms_since, nodes_of};
use crate::job::{Event, Job, JobId, JobSpec, Outcome};
use crate::orphan_processes;
use crate::staging::StagingError;
use crate::startup::StartStage;
use crate::unix::Unix;

/// The longest wait for the last lines of an ended process: what it has started may hold its output
/// open.
const OUTPUT_PATIENCE: Duration = Duration::from_secs(1);
/// The longest wait of a try that is over until the catalog has heard how long its start took.
const TELL_PATIENCE: Duration = Duration::from_secs(1);
/// The variable by which a driver knows which try of its job's run it is, counted from 1.
const TRY_VARIABLE: &str = "ODEON_ATTEMPT";
/// Variables of the daemon that jobs see.
const INHERITED: [&str; 8] = [
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "LANG",
    "TZ",
    "LD_LIBRARY_PATH",
    "CUDA_VISIBLE_DEVICES",
];

/// Variables of jobs that set them to nothing else: what a Python program prints is seen when it does.
const DEFAULTS: [(&str, &str); 1] = [("PYTHONUNBUFFERED", "1")];

impl Agent {
    pub(super) async fn run(
        &self,
        job: &Job,
        attempt: u32,
        mut stop: watch::Receiver<Option<bool>>,
    ) -> Outcome {
        // Its time counts from here: whoever was promised its places waits for its files, too. That of another version
        // goes on.
        let held_since = job.attempt().and_then(|it| it.held_since);
        let began = held_since.unwrap_or_else(Unix::now);
        let given = Unix::now();
        let mut ready = match self.ready(job, attempt, began, &mut stop).await {
            Ok(ready) => ready,
            Err(outcome) => return outcome,
        };
        let assigned = job.attempt().map_or(given, |it| it.since);
        ready
            .times
            .insert(StartStage::Placed, millis(given.since(assigned)));
        let starts = Clock::now();
        let environment = ready.environment.as_deref();
        let command = self.command(job, attempt, &ready.program, environment);
        let command = command.folder(ready.folder);
        let tag = job.tag(attempt);
        let spec = job.spec.clone();
        self.inner.specs.lock().insert((job.id, attempt), spec);
        let system = &self.inner.system;
        self.reserve(job, attempt);
        let driver = match &job.spec.hosts {
            None => system.admin().start_driver(&tag, &command),
            Some(hosted) => match DetachedActor::from_text(&hosted.order) {
                Some(actor) => system.admin().start_host(&tag, &command, actor),
                None => {
                    let why = "this release cannot read how its actor is spawned".to_owned();
                    return Outcome::Refused { why };
                }
            },
        };
        let driver = match driver {
            Ok(driver) => driver,
            Err(failure) => {
                let why = failure.to_string();
                return Outcome::Failed { code: None, why };
            }
        };
        ready.times.insert(StartStage::Process, ms_since(starts));
        let prepared = Event::Prepared {
            attempt,
            node: self.inner.node.clone(),
            times: ready.times,
            note: ready.note,
        };
        let pid = driver.pid().unwrap_or(0);
        self.inner.stale_drivers.note(pid, &self.mark(&tag));
        let handoff = AttemptHandoff {
            job: job.clone(),
            attempt,
            driver: driver.process(),
            pid,
            began,
            end: None,
            exit: None,
            timed_out: false,
            idle: false,
            places: BTreeSet::new(),
        };
        let agent = self.clone();
        let id = job.id;
        let telling = tokio::spawn(async move { agent.tell(id, prepared).await });
        let outcome = self.drive(handoff, driver, stop).await;
        // Of a try that is over the catalog takes no such news. It is for people alone, so nothing waits for it for long.
        let _ = Clock::timeout(TELL_PATIENCE, telling).await;
        outcome
    }

    /// Has a try prepared for on all of its nodes, and waits until this one is ready; or the outcome of a try that comes
    /// to its end before.
    async fn ready(
        &self,
        job: &Job,
        attempt: u32,
        began: Unix,
        stop: &mut watch::Receiver<Option<bool>>,
    ) -> Result<Ready, Outcome> {
        let stopped = || Outcome::Stopped {
            by: "its node, before it began".to_owned(),
        };
        let limit = job.spec.time_limit();
        let over = async {
            match limit {
                Some(limit) => Clock::sleep(began.after(limit).since(Unix::now())).await,
                None => std::future::pending().await,
            }
        };
        self.prepare_elsewhere(job, attempt);
        let shares = Shares::new(&self.inner.node, nodes_of(job));
        tokio::select! {
            biased;
            _ = stop.wait_for(Option::is_some) => Err(stopped()),
            () = over => Err(overdue_or(stopped(), &job.spec, Some(Overdue::Time))),
            ready = self.prepare((job.id, attempt), &job.spec, &shares) => {
                ready.map_err(|error| refused(&error))
            }
        }
    }

    /// The command that starts the driver of a try.
    fn command(
        &self,
        job: &Job,
        attempt: u32,
        program: &Path,
        environment: Option<&Path>,
    ) -> WorkerCommand {
        let reserved = self.reserved_here(job);
        let of = (job.id, attempt);
        let command = self.inner.cgroups.command(of, reserved, program);
        let command = with_env(command, &job.spec, environment);
        let command = command.env(orphan_processes::VARIABLE, self.mark(&job.tag(attempt)));
        let mut command = self.with_place(command);
        for arg in &job.spec.args {
            command = command.arg(arg);
        }
        let tries = attempt.saturating_sub(job.tries_before);
        let command = command.env(TRY_VARIABLE, tries.to_string());
        self.with_version(command, job, attempt)
    }

    /// Has the engine know what a try has reserved before its driver asks for any of it.
    pub(super) fn reserve(&self, job: &Job, attempt: u32) {
        let tag = job.tag(attempt);
        let reserved = job.attempt().into_iter().flat_map(|it| &it.reserved);
        let reserved = reserved.filter(|it| !it.allotment.is_empty());
        let reserved = reserved.map(|it| it.of_job(tag.clone())).collect();
        self.inner.system.admin().reserve(&tag, reserved);
    }

    /// Follows the driver of a try to its end.
    pub(super) async fn drive(
        &self,
        handoff: AttemptHandoff,
        mut driver: Driver,
        stop: watch::Receiver<Option<bool>>,
    ) -> Outcome {
        let (of, pid, process) = (handoff.of(), handoff.pid, handoff.driver);
        let grace = handoff.job.spec.grace();
        let began = handoff.began;
        let (job, attempt) = (handoff.job.clone(), handoff.attempt);
        let tag = job.tag(attempt);
        let system = &self.inner.system;
        self.inner.book.lock().driven.insert(of, handoff);
        let (over, is_over) = oneshot::channel::<()>();
        let started = async {
            if let Some(hosted) = &job.spec.hosts {
                // It runs when it can be found.
                tokio::select! {
                    () = system.admin().hosted(&tag, &hosted.name, process) => {}
                    _ = is_over => return,
                }
            }
            self.tell(job.id, Event::Started { attempt, pid }).await;
        };
        let overdue = self.overdue(of, &job, began);
        let exit = async {
            let following = follow_until(&mut driver, stop, grace, overdue);
            let (end, overdue) = self.beside_trial(&job, attempt, following).await;
            drop(over);
            if let Some(handoff) = self.inner.book.lock().driven.get_mut(&of) {
                handoff.exit = Some(end.clone());
                handoff.timed_out = overdue == Some(Overdue::Time);
                handoff.idle = overdue == Some(Overdue::Idle);
            }
            if *self.inner.passes.borrow() {
                std::future::pending::<()>().await;
            }
            (end, overdue)
        };
        let ((), ((exit, was_asked), overdue)) = tokio::join!(started, exit);
        let outcome = self.outcome(of, pid, &exit, was_asked).await;
        overdue_or(outcome, &job.spec, overdue)
    }

    /// Resolves when a try has to end by itself; never for one without such a bound.
    async fn overdue(&self, of: (JobId, u32), job: &Job, began: Unix) -> Overdue {
        let time = async {
            match job.spec.time_limit() {
                Some(limit) => Clock::sleep(began.after(limit).since(Unix::now())).await,
                None => std::future::pending().await,
            }
        };
        let idle = async {
            match job.spec.idle_limit() {
                Some(limit) => self.idles(of, &job.tag(of.1), limit).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = time => Overdue::Time,
            () = idle => Overdue::Idle,
        }
    }

    /// The outcome of a try whose driver is gone, once what it has left behind is, too.
    pub(super) async fn outcome(
        &self,
        of: (JobId, u32),
        pid: u32,
        exit: &ProcessExit,
        was_asked: bool,
    ) -> Outcome {
        Driver::end_group(pid).await;
        self.inner.stale_drivers.forget(pid);
        self.inner.forward.drain(of, OUTPUT_PATIENCE).await;
        let said = self.inner.forward.said(of);
        let said = said.map(|said| format!("it said last: {said}"));
        // What it could not read is the reason for what it says about that.
        let lacked = self.inner.staging.trouble(of);
        let outcome = outcome_of(exit, was_asked, lacked, said);
        match (outcome, self.inner.cgroups.killed_at(of)) {
            (Outcome::Failed { .. }, Some(limit_bytes)) => Outcome::OutOfMemory { limit_bytes },
            (outcome, _) => outcome,
        }
    }
}

/// The reason of its own for which a try has to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Overdue {
    /// Its time was over.
    Time,
    /// It did nothing for too long.
    Idle,
}

/// The outcome of a try that had to end by itself: that is the reason for its end, however its driver took
/// it.
pub(super) fn overdue_or(outcome: Outcome, spec: &JobSpec, overdue: Option<Overdue>) -> Outcome {
    match overdue {
        Some(Overdue::Time) => Outcome::TimedOut {
            limit_s: spec.time_limit_s.unwrap_or(0),
        },
        Some(Overdue::Idle) => Outcome::Idle {
            limit_s: spec.idle_limit_s.unwrap_or(0),
        },
        None => outcome,
    }
}

/// Follows a driver to its end, which it is asked for when it is overdue, if nobody has before. Returns why
/// at last where it was.
async fn follow_until(
    driver: &mut Driver,
    mut stop: watch::Receiver<Option<bool>>,
    grace: Duration,
    overdue: impl Future<Output = Overdue>,
) -> ((ProcessExit, bool), Option<Overdue>) {
    let (ask, asked) = watch::channel(*stop.borrow_and_update());
    let mut reason = None;
    let asking = async {
        let asked_before = asked.borrow().is_some();
        if !asked_before {
            tokio::select! {
                biased;
                _ = stop.wait_for(Option::is_some) => {}
                why = overdue => {
                    reason = Some(why);
                    ask.send_replace(Some(true));
                }
            }
        }
        loop {
            if let Some(in_order) = *stop.borrow_and_update() {
                ask.send_replace(Some(in_order));
            }
            if stop.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    };
    let ended = tokio::select! {
        biased;
        ended = follow(driver, asked.clone(), grace) => ended,
        () = asking => unreachable!("it asks for as long as the driver runs"),
    };
    (ended, reason)
}

/// Follows a driver to its end, and brings that about when it is asked for. Returns its exit, and
/// true if it was asked for.
async fn follow(
    driver: &mut Driver,
    mut stop: watch::Receiver<Option<bool>>,
    grace: Duration,
) -> (ProcessExit, bool) {
    let asked = tokio::select! {
        biased;
        exit = driver.ended() => return (exit, false),
        asked = stop.wait_for(Option::is_some) => asked.map_or(Some(false), |asked| *asked),
    };
    if asked == Some(true) {
        tokio::select! {
            biased;
            exit = driver.stop(grace) => return (exit, true),
            _ = stop.wait_for(|stop| *stop == Some(false)) => {}
        }
    }
    (driver.stop(Duration::ZERO).await, true)
}

pub(super) fn with_env(
    command: WorkerCommand,
    spec: &JobSpec,
    environment: Option<&Path>,
) -> WorkerCommand {
    let variables = match environment {
        Some(folder) => with_environment(spec, folder),
        None => variables(spec),
    };
    let all = variables.into_iter();
    all.fold(command.bare(), |command, (name, value)| {
        command.env(name, value)
    })
}

/// The variables of a job's processes.
pub(super) fn variables(spec: &JobSpec) -> BTreeMap<String, OsString> {
    let defaults = DEFAULTS.map(|(name, value)| (name.to_owned(), value.into()));
    let mut all = BTreeMap::from(defaults);
    for name in INHERITED {
        all.extend(std::env::var_os(name).map(|value| (name.to_owned(), value)));
    }
    let own = spec.env.iter();
    all.extend(own.map(|(name, value)| (name.clone(), value.into())));
    all
}

/// The outcome of a try. One that was told to end was stopped, also if it took that well; by whom,
/// the job's row says. One that fails lacked a part of its files, or has said why as a rule.
fn outcome_of(
    exit: &ProcessExit,
    was_asked: bool,
    lacked: Option<String>,
    said: Option<String>,
) -> Outcome {
    let with = |why: Option<String>| match why {
        Some(why) => format!("{}; {why}", exit.status),
        None => exit.status.clone(),
    };
    match exit.code {
        _ if was_asked => Outcome::Stopped {
            by: "its node".to_owned(),
        },
        Some(0) => Outcome::Succeeded,
        Some(code) => Outcome::Failed {
            code: Some(code),
            why: with(lacked.or(said)),
        },
        None => Outcome::Failed {
            code: signal_of(&exit.status),
            why: with(lacked),
        },
    }
}

/// The exit code that shells give for a process that a signal has ended: 128 and the number of the
/// signal.
fn signal_of(status: &str) -> Option<i32> {
    let number = status.strip_prefix("signal ")?.split(' ').next()?;
    number.parse::<i32>().ok().map(|number| 128 + number)
}

fn refused(error: &StagingError) -> Outcome {
    let why = error.to_string();
    if error.is_final() {
        Outcome::Refused { why }
    } else {
        Outcome::Failed { code: None, why }
    }
}
