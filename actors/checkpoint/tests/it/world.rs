//! A job whose tensors are known to the byte.

use std::sync::Arc;

use futures::future;
use odeon_algorithms::parallel::{Region, Window, copy_box};
use odeon_checkpoint::{
    Buffers, Checkpointer, Dtype, Held, Load, LoadError, Loaded, Local, LocalTensor, MODEL,
    Options, Save, SaveError, Saved, Storage, Which, within,
};

/// A tensor, and what its bytes are.
#[derive(Clone, Debug)]
pub(crate) struct Known {
    pub(crate) role: String,
    pub(crate) state: String,
    pub(crate) name: String,
    pub(crate) dtype: Dtype,
    pub(crate) shape: Vec<usize>,
    pub(crate) bytes: Vec<u8>,
}

impl Known {
    /// With bytes that follow from `seed`, so that no two tensors or steps have the same.
    pub(crate) fn new(name: &str, dtype: Dtype, shape: &[usize], seed: u64) -> Self {
        let bytes = shape.iter().product::<usize>() * dtype.bitsize() / 8;
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ name.len() as u64;
        let mut next = || {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            (mixed >> 40) as u8
        };
        Self {
            role: "actor".into(),
            state: MODEL.into(),
            name: name.into(),
            dtype,
            shape: shape.to_vec(),
            bytes: (0..bytes).map(|_| next()).collect(),
        }
    }

    pub(crate) fn part(&self, held: Held) -> LocalTensor {
        LocalTensor {
            name: self.name.clone(),
            dtype: self.dtype,
            shape: self.shape.clone(),
            held,
        }
    }

    pub(crate) fn whole(&self) -> LocalTensor {
        self.part(Held::Region(Region::whole(&self.shape)))
    }
}

/// The bytes that a rank has of each of its tensors, taken element by element from the whole ones.
pub(crate) fn reference(known: &[Known], local: &Local) -> Vec<Vec<u8>> {
    let of = |(role, state, tensor): (&str, &str, &LocalTensor)| {
        let whole = known
            .iter()
            .find(|known| {
                (known.role.as_str(), known.state.as_str()) == (role, state)
                    && known.name == tensor.name
            })
            .expect("a known tensor");
        let element = tensor.element_bytes();
        match &tensor.held {
            Held::Flat(range) => whole.bytes[range.start * element..range.end * element].to_vec(),
            Held::Region(region) => {
                let lengths = region.lengths();
                let mut part = vec![0; tensor.bytes()];
                let from = Window::new(0, element, whole.shape.clone(), region.clone()).unwrap();
                let to = Window::new(0, element, lengths.clone(), Region::whole(&lengths)).unwrap();
                copy_box(&whole.bytes, &from, &mut part, &to).unwrap();
                part
            }
        }
    };
    local.tensors().map(of).collect()
}

/// One rank that has all.
pub(crate) fn alone(known: &[Known]) -> Vec<Local> {
    let mut local = Local::default();
    for known in known {
        local
            .add(&known.role, &known.state, vec![known.whole()])
            .unwrap();
    }
    vec![local]
}

/// So many ranks that have equal ranges of each tensor.
pub(crate) fn flat(known: &[Known], ranks: usize) -> Vec<Local> {
    (0..ranks)
        .map(|rank| {
            let mut local = Local::default();
            for known in known {
                let elements: usize = known.shape.iter().product();
                let range = rank * elements / ranks..(rank + 1) * elements / ranks;
                local
                    .add(
                        &known.role,
                        &known.state,
                        vec![known.part(Held::Flat(range))],
                    )
                    .unwrap();
            }
            local
        })
        .collect()
}

/// Small pieces of everything, so that there are many.
pub(crate) fn small() -> Options {
    Options {
        slice_bytes: 48,
        block_bytes: 32,
        file_bytes: 200,
        read_bytes: 96,
        node_ranks: 2,
        fan_out: 2,
        ..Options::default()
    }
}

/// The ends of so many ranks.
pub(crate) fn ends(storage: &Storage, ranks: usize, options: Options) -> Vec<Checkpointer> {
    let ranks = within(ranks).into_iter();
    ranks
        .map(|rank| Checkpointer::new(storage.clone(), Arc::new(rank), options))
        .collect()
}

/// Saves, and waits for the checkpoint.
pub(crate) async fn save(
    ends: &mut [Checkpointer],
    known: &[Known],
    locals: &[Local],
    step: u64,
) -> Vec<Result<Saved, SaveError>> {
    let saves = ends.iter_mut().zip(locals).map(|(end, local)| async move {
        let source = reference(known, local);
        let save = Save {
            step,
            local: local.clone(),
            ..Save::default()
        };
        let saved = end.save(save, &source).await?.wait().await;
        let _ = end.settle().await;
        saved
    });
    future::join_all(saves).await
}

/// The result of a load on a rank, and the bytes of its tensors.
pub(crate) type Filled = Result<(Loaded, Vec<Vec<u8>>), LoadError>;

/// Loads what each rank wants.
pub(crate) async fn load(ends: &mut [Checkpointer], locals: &[Local], which: Which) -> Vec<Filled> {
    let loads = ends.iter_mut().zip(locals).map(|(end, local)| async move {
        let buffers = Arc::new(Buffers::zeroed(local));
        let load = Load {
            which,
            local: local.clone(),
            ..Load::default()
        };
        let loaded = end.load(load, &buffers).await?;
        let filled = Arc::try_unwrap(buffers)
            .expect("nobody writes any more")
            .into_inner();
        Ok((loaded, filled))
    });
    future::join_all(loads).await
}

/// That all ranks have what they should, and how many bytes they read for it.
pub(crate) fn expect_same(known: &[Known], locals: &[Local], filled: Vec<Filled>) -> u64 {
    let mut read = 0;
    for (rank, (local, filled)) in locals.iter().zip(filled).enumerate() {
        let (loaded, filled) = filled.unwrap_or_else(|error| panic!("rank {rank}: {error}"));
        assert_eq!(filled, reference(known, local), "rank {rank}");
        read += loaded.read_bytes;
    }
    read
}

/// Four tensors of a step, small.
pub(crate) fn tensors(step: u64) -> Vec<Known> {
    let mut critic = Known::new("layers.0.w", Dtype::F32, &[5, 3], step + 300);
    critic.role = "critic".into();
    let mut moment = Known::new("layers.0.w", Dtype::F32, &[6, 7], step + 400);
    moment.state = "exp_avg".into();
    vec![
        Known::new("layers.0.w", Dtype::BF16, &[6, 7], step + 100),
        Known::new("norm", Dtype::F32, &[9], step + 200),
        critic,
        moment,
    ]
}
