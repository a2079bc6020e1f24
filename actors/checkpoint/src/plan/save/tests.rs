//! Tests of who writes what.

use std::collections::HashMap;

use odeon_algorithms::model::LayerBlock;
use odeon_algorithms::parallel::{Llama, Part};
use odeon_mesh::{Mesh, mesh};
use proptest::prelude::*;
use safetensors::Dtype;

use super::*;
use crate::local::{Held as Part_, MODEL};

fn tensor(name: &str, shape: &[usize], held: Part_) -> LocalTensor {
    LocalTensor {
        name: name.into(),
        dtype: Dtype::F32,
        shape: shape.to_vec(),
        held,
    }
}

fn local(tensors: Vec<LocalTensor>) -> Local {
    let mut local = Local::default();
    local.add("actor", MODEL, tensors).unwrap();
    local
}

fn census(locals: &[Local]) -> Census {
    let mut census = Census::default();
    for (rank, local) in locals.iter().enumerate() {
        census.join(Census::of(rank, local.clone()));
    }
    census.sorted()
}

fn llama() -> Llama {
    Llama {
        layers: 4,
        hidden: 64,
        intermediate: 160,
        block: LayerBlock::default(),
        heads: 8,
        kv_heads: 4,
        head_width: 8,
        vocabulary: 300,
        element_bytes: 4,
        tied: false,
        qkv_bias: true,
        out_bias: false,
        mlp_bias: false,
        head_norms: true,
        value_head: true,
    }
}

/// Parameters as a layout has them, moments of the optimizer as ZeRO does, over its replicas.
fn trained(layout: &Mesh) -> Vec<Local> {
    let spec = llama().spec().unwrap();
    (0..layout.len())
        .map(|rank| {
            let mut local = Local::default();
            let shards = spec.shards_on(layout, rank).unwrap();
            local
                .add_shards("actor", MODEL, &spec, &shards, Dtype::F32)
                .unwrap();
            let flat = spec.flat(Part::new(rank, layout.len()).unwrap());
            local
                .add_shards("actor", "exp_avg", &spec, &flat, Dtype::F32)
                .unwrap();
            local
        })
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn each_byte_is_written_once_and_replicas_share_evenly(
        pipeline in 1_usize..4,
        tensor in prop::sample::select(vec![1_usize, 2, 4]),
        data in 1_usize..5,
        slice_bytes in prop::sample::select(vec![64_usize, 1000, 1 << 20]),
    ) {
        let locals = trained(&mesh! { dp: data, pp: pipeline, tp: tensor });
        let census = census(&locals);
        let plan = plan(&census, slice_bytes).unwrap();
        prop_assert_eq!(&plan, &super::plan(&census, slice_bytes).unwrap(), "deterministic");
        let mut boxes: HashMap<TensorName, Vec<Region>> = HashMap::new();
        let mut bytes = vec![0; locals.len()];
        for (rank, local) in locals.iter().enumerate() {
            for item in plan.of(rank) {
                let write = item.write(local).unwrap();
                let (.., has) = local.tensors().nth(write.tensor).unwrap();
                prop_assert_eq!(write.bytes, write.region.elements() * has.element_bytes());
                prop_assert!(write.start + write.bytes <= has.bytes());
                bytes[rank] += write.bytes;
                boxes.entry(write.name).or_default().push(write.region);
            }
        }
        let spec = llama().spec().unwrap();
        for state in [MODEL, "exp_avg"] {
            for tensor in spec.tensors() {
                let name = TensorName {
                    role: "actor".into(),
                    state: state.into(),
                    tensor: tensor.name.clone(),
                };
                let boxes = &boxes[&name];
                prop_assert_eq!(gap(&tensor.shape, boxes.iter()), None);
                let elements: usize = boxes.iter().map(Region::elements).sum();
                prop_assert_eq!(elements, tensor.elements(), "{} once", name);
            }
        }
        // Replicas of one stage and tensor rank write equally much, up to a slice.
        let of_shard = |shard: usize| (0..data).map(move |replica| replica * pipeline * tensor + shard);
        let rows = 300 * 4;
        for shard in 0..pipeline * tensor {
            let most = of_shard(shard).map(|rank| bytes[rank]).max().unwrap();
            let least = of_shard(shard).map(|rank| bytes[rank]).min().unwrap();
            // A slice is a row at least, and a tied tensor or a norm is shared by other ranks, too.
            prop_assert!(most - least <= 2 * slice_bytes.max(rows), "{:?}", bytes);
        }
    }
}

#[test]
fn a_range_that_is_cut_anywhere_is_written_as_boxes() {
    // ByteCheckpoint's own figure: a tensor of shape (3, 2), cut at three elements.
    let locals = [
        local(vec![tensor("b", &[3, 2], Part_::Flat(0..3))]),
        local(vec![tensor("b", &[3, 2], Part_::Flat(3..6))]),
    ];
    let plan = plan(&census(&locals), 1 << 20).unwrap();
    let written = |rank: usize| -> Vec<(String, usize)> {
        let writes = plan
            .of(rank)
            .iter()
            .map(|item| item.write(&locals[rank]).unwrap());
        writes
            .map(|write| (write.region.to_string(), write.start))
            .collect()
    };
    assert_eq!(
        written(0),
        [("[0:1, 0:2]".into(), 0), ("[1:2, 0:1]".into(), 8)]
    );
    assert_eq!(
        written(1),
        [("[1:2, 1:2]".into(), 0), ("[2:3, 0:2]".into(), 4)]
    );
}

#[test]
fn what_is_no_state_of_a_job_is_refused_by_name() {
    let whole = |shape: &[usize]| tensor("w", shape, Part_::Region(Region::whole(shape)));
    let refused = |locals: &[Local]| plan(&census(locals), 1 << 20).unwrap_err().to_string();
    let half = local(vec![tensor("w", &[4, 2], Part_::Flat(0..5))]);
    assert_eq!(
        refused(&[half.clone(), half]),
        "tensor `actor/model/w`: no rank has [2:3, 1:2], so it would not be whole"
    );
    let error = refused(&[local(vec![whole(&[4, 2])]), local(vec![whole(&[2, 4])])]);
    assert!(
        error.contains("`actor/model/w`: rank 1 has F32 [2, 4], where rank 0"),
        "{error}"
    );
    let mut beyond = Local::default();
    let outside = tensor("w", &[4], Part_::Flat(2..5));
    let error = beyond.add("actor", MODEL, vec![outside]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "tensor `w` of shape [4] has no part 2..5"
    );
    let error = beyond.add("../actor", MODEL, vec![]).unwrap_err();
    assert!(
        error.to_string().contains("`../actor` cannot name"),
        "{error}"
    );
}

#[test]
fn replicas_are_told_of_once() {
    let layout = mesh! { dp: 16, pp: 2, tp: 2 };
    let spec = llama().spec().unwrap();
    let locals: Vec<Local> = (0..layout.len())
        .map(|rank| {
            let mut local = Local::default();
            let shards = spec.shards_on(&layout, rank).unwrap();
            local
                .add_shards("actor", MODEL, &spec, &shards, Dtype::F32)
                .unwrap();
            local
        })
        .collect();
    let census = census(&locals);
    assert_eq!((census.ranks(), census.parts()), (64, 4));
    assert_eq!(census.local(63), locals[63]);
}
