//! A queue for pieces that are needed before all of them are there.

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

/// A queue between whoever fetches pieces and whoever reads them.
///
/// Who fetches takes the [`next`](Self::next) piece, puts it into the store and says that it
/// [`arrived`](Self::arrived). What a reader waits for is next, before all that is merely expected;
/// what nobody expects comes last, and rests while a reader waits.
#[derive(Debug)]
pub struct Arrivals {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    /// Pieces that readers wait for, next first.
    urgent: VecDeque<Piece>,
    /// Pieces that are expected to be wanted, next first.
    hot: VecDeque<Piece>,
    /// The rest, next first.
    cold: VecDeque<Piece>,
    /// Pieces that are being fetched, each with the pace at which its fetch began.
    under_way: HashMap<Digest, Pace>,
    /// Pieces that readers wait for.
    awaited: HashMap<Digest, Awaited>,
    /// The most that are fetched at a time without a reader who waits.
    calm_max: usize,
    stopped: bool,
}

/// The pace of a fetch: urgent where a reader waited for the piece when it began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pace {
    Urgent,
    Calm,
}

/// A piece that readers wait for.
#[derive(Default)]
struct Awaited {
    /// Those who block their threads.
    readers: usize,
    /// The end of the fetch; stays until the last of them has seen it.
    outcome: Option<Result<(), String>>,
    /// Those who do not.
    then: Vec<Then>,
}

type Then = Box<dyn FnOnce(Result<(), SupplyError>) + Send>;

impl std::fmt::Debug for Awaited {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Awaited")
            .field("readers", &(self.readers + self.then.len()))
            .field("outcome", &self.outcome)
            .finish_non_exhaustive()
    }
}

impl Arrivals {
    /// Has `pieces` fetched in this order, each once: those that are
    /// [missing](crate::Store::missing), by [heat](crate::Heat::order).
    #[must_use]
    pub fn new(pieces: impl IntoIterator<Item = Piece>) -> Self {
        Self::expecting(pieces, [], usize::MAX)
    }

    /// Has the `hot` pieces fetched in this order and then the `cold` ones, each once, and at most
    /// `calm_max` of them at the same time. What readers wait for has no bound.
    #[must_use]
    pub fn expecting(
        hot: impl IntoIterator<Item = Piece>,
        cold: impl IntoIterator<Item = Piece>,
        calm_max: usize,
    ) -> Self {
        let mut seen = HashSet::new();
        let mut once = |piece: &Piece| seen.insert(piece.digest);
        let hot = hot.into_iter().filter(&mut once).collect();
        let cold = cold.into_iter().filter(&mut once).collect();
        Self {
            state: Mutex::new(State {
                urgent: VecDeque::new(),
                hot,
                cold,
                under_way: HashMap::new(),
                awaited: HashMap::new(),
                calm_max,
                stopped: false,
            }),
            changed: Condvar::new(),
        }
    }

    /// The piece to fetch next. Waits when there is none, since readers may come to want one again
    /// that was damaged; `None` once it is [stopped](Self::stop).
    pub fn next(&self) -> Option<Piece> {
        let mut state = self.state();
        loop {
            let taken = state.take();
            if taken.is_some() || state.stopped {
                return taken;
            }
            let waited = self.changed.wait(state);
            state = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The piece to fetch next, without waiting.
    pub fn try_next(&self) -> Option<Piece> {
        self.state().take()
    }

    /// The piece is in the store now.
    pub fn arrived(&self, piece: &Digest) {
        self.end(piece, &Ok(()));
    }

    /// The piece could not be fetched. Who waits for it is told why; it is fetched again when it is
    /// wanted again.
    pub fn failed(&self, piece: &Digest, why: impl Into<String>) {
        self.end(piece, &Err(why.into()));
    }

    /// The piece could not be fetched just now: it is again after the others, or at once where a
    /// reader waits for it.
    pub fn later(&self, piece: &Piece) {
        let mut state = self.state();
        state.under_way.remove(&piece.digest);
        if state.is_awaited(&piece.digest) {
            state.urgent.push_back(*piece);
        } else {
            state.cold.push_back(*piece);
        }
        self.changed.notify_all();
    }

    /// Puts a piece before all others, unless it is being fetched already.
    pub fn hurry(&self, piece: &Piece) {
        self.state().hurry(piece);
        self.changed.notify_all();
    }

    /// Calls `then` when the piece is in the store, or does not come, and has it fetched before all
    /// that nobody waits for. It is called in the thread in which that becomes known.
    pub fn bring_then(
        &self,
        piece: &Piece,
        then: impl FnOnce(Result<(), SupplyError>) + Send + 'static,
    ) {
        let mut state = self.state();
        if state.stopped {
            drop(state);
            return then(Err(SupplyError::Stopped));
        }
        state.hurry(piece);
        let awaited = state.awaited.entry(piece.digest).or_default();
        awaited.then.push(Box::new(then));
        self.changed.notify_all();
    }

    /// Returns true while a reader waits for the piece.
    #[must_use]
    pub fn is_awaited(&self, piece: &Digest) -> bool {
        self.state().is_awaited(piece)
    }

    /// Returns true once all have arrived that were asked for.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        let state = self.state();
        let queues = [&state.urgent, &state.hot, &state.cold];
        queues.iter().all(|queue| queue.is_empty()) && state.under_way.is_empty()
    }

    /// Nothing more is fetched. Who waits for a piece is told.
    pub fn stop(&self) {
        let mut state = self.state();
        state.stopped = true;
        let awaited = state.awaited.values_mut();
        let then: Vec<Then> = awaited.flat_map(|it| it.then.drain(..)).collect();
        state.awaited.retain(|_, awaited| awaited.readers > 0);
        drop(state);
        self.changed.notify_all();
        for then in then {
            then(Err(SupplyError::Stopped));
        }
    }

    fn end(&self, piece: &Digest, outcome: &Result<(), String>) {
        let mut state = self.state();
        state.under_way.remove(piece);
        // It may have come by another way than the queue.
        if outcome.is_ok() {
            state.forget(piece);
        }
        let mut then = vec![];
        if let Some(awaited) = state.awaited.get_mut(piece) {
            then.append(&mut awaited.then);
            awaited.outcome = Some(outcome.clone());
            if awaited.readers == 0 {
                state.awaited.remove(piece);
            }
        }
        drop(state);
        self.changed.notify_all();
        for then in then {
            then(told(*piece, outcome.clone()));
        }
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
        if let Some(piece) = self.urgent.pop_front() {
            self.under_way.insert(piece.digest, Pace::Urgent);
            return Some(piece);
        }
        let urgent = self
            .under_way
            .values()
            .filter(|pace| **pace == Pace::Urgent);
        let urgent = urgent.count();
        if self.under_way.len() - urgent >= self.calm_max {
            return None;
        }
        let piece = self.hot.pop_front();
        // What nobody expects would take room on the way from what somebody waits for.
        let piece = piece.or_else(|| (urgent == 0).then(|| self.cold.pop_front())?)?;
        self.under_way.insert(piece.digest, Pace::Calm);
        Some(piece)
    }

    fn hurry(&mut self, piece: &Piece) {
        if self.under_way.contains_key(&piece.digest) {
            return;
        }
        self.forget(&piece.digest);
        self.urgent.push_front(*piece);
    }

    fn forget(&mut self, piece: &Digest) {
        for queue in [&mut self.urgent, &mut self.hot, &mut self.cold] {
            queue.retain(|it| it.digest != *piece);
        }
    }

    fn is_awaited(&self, piece: &Digest) -> bool {
        let awaited = self.awaited.get(piece);
        awaited.is_some_and(|it| it.outcome.is_none() && (it.readers > 0 || !it.then.is_empty()))
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
        if awaited.readers == 0 && awaited.then.is_empty() {
            state.awaited.remove(&piece.digest);
        }
        match outcome {
            Some(outcome) => told(piece.digest, outcome),
            None => Err(SupplyError::Stopped),
        }
    }
}

fn told(piece: Digest, outcome: Result<(), String>) -> Result<(), SupplyError> {
    outcome.map_err(|why| SupplyError::Failed { piece, why })
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
    use std::time::Duration;

    use proptest::prelude::*;

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
    fn what_nobody_expects_rests_while_a_reader_waits() {
        let [a, b, c] = pieces();
        let d = Piece::of(b"d");
        let arrivals = Arrivals::expecting([a, b], [c, a, d], 1);
        assert_eq!(arrivals.next(), Some(a));
        // One at a time, but for readers.
        assert_eq!(arrivals.try_next(), None);
        arrivals.bring_then(&d, |_| {});
        assert!(arrivals.is_awaited(&d.digest) && !arrivals.is_awaited(&b.digest));
        assert_eq!(arrivals.try_next(), Some(d));
        arrivals.arrived(&a.digest);
        // What is expected goes on beside it.
        assert_eq!(arrivals.try_next(), Some(b));
        arrivals.later(&b);
        assert_eq!(arrivals.try_next(), None);
        arrivals.arrived(&d.digest);
        assert_eq!(arrivals.try_next(), Some(c));
        arrivals.arrived(&c.digest);
        assert_eq!(arrivals.try_next(), Some(b));
        assert!(!arrivals.is_idle());
        arrivals.arrived(&b.digest);
        assert!(arrivals.is_idle());
    }

    #[test]
    fn who_does_not_block_is_told_once_how_it_ended() {
        let [a, b, c] = pieces();
        let arrivals = Arrivals::new([]);
        let (tell, told) = std::sync::mpsc::channel();
        for piece in [a, a, b, c] {
            let tell = tell.clone();
            arrivals.bring_then(&piece, move |outcome| tell.send((piece, outcome)).unwrap());
        }
        for _ in 0..3 {
            arrivals.next().unwrap();
        }
        arrivals.arrived(&a.digest);
        arrivals.arrived(&a.digest);
        arrivals.failed(&b.digest, "no peer has it");
        arrivals.stop();
        let mut heard: Vec<_> = told.try_iter().collect();
        let (piece, why) = (b.digest, "no peer has it".to_owned());
        assert_eq!(heard.pop(), Some((c, Err(SupplyError::Stopped))));
        assert_eq!(
            heard.pop(),
            Some((b, Err(SupplyError::Failed { piece, why })))
        );
        assert_eq!(heard, [(a, Ok(())), (a, Ok(()))]);
        arrivals.bring_then(&a, move |outcome| tell.send((a, outcome)).unwrap());
        assert_eq!(told.try_recv(), Ok((a, Err(SupplyError::Stopped))));
        assert!(arrivals.state().awaited.is_empty());
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
                // A minute at least.
                let answered = (0..60_000).any(|_| {
                    arrivals.arrived(&a.digest);
                    std::thread::park_timeout(Duration::from_millis(1));
                    reader.is_finished()
                });
                assert!(answered, "a reader that waits is never answered");
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

    proptest! {
        #[test]
        fn who_waits_is_served_first_and_each_piece_comes_once(
            hot in prop::collection::vec(0_u8..12, 0..8),
            cold in prop::collection::vec(0_u8..12, 0..12),
            calm_max in 1_usize..4,
            // A reader asks for a piece, or who fetches takes one, or one of those arrives.
            steps in prop::collection::vec((0_u8..3, 0_u8..12), 0..80),
        ) {
            let piece = |n: &u8| Piece::of(&[*n]);
            let all: HashSet<Piece> = hot.iter().chain(&cold).map(piece).collect();
            let mut left = all.clone();
            let (hot, cold) = (hot.iter().map(piece), cold.iter().map(piece));
            let arrivals = Arrivals::expecting(hot, cold, calm_max);
            let mut waiting: HashSet<Piece> = HashSet::new();
            let mut under_way: Vec<Piece> = vec![];
            let take = |waiting: &HashSet<Piece>, under_way: &mut Vec<Piece>| -> Result<_, TestCaseError> {
                let Some(piece) = arrivals.try_next() else { return Ok(None) };
                prop_assert!(!under_way.contains(&piece), "it is fetched twice at once");
                let first = waiting.iter().any(|it| !under_way.contains(it));
                prop_assert!(!first || waiting.contains(&piece), "somebody waits for another");
                under_way.push(piece);
                Ok(Some(piece))
            };
            for (step, n) in steps {
                match step {
                    0 => {
                        // One that came before is damaged, or was never expected.
                        arrivals.bring_then(&piece(&n), |_| {});
                        waiting.insert(piece(&n));
                    }
                    1 => {
                        take(&waiting, &mut under_way)?;
                    }
                    _ if under_way.is_empty() => {}
                    _ => {
                        let came = under_way.remove(usize::from(n) % under_way.len());
                        arrivals.arrived(&came.digest);
                        waiting.remove(&came);
                        left.remove(&came);
                    }
                }
            }
            // All that is expected comes in the end, and nothing more.
            loop {
                while take(&waiting, &mut under_way)?.is_some() {}
                let Some(came) = under_way.pop() else { break };
                arrivals.arrived(&came.digest);
                waiting.remove(&came);
                left.remove(&came);
            }
            prop_assert!(arrivals.is_idle() && left.is_empty() && waiting.is_empty());
        }
    }
}
