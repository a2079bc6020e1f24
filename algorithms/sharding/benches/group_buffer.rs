//! Plans of DeepSeek-V3-671B over 1,024 ranks in blocks of 128 rows.

#![allow(clippy::unwrap_used, reason = "a bench stops where it goes wrong")]

use divan::Bencher;
use odeon_sharding::group_buffer::{GroupBuffer, GroupTensor};

#[path = "../src/group_buffer/tests/models.rs"]
#[allow(dead_code, reason = "the tests look at other models too")]
mod models;

use models::{Group, deepseek_v3};

const RANKS: usize = 1024;
const ROWS: usize = 128;

fn main() {
    divan::main();
}

fn tensors(group: &Group) -> Vec<GroupTensor> {
    group
        .shapes
        .iter()
        .map(|shape| {
            let name = &*shape.name;
            if shape.is_vector {
                GroupTensor::new(name, shape.row_len, 1)
            } else {
                GroupTensor::rows(name, shape.rows, shape.row_len, ROWS)
            }
        })
        .collect()
}

fn plan(tensors: Vec<GroupTensor>) -> GroupBuffer {
    GroupBuffer::plan(tensors, RANKS, 1).unwrap()
}

#[divan::bench(name = "a layer of 256 experts, 1,024 ranks")]
fn layer(bencher: Bencher<'_, '_>) {
    let model = deepseek_v3();
    let largest = model.iter().max_by_key(|group| group.shapes.len()).unwrap();
    let tensors = tensors(largest);
    bencher
        .with_inputs(|| tensors.clone())
        .bench_local_values(plan);
}

#[divan::bench(
    name = "all 63 groups, 1,024 ranks",
    sample_count = 10,
    sample_size = 1
)]
fn model(bencher: Bencher<'_, '_>) {
    let model = deepseek_v3();
    let groups: Vec<_> = model
        .iter()
        .flat_map(|group| std::iter::repeat_n(tensors(group), group.count))
        .collect();
    assert_eq!(groups.len(), 63);
    bencher
        .with_inputs(|| groups.clone())
        .bench_local_values(|groups| groups.into_iter().map(plan).collect::<Vec<_>>());
}
