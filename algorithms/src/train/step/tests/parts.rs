//! Tests of ranks that have parts of one model.

use odeon_gpu::TensorRanks;

use super::*;
use crate::model::{Gelu, LayerBlock, Moe};
use crate::train::{Footprint, Lion, Sharing};

/// A rank among those that share its copy of the model, their number, and the sizes of sums so far.
struct OfCopy(Rank, usize, Mutex<Vec<usize>>);

impl std::fmt::Debug for OfCopy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("OfCopy").field(&self.0.rank).finish()
    }
}

impl TensorRanks<Cpu> for OfCopy {
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
            block: experts(3, 2),
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
/// after the last.
struct Trained {
    losses: Vec<f64>,
    norms: Vec<f32>,
    mean: Vec<f32>,
    parameters: Vec<f32>,
}

const STEPS: usize = 20;

fn steps<P: Peers<Cpu, Error = &'static str>>(
    mut trainer: Trainer,
    mut work: Texts,
    shape: StepShape,
    mut peers: [Option<P>; 2],
) -> (Trained, Trainer) {
    let mut told = Trained {
        losses: vec![],
        norms: vec![],
        mean: vec![0.0; trainer.model().parameters()],
        parameters: vec![],
    };
    for step in 0..STEPS {
        let [data, all] = peers.each_mut().map(Option::as_mut);
        let peers = StepPeers { data, all };
        let done = trainer.run(&plan(&shape), &mut work, peers, &mut |_| Ok(()));
        let done = done.unwrap();
        let update = done.update.unwrap();
        assert!(update.applied);
        told.losses.push(done.loss);
        told.norms.push(update.grad_norm);
        if step == 0 {
            trainer.read_part(StatePart::State(0), 0, &mut told.mean);
        }
    }
    told.parameters = trainer.model().to_flat();
    (told, trainer)
}

/// Numbers of the whole model, by those of the parts of one copy.
fn together(
    config: &ModelConfig,
    parts: &[(Trained, Trainer)],
    of: fn(&Trained) -> &[f32],
) -> Vec<f32> {
    let whole = model(config);
    let mut all = vec![f32::NAN; whole.parameters()];
    for (told, trainer) in parts {
        let part = trainer.model().part().unwrap();
        let entries = whole.layout().entries().iter();
        let pairs = entries.zip(trainer.model().layout().entries());
        for ((entry, own), tensor) in pairs.zip(part.tensors()) {
            let cols = entry.shape.get(1).copied().unwrap_or(1);
            let row = tensor.part.get(1).cloned().unwrap_or(0..1);
            for (at, value) in of(told)[own.range.clone()].iter().enumerate() {
                let (r, c) = (
                    tensor.part[0].start + at / row.len(),
                    row.start + at % row.len(),
                );
                let place = &mut all[entry.range.start + r * cols + c];
                let same = place.is_nan() || place.to_bits() == value.to_bits();
                assert!(same, "{} differs among ranks that all have it", entry.name);
                *place = *value;
            }
        }
    }
    all
}

/// Trains `copies` copies of a model, each of `ranks` ranks, as threads: copy by copy what each rank has.
fn in_parts(
    config: &ModelConfig,
    settings: &TrainConfig,
    work: &Texts,
    dealt: &[usize],
    ranks: usize,
) -> Vec<Vec<(Trained, Trainer)>> {
    let copies = dealt.len();
    let mut all = Rank::all(copies * ranks).into_iter();
    let data: Vec<Vec<Rank>> = (0..ranks).map(|_| Rank::all(copies)).collect();
    let mut data: Vec<_> = data.into_iter().map(Vec::into_iter).collect();
    let mut threads = vec![];
    for copy in 0..copies {
        let own = Rank::all(ranks).into_iter().enumerate();
        let first = dealt[..copy].iter().sum();
        let mut of_copy = vec![];
        for (rank, tensor) in own {
            let peers = [data[rank].next(), all.next()];
            let peers = match copies {
                1 => [None, peers.into_iter().nth(1).flatten()],
                _ => peers,
            };
            let mut work = work.clone();
            work.own = first..first + dealt[copy];
            let (config, settings) = (config.clone(), settings.clone());
            of_copy.push(thread::spawn(move || {
                let mut part = model(&config).into_part(rank, ranks).unwrap();
                part.meet(Arc::new(OfCopy(tensor, ranks, Mutex::default())));
                let shape = StepShape {
                    has_part: true,
                    sums_loss: true,
                    ..StepShape::of(&work, copies > 1, true)
                };
                steps(Trainer::new(part, settings), work, shape, peers)
            }));
        }
        threads.push(of_copy);
    }
    let copies = threads.into_iter();
    let joined = copies.map(|of_copy| of_copy.into_iter().map(|it| it.join().unwrap()).collect());
    joined.collect()
}

fn near(one: &[f32], other: &[f32], within: f32) -> bool {
    let size = one.iter().fold(0.0f32, |most, it| most.max(it.abs()));
    one.len() == other.len() && apart(one, other) <= within * size
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    /// SEMANTICS 132. Gradients and 20 losses within 1e-5 of one device's, and what several ranks have is the
    /// same on all of them to the bit.
    #[test]
    fn ranks_with_parts_of_a_model_train_it_as_one_device_does(
        config in prop::sample::select(models()),
        ranks in prop::sample::select(vec![2usize, 4]),
        dealt in prop::sample::select(vec![vec![8], vec![3, 5], vec![4, 0, 4]]),
        clip in prop::option::of(Just(0.05f32)),
        entropy in prop::sample::select(vec![0.0f32, 0.1]),
        lion in any::<bool>(),
        values_alone in any::<bool>(),
    ) {
        let settings = TrainConfig {
            // Rounding must not decide signs: where a gradient is nearly nothing both move by these alone.
            lr: 1e-4,
            clip,
            optimizer: match lion {
                true => Optimizer::Lion(Lion::default()),
                false => Optimizer::default(),
            },
            ..TrainConfig::default()
        };
        let mut work = Texts::of(&[5, 3, 8, 2, 7, 4, 6, 9], 0..8);
        work.entropy = entropy;
        // Values alone: nothing else goes backward.
        if config.value_head && values_alone {
            (work.policy, work.entropy) = (0.0, 0.0);
        }
        let alone = StepShape { sums_loss: true, ..StepShape::of(&work, false, true) };
        let trainer = Trainer::new(model(&config), settings.clone());
        let (one, _) = steps(trainer, work.clone(), alone, [None::<Rank>, None]);
        let copies = in_parts(&config, &settings, &work, &dealt, ranks);
        let mean = together(&config, &copies[0], |told| &told.mean);
        prop_assert!(near(&one.mean, &mean, 1e-5), "gradients differ by {}", apart(&one.mean, &mean));
        let largest = mean.iter().fold(0.0f32, |most, it| most.max(it.abs()));
        for entry in model(&config).layout().entries() {
            let (ours, theirs) = (&one.mean[entry.range.clone()], &mean[entry.range.clone()]);
            // What is nothing but for rounding, as the gradient of a bias of keys, is so on both.
            let differs = apart(ours, theirs);
            let is_near = near(ours, theirs, 1e-4) || differs < 1e-6 * largest;
            prop_assert!(is_near, "{}: {differs} of {largest}", entry.name);
        }
        let parameters = together(&config, &copies[0], |told| &told.parameters);
        // Where a gradient is nearly nothing its sign alone moves a parameter, and that may differ.
        let pairs = one.parameters.iter().zip(&parameters);
        let differ = pairs.filter(|(a, b)| (*a - *b).abs() > 0.5 * settings.lr).count();
        prop_assert!(differ * 50 < parameters.len(), "{differ} of {}", parameters.len());
        for copy in &copies {
            let own = together(&config, copy, |told| &told.parameters);
            prop_assert!(own == parameters, "copies have the same weights to the bit");
            for (told, _) in copy {
                for (a, b) in told.losses.iter().zip(&one.losses) {
                    prop_assert!((a - b).abs() <= 1e-5 * b.abs().max(1.0), "{a} {b}");
                }
                for (a, b) in told.norms.iter().zip(&one.norms) {
                    prop_assert!((a / b - 1.0).abs() < 1e-3, "{a} {b}");
                }
                prop_assert!((told.norms[0] / one.norms[0] - 1.0).abs() < 1e-5);
            }
        }
    }
}

#[test]
fn a_part_holds_its_share_of_the_model_and_no_more() {
    for config in models() {
        let whole = model(&config).parameters();
        let part = |rank| model(&config).into_part(rank, 4).unwrap().parameters();
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
                        copies: 1,
                        tensor,
                        optimizer: false,
                    };
                    let told = Footprint::of(&config, &train, sharing, rank).unwrap();
                    let mut part = model(&config).into_part(rank, tensor).unwrap();
                    let peers = Arc::new(OfCopy(peer, tensor, Mutex::default()));
                    if tensor > 1 {
                        part.meet(peers.clone());
                    }
                    let mut trainer = Trainer::new(part, train);
                    let names = trainer.model().layout().entries().iter().map(|it| &it.name);
                    assert!(names.eq(told.tensors.iter().map(|(name, _)| name)));
                    assert_eq!(told.parameters, 4 * trainer.model().parameters());
                    assert_eq!(told.gradients, 4 * trainer.gradient().len());
                    let states = trainer.config().optimizer.state().len();
                    assert_eq!(told.optimizer, 4 * trainer.part().len() * states);
                    assert_eq!(told.summed_over_copies, 0);
                    assert_eq!(told.summed_over_all, 4 * trainer.whole_gradient().len());
                    let batch = Texts::of(&[5], 0..1).batch(0).unwrap();
                    let _ = trainer.logprobs(&batch);
                    let sums = peers.2.lock().unwrap().clone();
                    let rows = sums
                        .iter()
                        .filter(|len| 4 * **len == told.row * batch.processed());
                    assert_eq!(rows.count(), told.row_sums);
                    let of_vocabulary = told.vocabulary_row * batch.predicted() / 4;
                    let others = sums.iter().filter(|len| **len == of_vocabulary).count();
                    assert_eq!(sums.len(), told.row_sums + others);
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
                tensor: 1,
                optimizer: true,
            };
            let told = Footprint::of(config, &train, sharing, rank).unwrap();
            let trainer = Trainer::sharing(model(config), train, rank, copies);
            let kept = (0..2).map(|number| trainer.optimizer.kept(number).0.as_slice().len());
            assert_eq!(told.optimizer, 4 * kept.sum::<usize>());
            let all = 4 * trainer.model().parameters();
            assert_eq!(told.summed_over_copies, if copies > 1 { all } else { 0 });
            assert_eq!(told.bytes(), 2 * all + told.optimizer);
        }
    }
}
