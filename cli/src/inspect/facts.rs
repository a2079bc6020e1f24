//! Facts about nodes and jobs beside what is seen of them: what a cluster's catalog says.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use odeon::System;
use odeon_client::inspect as told;
use odeon_cluster::Daemon;
use odeon_cluster::job::JobId;
use odeon_cluster::logs::archive::Archive;
use odeon_cluster::logs::{Begin, Cursor};
use odeon_observe::Observer;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::noted::Noted;
use super::prints::Prints;
use super::shown;

/// Where it comes from.
#[derive(Clone, Debug)]
pub(crate) enum Facts {
    /// There is no catalog: one program, on one machine, and what its workers print.
    Alone(Prints),
    /// A daemon's.
    Cluster(Arc<Daemon>),
    /// The facts that a recording holds, up to where it is.
    Noted(Arc<Mutex<Noted>>),
}

/// The entry of a node in the catalog.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct NodeFacts {
    pub(super) address: String,
    pub(super) version: String,
    pub(super) leads: bool,
    pub(super) votes: bool,
    pub(super) drained: bool,
}

/// Lines, and where those begin that follow.
type Printed = (Vec<told::LogLine>, Cursor);

impl Facts {
    /// By the names of the nodes.
    pub(super) fn nodes(&self) -> BTreeMap<String, NodeFacts> {
        let daemon = match self {
            Self::Alone(_) => return BTreeMap::new(),
            Self::Cluster(daemon) => daemon,
            Self::Noted(noted) => return noted.lock().nodes.clone(),
        };
        let catalog = daemon.catalog();
        let (leader, voters) = (catalog.leader(), catalog.voters());
        let rows = catalog.nodes().into_iter();
        let fact = rows.map(|row| {
            let name = row.spec.name.clone();
            let fact = NodeFacts {
                address: row.spec.address.clone(),
                version: row.spec.release.clone(),
                leads: leader.as_ref() == Some(&name),
                votes: voters.contains(&name),
                drained: row.drained,
            };
            (name, fact)
        });
        fact.collect()
    }

    /// Jobs, the newest first.
    pub(super) fn jobs(&self) -> Vec<told::Job> {
        match self {
            Self::Alone(_) => vec![],
            Self::Cluster(daemon) => crate::api::jobs_seen(daemon),
            Self::Noted(noted) => noted.lock().jobs.clone(),
        }
    }

    /// The lines that a job has printed from there on, and where those end; nothing where no lines
    /// are kept.
    pub(super) async fn lines_after(&self, job: &str, from: &Cursor) -> Option<Printed> {
        let Self::Cluster(daemon) = self else {
            return None;
        };
        let id = job.strip_prefix('j')?.parse().ok().map(JobId)?;
        let read = daemon.archive().read(id, from).await.ok()?.merged;
        let lines = read.lines.into_iter().map(shown::line).collect();
        Some((lines, read.next))
    }

    /// The last lines that were printed; nothing where none are kept.
    pub(super) async fn logs(&self, of: &LinesOf<'_>) -> Option<told::Logs> {
        let daemon = match self {
            Self::Alone(prints) => {
                let mut last = Last::new(of);
                last.add(prints.after(0).0);
                return Some(last.logs());
            }
            Self::Cluster(daemon) => daemon,
            Self::Noted(noted) => return noted.lock().logs(of),
        };
        let id = of.job.strip_prefix('j')?.parse().ok().map(JobId)?;
        let archive = daemon.archive();
        let mut begins = archive.logs().begins(id).ok()?;
        begins.retain(|begin| (begin.after.0 as f64) < of.before.at);
        // Twice as far back each time, until there are enough.
        let nearest = (0..).map(|power| (1 << power) - 1);
        let nearest = nearest.map_while(|at: usize| begins.get(at));
        for begin in nearest {
            let last = last_from(archive, id, begin, of).await?;
            if last.more {
                return Some(last.logs());
            }
        }
        let last = last_from(archive, id, &Begin::default(), of).await?;
        Some(last.logs())
    }

    /// Looks at what these are facts of, with an observer of its own, until the future is dropped.
    pub(super) async fn follow(&self, observer: &Observer, system: &System) {
        match self {
            Self::Cluster(daemon) => daemon.follow(observer.clone()).await,
            _ => observer.follow(system).await,
        }
    }

    pub(super) fn has_jobs(&self) -> bool {
        match self {
            Self::Alone(_) => false,
            Self::Cluster(_) => true,
            Self::Noted(noted) => noted.lock().has_jobs,
        }
    }
}

/// The last lines of a job of those that are read from there on.
async fn last_from<'a>(
    archive: &Archive,
    job: JobId,
    begin: &Begin,
    of: &'a LinesOf<'a>,
) -> Option<Last<'a>> {
    let (mut cursor, mut last) = (begin.cursor.clone(), Last::new(of));
    let after = begin.after.0 as f64;
    loop {
        let read = archive.read(job, &cursor).await.ok()?.merged;
        cursor = read.next;
        let lines: Vec<_> = read.lines.into_iter().map(shown::line).collect();
        // They come in the order of time.
        let is_over = lines.last().is_none_or(|line| line.at > of.before.at);
        // Of earlier ones not all are read.
        last.add(lines.into_iter().filter(|line| line.at > after));
        if is_over {
            return Some(last);
        }
    }
}

/// Which lines are asked for.
pub(super) struct LinesOf<'a> {
    /// Those of this job; all of a program that is alone.
    pub(super) job: &'a str,
    /// Only the lines of this process of it, where one is chosen: its number, and its node where
    /// that is needed to tell it from others.
    pub(super) process: Option<(&'a str, &'a str)>,
    /// Those before this one.
    pub(super) before: Before,
    /// No more than these.
    pub(super) limit: usize,
}

/// A line: how many of its moment come before it. Many lines may have one moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Before {
    at: f64,
    number: u64,
}

impl Before {
    /// Behind all lines.
    pub(super) const END: Self = Self {
        at: f64::INFINITY,
        number: 0,
    };
}

impl fmt::Display for Before {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.at, self.number)
    }
}

impl FromStr for Before {
    type Err = String;

    /// A moment in milliseconds since 1970, or what an answer has said.
    fn from_str(text: &str) -> Result<Self, String> {
        let (at, number) = text.split_once(':').unwrap_or((text, "0"));
        let read = at.parse().ok().zip(number.parse().ok());
        let (at, number) = read.ok_or_else(|| {
            format!(
                "before={text} is no place in a log: take `earlier` of an answer, or milliseconds \
                 since 1970"
            )
        })?;
        Ok(Self { at, number })
    }
}

/// The last lines that are asked for, of those that come by.
pub(super) struct Last<'a> {
    of: &'a LinesOf<'a>,
    /// Each with how many of its moment come before it.
    lines: VecDeque<(u64, told::LogLine)>,
    /// The present moment, and how many lines it has had.
    moment: (f64, u64),
    more: bool,
}

impl<'a> Last<'a> {
    pub(super) const fn new(of: &'a LinesOf<'a>) -> Self {
        Self {
            of,
            lines: VecDeque::new(),
            moment: (f64::NEG_INFINITY, 0),
            more: false,
        }
    }

    /// In their order.
    pub(super) fn add(&mut self, lines: impl IntoIterator<Item = told::LogLine>) {
        let of = self.of;
        let by = |line: &told::LogLine| {
            of.process.is_none_or(|(process, node)| {
                let here = line.node.is_empty() || line.node == node;
                line.process == process && here
            })
        };
        for line in lines.into_iter().filter(by) {
            let number = match line.at <= self.moment.0 {
                true => self.moment.1 + 1,
                false => 0,
            };
            self.moment = (line.at, number);
            let earlier =
                line.at < of.before.at || line.at == of.before.at && number < of.before.number;
            if !earlier {
                continue;
            }
            if self.lines.len() == of.limit {
                self.lines.pop_front();
                self.more = true;
            }
            self.lines.push_back((number, line));
        }
    }

    pub(super) fn logs(self) -> told::Logs {
        let first = self.lines.front().filter(|_| self.more);
        let earlier = first.map(|(number, line)| Before {
            at: line.at,
            number: *number,
        });
        told::Logs {
            earlier: earlier.map(|it| it.to_string()),
            lines: self.lines.into_iter().map(|(_, line)| line).collect(),
            more: self.more,
            none_kept: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Many lines of one moment are on some page each, and on one alone.
    #[test]
    fn pages_of_a_log_have_each_line_once() {
        let line = |n: u32| told::LogLine {
            at: f64::from(n / 7),
            node: "n".to_owned(),
            process: (n % 2).to_string(),
            stream: "out".to_owned(),
            text: n.to_string(),
        };
        for process in [None, Some(("1", "n"))] {
            let (mut all, mut before) = (vec![], Before::END);
            loop {
                let of = LinesOf {
                    job: "",
                    process,
                    before,
                    limit: 4,
                };
                let mut last = Last::new(&of);
                last.add((0..40).map(line));
                let logs = last.logs();
                let mut page: Vec<_> = logs.lines.into_iter().map(|it| it.text).collect();
                page.append(&mut all);
                all = page;
                match logs.earlier {
                    Some(earlier) => before = earlier.parse().unwrap(),
                    None => break,
                }
            }
            let own = (0..40).filter(|n| process.is_none() || n % 2 == 1);
            assert_eq!(all, own.map(|n| n.to_string()).collect::<Vec<_>>());
        }
        assert!("yesterday".parse::<Before>().is_err());
    }
}
