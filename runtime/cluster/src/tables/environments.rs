//! Environments of jobs: who installs which, and which are there to be taken.

use odeon_artifacts::Digest;
use serde::{Deserialize, Serialize};

use super::{NodeState, Tables};
use crate::fact::{Refusal, RefusalKind};
use crate::unix::Unix;

/// An environment as the catalog keeps it, by its key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnvironmentRow {
    /// Where it is in its life.
    pub state: EnvironmentState,
    /// Since when.
    pub since: Unix,
}

/// The state of an environment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub enum EnvironmentState {
    /// A node installs it, for all others.
    Installing {
        /// Which.
        node: String,
        /// In which life of it.
        boot: u64,
        /// The number under which it does.
        claim: u64,
    },
    /// There is a snapshot of it.
    Ready {
        /// Its files.
        bundle: Digest,
        /// The node that has installed it.
        node: String,
    },
    /// Its setup has failed, for all who waited for that. Whoever comes later tries again.
    Failed {
        /// On which node.
        node: String,
        /// The number under which it was claimed.
        claim: u64,
        /// Why.
        why: String,
    },
}

/// Environments that are kept; those that failed go first, then the one that was made first.
const ENVIRONMENTS_MAX: usize = 64;

impl Tables {
    /// A node wants to install an environment. It may where nobody does who lives, and nobody has; or what there was,
    /// `lost`, is nowhere whole any more.
    pub(super) fn claim_environment(
        &mut self,
        key: Digest,
        (node, boot): (String, u64),
        claim: u64,
        lost: Option<Digest>,
    ) -> Result<(), Refusal> {
        let is_up = |node: &str, boot: u64| {
            let row = self.nodes.get(node);
            row.is_some_and(|row| row.state == NodeState::Up && row.spec.boot == boot)
        };
        let conflict = |why: String| Err(Refusal::new(RefusalKind::Conflict, why));
        if !is_up(&node, boot) {
            return conflict(format!("node `{node}` is not up in that life"));
        }
        match self.environments.get(&key).map(|row| &row.state) {
            Some(EnvironmentState::Installing {
                node: other, boot, ..
            }) if *other != node && is_up(other, *boot) => {
                return conflict(format!("node `{other}` installs the environment"));
            }
            Some(EnvironmentState::Ready { bundle, .. }) if Some(*bundle) != lost => {
                return conflict("there is a snapshot of the environment".to_owned());
            }
            _ => {}
        }
        let row = EnvironmentRow {
            state: EnvironmentState::Installing { node, boot, claim },
            since: self.now,
        };
        self.environments.insert(key, row);
        while self.environments.len() > ENVIRONMENTS_MAX {
            let others = self.environments.iter().filter(|(it, _)| **it != key);
            let oldest = others.min_by_key(|(it, row)| {
                let has_failed = matches!(row.state, EnvironmentState::Failed { .. });
                (!has_failed, row.since, **it)
            });
            let Some(oldest) = oldest.map(|(it, _)| *it) else {
                break;
            };
            self.environments.remove(&oldest);
        }
        Ok(())
    }

    /// The node that installs an environment has a snapshot of it, or knows why its setup has failed, or has given up.
    pub(super) fn settle_environment(
        &mut self,
        key: Digest,
        node: String,
        claimed: u64,
        (bundle, why): (Option<Digest>, Option<String>),
    ) -> Result<(), Refusal> {
        let row = self.environments.get_mut(&key);
        let own = row.filter(|row| {
            matches!(&row.state, EnvironmentState::Installing { node: by, claim, .. }
                if *by == node && *claim == claimed)
        });
        let Some(row) = own else {
            let why = "another node installs the environment by now".to_owned();
            return Err(Refusal::new(RefusalKind::Conflict, why));
        };
        row.state = match (bundle, why) {
            (Some(bundle), _) => EnvironmentState::Ready { bundle, node },
            (None, Some(why)) => EnvironmentState::Failed {
                node,
                claim: claimed,
                why,
            },
            (None, None) => {
                self.environments.remove(&key);
                return Ok(());
            }
        };
        row.since = self.now;
        Ok(())
    }

    /// The snapshots of environments, which are kept.
    pub(super) fn snapshots(&self) -> impl Iterator<Item = Digest> + '_ {
        let states = self.environments.values().map(|row| &row.state);
        states.filter_map(|state| match state {
            EnvironmentState::Ready { bundle, .. } => Some(*bundle),
            EnvironmentState::Installing { .. } | EnvironmentState::Failed { .. } => None,
        })
    }
}
