//! Two ends of a stream over a network that breaks anywhere, against the list of what was sent.

use bytes::{BufMut, BytesMut};
use proptest::prelude::{
    Just, Strategy, any, prop, prop_assert, prop_assert_eq, prop_oneof, proptest,
};

use super::*;

/// An event at the two ends.
#[derive(Clone, Debug)]
enum Event {
    /// Frames of these lengths are sent as one piece.
    Send(Vec<usize>),
    /// So many bytes come out of the network.
    Carry(usize),
    /// The receiver says how far it is.
    Say,
    /// The last count that it said arrives.
    Hear,
    /// The connection breaks: what is on the way is lost, in both directions.
    Break,
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        4 => prop::collection::vec(0usize..40, 1..5).prop_map(Event::Send),
        6 => (1usize..120).prop_map(Event::Carry),
        2 => Just(Event::Say),
        2 => Just(Event::Hear),
        1 => Just(Event::Break),
    ];
    prop::collection::vec(event, 1..300)
}

/// A stream of numbered frames from one end to the other.
#[derive(Default)]
struct Stream {
    outgoing: Outgoing,
    incoming: Incoming,
    /// Bytes on the way.
    network: BytesMut,
    /// Bytes that have come out of it and are no whole frame yet.
    buffer: BytesMut,
    said: Option<u64>,
    sent: Vec<u64>,
    taken: Vec<u64>,
    longest: u64,
}

impl Stream {
    fn send(&mut self, lengths: &[usize]) {
        let mut piece = BytesMut::new();
        for length in lengths {
            let number = self.sent.len() as u64;
            self.sent.push(number);
            piece.put_u32_le(8 + *length as u32);
            piece.put_u64_le(number);
            piece.put_bytes(number as u8, *length);
        }
        let piece = piece.freeze();
        self.outgoing.keep(piece.clone());
        self.network.extend_from_slice(&piece);
    }

    fn carry(&mut self, bytes: usize) {
        let some = self.network.split_to(bytes.min(self.network.len()));
        self.buffer.extend_from_slice(&some);
        let mut taken = 0;
        while let Some(head) = self.buffer.first_chunk::<4>() {
            let length = 4 + u32::from_le_bytes(*head) as usize;
            if self.buffer.len() < length {
                break;
            }
            let frame = self.buffer.split_to(length);
            let number = u64::from_le_bytes(*frame[4..].first_chunk().unwrap());
            assert!(frame[12..].iter().all(|byte| *byte == number as u8));
            self.taken.push(number);
            taken += length as u64;
            self.longest = self.longest.max(length as u64);
        }
        if self.incoming.take(taken, 64) {
            self.said = Some(self.incoming.say());
        }
    }

    fn break_and_resume(&mut self) {
        self.network.clear();
        self.buffer.clear();
        self.said = None;
        self.outgoing.resume(self.incoming.say()).unwrap();
        while let Some(piece) = self.outgoing.again() {
            self.network.extend_from_slice(&piece);
        }
    }

    fn step(&mut self, event: &Event) {
        match event {
            Event::Send(lengths) => self.send(lengths),
            Event::Carry(bytes) => self.carry(*bytes),
            Event::Say => self.said = Some(self.incoming.say()),
            Event::Hear => {
                if let Some(mark) = self.said.take() {
                    self.outgoing.acknowledge(mark).unwrap();
                }
            }
            Event::Break => self.break_and_resume(),
        }
    }
}

proptest! {
    /// SEMANTICS 1, 2.
    #[test]
    fn every_frame_comes_once_and_in_order_however_often_the_connection_breaks(events in events()) {
        let mut stream = Stream::default();
        for event in &events {
            stream.step(event);
            prop_assert!(stream.taken.iter().copied().eq(0..stream.taken.len() as u64));
        }
        stream.break_and_resume();
        stream.carry(usize::MAX);
        prop_assert_eq!(&stream.taken, &stream.sent);
        stream.outgoing.acknowledge(stream.incoming.say()).unwrap();
        prop_assert_eq!(stream.outgoing.unacknowledged(), 0);
        prop_assert!(stream.outgoing.kept.is_empty());
    }

    /// While the receiver says how far it is, no more is kept than was not heard of.
    #[test]
    fn what_is_kept_is_what_was_not_acknowledged(events in events()) {
        let mut stream = Stream::default();
        for event in &events {
            stream.step(event);
            let kept: u64 = stream.outgoing.kept.iter().map(|piece| piece.len() as u64).sum();
            prop_assert_eq!(kept, stream.outgoing.unacknowledged());
            if let Some(mark) = stream.said {
                let unsaid = stream.incoming.taken - mark;
                prop_assert!(unsaid < 64 + stream.longest, "{unsaid} bytes are not said");
            }
        }
    }

    #[test]
    fn a_mark_beyond_what_was_sent_is_refused_and_an_old_one_changes_nothing(
        lengths in prop::collection::vec(0usize..40, 1..10),
        mark in any::<u64>(),
    ) {
        let mut stream = Stream::default();
        stream.send(&lengths);
        let sent = stream.outgoing.unacknowledged();
        let outcome = stream.outgoing.acknowledge(mark);
        if mark > sent {
            prop_assert_eq!(outcome, Err(BeyondSent { mark, sent }));
            prop_assert_eq!(stream.outgoing.unacknowledged(), sent);
        } else {
            prop_assert_eq!(stream.outgoing.unacknowledged(), sent - mark);
            stream.outgoing.acknowledge(0).unwrap();
            prop_assert_eq!(stream.outgoing.unacknowledged(), sent - mark);
        }
    }
}

#[test]
fn a_break_while_something_is_sent_again_begins_anew() {
    let mut outgoing = Outgoing::default();
    for piece in [&b"one"[..], b"two", b"three"] {
        outgoing.keep(Bytes::from_static(piece));
    }
    outgoing.resume(3).unwrap();
    assert_eq!(outgoing.again().unwrap(), "two");
    outgoing.resume(3).unwrap();
    assert_eq!(outgoing.again().unwrap(), "two");
    // Heard of while the rest is still to be sent.
    outgoing.acknowledge(6).unwrap();
    assert_eq!(outgoing.again().unwrap(), "three");
    assert_eq!(outgoing.again(), None);
    outgoing.keep(Bytes::from_static(b"four"));
    assert_eq!(outgoing.again(), None);
    assert_eq!(outgoing.unacknowledged(), 9);
}

/// SEMANTICS 1, 2.
#[test]
fn a_stream_that_is_made_again_goes_on_where_it_was() {
    let mut outgoing = Outgoing::default();
    for piece in [&b"one"[..], b"two"] {
        outgoing.keep(Bytes::from_static(piece));
    }
    assert!(!outgoing.is_behind(), "both were sent as they came");
    outgoing.resume(3).unwrap();
    let kept: Vec<Bytes> = outgoing.kept().cloned().collect();
    assert_eq!(kept, ["two"]);
    let mut made = Outgoing::resumed_from(outgoing.taken(), kept[0].clone());
    for stream in [&mut outgoing, &mut made] {
        assert_eq!((stream.taken(), stream.unacknowledged()), (3, 3));
        assert!(stream.is_behind());
        assert_eq!(stream.again().unwrap(), "two");
        assert!(!stream.is_behind());
    }
    let whole = Outgoing::resumed_from(6, Bytes::new());
    assert!(!whole.is_behind() && whole.kept().next().is_none());

    let mut incoming = Incoming::resumed_from(6);
    assert_eq!((incoming.taken(), incoming.is_news()), (6, false));
    assert!(!incoming.take(3, 4));
    assert_eq!((incoming.taken(), incoming.is_news()), (9, true));
    assert!(incoming.take(1, 4), "four bytes are not said");
    assert_eq!(incoming.say(), 10);
    assert!(!incoming.is_news() && !incoming.take(0, 1));
}
