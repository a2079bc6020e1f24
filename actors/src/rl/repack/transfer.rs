//! One move as it is made: the source drains before anything is taken from it, and whoever is lost
//! on the way, every request is in one place. Pure: events in, commands out.
//!
//! Whose a request is, is told by the events as they were heard: the source's until
//! [`Event::Aborted`], then the move's, and the destination's from [`Event::Admitted`] on, or again
//! the source's from [`Command::Restore`] on. When a replica is lost, what is its own by then is
//! given out again, as everything that a lost replica had.
//!
//! ```text
//! Drain -> Abort -> Admit -> Pull          the way of a move that succeeds
//!            |        +----> Restore       the destination refuses or is gone
//!            +-------------> Restore       the destination is gone before
//!                     +----> Reopen        both are gone
//! ```

use super::{Move, RepackLimits, ReplicaId, Snapshot, Unfit, can_fit};

/// What is to be done next. `R` is a request with what it has generated so far.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Command<R> {
    /// Mark the source as draining: it takes no new requests. Answer with [`Event::Drained`].
    Drain(ReplicaId),
    /// Have the source stop its requests and hand them over. Answer with [`Event::Aborted`].
    Abort(ReplicaId),
    /// Have the destination go on with them, by their tokens or their KV cache. Answer with
    /// [`Event::Admitted`] or [`Event::Refused`]; it takes all of them or none.
    Admit(ReplicaId, Vec<R>),
    /// The source is empty: newest weights, then new prompts. The move is over.
    Pull(ReplicaId),
    /// The source serves again, and goes on with these. It has the same weights as before. The move
    /// is over.
    Restore(ReplicaId, Vec<R>),
    /// Both are gone: give these to another replica of the version, as those of any lost one. The
    /// move is over.
    Reopen(Vec<R>),
}

/// What has happened.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event<R> {
    /// The source is marked.
    Drained,
    /// The source has stopped; these had not ended.
    Aborted(Vec<R>),
    /// The destination has them.
    Admitted,
    /// The destination has none of them.
    Refused,
    /// This replica is gone for good: it is fenced, or whatever it still reports is refused.
    Gone(ReplicaId),
}

/// One move under way. See the module.
#[derive(Clone, Debug)]
pub struct Transfer<R> {
    planned: Move,
    state: State<R>,
}

#[derive(Clone, Debug)]
enum State<R> {
    Draining,
    Aborting,
    /// As before, and the destination is gone.
    Returning,
    Admitting(Vec<R>),
    /// As before, and the source is gone.
    Orphaned(Vec<R>),
    Over,
}

impl<R: Clone> Transfer<R> {
    /// Looks at the move again and begins it.
    ///
    /// # Errors
    /// When it does not fit any more; see [`can_fit`]. Nothing was begun.
    pub fn begin(
        planned: Move,
        now: &Snapshot,
        under_way: &[Move],
        limits: &RepackLimits,
    ) -> Result<(Self, Command<R>), Unfit> {
        can_fit(&planned, now, under_way, limits)?;
        let transfer = Self {
            planned,
            state: State::Draining,
        };
        Ok((transfer, Command::Drain(planned.source)))
    }

    /// What is to be done now that this has happened; `None` when it is nothing. What comes late or
    /// twice changes nothing.
    pub fn on(&mut self, event: Event<R>) -> Option<Command<R>> {
        let Move {
            source,
            destination,
            ..
        } = self.planned;
        let state = std::mem::replace(&mut self.state, State::Over);
        let (state, command) = match (state, event) {
            (State::Draining, Event::Drained) => (State::Aborting, Some(Command::Abort(source))),
            (State::Draining, Event::Gone(who)) if who == destination => {
                (State::Over, Some(Command::Restore(source, vec![])))
            }
            (State::Aborting | State::Returning, Event::Aborted(requests))
                if requests.is_empty() =>
            {
                (State::Over, Some(Command::Pull(source)))
            }
            (State::Aborting, Event::Aborted(requests)) => {
                let admit = Command::Admit(destination, requests.clone());
                (State::Admitting(requests), Some(admit))
            }
            (State::Aborting, Event::Gone(who)) if who == destination => (State::Returning, None),
            (State::Returning, Event::Aborted(requests)) => {
                (State::Over, Some(Command::Restore(source, requests)))
            }
            (State::Draining | State::Aborting | State::Returning, Event::Gone(who))
                if who == source =>
            {
                (State::Over, None)
            }
            (State::Admitting(_), Event::Admitted) => (State::Over, Some(Command::Pull(source))),
            (State::Admitting(requests), Event::Refused) => {
                (State::Over, Some(Command::Restore(source, requests)))
            }
            (State::Admitting(requests), Event::Gone(who)) if who == destination => {
                (State::Over, Some(Command::Restore(source, requests)))
            }
            (State::Admitting(requests), Event::Gone(who)) if who == source => {
                (State::Orphaned(requests), None)
            }
            (State::Orphaned(_), Event::Admitted) => (State::Over, None),
            (State::Orphaned(requests), Event::Refused) => {
                (State::Over, Some(Command::Reopen(requests)))
            }
            (State::Orphaned(requests), Event::Gone(who)) if who == destination => {
                (State::Over, Some(Command::Reopen(requests)))
            }
            (state, _) => (state, None),
        };
        self.state = state;
        command
    }

    /// The move that this is.
    #[must_use]
    pub const fn planned(&self) -> Move {
        self.planned
    }

    /// Whether nothing more comes of it.
    #[must_use]
    pub const fn is_over(&self) -> bool {
        matches!(self.state, State::Over)
    }
}
