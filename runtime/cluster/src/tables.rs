//! The catalog's tables and the one way to change them: [`Tables::apply`], a pure function of the
//! tables and a command. Every voter applies the same commands in the same order and has the same
//! tables.

mod arrays;
mod bans;
mod environments;
mod jobs;
mod reservations;
mod room;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use odeon_artifacts::Digest;
use serde::{Deserialize, Serialize};

pub use self::environments::{EnvironmentRow, EnvironmentState};
use crate::access::KeyRole;
use crate::fact::{
    Command, Fact, NamespaceQuota, NodeSpec, Refusal, RefusalKind, Writer, Written, is_zero,
};
use crate::job::{Event, Job, JobId, Outcome, State};
use crate::unix::Unix;

pub(crate) use jobs::quota_full;
pub(crate) use room::devices_of;

pub use bans::{CHECKED, LET_BACK, NodeBan, REFUSED};

/// Everything that the cluster remembers. A table that an older release has not written is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Tables {
    /// Commands applied so far.
    pub version: u64,
    /// The latest moment that a command named. Clocks of voters differ; the catalog's never goes
    /// back.
    pub now: Unix,
    /// Nodes by name.
    pub nodes: BTreeMap<String, NodeRow>,
    /// Number of changes of what every node knows: the nodes, and the namespaces.
    pub nodes_version: u64,
    /// Which of these changes was the last to take a node away.
    pub forgot_version: u64,
    /// The number of the last new node: that of one which was forgotten is not given again, for it
    /// may have voted.
    pub last_node: u64,
    /// Jobs by number.
    pub jobs: BTreeMap<JobId, Job>,
    /// The number of the last job.
    pub last_job: u64,
    /// The jobs that host detached actors and are not over, by the names of these: `namespace/name`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub detached: BTreeMap<String, JobId>,
    /// The jobs that wait for others to succeed.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub later: BTreeSet<JobId>,
    /// Join tokens by the hash of their secret.
    pub tokens: BTreeMap<String, TokenRow>,
    /// Keys of the API by the hash of their secret.
    pub keys: BTreeMap<String, KeyRow>,
    /// Number of nodes that shall vote; none means one.
    pub voters_wanted: u32,
    /// Certificates of nodes that were forgotten, by their fingerprints.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub revoked: BTreeSet<String>,
    /// Namespaces that have bounds.
    pub namespaces: BTreeMap<String, NamespaceQuota>,
    /// Environments of jobs, by their keys.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub environments: BTreeMap<Digest, EnvironmentRow>,
    /// The last events, for people.
    pub news: VecDeque<CatalogNews>,
    /// The last commands and what became of them.
    recent: VecDeque<(u64, Result<Written, Refusal>)>,
}

/// A node as the catalog keeps it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRow {
    /// Its number among the nodes, from 1; that of a voter, if it is one.
    pub number: u64,
    /// The description that it gives of itself.
    pub spec: NodeSpec,
    /// Its state.
    pub state: NodeState,
    /// Since when.
    pub since: Unix,
    /// Set where it gets no new jobs.
    #[serde(default)]
    pub drained: bool,
    /// Set where nothing is placed on it until a person or a passed check lets it back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<NodeBan>,
    /// Times that it was refused.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub refusals: u32,
    /// Refusals after which a check found nothing wrong with it.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub over_refusals: u32,
    /// When it was let back last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub let_back: Option<Unix>,
    /// Which change of the nodes was the last of this row.
    #[serde(default)]
    pub version: u64,
}

impl NodeRow {
    /// Returns true where it runs.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.state == NodeState::Up
    }

    /// Returns true where it may get jobs, as far as people and checks have a say.
    #[must_use]
    pub const fn takes_jobs(&self) -> bool {
        !self.drained && self.refused.is_none()
    }
}

/// The state of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub enum NodeState {
    /// It runs.
    Up,
    /// It has left in order.
    Left,
    /// It is not heard of any more.
    Lost {
        /// The sign by which that was seen.
        why: String,
    },
}

/// A join token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenRow {
    /// Number of nodes that may still use it.
    pub left: u32,
    /// Until when.
    pub until: Unix,
    /// The name of whoever made it.
    pub by: String,
    /// The nodes that used it.
    pub used_by: Vec<String>,
}

/// A key of the API.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyRow {
    /// Whose it is.
    pub name: String,
    /// The rights that it gives.
    pub role: KeyRole,
    /// Since when.
    pub since: Unix,
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CatalogNews {
    /// When.
    pub at: Unix,
    /// The subject: a job or a node.
    pub about: String,
    /// In words.
    pub what: String,
}

/// The name of the key of whoever has a node's folder.
#[must_use]
pub fn owner_key(node: &str) -> String {
    format!("owner@{node}")
}

/// Commands that are remembered, so that one which is sent again is not applied again.
const RECENT_MAX: usize = 4096;
/// News that are kept.
const NEWS_MAX: usize = 4096;
/// Jobs that are over and kept.
const ENDED_MAX: usize = 10_000;
/// Most voters: each write waits for more than half of them.
const VOTERS_MAX: u32 = 9;
/// Join tokens that are kept.
const TOKENS_MAX: usize = 1000;

impl Tables {
    /// Takes a command. The same command twice has the same answer and no second effect.
    ///
    /// # Errors
    /// Why it was not taken; then nothing has changed but [`Tables::version`], [`Tables::now`] and
    /// the memory of the last commands.
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

    /// The bundles that must be kept: of jobs that are not over and of those that ended last, which may be run again,
    /// with all of their versions, and snapshots of environments.
    pub fn bundles(&self) -> impl Iterator<Item = Digest> + '_ {
        let mut ended: Vec<(Unix, &Job)> = self.ended_jobs().collect();
        ended.sort_by_key(|(at, job)| std::cmp::Reverse((*at, job.id)));
        let ended = ended.into_iter().map(|(_, job)| job).take(BUNDLES_KEPT);
        let jobs: Vec<&Job> = self.living_jobs().chain(ended).collect();
        let bundles = jobs.into_iter().flat_map(|job| {
            let versions = job.versions.bundles();
            std::iter::once(job.spec.bundle).chain(versions)
        });
        bundles.chain(self.snapshots())
    }

    /// Returns true where a try is over for certain: then it is in all later tables too, so it does
    /// not matter how old these are. A try that has not begun yet, as far as these know, is not
    /// over.
    #[must_use]
    pub fn is_over(&self, job: JobId, attempt: u32) -> bool {
        match self.jobs.get(&job) {
            Some(row) => {
                let present = row.attempt().map(|present| present.number);
                row.tries >= attempt && present != Some(attempt)
            }
            // It was over, and is forgotten.
            None => job.0 <= self.last_job,
        }
    }

    fn ended_jobs(&self) -> impl Iterator<Item = (Unix, &Job)> {
        self.jobs.values().filter_map(|job| match job.state {
            State::Ended { at, .. } => Some((at, job)),
            _ => None,
        })
    }

    fn take(&mut self, writer: &Writer, fact: Fact) -> Result<Written, Refusal> {
        match fact {
            Fact::NodeUp(spec) => {
                only(writer, &Writer::Node(spec.name.clone()))?;
                self.node_up(spec)?;
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
                self.changed(&node);
                let what = if drained {
                    format!("drained by {by}: it gets no new jobs")
                } else {
                    format!("may get jobs again, by {by}")
                };
                self.note(node, what);
            }
            Fact::NodeRefused { node, why, by } => {
                only(writer, &Writer::Leader)?;
                self.refuse_node(node, &why, by)?;
            }
            Fact::NodeChecked {
                node,
                found,
                by,
                of,
            } => {
                only(writer, &Writer::Leader)?;
                self.checked(node, found, &by, of)?;
            }
            Fact::NodeLetBack {
                node,
                why,
                by,
                passed,
                of,
            } => {
                only(writer, &Writer::Leader)?;
                self.still_of(&node, of)?;
                self.let_back(node, &why, &by, passed)?;
            }
            Fact::NodeForgotten { node } => {
                only(writer, &Writer::Leader)?;
                if self.node(&node)?.state == NodeState::Up {
                    let why = format!("node `{node}` is up: stop it first");
                    return Err(Refusal::new(RefusalKind::Conflict, why));
                }
                if let Some(row) = self.nodes.remove(&node) {
                    self.revoked.extend(row.spec.certificate);
                }
                // The daemon of its folder has made it for the folder's owner.
                let key = owner_key(&node);
                self.keys.retain(|_, row| row.name != key);
                self.note(
                    node,
                    "forgotten, its certificate and key revoked".to_owned(),
                );
                self.nodes_version += 1;
                self.forgot_version = self.nodes_version;
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
            Fact::VotersSet { count, by } => {
                only(writer, &Writer::Leader)?;
                if count.is_multiple_of(2) || count > VOTERS_MAX {
                    let why = format!(
                        "{count} voters: an odd number up to {VOTERS_MAX} is possible, since an even \
                         one bears no more losses than the odd one below it"
                    );
                    return Err(Refusal::new(RefusalKind::Invalid, why));
                }
                self.voters_wanted = count;
                self.note("voters".to_owned(), format!("{count} wanted by {by}"));
            }
            Fact::NamespaceSet { name, quota, by } => {
                only(writer, &Writer::Leader)?;
                self.note(format!("namespace {name}"), format!("bounds set by {by}"));
                self.nodes_version += 1;
                match quota {
                    Some(quota) => drop(self.namespaces.insert(name, quota)),
                    None => drop(self.namespaces.remove(&name)),
                }
            }
            Fact::JobSubmitted { spec, by } => {
                only(writer, &Writer::Leader)?;
                let refused = |error| Refusal::new(RefusalKind::Invalid, error);
                spec.check().map_err(refused)?;
                return Ok(Written::Job(self.add_jobs(spec, by)?));
            }
            Fact::Array { first, act, by } => {
                only(writer, &Writer::Leader)?;
                self.array_act(first, act, &by)?;
            }
            Fact::EnvironmentClaimed {
                key,
                node,
                boot,
                claim,
                lost,
            } => {
                only(writer, &Writer::Node(node.clone()))?;
                self.claim_environment(key, (node, boot), claim, lost)?;
            }
            Fact::EnvironmentSettled {
                key,
                node,
                claim,
                bundle,
                why,
            } => {
                only(writer, &Writer::Node(node.clone()))?;
                self.settle_environment(key, node, claim, (bundle, why))?;
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

    fn changed(&mut self, name: &str) {
        if let Some(row) = self.nodes.get_mut(name) {
            self.nodes_version += 1;
            row.version = self.nodes_version;
        }
    }

    fn node_up(&mut self, spec: NodeSpec) -> Result<(), Refusal> {
        let (name, boot) = (spec.name.clone(), spec.boot);
        let low_before = self
            .nodes
            .get(&name)
            .and_then(|row| row.spec.low_disk.clone());
        let low = spec
            .low_disk
            .clone()
            .filter(|why| Some(why) != low_before.as_ref());
        let certificate = spec.certificate.as_ref();
        if certificate.is_some_and(|it| self.revoked.contains(it)) {
            let why = format!("node `{name}` was forgotten: let it join with a new token");
            return Err(Refusal::new(RefusalKind::Conflict, why));
        }
        let known = self.nodes.get_mut(&name);
        let present = known.as_ref().map(|row| row.spec.boot);
        let back = present == Some(boot);
        let has_the_same = known.as_ref().is_some_and(|row| {
            let (was, is) = (&row.spec, &spec);
            (was.cpus, was.memory, &was.inventory) == (is.cpus, is.memory, &is.inventory)
        });
        let (mut number, mut drained) = (None, false);
        let (mut refused, mut refusals, mut over_refusals, mut let_back) = (None, 0, 0, None);
        if let Some(row) = known {
            if back && row.state == NodeState::Up {
                // It says so again, with what has changed.
                let has_room_again = low_before.is_some() && spec.low_disk.is_none();
                row.spec = spec;
                self.changed(&name);
                if let Some(why) = low {
                    self.note(name, why);
                } else if has_room_again {
                    self.note(name, "has room on its disk again".to_owned());
                }
                return Ok(());
            }
            if back && row.state == NodeState::Left {
                return Err(over(&name));
            }
            (number, drained) = (Some(row.number), row.drained);
            refused.clone_from(&row.refused);
            (refusals, over_refusals, let_back) = (row.refusals, row.over_refusals, row.let_back);
        }
        if !back && spec.follows != present {
            return Err(over(&name));
        }
        let number = number.unwrap_or_else(|| {
            let most = self.nodes.values().map(|row| row.number).max();
            self.last_node = self.last_node.max(most.unwrap_or(0)) + 1;
            self.last_node
        });
        let row = NodeRow {
            number,
            drained,
            refused,
            refusals,
            over_refusals,
            let_back,
            spec,
            state: NodeState::Up,
            since: self.now,
            version: self.nodes_version,
        };
        self.nodes.insert(name.clone(), row);
        self.changed(&name);
        if !back {
            let why = "it was started anew";
            self.end_attempts(&name, Some(boot), why);
        }
        if let Some(before) = present.filter(|_| !back && has_the_same) {
            self.reserve_again(&name, before, boot);
        }
        let what = if back { "is back" } else { "is up" };
        self.note(name.clone(), what.to_owned());
        if let Some(why) = low {
            self.note(name, why);
        }
        Ok(())
    }

    /// A life of a node is over, and with it the tries that it ran. One that was lost may yet say
    /// that it leaves.
    fn node_gone(&mut self, name: &str, boot: u64, state: NodeState) -> Result<(), Refusal> {
        let now = self.now;
        let row = self.node(name)?;
        let was_up = row.state == NodeState::Up;
        let was_lost = matches!(row.state, NodeState::Lost { .. });
        let may = was_up || was_lost && state == NodeState::Left;
        if row.spec.boot != boot || !may {
            return Err(over(name));
        }
        let what = match &state {
            NodeState::Lost { why } => format!("is lost: {why}"),
            _ => "has left".to_owned(),
        };
        row.state = state;
        row.since = now;
        self.changed(name);
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

    fn note(&mut self, about: String, what: String) {
        let at = self.now;
        self.news.push_back(CatalogNews { at, about, what });
        if self.news.len() > NEWS_MAX {
            self.news.pop_front();
        }
    }
}

/// Bundles of jobs that are over which are kept, so that `retry` finds them.
const BUNDLES_KEPT: usize = 100;

/// The refusal of what is about a life of a node that is over.
fn over(node: &str) -> Refusal {
    let why = format!("it is about a life of node `{node}` that is not the present one");
    Refusal::new(RefusalKind::Conflict, why)
}

fn only(writer: &Writer, owner: &Writer) -> Result<(), Refusal> {
    if writer == owner {
        return Ok(());
    }
    let why = format!("that is for {owner} to say, not for {writer}");
    Err(Refusal::new(RefusalKind::NotYours, why))
}

#[cfg(test)]
mod tests;
