//! Tests of ranks that have some of the layers each.

use std::collections::HashMap;
use std::sync::Condvar;

use super::*;
use crate::model::{StageLayers, StageLetter, StageLinks};
use crate::train::{PipelineKind, PipelineShape, StagePass};

/// Letters by the copy and the rank in it that the pipeline is of.
type Letters = HashMap<(usize, StageLetter), Vec<f32>>;

/// The letters of all pipelines of a run.
#[derive(Clone, Default)]
pub(super) struct Office(Arc<(Mutex<Letters>, Condvar)>);

impl Office {
    /// As a rank sees it.
    pub(super) fn of(&self, sharing: Sharing, rank: usize) -> Arc<dyn StageLinks> {
        let mut place = at(sharing, rank);
        place[3] = 0;
        let pipeline = place.into_iter().fold(0, |key, at| key * 100 + at);
        Arc::new(Links {
            pipeline,
            office: self.clone(),
        })
    }
}

struct Links {
    pipeline: usize,
    office: Office,
}

impl std::fmt::Debug for Links {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Links").field(&self.pipeline).finish()
    }
}

impl StageLinks for Links {
    fn send(&self, letter: StageLetter, numbers: Vec<f32>) {
        let (letters, arrived) = &*self.office.0;
        let before = letters
            .lock()
            .unwrap()
            .insert((self.pipeline, letter), numbers);
        assert!(before.is_none(), "each letter is sent once a step");
        arrived.notify_all();
    }

    fn receive(&self, letter: StageLetter, len: usize) -> Vec<f32> {
        let (letters, arrived) = &*self.office.0;
        let mut letters = letters.lock().unwrap();
        loop {
            if let Some(numbers) = letters.remove(&(self.pipeline, letter)) {
                assert_eq!(numbers.len(), len, "{letter:?}");
                return numbers;
            }
            letters = arrived.wait(letters).unwrap();
        }
    }
}

/// For the first and the last rank of each pipeline their places, where both have the embedding.
pub(super) fn tied(config: &ModelConfig, sharing: Sharing) -> Vec<Option<Rank>> {
    let mut all: Vec<Option<Rank>> = (0..sharing.ranks()).map(|_| None).collect();
    if !config.tied_head || sharing.stages == 1 {
        return all;
    }
    let within = sharing.context * sharing.tensor;
    for first in (0..sharing.ranks()).filter(|rank| sharing.place(*rank).stage.is_first()) {
        let last = first + (sharing.stages - 1) * within;
        for (own, rank) in Rank::all(2).into_iter().zip([first, last]) {
            all[rank] = Some(own);
        }
    }
    all
}

/// The pipeline of a rank.
pub(super) fn shape(config: &ModelConfig, sharing: Sharing, rank: usize) -> Option<PipelineShape> {
    let place = sharing.place(rank).stage;
    (sharing.stages > 1).then_some(PipelineShape {
        place,
        kind: sharing.schedule,
        has_tied: config.tied_head && (place.is_first() || place.is_last()),
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 30, failure_persistence: None, ..ProptestConfig::default() })]

    /// SEMANTICS 138, 140. Ranks with some of the layers each, in every order of passes, with heads of their own and tied
    /// ones, alone and in every mixture.
    #[test]
    fn ranks_with_stages_train_a_model_as_one_device_does(
        config in prop::sample::select(models_of_mixtures()),
        ([copies, experts, context, tensor], [stages, chunks], zero) in prop::sample::select(pipelined_mixtures()),
        schedule in prop::sample::select(PipelineKind::ALL.to_vec()),
        lengths in prop::collection::vec(2usize..10, 6),
        clip in prop::option::of(Just(0.05f32)),
        lion in any::<bool>(),
        recompute in prop::sample::select(recomputes()),
        seed in any::<prop::sample::Index>(),
        dropout in shares_that_are_dropped(),
        is_told in any::<bool>(),
    ) {
        let of_experts = config.block.experts().map_or(1, |_| experts);
        let chunks = if schedule.is_interleaved() { chunks } else { 1 };
        // SEMANTICS 148. The last stage has two where that is told, and else the first.
        let told: Vec<usize> = (1..=stages * chunks).map(|stage| 1 + stage / (stages * chunks)).collect();
        let layers = StageLayers::new(&told).filter(|_| is_told);
        // One more than stages: they are not of one length.
        let config = ModelConfig { layers: stages * chunks + 1, ..config };
        let sharing = Sharing {
            copies,
            experts: of_experts,
            context,
            tensor,
            stages,
            chunks,
            layers,
            schedule,
            zero,
            ..Sharing::ALONE
        };
        let mut work = Texts::of(&lengths, 0..6);
        work.dropout = dropout;
        let buckets = copies * of_experts;
        let mut dealt: Vec<usize> = (0..buckets).map(|bucket| usize::from(bucket < 4)).collect();
        dealt[seed.index(buckets)] += 6 - buckets.min(4);
        let settings = TrainConfig { recompute, ..settings(lion, clip) };
        are_as_one_device(&config, &settings, &work, &dealt, sharing)?;
    }

    /// SEMANTICS 142. In every mixture passes that go back in two have the numbers of passes that go back in one.
    #[test]
    fn gradients_of_weights_that_come_later_are_the_same_to_the_bit(
        config in prop::sample::select(models_of_mixtures()),
        ([copies, experts, context, tensor], [stages, _], zero) in prop::sample::select(pipelined_mixtures()),
        ring in any::<bool>(),
        divided in prop::sample::select(vec![PipelineKind::ZeroBubbleH1, PipelineKind::ZeroBubble]),
        recompute in prop::sample::select(recomputes()),
        dropout in shares_that_are_dropped(),
    ) {
        let experts = config.block.experts().map_or(1, |_| experts);
        let config = ModelConfig { layers: stages + 1, ..config };
        let context_kind = if ring { ContextKind::Ring } else { ContextKind::Ulysses };
        let of = |schedule| {
            let sharing = Sharing {
                copies,
                experts,
                context,
                context_kind,
                tensor,
                stages,
                schedule,
                zero,
                ..Sharing::ALONE
            };
            let buckets = copies * experts;
            let mut work = Texts::of(&[5, 3, 8, 2, 7, 4, 9, 6, 3, 5], 0..10);
            work.dropout = dropout;
            let mut dealt = vec![10 / buckets; buckets];
            dealt[0] += 10 % buckets;
            let settings = TrainConfig { recompute, ..settings(false, Some(0.05)) };
            in_parts(&config, &settings, &work, &dealt, sharing)
        };
        let (one, two) = (of(PipelineKind::OneForwardOneBackward), of(divided));
        for ((one, _), (two, _)) in one.iter().zip(&two) {
            prop_assert_eq!(&one.losses, &two.losses);
            for (one, two) in [
                (&one.norms, &two.norms),
                (&one.mean, &two.mean),
                (&one.parameters, &two.parameters),
            ] {
                let bits = |numbers: &[f32]| numbers.iter().map(|it| it.to_bits()).collect::<Vec<_>>();
                prop_assert_eq!(bits(one), bits(two));
            }
        }
    }
}

/// Copies, expert, context and tensor ranks; pipeline ranks and the stages of each; and the stage of ZeRO.
fn pipelined_mixtures() -> Vec<([usize; 4], [usize; 2], ZeroStage)> {
    let (off, all) = (ZeroStage::Off, ZeroStage::Parameters);
    vec![
        ([1, 1, 1, 1], [2, 1], off),
        ([4, 1, 1, 1], [2, 1], off),
        ([1, 1, 1, 1], [3, 1], off),
        ([1, 1, 1, 1], [2, 3], off),
        ([2, 1, 1, 1], [4, 2], off),
        ([1, 1, 1, 2], [2, 2], off),
        ([2, 1, 1, 2], [2, 1], off),
        ([2, 1, 1, 2], [2, 1], all),
        ([2, 1, 1, 2], [2, 1], ZeroStage::Gradients),
        ([1, 2, 2, 1], [2, 1], off),
        ([2, 1, 1, 1], [2, 2], all),
        ([1, 2, 2, 1], [2, 1], all),
    ]
}

#[test]
fn stages_hold_their_layers_and_no_more() {
    let config = ModelConfig {
        layers: 5,
        ..models()[0].clone()
    };
    let whole = model(&config).parameters();
    let sharing = Sharing {
        stages: 2,
        chunks: 2,
        ..Sharing::ALONE
    };
    let of = |rank| model(&config).into_part(sharing.place(rank)).unwrap();
    let parts = [of(0), of(1)];
    assert_eq!(
        parts.iter().map(Model::parameters).sum::<usize>(),
        whole,
        "nothing is on both, with a head of its own"
    );
    let layers = parts.map(|part| part.config().own_layers());
    assert_eq!(layers, [vec![0..2, 3..4], vec![2..3, 4..5]]);
    let many = Sharing {
        stages: 3,
        chunks: 2,
        ..Sharing::ALONE
    };
    let refused = config.part(many.place(0)).unwrap_err().to_string();
    assert_eq!(refused, "6 stages are more than the 5 layers");
    let told = |layers: &[usize]| Sharing {
        layers: StageLayers::new(layers),
        ..sharing
    };
    let of = |rank| {
        model(&config)
            .into_part(told(&[1, 2, 1, 1]).place(rank))
            .unwrap()
    };
    let layers = [of(0), of(1)].map(|part| part.config().own_layers());
    assert_eq!(layers, [vec![0..1, 3..4], vec![1..3, 4..5]]);
    for wrong in [&[2, 1, 1, 2][..], &[2, 2, 1], &[0, 3, 1, 1]] {
        let refused = config.part(told(wrong).place(0)).unwrap_err().to_string();
        assert!(refused.contains("cannot be made of 5 layers"), "{refused}");
    }
    assert_eq!(StageLayers::new(&[1; 65]), None);
    assert_eq!(StageLayers::new(&[256]), None);
    let told = StageLayers::new(&[3, 1]).unwrap();
    assert_eq!(serde_json::from_str::<StageLayers>("[3,1]").unwrap(), told);
    assert_eq!(serde_json::to_string(&told).unwrap(), "[3,1]");
}

#[test]
fn a_plan_of_a_pipeline_rank_has_the_passes_of_its_schedule() {
    let sharing = Sharing {
        stages: 2,
        ..Sharing::ALONE
    };
    let of = |rank: usize, learns| {
        plan(&StepShape {
            micro_batches: 3,
            pipeline: shape(&models()[1], sharing, rank),
            learns,
            sums_loss: true,
            ..StepShape::default()
        })
    };
    let pass = |micro| StagePass { micro, chunk: 0 };
    let (forward, backward) = (
        |micro| StageForward(pass(micro)),
        |micro| StageBackward(pass(micro)),
    );
    assert_eq!(
        of(0, true),
        [
            forward(0),
            forward(1),
            backward(0),
            forward(2),
            backward(1),
            backward(2),
            SumTied,
            SumSquares,
            Apply,
            SumLoss
        ]
    );
    assert_eq!(
        of(1, true)[..6],
        [
            forward(0),
            backward(0),
            forward(1),
            backward(1),
            forward(2),
            backward(2)
        ]
    );
    let divided = Sharing {
        schedule: PipelineKind::ZeroBubbleH1,
        ..sharing
    };
    let of_divided = plan(&StepShape {
        micro_batches: 3,
        pipeline: shape(&models()[1], divided, 1),
        learns: true,
        ..StepShape::default()
    });
    let input = |micro| StageBackwardInput(pass(micro));
    let weight = |micro| StageBackwardWeight(pass(micro));
    assert_eq!(
        of_divided[..9],
        [
            forward(0),
            input(0),
            forward(1),
            input(1),
            weight(0),
            forward(2),
            input(2),
            weight(1),
            weight(2)
        ]
    );
    let rates = (0..3).map(|micro| StageRate(pass(micro)));
    let rates: Vec<_> = rates.chain([SumLoss]).collect();
    assert_eq!(of(0, false), rates);
}
