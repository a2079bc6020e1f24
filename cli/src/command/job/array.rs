//! Arrays of jobs as people see them: by one name, as one thing.

use std::collections::BTreeMap;
use std::process::ExitCode;

use anyhow::Result;
use odeon_client::Client;
use odeon_client::types::{ArrayTask, Job};

use super::ended;
use crate::print;

/// The jobs that a word stands for: one, or those of an array.
#[derive(Debug)]
pub(crate) enum Named {
    /// A job.
    One(Box<Job>),
    /// The jobs of an array that are known, in the order of their numbers.
    Array(ArrayTask, Vec<Job>),
}

impl Named {
    /// The jobs of a number or a name; an error, where there is none.
    pub(crate) async fn find(client: &Client, word: &str) -> Result<Self> {
        let mut jobs = client.named(word).await?;
        let task = jobs.first().and_then(|job| job.array.clone());
        if let Some(task) = task.filter(|task| task.name == word) {
            return Ok(Self::Array(task, jobs));
        }
        Ok(Self::One(Box::new(match jobs.pop() {
            Some(job) => job,
            // The daemon says what is wrong with the word.
            None => client.job(word).await?,
        })))
    }
}

/// Waits until all of these are over.
pub(super) async fn wait_all(client: &Client, jobs: Vec<Job>) -> Result<Vec<Job>> {
    let mut over = vec![];
    for job in jobs {
        over.push(match job.over {
            true => job,
            false => client.wait(&job.id).await?,
        });
    }
    Ok(over)
}

/// The words of where the jobs of an array are: `3 running, 97 waiting`.
pub(crate) fn in_words(jobs: &[Job]) -> String {
    let mut states: BTreeMap<&str, usize> = BTreeMap::new();
    for job in jobs {
        *states.entry(&job.state).or_default() += 1;
    }
    let known = states.into_iter().map(|(state, n)| format!("{n} {state}"));
    known.collect::<Vec<_>>().join(", ")
}

/// Tells how the jobs of an array have ended; the exit code is the highest of theirs.
pub(super) fn end_of_all(task: &ArrayTask, jobs: &[Job]) -> ExitCode {
    print::say(format!(
        "{}: {} jobs are over: {}",
        task.name,
        jobs.len(),
        in_words(jobs)
    ));
    let others = jobs.iter().filter(|job| job.state != "succeeded");
    for job in others.clone().take(TOLD_MAX) {
        print::say(format!("{} ({}) {}", job.name, job.id, ended(job)));
    }
    let more = others.count().saturating_sub(TOLD_MAX);
    if more > 0 {
        print::say(format!("and {more} more: see `odeon jobs --all`"));
    }
    let code = jobs.iter().filter_map(|job| job.exit_code).max();
    ExitCode::from(u8::try_from(code.unwrap_or(0)).unwrap_or(1))
}

/// Jobs of an array that did not succeed of which each is told.
const TOLD_MAX: usize = 10;
