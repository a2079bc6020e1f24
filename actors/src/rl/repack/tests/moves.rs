//! One move as it is looked at again and carried out.

use proptest::prelude::*;

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

fn begun() -> Transfer<u8> {
    let (transfer, first) = Transfer::begin(MOVE, &snapshot(pair()), &[], &LIMITS).unwrap();
    assert_eq!(first, Command::Drain(1));
    transfer
}

#[test]
fn the_source_drains_before_it_is_asked_for_anything() {
    let mut transfer = begun();
    assert_eq!(
        transfer.on(Event::Aborted(vec![1])),
        None,
        "nobody has asked"
    );
    assert_eq!(transfer.on(Event::Drained), Some(Command::Abort(1)));
    let admit = Command::Admit(2, vec![1, 2]);
    assert_eq!(transfer.on(Event::Aborted(vec![1, 2])), Some(admit));
    assert_eq!(transfer.on(Event::Admitted), Some(Command::Pull(1)));
    assert!(transfer.is_over());
    assert_eq!(transfer.planned(), MOVE);
}

#[test]
fn requests_that_ended_meanwhile_are_not_moved() {
    let mut transfer = begun();
    let _ = transfer.on(Event::Drained);
    assert_eq!(transfer.on(Event::Aborted(vec![])), Some(Command::Pull(1)));
}

/// Whose a request is, as far as events were heard.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Owner {
    Replica(usize),
    Move,
    Nobody,
}

/// Source and destination as they are, and the book of whoever carries the move out.
struct Pair {
    at: [Option<Vec<u8>>; 2],
    draining: bool,
    book: BTreeMap<u8, Owner>,
    transfer: Transfer<u8>,
}

impl Pair {
    fn hear(&mut self, event: Event<u8>, refuses: bool) -> Option<Event<u8>> {
        let (was_over, aborted) = (self.transfer.is_over(), matches!(event, Event::Aborted(_)));
        let (admitted, gone) = match event {
            Event::Gone(who) => (false, Some(Owner::Replica(who as usize - 1))),
            Event::Admitted => (!was_over, None),
            _ => (false, None),
        };
        let command = self.transfer.on(event.clone());
        if let Event::Aborted(requests) = event
            && command.is_some()
        {
            self.book
                .extend(requests.into_iter().map(|request| (request, Owner::Move)));
        }
        for owner in self.book.values_mut() {
            if admitted && *owner == Owner::Move {
                *owner = Owner::Replica(1);
            }
        }
        assert!(
            !(aborted && was_over && command.is_some()),
            "late news was heeded"
        );
        let answer = command.and_then(|command| self.carry_out(command, refuses));
        for owner in self.book.values_mut() {
            if Some(*owner) == gone {
                *owner = Owner::Nobody;
            }
        }
        answer
    }

    /// Does it, and says what the answer is. Who is lost does nothing and answers nothing.
    fn carry_out(&mut self, command: Command<u8>, refuses: bool) -> Option<Event<u8>> {
        match command {
            Command::Drain(_) => {
                self.at[0].as_ref()?;
                self.draining = true;
                Some(Event::Drained)
            }
            Command::Abort(_) => {
                assert!(self.draining, "aborted without draining");
                Some(Event::Aborted(std::mem::take(self.at[0].as_mut()?)))
            }
            Command::Admit(_, _) if refuses => self.at[1].as_ref().map(|_| Event::Refused),
            Command::Admit(_, requests) => {
                self.at[1].as_mut()?.extend(requests);
                Some(Event::Admitted)
            }
            Command::Pull(_) => {
                self.draining = false;
                assert!(
                    self.at[0].as_ref().is_none_or(Vec::is_empty),
                    "it still has some"
                );
                None
            }
            Command::Restore(_, requests) => {
                self.draining = false;
                self.book
                    .extend(requests.iter().map(|request| (*request, Owner::Replica(0))));
                self.at[0].as_mut()?.extend(requests);
                None
            }
            Command::Reopen(requests) => {
                self.book
                    .extend(requests.into_iter().map(|request| (request, Owner::Nobody)));
                None
            }
        }
    }
}

proptest! {
    /// Whoever is lost at whatever moment, and whenever that is noticed: in the end every request
    /// is at the replica whose it is, or nobody's and given out again.
    #[test]
    fn every_request_is_in_one_place_in_the_end(
        losses in prop::collection::vec((0..6_usize, 0..4_usize, 0..2_usize), 0..3),
        refuses: bool,
        own in prop::collection::btree_set(0..20_u8, 0..4),
    ) {
        let mut book: BTreeMap<_, _> = own.iter().map(|one| (*one, Owner::Replica(0))).collect();
        book.extend([(100, Owner::Replica(1)), (101, Owner::Replica(1))]);
        let mut pair = Pair {
            at: [Some(own.iter().copied().collect()), Some(vec![100, 101])],
            draining: false,
            book,
            transfer: begun(),
        };
        let mut answer = pair.carry_out(Command::Drain(1), refuses);
        for round in 0..12 {
            for (at, noticed, who) in &losses {
                if *at == round {
                    pair.at[*who] = None;
                }
                // What the lost one had answered may be heard before its loss, or after.
                if at + noticed == round {
                    let next = pair.hear(Event::Gone(*who as u64 + 1), refuses);
                    answer = next.or(answer);
                }
            }
            if let Some(event) = answer.take() {
                answer = pair.hear(event, refuses);
            }
        }
        prop_assert!(pair.transfer.is_over());
        for (request, owner) in &pair.book {
            let holders: Vec<_> = (0..2)
                .filter(|at| pair.at[*at].as_ref().is_some_and(|held| held.contains(request)))
                .collect();
            match owner {
                Owner::Replica(at) => prop_assert_eq!(&holders, &vec![*at], "{}", request),
                Owner::Nobody => prop_assert_eq!(&holders, &vec![], "{}", request),
                Owner::Move => prop_assert!(false, "{} is left in the move", request),
            }
        }
        prop_assert!(pair.at[0].is_none() || !pair.draining, "it is left draining");
    }
}
