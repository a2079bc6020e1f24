//! The recovery of a run's ranks, as people see it and order something.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The recovery of the ranks of a job, or of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Recovery {
    /// The role whose ranks these are; empty for those of pretraining.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub role: String,
    /// True while the ranks work; else they begin, or wait for room, and nothing can be forced.
    pub at_work: bool,
    /// True where ranks can leave a node.
    pub moves: bool,
    /// The ranks and their nodes, as far as they were seen.
    pub ranks: Vec<RecoveryRank>,
    /// Actions that are not taken by themselves, as people have ordered.
    pub forbidden: Vec<ForbiddenAction>,
    /// Nodes that ranks are not placed on.
    pub avoided: Vec<String>,
    /// Restarts that count at the moment.
    pub restarts: u32,
    /// The most of these, before the run stops for a person.
    pub restarts_max: u32,
    /// Nodes that were left in this try.
    pub evictions: u32,
    /// Those of them that were left for nothing.
    pub over_evictions: u32,
    /// The last actions of this try, the oldest first.
    pub done: Vec<RecoveryAct>,
}

/// A rank, and where it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RecoveryRank {
    /// Its number.
    pub rank: u32,
    /// Its node.
    pub node: String,
}

/// An action that is not taken by itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ForbiddenAction {
    /// The action: `end_process`, `evict_node`, `return_node` or `group_test`.
    pub action: String,
    /// The person who wants that.
    pub by: String,
    /// Why, in words; may be empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub why: String,
}

/// Something that was done about ranks, or ordered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RecoveryAct {
    /// When, in milliseconds since 1970.
    pub at_ms: u64,
    /// The action: `tell`, `end_process`, `evict_node`, `return_node`, `take_standby`, `group_test`, `roll_back`,
    /// `stop_for_person`, `forbid` or `allow`.
    pub action: String,
    /// The ranks that it is about.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ranks: Vec<u32>,
    /// The person who ordered it, if one did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// The finding, the action and its reason, in words.
    pub why: String,
}

/// An order of a person about the recovery of ranks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct OrderRecovery {
    /// The order.
    pub order: RecoveryVerb,
    /// The action of `forbid`, `allow` and `force`: `end_process`, `evict_node`, `return_node` or `group_test`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub action: Option<String>,
    /// The rank of `force`; none for `group_test`, which is of the nodes of all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank: Option<u32>,
    /// The node that `undo` has used again; without one, the last that can be undone is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// The role whose ranks it is about, where several have ranks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// Why, in words; may be empty.
    #[serde(default)]
    pub why: String,
}

/// The kind of an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum RecoveryVerb {
    /// An action is not taken by itself from now on.
    Forbid,
    /// An action may be taken by itself again.
    Allow,
    /// An action is taken now, for a rank or for all.
    Force,
    /// The last that can be undone is.
    Undo,
}

/// An order that is carried out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RecoveryOrdered {
    /// The order and what follows, in words.
    pub sentence: String,
}
