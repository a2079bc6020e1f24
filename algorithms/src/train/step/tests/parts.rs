//! Tests of ranks that have parts of one model.

mod dropouts;
mod halves;
mod next_tokens;
mod optimizers;
mod pipelines;
mod plans;
mod recomputed;
mod rings;
mod shards;
mod widths;

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use odeon_gpu::{Layout, PassRanks, Precision};
use proptest::test_runner::TestCaseError;

use super::*;
use crate::model::{
    AttentionWindow, Gelu, LayerBlock, Moe, PartPlace, PartTensor, PassGroups, Recompute,
    ShardCopies, ShardGroups, StageGroups,
};
use crate::train::{Footprint, Lion, Sharing, ZeroStage};

/// A rank among those that compute passes together, their number, and the numbers that were added up or sent so far,
/// by collective.
struct OfCopy(Rank, usize, Mutex<Vec<usize>>);

impl OfCopy {
    fn of(rank: Rank, ranks: usize) -> Arc<Self> {
        Arc::new(Self(rank, ranks, Mutex::default()))
    }
}

impl std::fmt::Debug for OfCopy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("OfCopy").field(&self.0.rank).finish()
    }
}

impl PassRanks<Cpu> for OfCopy {
    fn rank(&self) -> usize {
        self.0.rank
    }

    fn count(&self) -> usize {
        self.1
    }

    fn sum(&self, _: &Cpu, numbers: &mut CpuBuffer, range: Range<usize>) {
        self.2.lock().unwrap().push(range.len());
        let own = &mut numbers.as_mut_slice()[range];
        let sums = self.0.total(own);
        own.copy_from_slice(&sums);
    }

    fn scatter(&self, cpu: &Cpu, numbers: &mut CpuBuffer, len: usize) {
        self.sum(cpu, numbers, 0..len);
        let share = len / self.1;
        for (at, number) in numbers.as_mut_slice()[..len].iter_mut().enumerate() {
            // Of the others' runs it has anything.
            if at / share != self.0.rank {
                *number = f32::NAN;
            }
        }
    }

    fn gather(&self, _: &Cpu, numbers: &mut CpuBuffer, len: usize) {
        self.2.lock().unwrap().push(len);
        let share = len / self.1;
        let own = numbers.as_slice()[self.0.rank * share..][..share].iter();
        let own = own.map(|number| u64::from(number.to_bits()));
        let all = self.0.all_say(own.collect()).concat();
        for (number, bits) in numbers.as_mut_slice()[..len].iter_mut().zip(all) {
            *number = f32::from_bits(bits as u32);
        }
    }

    fn exchange(
        &self,
        _: &Cpu,
        from: &CpuBuffer,
        sends: &[usize],
        to: &mut CpuBuffer,
        receives: &[usize],
    ) {
        let to_others = sends
            .iter()
            .enumerate()
            .filter(|(rank, _)| *rank != self.0.rank);
        let sent = to_others.map(|(_, count)| count).sum();
        self.2.lock().unwrap().push(sent);
        let own = from.as_slice()[..sends.iter().sum()].iter();
        let words = sends.iter().map(|count| *count as u64);
        let own = words.chain(own.map(|number| u64::from(number.to_bits())));
        let mut received = vec![];
        for (rank, said) in self.0.each_says(own.collect()).iter().enumerate() {
            let (counts, numbers) = said.split_at(sends.len());
            let begin: u64 = counts[..self.0.rank].iter().sum();
            let count = counts[self.0.rank] as usize;
            assert_eq!(count, receives[rank], "both ranks say the same");
            received.extend_from_slice(&numbers[begin as usize..][..count]);
        }
        let received = received.into_iter().map(|bits| f32::from_bits(bits as u32));
        for (place, number) in to.as_mut_slice().iter_mut().zip(received) {
            *place = number;
        }
    }

    fn tell(&self, _: &Cpu, counts: &[u32]) -> Vec<u32> {
        let own = counts.iter().map(|count| u64::from(*count)).collect();
        let to_each = counts.len() / self.1;
        let all = self.0.all_say(own);
        let of = |said: &Vec<u64>| said[self.0.rank * to_each..][..to_each].to_vec();
        let heard = all.iter().flat_map(of);
        heard.map(|count| count as u32).collect()
    }
}

/// Models of every kind of layer.
fn models() -> Vec<ModelConfig> {
    let llama = ModelConfig {
        vocab: 23,
        dim: 16,
        layers: 2,
        heads: 4,
        kv_heads: 4,
        head_dim: 6,
        ffn: 20,
        ..ModelConfig::default()
    };
    let experts = |experts, experts_per_token| {
        LayerBlock::Moe(Moe {
            experts,
            experts_per_token,
        })
    };
    vec![
        ModelConfig {
            tied_head: false,
            heads: 8,
            ..llama.clone()
        },
        ModelConfig {
            qkv_bias: true,
            out_bias: true,
            mlp_bias: true,
            ..llama.clone()
        },
        ModelConfig {
            head_norms: true,
            value_head: true,
            ..llama.clone()
        },
        ModelConfig {
            block: experts(4, 2),
            ..llama.clone()
        },
        ModelConfig {
            head_dim: 4,
            ..llama.of_block(LayerBlock::Gelu(Gelu::default()), 9)
        },
    ]
}

/// With initial weights every distribution would be nearly flat, and biases and values nothing.
fn model(config: &ModelConfig) -> Model {
    let mut model = Model::init(Cpu::new(1), config.clone(), 11).unwrap();
    let values = model
        .flat()
        .iter()
        .enumerate()
        .map(|(at, value)| match *value {
            1.0 => 1.0 + 0.1 * (at as f32).sin(),
            0.0 => 0.1 * (at as f32).cos(),
            value => 8.0 * value,
        });
    let values: Vec<f32> = values.collect();
    model.load_flat(&values).unwrap();
    model
}

/// The losses of some steps, the norm of each gradient, the mean of gradients after the first, and all parameters
/// before each step and after the last.
#[derive(Default)]
struct Trained {
    losses: Vec<f64>,
    norms: Vec<f32>,
    mean: Vec<f32>,
    begun: Vec<Vec<f32>>,
    parameters: Vec<f32>,
    /// Of the last step.
    copies: ShardCopies,
}

const STEPS: usize = 20;

fn steps<P: Peers<Cpu, Error = &'static str>>(
    mut trainer: Trainer,
    mut work: Texts,
    shape: StepShape,
    mut peers: [Option<P>; 4],
) -> (Trained, Trainer) {
    let mut told = Trained {
        losses: vec![],
        norms: vec![],
        mean: vec![],
        begun: vec![],
        parameters: vec![],
        copies: ShardCopies::default(),
    };
    for step in 0..STEPS {
        work.step = step as u64;
        told.begun.push(kept(&trainer, StatePart::Parameters));
        let [data, all, same_experts, replicas] = peers.each_mut().map(Option::as_mut);
        let peers = StepPeers {
            data,
            all,
            same_experts,
            replicas,
        };
        let done = trainer.run(&plan(&shape), &mut work, peers, &mut |_| Ok(()));
        let done = done.unwrap();
        let update = done.update.unwrap();
        assert!(update.applied);
        told.losses.push(done.loss);
        told.norms.push(update.grad_norm);
        told.copies = done.copies;
        // Of moments in bytes there are no such numbers.
        if step == 0 && trainer.stored_bytes(StatePart::State(0)) == 4 {
            told.mean = kept(&trainer, StatePart::State(0));
        }
    }
    told.parameters = kept(&trainer, StatePart::Parameters);
    (told, trainer)
}

/// What a rank has of some numbers, in the order of its layout; not a number where it has none.
fn kept(trainer: &Trainer, part: StatePart) -> Vec<f32> {
    let layout = trainer.trained_layout();
    let mut all = vec![f32::NAN; layout.len()];
    for number in 0..layout.entries().len() {
        let held = trainer.held(part, number);
        trainer.read_part(part, held.start, &mut all[held]);
    }
    all
}

fn whole_tensors(layout: &Layout) -> Vec<PartTensor> {
    let entries = layout.entries().iter();
    let tensors = entries.map(|entry| PartTensor {
        shape: entry.shape.clone(),
        part: entry.shape.iter().map(|length| 0..*length).collect(),
    });
    tensors.collect()
}

/// Numbers of the whole model, by those of the parts of one copy.
fn together(
    config: &ModelConfig,
    parts: &[(Trained, Trainer)],
    of: impl Fn(&Trained) -> &[f32],
) -> Vec<f32> {
    let whole = model(config);
    let mut all = vec![f32::NAN; whole.parameters()];
    for (told, trainer) in parts {
        let layout = trainer.model().layout();
        let tensors = match trainer.model().part() {
            Some(part) => part.tensors().to_vec(),
            None => whole_tensors(layout),
        };
        let entries = whole.layout().entries().iter();
        let pairs = entries.zip(layout.entries());
        for ((entry, own), tensor) in pairs.zip(tensors) {
            let cols = entry.shape.get(1).copied().unwrap_or(1);
            let row = tensor.part.get(1).cloned().unwrap_or(0..1);
            for (at, value) in of(told)[own.range.clone()].iter().enumerate() {
                let (r, c) = (
                    tensor.part[0].start + at / row.len(),
                    row.start + at % row.len(),
                );
                if value.is_nan() {
                    continue;
                }
                let place = &mut all[entry.range.start + r * cols + c];
                let same = place.is_nan() || place.to_bits() == value.to_bits();
                assert!(same, "{} differs among ranks that all have it", entry.name);
                *place = *value;
            }
        }
    }
    all
}

/// The coordinates of a rank: replica, copy of its shards, expert, pipeline, context and tensor rank.
fn at(sharing: Sharing, rank: usize) -> [usize; 6] {
    let place = sharing.place(rank);
    let copy = rank / sharing.of_copy();
    let context = sharing.context_of(rank).rank;
    let copies = match sharing.zero.has_shards() {
        false => sharing.copies,
        true => sharing.copies_of_shards(),
    };
    let copy = [copy / copies, copy % copies];
    [
        copy[0],
        copy[1],
        place.experts.rank,
        place.stage.rank.rank,
        context,
        place.tensor.rank,
    ]
}

/// For each rank its place in its group along some coordinates, where that has others.
fn along(sharing: Sharing, free: [bool; 6]) -> Vec<Option<Rank>> {
    let mut groups: BTreeMap<[usize; 6], Vec<usize>> = BTreeMap::new();
    for rank in 0..sharing.ranks() {
        let mut key = at(sharing, rank);
        let pairs = key.iter_mut().zip(free);
        pairs.filter(|(_, free)| *free).for_each(|(at, _)| *at = 0);
        groups.entry(key).or_default().push(rank);
    }
    let mut all: Vec<Option<Rank>> = (0..sharing.ranks()).map(|_| None).collect();
    for ranks in groups.into_values().filter(|ranks| ranks.len() > 1) {
        for (own, rank) in Rank::all(ranks.len()).into_iter().zip(ranks) {
            all[rank] = Some(own);
        }
    }
    all
}

/// Trains a model on ranks, as threads: what each of them has. `dealt` are the numbers of sequences of those with
/// samples of their own.
fn in_parts(
    config: &ModelConfig,
    settings: &TrainConfig,
    work: &Texts,
    dealt: &[usize],
    sharing: Sharing,
) -> Vec<(Trained, Trainer)> {
    let Sharing {
        experts,
        context,
        tensor,
        ..
    } = sharing;
    let shards = sharing.zero.has_shards();
    let groups = [
        ("rxe c ", true),
        ("rxe ct", tensor > 1 && !shards),
        ("rx  c ", experts > 1 && !shards),
        ("r     ", shards),
        ("     t", true),
        ("  e   ", true),
        ("    c ", true),
        (" xe ct", shards && tensor > 1),
        (" xe c ", shards),
        (" x  c ", shards && experts > 1),
        ("   p  ", true),
    ];
    let groups = groups.map(|(free, there)| {
        let mut free = free.chars();
        ([(); 6].map(|()| free.next() != Some(' ')), there)
    });
    let mut groups = groups.map(|(free, there)| match there {
        true => along(sharing, free),
        false => (0..sharing.ranks()).map(|_| None).collect(),
    });
    let sizes = [tensor, experts, context];
    let mut tied = pipelines::tied(config, sharing);
    let office = pipelines::Office::default();
    let threads = (0..sharing.ranks()).map(|rank| {
        let [data, all, same, replicas, of_passes @ ..] =
            groups.each_mut().map(|group| group[rank].take());
        let [
            of_tensor,
            of_experts,
            of_context,
            of_all,
            of_data,
            of_same,
            of_stages,
        ] = of_passes;
        let (tied, links) = (tied[rank].take(), office.of(sharing, rank));
        let copy = rank / sharing.of_copy();
        let bucket = copy * experts + sharing.place(rank).experts.rank;
        let mut work = work.clone();
        let first = dealt[..bucket].iter().sum();
        work.own = first..first + dealt[bucket];
        work.context = sharing.context_of(rank);
        work.context_kind = sharing.context_kind;
        work.tensor = tensor;
        if work.has_own_seeds {
            work.seed += rank as u64;
        }
        if experts > 1 || shards {
            work.at_least = dealt.iter().max().copied().unwrap_or(0);
        }
        let (config, settings) = (config.clone(), settings.clone());
        thread::spawn(move || {
            let mut model = model(&config).into_part(sharing.place(rank)).unwrap();
            let shard = sharing.shard_place(rank);
            if let Some(place) = shard {
                let rows = settings.optimizer.rows_together();
                model = model.into_shard_of_rows(place, rows).unwrap();
            }
            let group = |rank: Option<Rank>, ranks| {
                rank.map(|rank| OfCopy::of(rank, ranks) as Arc<dyn PassRanks<Cpu>>)
            };
            model.meet(PassGroups {
                tensor: group(of_tensor, sizes[0]),
                experts: group(of_experts, sizes[1]),
                context: group(of_context, sizes[2]),
                shards: ShardGroups {
                    everywhere: group(of_all, shard.map_or(1, |it| it.everywhere.ranks)),
                    data: group(of_data, shard.map_or(1, |it| it.data.ranks)),
                    experts: group(of_same, shard.map_or(1, |it| it.experts.ranks)),
                },
                stages: StageGroups {
                    all: group(of_stages, sharing.stages),
                    tied: group(tied, 2),
                    links: Some(links),
                },
            });
            let shape = StepShape {
                has_tensor_part: tensor > 1,
                has_expert_part: experts > 1,
                has_same_experts: same.is_some(),
                has_shard: shard.is_some(),
                has_replicas: replicas.is_some(),
                pipeline: pipelines::shape(&config, sharing, rank),
                sums_loss: true,
                shares_optimizer: sharing.zero == ZeroStage::Optimizer,
                ..StepShape::of(&work, data.is_some(), true)
            };
            let mut trainer = match sharing.zero {
                ZeroStage::Optimizer => Trainer::sharing(model, settings, rank, sharing.ranks()),
                _ => Trainer::new(model, settings),
            };
            if sharing.zero == ZeroStage::Gradients {
                trainer = trainer.with_parameters_that_stay();
            }
            trainer = trainer.with_parameters_in(sharing.params);
            trainer = trainer.with_layers_ahead(sharing.ahead);
            if work.waits {
                trainer.scorer.gathering().1.wait_for_each();
            }
            steps(trainer, work, shape, [data, all, same, replicas])
        })
    });
    let threads: Vec<_> = threads.collect();
    threads.into_iter().map(|it| it.join().unwrap()).collect()
}

/// Trains a model on one device.
fn on_one_device(config: &ModelConfig, settings: &TrainConfig, work: &Texts) -> Trained {
    let shape = StepShape {
        sums_loss: true,
        ..StepShape::of(work, false, true)
    };
    let trainer = Trainer::new(model(config), settings.clone());
    steps(trainer, work.clone(), shape, [const { None::<Rank> }; 4]).0
}

fn near(one: &[f32], other: &[f32], within: f32) -> bool {
    let size = one.iter().fold(0.0f32, |most, it| most.max(it.abs()));
    one.len() == other.len() && apart(one, other) <= within * size
}

/// The most by which ranks and one device differ: in a number of the first gradient, as a part of the largest, and in a
/// loss, as a part of itself.
struct Differences {
    gradient: f32,
    loss: f64,
}

/// Checks that ranks train a model as one device does: the first gradient and 20 losses within 1e-5, and what several
/// ranks have the same on all of them to the bit.
fn are_as_one_device(
    config: &ModelConfig,
    settings: &TrainConfig,
    work: &Texts,
    dealt: &[usize],
    sharing: Sharing,
) -> Result<Differences, TestCaseError> {
    let one = match sharing.params {
        Precision::F32 => on_one_device(config, settings, work),
        _ => halves::on_one_device(config, settings, work),
    };
    let all = in_parts(config, settings, work, dealt, sharing);
    // Of shards each replica is one copy.
    let of_copy = sharing.of_copy() * sharing.copies_of_shards();
    let copies = || all.chunks(of_copy);
    let first = &all[..of_copy];
    let mean = together(config, first, |told| &told.mean);
    let largest = mean.iter().fold(0.0f32, |most, it| most.max(it.abs()));
    for entry in model(config).layout().entries() {
        let (ours, theirs) = (&one.mean[entry.range.clone()], &mean[entry.range.clone()]);
        // What is nothing but for rounding, as the gradient of a bias of keys, is so on both.
        let differs = apart(ours, theirs);
        let is_near = near(ours, theirs, 1e-4) || differs < 1e-6 * largest;
        prop_assert!(is_near, "{}: {differs} of {largest}", entry.name);
    }
    let gradient = apart(&one.mean, &mean);
    prop_assert!(
        near(&one.mean, &mean, 1e-5),
        "gradients differ by {gradient} of {largest}"
    );
    let parameters = together(config, first, |told| &told.parameters);
    // Where a gradient is nearly nothing its sign alone moves a parameter, and that may differ.
    let pairs = one.parameters.iter().zip(&parameters);
    let differ = pairs
        .filter(|(a, b)| (*a - *b).abs() > 0.5 * settings.lr)
        .count();
    prop_assert!(
        differ * 50 < parameters.len(),
        "{differ} of {}",
        parameters.len()
    );
    for copy in copies() {
        let own = together(config, copy, |told| &told.parameters);
        prop_assert!(own == parameters, "copies have the same weights to the bit");
    }
    // A number that is read in bf16 and lies near the middle between two is rounded one way or the other by a difference
    // of its last bit, so that what is compared are steps from the same numbers.
    let steps = match sharing.params {
        Precision::F32 => one,
        _ => {
            let begun =
                |step: usize| together(config, first, |told: &Trained| &told.begun[step][..]);
            let begun: Vec<Vec<f32>> = (0..STEPS).map(begun).collect();
            halves::on_one_device_from(config, settings, work, &begun)
        }
    };
    let mut loss = 0.0f64;
    for (told, _) in &all {
        for (a, b) in told.losses.iter().zip(&steps.losses) {
            let differs = (a - b).abs() / b.abs().max(1.0);
            prop_assert!(differs <= 1e-5, "{a} {b}");
            loss = loss.max(differs);
        }
        for (a, b) in told.norms.iter().zip(&steps.norms) {
            prop_assert!((a / b - 1.0).abs() < 1e-3, "{a} {b}");
        }
        prop_assert!((told.norms[0] / steps.norms[0] - 1.0).abs() < 1e-5);
    }
    Ok(Differences {
        gradient: gradient / largest,
        loss,
    })
}

/// What passes compute again.
fn recomputes() -> Vec<Recompute> {
    vec![
        Recompute::Nothing,
        Recompute::FeedForward,
        Recompute::Layers,
    ]
}

fn settings(lion: bool, clip: Option<f32>) -> TrainConfig {
    TrainConfig {
        // Rounding must not decide signs: where a gradient is nearly nothing both move by these alone.
        lr: 1e-4,
        clip,
        optimizer: match lion {
            true => Optimizer::Lion(Lion::default()),
            false => Optimizer::default(),
        },
        ..TrainConfig::default()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    /// SEMANTICS 132, 140. Tensor ranks.
    #[test]
    fn ranks_with_parts_of_a_model_train_it_as_one_device_does(
        config in prop::sample::select(models()),
        tensor in prop::sample::select(vec![2usize, 4]),
        dealt in prop::sample::select(vec![vec![8], vec![3, 5], vec![4, 0, 4]]),
        clip in prop::option::of(Just(0.05f32)),
        entropy in prop::sample::select(vec![0.0f32, 0.1]),
        lion in any::<bool>(),
        values_alone in any::<bool>(),
        dropout in shares_that_are_dropped(),
    ) {
        let mut work = Texts::of(&[5, 3, 8, 2, 7, 4, 6, 9], 0..8);
        (work.entropy, work.dropout) = (entropy, dropout);
        // Values alone: nothing else goes backward.
        if config.value_head && values_alone {
            (work.policy, work.entropy) = (0.0, 0.0);
        }
        let sharing = Sharing { copies: dealt.len(), tensor, ..Sharing::ALONE };
        are_as_one_device(&config, &settings(lion, clip), &work, &dealt, sharing)?;
    }

    /// SEMANTICS 135, 140, 194. Ranks with some of the rows of each batch, some of the experts, parts of matrices, copies of
    /// all of these, and every mixture of them; ranks without a sequence among them.
    #[test]
    fn ranks_of_every_mixture_train_a_model_as_one_device_does(
        config in prop::sample::select(models_of_mixtures()),
        [copies, experts, context, tensor] in prop::sample::select(mixtures()),
        lengths in prop::collection::vec(2usize..10, 6),
        clip in prop::option::of(Just(0.05f32)),
        entropy in prop::sample::select(vec![0.0f32, 0.1]),
        lion in any::<bool>(),
        recompute in prop::sample::select(recomputes()),
        params in prop::sample::select(vec![Precision::F32, Precision::Bf16]),
        seed in any::<prop::sample::Index>(),
        dropout in shares_that_are_dropped(),
    ) {
        let of_experts = config.block.experts().map_or(1, |_| experts);
        let sharing = Sharing { copies, experts: of_experts, context, tensor, params, ..Sharing::ALONE };
        let mut work = Texts::of(&lengths, 0..6);
        (work.entropy, work.dropout) = (entropy, dropout);
        // One has what is left, and the others one each, as long as there are some.
        let buckets = copies * of_experts;
        let mut dealt: Vec<usize> = (0..buckets).map(|bucket| usize::from(bucket < 4)).collect();
        dealt[seed.index(buckets)] += 6 - buckets.min(4);
        let settings = TrainConfig { recompute, ..settings(lion, clip) };
        are_as_one_device(&config, &settings, &work, &dealt, sharing)?;
    }
}

/// Without dropout, and with.
fn shares_that_are_dropped() -> impl Strategy<Value = f32> {
    prop::sample::select(vec![0.0f32, 0.2])
}

/// The same, and one with fewer key heads than there may be context ranks.
fn models_of_mixtures() -> Vec<ModelConfig> {
    let mut all = models();
    all.push(ModelConfig {
        kv_heads: 2,
        window: Some(AttentionWindow {
            tokens: NonZeroU32::new(3).unwrap(),
            from_layer: 0,
        }),
        ..all[3].clone()
    });
    all
}

/// Copies, expert, context and tensor ranks, of eight ranks at most.
fn mixtures() -> Vec<[usize; 4]> {
    vec![
        [8, 1, 1, 1],
        [4, 1, 1, 2],
        [1, 1, 2, 1],
        [1, 2, 1, 1],
        [2, 1, 4, 1],
        [1, 4, 1, 1],
        [2, 4, 1, 1],
        [1, 2, 2, 1],
        [2, 2, 2, 1],
        [2, 2, 1, 2],
        [1, 1, 2, 2],
        [1, 2, 2, 2],
        [1, 4, 2, 1],
        [2, 1, 2, 2],
    ]
}

#[test]
fn a_part_holds_its_share_of_the_model_and_no_more() {
    for config in models() {
        let whole = model(&config).parameters();
        let part = |rank| {
            let place = PartPlace::of_tensor(rank, 4);
            model(&config).into_part(place).unwrap().parameters()
        };
        let own: Vec<usize> = (0..4).map(part).collect();
        // Norms, biases behind sums, routers and positions are on all; entries of the vocabulary differ by one.
        assert!(
            own.iter().all(|it| *it < whole * 2 / 5),
            "{own:?} of {whole}"
        );
    }
}

/// SEMANTICS 134. What is said before a run is what is held and added up then, to the byte.
#[test]
fn a_footprint_is_what_a_rank_holds_and_adds_up() {
    for (config, tensor) in models()
        .into_iter()
        .flat_map(|it| [(it.clone(), 1), (it, 2)])
    {
        for optimizer in ["adamw", "lion"] {
            let train = TrainConfig {
                optimizer: Optimizer::named(optimizer).unwrap(),
                ..TrainConfig::default()
            };
            let ranks = Rank::all(tensor).into_iter().enumerate();
            let threads = ranks.map(|(rank, peer)| {
                let (config, train) = (config.clone(), train.clone());
                thread::spawn(move || {
                    let sharing = Sharing {
                        tensor,
                        ..Sharing::ALONE
                    };
                    let told = Footprint::of(&config, &train, sharing, rank).unwrap();
                    let mut part = model(&config).into_part(sharing.place(rank)).unwrap();
                    let peers = OfCopy::of(peer, tensor);
                    if tensor > 1 {
                        part.meet(PassGroups {
                            tensor: Some(peers.clone()),
                            ..PassGroups::default()
                        });
                    }
                    let mut trainer = Trainer::new(part, train);
                    let names = trainer.model().layout().entries().iter().map(|it| &it.name);
                    assert!(names.eq(told.tensors.iter().map(|(name, _)| name)));
                    assert_eq!(told.parameters, 4 * trainer.model().parameters());
                    assert_eq!(told.gradients, 4 * trainer.gradient().len());
                    let states = trainer.config().optimizer.state().len();
                    assert_eq!(told.optimizer, 4 * trainer.part().len() * states);
                    assert_eq!(told.summed_over_data, 0);
                    let in_all = trainer.ranges().everywhere.into_iter();
                    let in_all: usize = in_all.map(|it| it.len()).sum();
                    assert_eq!(told.summed_over_all, 4 * in_all);
                    let mut work = Texts::of(&[5], 0..1);
                    work.tensor = tensor;
                    let batch = work.batch(0).unwrap();
                    let _ = trainer.logprobs(&batch);
                    let sums = peers.2.lock().unwrap().clone();
                    let rows = sums
                        .iter()
                        .filter(|len| 4 * **len == told.row * batch.processed());
                    // Each time they are gathered as well.
                    assert_eq!(rows.count(), 2 * told.row_sums);
                    let of_vocabulary = told.vocabulary_row * batch.predicted() / 4;
                    let others = sums.iter().filter(|len| **len == of_vocabulary).count();
                    assert_eq!(sums.len(), 2 * told.row_sums + others);
                    assert_eq!(others, usize::from(tensor > 1));
                })
            });
            let threads: Vec<_> = threads.collect();
            threads.into_iter().for_each(|it| it.join().unwrap());
        }
    }
}

/// SEMANTICS 134. Of ranks that share the optimiser each says what it keeps.
#[test]
fn a_footprint_knows_parts_of_an_optimiser() {
    let config = &models()[0];
    for copies in 1..5 {
        for rank in 0..copies {
            let train = TrainConfig::default();
            let sharing = Sharing {
                copies,
                zero: ZeroStage::Optimizer,
                ..Sharing::ALONE
            };
            let told = Footprint::of(config, &train, sharing, rank).unwrap();
            let trainer = Trainer::sharing(model(config), train, rank, copies);
            let kept = (0..2).map(|number| trainer.optimizer.kept(number).0.as_slice().len());
            assert_eq!(told.optimizer, 4 * kept.sum::<usize>());
            let all = 4 * trainer.model().parameters();
            assert_eq!(told.summed_over_data, if copies > 1 { all } else { 0 });
            assert_eq!(told.bytes(), 2 * all + told.optimizer);
        }
    }
}
