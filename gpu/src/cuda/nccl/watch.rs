//! The thread that looks after a communicator of NCCL, so that no call of it waits for ever.
//!
//! A call is a *flight* from when it is queued until the card has passed the place behind it. The
//! thread looks at the flights, at NCCL's errors, and at what the other ranks' threads say over the
//! transport of the communicator on the processor. When a flight takes too long, it asks all ranks
//! what they have called; whoever is to blame is told to all, and NCCL is made to give up.

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::library::Comm;
use super::now;
use crate::cuda::card::Card;
use odeon_collective::{
    CollectiveCall, CollectiveError, Failed, Fault, Membership, Operation, Report, Transport,
    Trouble,
};
use odeon_diagnosis::Detector;
use odeon_diagnosis::collective::{
    Differences, Heard, Kind, Log, RankWord, Record, Stuck, StuckCalls, WORD_BYTES_MAX, is_pair,
};

/// The longest that the thread sleeps while a call is under way.
const BUSY: Duration = Duration::from_millis(1);
/// The longest that it sleeps while none is; the interval, too, at which it asks the transport whether
/// all ranks are there and tells them of new calls.
const IDLE: Duration = Duration::from_millis(10);
/// The part of a deadline, one in so many, that is kept at its end to ask the ranks who is late.
const GRACE_SHARE: u32 = 4;
/// The longest time that is kept for that.
const GRACE_MAX: Duration = Duration::from_millis(500);

/// The state that the caller and the thread share.
#[derive(Debug)]
pub(super) struct Shared<C: Card> {
    pub(super) held: Mutex<Held<C>>,
    pub(super) changed: Condvar,
}

#[derive(Debug)]
pub(super) struct Held<C: Card> {
    /// As long as it may be called.
    pub(super) comm: Option<Comm>,
    pub(super) log: Log,
    pub(super) flights: VecDeque<Flight<C::Mark>>,
    /// Calls that were queued, and those of them that have ended well.
    pub(super) queued: u64,
    pub(super) landed: u64,
    pub(super) deadline: Duration,
    /// The failure here, until it is known who is to blame.
    pub(super) suspicion: Option<String>,
    pub(super) broken: Option<Report>,
    /// The first failure as the caller was told.
    pub(super) failed: Option<Box<Failed>>,
    pub(super) told: bool,
    /// The caller makes no more calls.
    pub(super) closing: bool,
    /// The thread is done.
    pub(super) ended: bool,
}

/// A call on its way.
#[derive(Debug)]
pub(super) struct Flight<M> {
    pub(super) record: Record,
    /// The place behind it, once NCCL has queued it.
    pub(super) mark: Option<M>,
    /// When it was called, or the one before it ended.
    pub(super) since: Instant,
    pub(super) deadline: Duration,
}

impl<C: Card> Held<C> {
    pub(super) fn new(world: usize, deadline: Duration) -> Self {
        Self {
            comm: None,
            log: Log::new(world),
            flights: VecDeque::new(),
            queued: 0,
            landed: 0,
            deadline,
            suspicion: None,
            broken: None,
            failed: None,
            told: false,
            closing: false,
            ended: false,
        }
    }

    /// Takes off what has ended.
    pub(super) fn land(&mut self, card: &C) {
        while let Some(mark) = self.flights.front().and_then(|flight| flight.mark.as_ref()) {
            match card.has_passed(mark) {
                Ok(true) => {
                    self.flights.pop_front();
                    self.landed += 1;
                    if let Some(next) = self.flights.front_mut() {
                        next.since = next.since.max(now());
                    }
                }
                Ok(false) => return,
                Err(fault) => {
                    self.suspicion.get_or_insert_with(|| fault.to_string());
                    return;
                }
            }
        }
    }

    /// Returns true when NCCL takes another call. What it says against it is a suspicion.
    pub(super) fn is_ready(&mut self) -> bool {
        match self.comm.as_ref().map(Comm::is_ready) {
            Some(Ok(ready)) => ready,
            Some(Err(refusal)) => {
                self.suspicion.get_or_insert_with(|| refusal.to_string());
                false
            }
            None => false,
        }
    }

    /// The error of a call, when the communicator is broken: the first to meet it learns why, and
    /// the later ones that it was so before.
    pub(super) fn usable(
        &mut self,
        membership: &Membership,
        call: &CollectiveCall,
    ) -> Result<(), CollectiveError> {
        let Some(report) = &self.broken else {
            return Ok(());
        };
        let sequence = self.log.next(call);
        let first = self
            .failed
            .get_or_insert_with(|| failed(membership, sequence, *call, report.clone()))
            .clone();
        Err(if mem::replace(&mut self.told, true) {
            CollectiveError::Broken { first }
        } else {
            CollectiveError::Failed(first)
        })
    }
}

fn failed(
    membership: &Membership,
    sequence: u64,
    call: CollectiveCall,
    report: Report,
) -> Box<Failed> {
    Box::new(Failed {
        rank: membership.rank,
        generation: membership.generation,
        sequence,
        call,
        report,
    })
}

/// The thread's own.
#[derive(Debug)]
pub(super) struct Watch<X, C: Card> {
    transport: X,
    rank: usize,
    shared: Arc<Shared<C>>,
    card: Arc<C>,
    /// The call that a fault is told with when nothing is under way.
    idle: CollectiveCall,
    wires: Vec<Wire>,
    inquiry: Option<Inquiry>,
    /// Calls, of all ranks and of pairs, that were told last, and when.
    beat: (u64, Instant),
    /// Since when this rank parts with the others.
    parting: Option<Instant>,
    /// When the transport was last asked whether all are there.
    asked: Instant,
}

/// The bytes that came from a rank, and those that are yet to go to it.
#[derive(Clone, Debug, Default)]
struct Wire {
    incoming: Vec<u8>,
    outgoing: Vec<u8>,
    heard: Option<RankWord>,
    answered: bool,
    /// Its word on calls that this rank had yet to make.
    ahead: Option<RankWord>,
}

#[derive(Clone, Copy, Debug)]
struct Inquiry {
    since: Instant,
    /// When the ranks are asked again.
    again: Instant,
}

/// The fault when this rank and another one have called different things.
fn difference(rank: usize, log: &Log, other: usize, word: &RankWord) -> Option<Fault> {
    let seen = Heard {
        rank,
        log,
        other,
        word,
    };
    let found = Differences.observe(&seen, now()).pop();
    found.map(|found| found.cause)
}

impl<X: Transport, C: Card> Watch<X, C> {
    pub(super) fn new(
        transport: X,
        shared: &Arc<Shared<C>>,
        card: &Arc<C>,
        idle: CollectiveCall,
    ) -> Self {
        let (rank, world) = (transport.membership().rank, transport.membership().world());
        Self {
            transport,
            rank,
            shared: Arc::clone(shared),
            card: Arc::clone(card),
            idle,
            wires: vec![Wire::default(); world],
            inquiry: None,
            beat: (0, now()),
            parting: None,
            asked: now(),
        }
    }

    /// Until the caller has gone and all is given back.
    pub(super) fn run(self) {
        // Dropped after all that the thread holds: who waits for it may end the process.
        let _end = End(Arc::clone(&self.shared));
        self.watch();
    }

    fn watch(mut self) {
        loop {
            match self.step(now()) {
                Ok(true) => {}
                Ok(false) => return,
                Err(trouble) => {
                    self.fail(trouble);
                    break;
                }
            }
            let shared = Arc::clone(&self.shared);
            let mut held = shared.held.lock();
            let busy = self.inquiry.is_some() || self.parting.is_some() || !held.flights.is_empty();
            if held.suspicion.is_none() || self.inquiry.is_some() {
                let pause = if busy { BUSY } else { IDLE };
                shared.changed.wait_for(&mut held, pause);
            }
        }
        // The others may still read the report, so the transport stays until the caller goes.
        let mut held = self.shared.held.lock();
        while !held.closing {
            self.shared.changed.wait(&mut held);
        }
    }

    /// Looks at everything once. Returns true if there is more to look at.
    fn step(&mut self, now: Instant) -> Result<bool, Trouble> {
        let heard = self.hear(now);
        let shared = Arc::clone(&self.shared);
        let mut held = shared.held.lock();
        held.land(&self.card);
        let ready = held.is_ready();
        if held.closing && held.flights.is_empty() {
            // Who is gone has parted before; a report tells that somebody has given up instead.
            let told = matches!(heard, Err(Trouble::Told(_)));
            return Ok(!told && self.part(&mut held, ready, now));
        }
        heard?;
        self.catch_up(&held)?;
        self.look_for_leavers(&held)?;
        let due = self.judge(&held, now);
        self.speak(&held, now);
        drop(held);
        self.send()?;
        shared.changed.notify_all();
        due.map_or(Ok(true), |fault| Err(Trouble::Found(fault)))
    }

    fn others(&self) -> impl Iterator<Item = usize> + use<X, C> {
        let rank = self.rank;
        (0..self.wires.len()).filter(move |other| *other != rank)
    }

    /// Takes what the others say.
    fn hear(&mut self, now: Instant) -> Result<(), Trouble> {
        for other in self.others() {
            let mut bytes = [0; 4096];
            loop {
                let got = self.transport.receive_some(other, &mut bytes)?;
                self.wires[other].incoming.extend(&bytes[..got]);
                if got < bytes.len() {
                    break;
                }
            }
            while let Some((kind, word)) = self.next_word(other)? {
                self.take(other, kind, word)?;
            }
        }
        if now.duration_since(self.asked) >= IDLE {
            self.asked = now;
            let others: Vec<usize> = self.others().collect();
            self.transport.wait(&[], &others, now)?;
        }
        Ok(())
    }

    fn next_word(&mut self, other: usize) -> Result<Option<(Kind, RankWord)>, Trouble> {
        let garbled = |why: &str| {
            let why = why.to_owned();
            Trouble::Found(Fault::Garbled { rank: other, why })
        };
        let incoming = &mut self.wires[other].incoming;
        let Some((len, rest)) = incoming.split_first_chunk::<4>() else {
            return Ok(None);
        };
        let len = u32::from_le_bytes(*len) as usize;
        if len > WORD_BYTES_MAX {
            return Err(garbled("it is too long"));
        }
        let Some(bytes) = rest.get(..len) else {
            return Ok(None);
        };
        let word = RankWord::decode(bytes, self.transport.membership()).map_err(garbled)?;
        incoming.drain(..4 + len);
        Ok(Some(word))
    }

    fn take(&mut self, other: usize, kind: Kind, word: RankWord) -> Result<(), Trouble> {
        let rank = self.rank;
        let held = self.shared.held.lock();
        let waiting = held.flights.front().map(|flight| &flight.record);
        let ours = held.log.word(other, waiting, held.closing);
        let fault = difference(rank, &held.log, other, &word);
        let is_ahead = word.begun > held.log.begun;
        drop(held);
        let wire = &mut self.wires[other];
        if is_ahead {
            wire.ahead.get_or_insert_with(|| word.clone());
        }
        wire.answered |= kind == Kind::Answer;
        wire.heard = Some(word);
        if kind == Kind::Question {
            self.say(other, Kind::Answer, &ours);
        }
        fault.map_or(Ok(()), |fault| Err(Trouble::Found(fault)))
    }

    /// Compares what others told of calls that this rank had yet to make, and has made now.
    fn catch_up(&mut self, held: &Held<C>) -> Result<(), Trouble> {
        for other in self.others() {
            let ahead = &mut self.wires[other].ahead;
            let reached = ahead.take_if(|word| word.begun <= held.log.begun);
            let fault = reached.and_then(|word| difference(self.rank, &held.log, other, &word));
            if let Some(fault) = fault {
                return Err(Trouble::Found(fault));
            }
        }
        Ok(())
    }

    /// Meets a call that a rank will not make any more.
    fn look_for_leavers(&self, held: &Held<C>) -> Result<(), Trouble> {
        let Some(flight) = held.flights.front() else {
            return Ok(());
        };
        let Record { sequence, call, .. } = &flight.record;
        let gone = self.others().find(|other| {
            self.wires[*other].heard.as_ref().is_some_and(|word| {
                let its = match call.operation {
                    Operation::Send => word.receives,
                    Operation::Receive => word.sends,
                    _ => word.begun,
                };
                let has_part = !is_pair(call) || call.peer as usize == *other;
                word.leaving && has_part && its < *sequence
            })
        });
        let why = || "it has given up its membership".to_owned();
        gone.map_or(Ok(()), |rank| {
            Err(Trouble::Found(Fault::Lost { rank, why: why() }))
        })
    }

    /// The fault, if it is time for one. Asks the others before.
    fn judge(&mut self, held: &Held<C>, now: Instant) -> Option<Fault> {
        let front = held.flights.front();
        let deadline = front.map_or(held.deadline, |flight| flight.deadline);
        let grace = (deadline / GRACE_SHARE).min(GRACE_MAX);
        let due = front.map(|flight| flight.since + deadline);
        let is_late = due.is_some_and(|due| now + grace >= due);
        if held.suspicion.is_none() && !is_late {
            self.inquiry = None;
            return None;
        }
        let rank = self.rank;
        let inquiry = *self.inquiry.get_or_insert_with(|| {
            for wire in &mut self.wires {
                wire.answered = false;
            }
            Inquiry {
                since: now,
                again: now,
            }
        });
        if now >= inquiry.again {
            self.inquiry = Some(Inquiry {
                again: now + grace / 4,
                ..inquiry
            });
            self.say_to_all(Kind::Question, held);
        }
        let answered = |other: &usize| self.wires[*other].answered;
        if let Some(why) = &held.suspicion {
            let waited = now.duration_since(inquiry.since);
            if waited < grace && !self.others().all(|other| answered(&other)) {
                return None;
            }
            let ranks: Vec<usize> = self.others().filter(|other| !answered(other)).collect();
            let why = why.clone();
            return Some(if ranks.is_empty() {
                Fault::Device { rank, why }
            } else {
                Fault::Missing { ranks, waited }
            });
        }
        let flight = front.filter(|_| due.is_some_and(|due| now >= due))?;
        let heard: Vec<Option<RankWord>> = self
            .wires
            .iter()
            .map(|wire| wire.heard.clone().filter(|_| wire.answered))
            .collect();
        let waited = now.duration_since(flight.since);
        let stuck = flight.record.for_rank(rank);
        let seen = Stuck {
            rank,
            log: &held.log,
            call: &stuck,
            heard: &heard,
            waited,
        };
        let found = StuckCalls.observe(&seen, now).pop();
        let fault = found.map(|found| found.cause);
        Some(fault.unwrap_or_else(|| Fault::Device {
            rank,
            why: format!("all ranks have called it, and it has not ended within {waited:?}"),
        }))
    }

    /// Tells the next rank what is new, so that differences are met also where nobody is late.
    fn speak(&mut self, held: &Held<C>, now: Instant) {
        let (told, when) = self.beat;
        let begun = held.log.begun + u64::from(held.closing);
        if begun > told && now.duration_since(when) >= IDLE {
            self.beat = (begun, now);
            if held.closing {
                self.say_to_all(Kind::Beat, held);
            } else if let Some(next) = self.next_rank() {
                let word = held.log.word(next, None, false);
                self.say(next, Kind::Beat, &word);
            }
        }
    }

    fn next_rank(&self) -> Option<usize> {
        let world = self.wires.len();
        (world > 1).then(|| (self.rank + 1) % world)
    }

    fn say_to_all(&mut self, kind: Kind, held: &Held<C>) {
        let waiting = held.flights.front().map(|flight| &flight.record);
        for other in self.others() {
            let word = held.log.word(other, waiting, held.closing);
            self.say(other, kind, &word);
        }
    }

    /// Unless what was said before is still on its way: then it will be said again.
    fn say(&mut self, other: usize, kind: Kind, word: &RankWord) {
        let bytes = word.encode(kind, self.transport.membership());
        let outgoing = &mut self.wires[other].outgoing;
        if outgoing.len() <= WORD_BYTES_MAX {
            outgoing.extend((bytes.len() as u32).to_le_bytes());
            outgoing.extend(bytes);
        }
    }

    fn send(&mut self) -> Result<(), Trouble> {
        for other in self.others() {
            let wire = &mut self.wires[other];
            while !wire.outgoing.is_empty() {
                let sent = self.transport.send_some(other, &wire.outgoing)?;
                if sent == 0 {
                    break;
                }
                wire.outgoing.drain(..sent);
            }
        }
        Ok(())
    }

    /// Parts with the others when all has ended: whether there is more to do for it.
    fn part(&mut self, held: &mut Held<C>, ready: bool, now: Instant) -> bool {
        self.speak(held, now);
        // To those who are still there.
        drop(self.send());
        let Some(begun) = self.parting else {
            if let Some(comm) = held.comm.as_ref().filter(|_| ready) {
                self.parting = comm.finalize().is_ok().then_some(now);
            }
            return self.parting.is_some();
        };
        if ready {
            // All have parted; what it says now changes nothing.
            drop(held.comm.take().map(Comm::destroy));
            return false;
        }
        held.suspicion.is_none() && now.duration_since(begun) < held.deadline
    }

    /// Tells all ranks of the first fault, and ends what is under way.
    fn fail(&mut self, trouble: Trouble) {
        let membership = self.transport.membership().clone();
        let mut held = self.shared.held.lock();
        held.land(&self.card);
        let front = held.flights.front();
        let at = front.map(|flight| (flight.record.sequence, flight.record.call));
        let report = match trouble {
            Trouble::Told(report) => report,
            Trouble::Found(fault) => {
                let (sequence, call) = at.unwrap_or((held.log.begun, self.idle));
                Report {
                    by: membership.rank,
                    sequence,
                    call,
                    fault,
                }
            }
        };
        self.transport.abort(&report);
        if let Some((sequence, call)) = at {
            held.failed = Some(failed(&membership, sequence, call, report.clone()));
        }
        held.broken = Some(report);
        held.flights.clear();
        let comm = held.comm.take();
        drop(held);
        self.shared.changed.notify_all();
        // It may take a moment, so the caller knows before.
        drop(comm);
    }
}

impl<X, C: Card> Drop for Watch<X, C> {
    /// Nobody may wait for a thread that has ended, in whatever way.
    fn drop(&mut self) {
        let mut held = self.shared.held.lock();
        held.flights.clear();
        let comm = held.comm.take();
        if !held.closing && held.broken.is_none() {
            held.broken = Some(Report {
                by: self.rank,
                sequence: held.log.begun,
                call: self.idle,
                fault: Fault::Device {
                    rank: self.rank,
                    why: "the thread that watches it has ended".to_owned(),
                },
            });
        }
        drop(held);
        self.shared.changed.notify_all();
        drop(comm);
    }
}

/// Says that the thread is done.
struct End<C: Card>(Arc<Shared<C>>);

impl<C: Card> Drop for End<C> {
    fn drop(&mut self) {
        self.0.held.lock().ended = true;
        self.0.changed.notify_all();
    }
}
