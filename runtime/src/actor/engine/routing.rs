//! Calls on their way, as the router says. A call of this process has a pending entry, one that is
//! passed on a row of forwards: the loss of the link that it went over ends either, once.

use std::sync::Arc;
use std::time::Duration;

use super::credit::{Credit, Waited};
use super::members::{PlaceOf, Unheld};
use super::router::{self, Leg, Next, RowSite, View};
use super::{Engine, lost_call};
use crate::actor::cell::ActorCell;
use crate::actor::pending::Waiting;
use crate::actor::remote;
use crate::base::clock::Clock;
use crate::base::error::AskError;
use crate::base::failure::{Down, ProcessExit, Reason};
use crate::base::id::{ActorId, ProcessId};
use crate::net::link::Link;
use crate::net::wire::{Call, Frame};

/// Where a message for an actor has to go.
pub(crate) enum Whereabouts {
    /// Into a mailbox of this process.
    Here(Arc<ActorCell>),
    /// Over a link, or to wait until the actor is placed again.
    There(Option<Hop>),
    /// Nowhere any more.
    Dead(Down),
    /// No link leads to its home.
    Unreachable,
}

/// The first step to an actor of another process.
pub(crate) struct Hop {
    pub(crate) link: Arc<Link>,
    /// The process that hosts the actor, where its home says so; else 0.
    at: ProcessId,
}

/// The facts of an engine, without a link that was found closed.
struct Facts<'a> {
    engine: &'a Engine,
    closed: Option<&'a Arc<Link>>,
}

impl Facts<'_> {
    fn is_open(&self, link: &Arc<Link>) -> bool {
        self.closed.is_none_or(|closed| !Arc::ptr_eq(closed, link))
    }
}

impl View for Facts<'_> {
    type Cell = Arc<ActorCell>;
    type Link = Arc<Link>;

    fn hosted(&self, actor: ActorId) -> Option<Arc<ActorCell>> {
        let cell = self.engine.cells.get(&actor)?;
        Some(Arc::clone(&cell))
    }

    fn site(&self, actor: ActorId) -> Option<RowSite> {
        match self.engine.members.place_of(actor, self.engine.process) {
            PlaceOf::At(process) => Some(RowSite::At(process)),
            PlaceOf::Nowhere => Some(RowSite::Nowhere),
            PlaceOf::Gone => Some(RowSite::Gone),
            PlaceOf::Elsewhere => None,
        }
    }

    fn peer(link: &Arc<Link>) -> ProcessId {
        link.peer
    }

    fn towards(&self, process: ProcessId) -> Option<Arc<Link>> {
        let link = self.engine.next_link(process)?;
        self.is_open(&link).then_some(link)
    }

    fn knows(&self, process: ProcessId) -> bool {
        self.engine.routes_to(process)
    }
}

impl Engine {
    /// Where a message of this process for an actor has to go.
    pub(crate) fn find(&self, id: ActorId) -> Whereabouts {
        match self.next_of(self.first_leg(id), None) {
            Next::Here(cell) => Whereabouts::Here(cell),
            Next::Link { link, at } => Whereabouts::There(Some(Hop { link, at })),
            Next::Hold(_) => Whereabouts::There(None),
            Next::Dead | Next::HostGone => Whereabouts::Dead(self.obituary(id)),
            Next::Unreachable => Whereabouts::Unreachable,
        }
    }

    /// The first step to an actor of another process; `None` while there is none.
    fn hop_to(&self, actor: ActorId) -> Option<Hop> {
        match self.next_of(self.first_leg(actor), None) {
            Next::Link { link, at } => Some(Hop { link, at }),
            _ => None,
        }
    }

    fn first_leg(&self, to: ActorId) -> Leg {
        Leg {
            to,
            at: ProcessId(0),
            from: self.process,
            came: None,
        }
    }

    fn next_of(&self, leg: Leg, closed: Option<&Arc<Link>>) -> Next<Arc<ActorCell>, Arc<Link>> {
        let facts = Facts {
            engine: self,
            closed,
        };
        router::next(self.process, leg, &facts)
    }

    /// Sends a call of this process on the step that was found for it, which its pending entry names;
    /// without one, it looks.
    pub(crate) fn send(self: &Arc<Self>, hop: Option<&Hop>, mut call: Call) {
        let Some(Hop { link, at }) = hop else {
            return self.dispatch(call, None, None);
        };
        call.at = *at;
        let alone = self.pending.is_alone();
        let frame = Frame::Call(call);
        if !link.push(&frame, alone)
            && let Frame::Call(call) = frame
            && self.is_still_wanted(&call)
        {
            self.dispatch(call, None, Some(link));
        }
    }

    /// Sends a call on its way: one of this process, or one that came over a link. The link that it
    /// was pushed to in vain, if one is named, is no way.
    pub(super) fn dispatch(
        self: &Arc<Self>,
        mut call: Call,
        came: Option<&Arc<Link>>,
        closed: Option<&Arc<Link>>,
    ) {
        let mut closed = closed.map(Arc::clone);
        loop {
            let leg = Leg {
                to: call.to,
                at: call.at,
                from: call.from,
                came: came.map(|link| link.peer),
            };
            let refused = match self.next_of(leg, closed.as_ref()) {
                Next::Here(cell) => {
                    let arrived = came.map_or_else(Clock::now, |link| link.last_heard());
                    return remote::receive(&cell, &call, arrived);
                }
                Next::Link { link, at } => {
                    call.at = at;
                    match self.push_call(call, came, &link) {
                        None => return,
                        Some(back) => (call, closed) = (back, Some(link)),
                    }
                    continue;
                }
                Next::Hold(lost) => {
                    if let Some(process) = lost {
                        self.members.lose(call.to, process);
                    }
                    let actor = call.to;
                    match self.members.hold(call, self.limits.backlog_messages_max) {
                        Ok(()) => return,
                        // It has a place again, or is gone.
                        Err(Unheld::Moved(back)) => {
                            call = *back;
                            continue;
                        }
                        Err(Unheld::Full(back)) => {
                            call = *back;
                            let waited = Duration::ZERO;
                            AskError::Full { actor, waited }
                        }
                    }
                }
                Next::Dead => AskError::Dead(self.obituary(call.to)),
                Next::HostGone => self.host_gone(&call, closed.as_ref()),
                Next::Unreachable => match &closed {
                    Some(link) => AskError::LinkLost {
                        actor: call.to,
                        why: link.why(),
                    },
                    None => AskError::Unreachable(call.to),
                },
            };
            return self.refuse_call(&call, refused);
        }
    }

    /// Pushes a call to a link. Gives it back when the link has closed and its loss has not ended the
    /// call.
    fn push_call(&self, call: Call, came: Option<&Arc<Link>>, link: &Arc<Link>) -> Option<Call> {
        let (key, from) = (call.call, call.from);
        // What goes back where it came from is seen to there: its answer does not come by here.
        let is_back = came.is_some_and(|came| came.peer == link.peer);
        if key != 0 && from == self.process {
            // The word that nobody waits for it any more would not find it.
            if !self.pending.sent_via(key, Some(link.peer)) {
                return None;
            }
        } else if key != 0 && !is_back {
            self.forwards.insert((from, key), (link.peer, call.to));
        }
        let frame = Frame::Call(call);
        if link.push(&frame, true) {
            return None;
        }
        let Frame::Call(call) = frame else {
            return None;
        };
        let is_there = |known: &Arc<Link>| Arc::ptr_eq(known, link);
        if key != 0
            && from != self.process
            && !is_back
            && link.is_worker
            && self.links.get(&link.peer).is_some_and(|it| is_there(&it))
        {
            // Its process ends, and how it does will end the call.
            return None;
        }
        (is_back || self.is_still_wanted(&call)).then_some(call)
    }

    /// A call found its link closed. Returns false if the loss of the link has ended it.
    fn is_still_wanted(&self, call: &Call) -> bool {
        match call.call {
            0 => true,
            key if call.from == self.process => self.pending.sent_via(key, None),
            key => self.forwards.remove(&(call.from, key)).is_some(),
        }
    }

    /// The end of a call whose home does not know yet that the process of its actor is gone.
    fn host_gone(&self, call: &Call, closed: Option<&Arc<Link>>) -> AskError {
        let exit = self.exits.of(call.at).unwrap_or_else(|| {
            let status = "it ended before the message came";
            ProcessExit::new(call.at, status)
        });
        if let Some(link) = closed {
            return lost_call(call.to, link, &exit);
        }
        match exit.node {
            Some(_) => AskError::LinkLost {
                actor: call.to,
                why: exit.status,
            },
            None => AskError::Died(Down {
                id: call.to,
                incarnation: 0,
                reason: Reason::Failed(exit.into()),
            }),
        }
    }

    /// Nobody waits for the answer to a call of this process any more.
    pub(crate) fn withdraw(&self, call: u64, waiting: &Waiting) {
        let (to, from) = (waiting.actor, self.process);
        match waiting.via {
            // It follows the call, wherever the actor is said to be now.
            Some(via) => {
                if let Some(link) = self.links.get(&via) {
                    link.push(&Frame::Cancel { call, from, to }, true);
                }
            }
            // It may wait for its actor to be placed.
            None => self.members.drop_held(to, from, call),
        }
    }

    pub(super) fn receive_cancel(&self, call: u64, from: ProcessId, to: ActorId) {
        self.members.drop_held(to, from, call);
        if let Some((_, (neighbour, _))) = self.forwards.remove(&(from, call)) {
            self.send_to(neighbour, &Frame::Cancel { call, from, to });
        }
        if let Some(cell) = self.cells.get(&to) {
            cell.withdraw(from, call);
        }
    }

    /// Takes credit of a remote actor if there is some, and room on the link to it.
    pub(crate) fn try_credit(&self, actor: ActorId, hop: Option<&Hop>) -> Option<Arc<Credit>> {
        let room = hop.is_none_or(|hop| hop.link.has_room(&self.limits));
        let credit = room.then(|| self.credits.of(actor))?;
        credit.try_take().then_some(credit)
    }

    /// Waits for credit of a remote actor and room on the link to it, in the order of arrival.
    pub(crate) async fn credit(&self, actor: ActorId) -> Arc<Credit> {
        loop {
            let credit = self.credits.of(actor);
            let room = async {
                match self.hop_to(actor) {
                    Some(hop) => {
                        hop.link.wait_for_room(&self.limits).await;
                        true
                    }
                    // It is being placed, and its messages wait here.
                    None => actor.home == self.process,
                }
            };
            // A row ends when what was out on a link is lost: there may be another way now.
            match credit.wait(room).await {
                // Without a way, whoever sends finds out.
                Waited::Taken | Waited::NoWay => return credit,
                Waited::Ended => {}
            }
        }
    }
}
