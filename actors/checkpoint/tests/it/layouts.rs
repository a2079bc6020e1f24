//! Whatever layout saves, any layout loads, bit for bit.

use odeon_algorithms::model::LayerBlock;
use odeon_algorithms::parallel::{Llama, Part, Region};
use odeon_checkpoint::{Dtype, Held, Local, LocalTensor, MODEL, Storage, Which};
use odeon_mesh::{Mesh, mesh};
use proptest::prelude::*;
use proptest::sample::select;

use crate::world::{Known, ends, expect_same, load, reference, save, small};

/// Distribution of a tensor over ranks.
#[derive(Clone, Debug)]
enum Share {
    /// All have all of it.
    Replicas,
    /// One has it, as a stage of a pipeline.
    One(usize),
    /// Cut along a dimension into so many parts, each with several ranks where there are more.
    Cut { dim: usize, parts: usize },
    /// Cut anywhere.
    Flat(Vec<usize>),
}

fn shares() -> impl Strategy<Value = Share> {
    prop_oneof![
        Just(Share::Replicas),
        (0_usize..6).prop_map(Share::One),
        (0_usize..4, 1_usize..5).prop_map(|(dim, parts)| Share::Cut { dim, parts }),
        prop::collection::vec(0_usize..500, 5).prop_map(Share::Flat),
    ]
}

fn dtypes() -> impl Strategy<Value = Dtype> {
    select(vec![
        Dtype::F32,
        Dtype::BF16,
        Dtype::U8,
        Dtype::I64,
        Dtype::BOOL,
        Dtype::F8_E4M3,
    ])
}

fn shapes() -> impl Strategy<Value = Vec<usize>> {
    prop::collection::vec(1_usize..8, 0..4)
}

/// A tensor, and how it is shared by those who save and those who load.
fn tensors() -> impl Strategy<Value = Vec<(Vec<usize>, Dtype, Share, Share)>> {
    prop::collection::vec((shapes(), dtypes(), shares(), shares()), 1..6)
}

impl Share {
    /// The part that a rank has; `None` where others have all of it.
    fn held(&self, shape: &[usize], rank: usize, ranks: usize) -> Option<Held> {
        let elements: usize = shape.iter().product();
        match self {
            Self::Replicas => Some(Held::Region(Region::whole(shape))),
            Self::One(by) => (by % ranks == rank).then(|| Held::Region(Region::whole(shape))),
            Self::Cut { dim, parts } => {
                let parts = (*parts).min(ranks);
                if shape.is_empty() {
                    return Some(Held::Region(Region::whole(shape)));
                }
                let (dim, part) = (dim % shape.len(), rank % parts);
                let bound = |part: usize| part * shape[dim] / parts;
                Some(Held::Region(Region::cut(
                    shape,
                    dim,
                    bound(part)..bound(part + 1),
                )))
            }
            Self::Flat(cuts) => {
                let mut cuts: Vec<usize> = cuts
                    .iter()
                    .take(ranks - 1)
                    .map(|cut| cut % (elements + 1))
                    .collect();
                cuts.extend([0, elements]);
                cuts.sort_unstable();
                Some(Held::Flat(cuts[rank]..cuts[rank + 1]))
            }
        }
    }
}

fn locals(known: &[Known], shares: &[Share], ranks: usize) -> Vec<Local> {
    let of = |rank| {
        let mut local = Local::default();
        for (known, share) in known.iter().zip(shares) {
            let held = share.held(&known.shape, rank, ranks);
            let tensors: Vec<LocalTensor> = held.into_iter().map(|held| known.part(held)).collect();
            local.add(&known.role, &known.state, tensors).unwrap();
        }
        local
    };
    (0..ranks).map(of).collect()
}

fn run<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(future)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// SEMANTICS 94: what one layout saved, another loads bit for bit, and each byte is read once.
    #[test]
    fn any_layout_loads_what_any_layout_saved(
        tensors in tensors(),
        savers in 1_usize..6,
        loaders in 1_usize..6,
        on_disk in any::<bool>(),
    ) {
        let known: Vec<Known> = tensors.iter().enumerate().map(|(at, (shape, dtype, ..))| {
            let mut known = Known::new(&format!("t{at}"), *dtype, shape, at as u64);
            known.role = ["actor", "critic", "reward"][at % 3].into();
            known.state = [MODEL, "exp_avg"][at % 2].into();
            known
        }).collect();
        let saved: Vec<Share> = tensors.iter().map(|(_, _, share, _)| share.clone()).collect();
        let wanted: Vec<Share> = tensors.iter().map(|(.., share)| share.clone()).collect();
        let from = locals(&known, &saved, savers);
        let to = locals(&known, &wanted, loaders);
        let folder = tempfile::tempdir().unwrap();
        let storage = if on_disk {
            Storage::folder(folder.path()).unwrap()
        } else {
            Storage::memory()
        };
        run(async {
            let mut savers = ends(&storage, savers, small());
            for saved in save(&mut savers, &known, &from, 7).await {
                saved.unwrap();
            }
            let mut loaders = ends(&storage, loaders, small());
            let filled = load(&mut loaders, &to, Which::Latest).await;
            let read = expect_same(&known, &to, filled);
            let all: usize = known.iter().map(|known| known.bytes.len()).sum();
            prop_assert_eq!(read, all as u64, "each byte is read once");
            Ok(())
        })?;
    }
}

fn llama() -> Llama {
    Llama {
        layers: 4,
        hidden: 16,
        intermediate: 40,
        block: LayerBlock::default(),
        heads: 4,
        kv_heads: 2,
        head_width: 4,
        vocabulary: 60,
        element_bytes: 4,
        tied: true,
        qkv_bias: false,
        out_bias: false,
        mlp_bias: false,
        head_norms: false,
        value_head: false,
    }
}

/// The tensors of an actor and its optimizer, and of a critic.
fn world() -> Vec<Known> {
    let spec = llama().spec().unwrap();
    let mut known = vec![];
    for (at, (role, state)) in [
        ("actor", MODEL),
        ("actor", "exp_avg"),
        ("actor", "exp_avg_sq"),
        ("critic", MODEL),
    ]
    .into_iter()
    .enumerate()
    {
        for (number, tensor) in spec.tensors().iter().enumerate() {
            let seed = (at * 1000 + number) as u64;
            known.push(Known {
                role: role.into(),
                state: state.into(),
                ..Known::new(&tensor.name, Dtype::F32, &tensor.shape, seed)
            });
        }
    }
    known
}

/// Models as the layout has them; the optimizer's states too, or in equal ranges over all ranks.
fn trained(layout: &Mesh, zero: bool) -> Vec<Local> {
    let spec = llama().spec().unwrap();
    let of = |rank| {
        let mut local = Local::default();
        let shards = spec.shards_on(layout, rank).unwrap();
        for (role, state) in [("actor", MODEL), ("critic", MODEL)] {
            local
                .add_shards(role, state, &spec, &shards, Dtype::F32)
                .unwrap();
        }
        let states = if zero {
            spec.flat(Part::new(rank, layout.len()).unwrap())
        } else {
            shards
        };
        for state in ["exp_avg", "exp_avg_sq"] {
            local
                .add_shards("actor", state, &spec, &states, Dtype::F32)
                .unwrap();
        }
        local
    };
    (0..layout.len()).map(of).collect()
}

/// SEMANTICS 94: tensor, pipeline and data parallelism and ZeRO, each to each, with all roles.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn layouts_of_a_model_load_each_other() {
    let known = world();
    let layouts = [
        (1, 1, 1, false),
        (2, 2, 1, true),
        (1, 4, 2, false),
        (4, 1, 2, true),
        (2, 1, 3, true),
    ];
    let layouts = layouts.map(|(p, t, d, zero)| trained(&mesh! { dp: d, pp: p, tp: t }, zero));
    for from in &layouts {
        let storage = Storage::memory();
        let mut savers = ends(&storage, from.len(), small());
        for saved in save(&mut savers, &known, from, 1).await {
            saved.unwrap();
        }
        for to in &layouts {
            let mut loaders = ends(&storage, to.len(), small());
            let filled = load(&mut loaders, to, Which::Latest).await;
            let read = expect_same(&known, to, filled);
            let all: usize = known.iter().map(|known| known.bytes.len()).sum();
            assert_eq!(read, all as u64, "each byte once");
        }
    }
}

/// Evaluation loads the model of one role, and reads nothing of the rest but what shares its blocks.
#[tokio::test]
async fn one_role_is_loaded_without_the_others() {
    let known = world();
    let from = trained(&mesh! { dp: 2, pp: 1, tp: 2 }, true);
    let storage = Storage::memory();
    let mut savers = ends(&storage, from.len(), small());
    for saved in save(&mut savers, &known, &from, 1).await {
        saved.unwrap();
    }
    let spec = llama().spec().unwrap();
    let mut local = Local::default();
    local
        .add_shards("critic", MODEL, &spec, &spec.whole(), Dtype::F32)
        .unwrap();
    let mut one = ends(&storage, 1, small());
    let filled = load(&mut one, std::slice::from_ref(&local), Which::Latest).await;
    let read = expect_same(&known, std::slice::from_ref(&local), filled);
    assert_eq!(read, reference(&known, &local).concat().len() as u64);
}

#[tokio::test]
async fn a_layout_that_cannot_be_satisfied_says_which_tensor() {
    let known = world();
    let from = trained(&mesh! { dp: 1, pp: 1, tp: 1 }, false);
    let storage = Storage::memory();
    let mut savers = ends(&storage, 1, small());
    for saved in save(&mut savers, &known, &from, 1).await {
        saved.unwrap();
    }
    let wanted = |role: &str, state: &str, tensor: LocalTensor| {
        let mut local = Local::default();
        local.add(role, state, vec![tensor]).unwrap();
        local
    };
    let norm = Known::new("model.norm.weight", Dtype::F32, &[16], 0);
    let cases = [
        (
            wanted("reward", MODEL, norm.whole()),
            "`reward/model/model.norm.weight`, which rank 1 wants, is not in the checkpoint, which has roles: actor, critic",
        ),
        (
            wanted("critic", "exp_avg", norm.whole()),
            "where `critic` has states: model",
        ),
        (
            wanted(
                "actor",
                MODEL,
                Known::new("other", Dtype::F32, &[2], 0).whole(),
            ),
            "`actor/model/other`",
        ),
        (
            wanted(
                "actor",
                MODEL,
                Known::new("model.norm.weight", Dtype::BF16, &[16], 0).whole(),
            ),
            "is F32 [16] in the checkpoint, and rank 1 wants BF16 [16]",
        ),
        (
            wanted(
                "actor",
                MODEL,
                Known::new("model.norm.weight", Dtype::F32, &[17], 0).whole(),
            ),
            "is F32 [16] in the checkpoint, and rank 1 wants F32 [17]",
        ),
    ];
    for (local, expected) in cases {
        let mut two = ends(&storage, 2, small());
        for filled in load(&mut two, &[Local::default(), local], Which::Latest).await {
            let error = filled.unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
            assert!(error.contains("memory/00000001-step-1"), "{error}");
        }
    }
}
