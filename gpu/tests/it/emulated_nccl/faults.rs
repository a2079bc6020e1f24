//! Whatever goes wrong between ranks is told by name, and nobody waits for ever.

use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use odeon_collective::{Collective, CollectiveError, Fault, Reduce, bf16};
use odeon_devices::fault::FaultKind;
use odeon_gpu::cuda::nccl::Nccl;

use super::rig::{
    Card, Comm, PATIENT, SHORT, Standin, array, card, clock, each, fault, ones, ranks, run,
};

// SEMANTICS 51.
#[test]
fn a_rank_that_does_not_come_is_named_by_all_within_the_deadline() {
    let Some(standin) = Standin::new("") else {
        return;
    };
    let done = Barrier::new(4);
    run(&standin, 4, |comm, card| {
        comm.set_deadline(SHORT);
        let begun = clock();
        let mut data = ones(card, 1000);
        if comm.membership().rank == 2 {
            // It is there, and elsewhere in its program.
            done.wait();
            let late = comm.all_reduce(&mut data, Reduce::Sum);
            let error = late.and_then(|()| comm.wait()).unwrap_err();
            assert_eq!(fault(&error).ranks(), [2], "{error}");
            return;
        }
        let waited = comm
            .all_reduce(&mut data, Reduce::Sum)
            .and_then(|()| comm.wait());
        let error = waited.unwrap_err();
        let text = error.to_string();
        let named = fault(&error);
        assert!(
            matches!(&named, Fault::Missing { ranks, .. } if ranks == &[2]),
            "{text}"
        );
        assert!(text.contains("all-reduce (sum) of 1000 f32"), "{text}");
        assert!(text.contains("generation 7"), "{text}");
        assert!(
            begun.elapsed() < SHORT + Duration::from_secs(1),
            "{:?}",
            begun.elapsed()
        );
        // Nothing hangs on the card either, and the next call says the same.
        drop(data.to_vec());
        let again = comm.barrier().unwrap_err();
        assert!(matches!(again, CollectiveError::Broken { .. }), "{again}");
        assert_eq!(fault(&again), named);
        assert_eq!(comm.broken().unwrap().fault, named);
        done.wait();
    });
}

// SEMANTICS 51.
#[test]
fn a_read_of_what_never_comes_returns_and_the_next_call_says_why() {
    let Some(standin) = Standin::new("") else {
        return;
    };
    let done = Barrier::new(2);
    run(&standin, 2, |comm, card| {
        comm.set_deadline(SHORT);
        if comm.membership().rank == 1 {
            done.wait();
            return;
        }
        let mut data = ones(card, 10);
        comm.all_reduce(&mut data, Reduce::Sum).unwrap();
        // The card waits, until NCCL is aborted.
        drop(data.to_vec());
        let error = comm.all_reduce(&mut data, Reduce::Sum).unwrap_err();
        assert_eq!(fault(&error).ranks(), [1], "{error}");
        done.wait();
    });
}

// SEMANTICS 51.
#[test]
fn a_rank_that_is_gone_is_named_at_once() {
    let Some(standin) = Standin::new("") else {
        return;
    };
    let gate = Barrier::new(3);
    run(&standin, 3, |comm, card| {
        let mut data = ones(card, 1000);
        comm.all_reduce(&mut data, Reduce::Sum).unwrap();
        comm.wait().unwrap();
        gate.wait();
        if comm.membership().rank == 1 {
            // It ends while the others go on.
            return;
        }
        let begun = clock();
        let later = (0..4).try_for_each(|_| {
            comm.all_reduce(&mut data, Reduce::Sum)?;
            comm.wait()
        });
        let error = later.unwrap_err();
        assert!(
            matches!(fault(&error), Fault::Lost { rank: 1, .. }),
            "{error}"
        );
        assert!(begun.elapsed() < PATIENT / 2, "before the deadline");
    });
}

#[test]
fn a_send_to_a_rank_that_has_left_fails_at_once() {
    let Some(standin) = Standin::new("") else {
        return;
    };
    run(&standin, 2, |comm, card| {
        if comm.membership().rank == 1 {
            return;
        }
        let begun = clock();
        let sent = comm.send(&*ones(card, 8), 1);
        let error = sent.and_then(|()| comm.wait()).unwrap_err();
        assert!(
            matches!(fault(&error), Fault::Lost { rank: 1, .. }),
            "{error}"
        );
        assert!(begun.elapsed() < PATIENT / 2, "before the deadline");
    });
}

// SEMANTICS 51.
#[test]
fn a_rank_that_panics_in_the_middle_is_named_at_once() {
    let Some(standin) = Standin::new("") else {
        return;
    };
    let results = each(ranks(3), |comm| {
        let rank = comm.membership().rank;
        let end = thread::scope(|scope| {
            let standin = &standin;
            let life = scope.spawn(move || {
                let card = card();
                let mut comm = Nccl::form(comm, &card, &standin.library).unwrap();
                let mut data = ones(&card, 1000);
                let reduced = comm.all_reduce(&mut data, Reduce::Sum);
                assert_ne!(comm.membership().rank, 2, "on purpose");
                // Another may have found out already.
                reduced.and_then(|()| comm.barrier())
            });
            life.join()
        });
        (rank, end)
    });
    for (rank, end) in results {
        match end {
            Err(_) => assert_eq!(rank, 2),
            Ok(end) => {
                let error = end.unwrap_err();
                assert!(
                    matches!(fault(&error), Fault::Lost { rank: 2, .. }),
                    "{error}"
                );
            }
        }
    }
}

#[test]
fn an_asynchronous_error_of_nccl_breaks_all_ranks() {
    let Some(standin) = Standin::new("async 1 3") else {
        return;
    };
    run(&standin, 3, |comm, card| {
        let mut data = ones(card, 1000);
        let begun = clock();
        let end = (0..1000).try_for_each(|_| {
            comm.all_reduce(&mut data, Reduce::Sum)?;
            comm.wait()
        });
        let error = end.unwrap_err();
        let text = error.to_string();
        assert!(
            matches!(fault(&error), Fault::Device { rank: 1, .. }),
            "{text}"
        );
        assert!(text.contains("unhandled system error"), "{text}");
        assert!(begun.elapsed() < PATIENT / 2, "before the deadline");
    });
}

#[test]
fn a_call_that_nccl_refuses_breaks_all_ranks() {
    let Some(standin) = Standin::new("refuse 2") else {
        return;
    };
    run(&standin, 3, |comm, card| {
        let mut data = ones(card, 10);
        let end = comm
            .all_reduce(&mut data, Reduce::Sum)
            .and_then(|()| comm.wait());
        let error = end.unwrap_err();
        let text = error.to_string();
        assert!(
            matches!(fault(&error), Fault::Device { rank: 2, .. }),
            "{text}"
        );
        assert!(
            text.contains("ncclAllReduce of NCCL says: invalid argument"),
            "{text}"
        );
    });
}

#[test]
fn a_card_that_fails_breaks_all_ranks() {
    let Some(standin) = Standin::new("") else {
        return;
    };
    let gate = Barrier::new(2);
    run(&standin, 2, |comm, card| {
        let mut data = ones(card, 10);
        comm.barrier().unwrap();
        gate.wait();
        if comm.membership().rank == 0 {
            card.card().break_after(0, FaultKind::Ecc);
        }
        let end = (0..4).try_for_each(|_| {
            comm.all_reduce(&mut data, Reduce::Sum)?;
            comm.wait()
        });
        let error = end.unwrap_err();
        assert!(
            matches!(fault(&error), Fault::Device { rank: 0, .. }),
            "{error}"
        );
    });
}

// SEMANTICS 52.
#[test]
fn lengths_that_differ_are_told_with_who_called_what() {
    // NCCL waits for ever, or mixes the numbers: both are found.
    for mode in ["", "mix"] {
        let Some(standin) = Standin::new(mode) else {
            return;
        };
        run(&standin, 3, |comm, card| {
            comm.set_deadline(SHORT * 5);
            let len = if comm.membership().rank == 1 { 9 } else { 8 };
            let mut data = ones(card, len);
            let done = comm.all_reduce(&mut data, Reduce::Sum);
            let error = done.map_or_else(|error| error, |()| loop_until_broken(comm));
            let text = error.to_string();
            assert!(matches!(fault(&error), Fault::Mismatch { .. }), "{text}");
            assert!(fault(&error).ranks().contains(&1), "{text}");
            assert!(
                text.contains("of 8 f32") && text.contains("of 9 f32"),
                "{text}"
            );
        });
    }
}

/// The error that the watching threads find, though no call fails by itself.
fn loop_until_broken(comm: &mut Comm) -> CollectiveError {
    let until = clock() + PATIENT;
    loop {
        if let Err(error) = comm.wait() {
            return error;
        }
        assert!(clock() < until, "never found");
        thread::yield_now();
    }
}

// SEMANTICS 52.
#[test]
fn different_calls_and_parts_are_told_with_who_called_what() {
    let Some(standin) = Standin::new("") else {
        return;
    };
    type Body = fn(&mut Comm, &Card) -> Result<(), CollectiveError>;
    let cases: [(Body, &str); 4] = [
        (
            |comm, card| comm.broadcast(&mut ones(card, 8), 0),
            "broadcast of 8",
        ),
        (
            |comm, card| comm.all_reduce(&mut array(card, &[bf16::ONE; 8]), Reduce::Sum),
            "of 8 bf16",
        ),
        (
            |comm, card| comm.all_reduce(&mut ones(card, 8), Reduce::Max),
            "(max)",
        ),
        (
            |comm, card| comm.receive(&mut ones(card, 8), 0),
            "receive of 8",
        ),
    ];
    for (other, text) in cases {
        run(&standin, 3, |comm, card| {
            comm.set_deadline(SHORT);
            let done = if comm.membership().rank == 1 {
                other(comm, card)
            } else {
                comm.all_reduce(&mut ones(card, 8), Reduce::Sum)
            };
            let error = done.map_or_else(|error| error, |()| loop_until_broken(comm));
            let said = error.to_string();
            assert!(matches!(fault(&error), Fault::Mismatch { .. }), "{said}");
            assert!(
                said.contains(text) && said.contains("all-reduce (sum) of 8 f32"),
                "{said}"
            );
        });
    }
    // Rank 0 has two for rank 1, which expects one.
    run(&standin, 3, |comm, card| {
        comm.set_deadline(SHORT);
        let to = if comm.membership().rank == 0 {
            [1, 2, 1]
        } else {
            [1; 3]
        };
        let input = ones(card, to.iter().sum());
        let mut output = ones(card, 3);
        let done = comm.all_to_all_v(&input, &to, &mut output, &[1; 3]);
        // Rank 2 has all that is for it.
        let error = done.map_or_else(|error| error, |()| loop_until_broken(comm));
        assert!(matches!(fault(&error), Fault::Mismatch { .. }), "{error}");
        assert_eq!(fault(&error).ranks(), [0, 1], "{error}");
    });
    // A send and a receive of other lengths.
    run(&standin, 2, |comm, card| {
        comm.set_deadline(SHORT);
        let done = if comm.membership().rank == 0 {
            comm.send(&*ones(card, 8), 1)
        } else {
            comm.receive(&mut ones(card, 7), 0)
        };
        let error = done.and_then(|()| comm.wait()).unwrap_err();
        assert!(matches!(fault(&error), Fault::Mismatch { .. }), "{error}");
    });
}
