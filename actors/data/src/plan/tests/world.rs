//! Synthetic sources, whose cells follow from a seed, and a way to plan over them.

use odeon_mesh::{CP, DP, Mesh, PP, TP};
use proptest::prelude::*;
use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};

use crate::plan::*;
use crate::sample::{SampleId, SampleMeta};

/// Sources that are all made from a seed.
#[derive(Clone, Debug)]
pub(super) struct World {
    pub(super) seed: u64,
    /// Cells of each source.
    pub(super) cells: Vec<u32>,
    /// The most samples of a cell, and the longest sample.
    pub(super) samples: u32,
    pub(super) length: u32,
}

impl World {
    pub(super) fn shapes(&self) -> Vec<SourceShape> {
        let shape = |(at, cells): (usize, &u32)| SourceShape {
            name: format!("s{at}"),
            cells: *cells,
        };
        self.cells.iter().enumerate().map(shape).collect()
    }

    /// The cell of this name: the first has at least one sample, others may have none.
    pub(super) fn cell(&self, name: CellName) -> CellMeta {
        let place = (u64::from(name.source.0) << 48) ^ (u64::from(name.epoch) << 24);
        let mut random = ChaCha8Rng::seed_from_u64(self.seed ^ place ^ u64::from(name.cell));
        let least = u32::from(name.cell == 0);
        let count = random.random_range(least..=self.samples);
        let sample = |nth| SampleMeta {
            id: SampleId {
                source: name.source,
                epoch: name.epoch,
                cell: name.cell,
                nth,
            },
            // Mostly short, some long.
            tokens: match random.random_range(0..4) {
                0 => random.random_range(1..=self.length),
                _ => random.random_range(1..=self.length.div_ceil(8)),
            },
            patches: (0..random.random_range(0..3)).map(|n| 16 << n).collect(),
            bytes: 1,
        };
        CellMeta::of(name, (0..count).map(sample).collect())
    }

    /// Plans up to `steps` steps; cells are heard in an order that `order` draws, some of them
    /// twice or before they are wanted by the plan.
    pub(super) fn plans(&self, planning: &mut Planning, steps: usize, order: u64) -> Vec<StepPlan> {
        let mut random = ChaCha8Rng::seed_from_u64(order);
        let mut plans = vec![];
        while plans.len() < steps {
            match planning.plan() {
                Ok(plan) => {
                    plans.push(plan);
                    for source in planning.state().sources {
                        let ordered = source.waiting.is_sorted_by_key(|sample| sample.id);
                        assert!(ordered, "{:?}", source.waiting);
                    }
                }
                Err(Waiting::Cell(missing)) => {
                    let wants = planning.wants();
                    assert!(wants.contains(&missing), "{missing:?} is not in {wants:?}");
                    for _ in 0..random.random_range(0..4) {
                        let at = random.random_range(0..wants.len());
                        planning.hear(self.cell(wants[at])).unwrap();
                    }
                    if random.random_bool(0.7) {
                        planning.hear(self.cell(missing)).unwrap();
                    }
                }
                Err(Waiting::Ended { .. }) => break,
                Err(other) => panic!("{other}"),
            }
        }
        plans
    }

    pub(super) fn planning(&self, spec: &PlanSpec, mesh: &Mesh) -> Planning {
        Planning::new(spec.clone(), &self.shapes(), mesh.clone()).unwrap()
    }
}

pub(super) fn worlds() -> impl Strategy<Value = World> {
    let cells = prop::collection::vec(1u32..5, 1..5);
    (any::<u64>(), cells, 1u32..12, 1u32..600).prop_map(|(seed, cells, samples, length)| World {
        seed,
        cells,
        samples,
        length,
    })
}

fn schedules() -> impl Strategy<Value = Schedule> {
    let points = || {
        prop::collection::btree_map(0u64..20, 0.0f64..4.0, 1..4)
            .prop_map(|points| points.into_iter().collect::<Vec<_>>())
    };
    prop_oneof![
        (0.1f64..4.0).prop_map(Schedule::Constant),
        points().prop_map(Schedule::Stages),
        points().prop_map(Schedule::Linear),
    ]
}

/// Specs over the sources of a world, which they all give a weight at some step.
pub(super) fn specs(sources: usize) -> impl Strategy<Value = PlanSpec> {
    let budget = prop_oneof![
        (1u64..3000).prop_map(Budget::Tokens),
        (1u32..40).prop_map(Budget::Samples),
    ];
    let mixed = prop::collection::vec((schedules(), prop::option::of(1u32..4)), sources);
    let unit = prop_oneof![Just(Unit::Tokens), Just(Unit::Samples)];
    let end = prop_oneof![Just(AtEnd::Others), Just(AtEnd::Stop)];
    let lengths = (
        prop::option::of(schedules()),
        prop::bool::ANY,
        prop_oneof![Just(0u32), 1u32..40],
    );
    (budget, mixed, unit, end, lengths).prop_map(|(step, mixed, by, at_end, lengths)| {
        let sources = mixed.into_iter().enumerate().map(|(at, (weight, epochs))| {
            let weight = match weight {
                weight if weight.is_nothing() => Schedule::Constant(1.0),
                weight => weight,
            };
            (format!("s{at}"), MixedSource { weight, epochs })
        });
        let mixture = Mixture {
            by,
            at_end,
            sources: sources.collect(),
        };
        let mut spec = PlanSpec::mix(mixture, step);
        // Weights up to 4, for lengths up to 600.
        spec.curriculum = lengths.0.map(|tokens| Curriculum {
            tokens: tokens.scaled(150.0),
        });
        if lengths.1 {
            spec.contexts = [(100, 2.0), (500, 1.0)]
                .map(|(tokens, share)| ContextSpec { tokens, share })
                .to_vec();
        }
        spec.waiting = lengths.2;
        spec.ahead = Ahead { steps: 2, cells: 3 };
        spec.microbatch.tokens = 500;
        spec
    })
}

pub(super) fn trees() -> impl Strategy<Value = Mesh> {
    (1usize..4, 1usize..7, 1usize..3, 1usize..3).prop_map(|(pipeline, data, context, tensor)| {
        Mesh::new([(PP, pipeline), (DP, data), (CP, context), (TP, tensor)]).unwrap()
    })
}

pub(super) fn methods() -> impl Strategy<Value = Method> {
    prop_oneof![
        Just(Method::None),
        Just(Method::Greedy),
        Just(Method::KarmarkarKarp),
        Just(Method::KarmarkarKarpEqual),
    ]
}

impl Schedule {
    fn scaled(self, by: f64) -> Self {
        let all =
            |points: Vec<(u64, f64)>| points.into_iter().map(|(at, v)| (at, v * by)).collect();
        match self {
            Self::Constant(value) => Self::Constant(value * by),
            Self::Stages(points) => Self::Stages(all(points)),
            Self::Linear(points) => Self::Linear(all(points)),
        }
    }
}
