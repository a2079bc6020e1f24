//! One move as it is looked at again and carried out.

use super::*;

const MOVE: Move = Move {
    source: 1,
    destination: 2,
    version: 3,
    requests: 2,
    kv_bytes: 40,
};

fn pair() -> [Replica; 2] {
    [candidate(1, 40, 2), candidate(2, 60, 6)]
}

fn check(replicas: [Replica; 2], under_way: &[Move]) -> Result<(), Unfit> {
    can_fit(&MOVE, &snapshot(replicas), under_way, &LIMITS)
}

#[test]
fn a_move_is_refused_for_what_has_changed_since() {
    let [source, destination] = pair();
    assert_eq!(check(pair(), &[]), Ok(()));
    let excluded = |replica, phase| Err(Unfit::Excluded { replica, phase });
    for phase in [Phase::Pulling, Phase::Draining, Phase::Gone] {
        let now = [Replica { phase, ..source }, destination];
        assert_eq!(check(now, &[]), excluded(1, phase));
        let now = [
            source,
            Replica {
                phase,
                ..destination
            },
        ];
        assert_eq!(check(now, &[]), excluded(2, phase));
    }
    let other = Err(Unfit::OtherVersion {
        replica: 2,
        planned: 3,
        now: 4,
    });
    assert_eq!(
        check(
            [
                source,
                Replica {
                    version: 4,
                    ..destination
                }
            ],
            &[]
        ),
        other
    );
    let queued = |replica| {
        Err(Unfit::Queued {
            replica,
            waiting: 5,
        })
    };
    assert_eq!(
        check(
            [
                Replica {
                    waiting: 5,
                    ..source
                },
                destination
            ],
            &[]
        ),
        queued(1)
    );
    assert_eq!(
        check(
            [
                source,
                Replica {
                    waiting: 5,
                    ..destination
                }
            ],
            &[]
        ),
        queued(2)
    );
    let ended = Replica {
        running: 0,
        ..source
    };
    assert_eq!(check([ended, destination], &[]), Err(Unfit::Empty(1)));
    let gone = can_fit(&MOVE, &snapshot([source]), &[], &LIMITS);
    assert_eq!(gone, Err(Unfit::Unknown(2)));
    let itself = Move {
        destination: 1,
        ..MOVE
    };
    let itself = can_fit(&itself, &snapshot(pair()), &[], &LIMITS);
    assert_eq!(itself, Err(Unfit::UnderWay(1)));
}

#[test]
fn a_move_is_refused_when_requests_have_grown() {
    let [source, destination] = pair();
    let grown = Replica {
        kv_used: 61,
        ..destination
    };
    let no_room = Err(Unfit::NoRoom {
        needed: 101,
        capacity: 100,
    });
    assert_eq!(check([source, grown], &[]), no_room);
    let more = Replica {
        running: 3,
        ..source
    };
    let batch_full = Err(Unfit::BatchFull {
        requests: 9,
        batch_max: 8,
    });
    assert_eq!(check([more, destination], &[]), batch_full);
    let endless = Replica {
        kv_used: u64::MAX,
        ..destination
    };
    let no_room = Err(Unfit::NoRoom {
        needed: u64::MAX,
        capacity: 100,
    });
    assert_eq!(check([source, endless], &[]), no_room);
}

#[test]
fn moves_under_way_count_and_make_no_chain() {
    let [source, destination] = pair();
    let roomy = Replica {
        running: 1,
        kv_used: 10,
        ..destination
    };
    let other = |source, destination| Move {
        source,
        destination,
        ..MOVE
    };
    assert_eq!(check([source, roomy], &[other(8, 2)]), Ok(()));
    let no_room = Err(Unfit::NoRoom {
        needed: 130,
        capacity: 100,
    });
    assert_eq!(check([source, roomy], &[other(8, 2), other(9, 2)]), no_room);
    assert_eq!(check(pair(), &[other(8, 1)]), Err(Unfit::UnderWay(1)));
    assert_eq!(check(pair(), &[other(1, 9)]), Err(Unfit::UnderWay(1)));
    assert_eq!(check(pair(), &[other(2, 9)]), Err(Unfit::UnderWay(2)));
    assert_eq!(check(pair(), &[other(8, 9)]), Ok(()));
}
