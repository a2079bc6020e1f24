//! The recovery of a run's ranks as their supervisor and people share it: the ladder, where ranks are, what was done.
//!
//! A person's order changes the ladder at once, also while ranks begin again or wait for room. An action that is forced is
//! left here until the supervisor takes it up.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use odeon::{Admin, Clock, System};
use odeon_diagnosis::Action;
use odeon_diagnosis::ladder::{
    Forbidden, Ladder, LadderPolicy, OrderError, Ordered, OrderedAction, OrderedBy, PlacedRank,
    Rung, Surroundings, TestedNodes,
};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::group_test::{LIMIT, test_nodes};

/// Something that was done about ranks, or told of them.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Acted {
    /// The rung that was taken, or the order: `end_process`, `forbid`.
    pub(crate) action: &'static str,
    /// The ranks that are to blame.
    pub(crate) ranks: Vec<u32>,
    /// Their nodes, where these are avoided from now on.
    pub(crate) avoided: Vec<String>,
    /// Nodes that were avoided and are used again.
    pub(crate) returned: Vec<String>,
    /// An action that is not taken by itself from now on.
    pub(crate) forbids: Option<Forbidden>,
    /// An action that may be taken by itself again.
    pub(crate) allows: Option<OrderedAction>,
    /// The person who ordered it, if one did.
    pub(crate) by: Option<String>,
    /// The finding, the action and its reason, in words.
    pub(crate) why: String,
}

impl Acted {
    /// A finding about which nothing is done.
    pub(crate) fn told(ranks: Vec<u32>, why: String) -> Self {
        Self {
            action: Action::Tell.word(),
            ranks,
            why,
            ..Self::default()
        }
    }

    fn of_order(ordered: Ordered, by: &OrderedBy) -> Self {
        let action = match (&ordered.forbids, ordered.allows) {
            (Some(_), _) => "forbid",
            (None, Some(_)) => "allow",
            (None, None) => Action::ReturnNode.word(),
        };
        Self {
            action,
            returned: ordered.returned,
            forbids: ordered.forbids,
            allows: ordered.allows,
            by: Some(by.name.clone()),
            why: ordered.why,
            ..Self::default()
        }
    }
}

/// An action that a person has ordered, for a rank or for all, which is still to be done.
#[derive(Clone, Debug)]
pub(crate) struct Forced {
    pub(crate) rank: Option<PlacedRank>,
    pub(crate) rung: Rung,
    pub(crate) by: OrderedBy,
}

/// An order for a rank that is not carried out. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NotForced {
    /// There is no such rank.
    #[error("there is no rank {rank}: the run has ranks 0 to {last}")]
    NoRank { rank: u32, last: u32 },
    /// Nobody has seen where it is.
    #[error("the node of rank {0} has not shown it yet: order it again in a moment")]
    NotSeen(u32),
    /// The ladder does not take it.
    #[error(transparent)]
    Order(#[from] OrderError),
}

/// Parts of a board that change.
#[derive(Debug)]
pub(crate) struct BoardState {
    pub(crate) ladder: Ladder,
    /// The node of each rank of the present life, as far as it was seen.
    pub(crate) nodes: BTreeMap<u32, String>,
    /// Ranks of the present life.
    pub(crate) ranks: u32,
    /// Set while the ranks are looked at: there is somebody who does what is forced.
    pub(crate) at_work: bool,
    forced: Vec<Forced>,
    /// The faulty ranks of the actions under way.
    under_way: BTreeSet<PlacedRank>,
    /// Set where ranks begin again for which none is to blame.
    lost: bool,
    /// The last action with its reason, in words.
    last: String,
    /// The reason for which each node is avoided, in words.
    pub(crate) avoided_for: BTreeMap<String, (AvoidedFor, String)>,
    /// Set where a process was ended for a person, until whoever counts losses has taken it.
    pub(crate) ended_for_person: bool,
    /// What was done last, with when.
    pub(crate) done: VecDeque<(Duration, Acted)>,
}

/// The kind of reason for which a node is avoided, with the value that observers hear: see `recovery.node_avoided`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AvoidedFor {
    /// A fault of a rank there.
    Fault = 1,
    /// An earlier try of the job left it.
    Earlier = 2,
    /// A person wants it so.
    Person = 3,
}

/// Actions that were under way: the faulty ranks, whether ranks began again for which none was to blame, and what was done
/// last.
pub(crate) type WasUnderWay = (BTreeSet<PlacedRank>, bool, String);

impl BoardState {
    /// Notes that an action begins about these ranks, or about all.
    pub(crate) fn begin(&mut self, who: &[PlacedRank], why: &str) {
        self.lost |= who.is_empty();
        self.under_way.extend(who.iter().cloned());
        why.clone_into(&mut self.last);
    }

    /// Takes the actions under way, which are over with this.
    pub(crate) fn end(&mut self, with: &str) -> WasUnderWay {
        if self.lost || !self.under_way.is_empty() {
            self.last += with;
        }
        let ranks = std::mem::take(&mut self.under_way);
        (ranks, std::mem::take(&mut self.lost), self.last.clone())
    }

    /// Returns true where something is done about this rank.
    pub(crate) fn is_under_way(&self, rank: &PlacedRank) -> bool {
        self.under_way.contains(rank)
    }
}

/// Actions that are kept for people who ask.
const DONE_MAX: usize = 50;
/// Time for which the nodes that there are count as known: a rank is slow for hours.
const NODES_FOR: Duration = Duration::from_secs(10);

#[derive(Debug)]
struct Shared {
    admin: Admin,
    /// The role whose ranks it is of; empty for those of pretraining.
    role: String,
    /// The system of ranks that reserve something, and so may be on other nodes.
    moves: Option<System>,
    state: Mutex<BoardState>,
    /// The nodes that there are, and when they were asked for.
    all_nodes: tokio::sync::Mutex<Option<(Duration, Vec<String>)>>,
    /// Something was forced.
    news: Notify,
    /// Whoever hears of orders now.
    orders: Mutex<UnboundedSender<Acted>>,
}

/// The board of a run, shared by all who have a part in its recovery.
#[derive(Clone, Debug)]
pub(crate) struct RecoveryBoard(Arc<Shared>);

/// The orders of people that were carried out, for whoever tells of them.
#[derive(Debug)]
pub(crate) struct Orders(UnboundedReceiver<Acted>);

impl Orders {
    /// Has each order told while something goes on, and answers how that ends.
    pub(crate) async fn beside<T>(
        mut self,
        tell: impl Fn(Acted),
        going: impl Future<Output = T>,
    ) -> T {
        let mut going = std::pin::pin!(going);
        let ended = loop {
            tokio::select! {
                Some(acted) = self.0.recv() => tell(acted),
                ended = &mut going => break ended,
            }
        };
        while let Ok(acted) = self.0.try_recv() {
            tell(acted);
        }
        ended
    }
}

impl RecoveryBoard {
    /// One on which nothing was done, of the ranks of a role. Ranks that reserve something in a system, `moves`, move to
    /// other nodes where there is a reason.
    pub(crate) fn new(
        (admin, role): (Admin, &str),
        policy: LadderPolicy,
        moves: Option<System>,
    ) -> (Self, Orders) {
        let (orders, heard) = unbounded_channel();
        let state = BoardState {
            ladder: Ladder::new(policy),
            nodes: BTreeMap::new(),
            ranks: 0,
            at_work: false,
            forced: vec![],
            under_way: BTreeSet::new(),
            lost: false,
            last: String::new(),
            avoided_for: BTreeMap::new(),
            ended_for_person: false,
            done: VecDeque::new(),
        };
        let shared = Shared {
            admin,
            role: role.to_owned(),
            moves,
            state: Mutex::new(state),
            all_nodes: tokio::sync::Mutex::new(None),
            news: Notify::new(),
            orders: Mutex::new(orders),
        };
        (Self(Arc::new(shared)), Orders(heard))
    }

    /// Has orders told from now on to whoever has this, and to nobody else.
    pub(crate) fn hear(&self) -> Orders {
        let (orders, heard) = unbounded_channel();
        *self.0.orders.lock() = orders;
        Orders(heard)
    }

    pub(crate) fn admin(&self) -> &Admin {
        &self.0.admin
    }

    /// The role whose ranks it is of; empty for those of pretraining.
    pub(crate) fn role(&self) -> &str {
        &self.0.role
    }

    /// Returns true where ranks may be on other nodes.
    pub(crate) fn moves(&self) -> bool {
        self.0.moves.is_some()
    }

    /// Looks at the state, or changes it.
    pub(crate) fn with<T>(&self, look: impl FnOnce(&mut BoardState) -> T) -> T {
        look(&mut self.0.state.lock())
    }

    /// Nodes that ranks are not to be placed on.
    pub(crate) fn avoided(&self) -> BTreeSet<String> {
        self.with(|state| state.ladder.avoided().clone())
    }

    /// The order by which an action is not taken.
    pub(crate) fn forbids(&self, action: OrderedAction) -> Option<Forbidden> {
        self.with(|state| state.ladder.forbids(action).cloned())
    }

    /// Notes something that was done.
    pub(crate) fn note(&self, acted: &Acted) {
        self.with(|state| {
            if state.done.len() >= DONE_MAX {
                state.done.pop_front();
            }
            state.done.push_back((Clock::unix_time(), acted.clone()));
        });
    }

    /// Returns true where there is a node for these ranks beside their own.
    pub(crate) async fn is_elsewhere(&self, who: &[PlacedRank]) -> bool {
        if !self.moves() {
            return false;
        }
        let mut known = self.0.all_nodes.lock().await;
        if known
            .as_ref()
            .is_none_or(|(at, _)| now() >= *at + NODES_FOR)
        {
            let views = self.0.admin.nodes().await.into_iter();
            *known = Some((now(), views.map(|view| view.node.name).collect()));
        }
        let avoided = self.avoided();
        let all = known.iter().flat_map(|(_, names)| names);
        let mut others = all.filter(|name| !avoided.contains(*name));
        others.any(|name| who.iter().all(|it| it.node != *name))
    }

    /// The surroundings of the ranks, of which these are found to be faulty.
    pub(crate) async fn around(&self, who: &[PlacedRank]) -> Surroundings {
        Surroundings {
            elsewhere: self.is_elsewhere(who).await,
            nodes: self.moves().then(|| self.nodes_of_ranks().len() as u32),
        }
    }

    fn nodes_of_ranks(&self) -> BTreeSet<String> {
        self.with(|state| state.nodes.values().cloned().collect())
    }

    /// Has the nodes of all ranks tested in groups. They may be at work meanwhile.
    pub(crate) async fn test_nodes(&self) -> TestedNodes {
        let nodes: Vec<String> = self.nodes_of_ranks().into_iter().collect();
        let unmade = |said: String| TestedNodes {
            culprit: None,
            said,
        };
        let Some(system) = &self.0.moves else {
            return unmade("ranks that cannot leave a node are not tested".to_owned());
        };
        match test_nodes(system, &nodes, LIMIT).await {
            Ok(tested) => TestedNodes {
                culprit: tested.culprit().map(str::to_owned),
                said: tested.to_string(),
            },
            Err(error) => unmade(error.to_string()),
        }
    }

    /// Has an action forbidden.
    pub(crate) fn forbid(&self, order: Forbidden) -> Ordered {
        let by = order.by.clone();
        let ordered = self.with(|state| state.ladder.forbid(order));
        self.ordered(ordered, &by)
    }

    /// Has an action allowed again.
    ///
    /// # Errors
    /// Nobody forbids it.
    pub(crate) fn allow(
        &self,
        action: OrderedAction,
        by: &OrderedBy,
    ) -> Result<Ordered, OrderError> {
        let ordered = self.with(|state| state.ladder.allow(action, by))?;
        Ok(self.ordered(ordered, by))
    }

    /// Takes the last back, or has a node used again.
    ///
    /// # Errors
    /// There is no such thing.
    pub(crate) fn undo(&self, node: Option<&str>, by: &OrderedBy) -> Result<Ordered, OrderError> {
        let ordered = self.with(|state| state.ladder.undo(node, by))?;
        Ok(self.ordered(ordered, by))
    }

    /// Has an action done by whoever looks at the ranks: for one of them, or for all.
    ///
    /// # Errors
    /// It cannot be done now, or not at all.
    pub(crate) async fn force(
        &self,
        action: OrderedAction,
        rank: Option<u32>,
        by: OrderedBy,
    ) -> Result<Ordered, NotForced> {
        let placed = self.with(|state| {
            let Some(rank) = rank else {
                return Ok(None);
            };
            let node = state.nodes.get(&rank).cloned();
            if state.ranks > 0 && rank >= state.ranks {
                let last = state.ranks - 1;
                return Err(NotForced::NoRank { rank, last });
            }
            let placed = node.map(|node| PlacedRank { rank, node });
            let placed = match state.at_work {
                true => placed.ok_or(NotForced::NotSeen(rank)),
                false => placed.ok_or(NotForced::Order(OrderError::UnderWay)),
            };
            placed.map(Some)
        })?;
        let around = self.around(placed.as_slice()).await;
        let why = self.with(|state| {
            if !state.at_work {
                return Err(OrderError::UnderWay);
            }
            let rung = state.ladder.force(action, placed.as_ref(), &by, around)?;
            let why = rung.why.clone();
            state.forced.push(Forced {
                rank: placed,
                rung,
                by,
            });
            Ok(why)
        })?;
        self.0.news.notify_one();
        Ok(Ordered {
            why,
            ..Ordered::default()
        })
    }

    /// Takes what was forced.
    pub(crate) fn take_forced(&self) -> Vec<Forced> {
        self.with(|state| std::mem::take(&mut state.forced))
    }

    /// Resolves when something was forced.
    pub(crate) async fn forced(&self) {
        self.0.news.notified().await;
    }

    /// Has an order told that has changed the ladder.
    fn ordered(&self, ordered: Ordered, by: &OrderedBy) -> Ordered {
        tracing::warn!("{}", ordered.why);
        let acted = Acted::of_order(ordered.clone(), by);
        self.note(&acted);
        // A run that is over tells nothing more.
        let _ = self.0.orders.lock().send(acted);
        ordered
    }
}

/// The time since the clock began.
pub(crate) fn now() -> Duration {
    Duration::from_nanos(Clock::now().0)
}
