//! Placements that cannot be, each with its sentence.

use odeon_collective::Reduce;
use odeon_mesh::mesh;

use crate::{Placement, Sharding};

fn said(shape: &[usize], placements: &[Placement]) -> String {
    let made = Sharding::new("wq", mesh! { fsdp: 2, tp: 4 }, shape, placements);
    made.unwrap_err().to_string()
}

fn ragged(dims: usize, units: &[usize]) -> Placement {
    Placement::Ragged {
        dims,
        units: units.to_vec(),
    }
}

#[test]
fn a_placement_that_cannot_be_names_the_tensor_and_a_way_out() {
    use Placement::{Interleaved, Partial, Replicate, Shard};
    assert_eq!(
        said(&[4], &[Replicate]),
        "tensor `wq` has 1 placements on the mesh {fsdp: 2, tp: 4}: give one for each dimension"
    );
    assert_eq!(
        said(&[4], &[Replicate, Shard(1)]),
        "tensor `wq` is Shard(1) along `tp`, but its dimensions are numbered from 0 and there are 1"
    );
    assert_eq!(
        said(&[10], &[Replicate, Interleaved { dim: 0, parts: 3 }]),
        "tensor `wq` is Interleaved(dim 0, 3 parts) along `tp`, but 10 indices are not so many equal parts: give a \
         number that divides them"
    );
    assert_eq!(
        said(&[12], &[Shard(0), Interleaved { dim: 0, parts: 3 }]),
        "tensor `wq` is Interleaved(dim 0, 3 parts) along `tp`, but that dimension was cut before into slices that \
         hold no equal parts: cut by parts first, along an earlier dimension of the mesh"
    );
    assert_eq!(
        said(&[4], &[Partial(Reduce::Mean), Partial(Reduce::Max)]),
        "tensor `wq` is Partial(mean) and Partial(max) at once, and the order of these two matters: reduce one of \
         them first"
    );
    assert_eq!(
        said(&[usize::MAX, 2], &[Replicate, Replicate]),
        format!(
            "tensor `wq` of shape [{}, 2] has too many elements: give a smaller shape",
            usize::MAX
        )
    );
}

#[test]
fn a_ragged_placement_that_cannot_be_says_why() {
    use Placement::{Replicate, Shard};
    let why = |shape: &[usize], placements: &[Placement]| {
        let said = said(shape, placements);
        said.split_once(": ").unwrap().1.to_owned()
    };
    let four = ragged(1, &[1, 1, 1, 1]);
    assert_eq!(
        why(&[8], &[ragged(1, &[1, 1]), four.clone()]),
        "it is ragged along `tp` too: one dimension of the mesh may be"
    );
    for dims in [0, 3] {
        assert_eq!(
            why(&[8, 2], &[ragged(dims, &[1, 1]), Replicate]),
            "give 1 to 2 leading dimensions to cut as one"
        );
    }
    assert_eq!(
        why(&[8], &[four, Replicate]),
        "give units for each of 2 ranks"
    );
    for units in [[0, 0], [usize::MAX, 1]] {
        assert_eq!(
            why(&[8], &[ragged(1, &units), Replicate]),
            "give units whose sum is above 0 and fits a number"
        );
    }
    assert_eq!(
        why(&[8], &[ragged(1, &[1, 2]), Replicate]),
        "8 rows are left to cut for rank 0 (fsdp=0, tp=0): give units whose sum divides them"
    );
    // 9 rows over 4 ranks are 3, 3, 3 and 0.
    let placements = [ragged(1, &[1, 1]), Shard(0)];
    assert_eq!(
        why(&[9], &placements),
        "3 rows are left to cut for rank 0 (fsdp=0, tp=0): give units whose sum divides them"
    );
}

#[test]
fn a_ragged_cut_never_goes_through_a_dimension_that_is_cut_by_itself() {
    let placed = |dims, units: &[usize]| {
        let placements = [ragged(dims, units), Placement::Shard(1)];
        Sharding::new("wq", mesh! { fsdp: 2, tp: 4 }, [6, 8], placements)
    };
    // Rows of 8 elements, of which each rank has 2: cuts between rows are well, however they are said.
    assert!(placed(1, &[5, 1]).is_ok());
    assert!(placed(2, &[1, 2]).is_ok());
    let refused = placed(2, &[1, 3]).unwrap_err().to_string();
    assert_eq!(
        refused,
        "tensor `wq` is Ragged(2 dims, units [1, 3]) along `fsdp`: its cuts go through dimension 1, which is cut by \
         itself: flatten 1 leading dimensions, or give units that cut at multiples of 2 rows"
    );
}

#[test]
fn a_hostile_sharding_is_not_decoded() {
    let placements = [Placement::Replicate, Placement::Shard(0)];
    let made = Sharding::new("wq", mesh! { fsdp: 2, tp: 4 }, [4], placements).unwrap();
    let text = serde_json::to_string(&made).unwrap();
    let hostile = text.replace("\"Shard\":0", "\"Shard\":7");
    assert_ne!(text, hostile);
    assert!(serde_json::from_str::<Sharding>(&hostile).is_err());
}

#[test]
fn a_rank_that_is_not_there_is_named() {
    let made = Sharding::new("wq", mesh! { tp: 4 }, [4], [Placement::Replicate]).unwrap();
    let said = "`wq`: no rank 4; the mesh has 4";
    assert_eq!(made.local(4).unwrap_err().to_string(), said);
    assert_eq!(made.copies(4).unwrap_err().to_string(), said);
}
