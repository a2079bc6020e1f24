//! Frames and their parts drawn from a seed, for tests.

use std::time::Duration;

use bytes::Bytes;
use odeon_devices::fault::{FaultKind, GpuFault};

use super::*;
use crate::base::failure::{Down, FailureKind, Reason};
use crate::base::shape::mix;

/// Numbers that follow from a seed, fast enough for millions of inputs.
pub(crate) struct Draw(pub(crate) u64);

impl Draw {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(1);
        mix(self.0, 0x5eed)
    }

    pub(crate) fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }

    pub(crate) fn flag(&mut self) -> bool {
        self.next() & 1 == 1
    }

    pub(crate) fn bytes(&mut self, most: usize) -> Vec<u8> {
        (0..self.below(most + 1))
            .map(|_| self.next() as u8)
            .collect()
    }

    pub(crate) fn text(&mut self) -> String {
        (0..self.below(12))
            .map(|_| char::from(b'a' + self.below(26) as u8))
            .collect()
    }

    pub(crate) fn process(&mut self) -> ProcessId {
        ProcessId(self.next())
    }

    pub(crate) fn actor(&mut self) -> ActorId {
        ActorId {
            home: self.process(),
            serial: self.next(),
        }
    }

    pub(crate) fn failure(&mut self) -> Failure {
        let kinds = [
            FailureKind::Panic,
            FailureKind::NodeLost,
            FailureKind::NotPlaced,
        ];
        let mut failure = Failure::new(kinds[self.below(3)], self.text());
        for _ in 0..self.below(4) {
            failure = Failure::new(kinds[self.below(3)], self.text()).because(failure);
        }
        failure
    }

    pub(crate) fn reason(&mut self) -> Reason {
        match self.below(4) {
            0 => Reason::Stopped,
            1 => Reason::Sibling,
            2 => Reason::Unknown,
            _ => Reason::Failed(self.failure()),
        }
    }

    pub(crate) fn down(&mut self) -> Down {
        Down {
            id: self.actor(),
            incarnation: self.next() as u32,
            reason: self.reason(),
        }
    }

    pub(crate) fn name_row(&mut self) -> NameRow {
        NameRow {
            job: self.text(),
            name: self.text(),
            id: self.actor(),
            actor: self.text(),
            messages: vec![(self.text(), self.next())],
        }
    }

    pub(crate) fn option<T>(&mut self, some: impl FnOnce(&mut Self) -> T) -> Option<T> {
        if self.flag() { Some(some(self)) } else { None }
    }

    fn fact(&mut self) -> Fact {
        match self.below(4) {
            0 => Fact::ProcessUp {
                process: self.process(),
                hops: self.next() as u8,
            },
            1 => Fact::ProcessDown(self.exit()),
            2 => Fact::ProcessEnded(self.exit()),
            _ => Fact::Leaving,
        }
    }

    fn exit(&mut self) -> ProcessExit {
        ProcessExit {
            process: self.process(),
            status: self.text(),
            code: self.option(|this| this.next() as i32),
            node: self.option(Self::text),
            fault: self.option(|_| GpuFault::new(1, FaultKind::Lost)),
        }
    }

    fn service(&mut self) -> ServiceId {
        ServiceId(self.next() as u16)
    }

    fn passage(&mut self) -> Passage {
        match self.below(4) {
            0 => Passage::Unsaid,
            1 => Passage::Begins(self.next()),
            2 => Passage::Resumes(Resumption {
                session: self.next(),
                attempt: self.next(),
                taken: [self.next(), self.next(), self.next()],
            }),
            _ => Passage::Unknown,
        }
    }

    /// A frame of the kind with this number.
    pub(crate) fn frame(&mut self, kind: usize) -> Frame {
        match kind {
            0 => Frame::Hello(Hello {
                version: self.next() as u32,
                process: self.process(),
                job: self.text(),
                node: self.text(),
                carries: (0..self.below(4))
                    .map(|_| (self.process(), self.next() as u8))
                    .collect(),
                names: (0..self.below(4)).map(|_| self.name_row()).collect(),
                session: self.passage(),
            }),
            1 => Frame::Call(Call {
                call: self.next(),
                from: self.process(),
                to: self.actor(),
                at: self.process(),
                fence: self.next() as u32,
                method: self.next(),
                budget: Duration::from_micros(self.next() >> 8),
                trace: SpanContext {
                    trace_id: u128::from(self.next()) << 64 | u128::from(self.next()),
                    span_id: self.next(),
                    flags: self.next() as u8,
                },
                payload: Bytes::from(self.bytes(200)),
            }),
            2 => Frame::Reply {
                call: self.next(),
                to: self.process(),
                result: match self.flag() {
                    true => Ok(Bytes::from(self.bytes(200))),
                    false => Err(AskError::Died(self.down())),
                },
            },
            3 => Frame::Cancel {
                call: self.next(),
                from: self.process(),
                to: self.actor(),
            },
            4 => Frame::Credit {
                actor: self.actor(),
                host: self.process(),
                to: self.process(),
                messages: self.next() as u32,
            },
            5 => Frame::Request {
                request: self.next(),
                from: self.process(),
                to: self.process(),
                service: self.service(),
                body: Bytes::from(self.bytes(200)),
            },
            6 => Frame::Answer {
                request: self.next(),
                to: self.process(),
                result: match self.flag() {
                    true => Ok(Bytes::from(self.bytes(200))),
                    false => Err(self.failure()),
                },
            },
            7 => Frame::Fact(self.fact()),
            8 => Frame::Beat(Beat {
                sent: self.next(),
                echo: self.next(),
                heard: self.next(),
            }),
            9 => Frame::After(self.next()),
            11 => Frame::Taken([self.next(), self.next(), self.next()]),
            12 => Frame::Over(self.text()),
            13 => Frame::Opening(match self.below(4) {
                0 => Opening::Carries,
                1 => Opening::Keeps(self.next()),
                2 => Opening::Kept,
                _ => Opening::Unknown,
            }),
            14 => Frame::Notice {
                service: self.service(),
                body: Bytes::from(self.bytes(200)),
            },
            _ => Frame::Chunk(Chunk {
                transfer: self.next(),
                to: self.process(),
                index: self.next(),
                checksum: self.next() as u32,
                bytes: Bytes::from(self.bytes(200)),
            }),
        }
    }
}

/// The number of kinds of frames.
pub(crate) const KINDS: usize = 15;
