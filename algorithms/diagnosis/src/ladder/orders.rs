//! Orders of a person to a ladder: actions that it is not to take by itself, one that is taken now, and what is taken
//! back.
//!
//! An order is no evidence of a fault: what a person forces counts neither for the budget of restarts nor for the next
//! rung, and stops no job.

use std::fmt::{self, Display};
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::{Ladder, PlacedRank, Rung, Surroundings, named};
use crate::Action;

/// An action of the ladder that a person may order or forbid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OrderedAction {
    /// End the process of a rank, which is made again in its place.
    EndProcess,
    /// Leave the node of a rank, which is avoided from then on.
    EvictNode,
    /// Go back to a node that was left, where there is no room elsewhere.
    ReturnNode,
    /// Have the nodes of all ranks replay steps in groups, and leave the one that is to blame.
    GroupTest,
    /// Go back to the version of the program before.
    RollBack,
}

impl OrderedAction {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::EndProcess,
        Self::EvictNode,
        Self::ReturnNode,
        Self::GroupTest,
        Self::RollBack,
    ];

    /// The action that is ordered or forbidden.
    #[must_use]
    pub const fn action(self) -> Action {
        match self {
            Self::EndProcess => Action::EndProcess,
            Self::EvictNode => Action::EvictNode,
            Self::ReturnNode => Action::ReturnNode,
            Self::GroupTest => Action::GroupTest,
            Self::RollBack => Action::RollBack,
        }
    }
}

impl Display for OrderedAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.action().word())
    }
}

impl FromStr for OrderedAction {
    type Err = OrderError;

    fn from_str(text: &str) -> Result<Self, OrderError> {
        let word = text.replace('-', "_");
        let found = Self::ALL.into_iter().find(|it| it.action().word() == word);
        found.ok_or_else(|| OrderError::NoAction(text.to_owned()))
    }
}

/// A person who orders something, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OrderedBy {
    /// The name.
    pub name: String,
    /// The reason, in words; may be empty.
    pub why: String,
}

impl OrderedBy {
    /// What this person does, with the reason: `ann forbids it: the switch is repaired at ten`.
    pub(super) fn says(&self, does: &str) -> String {
        match self.why.is_empty() {
            true => format!("{} {does}", self.name),
            false => format!("{} {does}: {}", self.name, self.why),
        }
    }
}

/// An action that the ladder does not take by itself, as a person says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Forbidden {
    /// The action.
    pub action: OrderedAction,
    /// The person.
    pub by: OrderedBy,
}

impl Display for Forbidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.by.says("forbids it"))
    }
}

/// A change by an order that takes effect at once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ordered {
    /// An action that is not taken from now on.
    pub forbids: Option<Forbidden>,
    /// An action that may be taken again.
    pub allows: Option<OrderedAction>,
    /// Nodes that were avoided and are used again.
    pub returned: Vec<String>,
    /// The change and its reason, in words.
    pub why: String,
}

/// An order that cannot be carried out. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum OrderError {
    /// There is no such action.
    #[error(
        "there is no action `{0}`: actions are end_process, evict_node, return_node, group_test and roll_back"
    )]
    NoAction(String),
    /// The action is not forbidden by anybody.
    #[error("nobody forbids {0}, so there is nothing to allow")]
    NotForbidden(OrderedAction),
    /// The action is of one rank.
    #[error("{0} is of a rank: name it with `--rank`")]
    OfRank(OrderedAction),
    /// The action is of all ranks.
    #[error("{0} is of all ranks: leave `--rank` out")]
    OfAll(OrderedAction),
    /// No rank could leave the node that a group test names.
    #[error(
        "ranks move in pretraining alone, where they reserve something: nobody could leave the node that a group test names"
    )]
    RanksStay,
    /// A group test takes more nodes.
    #[error("{}", super::test::too_few(*.0))]
    TooFewNodes(u32),
    /// Nodes are used again by name.
    #[error("return_node is of a node and no rank's: `undo --node NODE` has a node used again")]
    NotOfRanks,
    /// There is no version before.
    #[error(
        "the job has no version before the present one: `odeon job show JOB` lists its versions, and `odeon rollback \
         JOB --to N` goes to any"
    )]
    NoVersionBefore,
    /// Ranks begin again at the moment.
    #[error("the ranks begin again at the moment: order it when they go on")]
    UnderWay,
    /// The job has stopped for a person.
    #[error("the job has stopped: run it again, which goes on from its last checkpoint")]
    Stopped,
    /// There is no other node.
    #[error(
        "rank {rank} cannot leave node {node}: ranks move in pretraining alone, where they reserve something and there is \
         another node that the run does not avoid"
    )]
    NotElsewhere {
        /// The rank.
        rank: u32,
        /// Its node.
        node: String,
    },
    /// The node is not avoided.
    #[error("the run does not avoid node {node}: {}", avoided_in_words(avoided))]
    NotAvoided {
        /// The node.
        node: String,
        /// Nodes that it avoids.
        avoided: Vec<String>,
    },
    /// Nothing is forbidden, and no node is avoided.
    #[error("there is nothing to undo: no action is forbidden, and no node is avoided")]
    NothingToUndo,
}

fn avoided_in_words(avoided: &[String]) -> String {
    match avoided {
        [] => "it avoids none".to_owned(),
        nodes => format!("it avoids {}", nodes.join(", ")),
    }
}

/// Something that can be taken back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Undoable {
    /// An action was forbidden.
    Forbade(OrderedAction),
    /// These nodes were left.
    Left(Vec<String>),
}

impl Ladder {
    /// Actions that are not taken.
    #[must_use]
    pub fn forbidden(&self) -> &[Forbidden] {
        &self.forbidden
    }

    /// The order by which an action is not taken.
    #[must_use]
    pub fn forbids(&self, action: OrderedAction) -> Option<&Forbidden> {
        self.forbidden.iter().find(|it| it.action == action)
    }

    /// Has an action not taken by itself from now on: its finding is told instead. Ranks begin again after a crash in any
    /// case. A second order for the same action takes the place of the first.
    pub fn forbid(&mut self, order: Forbidden) -> Ordered {
        let action = order.action;
        self.lift(action);
        // What was told without this order is told with it.
        self.told.clear();
        self.forbidden.push(order.clone());
        self.undoable.push(Undoable::Forbade(action));
        Ordered {
            why: order.by.says(&format!("forbids {action}")),
            forbids: Some(order),
            ..Ordered::default()
        }
    }

    /// Has an action taken by itself again.
    ///
    /// # Errors
    /// Nobody forbids it.
    pub fn allow(&mut self, action: OrderedAction, by: &OrderedBy) -> Result<Ordered, OrderError> {
        if !self.lift(action) {
            return Err(OrderError::NotForbidden(action));
        }
        Ok(Ordered {
            allows: Some(action),
            why: by.says(&format!("allows {action} again")),
            ..Ordered::default()
        })
    }

    /// Takes the action, as if the ladder had come to it: for a rank, or a group test of the nodes of all, which
    /// [`Ladder::tested_by_order`] ends.
    ///
    /// # Errors
    /// It cannot be done now, or not at all.
    pub fn force(
        &mut self,
        action: OrderedAction,
        rank: Option<&PlacedRank>,
        by: &OrderedBy,
        around: Surroundings,
    ) -> Result<Rung, OrderError> {
        if self.stopped {
            return Err(OrderError::Stopped);
        }
        if self.under_way {
            return Err(OrderError::UnderWay);
        }
        let rank = match (action, rank) {
            (OrderedAction::GroupTest, None) => return self.test_by_order(by, around),
            (OrderedAction::RollBack, None) => return self.back_by_order(by),
            (OrderedAction::GroupTest | OrderedAction::RollBack, Some(_)) => {
                return Err(OrderError::OfAll(action));
            }
            (OrderedAction::ReturnNode, _) => return Err(OrderError::NotOfRanks),
            (_, None) => return Err(OrderError::OfRank(action)),
            (_, Some(rank)) => rank,
        };
        let node = &rank.node;
        let (evicted, does) = match action {
            OrderedAction::EndProcess => (vec![], "it is made again in its place".to_owned()),
            OrderedAction::EvictNode if around.elsewhere => {
                let does =
                    format!("it is made again elsewhere, and node {node} is avoided from now on");
                (vec![node.clone()], does)
            }
            OrderedAction::EvictNode => {
                let (rank, node) = (rank.rank, node.clone());
                return Err(OrderError::NotElsewhere { rank, node });
            }
            OrderedAction::ReturnNode | OrderedAction::GroupTest | OrderedAction::RollBack => {
                return Err(OrderError::NotOfRanks);
            }
        };
        self.leave(&evicted);
        self.under_way = true;
        let who = named(std::slice::from_ref(rank));
        let why = format!("{who}: {}; {does} (not counted)", by.says("asked for it"));
        Ok(Rung {
            action: action.action(),
            evicted,
            innocent: vec![],
            why,
        })
    }

    /// Takes back the last that can be: an action is not forbidden any more, or a node that was left is used again. With
    /// a node, that one is used again.
    /// A node that the ladder itself has left lately counts as left for nothing, and what happened on it is forgotten.
    ///
    /// # Errors
    /// There is no such thing.
    pub fn undo(&mut self, node: Option<&str>, by: &OrderedBy) -> Result<Ordered, OrderError> {
        if let Some(node) = node {
            if !self.avoided.contains(node) {
                return Err(OrderError::NotAvoided {
                    node: node.to_owned(),
                    avoided: self.avoided.iter().cloned().collect(),
                });
            }
            return Ok(self.go_back(vec![node.to_owned()], by));
        }
        while let Some(last) = self.undoable.pop() {
            match last {
                Undoable::Forbade(action) => return self.allow(action, by),
                Undoable::Left(nodes) => {
                    let left = nodes.into_iter().filter(|it| self.avoided.contains(it));
                    let left: Vec<String> = left.collect();
                    if !left.is_empty() {
                        return Ok(self.go_back(left, by));
                    }
                }
            }
        }
        Err(OrderError::NothingToUndo)
    }

    /// Has nodes avoided.
    pub(super) fn leave(&mut self, nodes: &[String]) {
        if nodes.is_empty() {
            return;
        }
        self.evictions += nodes.len() as u32;
        self.avoided.extend(nodes.iter().cloned());
        self.undoable.push(Undoable::Left(nodes.to_vec()));
    }

    fn go_back(&mut self, nodes: Vec<String>, by: &OrderedBy) -> Ordered {
        for node in &nodes {
            self.avoided.remove(node);
            for before in &mut self.restarts {
                let left = before.evicted.extract_if(.., |it| it == node);
                self.over_evictions += left.count() as u32;
                before.who.retain(|it| it.node != *node);
            }
        }
        let does = match nodes.as_slice() {
            [node] => format!("has node {node} used again"),
            several => format!("has nodes {} used again", several.join(" and ")),
        };
        Ordered {
            why: by.says(&does),
            returned: nodes,
            ..Ordered::default()
        }
    }

    /// Returns true where the action was forbidden.
    fn lift(&mut self, action: OrderedAction) -> bool {
        let before = self.forbidden.len();
        self.forbidden.retain(|it| it.action != action);
        self.undoable.retain(|it| *it != Undoable::Forbade(action));
        self.forbidden.len() < before
    }
}

#[cfg(test)]
mod tests;
