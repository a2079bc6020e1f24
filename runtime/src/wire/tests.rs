//! The frame decoder against every kind of frame, golden bytes, and hostile input.

use proptest::prelude::{any, prop, prop_assert, prop_assert_eq, proptest};

use super::*;
use odeon_devices::fault::FaultKind;
use odeon_placement::{Demand, DeviceGrant, Node, Resources, View, solve};

use crate::blob::BlobRequest;
use crate::clock::Timestamp;
use crate::failure::FailureKind;
use crate::gang::{GangNews, RankId};
use crate::hardware::Waiting;
use crate::host::HostName;
use crate::needs::Needs;
use crate::shape::mix;

const MESSAGE_BYTES_MAX: usize = 4096;

/// Numbers that follow from a seed, fast enough for millions of inputs.
struct Draw(u64);

impl Draw {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(1);
        mix(self.0, 0x5eed)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }

    fn flag(&mut self) -> bool {
        self.next() & 1 == 1
    }

    fn bytes(&mut self, most: usize) -> Vec<u8> {
        (0..self.below(most + 1))
            .map(|_| self.next() as u8)
            .collect()
    }

    fn text(&mut self) -> String {
        (0..self.below(12))
            .map(|_| char::from(b'a' + self.below(26) as u8))
            .collect()
    }

    fn process(&mut self) -> ProcessId {
        ProcessId(self.next())
    }

    fn actor(&mut self) -> ActorId {
        ActorId {
            home: self.process(),
            serial: self.next(),
        }
    }

    fn failure(&mut self) -> Failure {
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

    fn reason(&mut self) -> Reason {
        match self.below(4) {
            0 => Reason::Stopped,
            1 => Reason::Sibling,
            2 => Reason::Unknown,
            _ => Reason::Failed(self.failure()),
        }
    }

    fn down(&mut self) -> Down {
        Down {
            id: self.actor(),
            incarnation: self.next() as u32,
            reason: self.reason(),
        }
    }

    fn name_row(&mut self) -> NameRow {
        NameRow {
            job: self.text(),
            name: self.text(),
            id: self.actor(),
            actor: self.text(),
            messages: vec![(self.text(), self.next())],
        }
    }

    fn option<T>(&mut self, some: impl FnOnce(&mut Self) -> T) -> Option<T> {
        if self.flag() { Some(some(self)) } else { None }
    }

    fn granted(&mut self) -> Granted {
        Granted {
            node: self.process(),
            lease: self.next(),
        }
    }

    fn ask(&mut self) -> Ask {
        Ask {
            job: self.text(),
            holder: self.text(),
            actors: vec![(self.actor(), 3)],
            needs: Needs::new().gpus(2).device_memory(self.next()).cpus(1.5),
            again: self.flag(),
        }
    }

    fn lease(&mut self) -> Lease {
        Lease {
            job: self.text(),
            holder: self.text(),
            rank: 2,
            node: self.text(),
            process: odeon_placement::Process::New(1),
            isolation: odeon_placement::Isolation::Process,
            resources: Resources::new().custom_milli("x", 5).memory_bytes(7),
            devices: vec![DeviceGrant {
                index: 4,
                milli: 1000,
                memory: self.next(),
            }],
            device_set: self.option(Self::text),
            priority: -3,
        }
    }

    /// A node with a device and a lease, and somebody who waits for it.
    fn picture(&mut self) -> Picture {
        let node = Node::new("a", Resources::new().cpu_milli(1000)).gpus(1, "H200", 8);
        let demand = Demand::new("j", "w", Resources::new()).gpus(1);
        let mut view = View::new([node]);
        let plan = solve(&view, std::slice::from_ref(&demand)).unwrap();
        view.grant(&plan);
        Picture {
            node: view.node("a").unwrap().clone(),
            version: self.next(),
            actors: vec![(self.actor(), self.text(), self.process())],
            waiting: vec![Waiting {
                holder: self.text(),
                job: self.text(),
                actors: vec![self.actor()],
                priority: 1,
                waited: Duration::from_millis(8),
                refusal: solve(&view, &[demand]).err(),
                behind: self.option(Self::text),
            }],
        }
    }

    fn request(&mut self) -> Request {
        match self.below(20) {
            0 => Request::Host(HostOrder {
                id: self.actor(),
                parent: self.actor(),
                incarnation: self.next() as u32,
                actor: self.text(),
                args: self.bytes(64),
                orphans: [
                    Orphans::Stop,
                    Orphans::Keep,
                    Orphans::StopAfter(Duration::from_secs(7)),
                ][self.below(3)],
                on: [HostName::Kameo, HostName::Actix][self.below(2)],
                devices: vec![],
                hang_after: self.flag().then_some(Duration::from_secs(5)),
            }),
            1 => Request::Halt {
                id: self.actor(),
                reason: self.reason(),
                keep_mail: self.flag(),
            },
            2 => Request::Start {
                id: self.actor(),
                incarnation: self.next() as u32,
            },
            3 => Request::Ended {
                id: self.actor(),
                incarnation: self.next() as u32,
                reason: self.reason(),
            },
            4 => Request::Watch(self.actor()),
            5 => Request::Stop(self.actor()),
            6 => Request::Launch(LaunchOrder {
                job: self.text(),
                shared: self.option(Self::text),
                node: self.option(Self::text),
                ask: self.option(|this| Box::new(this.ask())),
                claim: self.option(Self::granted),
            }),
            7 => Request::Release {
                process: self.process(),
                lease: self.option(Self::granted),
            },
            8 => Request::Register(self.name_row()),
            9 => Request::Lookup {
                job: self.text(),
                name: self.text(),
            },
            10 => Request::Methods(self.actor()),
            11 => Request::Schedule(vec![self.ask()]),
            12 => Request::Claim {
                version: self.next(),
                leases: vec![(self.lease(), self.actor())],
            },
            13 => Request::Retire {
                process: self.process(),
                fault: Some(GpuFault::new(3, FaultKind::Xid { code: self.next() })),
                why: self.text(),
            },
            14 => Request::Domain,
            15 => Request::KeepGang {
                gang: self.next(),
                ranks: self.next() as u32,
            },
            16 => Request::ForgetGang(self.next()),
            17 => Request::Gang(self.gang_news()),
            18 => Request::Fail {
                id: self.actor(),
                failure: self.failure(),
            },
            _ => Request::Blob(BlobRequest::Arrived {
                ticket: self.next(),
            }),
        }
    }

    fn gang_news(&mut self) -> GangNews {
        let to = RankId {
            gang: self.next(),
            rank: self.next() as u32,
        };
        let from = self.next() as u32;
        match self.below(4) {
            0 => GangNews::Open {
                to,
                from,
                transfer: self.next(),
                answer: self.flag(),
            },
            1 => GangNews::Room {
                to,
                from,
                bytes: self.next(),
            },
            2 => GangNews::Report {
                to,
                from,
                report: self.bytes(64),
            },
            _ => GangNews::Left { to, from },
        }
    }

    fn answer(&mut self) -> Answer {
        match self.below(10) {
            0 => Answer::Done,
            1 => Answer::Failed(self.failure()),
            2 => Answer::Down(self.down()),
            3 => Answer::Launched(Launched {
                process: self.process(),
                lease: self.option(Self::granted),
                devices: vec![GrantedDevice {
                    ordinal: 0,
                    index: 4,
                    model: self.text(),
                    memory: self.next(),
                    milli: 500,
                }],
            }),
            5 => Answer::Picture(Box::new(self.picture())),
            6 => Answer::Scheduled(vec![self.granted()]),
            4 => Answer::Name(match self.flag() {
                true => Ok(self.name_row()),
                false => Err(NameError::Taken {
                    name: self.text(),
                    owner: self.actor(),
                }),
            }),
            7 => Answer::Process(self.process()),
            8 => Answer::Gang(Ok(GangName {
                owner_pid: 5,
                fd: 6,
                gang: self.next(),
                world: 7,
                window_bytes: self.next(),
                queue_bytes: self.next(),
            })),
            _ => Answer::Sight(Box::new(self.sight())),
        }
    }

    fn sight(&mut self) -> Sight {
        Sight {
            process: self.process(),
            job: self.text(),
            at: Timestamp(self.next()),
            anew: self.flag(),
            actors: vec![crate::inspect::ActorView {
                id: self.actor(),
                parent: self.actor(),
                actor: self.text(),
                process: self.process(),
                incarnation: self.next() as u32,
                phase: crate::Phase::Waiting,
                queued: self.next() as u32,
                room: self.next() as u32,
                queued_bytes: self.next(),
                handled: self.next(),
                failed: self.next(),
                busy: self.next(),
                waited: self.next(),
                changed: Timestamp(self.next()),
                running: None,
                devices: vec![self.next() as u32],
            }],
            gone: vec![self.actor()],
            hosted: self.next() as u32,
            waits: vec![],
            waits_left_out: self.next() as u32,
            spans: vec![self.span()],
            spans_lost: self.next(),
            going_on: vec![],
            span_counts: crate::trace::SpanCounts::default(),
            ask_times: crate::inspect::Times::default(),
            news: vec![],
            news_from: self.next(),
            news_lost: self.next(),
            points: vec![],
            points_from: self.next(),
            points_lost: self.next(),
            dead_letters: self.next(),
            blob_bytes: self.next(),
            more: self.flag(),
            more_spans: self.flag(),
        }
    }

    fn span(&mut self) -> crate::trace::Span {
        let labels = vec![("version".into(), crate::telemetry::Label::Int(3))];
        crate::trace::Span {
            context: SpanContext::root(),
            parent: self.next(),
            kind: crate::trace::SpanKind::User,
            by: self.actor(),
            actor: self.actor(),
            message: self.text().into(),
            queued: Timestamp(self.next()),
            started: Timestamp(self.next()),
            ended: Timestamp(self.next()),
            outcome: crate::trace::Outcome::Failed,
            labels,
        }
    }

    fn fact(&mut self) -> Fact {
        match self.below(6) {
            0 => Fact::ProcessUp {
                process: self.process(),
                hops: self.next() as u8,
            },
            1 => Fact::ProcessDown(ProcessExit {
                process: self.process(),
                status: self.text(),
                code: self.option(|this| this.next() as i32),
                node: self.option(Self::text),
                fault: self.option(|_| GpuFault::new(1, FaultKind::Lost)),
            }),
            2 => Fact::Named(self.name_row()),
            3 => Fact::Unnamed {
                job: self.text(),
                name: self.text(),
                id: self.actor(),
            },
            4 => Fact::LastSight(LastSight {
                onlooker: self.option(|some| (some.next(), some.next())),
                sight: Box::new(self.sight()),
            }),
            _ => Fact::Leaving,
        }
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
    fn frame(&mut self, kind: usize) -> Frame {
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
                body: self.request(),
            },
            6 => Frame::Answer {
                request: self.next(),
                to: self.process(),
                body: self.answer(),
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

const KINDS: usize = 14;

fn encoded(frame: &Frame) -> BytesMut {
    let mut bytes = BytesMut::new();
    frame.encode(&mut bytes);
    bytes
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

proptest! {
    #[test]
    fn every_frame_survives_the_round_trip(seed in any::<u64>(), kind in 0..KINDS) {
        let frame = Draw(seed).frame(kind);
        let mut bytes = encoded(&frame);
        prop_assert_eq!(Frame::decode(&mut bytes, MESSAGE_BYTES_MAX), Ok(Some(frame)));
        prop_assert!(bytes.is_empty());
    }

    #[test]
    fn frames_come_out_of_a_stream_as_they_went_in(
        seed in any::<u64>(),
        cuts in prop::collection::vec(1usize..80, 1..40),
    ) {
        let mut draw = Draw(seed);
        let frames: Vec<Frame> = (0..30).map(|n| draw.frame(n % KINDS)).collect();
        let mut stream = BytesMut::new();
        for frame in &frames {
            frame.encode(&mut stream);
        }
        let (mut input, mut decoded) = (BytesMut::new(), vec![]);
        for cut in cuts.iter().cycle() {
            if stream.is_empty() {
                break;
            }
            input.extend_from_slice(&stream.split_to((*cut).min(stream.len())));
            while let Some(frame) = Frame::decode(&mut input, MESSAGE_BYTES_MAX).unwrap() {
                decoded.push(frame);
            }
        }
        prop_assert_eq!(decoded, frames);
    }

    #[test]
    fn a_frame_that_is_cut_short_is_never_read(seed in any::<u64>(), kind in 0..KINDS) {
        let whole = encoded(&Draw(seed).frame(kind));
        for length in 0..whole.len() {
            let mut part = BytesMut::from(&whole[..length]);
            prop_assert_eq!(Frame::decode(&mut part, MESSAGE_BYTES_MAX), Ok(None));
            prop_assert_eq!(part.len(), length, "what has come stays");
        }
    }

    /// The length says that all is there, but the body ends early.
    #[test]
    fn a_body_that_ends_early_is_an_error(seed in any::<u64>(), kind in 0..KINDS) {
        let whole = encoded(&Draw(seed).frame(kind));
        // Calls, replies and chunks end with bytes of any number.
        let fixed = match kind {
            1 => 4 + 1 + 8 * 5 + 4 + 8 * 2 + 16 + 8 + 1,
            2 => 4 + 1 + 8 + 8 + 1,
            10 => 4 + 1 + 8 * 3 + 4,
            _ => whole.len(),
        };
        for length in 4..fixed {
            let mut part = BytesMut::from(&whole[..length]);
            part[..4].copy_from_slice(&((length - 4) as u32).to_le_bytes());
            let error = Frame::decode(&mut part, MESSAGE_BYTES_MAX);
            prop_assert!(matches!(error, Err(FrameError::Malformed { .. })), "{length}: {error:?}");
        }
    }
}

#[test]
fn a_frame_is_refused_by_its_length_alone() {
    for length in [MESSAGE_BYTES_MAX + HEAD_BYTES_MAX + 1, u32::MAX as usize] {
        let mut head = BytesMut::from(&(length as u32).to_le_bytes()[..]);
        let limit = MESSAGE_BYTES_MAX + HEAD_BYTES_MAX;
        let error = FrameError::TooLarge {
            bytes: length,
            limit,
        };
        assert_eq!(Frame::decode(&mut head, MESSAGE_BYTES_MAX), Err(error));
    }
}

#[test]
fn bytes_after_the_end_of_a_frame_of_fixed_length_are_an_error() {
    for kind in (0..KINDS).filter(|kind| ![1, 2, 10].contains(kind)) {
        let mut bytes = encoded(&Draw(kind as u64).frame(kind));
        bytes.put_u8(0);
        let length = (bytes.len() - 4) as u32;
        bytes[..4].copy_from_slice(&length.to_le_bytes());
        let error = Frame::decode(&mut bytes, MESSAGE_BYTES_MAX);
        assert!(
            matches!(error, Err(FrameError::Malformed { .. })),
            "kind {kind}: {error:?}"
        );
    }
}

#[test]
fn an_unknown_kind_is_an_error() {
    for kind in [0, 15, 99, 255] {
        let mut bytes = BytesMut::from(&[1, 0, 0, 0, kind][..]);
        let error = Frame::decode(&mut bytes, MESSAGE_BYTES_MAX);
        assert_eq!(error, Err(FrameError::UnknownKind(kind)));
    }
    let empty = Frame::decode(&mut BytesMut::from(&[0; 4][..]), MESSAGE_BYTES_MAX);
    assert!(
        matches!(empty, Err(FrameError::Malformed { kind: "empty", .. })),
        "{empty:?}"
    );
}

/// A chain of causes is as long as its sender likes; reading one must not exhaust the stack.
#[test]
fn a_hostile_chain_of_causes_is_cut() {
    let mut bytes = BytesMut::new();
    bytes.put_u8(kind::ANSWER);
    bytes.put_u64_le(1);
    bytes.put_u64_le(1);
    bytes.put_u32_le(1);
    let causes = 300_000u64;
    bytes.put_u64_le(causes);
    for _ in 0..causes {
        bytes.put_u32_le(0);
        bytes.put_u64_le(0);
    }
    let mut frame = BytesMut::from(&(bytes.len() as u32).to_le_bytes()[..]);
    frame.unsplit(bytes);
    let decoded = Frame::decode(&mut frame, 4 << 20);
    let Ok(Some(Frame::Answer {
        body: Answer::Failed(failure),
        ..
    })) = decoded
    else {
        panic!("not a failure");
    };
    let depth = std::iter::successors(Some(&failure), |failure| failure.cause.as_deref()).count();
    assert!(depth <= 100, "{depth}");
}

#[test]
fn the_layout_of_every_frame_is_pinned_by_golden_bytes() {
    let (from, to) = (ProcessId(0x0102), ProcessId(0x0304));
    let actor = ActorId {
        home: to,
        serial: 5,
    };
    let name = NameRow {
        job: "j".into(),
        name: "n".into(),
        id: actor,
        actor: "A".into(),
        messages: vec![("m".into(), 12)],
    };
    let trace = SpanContext {
        trace_id: 6,
        span_id: 7,
        flags: 1,
    };
    let call = Call {
        call: 8,
        from,
        to: actor,
        at: from,
        fence: 9,
        method: 10,
        budget: Duration::from_micros(11),
        trace,
        payload: Bytes::from_static(b"hi"),
    };
    let hello = Hello {
        version: 1,
        process: from,
        job: "j".into(),
        node: "n".into(),
        carries: vec![(to, 1)],
        names: vec![name.clone()],
        session: Passage::Resumes(Resumption {
            session: 18,
            attempt: 19,
            taken: [20, 21, 22],
        }),
    };
    let row = "01000000000000006a01000000000000006e0403000000000000050000000000000001000000000000\
               0041010000000000000001000000000000006d0c00000000000000";
    let golden = [
        (
            Frame::Hello(hello),
            format!(
                "a80000000101000000020100000000000001000000000000006a01000000000000006e0100000000000000\
                 0403000000000000010100000000000000{row}\
                 020000001200000000000000130000000000000014000000000000001500000000000000\
                 1600000000000000"
            ),
        ),
        (
            Frame::Call(call),
            "580000000208000000000000000201000000000000040300000000000005000000000000000201000000000000\
             090000000a000000000000000b0000000000000006000000000000000000000000000000\
             0700000000000000016869"
                .to_owned(),
        ),
        (
            Frame::Reply { call: 8, to, result: Ok(Bytes::from_static(b"ok")) },
            "14000000030800000000000000040300000000000000\
             6f6b"
                .to_owned(),
        ),
        (
            Frame::Reply { call: 8, to, result: Err(AskError::SelfAsk(actor)) },
            "26000000030800000000000000040300000000000001\
             0400000004030000000000000500000000000000"
                .to_owned(),
        ),
        (
            Frame::Cancel { call: 8, from, to: actor },
            "2100000004080000000000000002010000000000000403000000000000\
             0500000000000000"
                .to_owned(),
        ),
        (
            Frame::Credit { actor, host: ProcessId(0x0506), to: from, messages: 12 },
            "2500000005040300000000000005000000000000000605000000000000\
             02010000000000000c000000"
                .to_owned(),
        ),
        (
            Frame::Request { request: 13, from, to, body: Request::Watch(actor) },
            "2d000000060d0000000000000002010000000000000403000000000000\
             0400000004030000000000000500000000000000"
                .to_owned(),
        ),
        (
            Frame::Answer { request: 13, to: from, body: Answer::Launched(Launched { process: to, lease: None, devices: vec![] }) },
            "26000000070d000000000000000201000000000000\
             030000000403000000000000000000000000000000"
                .to_owned(),
        ),
        (
            Frame::Fact(Fact::ProcessUp { process: to, hops: 2 }),
            "0e0000000800000000040300000000000002".to_owned(),
        ),
        (Frame::Fact(Fact::Named(name)), format!("490000000802000000{row}")),
        (
            Frame::Beat(Beat { sent: 23, echo: 24, heard: 25 }),
            "1900000009170000000000000018000000000000001900000000000000".to_owned(),
        ),
        (
            Frame::Taken([26, 27, 28]),
            "190000000c1a000000000000001b000000000000001c00000000000000".to_owned(),
        ),
        (Frame::Over("no".to_owned()), "0b0000000d02000000000000006e6f".to_owned()),
        (
            Frame::Opening(Opening::Keeps(29)),
            "0a0000000e011d00000000000000".to_owned(),
        ),
        (Frame::After(14), "090000000a0e00000000000000".to_owned()),
        (
            Frame::Chunk(Chunk {
                transfer: 15,
                to,
                index: 16,
                checksum: 17,
                bytes: Bytes::from_static(b"bulk"),
            }),
            "210000000b0f00000000000000040300000000000010000000000000001100000062756c6b".to_owned(),
        ),
    ];
    for (frame, bytes) in golden {
        assert_eq!(hex(&encoded(&frame)), bytes, "{frame:?}");
        assert_eq!(Frame::decode(&mut encoded(&frame), 100), Ok(Some(frame)));
    }
}

/// SEMANTICS 26.
/// Ten million inputs, or as many as `ODEON_FUZZ_INPUTS` says. Runs in a process of its own under
/// nextest, so that the peak of its memory says what the decoder took.
#[test]
fn no_input_makes_the_decoder_panic_or_take_memory() {
    let inputs = std::env::var("ODEON_FUZZ_INPUTS")
        .ok()
        .and_then(|inputs| inputs.parse().ok())
        .unwrap_or(10_000_000u64);
    let threads = 2;
    let before = peak_kib();
    let accepted: u64 = std::thread::scope(|scope| {
        let runs: Vec<_> = (0..threads)
            .map(|n| scope.spawn(move || mutate_and_decode(n << 40, inputs / threads)))
            .collect();
        runs.into_iter().map(|run| run.join().unwrap()).sum()
    });
    assert!(
        accepted > inputs / 100 && accepted < inputs,
        "{accepted} of {inputs} accepted"
    );
    let grown = peak_kib() - before;
    assert!(grown < 96 << 10, "decoding took {grown} KiB");
}

/// The most memory this process has had.
fn peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// Decodes frames with random damage; how many inputs gave at least one frame.
fn mutate_and_decode(seed: u64, inputs: u64) -> u64 {
    let mut draw = Draw(seed);
    let corpus: Vec<BytesMut> = (0..KINDS * 8)
        .map(|n| encoded(&draw.frame(n % KINDS)))
        .collect();
    let mut input = BytesMut::with_capacity(4096);
    let mut accepted = 0;
    for _ in 0..inputs {
        input.clear();
        input.extend_from_slice(&corpus[draw.below(corpus.len())]);
        let way = draw.next();
        let place = draw.below(input.len());
        match way % 8 {
            0 => input[place] = (way >> 8) as u8,
            1 => input[place] ^= 1 << ((way >> 8) & 7),
            2 => input.truncate(place),
            // A hostile length inside the body.
            3 => {
                let end = (place + 8).min(input.len());
                input[place..end].fill((way >> 8) as u8);
            }
            // The frame's own length.
            4 => input[..4].copy_from_slice(&((way >> 8) as u32 & 0xfff).to_le_bytes()),
            5 => {
                let other = &corpus[draw.below(corpus.len())];
                let from = draw.below(other.len());
                input.truncate(place);
                input.extend_from_slice(&other[from..]);
            }
            6 => {
                let kind = way >> 8;
                input.truncate(4);
                for _ in 0..draw.below(6) {
                    input.put_u64_le(draw.next());
                }
                input.put_u8(kind as u8 % 17);
                let length = (input.len() - 4) as u32;
                input[..4].copy_from_slice(&length.to_le_bytes());
            }
            _ => {
                let byte = (way >> 8) as u8;
                input.put_bytes(byte, (way >> 16) as usize % 16);
                let length = (input.len() - 4) as u32;
                input[..4].copy_from_slice(&length.to_le_bytes());
            }
        }
        let mut any = false;
        while let Ok(Some(frame)) = Frame::decode(&mut input, MESSAGE_BYTES_MAX) {
            any = true;
            std::hint::black_box(frame);
        }
        accepted += u64::from(any);
    }
    accepted
}
