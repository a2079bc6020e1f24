//! The frame decoder against every kind of frame, and golden bytes.

use proptest::prelude::{any, prop, prop_assert, prop_assert_eq, proptest};

use super::draw::{Draw, KINDS};
use super::*;

const MESSAGE_BYTES_MAX: usize = 4096;

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
        // Calls, replies, chunks and what services say end with bytes of any number.
        let fixed = match kind {
            1 => 4 + 1 + 8 * 5 + 4 + 8 * 2 + 16 + 8 + 1,
            2 | 6 => 4 + 1 + 8 + 8 + 1,
            5 => 4 + 1 + 8 * 3 + 2,
            14 => 4 + 1 + 2,
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
    for kind in (0..KINDS).filter(|kind| ![1, 2, 5, 6, 10, 14].contains(kind)) {
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
    for kind in [0, 16, 99, 255] {
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
    bytes.put_u8(1);
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
        result: Err(failure),
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
        names: vec![name],
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
            Frame::Request {
                request: 13,
                from,
                to,
                service: ServiceId(0x0708),
                body: Bytes::from_static(b"ask"),
            },
            "1e000000060d00000000000000020100000000000004030000000000000807\
             61736b"
                .to_owned(),
        ),
        (
            Frame::Answer { request: 13, to: from, result: Ok(Bytes::from_static(b"yes")) },
            "15000000070d00000000000000020100000000000000\
             796573"
                .to_owned(),
        ),
        (
            Frame::Answer { request: 13, to: from, result: Err(Failure::error("no")) },
            "28000000070d00000000000000020100000000000001\
             0100000000000000010000000200000000000000\
             6e6f"
                .to_owned(),
        ),
        (
            Frame::Fact(Fact::ProcessUp { process: to, hops: 2 }),
            "0e0000000800000000040300000000000002".to_owned(),
        ),
        (
            Frame::Notice { service: ServiceId(0x0708), body: Bytes::from_static(b"new") },
            "060000000f08076e6577".to_owned(),
        ),
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
