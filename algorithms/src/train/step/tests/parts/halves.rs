//! Tests of parameters that passes read in bf16.

use super::*;
use crate::train::CrossEntropy;

const BF16: Sharing = Sharing {
    zero: ZeroStage::Parameters,
    params: Precision::Bf16,
    ..Sharing::ALONE
};

/// The same of a rank that has all of its parameters.
const WHOLE: Sharing = Sharing {
    zero: ZeroStage::Off,
    ..BF16
};

/// Trains a model on one device whose passes read parameters in bf16.
pub(super) fn on_one_device(config: &ModelConfig, settings: &TrainConfig, work: &Texts) -> Trained {
    let all = in_parts(config, settings, work, &[work.own.len()], BF16);
    let [(one, _)] = all.try_into().ok().expect("one rank");
    one
}

/// The losses and norms of single steps of the same, each from the parameters given for it.
pub(super) fn on_one_device_from(
    config: &ModelConfig,
    settings: &TrainConfig,
    work: &Texts,
    begun: &[Vec<f32>],
) -> Trained {
    let mut work = work.clone();
    let mut all = Trained::default();
    for (step, parameters) in begun.iter().enumerate() {
        work.step = step as u64;
        let shape = StepShape {
            sums_loss: true,
            ..StepShape::of(&work, false, true)
        };
        let mut model = model(config);
        model.load_flat(&rounded(parameters)).unwrap();
        let mut trainer = Trainer::new(model, settings.clone());
        let none = StepPeers::<Rank>::none();
        let done = trainer.run(&plan(&shape), &mut work, none, &mut |_| Ok(()));
        let done = done.unwrap();
        all.losses.push(done.loss);
        all.norms.push(done.update.unwrap().grad_norm);
    }
    all
}

fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|number| number.to_bits()).collect()
}

fn rounded(flat: &[f32]) -> Vec<f32> {
    let halves = flat.iter().map(|number| half::bf16::from_f32(*number));
    halves.map(half::bf16::to_f32).collect()
}

/// SEMANTICS 153. The gradient is that of a model whose parameters were rounded; the optimiser moves those that were not.
#[test]
fn passes_read_rounded_parameters_and_the_optimiser_moves_those_of_32_bits() {
    for config in models() {
        let settings = settings(false, None);
        let mut work = Texts::of(&[7], 0..1);
        let got = on_one_device(&config, &settings, &work);
        let mut masters = Trainer::new(model(&config), settings.clone());
        let mut reading = Trainer::new(model(&config), settings);
        for (step, loss) in got.losses.iter().enumerate() {
            let flat = rounded(masters.model().flat());
            reading.model_mut().load_flat(&flat).unwrap();
            work.step = step as u64;
            let passes = [Accumulate(0)];
            let done = reading.run(&passes, &mut work, StepPeers::<Rank>::none(), &mut |_| {
                Ok(())
            });
            assert_eq!(done.unwrap().loss.to_bits(), loss.to_bits(), "step {step}");
            let gradient = masters.trained_gradient_mut().as_mut_slice();
            gradient.copy_from_slice(&reading.gradient());
            reading.clear_gradient();
            let _ = masters.apply(1.0);
        }
        assert_eq!(bits(&got.parameters), bits(masters.model().flat()));
        assert_ne!(bits(&got.parameters), bits(&rounded(&got.parameters)));
    }
}

/// SEMANTICS 194. One rank that has all of its parameters makes the steps of one that keeps a shard of them, which is all.
#[test]
fn a_rounded_copy_of_whole_parameters_has_the_numbers_of_a_shard_to_the_bit() {
    for config in models_of_mixtures() {
        let settings = settings(false, None);
        let work = Texts::of(&[7], 0..1);
        let of_shard = on_one_device(&config, &settings, &work);
        let all = in_parts(&config, &settings, &work, &[1], WHOLE);
        let [(whole, mut trainer)] = all.try_into().ok().expect("one rank");
        assert_eq!(bits(&whole.parameters), bits(&of_shard.parameters));
        assert_eq!(whole.losses, of_shard.losses);
        let told = Footprint::of(&config, &settings, WHOLE, 0).unwrap();
        assert_eq!(told.gathered, 4 * trainer.scorer.gathering().1.len());
        assert_eq!(told.gathered, told.parameters);
    }
}

/// SEMANTICS 194. What is rated is rated with rounded parameters too, before a step and behind it.
#[test]
fn ranks_rate_with_rounded_parameters() {
    let config = &models()[2];
    let batch = Texts::of(&[7], 0..1).packed(0);
    let mut trainer = Trainer::new(model(config), settings(false, None));
    trainer = trainer.with_parameters_in(Precision::Bf16);
    for _ in 0..2 {
        let mut reading = Trainer::new(model(config), settings(false, None));
        let flat = rounded(trainer.model().flat());
        reading.model_mut().load_flat(&flat).unwrap();
        assert_eq!(trainer.logprobs(&batch), reading.logprobs(&batch));
        assert_eq!(trainer.values(&batch), reading.values(&batch));
        trainer.accumulate(&batch, &mut CrossEntropy::mean_over(6));
        assert!(trainer.apply(1.0).applied);
    }
}

/// SEMANTICS 153, 194. What ranks add up in the order of one device has the numbers of that to the bit.
#[test]
fn ranks_that_read_bf16_have_the_numbers_of_one_device_to_the_bit() {
    let config = ModelConfig {
        layers: 4,
        ..models()[0].clone()
    };
    let copies = Sharing { copies: 2, ..BF16 };
    let pipeline = Sharing { stages: 2, ..BF16 };
    let all = [
        copies,
        Sharing {
            zero: ZeroStage::Gradients,
            ..copies
        },
        Sharing {
            shards: Some(1),
            ..copies
        },
        pipeline,
        Sharing {
            zero: ZeroStage::Gradients,
            chunks: 2,
            ..pipeline
        },
        Sharing { copies: 2, ..WHOLE },
        Sharing {
            copies: 2,
            zero: ZeroStage::Optimizer,
            ..WHOLE
        },
        Sharing {
            stages: 2,
            chunks: 2,
            ..WHOLE
        },
    ];
    for optimizer in [Optimizer::default(), Optimizer::Lion(Lion::default())] {
        let settings = TrainConfig {
            optimizer,
            ..settings(false, None)
        };
        let work = Texts::of(&[7, 9], 0..2);
        let of_shard = on_one_device(&config, &settings, &work);
        let whole = in_parts(&config, &settings, &work, &[2], WHOLE);
        for sharing in all {
            // Stages add each pass to what there is, as one rank that has all of its parameters does; others add up sums of
            // passes.
            let one = match (sharing.zero.has_shards(), sharing.stages) {
                (false, 2..) => &whole[0].0,
                _ => &of_shard,
            };
            let dealt = vec![2 / sharing.copies; sharing.copies];
            let ranks = in_parts(&config, &settings, &work, &dealt, sharing);
            let of_copy = sharing.of_copy() * sharing.copies_of_shards();
            let of_copy = match sharing.zero {
                // Moments are with one copy each.
                ZeroStage::Optimizer => &ranks[..],
                _ => &ranks[..of_copy],
            };
            let numbers: [fn(&Trained) -> &[f32]; 2] = [|it| &it.mean, |it| &it.parameters];
            for of in numbers {
                let theirs = together(&config, of_copy, of);
                assert_eq!(bits(of(one)), bits(&theirs), "{sharing:?}");
            }
        }
    }
}

/// SEMANTICS 134, 153. Shards are gathered in half as many bytes, as is said before, and what stays takes two a number.
#[test]
fn half_as_many_bytes_of_shards_are_gathered_and_stay() {
    let config = &models()[0];
    let train = TrainConfig::default();
    for (params, zero) in [
        (Precision::F32, ZeroStage::Parameters),
        (Precision::Bf16, ZeroStage::Parameters),
        (Precision::Bf16, ZeroStage::Gradients),
    ] {
        let sharing = Sharing {
            copies: 3,
            zero,
            params,
            ..Sharing::ALONE
        };
        let threads = Rank::all(3).into_iter().enumerate().map(|(rank, peer)| {
            let (config, train) = (config.clone(), train.clone());
            thread::spawn(move || {
                let place = sharing.shard_place(rank).unwrap();
                let mut model = model(&config).into_shard(place).unwrap();
                let peers = OfCopy::of(peer, 3);
                model.meet(PassGroups {
                    shards: ShardGroups {
                        data: Some(peers.clone()),
                        ..ShardGroups::default()
                    },
                    ..PassGroups::default()
                });
                let told = Footprint::of(&config, &train, sharing, rank).unwrap();
                let mut trainer = Trainer::new(model, train).with_parameters_in(params);
                if zero == ZeroStage::Gradients {
                    trainer = trainer.with_parameters_that_stay();
                }
                let _ = trainer.logprobs(&Texts::of(&[5], 0..1).packed(0));
                let sent = peers.2.lock().unwrap().clone();
                let own = told.parameters / if params == Precision::F32 { 1 } else { 2 };
                let all = told.gathered_of_others + own;
                assert_eq!(
                    4 * sent.iter().sum::<usize>(),
                    all,
                    "{params:?} {zero:?}: {sent:?}"
                );
                let (model, gathered) = trainer.scorer.gathering();
                if zero == ZeroStage::Gradients {
                    assert_eq!(
                        4 * gathered.staying(),
                        2 * model.shard().unwrap().gathered()
                    );
                }
            })
        });
        let threads: Vec<_> = threads.collect();
        threads.into_iter().for_each(|it| it.join().unwrap());
    }
}
