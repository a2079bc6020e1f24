//! Gangs of threads over every transport of this crate: results, faults, and who is named.

use odeon_topology::Link;
use std::os::unix::net::UnixStream;
use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use super::communicator::now;
use super::queue::{Queues, gang, gang_of_queues, gang_with_board};
use super::stream::{Duplex, connect};
use super::*;

/// Runs each rank on a thread of its own, and gives what they give, in rank order.
fn run<X: Transport, R: Send>(
    ranks: Vec<X>,
    algorithm: Option<Algorithm>,
    body: impl Fn(&mut Communicator<X>) -> R + Sync,
) -> Vec<R> {
    thread::scope(|scope| {
        let threads: Vec<_> = ranks
            .into_iter()
            .map(|transport| {
                let body = &body;
                scope.spawn(move || {
                    let mut comm = Communicator::new(transport);
                    if let Some(algorithm) = algorithm {
                        comm = comm.with_algorithm(algorithm);
                    }
                    comm.set_deadline(Duration::from_secs(20));
                    body(&mut comm)
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    })
}

/// A gang over unix sockets; each rank with a generation of its own.
fn sockets(topology: &Topology, generation: impl Fn(usize) -> u64) -> Vec<Queues> {
    let world = topology.world();
    let mut streams: Vec<Vec<Option<Duplex>>> = (0..world)
        .map(|_| (0..world).map(|_| None).collect())
        .collect();
    let pairs = (0..world).flat_map(|a| (a + 1..world).map(move |b| (a, b)));
    for (a, b) in pairs {
        let (left, right) = UnixStream::pair().unwrap();
        streams[a][b] = Some(Duplex::unix(left).unwrap());
        streams[b][a] = Some(Duplex::unix(right).unwrap());
    }
    let ranks = streams.into_iter().enumerate().map(|(rank, streams)| {
        let membership = Membership {
            rank,
            generation: generation(rank),
            gang: 5,
            topology: topology.clone(),
        };
        connect(membership, streams).unwrap()
    });
    ranks.collect()
}

/// One gang of each kind.
fn kinds(world: usize) -> Vec<(&'static str, Vec<Queues>)> {
    let topology = Topology::one_node(world);
    vec![
        ("queues", gang(&topology, 3)),
        ("windows", gang_with_board(&topology, 3, 1 << 20)),
        ("sockets", sockets(&topology, |_| 3)),
    ]
}

// SEMANTICS 50.
#[test]
fn every_algorithm_gives_what_arithmetic_gives_and_all_ranks_the_same_bits() {
    for world in [1, 2, 3, 4, 5, 8] {
        for algorithm in Algorithm::ALL {
            let topology = Topology::new((0..world).map(|rank| rank % 3).collect());
            run(gang(&topology, 1), Some(algorithm), conformance::check);
        }
        run(
            gang(&Topology::one_node(world), 1),
            None,
            conformance::check,
        );
    }
}

// SEMANTICS 50.
#[test]
fn small_queues_and_small_windows_do_as_well() {
    for world in [2, 3, 5] {
        let topology = Topology::one_node(world);
        for algorithm in Algorithm::ALL {
            run(gang_of_queues(&topology, 1, 7), Some(algorithm), |comm| {
                conformance::check_at::<f32, _>(comm, 100);
                conformance::check_at::<bf16, _>(comm, 101);
            });
        }
        run(
            gang_with_board(&topology, 1, WINDOW_BYTES_MIN),
            None,
            conformance::check,
        );
        run(
            gang_with_board(&topology, 1, 1 << 20),
            None,
            conformance::check,
        );
    }
}

// SEMANTICS 50.
#[test]
fn streams_do_as_well() {
    for world in [2, 4] {
        run(
            sockets(&Topology::one_node(world), |_| 1),
            None,
            conformance::check,
        );
        run(
            sockets(&Topology::new(vec![0, 1, 0, 1][..world].to_vec()), |_| 1),
            Some(Algorithm::Hierarchical),
            conformance::check,
        );
    }
}

#[test]
fn costs_that_are_set_choose_the_algorithm() {
    let far = Costs::default().far;
    let slow = Link {
        latency_s: 1.0,
        ..far
    };
    for (near, expected) in [(far, Algorithm::Ring), (slow, Algorithm::Direct)] {
        // The others do not come, and what fails says how it was done.
        let mut ends = gang(&Topology::one_node(3), 1);
        let mut comm = Communicator::new(ends.remove(0)).with_costs(Costs { near, far });
        comm.set_deadline(Duration::from_millis(10));
        let summed = comm.all_reduce(&mut vec![0.0f32; 2_000_000], Reduce::Sum);
        summed.unwrap_err();
        let failed = comm.broken().unwrap();
        assert_eq!(failed.call.algorithm, expected, "{failed}");
    }
}

// SEMANTICS 50.
#[test]
fn a_sum_does_not_depend_on_who_comes_first() {
    // Numbers of very different size, whose sum depends on the order.
    let numbers = |rank: usize| -> Vec<f32> {
        (0..5000)
            .map(|i| ((rank * 977 + i * 31) % 1009) as f32 * 10f32.powi((i + rank) as i32 % 9 - 4))
            .collect()
    };
    for algorithm in Algorithm::ALL.into_iter().map(Some).chain([None]) {
        let mut seen: Option<Vec<u32>> = None;
        for late in 0..5 {
            let gate = Barrier::new(2);
            let ranks = match algorithm {
                Some(_) => gang(&Topology::one_node(5), 1),
                None => gang_with_board(&Topology::one_node(5), 1, 8192),
            };
            let results = run(ranks, algorithm, |comm| {
                let rank = comm.membership().rank;
                // One rank begins after another has.
                if rank == late || rank == (late + 1) % 5 {
                    gate.wait();
                }
                let mut data = numbers(rank);
                comm.all_reduce(&mut data, Reduce::Sum).unwrap();
                data.iter().map(|value| value.to_bits()).collect::<Vec<_>>()
            });
            for bits in results {
                assert_eq!(
                    *seen.get_or_insert_with(|| bits.clone()),
                    bits,
                    "{algorithm:?}"
                );
            }
        }
    }
}

fn fault(result: Result<(), CollectiveError>) -> Fault {
    match result {
        Err(CollectiveError::Failed(failed)) => failed.report.fault,
        other => panic!("{other:?}"),
    }
}

/// The fault of a call, or of the one after when this rank had its part before it was found.
fn fault_soon(comm: &mut Communicator<Queues>, result: Result<(), CollectiveError>) -> Fault {
    fault(result.and_then(|()| comm.barrier()))
}

// SEMANTICS 51.
#[test]
fn a_rank_that_does_not_come_is_named_by_all_within_the_deadline() {
    for (kind, ranks) in kinds(4) {
        let done = Barrier::new(4);
        let begun = now();
        run(ranks, None, |comm| {
            comm.set_deadline(Duration::from_millis(600));
            if comm.membership().rank == 2 {
                // It is there, and stuck elsewhere.
                done.wait();
                let late = fault(comm.barrier());
                // It hears why nobody waits; over sockets, a call of before may arrive sooner.
                let mismatch = kind == "sockets" && matches!(late, Fault::Mismatch { .. });
                assert!(mismatch || late.ranks() == [2], "{kind}: {late}");
                return;
            }
            let mut data = vec![1.0f32; 100_000];
            let error = comm.all_reduce(&mut data, Reduce::Sum).unwrap_err();
            let text = error.to_string();
            assert!(
                matches!(error.fault(), Some(Fault::Missing { ranks, .. }) if ranks == &[2]),
                "{kind}: {text}"
            );
            assert!(
                text.contains("all-reduce") && text.contains("generation 3"),
                "{text}"
            );
            // From now on it is broken, and says why.
            let again = comm.barrier().unwrap_err();
            let CollectiveError::Failed(failed) = error else {
                panic!("{error}")
            };
            assert_eq!(comm.broken(), Some(&*failed));
            assert_eq!(again, CollectiveError::Broken { first: failed });
            done.wait();
        });
        assert!(begun.elapsed() < Duration::from_secs(3), "{kind}");
    }
}

// SEMANTICS 51.
#[test]
fn a_rank_that_gives_up_is_named_at_once() {
    for (kind, ranks) in kinds(4) {
        let begun = now();
        let mut ranks = ranks;
        drop(ranks.remove(1));
        run(ranks, None, |comm| {
            let mut data = vec![1.0f32; 100_000];
            let fault = fault(comm.all_reduce(&mut data, Reduce::Sum));
            assert!(
                matches!(&fault, Fault::Lost { rank: 1, .. }),
                "{kind}: {fault}"
            );
        });
        assert!(
            begun.elapsed() < Duration::from_secs(10),
            "{kind}: before the deadline"
        );
    }
}

// SEMANTICS 52.
#[test]
fn ranks_that_call_different_things_are_told_who_called_what() {
    type Body = fn(&mut Communicator<Queues>) -> Result<(), CollectiveError>;
    let reduce: Body = |comm| comm.all_reduce(&mut [1.0f32; 8], Reduce::Sum);
    let others: [(Body, &str); 7] = [
        (
            |comm| comm.all_reduce(&mut [1.0f32; 9], Reduce::Sum),
            "of 9 f32",
        ),
        (
            |comm| comm.all_reduce(&mut [1.0f32; 8], Reduce::Max),
            "(max)",
        ),
        (
            |comm| comm.all_reduce(&mut [bf16::ONE; 8], Reduce::Sum),
            "bf16",
        ),
        (|comm| comm.broadcast(&mut [1.0f32; 8], 0), "broadcast"),
        (|comm| comm.barrier(), "barrier"),
        (
            |comm| comm.all_gather(&[1.0f32; 8], &mut [0.0; 24]),
            "all-gather",
        ),
        (
            |comm| comm.reduce_scatter(&[1.0f32; 24], &mut [0.0; 8], Reduce::Sum),
            "reduce-scatter",
        ),
    ];
    for (other, text) in others {
        for (kind, ranks) in kinds(3) {
            run(ranks, None, |comm| {
                let odd = comm.membership().rank == 1;
                let fault = fault(if odd { other(comm) } else { reduce(comm) });
                let said = fault.to_string();
                assert!(matches!(fault, Fault::Mismatch { .. }), "{kind}: {said}");
                assert!(fault.ranks().contains(&1), "{kind}: {said}");
                assert!(
                    said.contains(text) && said.contains("all-reduce (sum) of 8 f32"),
                    "{kind}: {said}"
                );
            });
        }
    }
}

// SEMANTICS 52.
#[test]
fn roots_and_lengths_of_parts_are_compared_too() {
    for (kind, ranks) in kinds(3) {
        run(ranks, None, |comm| {
            let rank = comm.membership().rank;
            let result = comm.broadcast(&mut [1.0f32; 8], rank % 2);
            let fault = fault_soon(comm, result);
            assert!(matches!(fault, Fault::Mismatch { .. }), "{kind}: {fault}");
        });
    }
    for (kind, ranks) in kinds(3) {
        run(ranks, None, |comm| {
            let rank = comm.membership().rank;
            // Rank 0 has two for rank 1, which expects one.
            let to = if rank == 0 { [1, 2, 1] } else { [1, 1, 1] };
            let input = vec![1.0f32; to.iter().sum()];
            let result = comm.all_to_all_v(&input, &to, &mut [0.0; 3], &[1, 1, 1]);
            let fault = fault_soon(comm, result);
            assert!(matches!(fault, Fault::Mismatch { .. }), "{kind}: {fault}");
        });
    }
    for (kind, ranks) in kinds(2) {
        run(ranks, None, |comm| {
            if comm.membership().rank == 0 {
                // It may be gone before the other finds out.
                let sent = comm.send(&[1.0f32; 8], 1);
                assert!(sent.is_ok() || matches!(fault(sent), Fault::Mismatch { .. }));
            } else {
                let fault = fault(comm.receive(&mut [0.0f32; 7], 0));
                assert!(matches!(fault, Fault::Mismatch { .. }), "{kind}: {fault}");
            }
        });
    }
}

// SEMANTICS 53.
#[test]
fn a_rank_of_the_past_is_refused() {
    let ranks = sockets(&Topology::one_node(3), |rank| if rank == 2 { 6 } else { 7 });
    run(ranks, None, |comm| {
        let fault = fault(comm.all_reduce(&mut [1.0f32; 8], Reduce::Sum));
        let Fault::Stale { theirs, ours, .. } = &fault else {
            panic!("{fault}")
        };
        assert_eq!(theirs.min(ours), &6);
        assert_eq!(theirs.max(ours), &7);
    });
}

#[test]
fn what_does_not_fit_is_refused_and_breaks_nothing() {
    for (kind, ranks) in kinds(3) {
        run(ranks, None, |comm| {
            let ones = [1.0f32; 6];
            let mut out = [0.0f32; 6];
            let max = [usize::MAX; 3];
            let refused = [
                comm.broadcast(&mut out, 3),
                comm.all_gather(&ones, &mut out),
                comm.all_gather_v(&ones, &[1, 2], &mut out),
                comm.all_gather_v(&ones, &max, &mut out),
                comm.reduce_scatter(&ones, &mut out, Reduce::Sum),
                comm.reduce_scatter_v(&ones, &[6, 6, 6], &mut out, Reduce::Sum),
                comm.all_to_all(&ones[..5], &mut out),
                comm.all_to_all(&ones, &mut out[..5]),
                comm.all_to_all_v(&ones, &[2, 2, 2], &mut out, &[6, 0, 0]),
                comm.send(&ones, 3),
                comm.send(&ones, comm.membership().rank),
                comm.receive(&mut out, usize::MAX),
            ];
            for refused in refused {
                let error = refused.unwrap_err();
                assert!(
                    matches!(error, CollectiveError::Misuse { .. }),
                    "{kind}: {error}"
                );
                assert_eq!(error.fault(), None);
            }
            conformance::check_at::<f32, _>(comm, 5);
        });
    }
    let topology = Topology::one_node(2);
    let membership = Membership {
        rank: 0,
        generation: 1,
        gang: 1,
        topology,
    };
    let error = connect(membership, vec![None]).unwrap_err();
    assert!(
        error.to_string().contains("one stream to each other rank"),
        "{error}"
    );
}

#[test]
fn hostile_bytes_on_a_stream_are_an_error_that_names_the_rank() {
    use std::io::Write;
    let frame = |len: u32, bytes: &[u8]| [&len.to_le_bytes()[..], bytes].concat();
    let inputs: [Vec<u8>; 5] = [
        vec![1, 2],
        frame(u32::MAX, &[0; 100]),
        frame(1 << 30, &[0; 100]),
        frame(200, &[7; 200]),
        frame(60, &[0; 10]),
    ];
    for input in inputs {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let topology = Topology::one_node(2);
        let membership = Membership {
            rank: 0,
            generation: 1,
            gang: 1,
            topology,
        };
        let transport = connect(membership, vec![None, Some(Duplex::unix(ours).unwrap())]).unwrap();
        let mut comm = Communicator::new(transport);
        comm.set_deadline(Duration::from_secs(5));
        theirs.write_all(&input).unwrap();
        theirs.shutdown(std::net::Shutdown::Write).unwrap();
        let fault = fault(comm.barrier());
        assert_eq!(fault.ranks(), [1], "{fault}");
    }
}
