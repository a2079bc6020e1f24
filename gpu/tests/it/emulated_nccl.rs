//! Collectives between cards over a library in NCCL's place and the emulated card: everything but
//! NCCL and the card themselves is real. Skipped by name where there is no C++ compiler.

mod faults;
mod forming;
mod rig;

use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Barrier};
use std::thread;

use odeon_collective::conformance;
use odeon_collective::queue::{Queues, gang_with_board};
use odeon_collective::stream::{Duplex, connect};
use odeon_collective::{
    Collective, CollectiveError, Communicator, Fault, Membership, Reduce, Topology,
    WINDOW_BYTES_MIN, bf16,
};
use odeon_gpu::Backend;
use odeon_gpu::cuda::CudaArray;
use odeon_gpu::cuda::nccl::Nccl;

use rig::{Card, OnCard, PATIENT, Standin, array, card, each, fault, ones, run};

// SEMANTICS 50.
#[test]
fn every_operation_gives_what_arithmetic_gives_and_all_ranks_the_same_bits() {
    let Some(standin) = Standin::new("") else {
        return;
    };
    for world in [1, 2, 3, 4] {
        run(&standin, world, |comm, card| {
            conformance::check_on(comm, &OnCard(card.clone()));
            comm.wait().unwrap();
            assert_eq!(comm.broken(), None);
        });
    }
}

/// A gang over unix sockets.
fn sockets(world: usize) -> Vec<Queues> {
    let mut ends: Vec<Vec<Option<Duplex>>> = (0..world)
        .map(|_| (0..world).map(|_| None).collect())
        .collect();
    for (a, b) in (0..world).flat_map(|a| (a + 1..world).map(move |b| (a, b))) {
        let (left, right) = UnixStream::pair().unwrap();
        ends[a][b] = Some(Duplex::unix(left).unwrap());
        ends[b][a] = Some(Duplex::unix(right).unwrap());
    }
    let ranks = ends.into_iter().enumerate().map(|(rank, ends)| {
        let membership = Membership {
            rank,
            generation: 7,
            gang: 5,
            topology: Topology::one_node(world),
        };
        connect(membership, ends).unwrap()
    });
    ranks.collect()
}

#[test]
fn it_forms_over_any_transport_and_names_who_is_gone() {
    let Some(standin) = Standin::new("") else {
        return;
    };
    let topology = Topology::one_node(3);
    for ends in [sockets(3), gang_with_board(&topology, 7, WINDOW_BYTES_MIN)] {
        let gate = Barrier::new(3);
        each(ends, |end| {
            let card = card();
            let mut comm = Communicator::new(end);
            comm.set_deadline(PATIENT);
            let mut comm = Nccl::form(comm, &card, &standin.library).unwrap();
            conformance::check_on_at::<f32, _, _>(&mut comm, &OnCard(card.clone()), 100);
            comm.barrier().unwrap();
            // Who leaves must not meet another's call that has yet to end there.
            gate.wait();
            if comm.membership().rank == 1 {
                return;
            }
            let mut data = ones(&card, 10);
            let done = comm.all_reduce(&mut data, Reduce::Sum);
            let error = done.and_then(|()| comm.wait()).unwrap_err();
            assert!(
                matches!(fault(&error), Fault::Lost { rank: 1, .. }),
                "{error}"
            );
        });
    }
}

#[test]
fn calls_happen_in_their_place_among_the_cards_commands() {
    let Some(standin) = Standin::new("") else {
        return;
    };
    run(&standin, 3, |comm, card| {
        // A buffer of the back-end, of which a part is reduced between two operations.
        let rank = comm.membership().rank as f32;
        let mut buffer = card.buffer(&[rank; 10]);
        for _ in 0..20 {
            card.fill(Card::view_mut(&mut buffer, 2..6), rank + 1.0);
            let mut part = Card::view_mut(&mut buffer, 2..6).elements();
            comm.all_reduce(&mut part, Reduce::Sum).unwrap();
            card.scale(0.5, Card::view_mut(&mut buffer, 0..4));
            let mut part = Card::view_mut(&mut buffer, 0..1).elements();
            comm.all_reduce(&mut part, Reduce::Max).unwrap();
        }
        // 6 is the sum of 1, 2, 3.
        let got = card.to_vec(&buffer);
        assert_eq!(got[2..6], [3.0, 3.0, 6.0, 6.0]);
        assert_eq!(got[6..], [rank; 4]);
        assert!(got[0] < 1e-5 && got[1] < 1e-5);
        comm.wait().unwrap();
    });
}

#[test]
fn a_call_returns_before_the_others_have_come() {
    let Some(standin) = Standin::new("") else {
        return;
    };
    let late = Barrier::new(2);
    run(&standin, 2, |comm, card| {
        let mut data = ones(card, 100);
        if comm.membership().rank == 1 {
            late.wait();
            comm.all_reduce(&mut data, Reduce::Sum).unwrap();
        } else {
            // Would never return if it waited for the other.
            comm.all_reduce(&mut data, Reduce::Sum).unwrap();
            late.wait();
        }
        assert_eq!(data.to_vec(), [2.0; 100]);
    });
}

#[test]
fn parts_of_memory_are_buffers_and_those_of_another_card_are_not() {
    let Some(standin) = Standin::new("") else {
        return;
    };
    run(&standin, 2, |comm, card| {
        let other = self::card();
        let mut stranger = ones(&other, 4);
        let refused = comm.all_reduce(&mut *stranger, Reduce::Sum).unwrap_err();
        assert!(
            matches!(refused, CollectiveError::Misuse { .. }),
            "{refused}"
        );
        let mut data = array(card, &[bf16::ONE; 7]);
        comm.all_reduce(&mut data.part_mut(2..5), Reduce::Sum)
            .unwrap();
        let two = bf16::from_f32(2.0);
        let one = bf16::ONE;
        assert_eq!(data.to_vec(), [one, one, two, two, two, one, one]);
        let mut out = CudaArray::zeros(card, 6);
        comm.all_gather(&data.part(1..4), &mut *out).unwrap();
        assert_eq!(out.to_vec(), [one, two, two, one, two, two]);
    });
}

#[test]
fn what_does_not_fit_is_refused_and_breaks_nothing() {
    let Some(standin) = Standin::new("") else {
        return;
    };
    run(&standin, 3, |comm, card| {
        let (a, mut b) = (ones(card, 6), ones(card, 6));
        let short = ones(card, 5);
        let rank = comm.membership().rank;
        let refused = [
            comm.broadcast(&mut b, 3),
            comm.all_gather(&a, &mut b),
            comm.all_gather_v(&a, &[1, 2], &mut b),
            comm.reduce_scatter(&a, &mut b, Reduce::Sum),
            comm.all_to_all(&short, &mut b),
            comm.all_to_all_v(&a, &[2, 2, 2], &mut b, &[6, 0, 0]),
            comm.send(&a, 3),
            comm.send(&a, rank),
            comm.receive(&mut b, usize::MAX),
        ];
        for error in refused.map(Result::unwrap_err) {
            assert!(matches!(error, CollectiveError::Misuse { .. }), "{error}");
        }
        conformance::check_on_at::<f32, _, _>(comm, &OnCard(card.clone()), 5);
    });
}

#[test]
fn many_calls_on_their_way_stay_in_order_and_give_all_memory_back() {
    let Some(standin) = Standin::new("") else {
        return;
    };
    let blocks = run(&standin, 2, |comm, card| {
        let mut data = ones(card, 3);
        for _ in 0..20 {
            comm.all_reduce(&mut data, Reduce::Sum).unwrap();
            // Memory that is given back while calls still work on it is not lost to them.
            let mut short_lived = ones(card, 50);
            comm.broadcast(&mut short_lived, 0).unwrap();
        }
        assert_eq!(data.to_vec(), [(1u32 << 20) as f32; 3]);
        comm.wait().unwrap();
        drop(data);
        card.flush();
        card.card().blocks()
    });
    // The token of the barrier is left.
    assert_eq!(blocks, [1, 1]);
}

/// Ranks that come and go: each gang ends before the next begins, and none waits for the deadline.
#[test]
fn gangs_follow_each_other() {
    let Some(standin) = Standin::new("") else {
        return;
    };
    let standin = Arc::new(standin);
    let (done, end): (_, Receiver<()>) = channel();
    let worker = thread::spawn(move || {
        for _ in 0..5 {
            run(&standin, 2, |comm, card| {
                let mut data = ones(card, 10);
                comm.all_reduce(&mut data, Reduce::Mean).unwrap();
                assert_eq!(data.to_vec(), [1.0; 10]);
            });
        }
        drop(done);
    });
    let ended = end.recv_timeout(PATIENT / 2);
    assert_ne!(ended, Err(std::sync::mpsc::RecvTimeoutError::Timeout));
    worker.join().unwrap();
}
