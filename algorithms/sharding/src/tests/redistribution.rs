//! Redistributions by real ranks against gathering everything and slicing it.

use odeon_collective::schedule::{CollectiveTask, SentFrom, Step, schedule};
use odeon_collective::{Algorithm, ElementType, Reduce, Topology, bf16};
use odeon_mesh::{Mesh, mesh};
use proptest::prelude::*;

use super::any::{choices, meshes, shapes, sharding, sliced};
use super::gang::{Communicators, carried_out, communicators, numbered, on_all, reachable};
use crate::{Movement, Placement, Redistribution, Sharding, Traffic};

/// The local parts that gathering, reducing and slicing give.
fn expected(from: &Sharding, to: &Sharding) -> Vec<Vec<f32>> {
    let mesh = from.mesh();
    let parts: Vec<(Vec<usize>, Vec<f32>)> = (0..mesh.len())
        .map(|rank| {
            let elements = sliced(from, rank).1;
            let numbers = numbered(from, rank, &elements);
            (elements, numbers)
        })
        .collect();
    let whole = |rank: usize| {
        // Each rank that agrees with this one along dimensions whose addends stay, once for copies.
        let mut values: Vec<Vec<f64>> = vec![vec![]; from.elements()];
        let mut seen = std::collections::BTreeSet::new();
        let dims = mesh
            .dims()
            .iter()
            .zip(from.placements().iter().zip(to.placements()));
        let kept: Vec<&str> = dims
            .clone()
            .filter(|(_, (_, to))| matches!(to, Placement::Partial(_)))
            .map(|(dim, _)| &*dim.name)
            .collect();
        for (other, (elements, numbers)) in parts.iter().enumerate() {
            let agrees = kept
                .iter()
                .all(|dim| mesh.coordinate(other, dim) == mesh.coordinate(rank, dim));
            if agrees && seen.insert(from.copies(other).unwrap()[0]) {
                for (element, value) in elements.iter().zip(numbers) {
                    values[*element].push(f64::from(*value));
                }
            }
        }
        let reduce = from
            .placements()
            .iter()
            .find_map(|placement| match placement {
                Placement::Partial(reduce) => Some(*reduce),
                _ => None,
            });
        values
            .into_iter()
            .map(move |values| reduced(&values, reduce.unwrap_or(Reduce::Sum)))
            .collect::<Vec<f32>>()
    };
    (0..mesh.len())
        .map(|rank| {
            let whole = whole(rank);
            sliced(to, rank)
                .1
                .iter()
                .map(|element| whole[*element])
                .collect()
        })
        .collect()
}

fn reduced(values: &[f64], reduce: Reduce) -> f32 {
    let sum: f64 = values.iter().sum();
    (match reduce {
        Reduce::Sum => sum,
        Reduce::Mean => sum / values.len() as f64,
        Reduce::Max => values.iter().copied().fold(f64::MIN, f64::max),
        Reduce::Min => values.iter().copied().fold(f64::MAX, f64::min),
    }) as f32
}

fn reductions() -> impl Strategy<Value = Reduce> {
    prop_oneof![3 => Just(Reduce::Sum), 1 => Just(Reduce::Mean), 1 => Just(Reduce::Max), 1 => Just(Reduce::Min)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn real_ranks_hold_what_gathering_and_slicing_gives(
        mesh in meshes(), shape in shapes(), before in choices(), after in choices(), reduce in reductions(),
    ) {
        let from = sharding(&mesh, &shape, &before, reduce);
        let to = reachable(&from, &sharding(&mesh, &shape, &after, reduce));
        let plan = Redistribution::new(&from, &to).unwrap();
        let locals: Vec<Vec<f32>> =
            (0..mesh.len()).map(|rank| numbered(&from, rank, &sliced(&from, rank).1)).collect();
        let found = carried_out(&plan, &locals).unwrap();
        for (rank, (found, expected)) in found.iter().zip(expected(&from, &to)).enumerate() {
            prop_assert_eq!(found.len(), expected.len());
            for (found, expected) in found.iter().zip(expected) {
                // One over an odd number of ranks is rounded.
                let off = if reduce == Reduce::Mean { expected.abs() * 1e-6 } else { 0.0 };
                prop_assert!((found - expected).abs() <= off, "rank {rank}: {from} to {to}: {found} {expected}");
            }
        }
    }

    /// Wherever both sides have a meaning, and so `ShardingError::NoWay` is met by none of these.
    #[test]
    fn there_is_a_way_between_all(
        mesh in meshes(), shape in shapes(), before in choices(), after in choices(), reduce in reductions(),
    ) {
        let from = sharding(&mesh, &shape, &before, reduce);
        let to = reachable(&from, &sharding(&mesh, &shape, &after, reduce));
        let plan = Redistribution::new(&from, &to);
        prop_assert!(plan.is_ok(), "{from} to {to}: {plan:?}");
    }

    /// No plan sends more than reducing and gathering everything.
    #[test]
    fn a_plan_is_no_dearer_than_gathering_everything(
        mesh in meshes(), shape in shapes(), before in choices(), after in choices(),
    ) {
        let from = sharding(&mesh, &shape, &before, Reduce::Sum);
        let to = reachable(&from, &sharding(&mesh, &shape, &after, Reduce::Sum));
        let whole = vec![Placement::Replicate; mesh.dims().len()];
        let whole = from.placed(whole).unwrap();
        let sent = |from: &Sharding, to: &Sharding| {
            let plan = Redistribution::new(from, to).unwrap();
            let steps = plan.steps().iter();
            steps.map(|step| step.sent.iter().map(|it| it.elements + it.sums).max().unwrap()).sum::<usize>()
        };
        prop_assert!(sent(&from, &to) <= sent(&from, &whole), "{from} to {to}");
        let again = Redistribution::new(&to, &to).unwrap();
        prop_assert!(again.steps().is_empty());
    }

    /// What a plan says that ranks send is what the schedules of collectives send.
    #[test]
    fn bytes_are_those_of_the_schedules(
        mesh in meshes(), shape in shapes(), before in choices(), after in choices(),
    ) {
        let from = sharding(&mesh, &shape, &before, Reduce::Sum);
        let to = reachable(&from, &sharding(&mesh, &shape, &after, Reduce::Sum));
        let plan = Redistribution::new(&from, &to).unwrap();
        for rank in 0..mesh.len() {
            let scheduled: Vec<Traffic> = plan.steps().iter().zip(plan.route(rank).unwrap().tasks())
                .map(|(step, (movement, position, to, from))| {
                    let world = step.dims.iter().map(|dim| mesh.size(dim)).product();
                    let len = step.from.local(rank).unwrap().len();
                    let task = match movement {
                        Movement::Slice => return Traffic::default(),
                        Movement::AllGather => CollectiveTask::AllGather { counts: from },
                        Movement::AllReduce(_) => CollectiveTask::AllReduce { count: len },
                        Movement::ReduceScatter(_) => CollectiveTask::ReduceScatter { counts: to },
                        Movement::AllToAll => CollectiveTask::AllToAll { to, from },
                    };
                    traffic(&schedule(task, Algorithm::Ring, &Topology::one_node(world), position))
                })
                .collect();
            let planned: Vec<Traffic> = plan.steps().iter().map(|step| step.sent[rank]).collect();
            prop_assert_eq!(&planned, &scheduled, "rank {} of {} to {}", rank, from, to);
            let bytes = scheduled.iter().map(|it| 2 * it.elements + 4 * it.sums).sum::<usize>();
            prop_assert_eq!(plan.bytes(rank, ElementType::Bf16), bytes);
        }
    }
}

/// Executes all pairs of placements along one dimension, and sees each kind of step.
#[test]
fn all_pairs_of_placements_along_one_dimension_are_right() {
    use Placement::{Interleaved, Partial, Replicate, Shard};
    let mut seen = std::collections::BTreeMap::new();
    for (mesh, shape, last) in [
        (mesh! { tp: 2 }, [6, 4], ragged(2, &[1, 2])),
        (mesh! { tp: 3 }, [5, 3], ragged(2, &[9, 0, 6])),
        (mesh! { tp: 4 }, [2, 7], ragged(2, &[0, 3, 10, 1])),
    ] {
        let parts = shape.map(|extent| if extent % 2 == 0 { 2 } else { extent });
        let mut hot = vec![0; mesh.len()];
        hot[mesh.len() - 1] = 1;
        let mut all = vec![
            Replicate,
            Shard(0),
            Shard(1),
            last,
            ragged(1, &hot),
            ragged(2, &hot),
        ];
        all.extend([0, 1].map(|dim| Interleaved {
            dim,
            parts: parts[dim],
        }));
        let addends = [Reduce::Sum, Reduce::Max, Reduce::Min].map(Partial);
        for before in all.iter().chain(&addends) {
            let from = Sharding::new("w", mesh.clone(), shape, [before.clone()]).unwrap();
            for after in all
                .iter()
                .chain(addends.iter().filter(|after| *after == before))
            {
                let to = from.placed([after.clone()]).unwrap();
                let plan = Redistribution::new(&from, &to).unwrap();
                assert!(plan.steps().len() <= 1, "{from} to {to}");
                let numbers = |rank| numbered(&from, rank, &sliced(&from, rank).1);
                let locals: Vec<Vec<f32>> = (0..mesh.len()).map(numbers).collect();
                let found = carried_out(&plan, &locals).unwrap();
                assert_eq!(found, expected(&from, &to), "{from} to {to}");
                for step in plan.steps() {
                    *seen.entry(step.movement.to_string()).or_insert(0) += 1;
                }
            }
        }
    }
    assert!(
        seen.len() == 9 && seen.values().all(|times| *times > 2),
        "{seen:?}"
    );
}

fn traffic(steps: &[Step]) -> Traffic {
    let mut traffic = Traffic::default();
    for step in steps {
        if let Step::Exchange { out: Some(out), .. } = step {
            match out.place {
                SentFrom::Sums => traffic.sums += out.range.len(),
                SentFrom::Input | SentFrom::Data => traffic.elements += out.range.len(),
            }
        }
    }
    traffic
}

fn ragged(dims: usize, units: &[usize]) -> Placement {
    Placement::Ragged {
        dims,
        units: units.to_vec(),
    }
}

/// The steps of a plan in words, and the most bytes that a rank sends.
fn planned(mesh: &Mesh, shape: &[usize], from: &[Placement], to: &[Placement]) -> (String, usize) {
    let from = Sharding::new("w", mesh.clone(), shape, from).unwrap();
    let to = from.placed(to).unwrap();
    let plan = Redistribution::new(&from, &to).unwrap();
    let steps: Vec<String> = plan.steps().iter().map(ToString::to_string).collect();
    let bytes = (0..mesh.len())
        .map(|rank| plan.bytes(rank, ElementType::F32))
        .max();
    (steps.join("; "), bytes.unwrap())
}

#[test]
fn one_dimension_takes_the_cheapest_collective() {
    use Placement::{Interleaved, Partial, Replicate, Shard};
    let sum = Partial(Reduce::Sum);
    let root = ragged(2, &[0, 0, 1, 0]);
    let parts = Interleaved { dim: 0, parts: 2 };
    for (from, to, steps, bytes) in [
        (Replicate, Shard(0), "slice along tp", 0),
        (Shard(0), Replicate, "all-gather along tp", 3 * 64),
        (Shard(0), Shard(1), "all-to-all along tp", 3 * 16),
        (Shard(0), parts, "all-to-all along tp", 64),
        (Shard(0), ragged(1, &[2, 2, 2, 2]), "", 0),
        (
            sum.clone(),
            Replicate,
            "all-reduce (sum) along tp",
            2 * 3 * 64,
        ),
        (
            sum.clone(),
            Shard(1),
            "reduce-scatter (sum) along tp",
            3 * 64,
        ),
        (
            sum.clone(),
            ragged(1, &[5, 1, 2, 0]),
            "reduce-scatter (sum) along tp",
            256,
        ),
        (sum, root.clone(), "reduce-scatter (sum) along tp", 256),
        // What Muon needs: all rows to one rank, and back.
        (Shard(0), root.clone(), "all-to-all along tp", 64),
        (root, Shard(0), "all-to-all along tp", 3 * 64),
        // Rank 0 has 40 elements too many, ranks 2 and 3 take them.
        (
            ragged(2, &[5, 1, 2, 0]),
            ragged(2, &[1, 1, 1, 5]),
            "all-to-all along tp",
            32 * 4,
        ),
    ] {
        let said = format!("{from} to {to}");
        let found = planned(&mesh! { tp: 4 }, &[8, 8], &[from], &[to]);
        assert_eq!(found, (steps.to_owned(), bytes), "{said}");
    }
}

#[test]
fn several_dimensions_are_one_flat_group_where_that_is_cheaper() {
    use Placement::{Partial, Replicate, Shard};
    let sum = || Partial(Reduce::Sum);
    let by = |from: [Placement; 2], to: [Placement; 2]| {
        planned(&mesh! { dp: 2, tp: 4 }, &[8, 8], &from, &to)
    };
    let is = |steps: &str, bytes: usize| (steps.to_owned(), bytes);
    // 2 * 7 / 8 of 256 bytes, not 2 * 1 / 2 and 2 * 3 / 4 of them.
    assert_eq!(
        by([sum(), sum()], [Replicate, Replicate]),
        is("all-reduce (sum) along dp, tp", 448)
    );
    assert_eq!(
        by([sum(), sum()], [Shard(0), Shard(0)]),
        is("reduce-scatter (sum) along dp, tp", 224)
    );
    assert_eq!(
        by([Shard(0), Shard(0)], [Replicate, Replicate]),
        is("all-gather along dp, tp", 224)
    );
    // Hybrid sharding: only the own part is reduced between replicas.
    let hybrid = is(
        "reduce-scatter (sum) along tp; all-reduce (sum) along dp",
        192 + 64,
    );
    assert_eq!(
        by([sum(), sum()], [Replicate, ragged(1, &[2, 2, 2, 2])]),
        hybrid
    );
    // Reduced in two ways, one after the other.
    let (steps, _) = by([sum(), Partial(Reduce::Mean)], [Replicate, Replicate]);
    assert!(
        steps.contains("(sum) along dp") && steps.contains("(mean) along tp"),
        "{steps}"
    );
    // Both cut one dimension: the slices of slices lie elsewhere, so all exchange at once.
    assert_eq!(
        by([Shard(0), Shard(0)], [Replicate, Shard(0)]).0,
        "all-to-all along dp, tp"
    );
    // Addends to slices of slices: half of 64 bytes, and what of the half another rank needs.
    let steps = "reduce-scatter (sum) along dp; all-to-all along dp, tp";
    assert_eq!(
        by([sum(), Shard(0)], [Shard(0), Shard(0)]),
        is(steps, 32 + 32)
    );
    // One dimension keeps its addends.
    assert_eq!(
        by([sum(), Shard(0)], [sum(), Replicate]),
        is("all-gather along tp", 192)
    );
}

#[test]
fn a_strided_ragged_shard_is_gathered_along_its_own_dimension() {
    let from = [ragged(1, &[3, 1]), Placement::Shard(0)];
    let to = [Placement::Replicate, Placement::Shard(0)];
    let mesh = mesh! { fsdp: 2, ep: 4 };
    let (steps, bytes) = planned(&mesh, &[16, 2], &from, &to);
    assert_eq!((&*steps, bytes), ("all-gather along fsdp", 3 * 2 * 4));
    let addends = [Placement::Partial(Reduce::Sum), Placement::Shard(0)];
    assert_eq!(
        planned(&mesh, &[16, 2], &addends, &from).0,
        "reduce-scatter (sum) along fsdp"
    );
}

/// A loss, which has no dimensions; and elements of half the size.
#[test]
fn single_numbers_and_small_elements_are_redistributed() {
    let mesh = mesh! { dp: 2, cp: 2 };
    let addends = vec![Placement::Partial(Reduce::Mean); 2];
    let from = Sharding::new("loss", mesh.clone(), [], addends).unwrap();
    let to = from.placed(vec![Placement::Replicate; 2]).unwrap();
    let plan = Redistribution::new(&from, &to).unwrap();
    let found = carried_out(&plan, &[[1.0], [2.0], [3.0], [6.0]].map(Vec::from)).unwrap();
    assert_eq!(found, vec![vec![3.0]; 4]);

    let from = Sharding::new(
        "w",
        mesh.clone(),
        [4, 2],
        [Placement::Replicate, Placement::Shard(0)],
    )
    .unwrap();
    let to = from
        .placed([Placement::Replicate, Placement::Shard(1)])
        .unwrap();
    let plan = Redistribution::new(&from, &to).unwrap();
    let along = [plan.steps()[0].dims.clone()];
    let found = on_all(communicators(&mesh, &along, None), |rank, communicators| {
        let elements = sliced(&from, rank).1;
        let local: Vec<bf16> = elements
            .iter()
            .map(|it| bf16::from_f32(*it as f32))
            .collect();
        plan.route(rank)
            .unwrap()
            .carry_out(&local, communicators)
            .unwrap()
    });
    for (rank, found) in found.iter().enumerate() {
        let elements: Vec<usize> = found.iter().map(|it| it.to_f32() as usize).collect();
        assert_eq!(elements, sliced(&to, rank).1);
    }
}

#[test]
fn a_redistribution_without_a_meaning_names_both_placements() {
    use Placement::{Partial, Replicate, Shard};
    let said = |from: Placement, to: Placement| {
        let from = Sharding::new("w", mesh! { tp: 4 }, [8], [from]).unwrap();
        let to = from.placed([to]).unwrap();
        Redistribution::new(&from, &to).unwrap_err().to_string()
    };
    let sum = Partial(Reduce::Sum);
    for from in [Shard(0), Replicate, ragged(1, &[1, 0, 0, 0])] {
        assert_eq!(
            said(from.clone(), sum.clone()),
            format!(
                "tensor `w` cannot go from {from} to Partial(sum) along `tp`: addends come of computing alone: leave \
                 it as it is"
            )
        );
    }
    assert_eq!(
        said(sum, Partial(Reduce::Max)),
        "tensor `w` cannot go from Partial(sum) to Partial(max) along `tp`: addends are reduced in one way: go to \
         Replicate first"
    );
    let one = Sharding::new("w", mesh! { tp: 4 }, [8], [Shard(0)]).unwrap();
    let others = [
        (
            Sharding::new("v", mesh! { tp: 4 }, [8], [Shard(0)]),
            "tensor `w` cannot become `v`, which differs in its name",
        ),
        (
            Sharding::new("w", mesh! { tp: 2 }, [8], [Shard(0)]),
            "tensor `w` cannot become `w`, which differs in its mesh",
        ),
        (
            Sharding::new("w", mesh! { tp: 4 }, [9], [Shard(0)]),
            "tensor `w` cannot become `w`, which differs in its shape",
        ),
    ];
    for (other, begins) in others {
        let said = Redistribution::new(&one, &other.unwrap())
            .unwrap_err()
            .to_string();
        assert_eq!(
            said,
            format!("{begins}: redistribution changes placements alone")
        );
    }
}

#[test]
fn a_route_refuses_what_does_not_fit_before_anything_moves() {
    let from = Sharding::new(
        "w",
        mesh! { dp: 2, tp: 3 },
        [6],
        [Placement::Replicate, Placement::Shard(0)],
    )
    .unwrap();
    let to = from
        .placed([Placement::Replicate, Placement::Replicate])
        .unwrap();
    let plan = Redistribution::new(&from, &to).unwrap();
    let route = plan.route(4).unwrap();
    assert_eq!(
        plan.route(6).unwrap_err().to_string(),
        "`w`: no rank 6; the mesh has 6"
    );
    let tp = vec!["tp".to_owned()];
    let mut own = communicators(from.mesh(), std::slice::from_ref(&tp), None).swap_remove(4);
    assert_eq!(
        route
            .carry_out(&[0.0f32], &mut own)
            .unwrap_err()
            .to_string(),
        "tensor `w` has 2 elements here, but the buffer has 1: give the whole local part"
    );
    let dp = vec!["dp".to_owned()];
    let mut other = communicators(from.mesh(), std::slice::from_ref(&dp), None).swap_remove(4);
    assert_eq!(
        route
            .carry_out(&[0.0f32; 2], &mut other)
            .unwrap_err()
            .to_string(),
        "tensor `w` moves along [\"tp\"], for which no communicator was given: give one of ranks [3, 4, 5]"
    );
    let mut wrong: Communicators = [(tp, other.remove(&dp).unwrap())].into();
    assert_eq!(
        route
            .carry_out(&[0.0f32; 2], &mut wrong)
            .unwrap_err()
            .to_string(),
        "tensor `w` moves along [\"tp\"] as number 1 of 3, but the communicator has it as 1 of 2: give one of the \
         ranks of the group, in their order"
    );
}
