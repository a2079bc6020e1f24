//! Groups at the edge, and groups that are refused.

use crate::group_buffer::{
    BlockError, GroupBuffer, GroupBufferError, GroupTensor, block_beside_shard,
};

fn plan(tensors: Vec<GroupTensor>, ranks: usize, alignment: usize) -> GroupBuffer {
    GroupBuffer::plan(tensors, ranks, alignment).unwrap()
}

fn refused(tensors: Vec<GroupTensor>, ranks: usize, alignment: usize) -> String {
    let error = GroupBuffer::plan(tensors, ranks, alignment).unwrap_err();
    error.to_string()
}

#[test]
fn one_rank_has_all_without_padding() {
    let tensors = vec![GroupTensor::rows("w", 6, 5, 4), GroupTensor::whole("v", 7)];
    let buffer = plan(tensors, 1, 1);
    assert_eq!((buffer.shard_len(), buffer.padding()), (37, 0));
    assert_eq!(buffer.units(0), Some(vec![3]));
    assert_eq!(
        (buffer.cuts(0), buffer.cuts(1)),
        (Some(vec![]), Some(vec![]))
    );
    assert_eq!(buffer.interval(1), Some(30..37));
}

#[test]
fn one_tensor_is_cut_between_blocks() {
    let buffer = plan(vec![GroupTensor::new("w", 40, 8)], 2, 1);
    assert_eq!((buffer.shard_len(), buffer.padding()), (24, 8));
    assert_eq!(buffer.padding_percent(), 20.0);
    assert_eq!(buffer.units(0), Some(vec![3, 2]));
    assert_eq!(buffer.cuts(0), Some(vec![3]));
}

#[test]
fn ranks_beyond_the_blocks_hold_nothing() {
    let buffer = plan(
        vec![GroupTensor::new("w", 6, 3), GroupTensor::new("b", 1, 1)],
        5,
        1,
    );
    assert_eq!(buffer.shard_len(), 3);
    assert_eq!(buffer.units(0), Some(vec![1, 1, 0, 0, 0]));
    assert_eq!(buffer.units(1), Some(vec![0, 0, 1, 0, 0]));
    assert!(buffer.held(3).is_empty() && buffer.held(4).is_empty());
    // No such rank, no such tensor.
    assert!(buffer.held(5).is_empty() && buffer.held(usize::MAX).is_empty());
    assert_eq!((buffer.part(0, 5), buffer.part(2, 0)), (None, None));
    assert_eq!(
        (buffer.interval(2), buffer.units(2), buffer.cuts(2)),
        (None, None, None)
    );
}

#[test]
fn a_short_last_block_stays_whole() {
    // 576 rows in blocks of 128: four, and one of 64.
    let buffer = plan(vec![GroupTensor::rows("kv", 576, 10, 128)], 4, 1);
    assert_eq!(buffer.shard_len(), 2560);
    assert_eq!(buffer.cuts(0), Some(vec![2, 4]));
    // The unit is half a block.
    assert_eq!(buffer.units(0), Some(vec![4, 4, 1, 0]));
}

#[test]
fn tiles_of_8_bit_adam_are_32_rows() {
    let tensor = GroupTensor::adam8bit("w", 100, 7);
    assert_eq!((tensor.elements(), tensor.block()), (700, 224));
    let small = GroupTensor::adam8bit("w", 20, 7);
    assert_eq!((small.elements(), small.block()), (140, 140));
}

#[test]
fn whole_matrices_lie_on_one_rank_each() {
    let tensors = (0..4).map(|at| GroupTensor::whole(format!("w{at}"), 9));
    let buffer = plan(tensors.collect(), 2, 4);
    assert_eq!(buffer.shard_len(), 20);
    for tensor in 0..4 {
        let mut units = vec![0, 0];
        units[tensor / 2] = 1;
        assert_eq!(buffer.units(tensor), Some(units));
    }
}

#[test]
fn shards_are_multiples_of_the_alignment() {
    let buffer = plan(vec![GroupTensor::new("w", 1000, 1)], 3, 128);
    assert_eq!((buffer.shard_len(), buffer.padding()), (384, 152));
    let alone = plan(vec![GroupTensor::new("w", 1, 1)], 3, 128);
    assert_eq!(alone.shard_len(), 128);
}

// Millions of lengths lie below what the search finds, and they are not all tried.
#[test]
fn a_plan_says_that_a_shorter_one_was_not_looked_for() {
    let tensors = vec![
        GroupTensor::rows("a", 1000, 70_001, 1),
        GroupTensor::rows("b", 1000, 90_001, 1),
    ];
    let buffer = plan(tensors, 16, 1);
    assert!(!buffer.is_shortest() && buffer.padding() > 0);
}

#[test]
fn groups_that_cannot_be_are_refused_with_names_and_numbers() {
    let one = || vec![GroupTensor::new("w", 6, 2)];
    assert_eq!(
        refused(one(), 0, 1),
        "a buffer over 0 ranks: give 1 at least"
    );
    assert_eq!(
        GroupBuffer::plan(one(), 2, 0),
        Err(GroupBufferError::NoAlignment)
    );
    assert_eq!(
        GroupBuffer::plan(vec![], 2, 1),
        Err(GroupBufferError::NoTensors)
    );
    assert_eq!(
        refused([one(), one()].concat(), 2, 1),
        "tensor `w` is named twice"
    );
    assert_eq!(
        refused(vec![GroupTensor::rows("w", 0, 8, 1)], 2, 1),
        "tensor `w` has no elements"
    );
    assert_eq!(
        GroupBuffer::plan(vec![GroupTensor::rows("w", 8, 8, 0)], 2, 1),
        Err(GroupBufferError::NoBlock { name: "w".into() })
    );
    assert_eq!(
        refused(vec![GroupTensor::new("w", 10, 4)], 2, 1),
        "tensor `w` of 10 elements does not divide into blocks of 4: 2 are left; choose another \
         block, or allow a short last one"
    );
}

#[test]
fn sizes_that_overflow_are_refused() {
    let half = usize::MAX / 2;
    let overflow = [
        (vec![GroupTensor::rows("w", half, 3, 1)], 2, 1),
        (vec![GroupTensor::new("w", half, 1)], 2, 1),
        (
            vec![
                GroupTensor::new("w", half, 1),
                GroupTensor::new("v", half, 1),
            ],
            1,
            1,
        ),
        (vec![GroupTensor::new("w", 1, 1)], 3, half),
        (vec![GroupTensor::new("w", 1, 1)], usize::MAX, 1),
    ];
    for (tensors, ranks, alignment) in overflow {
        let error = GroupBuffer::plan(tensors, ranks, alignment).unwrap_err();
        assert!(
            matches!(error, GroupBufferError::TooLarge { .. }),
            "{error}"
        );
    }
    // The largest ones that can be counted.
    let largest = plan(vec![GroupTensor::new("w", half, 1)], 1, 1);
    assert_eq!(largest.padding(), 0);
    let quarter = plan(vec![GroupTensor::rows("w", half / 4, 1, 3)], 4, 1);
    assert!(quarter.padding() < 12);
    let wide = plan(vec![GroupTensor::new("w", 1, 1)], 2, half / 2);
    assert_eq!(wide.shard_len(), half / 2);
}

#[test]
fn blocks_beside_a_shard_are_common_multiples_of_a_slice() {
    // Rows of 5, in blocks of 2 rows, cut along the columns too: as they are.
    assert_eq!(block_beside_shard(10, &[8, 5], 1), Ok(10));
    assert_eq!(block_beside_shard(4, &[8, 6], 1), Ok(12));
    assert_eq!(block_beside_shard(1, &[8, 3, 4], 1), Ok(12));
    assert_eq!(block_beside_shard(1, &[8, 3, 4], 2), Ok(4));
    assert_eq!(block_beside_shard(0, &[8, 5], 1), Err(BlockError::NoBlock));
    for dim in [0, 2] {
        let error = BlockError::NoDim { dim, dims: 2 };
        assert_eq!(block_beside_shard(1, &[8, 5], dim), Err(error));
    }
    let empty = BlockError::EmptyDim { dim: 0 };
    assert_eq!(block_beside_shard(1, &[0, 5], 1), Err(empty));
    for slice in [[1, usize::MAX, 2], [1, usize::MAX / 2, 1]] {
        let error = block_beside_shard(4, &slice, 1).unwrap_err();
        assert!(matches!(error, BlockError::TooLarge { .. }), "{error}");
    }
}

#[test]
fn tensors_that_are_read_are_checked_like_others() {
    let tensor = GroupTensor::rows("w", 6, 5, 4);
    let text = serde_json::to_string(&tensor).unwrap();
    assert_eq!(serde_json::from_str::<GroupTensor>(&text).unwrap(), tensor);
    // A block that is longer than its tensor.
    let long = text.replace("\"block\":20", "\"block\":40");
    let long: GroupTensor = serde_json::from_str(&long).unwrap();
    let error = GroupBuffer::plan(vec![long], 2, 1).unwrap_err();
    let expected = GroupBufferError::UnevenBlock {
        name: "w".into(),
        elements: 30,
        block: 40,
        rest: 30,
    };
    assert_eq!(error, expected);
}
