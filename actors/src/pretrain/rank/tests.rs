//! Tests of checkpoints that ranks of one plan write, and ranks of another read.

use futures::future::join_all;
use odeon_algorithms::model::{LayerBlock, ModelConfig, Moe};
use odeon_algorithms::train::{Adam8bit, Lion, StatePart};
use odeon_checkpoint::{Storage, within};

use super::*;
use crate::recipe::ParallelSection;

/// Twelve ways in which eight ranks share a model, context ranks in both of theirs, as a recipe says them.
const PLANS: [(&str, &str); 13] = [
    ("dp8", ""),
    ("fsdp8", "zero = 3"),
    ("hsdp 2x4", "zero = 3\nfsdp = 4"),
    ("tp2 x dp4", "tp = 2"),
    ("tp2 x fsdp4", "tp = 2\nzero = 3"),
    ("cp2 x fsdp4", "cp = 2\nzero = 3"),
    ("cp4 x dp2, ulysses", "cp = 4"),
    ("cp4 x dp2, ring", "cp = 4\ncp_kind = \"ring\""),
    ("pp2 x dp4", "pp = 2"),
    ("pp4 interleaved x dp2", "pp = 4\npp_chunks = 2"),
    ("ep4 x fsdp2", "ep = 4\nzero = 3"),
    ("pp2 x tp2 x fsdp2", "pp = 2\ntp = 2\nzero = 3"),
    ("pp2 x ep2 x cp2", "pp = 2\nep = 2\ncp = 2"),
];

/// Ranks of one plan.
struct Ranks(Vec<Arc<Trainee>>);

impl Ranks {
    fn of(config: &ModelConfig, sharing: Sharing) -> Self {
        let lion = odeon_algorithms::train::Optimizer::Lion(Lion::default());
        Self::with(config, lion, sharing)
    }

    fn with(
        config: &ModelConfig,
        optimizer: odeon_algorithms::train::Optimizer,
        sharing: Sharing,
    ) -> Self {
        let trainee = |rank| {
            let source = ModelSource::Fresh(Box::new(config.clone()));
            let train = TrainConfig {
                optimizer,
                ..TrainConfig::default()
            };
            let place = RankPlace { sharing, rank };
            let keeps = (&place, train.optimizer.rows_together());
            let part = ComputePlace::PROCESSOR.part((&source, 1), false, keeps);
            let optimizer = place.optimizer(part.expect("a part"), train);
            Arc::new(Trainee(Mutex::new(optimizer)))
        };
        Self((0..sharing.ranks()).map(trainee).collect())
    }

    /// Puts numbers everywhere.
    fn fill(&self, mut next: impl FnMut() -> f32) {
        for trainee in &self.0 {
            each_held(&mut trainee.lock(), |optimizer, part, tensor| {
                let of = optimizer.stored_bytes(part);
                let elements = optimizer.stored(part, tensor);
                let bytes = elements.flat_map(|_| next().to_le_bytes().into_iter().skip(4 - of));
                optimizer.write_stored(part, tensor, 0, &bytes.collect::<Vec<u8>>());
            });
        }
    }

    /// The bytes of each rank: of parameters, then of moments.
    fn numbers(&self) -> Vec<Vec<u8>> {
        let of = |trainee: &Arc<Trainee>| {
            let mut all = vec![];
            each_held(&mut trainee.lock(), |optimizer, part, tensor| {
                let len = optimizer.stored(part, tensor).len() * optimizer.stored_bytes(part);
                let mut bytes = vec![0; len];
                optimizer.read_stored(part, tensor, 0, &mut bytes);
                all.extend(bytes);
            });
            all
        };
        self.0.iter().map(of).collect()
    }

    /// The trainees with their ends of a storage, and what is in a checkpoint of each.
    fn ends(&self, storage: &Storage) -> impl Iterator<Item = (Arc<Trainee>, Checkpointer, Local)> {
        // Of tensors as small as these.
        let options = Options {
            block_bytes: 1 << 10,
            read_bytes: 1 << 14,
            threads: 1,
            ..Options::default()
        };
        let ends = within(self.0.len()).into_iter().zip(&self.0);
        ends.map(move |(end, trainee)| {
            let end = Checkpointer::new(storage.clone(), Arc::new(end), options);
            let local = state::local(ACTOR, &trainee.lock()).expect("names of tensors");
            (trainee.clone(), end, local)
        })
    }

    async fn save(&self, storage: &Storage) {
        let saves = self.ends(storage).map(async |(trainee, mut end, local)| {
            let save = checkpointed(1, Keep::default(), local, vec![]);
            let saving = end.save(save, &*trainee).await.expect("a save begins");
            saving.wait().await.expect("a checkpoint");
            end.settle().await.expect("what is old is gone");
        });
        join_all(saves).await;
    }

    async fn load(&self, storage: &Storage) {
        let loads = self.ends(storage).map(async |(trainee, mut end, local)| {
            let load = Load {
                local,
                ..Load::default()
            };
            end.load(load, &trainee).await.expect("a checkpoint");
        });
        join_all(loads).await;
    }
}

/// Visits each tensor of a rank, of its parameters and of its moments.
fn each_held(optimizer: &mut Optimizer, mut visit: impl FnMut(&mut Optimizer, StatePart, usize)) {
    let states = optimizer.config().optimizer.state().len();
    let parts = (0..states).map(StatePart::State);
    for part in [StatePart::Parameters].into_iter().chain(parts) {
        for tensor in 0..optimizer.trained_layout().entries().len() {
            visit(optimizer, part, tensor);
        }
    }
}

/// Numbers that follow from how many were drawn.
fn drawn() -> impl FnMut() -> f32 {
    let mut state = 0u32;
    move || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / 16_777_216.0 - 0.5
    }
}

/// SEMANTICS 143. Moments in tiles of ranks that share them in any way are loaded by those that share them in another.
#[tokio::test]
async fn moments_in_tiles_are_loaded_by_ranks_with_other_tiles() {
    let config = ModelConfig {
        vocab: 70,
        dim: 40,
        layers: 2,
        heads: 4,
        kv_heads: 4,
        head_dim: 20,
        ffn: 72,
        block: LayerBlock::Moe(Moe {
            experts: 4,
            experts_per_token: 2,
        }),
        ..ModelConfig::default()
    };
    let plans = [
        "",
        "zero = 1",
        "zero = 3",
        "zero = 2\nfsdp = 4\nparams = \"bf16\"",
        "pp = 2\nzero = 3",
        "ep = 4\nzero = 3",
        "ep = 2",
    ];
    let tiled = odeon_algorithms::train::Optimizer::Adam8bit(Adam8bit::default());
    let plans = plans.map(|fields| {
        let fields: ParallelSection = toml::from_str(fields).expect("fields");
        Ranks::with(&config, tiled, fields.sharing(8))
    });
    let (of_one, one) = (
        Storage::memory(),
        Ranks::with(&config, tiled, Sharing::ALONE),
    );
    one.fill(drawn());
    one.save(&of_one).await;
    let whole = one.numbers();
    let mut written = vec![];
    for ranks in &plans {
        ranks.load(&of_one).await;
        let storage = Storage::memory();
        ranks.save(&storage).await;
        written.push((storage, ranks.numbers()));
    }
    for (storage, _) in &written {
        for (ranks, (_, expected)) in plans.iter().zip(&written) {
            ranks.fill(|| f32::NAN);
            ranks.load(storage).await;
            assert!(ranks.numbers() == *expected);
        }
        one.fill(|| f32::NAN);
        one.load(storage).await;
        assert!(one.numbers() == whole);
    }
}

/// SEMANTICS 132, 135, 137, 138. A checkpoint of each of twelve plans is loaded by each other one, and by one rank, bit
/// for bit.
#[tokio::test]
async fn a_checkpoint_of_each_plan_is_loaded_by_each_other() {
    let dense = ModelConfig {
        vocab: 23,
        dim: 16,
        layers: 9,
        heads: 4,
        kv_heads: 4,
        head_dim: 6,
        ffn: 20,
        tied_head: false,
        ..ModelConfig::default()
    };
    let experts = ModelConfig {
        tied_head: true,
        block: LayerBlock::Moe(Moe {
            experts: 4,
            experts_per_token: 2,
        }),
        ..dense.clone()
    };
    for config in [dense, experts] {
        let of_one = Storage::memory();
        let one = Ranks::of(&config, Sharing::ALONE);
        one.fill(drawn());
        one.save(&of_one).await;
        let plans = PLANS.map(|(name, fields)| {
            let mut fields: ParallelSection = toml::from_str(fields).expect("fields");
            if config.block.experts().is_none() {
                fields.ep = 1;
            }
            (name, Ranks::of(&config, fields.sharing(8)))
        });
        let mut written = vec![];
        for (_, ranks) in &plans {
            ranks.load(&of_one).await;
            let storage = Storage::memory();
            ranks.save(&storage).await;
            written.push((storage, ranks.numbers()));
        }
        let whole = one.numbers();
        // Of a dense model by the next one alone: what is cut for experts has all the same cuts.
        let all_read = config.block.experts().is_some();
        for (at, ((writer, _), (storage, _))) in plans.iter().zip(&written).enumerate() {
            let readers = plans.iter().zip(&written).cycle().skip(at + 1);
            let readers = readers.take(if all_read { plans.len() } else { 1 });
            for ((reader, ranks), (_, expected)) in readers {
                ranks.fill(|| f32::NAN);
                ranks.load(storage).await;
                assert!(ranks.numbers() == *expected, "{reader} from {writer}");
            }
            one.fill(|| f32::NAN);
            one.load(storage).await;
            assert!(one.numbers() == whole, "one rank from {writer}");
        }
    }
}
