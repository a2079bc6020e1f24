//! Index maps against slicing.

use std::collections::BTreeMap;

use odeon_collective::Reduce;
use odeon_mesh::mesh;
use proptest::prelude::*;

use super::any::{choices, meshes, shapes, sharding, sliced};
use crate::{IndexRun, Placement, Sharding};

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_rank_holds_what_slicing_gives(
        mesh in meshes(), shape in shapes(), choices in choices(),
    ) {
        let sharding = sharding(&mesh, &shape, &choices, Reduce::Sum);
        for rank in 0..mesh.len() {
            let index = sharding.local(rank).unwrap();
            let (shape, elements) = sliced(&sharding, rank);
            prop_assert_eq!(index.shape(), shape, "{} of {}", rank, sharding);
            prop_assert_eq!(index.len(), elements.len());
            prop_assert_eq!(index.is_empty(), elements.is_empty());
            prop_assert_eq!(index.global_len(), sharding.elements());
            let by_one: Vec<usize> = (0..index.len()).map(|at| index.global(at).unwrap()).collect();
            prop_assert_eq!(&by_one, &elements, "{} of {}", rank, sharding);
            prop_assert_eq!(index.global(index.len()), None);
            let mut at = 0;
            let mut by_runs = vec![];
            for IndexRun { global, local, len } in index.runs() {
                prop_assert!(len > 0 && local == at);
                at += len;
                by_runs.extend(global..global + len);
            }
            prop_assert_eq!(by_runs, elements);
            let first = index.offset().map(|place| {
                place.iter().zip(sharding.shape()).fold(0, |at, (index, extent)| at * extent + index)
            });
            prop_assert_eq!(first, index.global(0));
        }
    }

    /// Each element is held by the ranks of one set of copies, or of one set of addends.
    #[test]
    fn ranks_hold_each_element_once_but_for_copies(
        mesh in meshes(), shape in shapes(), choices in choices(),
    ) {
        let sharding = sharding(&mesh, &shape, &choices, Reduce::Sum).drawn();
        let mut holders: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for rank in 0..mesh.len() {
            for element in sliced(&sharding, rank).1 {
                holders.entry(element).or_default().push(rank);
            }
        }
        prop_assert_eq!(holders.len(), sharding.elements());
        for ranks in holders.into_values() {
            prop_assert_eq!(sharding.copies(ranks[0]).unwrap(), ranks);
        }
    }

    #[test]
    fn a_sharding_travels(mesh in meshes(), shape in shapes(), choices in choices()) {
        let sharding = sharding(&mesh, &shape, &choices, Reduce::Max);
        let text = serde_json::to_string(&sharding).unwrap();
        prop_assert_eq!(serde_json::from_str::<Sharding>(&text).unwrap(), sharding);
    }
}

#[test]
fn a_map_is_a_few_runs_of_a_large_tensor() {
    let mesh = mesh! { fsdp: 4, tp: 8 };
    let by = |placements: [Placement; 2]| {
        let sharding = Sharding::new("w", mesh.clone(), [4096, 4096], placements).unwrap();
        let index = sharding.local(13).unwrap();
        (index.runs().count(), index.shape())
    };
    let rows = [Placement::Replicate, Placement::Shard(0)];
    assert_eq!(by(rows), (1, vec![512, 4096]));
    let both = [Placement::Shard(0), Placement::Shard(1)];
    assert_eq!(by(both), (1024, vec![1024, 512]));
    let parts = Placement::Interleaved { dim: 0, parts: 4 };
    assert_eq!(by([Placement::Replicate, parts]), (4, vec![512, 4096]));
    let ragged = Placement::Ragged {
        dims: 2,
        units: vec![1, 5, 2, 0],
    };
    let elements = 4096 * 4096 / 8;
    assert_eq!(
        by([ragged.clone(), Placement::Replicate]),
        (1, vec![5 * elements])
    );
    assert_eq!(
        by([ragged, Placement::Shard(0)]),
        (1, vec![5 * elements / 8])
    );
}

/// Experts are dealt out along `ep`, and what is left is gathered along `fsdp`.
#[test]
fn a_strided_ragged_shard_cuts_what_is_left() {
    let ragged = Placement::Ragged {
        dims: 1,
        units: vec![3, 1],
    };
    let placements = [ragged, Placement::Shard(0)];
    let sharding = Sharding::new("experts", mesh! { fsdp: 2, ep: 2 }, [8, 2], placements).unwrap();
    let held: Vec<Vec<usize>> = (0..4)
        .map(|rank| {
            sharding
                .local(rank)
                .unwrap()
                .runs()
                .map(|run| run.global / 2)
                .collect()
        })
        .collect();
    // Rows 0 to 3 are of the first rank along `ep`, of which `fsdp` cuts three from one.
    assert_eq!(held, [[0], [4], [3], [7]]);
    let shapes: Vec<_> = (0..4)
        .map(|rank| sharding.local(rank).unwrap().shape())
        .collect();
    assert_eq!(shapes, [[3, 2], [3, 2], [1, 2], [1, 2]]);
}

#[test]
fn a_tensor_without_dimensions_is_on_every_rank() {
    let sharding = Sharding::new("scale", mesh! { dp: 2 }, [], [Placement::Replicate]).unwrap();
    let runs: Vec<IndexRun> = sharding.local(1).unwrap().runs().collect();
    assert_eq!(
        runs,
        [IndexRun {
            global: 0,
            local: 0,
            len: 1
        }]
    );
    assert_eq!(sharding.copies(1).unwrap(), [0, 1]);
}
