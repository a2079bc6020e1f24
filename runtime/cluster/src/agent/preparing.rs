//! A try before its processes: its files on each node that it is to run on, all at once, and how long that took.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use odeon::{Clock, Timestamp};
use odeon_artifacts::Shares;

use super::Agent;
use super::actor::{ORDER_PATIENCE, PrepareTry, Prepared, reach};
use crate::job::{Event, Job, JobId, JobSpec};
use crate::json::Json;
use crate::staging::StagingError;
use crate::startup::{StageTimes, StartStage};

/// A try whose files are here.
#[derive(Debug)]
pub(super) struct Ready {
    pub(super) program: PathBuf,
    /// Where it works.
    pub(super) folder: PathBuf,
    pub(super) environment: Option<PathBuf>,
    pub(super) times: StageTimes,
    /// Set where the program is read while it comes.
    pub(super) is_mounted: bool,
    /// What is worth telling of it.
    pub(super) note: Option<String>,
}

/// The nodes on which the present try of a job has reserved something.
pub(super) fn nodes_of(job: &Job) -> BTreeSet<String> {
    let reserved = job.attempt().into_iter().flat_map(|it| &it.reserved);
    reserved.map(|it| it.node.clone()).collect()
}

/// Milliseconds since a moment.
pub(super) fn ms_since(began: Timestamp) -> u64 {
    millis(Clock::now().since(began))
}

pub(super) const fn millis(time: Duration) -> u64 {
    time.as_millis() as u64
}

impl Agent {
    /// Has everything here that processes of a try need.
    pub(super) async fn prepare(
        &self,
        (job, attempt): (JobId, u32),
        spec: &JobSpec,
        shares: &Shares,
    ) -> Result<Ready, StagingError> {
        let staging = &self.inner.staging;
        let began = Clock::now();
        let staged = staging.bring(spec.bundle, (job, attempt), shares).await?;
        let folder = staging.folder_for(job, attempt, &staged, &spec.links)?;
        let mut times = StageTimes::from([(StartStage::Files, ms_since(began))]);
        let began = Clock::now();
        let environment = self
            .environment((job, attempt), spec, &folder, shares)
            .await?;
        if environment.is_some() {
            times.insert(StartStage::Environment, ms_since(began));
        }
        let (environment, note) = environment.map(|it| (it.folder, it.note)).unzip();
        Ok(Ready {
            program: staged.program,
            folder,
            environment,
            times,
            is_mounted: staged.is_mounted,
            note: note.flatten(),
        })
    }

    /// Has the other nodes on which a try has reserved something prepare for it meanwhile: they would when its first
    /// process is to start there, one node after the driver's.
    pub(super) fn prepare_elsewhere(&self, job: &Job, attempt: u32) {
        let all = nodes_of(job);
        for node in all.iter().filter(|it| **it != self.inner.node) {
            let (agent, node, job) = (self.clone(), node.clone(), job.id.0);
            let nodes = Vec::from_iter(all.clone());
            tokio::spawn(async move {
                let told = async {
                    let there = reach(&agent.inner.system, &node).await?;
                    let asked = there.ask(PrepareTry {
                        job,
                        attempt,
                        nodes,
                    });
                    let asked = asked.timeout(ORDER_PATIENCE).await;
                    asked.map_err(|error| error.to_string())
                };
                // It prepares when its first process is to start, at the latest.
                if let Err(why) = told.await {
                    tracing::debug!(node, why, "a node was not told to prepare");
                }
            });
        }
    }

    /// Prepares for a try whose driver runs on another node.
    pub(super) async fn prepare_here(
        &self,
        of: (JobId, u32),
        nodes: Vec<String>,
    ) -> Result<(), String> {
        let joined = self.join_try(of).await?;
        let spec = self.spec_of(of).await?;
        let ready = self
            .prepare(of, &spec, &Shares::new(&self.inner.node, nodes))
            .await;
        let ready = ready.map_err(|error| error.to_string())?;
        self.tell_driver(joined, of, ready.times, ready.note);
        Ok(())
    }

    /// Tells the node of a try's driver, where this node has just joined it, how long preparing took here.
    pub(super) fn tell_driver(
        &self,
        joined: Option<String>,
        of: (JobId, u32),
        times: StageTimes,
        note: Option<String>,
    ) {
        let Some(driver) = joined else { return };
        let agent = self.clone();
        tokio::spawn(async move {
            let told = async {
                let there = reach(&agent.inner.system, &driver).await?;
                let prepared = Prepared {
                    job: of.0.0,
                    attempt: of.1,
                    node: agent.inner.node.clone(),
                    times: Json(times),
                    note,
                };
                let asked = there.ask(prepared).timeout(ORDER_PATIENCE).await;
                asked.map_err(|error| error.to_string())
            };
            // It is for people alone.
            if let Err(why) = told.await {
                tracing::debug!(job = %of.0, why, "how long a start took here is not told");
            }
        });
    }

    /// Another node has prepared for a try whose driver runs here.
    pub(super) fn prepared(
        &self,
        of: (JobId, u32),
        node: String,
        times: StageTimes,
        note: Option<String>,
    ) {
        if !self.inner.book.lock().places.contains_key(&of) {
            return;
        }
        let agent = self.clone();
        tokio::spawn(async move {
            let event = Event::Prepared {
                attempt: of.1,
                node,
                times,
                note,
            };
            agent.tell(of.0, event).await;
        });
    }
}
