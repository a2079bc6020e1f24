//! All ranks' schedules, carried out by hand without any buffering, against plain arithmetic.

use proptest::prelude::*;

use super::*;

/// The state of a rank while its steps are carried out. Numbers are whole, so that sums are exact.
struct Sim {
    steps: Vec<Step>,
    at: usize,
    out_done: bool,
    in_done: bool,
    input: Option<Vec<f32>>,
    data: Vec<f32>,
    sums: Vec<f32>,
    kept: Vec<Option<Vec<f32>>>,
}

impl Sim {
    fn local(&mut self, rank: usize) {
        while let Some(step) = self.steps.get(self.at) {
            match step.clone() {
                Step::Exchange { out, incoming } => {
                    if (out.is_some() && !self.out_done) || (incoming.is_some() && !self.in_done) {
                        return;
                    }
                }
                Step::Load(range) => {
                    let from = self.input.as_ref().unwrap_or(&self.data);
                    self.sums[range.clone()].copy_from_slice(&from[range]);
                }
                Step::Finish { range, to } => {
                    let len = range.len();
                    self.data[to..to + len].copy_from_slice(&self.sums[range]);
                }
                Step::Fold(range) => {
                    for i in range.clone() {
                        let others = self
                            .kept
                            .iter()
                            .enumerate()
                            .filter(|(from, _)| *from != rank);
                        let others: f32 = others.map(|(_, kept)| kept.as_ref().unwrap()[i]).sum();
                        self.data[i] += others;
                    }
                }
                Step::Copy { range, to } => {
                    let from = self.input.as_ref().unwrap()[range].to_vec();
                    self.data[to..to + from.len()].copy_from_slice(&from);
                }
            }
            self.at += 1;
            self.out_done = false;
            self.in_done = false;
        }
    }

    fn exchange(&self) -> (Option<Outgoing>, Option<Incoming>) {
        match self.steps.get(self.at) {
            Some(Step::Exchange { out, incoming }) => (
                out.clone().filter(|_| !self.out_done),
                incoming.clone().filter(|_| !self.in_done),
            ),
            _ => (None, None),
        }
    }
}

/// Carries out all schedules; a message passes only when its sender and its receiver are both there.
fn simulate(
    task: &dyn Fn(usize) -> Vec<Step>,
    inputs: Vec<Option<Vec<f32>>>,
    data: Vec<Vec<f32>>,
) -> Vec<Vec<f32>> {
    let world = data.len();
    let mut sims: Vec<Sim> = inputs
        .into_iter()
        .zip(data)
        .enumerate()
        .map(|(rank, (input, data))| Sim {
            steps: task(rank),
            at: 0,
            out_done: false,
            in_done: false,
            sums: vec![f32::NAN; input.as_ref().map_or(data.len(), Vec::len)],
            input,
            data,
            kept: vec![None; world],
        })
        .collect();
    loop {
        let mut progress = false;
        for rank in 0..world {
            let before = sims[rank].at;
            sims[rank].local(rank);
            progress |= sims[rank].at != before;
            let (Some(out), _) = sims[rank].exchange() else {
                continue;
            };
            assert_ne!(out.to, rank, "a rank sends nothing to itself");
            sims[out.to].local(out.to);
            let (_, Some(incoming)) = sims[out.to].exchange() else {
                continue;
            };
            if incoming.from != rank {
                continue;
            }
            let bytes = match out.place {
                SentFrom::Input => sims[rank].input.as_ref().unwrap()[out.range.clone()].to_vec(),
                SentFrom::Data => sims[rank].data[out.range.clone()].to_vec(),
                SentFrom::Sums => sims[rank].sums[out.range.clone()].to_vec(),
            };
            assert_eq!(bytes.len(), incoming.range.len(), "{out:?} {incoming:?}");
            assert_eq!(
                out.place == SentFrom::Sums,
                incoming.then == Then::ReduceSums
            );
            let to = &mut sims[out.to];
            match incoming.then {
                Then::Store => to.data[incoming.range].copy_from_slice(&bytes),
                Then::Keep => to.kept[rank] = Some(bytes),
                Then::ReduceElements | Then::ReduceSums => {
                    for (sum, value) in to.sums[incoming.range].iter_mut().zip(bytes) {
                        *sum += value;
                    }
                }
            }
            to.in_done = true;
            sims[rank].out_done = true;
            progress = true;
        }
        if sims.iter().all(|sim| sim.at == sim.steps.len()) {
            return sims.into_iter().map(|sim| sim.data).collect();
        }
        assert!(
            progress,
            "deadlock at {:?}",
            sims.iter().map(|sim| sim.at).collect::<Vec<_>>()
        );
    }
}

fn value(rank: usize, i: usize) -> f32 {
    (rank * 31 + i * 7 % 101) as f32
}

fn vector(rank: usize, len: usize) -> Vec<f32> {
    (0..len).map(|i| value(rank, i)).collect()
}

fn check(topology: &Topology, count: usize, root: usize, uneven: usize) {
    let world = topology.world();
    let all: Vec<Vec<f32>> = (0..world).map(|rank| vector(rank, count)).collect();
    let total: Vec<f32> = (0..count).map(|i| all.iter().map(|v| v[i]).sum()).collect();
    let counts: Vec<usize> = (0..world)
        .map(|rank| (count + rank * uneven) % (count + 2))
        .collect();
    let offsets = parts(&counts);
    let whole: usize = counts.iter().sum();
    for algorithm in Algorithm::ALL {
        let run = |task: CollectiveTask<'_>, inputs, data| {
            simulate(
                &|rank| schedule(task, algorithm, topology, rank),
                inputs,
                data,
            )
        };
        let none = vec![None; world];
        let got = run(
            CollectiveTask::AllReduce { count },
            none.clone(),
            all.clone(),
        );
        assert_eq!(
            got,
            vec![total.clone(); world],
            "all-reduce {algorithm:?} {topology:?}"
        );

        let got = run(
            CollectiveTask::Broadcast { count, root },
            none.clone(),
            all.clone(),
        );
        assert_eq!(
            got,
            vec![all[root].clone(); world],
            "broadcast {algorithm:?} {topology:?}"
        );

        let inputs: Vec<_> = counts
            .iter()
            .enumerate()
            .map(|(rank, len)| Some(vector(rank, *len)))
            .collect();
        let expect: Vec<f32> = inputs.iter().flatten().flatten().copied().collect();
        let got = run(
            CollectiveTask::AllGather { counts: &counts },
            inputs,
            vec![vec![f32::NAN; whole]; world],
        );
        assert_eq!(
            got,
            vec![expect; world],
            "all-gather {algorithm:?} {topology:?}"
        );

        let inputs: Vec<_> = (0..world).map(|rank| Some(vector(rank, whole))).collect();
        let data = counts.iter().map(|len| vec![f32::NAN; *len]).collect();
        let got = run(
            CollectiveTask::ReduceScatter { counts: &counts },
            inputs,
            data,
        );
        for (rank, got) in got.into_iter().enumerate() {
            let expect: Vec<f32> = offsets[rank]
                .clone()
                .map(|i| (0..world).map(|r| value(r, i)).sum())
                .collect();
            assert_eq!(got, expect, "reduce-scatter {algorithm:?} {topology:?}");
        }
    }
    let (none, empty) = (vec![None; world], vec![vec![]; world]);
    simulate(
        &|rank| schedule(CollectiveTask::Barrier, Algorithm::Direct, topology, rank),
        none,
        empty,
    );

    // What goes from `a` to `b` has a length of its own.
    let len = |a: usize, b: usize| (a * 3 + b * uneven + count) % 5;
    let to: Vec<Vec<usize>> = (0..world)
        .map(|a| (0..world).map(|b| len(a, b)).collect())
        .collect();
    let from: Vec<Vec<usize>> = (0..world)
        .map(|b| (0..world).map(|a| len(a, b)).collect())
        .collect();
    let piece = |a: usize, b: usize| (0..len(a, b)).map(move |i| (a * 1000 + b * 10 + i) as f32);
    let inputs = (0..world)
        .map(|a| Some((0..world).flat_map(|b| piece(a, b)).collect()))
        .collect();
    let data = from
        .iter()
        .map(|from| vec![f32::NAN; from.iter().sum()])
        .collect();
    let task = |rank: usize| {
        let task = CollectiveTask::AllToAll {
            to: &to[rank],
            from: &from[rank],
        };
        schedule(task, Algorithm::Direct, topology, rank)
    };
    for (b, got) in simulate(&task, inputs, data).into_iter().enumerate() {
        let expect: Vec<f32> = (0..world).flat_map(|a| piece(a, b)).collect();
        assert_eq!(got, expect, "all-to-all");
    }
}

#[test]
fn every_world_up_to_17_gets_what_plain_arithmetic_gives() {
    for world in 1..=17 {
        for count in [0, 1, world, 2 * world + 1, 50] {
            check(&Topology::one_node(world), count, world / 2, 3);
            check(
                &Topology::new((0..world).map(|rank| rank / 3).collect()),
                count,
                world - 1,
                1,
            );
            check(
                &Topology::new((0..world).map(|rank| rank % 3).collect()),
                count,
                0,
                0,
            );
        }
    }
}

#[test]
fn a_chain_passes_several_segments() {
    check(&Topology::one_node(3), 2 * SEGMENT + 5, 1, 1);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_topology_length_and_root(
        nodes in prop::collection::vec(0usize..5, 1..18),
        count in 0usize..70,
        root in 0usize..17,
        uneven in 0usize..7,
    ) {
        let topology = Topology::new(nodes);
        let root = root % topology.world();
        check(&topology, count, root, uneven);
    }

    #[test]
    fn a_split_covers_everything_evenly(count in 0usize..10_000, world in 1usize..200) {
        let parts = split(count, world);
        prop_assert_eq!(parts.len(), world);
        prop_assert_eq!(parts.last().unwrap().end, count);
        prop_assert!(parts.windows(2).all(|pair| pair[0].end == pair[1].start));
        let (most, least) = (parts[0].len(), parts[world - 1].len());
        prop_assert!(most - least <= 1);
    }

    #[test]
    fn a_ring_sends_the_least_that_is_possible(world in 2usize..18, each in 1usize..50) {
        let count = world * each;
        let topology = Topology::one_node(world);
        for rank in 0..world {
            let steps = schedule(CollectiveTask::AllReduce { count }, Algorithm::Ring, &topology, rank);
            let sent: usize = steps.iter().map(|step| match step {
                Step::Exchange { out: Some(out), .. } => out.range.len(),
                _ => 0,
            }).sum();
            prop_assert_eq!(sent, 2 * (world - 1) * each);
        }
    }

    #[test]
    fn between_nodes_a_hierarchy_sends_less_than_a_tree(per_node in 2usize..6, nodes in 3usize..6) {
        let count = 1000;
        // Ranks dealt out in turn, the worst order for a tree that does not know of nodes.
        let topology = Topology::new((0..per_node * nodes).map(|rank| rank % nodes).collect());
        let far = |algorithm| -> usize {
            let sent = |rank| schedule(CollectiveTask::AllReduce { count }, algorithm, &topology, rank)
                .iter()
                .map(|step| match step {
                    Step::Exchange { out: Some(out), .. } if !topology.near(rank, out.to) => out.range.len(),
                    _ => 0,
                })
                .sum::<usize>();
            (0..topology.world()).map(sent).sum()
        };
        prop_assert!(far(Algorithm::Hierarchical) <= far(Algorithm::Ring));
        prop_assert!(far(Algorithm::Hierarchical) <= far(Algorithm::Direct));
        prop_assert_eq!(far(Algorithm::Hierarchical), 2 * (nodes - 1) * count);
    }
}
