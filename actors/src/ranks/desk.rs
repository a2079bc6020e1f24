//! The desk of a run's recovery: where people ask what is forbidden and what was done, and order something, while the run
//! goes on.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use odeon::serde::{Deserialize, Serialize};
use odeon::{ActorId, Context, Failure, Shape, actor, message};
use odeon_diagnosis::ladder::{Forbidden, OrderError, OrderedAction, OrderedBy};
use parking_lot::Mutex;

use super::board::{NotForced, Orders, RecoveryBoard, now};

/// The name of a desk among the actors of its job, by the role whose ranks it is of; those of pretraining have none.
#[must_use]
pub fn desk_name(role: &str) -> String {
    match role {
        "" => "recovery".to_owned(),
        role => format!("recovery-{role}"),
    }
}

/// The roles whose ranks may have a desk: those of pretraining, and the learning roles of reinforcement.
pub const DESK_ROLES: [&str; 6] = [
    "",
    "trainer",
    "critic",
    "cost-critic",
    "reference",
    "reward-model",
];

/// The state of a run's recovery.
#[message(reply = RecoveryShown, name = "ranks.ShowRecovery")]
#[derive(Clone, Debug)]
pub struct ShowRecovery;

/// An order of a person.
#[message(reply = Result<RecoveryOrdered, OrderRefused>, name = "ranks.OrderRecovery")]
#[derive(Clone, Debug)]
pub struct OrderRecovery {
    /// The order.
    pub order: RecoveryOrder,
    /// The person.
    pub by: String,
    /// The reason, in words; may be empty.
    pub why: String,
}

/// Something that a person orders. Actions are `end_process`, `evict_node`, `return_node`, `group_test` and
/// `roll_back`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, Shape)]
#[serde(crate = "odeon::serde")]
pub enum RecoveryOrder {
    /// This action is not to be taken by itself.
    Forbid(String),
    /// This action may be taken by itself again.
    Allow(String),
    /// This action is to be taken now, for a rank, or for all.
    Force {
        /// The action.
        action: String,
        /// The rank.
        rank: Option<u32>,
    },
    /// The last that can be taken back is, or a node is used again.
    Undo {
        /// The node.
        node: Option<String>,
    },
}

/// An order that is carried out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, Shape)]
#[serde(crate = "odeon::serde")]
pub struct RecoveryOrdered {
    /// The order and what follows, in words.
    pub why: String,
    /// Nodes that were avoided and are used again.
    pub returned: Vec<String>,
}

/// An order that is not carried out. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, Shape, thiserror::Error)]
#[serde(crate = "odeon::serde")]
pub enum OrderRefused {
    /// It cannot be meant.
    #[error("{0}")]
    Invalid(String),
    /// It does not fit what the run does.
    #[error("{0}")]
    Conflict(String),
}

impl From<OrderError> for OrderRefused {
    fn from(error: OrderError) -> Self {
        let why = error.to_string();
        match error {
            OrderError::NoAction(_)
            | OrderError::NotOfRanks
            | OrderError::OfRank(_)
            | OrderError::OfAll(_) => Self::Invalid(why),
            _ => Self::Conflict(why),
        }
    }
}

impl From<NotForced> for OrderRefused {
    fn from(error: NotForced) -> Self {
        match error {
            NotForced::Order(error) => error.into(),
            error @ NotForced::NoRank { .. } => Self::Invalid(error.to_string()),
            error @ NotForced::NotSeen(_) => Self::Conflict(error.to_string()),
        }
    }
}

/// See [`ShowRecovery`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, Shape)]
#[serde(crate = "odeon::serde")]
pub struct RecoveryShown {
    /// The node of each rank, as far as it was seen.
    pub ranks: Vec<(u32, String)>,
    /// Set while the ranks work, and so something can be forced.
    pub at_work: bool,
    /// Set where ranks reserve something, and so can leave a node.
    pub moves: bool,
    /// Actions that are not taken by themselves: which, by whom and why.
    pub forbidden: Vec<(String, String, String)>,
    /// Nodes that ranks are not placed on.
    pub avoided: Vec<String>,
    /// Restarts that count.
    pub restarts: u32,
    /// The most of them, before the run stops for a person.
    pub restarts_max: u32,
    /// Nodes that were left, by a fault or by a person.
    pub evictions: u32,
    /// Those of them that were left for nothing.
    pub over_evictions: u32,
    /// The last actions of this try, the oldest first.
    pub done: Vec<RecoveryDone>,
}

/// An action, as it was told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, Shape)]
#[serde(crate = "odeon::serde")]
pub struct RecoveryDone {
    /// When, in milliseconds of Unix time.
    pub at_ms: u64,
    /// The action: `tell`, `end_process`, `evict_node`, `return_node`, `take_standby`, `group_test`, `roll_back`,
    /// `stop_for_person`, `forbid` or `allow`.
    pub action: String,
    /// The ranks that it is about.
    pub ranks: Vec<u32>,
    /// The person who ordered it, if one did.
    pub by: Option<String>,
    /// The finding, the action and its reason, in words.
    pub why: String,
}

/// Boards in this process, by the number that a desk is made from: a board cannot be an actor's argument, since
/// arguments travel.
static BOARDS: LazyLock<Mutex<HashMap<u64, RecoveryBoard>>> = LazyLock::new(Mutex::default);
static NUMBER: AtomicU64 = AtomicU64::new(0);

/// Boards in this process of actors that supervise ranks: one that begins another life goes on with what people ordered and
/// what was done.
static OF_ACTORS: LazyLock<Mutex<HashMap<ActorId, RecoveryBoard>>> = LazyLock::new(Mutex::default);

/// The board of an actor that supervises ranks: that of its earlier lives in this process, or a new one.
pub(crate) fn board_of(
    owner: ActorId,
    new: impl FnOnce() -> (RecoveryBoard, Orders),
) -> (RecoveryBoard, Orders) {
    match OF_ACTORS.lock().entry(owner) {
        Entry::Occupied(known) => (known.get().clone(), known.get().hear()),
        Entry::Vacant(none) => {
            let (board, orders) = new();
            (none.insert(board).clone(), orders)
        }
    }
}

/// Arguments of a [`RecoveryDesk`].
#[derive(Clone, Debug, Serialize, Deserialize, Shape)]
#[serde(crate = "odeon::serde")]
pub struct DeskArgs {
    /// The number of its board in this process.
    board: u64,
    role: String,
}

/// A board that desks can be made for, as long as this is there.
#[derive(Debug)]
pub(crate) struct OpenBoard(u64);

impl OpenBoard {
    pub(crate) fn new(board: RecoveryBoard) -> Self {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        BOARDS.lock().insert(number, board);
        Self(number)
    }

    /// The argument of its desk, for the ranks of a role.
    pub(crate) fn of_role(&self, role: &str) -> DeskArgs {
        DeskArgs {
            board: self.0,
            role: role.to_owned(),
        }
    }
}

impl Drop for OpenBoard {
    fn drop(&mut self) {
        BOARDS.lock().remove(&self.0);
    }
}

/// The actor that answers people. It lives in the process that supervises the ranks.
#[derive(Debug)]
pub struct RecoveryDesk {
    board: RecoveryBoard,
}

#[actor(name = "ranks.RecoveryDesk")]
impl RecoveryDesk {
    async fn start(args: DeskArgs, cx: &Context<Self>) -> Result<Self, Failure> {
        let board = BOARDS.lock().get(&args.board).cloned();
        let board = board.ok_or_else(|| Failure::error("its run is over").fatal())?;
        // Beside another run in the same program people reach that one.
        if let Err(error) = cx.register(&desk_name(&args.role)).await {
            tracing::warn!(%error, "nobody can order anything about the ranks of this run");
        }
        Ok(Self { board })
    }

    #[handler(message = ShowRecovery)]
    fn show(&mut self, _: ShowRecovery) -> RecoveryShown {
        let moves = self.board.moves();
        self.board.with(|state| {
            let ladder = &state.ladder;
            let (restarts, restarts_max) = ladder.budget(now());
            let (evictions, over_evictions) = ladder.evictions();
            let nodes = state.nodes.iter();
            let forbidden = ladder.forbidden().iter().map(|it| {
                let OrderedBy { name, why } = it.by.clone();
                (it.action.to_string(), name, why)
            });
            let done = state.done.iter().map(|(at, acted)| RecoveryDone {
                at_ms: at.as_millis() as u64,
                action: acted.action.to_owned(),
                ranks: acted.ranks.clone(),
                by: acted.by.clone(),
                why: acted.why.clone(),
            });
            RecoveryShown {
                ranks: nodes.map(|(rank, node)| (*rank, node.clone())).collect(),
                at_work: state.at_work,
                moves,
                forbidden: forbidden.collect(),
                avoided: ladder.avoided().iter().cloned().collect(),
                restarts,
                restarts_max,
                evictions,
                over_evictions,
                done: done.collect(),
            }
        })
    }

    #[handler(message = OrderRecovery)]
    async fn order(&mut self, asked: OrderRecovery) -> Result<RecoveryOrdered, OrderRefused> {
        let OrderRecovery { order, by, why } = asked;
        let by = OrderedBy { name: by, why };
        let board = &self.board;
        let done = match order {
            RecoveryOrder::Forbid(action) => {
                let action: OrderedAction = action.parse()?;
                board.forbid(Forbidden { action, by })
            }
            RecoveryOrder::Allow(action) => board.allow(action.parse()?, &by)?,
            RecoveryOrder::Force { action, rank } => board.force(action.parse()?, rank, by).await?,
            RecoveryOrder::Undo { node } => board.undo(node.as_deref(), &by)?,
        };
        Ok(RecoveryOrdered {
            why: done.why,
            returned: done.returned,
        })
    }
}
