//! The catalog's tables and the one way to change them: [`Tables::apply`], a pure function of the
//! tables and a command. Every voter applies the same commands in the same order and has the same
//! tables.

use std::collections::{BTreeMap, VecDeque};

use odeon_artifacts::Digest;
use serde::{Deserialize, Serialize};

use crate::access::Role;
use crate::fact::{Command, Fact, NamespaceQuota, NodeSpec, Refusal, RefusalKind, Writer, Written};
use crate::job::{Event, Job, JobId, Outcome, State};
use crate::unix::Unix;

/// Everything that the cluster remembers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tables {
    /// Commands applied so far.
    pub version: u64,
    /// The latest moment that a command named. Clocks of voters differ; the catalog's never goes
    /// back.
    pub now: Unix,
    /// Nodes by name.
    pub nodes: BTreeMap<String, NodeRow>,
    /// Jobs by number.
    pub jobs: BTreeMap<JobId, Job>,
    /// The number of the last job.
    pub last_job: u64,
    /// Join tokens by the hash of their secret.
    pub tokens: BTreeMap<String, TokenRow>,
    /// Keys of the API by the hash of their secret.
    pub keys: BTreeMap<String, KeyRow>,
    /// Namespaces that have bounds.
    pub namespaces: BTreeMap<String, NamespaceQuota>,
    /// What happened last, for people.
    pub news: VecDeque<News>,
    /// The last commands and what became of them.
    recent: VecDeque<(u64, Result<Written, Refusal>)>,
}

/// A node as the catalog keeps it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRow {
    /// Its number among the nodes, from 1; that of a voter, if it is one.
    pub number: u64,
    /// What it says of itself.
    pub spec: NodeSpec,
    /// How it is.
    pub state: NodeState,
    /// Since when.
    pub since: Unix,
    /// Whether it gets no new jobs.
    pub drained: bool,
}

/// How a node is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub enum NodeState {
    /// It runs.
    Up,
    /// It has left in order.
    Left,
    /// It is not heard of any more.
    Lost {
        /// How that was seen.
        why: String,
    },
}

/// A join token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenRow {
    /// How many more nodes may use it.
    pub left: u32,
    /// Until when.
    pub until: Unix,
    /// Who made it.
    pub by: String,
    /// Who used it.
    pub used_by: Vec<String>,
}

/// A key of the API.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyRow {
    /// Whose it is.
    pub name: String,
    /// What it is good for.
    pub role: Role,
    /// Since when.
    pub since: Unix,
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct News {
    /// When.
    pub at: Unix,
    /// What it is about: a job or a node.
    pub about: String,
    /// In words.
    pub what: String,
}

/// Commands that are remembered, so that one which is sent again is not applied again.
const RECENT_MAX: usize = 4096;
/// News that are kept.
const NEWS_MAX: usize = 4096;
/// Jobs that are over and kept.
const ENDED_MAX: usize = 10_000;
/// Join tokens that are kept.
const TOKENS_MAX: usize = 1000;

impl Tables {
    /// Takes a command. The same command twice has the same answer and no second effect.
    ///
    /// # Errors
    /// Why it was not taken; then nothing but [`Tables::version`] has changed.
    pub fn apply(&mut self, command: Command) -> Result<Written, Refusal> {
        self.version += 1;
        if let Some((_, outcome)) = self.recent.iter().rev().find(|known| known.0 == command.id) {
            return outcome.clone();
        }
        self.now = self.now.max(command.at);
        let outcome = self.take(&command.writer, command.fact);
        self.recent.push_back((command.id, outcome.clone()));
        if self.recent.len() > RECENT_MAX {
            self.recent.pop_front();
        }
        outcome
    }

    /// Jobs that are not over.
    pub fn living_jobs(&self) -> impl Iterator<Item = &Job> {
        self.jobs.values().filter(|job| !job.is_over())
    }

    /// Nodes that run.
    pub fn living_nodes(&self) -> impl Iterator<Item = &NodeRow> {
        let nodes = self.nodes.values();
        nodes.filter(|node| node.state == NodeState::Up)
    }

    /// The bundles that must be kept: of jobs that are not over, and of those that ended last and
    /// may be run again.
    pub fn bundles(&self) -> impl Iterator<Item = Digest> + '_ {
        let living = self.living_jobs();
        let ended = self.jobs.values().rev().filter(|job| job.is_over());
        let kept = living.chain(ended.take(BUNDLES_KEPT));
        kept.map(|job| job.spec.bundle)
    }

    fn take(&mut self, writer: &Writer, fact: Fact) -> Result<Written, Refusal> {
        match fact {
            Fact::NodeUp(spec) => {
                only(writer, &Writer::Node(spec.name.clone()))?;
                self.node_up(spec);
            }
            Fact::NodeLeft { node, boot } => {
                only(writer, &Writer::Node(node.clone()))?;
                self.node_gone(&node, boot, NodeState::Left)?;
            }
            Fact::NodeLost { node, boot, why } => {
                only(writer, &Writer::Leader)?;
                self.node_gone(&node, boot, NodeState::Lost { why })?;
            }
            Fact::NodeDrained { node, drained, by } => {
                only(writer, &Writer::Leader)?;
                self.node(&node)?.drained = drained;
                let what = if drained {
                    format!("drained by {by}: it gets no new jobs")
                } else {
                    format!("may get jobs again, by {by}")
                };
                self.note(node, what);
            }
            Fact::NodeForgotten { node } => {
                only(writer, &Writer::Leader)?;
                if self.node(&node)?.state == NodeState::Up {
                    let why = format!("node `{node}` is up: stop it first");
                    return Err(Refusal::new(RefusalKind::Conflict, why));
                }
                self.nodes.remove(&node);
            }
            Fact::TokenMade {
                id,
                uses,
                until,
                by,
            } => {
                only(writer, &Writer::Leader)?;
                let now = self.now;
                self.tokens
                    .retain(|_, token| token.left > 0 && token.until > now);
                if self.tokens.len() >= TOKENS_MAX {
                    let why = format!("there are {TOKENS_MAX} join tokens: let some expire first");
                    return Err(Refusal::new(RefusalKind::Conflict, why));
                }
                let token = TokenRow {
                    left: uses,
                    until,
                    by,
                    used_by: vec![],
                };
                self.tokens.insert(id, token);
            }
            Fact::TokenUsed { id, node } => {
                only(writer, &Writer::Leader)?;
                self.token_used(&id, node)?;
            }
            Fact::KeyMade { id, name, role, by } => {
                only(writer, &Writer::Leader)?;
                if self.keys.values().any(|key| key.name == name) {
                    let why = format!("there is a key named `{name}`: revoke it first");
                    return Err(Refusal::new(RefusalKind::Conflict, why));
                }
                let since = self.now;
                self.note(
                    "keys".to_owned(),
                    format!("{by} made the key `{name}` ({role})"),
                );
                self.keys.insert(id, KeyRow { name, role, since });
            }
            Fact::KeyRevoked { name, by } => {
                only(writer, &Writer::Leader)?;
                let before = self.keys.len();
                self.keys.retain(|_, key| key.name != name);
                if self.keys.len() == before {
                    let why = format!("there is no key named `{name}`");
                    return Err(Refusal::new(RefusalKind::Unknown, why));
                }
                self.note("keys".to_owned(), format!("{by} revoked the key `{name}`"));
            }
            Fact::NamespaceSet { name, quota, by } => {
                only(writer, &Writer::Leader)?;
                self.note(format!("namespace {name}"), format!("bounds set by {by}"));
                match quota {
                    Some(quota) => drop(self.namespaces.insert(name, quota)),
                    None => drop(self.namespaces.remove(&name)),
                }
            }
            Fact::JobSubmitted { spec, by } => {
                only(writer, &Writer::Leader)?;
                let refused = |error| Refusal::new(RefusalKind::Invalid, error);
                spec.check().map_err(refused)?;
                return Ok(Written::Job(self.submit(spec, by)));
            }
            Fact::Job { job, event } => self.job_event(writer, job, event)?,
        }
        Ok(Written::Done)
    }

    // ---- nodes ----

    fn node(&mut self, name: &str) -> Result<&mut NodeRow, Refusal> {
        self.nodes.get_mut(name).ok_or_else(|| {
            let why = format!("there is no node `{name}`");
            Refusal::new(RefusalKind::Unknown, why)
        })
    }

    fn node_up(&mut self, spec: NodeSpec) {
        let (name, boot) = (spec.name.clone(), spec.boot);
        let known = self.nodes.get(&name);
        if known.is_some_and(|row| row.spec.boot == boot && row.state == NodeState::Up) {
            // It says so again, with what has changed.
            if let Some(row) = self.nodes.get_mut(&name) {
                row.spec = spec;
            }
            return;
        }
        let back = known.is_some_and(|row| row.spec.boot == boot);
        let last = self.nodes.values().map(|row| row.number).max();
        let row = NodeRow {
            number: known.map_or(last.unwrap_or(0) + 1, |row| row.number),
            drained: known.is_some_and(|row| row.drained),
            spec,
            state: NodeState::Up,
            since: self.now,
        };
        self.nodes.insert(name.clone(), row);
        if !back {
            let why = "it was started anew";
            self.end_attempts(&name, Some(boot), why);
        }
        let what = if back { "is back" } else { "is up" };
        self.note(name, what.to_owned());
    }

    /// A life of a node is over, and with it the tries that it ran.
    fn node_gone(&mut self, name: &str, boot: u64, state: NodeState) -> Result<(), Refusal> {
        let now = self.now;
        let row = self.node(name)?;
        if row.spec.boot != boot || row.state != NodeState::Up {
            let why = format!("it is about a life of node `{name}` that is over");
            return Err(Refusal::new(RefusalKind::Conflict, why));
        }
        let what = match &state {
            NodeState::Lost { why } => format!("is lost: {why}"),
            _ => "has left".to_owned(),
        };
        row.state = state;
        row.since = now;
        self.end_attempts(name, None, &what);
        self.note(name.to_owned(), what);
        Ok(())
    }

    /// The tries that a node ran are over, except those of the life `alive`.
    fn end_attempts(&mut self, node: &str, alive: Option<u64>, why: &str) {
        let here = self.living_jobs().filter_map(|job| {
            let attempt = job.attempt().filter(|attempt| attempt.node == node)?;
            (Some(attempt.boot) != alive).then_some((job.id, attempt.number))
        });
        let here: Vec<(JobId, u32)> = here.collect();
        for (job, attempt) in here {
            let outcome = Outcome::Lost {
                node: node.to_owned(),
                why: why.to_owned(),
            };
            self.happened(job, Event::Over { attempt, outcome })
                .expect("it is about the present try");
        }
    }

    fn token_used(&mut self, id: &str, node: String) -> Result<(), Refusal> {
        let now = self.now;
        let token = self.tokens.get_mut(id).ok_or_else(|| {
            let why = "there is no such join token: make one with `odeon token`";
            Refusal::new(RefusalKind::Unknown, why)
        })?;
        if token.until <= now {
            let why = format!(
                "the join token has expired at {}: make a new one with `odeon token`",
                token.until
            );
            return Err(Refusal::new(RefusalKind::Conflict, why));
        }
        if token.left == 0 {
            let why = format!(
                "the join token is used up, by {}: make a new one with `odeon token`",
                token.used_by.join(", ")
            );
            return Err(Refusal::new(RefusalKind::Conflict, why));
        }
        if let Some(known) = self.nodes.get(&node)
            && known.state == NodeState::Up
        {
            let why = format!(
                "there is a node `{node}`, at {}: give the new one another name (--name)",
                known.spec.address
            );
            return Err(Refusal::new(RefusalKind::Conflict, why));
        }
        token.left -= 1;
        token.used_by.push(node);
        Ok(())
    }

    // ---- jobs ----

    fn submit(&mut self, spec: crate::job::JobSpec, by: String) -> JobId {
        self.last_job += 1;
        let id = JobId(self.last_job);
        self.note(id.to_string(), format!("`{}` submitted by {by}", spec.name));
        self.jobs.insert(id, Job::new(id, spec, by, self.now));
        let ended = self.jobs.values().filter(|job| job.is_over());
        if ended.clone().count() > ENDED_MAX
            && let Some(oldest) = ended.map(|job| job.id).next()
        {
            self.jobs.remove(&oldest);
        }
        id
    }

    fn job_event(&mut self, writer: &Writer, id: JobId, event: Event) -> Result<(), Refusal> {
        let Some(job) = self.jobs.get(&id) else {
            let why = format!("there is no job {id}");
            return Err(Refusal::new(RefusalKind::Unknown, why));
        };
        let owner = match &event {
            Event::Started { .. } | Event::Over { .. } => {
                let attempt = job.attempt();
                attempt.map(|attempt| Writer::Node(attempt.node.clone()))
            }
            _ => Some(Writer::Leader),
        };
        // About a try that is over the job itself says more.
        if let Some(owner) = owner {
            only(writer, &owner)?;
        }
        if let Event::Assigned { node, boot } = &event {
            let fits = |row: &NodeRow| row.spec.boot == *boot && row.state == NodeState::Up;
            if !self.nodes.get(node).is_some_and(fits) {
                let why = format!("node `{node}` is not up any more");
                return Err(Refusal::new(RefusalKind::Conflict, why));
            }
        }
        self.happened(id, event)
    }

    fn happened(&mut self, id: JobId, event: Event) -> Result<(), Refusal> {
        let now = self.now;
        let Some(job) = self.jobs.get_mut(&id) else {
            return Ok(());
        };
        let before = job.word();
        let conflict = |error| Refusal::new(RefusalKind::Conflict, error);
        job.apply(event, now).map_err(conflict)?;
        let what = match &job.state {
            State::Waiting { why } => format!("waits: {why}"),
            State::Staging { attempt } => {
                format!("try {} goes to node `{}`", attempt.number, attempt.node)
            }
            State::Running { attempt, .. } => format!("runs on node `{}`", attempt.node),
            State::Stopping { by, .. } => format!("is stopped by {by}"),
            State::Ended { outcome, .. } => outcome.to_string(),
        };
        if job.word() != before {
            self.note(id.to_string(), what);
        }
        Ok(())
    }

    fn note(&mut self, about: String, what: String) {
        let at = self.now;
        self.news.push_back(News { at, about, what });
        if self.news.len() > NEWS_MAX {
            self.news.pop_front();
        }
    }
}

/// Bundles of jobs that are over which are kept, so that `retry` finds them.
const BUNDLES_KEPT: usize = 100;

fn only(writer: &Writer, owner: &Writer) -> Result<(), Refusal> {
    if writer == owner {
        return Ok(());
    }
    let why = format!("that is for {owner} to say, not for {writer}");
    Err(Refusal::new(RefusalKind::NotYours, why))
}

#[cfg(test)]
mod tests;
