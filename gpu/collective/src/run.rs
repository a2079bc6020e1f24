//! Carries out a schedule over messages.
//!
//! A message is a head, which says what its sender has called, and elements. Besides those of its
//! schedule, each rank sends the next one an empty message at the beginning of a call and waits for
//! that of the rank before: so two neighbours that call different things find out, whatever their
//! schedules are, and a rank that does not come is missed by the one after it, who names it to all.

use std::time::{Duration, Instant};

use super::communicator::now;
use super::element::{self, Element, ElementType, Reduce};
use super::error::{CALL_BYTES, CollectiveCall, Fault, Operation};
use super::flow::Recording;
use super::schedule::{Incoming, Outgoing, SentFrom, Step, Then};
use super::transport::{Membership, Transport, Trouble};

/// Bytes of an encoded [`Header`] with a length.
pub(super) const HEADER_BYTES: usize = 3 * 8 + CALL_BYTES + 8;

/// The head of every message and window.
#[derive(Clone, Debug)]
pub(super) struct Header {
    gang: u64,
    generation: u64,
    pub(super) sequence: u64,
    pub(super) call: CollectiveCall,
    rank: usize,
}

impl Header {
    pub(super) const fn new(membership: &Membership, sequence: u64, call: CollectiveCall) -> Self {
        Self {
            gang: membership.gang,
            generation: membership.generation,
            sequence,
            call,
            rank: membership.rank,
        }
    }

    /// With a length in elements, or what else the last word means.
    pub(super) fn encode(&self, last: u64) -> [u8; HEADER_BYTES] {
        let mut out = [0; HEADER_BYTES];
        out[..8].copy_from_slice(&self.gang.to_le_bytes());
        out[8..16].copy_from_slice(&self.generation.to_le_bytes());
        out[16..24].copy_from_slice(&self.sequence.to_le_bytes());
        out[24..24 + CALL_BYTES].copy_from_slice(&self.call.encode());
        out[24 + CALL_BYTES..].copy_from_slice(&last.to_le_bytes());
        out
    }

    /// Checks that a message of `from` belongs to the same call; gives its last word.
    pub(super) fn check(&self, from: usize, bytes: &[u8; HEADER_BYTES]) -> Result<u64, Fault> {
        let (gang, generation, sequence, call, last) = decode(bytes);
        if (gang, generation) != (self.gang, self.generation) {
            return Err(Fault::Stale {
                rank: from,
                theirs: generation,
                ours: self.generation,
            });
        }
        let Some(call) = call else {
            let why = "it names no operation".to_owned();
            return Err(Fault::Garbled { rank: from, why });
        };
        if sequence != self.sequence || !self.matches(call) {
            let mut calls = vec![
                (self.rank, self.sequence, self.call),
                (from, sequence, call),
            ];
            calls.sort_by_key(|(rank, ..)| *rank);
            return Err(Fault::Mismatch { calls });
        }
        Ok(last)
    }

    fn matches(&self, theirs: CollectiveCall) -> bool {
        match self.call.operation {
            Operation::Receive => {
                let wanted = CollectiveCall {
                    operation: Operation::Send,
                    peer: self.rank as u32,
                    ..self.call
                };
                theirs == wanted
            }
            _ => theirs == self.call,
        }
    }

    /// The mismatch of a message whose head agrees and whose length does not.
    pub(super) fn lengths(&self, from: usize, theirs: u64, ours: usize) -> Fault {
        let of = |count| CollectiveCall { count, ..self.call };
        let mut calls = vec![
            (self.rank, self.sequence, of(ours as u64)),
            (from, self.sequence, of(theirs)),
        ];
        calls.sort_by_key(|(rank, ..)| *rank);
        Fault::Mismatch { calls }
    }
}

fn decode(bytes: &[u8; HEADER_BYTES]) -> (u64, u64, u64, Option<CollectiveCall>, u64) {
    let word = |at: usize| {
        let mut word = [0; 8];
        word.copy_from_slice(&bytes[at..at + 8]);
        u64::from_le_bytes(word)
    };
    let mut call = [0; CALL_BYTES];
    call.copy_from_slice(&bytes[24..24 + CALL_BYTES]);
    (
        word(0),
        word(8),
        word(16),
        CollectiveCall::decode(&call),
        word(24 + CALL_BYTES),
    )
}

/// Memory that calls use again.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    /// Partial sums, where they cannot lie in the caller's buffer.
    sums: Vec<f32>,
    /// Elements of other ranks.
    kept: Vec<u8>,
    /// Bytes that have arrived and are not reduced yet.
    block: Vec<u8>,
}

/// Bytes that are reduced at a time: they stay in the cache between arrival and addition.
const BLOCK: usize = 64 << 10;

/// One call under way.
pub(super) struct Run<'a, X, T> {
    transport: &'a mut X,
    header: Header,
    deadline: Duration,
    until: Instant,
    hello_out: usize,
    hello_in: Head,
    scratch: Option<&'a mut Scratch>,
    /// Set when partial sums lie in the scratch.
    apart: bool,
    input: Option<&'a [T]>,
    data: &'a mut [T],
    reduce: Reduce,
    recording: Recording<'a>,
}

/// The head of a message that arrives.
#[derive(Debug)]
struct Head {
    bytes: [u8; HEADER_BYTES],
    got: usize,
}

impl Head {
    const fn new() -> Self {
        Self {
            bytes: [0; HEADER_BYTES],
            got: 0,
        }
    }

    const fn is_whole(&self) -> bool {
        self.got == HEADER_BYTES
    }

    /// Takes what has arrived. Returns true if there was any.
    fn fill(&mut self, transport: &mut impl Transport, from: usize) -> Result<bool, Trouble> {
        let got = transport.receive_some(from, &mut self.bytes[self.got..])?;
        self.got += got;
        Ok(got > 0)
    }
}

impl<'a, X: Transport, T: Element> Run<'a, X, T> {
    pub(super) fn new(
        transport: &'a mut X,
        header: Header,
        deadline: Duration,
        until: Instant,
    ) -> Self {
        Self {
            transport,
            header,
            deadline,
            until,
            hello_out: 0,
            hello_in: Head::new(),
            scratch: None,
            apart: false,
            input: None,
            data: &mut [],
            reduce: Reduce::Sum,
            recording: Recording::new(None),
        }
    }

    pub(super) fn with_recording(mut self, recording: Recording<'a>) -> Self {
        self.recording = recording;
        self
    }

    pub(super) fn with_buffers(
        mut self,
        scratch: &'a mut Scratch,
        input: Option<&'a [T]>,
        data: &'a mut [T],
        reduce: Option<Reduce>,
    ) -> Self {
        self.apart = reduce.is_some() && (input.is_some() || T::TYPE != ElementType::F32);
        if self.apart {
            scratch
                .sums
                .resize(input.map_or(data.len(), <[T]>::len), 0.0);
        }
        self.scratch = Some(scratch);
        self.input = input;
        self.data = data;
        self.reduce = reduce.unwrap_or(Reduce::Sum);
        self
    }

    pub(super) fn carry_out(&mut self, steps: &[Step]) -> Result<(), Trouble> {
        let world = self.transport.membership().world();
        let scale = self.reduce.scale(world);
        for step in steps {
            match step {
                Step::Exchange { out, incoming } => {
                    self.greet()?;
                    self.exchange(out.as_ref(), incoming.as_ref())?;
                }
                Step::Load(range) => {
                    if self.apart {
                        let from = self.input.unwrap_or(self.data);
                        let from = bytemuck::cast_slice(&from[range.clone()]);
                        if let Some(scratch) = &mut self.scratch {
                            element::load(&mut scratch.sums[range.clone()], from, T::TYPE);
                        }
                    }
                }
                Step::Finish { range, to } => {
                    let into = *to..to + range.len();
                    if let Some(scratch) = self.scratch.as_ref().filter(|_| self.apart) {
                        let into = bytemuck::cast_slice_mut(&mut self.data[into]);
                        element::finish(into, &scratch.sums[range.clone()], T::TYPE, scale);
                    } else if scale.to_bits() != 1.0f32.to_bits() {
                        element::scale_sums(self.sums(range.clone()), scale);
                    }
                }
                Step::Fold(range) => self.fold(range.clone()),
                Step::Copy { range, to } => {
                    if let Some(input) = self.input {
                        self.data[*to..to + range.len()].copy_from_slice(&input[range.clone()]);
                    }
                }
            }
        }
        if world > 1 {
            while !self.greeted() {
                if !self.greet()? {
                    self.wait(None, None)?;
                }
            }
        }
        Ok(())
    }

    /// Both messages; done when both are.
    pub(super) fn exchange(
        &mut self,
        out: Option<&Outgoing>,
        incoming: Option<&Incoming>,
    ) -> Result<(), Trouble> {
        let collective = !matches!(
            self.header.call.operation,
            Operation::Send | Operation::Receive
        );
        let (next, before) = self.neighbours();
        let mut sending = out.map(|out| Sending::new(out, &self.header));
        let mut receiving = incoming.map(Receiving::new);
        self.record_exchange(out, incoming);
        loop {
            let mut progress = collective && self.greet()?;
            let may_send = |to| !collective || to != next || self.hello_out == HEADER_BYTES;
            if let Some(message) = sending.as_mut().filter(|message| may_send(message.out.to)) {
                progress |= self.send_more(message)?;
            }
            let may_take = |from| !collective || from != before || self.hello_in.is_whole();
            if let Some(message) = receiving
                .as_mut()
                .filter(|message| may_take(message.incoming.from))
            {
                progress |= self.receive_more(message)?;
            }
            sending = sending.filter(|message| !message.is_done(self.bytes_of(message.out)));
            receiving = receiving.filter(|message| !message.done);
            if sending.is_none() && receiving.is_none() {
                return Ok(());
            }
            if !progress {
                let to = sending.as_ref().map(|message| message.out.to);
                let from = receiving.as_ref().map(|message| message.incoming.from);
                self.record_taken(out.map(|out| out.to));
                self.wait(to, from)?;
            }
        }
    }

    /// Both messages are about to move.
    fn record_exchange(&mut self, out: Option<&Outgoing>, incoming: Option<&Incoming>) {
        if !self.recording.is_on() {
            return;
        }
        let bytes = out.map_or(0, |out| HEADER_BYTES + self.bytes_of(out));
        self.recording.advance(|progress| {
            if let Some(out) = out {
                progress.to = Some(out.to as u32);
                // What went to another rank before is of no further interest.
                progress.taken = progress.sent;
            }
            progress.from = incoming.map(|incoming| incoming.from as u32);
            progress.produced += bytes as u64;
        });
    }

    /// So many bytes of a message have left.
    fn record_sent(&mut self, sent: usize) {
        self.recording
            .advance(|progress| progress.sent += sent as u64);
    }

    /// The part of what was sent that the other side has taken by now.
    fn record_taken(&mut self, to: Option<usize>) {
        if let Some(to) = to.filter(|_| self.recording.is_on()) {
            let under_way = self.transport.under_way(to) as u64;
            self.recording
                .advance(|progress| progress.taken = progress.sent.saturating_sub(under_way));
        }
    }

    /// The ranks after and before this one.
    fn neighbours(&self) -> (usize, usize) {
        let membership = self.transport.membership();
        let (rank, world) = (membership.rank, membership.world());
        ((rank + 1) % world, (rank + world - 1) % world)
    }

    const fn greeted(&self) -> bool {
        self.hello_out == HEADER_BYTES && self.hello_in.is_whole()
    }

    /// Goes on with the empty messages to and from the neighbours. Returns true if anything moved.
    fn greet(&mut self) -> Result<bool, Trouble> {
        let (next, before) = self.neighbours();
        let mut progress = false;
        if self.hello_out < HEADER_BYTES {
            let hello = self.header.encode(0);
            let sent = self.transport.send_some(next, &hello[self.hello_out..])?;
            self.hello_out += sent;
            progress |= sent > 0;
        }
        if !self.hello_in.is_whole() {
            progress |= self.hello_in.fill(self.transport, before)?;
            if self.hello_in.is_whole() {
                self.header
                    .check(before, &self.hello_in.bytes)
                    .map_err(Fault::found)?;
            }
        }
        Ok(progress)
    }

    fn send_more(&mut self, message: &mut Sending<'_>) -> Result<bool, Trouble> {
        let to = message.out.to;
        let mut progress = false;
        if message.head_sent < HEADER_BYTES {
            let sent = self
                .transport
                .send_some(to, &message.head[message.head_sent..])?;
            message.head_sent += sent;
            progress |= sent > 0;
            self.record_sent(sent);
        }
        if message.head_sent == HEADER_BYTES {
            let range = message.out.range.clone();
            let bytes = match message.out.place {
                SentFrom::Input => bytemuck::cast_slice(&self.input.unwrap_or(self.data)[range]),
                SentFrom::Data => bytemuck::cast_slice(&self.data[range]),
                SentFrom::Sums => match self.scratch.as_ref().filter(|_| self.apart) {
                    Some(scratch) => bytemuck::cast_slice(&scratch.sums[range]),
                    None => bytemuck::cast_slice(&self.data[range]),
                },
            };
            if message.sent < bytes.len() {
                let sent = self.transport.send_some(to, &bytes[message.sent..])?;
                message.sent += sent;
                progress |= sent > 0;
                self.record_sent(sent);
            }
        }
        Ok(progress)
    }

    fn bytes_of(&self, out: &Outgoing) -> usize {
        out.range.len()
            * match out.place {
                SentFrom::Sums => size_of::<f32>(),
                SentFrom::Input | SentFrom::Data => size_of::<T>(),
            }
    }

    fn receive_more(&mut self, message: &mut Receiving<'_>) -> Result<bool, Trouble> {
        let Incoming { from, then, range } = message.incoming;
        let mut progress = false;
        if !message.head.is_whole() {
            progress |= message.head.fill(self.transport, *from)?;
            if !message.head.is_whole() {
                return Ok(progress);
            }
            let len = self
                .header
                .check(*from, &message.head.bytes)
                .map_err(Fault::found)?;
            if len != range.len() as u64 {
                return Err(self.header.lengths(*from, len, range.len()).found());
            }
        }
        match then {
            Then::Store => {
                let into: &mut [u8] = bytemuck::cast_slice_mut(&mut self.data[range.clone()]);
                if message.got < into.len() {
                    let got = self
                        .transport
                        .receive_some(*from, &mut into[message.got..])?;
                    message.got += got;
                    progress |= got > 0;
                }
                message.done = message.got == into.len();
            }
            Then::Keep => {
                let size = size_of::<T>();
                let (each, kept) = (size_of_val(self.data), &mut self.scratch);
                let Some(scratch) = kept else {
                    return Ok(progress);
                };
                scratch
                    .kept
                    .resize(each * self.transport.membership().world(), 0);
                let start = each * from;
                let into = &mut scratch.kept[start + range.start * size..start + range.end * size];
                if message.got < into.len() {
                    let got = self
                        .transport
                        .receive_some(*from, &mut into[message.got..])?;
                    message.got += got;
                    progress |= got > 0;
                }
                message.done = message.got == into.len();
            }
            Then::ReduceElements => progress |= self.reduce_more(message, T::TYPE)?,
            Then::ReduceSums => progress |= self.reduce_more(message, ElementType::F32)?,
        }
        Ok(progress)
    }

    /// Takes a block of what has arrived, and adds the whole elements in it.
    fn reduce_more(
        &mut self,
        message: &mut Receiving<'_>,
        kind: ElementType,
    ) -> Result<bool, Trouble> {
        let Incoming { from, range, .. } = message.incoming;
        let size = kind.bytes();
        let Some(scratch) = &mut self.scratch else {
            return Ok(false);
        };
        scratch.block.resize(BLOCK, 0);
        let left = range.len() * size - message.got - message.held;
        let room = (BLOCK - message.held).min(left);
        let held = message.held;
        let got = match room {
            0 => 0,
            _ => self
                .transport
                .receive_some(*from, &mut scratch.block[held..held + room])?,
        };
        let whole = (held + got) / size * size;
        let start = range.start + message.got / size;
        let target = start..start + whole / size;
        let Scratch { sums, block, .. } = &mut **scratch;
        let sums = if self.apart {
            &mut sums[target]
        } else {
            bytemuck::cast_slice_mut(&mut self.data[target])
        };
        element::combine(sums, &block[..whole], kind, self.reduce);
        block.copy_within(whole..held + got, 0);
        message.held = held + got - whole;
        message.got += whole;
        message.done = message.got == range.len() * size;
        Ok(got > 0)
    }

    /// Partial sums that lie in the caller's buffer.
    fn sums(&mut self, range: std::ops::Range<usize>) -> &mut [f32] {
        bytemuck::cast_slice_mut(&mut self.data[range])
    }

    fn fold(&mut self, range: std::ops::Range<usize>) {
        let membership = self.transport.membership();
        let (rank, world) = (membership.rank, membership.world());
        let size = size_of::<T>();
        let each = size_of_val(self.data);
        let Some(scratch) = &mut self.scratch else {
            return;
        };
        scratch.kept.resize(each * world, 0);
        let bytes = range.start * size..range.end * size;
        let data: &mut [u8] = bytemuck::cast_slice_mut(self.data);
        let into = &mut data[bytes.clone()];
        scratch.kept[each * rank + bytes.start..each * rank + bytes.end].copy_from_slice(into);
        let kept = &scratch.kept;
        element::fold(into, T::TYPE, self.reduce, world, |rank, part| {
            let start = each * rank + bytes.start;
            &kept[start + part.start..start + part.end]
        });
    }

    /// Waits for these ranks, and for the neighbours that are still to be greeted.
    fn wait(&mut self, to: Option<usize>, from: Option<usize>) -> Result<(), Trouble> {
        let (next, before) = self.neighbours();
        let collective = !matches!(
            self.header.call.operation,
            Operation::Send | Operation::Receive
        );
        let greet_to = (collective && self.hello_out < HEADER_BYTES).then_some(next);
        let greet_from = (collective && !self.hello_in.is_whole()).then_some(before);
        // Whoever misses the rank before it knows for certain who has not come, so it speaks first;
        // others only know for whom they wait, who may wait himself.
        let early = self.until - (self.deadline / 8).min(Duration::from_millis(250));
        let until = if greet_from.is_some() {
            early
        } else {
            self.until
        };
        let waited = self.deadline;
        if now() >= until {
            let ranks = match (greet_from, from, to) {
                (Some(before), ..) => vec![before],
                (_, Some(from), _) => vec![from],
                (_, _, Some(to)) => vec![to],
                _ => vec![next],
            };
            return Err(Fault::Missing { ranks, waited }.found());
        }
        let to: Vec<usize> = to.into_iter().chain(greet_to).collect();
        let from: Vec<usize> = from.into_iter().chain(greet_from).collect();
        self.transport.wait(&to, &from, until)
    }
}

/// A message on its way out.
struct Sending<'a> {
    out: &'a Outgoing,
    head: [u8; HEADER_BYTES],
    head_sent: usize,
    sent: usize,
}

impl<'a> Sending<'a> {
    fn new(out: &'a Outgoing, header: &Header) -> Self {
        Self {
            out,
            head: header.encode(out.range.len() as u64),
            head_sent: 0,
            sent: 0,
        }
    }

    const fn is_done(&self, bytes: usize) -> bool {
        self.head_sent == HEADER_BYTES && self.sent == bytes
    }
}

/// A message on its way in.
struct Receiving<'a> {
    incoming: &'a Incoming,
    head: Head,
    /// Bytes that have gone where they belong.
    got: usize,
    /// Bytes of an element that is not whole yet.
    held: usize,
    done: bool,
}

impl<'a> Receiving<'a> {
    const fn new(incoming: &'a Incoming) -> Self {
        Self {
            incoming,
            head: Head::new(),
            got: 0,
            held: 0,
            done: false,
        }
    }
}
