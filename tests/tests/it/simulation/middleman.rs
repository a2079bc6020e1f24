//! A middleman between two nodes: a relay that reads every frame. He counts what happens to a link,
//! damages a frame when he is told to, and may have a flaw: then he leaves out, repeats or changes
//! what an engine has said, as an engine with that flaw would have. The session between the nodes
//! counts bytes, so he says to each side what it would count without him, and is not found out by it.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use odeon::simulation::Relay;
use odeon::{ActorId, AskError, ProcessId, codec};
use serde::{Deserialize, Serialize};

use super::oracle::{Happening, Tally};
use super::recorder::{Dice, Note};

/// A part of the protocol that is left out or done wrong, to see that the oracle misses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    None,
    /// A message is delivered twice.
    Twice,
    /// After a broken connection, what was taken in is sent again.
    SentAgain,
    /// After a broken connection, what was on its way is not sent again.
    Forgotten,
    /// Two messages of one sender change places.
    Swapped,
    /// An answer is lost.
    Unanswered,
    /// Requests that a lost process held are not answered.
    Unmourned,
    /// An answer is replaced by an error without effect.
    Disowned,
    /// The next life has the number of the first.
    Uncounted,
    /// Any life takes a message that was meant for one.
    Unfenced,
    /// Credit does not come back.
    Withheld,
    /// The loss of a process is not told to other nodes.
    Unreported,
    /// Asks have all the time in the world, and are not withdrawn.
    Unhurried,
    /// An answer is delivered twice: nobody waits for the second.
    AnsweredTwice,
}

/// Kinds of frames, and where their fields are.
mod frame {
    use std::ops::Range;

    pub(super) const KIND: usize = 4;
    pub(super) const HELLO: u8 = 1;
    pub(super) const CALL: u8 = 2;
    pub(super) const REPLY: u8 = 3;
    pub(super) const CANCEL: u8 = 4;
    pub(super) const CREDIT: u8 = 5;
    pub(super) const REQUEST: u8 = 6;
    pub(super) const FACT: u8 = 8;
    pub(super) const BEAT: u8 = 9;
    pub(super) const TAKEN: u8 = 12;
    pub(super) const OPENING: u8 = 14;
    /// No frame is of this kind.
    pub(super) const NONE: u8 = u8::MAX;

    pub(super) const BODY: usize = 5;
    /// The first mark of a [`TAKEN`].
    pub(super) const MARK: Range<usize> = 5..13;
    pub(super) const CALL_FENCE: Range<usize> = 45..49;
    pub(super) const CALL_BUDGET: Range<usize> = 57..65;
    /// 0 for an answer, 1 for an error, which follows.
    pub(super) const REPLY_OUTCOME: usize = 21;
    pub(super) const REPLY_ERROR: usize = 22;
    pub(super) const REQUEST_BODY: usize = 29;
    /// That of an order to host an actor.
    pub(super) const HOST_LIFE: Range<usize> = 65..69;

    /// The variants that matter here, by their number.
    pub(super) const CARRIES: u8 = 0;
    pub(super) const DIED: u32 = 1;
    pub(super) const HOST: u32 = 0;
    pub(super) const PROCESS_DOWN: u32 = 1;
    pub(super) const PROCESS_ENDED: u32 = 3;
}

/// The hello of a node that keeps no names.
type Hello = (u32, u64, String, String, Vec<(u64, u8)>, Vec<u8>, Passage);

#[derive(Serialize, Deserialize)]
enum Passage {
    Unsaid,
    Begins(u64),
    Resumes {
        session: u64,
        attempt: u64,
        taken: [u64; 3],
    },
    Unknown,
}

/// A relay that watches one link and may falsify it. Clones are the same.
#[derive(Clone)]
pub(crate) struct Middleman(Arc<Mutex<State>>);

struct State {
    flaw: Flaw,
    dice: Dice,
    /// Ends of streams that were opened.
    ends: usize,
    /// The traffic of the link from each node.
    ways: [Way; 2],
    /// The node whose next frame is damaged.
    damage: Option<usize>,
    tally: Tally,
}

/// One way of the present link. Counts are of the bytes that a session counts.
#[derive(Default)]
struct Way {
    /// The stream that carries it.
    stream: usize,
    /// Bytes that were sent, and those that went on.
    sent: u64,
    passed: u64,
    /// Bytes that had gone on, and those that were sent by then, at each place where their
    /// difference changed.
    places: Vec<(u64, u64)>,
    /// Bytes that were ever sent.
    furthest: u64,
    /// Bytes of which the sender may know that they were taken in.
    acknowledged: u64,
}

impl Way {
    fn over(stream: usize) -> Self {
        Self {
            stream,
            ..Self::default()
        }
    }

    /// The number of bytes sent, by that of the bytes taken in.
    fn sent_by(&self, taken: u64) -> u64 {
        let place = self.places.iter().rev().find(|place| place.0 <= taken);
        let (passed, sent) = place.copied().unwrap_or_default();
        sent + (taken - passed)
    }

    /// It goes on over another stream.
    fn resume(&mut self, stream: usize, taken: u64, sent: u64) {
        self.stream = stream;
        (self.passed, self.sent) = (taken, sent);
        self.places = vec![(taken, sent)];
    }
}

enum Treatment {
    Pass,
    Repeat,
    Drop,
}

impl Middleman {
    pub(crate) fn new(seed: u64, flaw: Flaw) -> Self {
        Self(Arc::new(Mutex::new(State {
            flaw,
            dice: Dice(seed ^ 0x3a9),
            ends: 0,
            ways: [Way::default(), Way::default()],
            damage: None,
            tally: Tally::default(),
        })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("nobody panics between the nodes")
    }

    /// A relay for what one node says over a stream.
    pub(crate) fn relay(&self, from: usize) -> Relay {
        let middleman = self.clone();
        let mut state = middleman.state();
        let end = state.ends;
        state.ends += 1;
        drop(state);
        let mut heard = vec![];
        Box::new(move |bytes| {
            heard.extend_from_slice(bytes);
            let frames = whole_frames(&mut heard);
            middleman.state().pass(end, from, frames)
        })
    }

    /// Damages the next frame that a node sends.
    pub(crate) fn damage(&self, from: usize) {
        self.state().damage = Some(from);
    }

    /// Returns true until it is done.
    pub(crate) fn is_damaging(&self) -> bool {
        self.state().damage.is_some()
    }

    /// Damages none, if it is not done yet.
    pub(crate) fn spare(&self) {
        self.state().damage = None;
    }

    pub(crate) fn tally(&self) -> Tally {
        self.state().tally.clone()
    }
}

fn whole_frames(heard: &mut Vec<u8>) -> Vec<Vec<u8>> {
    let mut frames = vec![];
    let mut rest = &heard[..];
    while let Some(head) = rest.first_chunk::<4>() {
        let length = 4 + u32::from_le_bytes(*head) as usize;
        let Some((frame, behind)) = rest.split_at_checked(length) else {
            break;
        };
        frames.push(frame.to_vec());
        rest = behind;
    }
    *heard = rest.to_vec();
    frames
}

impl State {
    fn pass(&mut self, end: usize, from: usize, mut frames: Vec<Vec<u8>>) -> Vec<u8> {
        if self.flaw == Flaw::Swapped {
            swap_neighbours(&mut frames);
        }
        let mut out = vec![];
        for frame in frames {
            self.pass_one(end, from, frame, &mut out);
        }
        out
    }

    fn pass_one(&mut self, end: usize, from: usize, mut frame: Vec<u8>, out: &mut Vec<u8>) {
        let (stream, dials) = (end / 2 + 1, end.is_multiple_of(2));
        match frame[frame::KIND] {
            frame::HELLO => self.greet(stream, dials, from, &mut frame),
            frame::OPENING => {
                if frame[frame::BODY] == frame::CARRIES {
                    self.ways = [Way::over(stream), Way::over(stream)];
                    self.tally.note(Happening::LinkBegun);
                }
            }
            _ if self.ways[from].stream != stream => {}
            _ if self.damage == Some(from) => {
                self.damage = None;
                self.tally.note(Happening::FrameDamaged);
                frame[frame::KIND] = frame::NONE;
            }
            frame::BEAT => {}
            frame::TAKEN => {
                let way = &mut self.ways[1 - from];
                let mark = u64_at(&frame, frame::MARK.start);
                let sent = way.sent_by(mark);
                way.acknowledged = way.acknowledged.max(sent);
                frame[frame::MARK].copy_from_slice(&sent.to_le_bytes());
            }
            _ => return self.pass_counted(from, frame, out),
        }
        out.extend(frame);
    }

    /// Passes a frame that belongs to the session.
    fn pass_counted(&mut self, from: usize, mut frame: Vec<u8>, out: &mut Vec<u8>) {
        let length = frame.len() as u64;
        let treatment = self.treat(&mut frame);
        let way = &mut self.ways[from];
        way.sent += length;
        if way.sent <= way.furthest {
            self.tally.note(Happening::FrameSentAgain);
        }
        way.furthest = way.furthest.max(way.sent);
        let times = match treatment {
            Treatment::Drop => 0,
            Treatment::Pass => 1,
            Treatment::Repeat => 2,
        };
        for _ in 0..times {
            out.extend_from_slice(&frame);
            way.passed += frame.len() as u64;
        }
        if way.sent_by(way.passed) != way.sent {
            way.places.push((way.passed, way.sent));
        }
    }

    /// Passes a hello, and says in it what the other side would have heard of without him.
    fn greet(&mut self, stream: usize, dials: bool, from: usize, frame: &mut Vec<u8>) {
        let Ok(mut hello) = codec::decode::<Hello>(&frame[frame::BODY..]) else {
            return;
        };
        let Passage::Resumes { taken, .. } = &mut hello.6 else {
            return;
        };
        if !dials {
            self.tally.note(Happening::LinkWentOn);
        }
        let way = &mut self.ways[1 - from];
        let sent = match self.flaw {
            Flaw::SentAgain => way.acknowledged,
            Flaw::Forgotten => way.sent,
            _ => way.sent_by(taken[0]),
        };
        way.resume(stream, taken[0], sent);
        taken[0] = sent;
        let said = codec::encode(&hello).expect("it was read");
        frame.splice(frame::BODY.., said);
    }

    /// Changes a frame as the flaw would.
    fn treat(&mut self, frame: &mut Vec<u8>) -> Treatment {
        let mut seldom = || self.dice.roll(20) == 0;
        match (self.flaw, frame[frame::KIND]) {
            (Flaw::Twice, frame::CALL) if seldom() => Treatment::Repeat,
            (Flaw::AnsweredTwice, frame::REPLY) => Treatment::Repeat,
            (Flaw::Unanswered, frame::REPLY) if seldom() => Treatment::Drop,
            (Flaw::Unmourned, frame::REPLY) if is_death(frame) => Treatment::Drop,
            (Flaw::Withheld, frame::CREDIT) if seldom() => Treatment::Drop,
            (Flaw::Unhurried, frame::CANCEL) => Treatment::Drop,
            (Flaw::Unreported, frame::FACT)
                if [frame::PROCESS_DOWN, frame::PROCESS_ENDED]
                    .contains(&u32_at(frame, frame::BODY)) =>
            {
                Treatment::Drop
            }
            (Flaw::Disowned, frame::REPLY) if frame[frame::REPLY_OUTCOME] == 0 && seldom() => {
                disown(frame);
                Treatment::Pass
            }
            (Flaw::Unfenced, frame::CALL) => {
                frame[frame::CALL_FENCE].fill(0);
                Treatment::Pass
            }
            (Flaw::Unhurried, frame::CALL) => {
                let hour = Duration::from_secs(3600).as_micros() as u64;
                frame[frame::CALL_BUDGET].copy_from_slice(&hour.to_le_bytes());
                Treatment::Pass
            }
            (Flaw::Uncounted, frame::REQUEST)
                if u32_at(frame, frame::REQUEST_BODY) == frame::HOST =>
            {
                frame[frame::HOST_LIFE].copy_from_slice(&1u32.to_le_bytes());
                Treatment::Pass
            }
            _ => Treatment::Pass,
        }
    }
}

fn u32_at(frame: &[u8], at: usize) -> u32 {
    let bytes = frame.get(at..).and_then(|rest| rest.first_chunk());
    bytes.map_or(u32::MAX, |bytes| u32::from_le_bytes(*bytes))
}

fn u64_at(frame: &[u8], at: usize) -> u64 {
    let bytes = frame.get(at..).and_then(|rest| rest.first_chunk());
    bytes.map_or(u64::MAX, |bytes| u64::from_le_bytes(*bytes))
}

fn is_death(frame: &[u8]) -> bool {
    frame[frame::REPLY_OUTCOME] == 1 && u32_at(frame, frame::REPLY_ERROR) == frame::DIED
}

/// Makes an answer an error that says that there was no effect.
fn disown(frame: &mut Vec<u8>) {
    let error = AskError::Full {
        actor: ActorId {
            home: ProcessId(0),
            serial: 0,
        },
        waited: Duration::ZERO,
    };
    frame[frame::REPLY_OUTCOME] = 1;
    frame.truncate(frame::REPLY_ERROR);
    frame.extend(codec::encode(&error).expect("errors travel"));
    let length = frame.len() as u32 - 4;
    frame[..4].copy_from_slice(&length.to_le_bytes());
}

/// Lets messages of one sender that follow each other change places.
fn swap_neighbours(frames: &mut [Vec<u8>]) {
    let sender = |frame: &[u8]| {
        let is_call = frame[frame::KIND] == frame::CALL;
        let note = frame.get(frame.len() - Note::BYTES..)?;
        codec::decode::<Note>(note)
            .ok()
            .filter(|_| is_call)
            .map(|note| note.sender)
    };
    for first in 1..frames.len() {
        let (a, b) = (sender(&frames[first - 1]), sender(&frames[first]));
        if a.is_some() && a == b {
            frames.swap(first - 1, first);
            return;
        }
    }
}
