//! The router: where a call goes next, decided from what a process knows and from nothing else.
//!
//! ```text
//!  hosted here ──> Here
//!  this is its home ──> where the row says: Link, Hold while it is placed, Dead when it is gone
//!  another is its home ──> Link to the process that its home named, else towards that home
//! ```

use crate::base::id::{ActorId, ProcessId};

/// The place of an actor, as the row at its home tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RowSite {
    /// In this process, or in none any more.
    Gone,
    /// In another process.
    At(ProcessId),
    /// It is being placed, and its messages wait.
    Nowhere,
}

/// One leg of the way of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Leg {
    pub(crate) to: ActorId,
    /// The process that the actor's home has named as its host; 0 when it has not.
    pub(crate) at: ProcessId,
    /// The process that has made the call.
    pub(crate) from: ProcessId,
    /// The neighbour that it came from; `None` in the process that has made it.
    pub(crate) came: Option<ProcessId>,
}

/// The facts that a process has of actors, and its ways out.
pub(crate) trait View {
    /// An actor that is hosted here.
    type Cell;
    /// The way to a neighbour.
    type Link;

    /// The actor, if it is hosted here.
    fn hosted(&self, actor: ActorId) -> Option<Self::Cell>;

    /// Its place by its row, if this is its home.
    fn site(&self, actor: ActorId) -> Option<RowSite>;

    /// The neighbour that a link leads to.
    fn peer(link: &Self::Link) -> ProcessId;

    /// The link that leads towards a process.
    fn towards(&self, process: ProcessId) -> Option<Self::Link>;

    /// Returns true if a process is a neighbour, or is known to be behind one.
    fn knows(&self, process: ProcessId) -> bool;
}

/// Where a call goes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next<C, L> {
    /// Into a mailbox of this process.
    Here(C),
    /// Over a link.
    Link {
        link: L,
        /// The process that hosts the actor, where that is known; else 0.
        at: ProcessId,
    },
    /// Nowhere until the actor is placed again. The way to the process that has it, if one is named,
    /// has closed, and the row does not say so yet.
    Hold(Option<ProcessId>),
    /// Nowhere any more.
    Dead,
    /// Nowhere: the process that its home has named as its host is gone, which the home does not know yet.
    HostGone,
    /// No link leads on.
    Unreachable,
}

/// Decides where a call goes next from the process `here`.
pub(crate) fn next<V: View>(here: ProcessId, leg: Leg, view: &V) -> Next<V::Cell, V::Link> {
    if let Some(cell) = view.hosted(leg.to) {
        return Next::Here(cell);
    }
    let over = |link: Option<V::Link>, at, or| link.map_or(or, |link| Next::Link { link, at });
    if leg.came.is_some() && leg.at == here && view.site(leg.to).is_none() {
        // Its home sent the call here, perhaps back, where the actor has ended meanwhile.
        return Next::Dead;
    }
    if leg.came.is_some() && leg.from == here {
        // It came back: its home has named a host that is reached through this process.
        let onward = view.towards(leg.at).filter(|_| view.knows(leg.at));
        let onward = onward.filter(|link| Some(V::peer(link)) != leg.came);
        return over(onward, leg.at, Next::HostGone);
    }
    match view.site(leg.to) {
        Some(RowSite::Gone) => return Next::Dead,
        Some(RowSite::Nowhere) => return Next::Hold(None),
        Some(RowSite::At(process)) => {
            return over(view.towards(process), process, Next::Hold(Some(process)));
        }
        None => {}
    }
    if leg.came.is_some() && view.knows(leg.at) {
        // On the way from its home to the process that hosts it.
        return over(view.towards(leg.at), leg.at, Next::HostGone);
    }
    // Whoever sent it here over the same link knows no better.
    let towards = view.towards(leg.to.home);
    let onward = towards.filter(|link| Some(V::peer(link)) != leg.came);
    // The home is there, and has named a host that is not any more.
    let named = leg.came.is_some() && ![ProcessId(0), leg.to.home].contains(&leg.at);
    let none = if named {
        Next::HostGone
    } else {
        Next::Unreachable
    };
    over(onward, ProcessId(0), none)
}

#[cfg(test)]
mod tests;
