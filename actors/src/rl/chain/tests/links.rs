//! Two members and the link between them.

use super::*;
use crate::rl::chain::delta::Word;

const BYTES: &[u8] = b"0123456789";

fn manifest(version: Version) -> Manifest {
    Manifest::of(version, BYTES, 4).unwrap()
}

fn arrived(chunk: u32) -> Arrived {
    let range = manifest(0).range(chunk).unwrap();
    Arrived::of(&BYTES[range.start as usize..range.end as usize])
}

/// A trainer with version 1 and a relay behind it that has said what it wants.
fn neighbours_of_two() -> (Member, Member, LinkKey) {
    let mut chain = Chain::new(0);
    let rewiring = chain.join(1).unwrap();
    let (mut trainer, mut relay) = (Member::default(), Member::default());
    trainer.put(manifest(1)).unwrap();
    assert_eq!(trainer.ordered(rewiring.places[0].1), Ok(None));
    let want = relay.ordered(rewiring.places[1].1).unwrap().unwrap();
    trainer.asked(Peer::Relay(1), want);
    (
        trainer,
        relay,
        LinkKey {
            term: 1,
            attempt: 1,
        },
    )
}

fn chunk_of(parcel: Option<(Peer, LinkKey, Parcel)>) -> Option<u32> {
    match parcel?.2 {
        Parcel::Chunk { chunk, .. } => Some(chunk),
        Parcel::Begin(_) => None,
    }
}

#[test]
fn a_version_goes_over_a_link_chunk_by_chunk() {
    let (mut trainer, mut relay, key) = neighbours_of_two();
    let begin = Parcel::Begin(manifest(1));
    assert_eq!(trainer.next_parcel(), Some((Peer::Relay(1), key, begin)));
    let unasked = relay.received(key, 1, 0, arrived(0));
    assert_eq!(unasked, Received::Ignored(Refusal::NotIncoming(1)));
    assert_eq!(relay.offered(key, manifest(1)), Offered::Begun(Begun::New));
    for chunk in 0..3 {
        assert_eq!(chunk_of(trainer.next_parcel()), Some(chunk));
    }
    assert_eq!(trainer.next_parcel(), None);
    assert_eq!(relay.received(key, 1, 0, arrived(0)), Received::More);
    let again = Request::Again {
        key,
        version: 1,
        chunk: 1,
    };
    assert_eq!(
        relay.received(key, 1, 1, arrived(0)),
        Received::Again(again.clone())
    );
    trainer.asked(Peer::Relay(1), again);
    assert_eq!(chunk_of(trainer.next_parcel()), Some(1));
    assert_eq!(relay.received(key, 1, 1, arrived(1)), Received::More);
    let got = Request::Got { key, version: 1 };
    let complete = Received::Complete {
        version: 1,
        got: got.clone(),
    };
    assert_eq!(relay.received(key, 1, 2, arrived(2)), complete);
    trainer.put(manifest(2)).unwrap();
    assert_eq!(
        trainer.next_parcel(),
        None,
        "the first is not known to be there"
    );
    trainer.asked(Peer::Relay(1), got);
    let (_, _, next) = trainer.next_parcel().unwrap();
    assert_eq!(next, Parcel::Begin(manifest(2)));
}

#[test]
fn a_version_that_is_begun_is_handed_over_whole_and_those_between_are_left_out() {
    let (mut trainer, _, key) = neighbours_of_two();
    let _ = trainer.next_parcel();
    trainer.put(manifest(2)).unwrap();
    trainer.put(manifest(3)).unwrap();
    assert_eq!(trainer.prune(), [2], "the one that is being sent is kept");
    assert_eq!(chunk_of(trainer.next_parcel()), Some(0));
    trainer.asked(Peer::Relay(1), Request::Got { key, version: 1 });
    assert_eq!(trainer.prune(), [1]);
    assert_eq!(trainer.next_parcel().unwrap().2, Parcel::Begin(manifest(3)));
}

#[test]
fn after_a_reconnect_only_what_is_missing_is_sent() {
    let (mut trainer, mut relay, key) = neighbours_of_two();
    let _ = relay.offered(key, manifest(1));
    let _ = relay.received(key, 1, 1, arrived(1));
    let want = relay.stalled().unwrap();
    let newer = LinkKey {
        term: 1,
        attempt: 2,
    };
    trainer.asked(Peer::Relay(1), want);
    assert_eq!(trainer.next_parcel().unwrap().1, newer);
    assert_eq!(chunk_of(trainer.next_parcel()), Some(0));
    assert_eq!(chunk_of(trainer.next_parcel()), Some(2));
    assert_eq!(trainer.next_parcel(), None);
    // What was on the way before is not taken, since it is on the way again.
    let late = relay.received(key, 1, 0, arrived(0));
    assert_eq!(late, Received::Ignored(Refusal::NotIncoming(1)));
    let early = relay.received(newer, 1, 0, arrived(0));
    assert_eq!(early, late, "nothing was offered over this link");
    assert_eq!(
        relay.offered(newer, manifest(1)),
        Offered::Begun(Begun::Resumed)
    );
    assert_eq!(relay.received(newer, 1, 0, arrived(0)), Received::More);
}

#[test]
fn whoever_is_no_neighbour_is_not_answered() {
    let (mut trainer, relay, key) = neighbours_of_two();
    let want = |term, attempt| Request::Want(relay.inbox().want(LinkKey { term, attempt }));
    let _ = trainer.next_parcel();
    trainer.asked(Peer::Relay(2), want(1, 9));
    trainer.asked(Peer::Relay(1), want(2, 9));
    trainer.asked(Peer::Relay(1), want(1, 1));
    trainer.asked(Peer::Relay(2), Request::Got { key, version: 1 });
    assert_eq!(
        chunk_of(trainer.next_parcel()),
        Some(0),
        "it goes on as it was"
    );
    let mut relay = relay;
    let known = relay.place();
    let old = OldOrder { told: 1, known: 1 };
    assert_eq!(relay.ordered(known), Err(old));
}

#[test]
fn a_version_with_other_bytes_does_not_stop_the_next() {
    let (mut trainer, mut relay, key) = neighbours_of_two();
    relay
        .put(Manifest::of(1, b"other bytes", 4).unwrap())
        .unwrap();
    let _ = trainer.next_parcel();
    let got = Request::Got { key, version: 1 };
    let refused = Offered::Refused(OfferRefused::Conflict(1), got.clone());
    assert_eq!(relay.offered(key, manifest(1)), refused);
    trainer.asked(Peer::Relay(1), got);
    trainer.put(manifest(2)).unwrap();
    let Some((_, _, Parcel::Begin(next))) = trainer.next_parcel() else {
        panic!("the next version is not offered");
    };
    assert_eq!(relay.offered(key, next), Offered::Begun(Begun::New));
}

/// The second parcel of a link whose receiver has version 1 when version 2 is sent.
fn first_chunk(trainer: &mut Member) -> Option<Parcel> {
    let _ = trainer.next_parcel();
    Some(trainer.next_parcel()?.2)
}

#[test]
fn a_chunk_that_was_damaged_is_sent_in_full() {
    let mut trainer = Member::new(Forms::Changes(Word::Two));
    let rewiring = Chain::new(0).join(1).unwrap();
    trainer.ordered(rewiring.places[0].1).unwrap();
    trainer.put(manifest(1)).unwrap();
    trainer.put(manifest(2)).unwrap();
    let key = LinkKey {
        term: 1,
        attempt: 1,
    };
    let want = Want {
        key,
        complete: Some(1),
        incoming: None,
        missing: vec![],
    };
    trainer.asked(Peer::Relay(1), Request::Want(want));
    let chunk = |chunk, form| {
        let version = 2;
        Some(Parcel::Chunk {
            version,
            chunk,
            form,
        })
    };
    assert_eq!(first_chunk(&mut trainer), chunk(0, Form::Since(1)));
    assert!(
        trainer.prune().is_empty(),
        "what changes are told by is kept"
    );
    let again = |key| Request::Again {
        key,
        version: 2,
        chunk: 0,
    };
    let before = LinkKey {
        term: 1,
        attempt: 0,
    };
    trainer.asked(Peer::Relay(1), again(before));
    assert_eq!(
        trainer.next_parcel().map(|next| next.2),
        chunk(1, Form::Since(1))
    );
    trainer.asked(Peer::Relay(1), again(key));
    assert_eq!(
        trainer.next_parcel().map(|next| next.2),
        chunk(0, Form::Full)
    );
    assert_eq!(trainer.prune(), [1]);
}

#[test]
fn what_is_older_than_what_comes_in_is_not_offered() {
    let (mut trainer, _, _) = neighbours_of_two();
    let want = Want {
        key: LinkKey {
            term: 1,
            attempt: 2,
        },
        complete: None,
        incoming: Some(2),
        missing: std::iter::once(0..3).collect(),
    };
    trainer.asked(Peer::Relay(1), Request::Want(want));
    assert_eq!(trainer.next_parcel(), None);
    trainer.put(manifest(2)).unwrap();
    assert_eq!(trainer.next_parcel().unwrap().2, Parcel::Begin(manifest(2)));
}

#[test]
fn a_version_that_was_given_up_here_is_not_waited_for() {
    let mut chain = chain_of(1..3);
    let _ = chain.splice_out(1).unwrap();
    let rewiring = chain.join(3).unwrap();
    let (mut relay, mut behind) = (Member::default(), Member::default());
    // The relay comes to stand behind the trainer and before another.
    let _ = chain.elect(&[holding(2, None, None)]).unwrap();
    let want = relay.ordered(chain.place(Peer::Relay(2)).unwrap()).unwrap();
    let Some(Request::Want(Want { key, .. })) = want else {
        panic!("it wants nothing");
    };
    let want = behind.ordered(rewiring.places[1].1).unwrap().unwrap();
    relay.asked(Peer::Relay(3), want);
    let _ = relay.offered(key, manifest(1));
    assert_eq!(relay.next_parcel().unwrap().2, Parcel::Begin(manifest(1)));
    assert_eq!(relay.next_parcel(), None, "nothing has come yet");
    assert_eq!(
        relay.offered(key, manifest(2)),
        Offered::Begun(Begun::Superseded(1))
    );
    assert_eq!(relay.next_parcel().unwrap().2, Parcel::Begin(manifest(2)));
    // The same number with other bytes is begun anew for whoever is behind.
    let other = Manifest::of(2, b"other bytes", 4).unwrap();
    assert_eq!(
        relay.offered(key, other.clone()),
        Offered::Begun(Begun::Replaced)
    );
    assert_eq!(relay.next_parcel().unwrap().2, Parcel::Begin(other));
}

#[test]
fn a_new_neighbour_is_sent_nothing_before_it_asks() {
    let (mut trainer, _, _) = neighbours_of_two();
    let _ = trainer.next_parcel();
    let downstream = Some(Edge {
        peer: Peer::Relay(2),
        term: 2,
    });
    let place = Place {
        term: 2,
        upstream: None,
        downstream,
    };
    assert_eq!(trainer.ordered(place), Ok(None));
    assert_eq!(trainer.next_parcel(), None);
}

#[test]
fn a_chunk_that_cannot_be_put_together_is_asked_for_while_it_is_missing() {
    let (_, mut relay, key) = neighbours_of_two();
    assert_eq!(relay.unreadable(key, 1, 0), None);
    let _ = relay.offered(key, manifest(1));
    let again = Request::Again {
        key,
        version: 1,
        chunk: 0,
    };
    assert_eq!(relay.unreadable(key, 1, 0), Some(again));
    let before = LinkKey {
        term: 0,
        attempt: 1,
    };
    assert_eq!(relay.unreadable(before, 1, 0), None);
    let _ = relay.received(key, 1, 0, arrived(0));
    assert_eq!(relay.unreadable(key, 1, 0), None);
}

#[test]
fn what_a_version_is_told_by_is_kept_when_the_receiver_names_another() {
    let mut trainer = Member::new(Forms::Changes(Word::Two));
    let rewiring = Chain::new(0).join(1).unwrap();
    trainer.ordered(rewiring.places[0].1).unwrap();
    for version in 1..=3 {
        trainer.put(manifest(version)).unwrap();
    }
    let key = LinkKey {
        term: 1,
        attempt: 1,
    };
    let want = Want {
        key,
        complete: Some(1),
        incoming: None,
        missing: vec![],
    };
    trainer.asked(Peer::Relay(1), Request::Want(want));
    let _ = first_chunk(&mut trainer);
    trainer.asked(Peer::Relay(1), Request::Got { key, version: 2 });
    assert_eq!(trainer.prune(), [2]);
    let next = trainer.next_parcel().map(|next| next.2);
    let form = Form::Since(1);
    assert_eq!(
        next,
        Some(Parcel::Chunk {
            version: 3,
            chunk: 1,
            form
        })
    );
}
