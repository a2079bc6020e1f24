//! How pieces come that are needed before all are there.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::{Digest, Piece};

/// Brings pieces into a store.
pub trait Supply {
    /// Waits until the piece is in the store, and has it brought before all that nobody waits for.
    ///
    /// # Errors
    /// When it does not come.
    fn bring(&self, piece: &Piece) -> Result<(), SupplyError>;
}

impl<S: Supply + ?Sized> Supply for Arc<S> {
    fn bring(&self, piece: &Piece) -> Result<(), SupplyError> {
        (**self).bring(piece)
    }
}

impl<S: Supply + ?Sized> Supply for &S {
    fn bring(&self, piece: &Piece) -> Result<(), SupplyError> {
        (**self).bring(piece)
    }
}

/// A queue between threads that fetch pieces and threads that read them.
///
/// Who fetches takes the [`next`](Self::next) piece, puts it into the store and says that it
/// [`arrived`](Self::arrived). What a reader waits for is next.
#[derive(Debug)]
pub struct Arrivals {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    /// What is to be fetched, next first.
    queue: VecDeque<Piece>,
    /// What is being fetched.
    under_way: HashSet<Digest>,
    /// What readers wait for.
    awaited: HashMap<Digest, Awaited>,
    stopped: bool,
}

/// A piece that readers wait for.
#[derive(Debug, Default)]
struct Awaited {
    readers: usize,
    /// How it ended; stays until the last of the readers has seen it.
    outcome: Option<Result<(), String>>,
}

impl Arrivals {
    /// Has `pieces` fetched in this order, each once: those that are
    /// [missing](crate::Store::missing), by [heat](crate::Heat::order).
    #[must_use]
    pub fn new(pieces: impl IntoIterator<Item = Piece>) -> Self {
        let mut seen = HashSet::new();
        let queue = pieces.into_iter().filter(|piece| seen.insert(piece.digest));
        Self {
            state: Mutex::new(State {
                queue: queue.collect(),
                under_way: HashSet::new(),
                awaited: HashMap::new(),
                stopped: false,
            }),
            changed: Condvar::new(),
        }
    }

    /// The piece to fetch next. Waits when there is none, since readers may come to want one again
    /// that was damaged; `None` once it is [stopped](Self::stop).
    pub fn next(&self) -> Option<Piece> {
        let idle = |state: &mut State| state.queue.is_empty() && !state.stopped;
        let waited = self.changed.wait_while(self.state(), idle);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner);
        state.take()
    }

    /// The piece to fetch next, without waiting.
    pub fn try_next(&self) -> Option<Piece> {
        self.state().take()
    }

    /// The piece is in the store now.
    pub fn arrived(&self, piece: &Digest) {
        self.end(piece, Ok(()));
    }

    /// The piece could not be fetched. Who waits for it is told why; it is fetched again when it is
    /// wanted again.
    pub fn failed(&self, piece: &Digest, why: impl Into<String>) {
        self.end(piece, Err(why.into()));
    }

    /// Puts a piece before all others, unless it is being fetched already.
    pub fn hurry(&self, piece: &Piece) {
        self.state().hurry(piece);
        self.changed.notify_all();
    }

    /// Nothing more is fetched. Who waits for a piece is told.
    pub fn stop(&self) {
        self.state().stopped = true;
        self.changed.notify_all();
    }

    fn end(&self, piece: &Digest, outcome: Result<(), String>) {
        let mut state = self.state();
        state.under_way.remove(piece);
        // It may have come by another way than the queue.
        if outcome.is_ok() {
            state.queue.retain(|it| it.digest != *piece);
        }
        if let Some(awaited) = state.awaited.get_mut(piece) {
            awaited.outcome = Some(outcome);
        }
        self.changed.notify_all();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No step in between leaves a state that cannot be gone on with.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn take(&mut self) -> Option<Piece> {
        if self.stopped {
            return None;
        }
        let piece = self.queue.pop_front()?;
        self.under_way.insert(piece.digest);
        Some(piece)
    }

    fn hurry(&mut self, piece: &Piece) {
        if self.under_way.contains(&piece.digest) {
            return;
        }
        self.queue.retain(|it| it.digest != piece.digest);
        self.queue.push_front(*piece);
    }
}

impl Supply for Arrivals {
    fn bring(&self, piece: &Piece) -> Result<(), SupplyError> {
        let mut state = self.state();
        if state.stopped {
            return Err(SupplyError::Stopped);
        }
        state.hurry(piece);
        state.awaited.entry(piece.digest).or_default().readers += 1;
        self.changed.notify_all();
        let pending = |state: &mut State| {
            let awaited = &state.awaited[&piece.digest];
            awaited.outcome.is_none() && !state.stopped
        };
        let waited = self.changed.wait_while(state, pending);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner);
        let awaited = state
            .awaited
            .get_mut(&piece.digest)
            .expect("it stays until its last reader goes");
        awaited.readers -= 1;
        let outcome = awaited.outcome.clone();
        if awaited.readers == 0 {
            state.awaited.remove(&piece.digest);
        }
        match outcome {
            Some(Ok(())) => Ok(()),
            Some(Err(why)) => Err(SupplyError::Failed {
                piece: piece.digest,
                why,
            }),
            None => Err(SupplyError::Stopped),
        }
    }
}

/// A piece that does not come.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SupplyError {
    /// It could not be fetched this time.
    #[error("piece {piece} could not be fetched: {why}")]
    Failed {
        /// Which.
        piece: Digest,
        /// Why not.
        why: String,
    },
    /// Nobody fetches any more.
    #[error("nothing more is fetched")]
    Stopped,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces() -> [Piece; 3] {
        [b"a", b"b", b"c"].map(|bytes| Piece::of(bytes))
    }

    #[test]
    fn what_is_waited_for_jumps_the_queue() {
        let [a, b, c] = pieces();
        let arrivals = Arrivals::new([a, b, a, c]);
        assert_eq!(arrivals.next(), Some(a));
        // It is being fetched, so there is nothing to hurry.
        arrivals.hurry(&a);
        arrivals.hurry(&c);
        assert_eq!(arrivals.next(), Some(c));
        assert_eq!(arrivals.try_next(), Some(b));
        assert_eq!(arrivals.try_next(), None);
        // Here and damaged since: it is fetched again.
        arrivals.arrived(&a.digest);
        arrivals.hurry(&a);
        assert_eq!(arrivals.next(), Some(a));
    }

    #[test]
    fn what_came_by_another_way_is_not_fetched() {
        let [a, b, _] = pieces();
        let arrivals = Arrivals::new([a, b]);
        arrivals.arrived(&a.digest);
        assert_eq!(arrivals.next(), Some(b));
    }

    #[test]
    fn all_who_wait_for_a_piece_hear_of_it() {
        let [a, b, c] = pieces();
        let arrivals = Arrivals::new([]);
        std::thread::scope(|scope| {
            let ask = |piece| {
                scope.spawn({
                    let arrivals = &arrivals;
                    move || arrivals.bring(&piece)
                })
            };
            let (first, second, failing, late) = (ask(a), ask(a), ask(b), ask(c));
            let mut left = HashSet::from([a, b, c]);
            while !left.is_empty() {
                left.remove(&arrivals.next().unwrap());
            }
            // The second reader of the first piece may not have asked yet; then it asks anew.
            arrivals.arrived(&a.digest);
            arrivals.failed(&b.digest, "no peer has it");
            assert_eq!(
                failing.join().unwrap().unwrap_err().to_string(),
                format!("piece {} could not be fetched: no peer has it", b.digest)
            );
            let answered = [first, second].into_iter().map(|reader| {
                while !reader.is_finished() {
                    arrivals.arrived(&a.digest);
                    std::thread::yield_now();
                }
                reader.join().unwrap()
            });
            assert!(answered.into_iter().all(|answer| answer == Ok(())));
            arrivals.stop();
            assert_eq!(late.join().unwrap(), Err(SupplyError::Stopped));
        });
        assert_eq!(arrivals.next(), None);
        assert_eq!(arrivals.bring(&a), Err(SupplyError::Stopped));
        assert!(arrivals.state().awaited.is_empty());
    }
}
