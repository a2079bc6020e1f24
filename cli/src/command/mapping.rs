//! `models = "auto"`: which models of a recipe share which ranks, as is predicted to be fastest.
//!
//! ```text
//!  Recipe, Shape ─> Workload (models, stages) ─┐
//!  card or processor ─> Pool ─────────────────┼─ odeon_placement::mapping::map ─> Mapping ─> Placement
//!  Replicas (prices) ─────────────────────────┘
//! ```
//!
//! A model lies whole on each of its ranks, so the search is over who shares ranks and how many each
//! set gets.

use anyhow::Result;
use odeon_actors::hybrid::{self, Choice, Placement};
use odeon_actors::recipe::{Recipe, Source};
use odeon_actors::simulate::CardName;
use odeon_placement::mapping::{
    Analytic, Batch, CostModel, Degrees, Generation, Mapping, MappingError, Model, Pool, Role, Run,
    Task, Workload, map,
};
use odeon_topology::{DeviceModel, Link, LinkKind};

use super::model::Shape;

/// The mapping of a recipe that wants one.
pub(crate) fn of(
    text: &Source,
    recipe: &Recipe,
    shape: impl FnOnce() -> Result<Shape>,
) -> Result<Option<Mapping>> {
    if recipe.placement.models != Some(Choice::Auto) {
        return Ok(None);
    }
    let machine = rustix::system::sysinfo();
    let memory = machine.totalram as u64 * u64::from(machine.mem_unit);
    let found = find(recipe, &shape()?, memory);
    let found = found.map_err(|error| text.error("placement", "models", &error.to_string()))?;
    Ok(Some(found))
}

/// Where models are by a mapping. Replies are judged where they are made.
pub(crate) fn placement(mapping: &Mapping) -> Placement {
    let mut pools = vec![];
    let mut ranks = vec![];
    for set in &mapping.sets {
        let names: Vec<&str> = set.models.iter().map(|it| it.model.as_str()).collect();
        let pool = names.join("+");
        for model in hybrid::Model::ALL {
            let with_policy =
                model == hybrid::Model::Reward && names.contains(&POLICY.to_string().as_str());
            if with_policy || names.contains(&model.to_string().as_str()) {
                pools.push((model, pool.clone()));
            }
        }
        ranks.push((pool, set.devices as usize));
    }
    let all = Placement::new(pools);
    ranks
        .into_iter()
        .fold(all, |all, (pool, ranks)| all.ranks(pool, ranks))
}

const POLICY: hybrid::Model = hybrid::Model::Policy;

/// The fastest of all; `memory` is what processors share, bytes.
fn find(recipe: &Recipe, shape: &Shape, memory: u64) -> Result<Mapping, MappingError> {
    map(
        &workload(recipe, shape),
        &[pool(recipe, memory)],
        &Replicas(Analytic::default()),
    )
}

/// The work of a step: replies, then all that is asked of them, then updates.
fn workload(recipe: &Recipe, shape: &Shape) -> Workload {
    let rl = &recipe.rl;
    let response = rl.response_max as u64;
    let prompt = (shape.context as u64).saturating_sub(response).max(1);
    let sequences = rl.groups as u64 * u64::from(rl.group_size);
    let batch = Batch::new(sequences, prompt, response);
    let passes = Batch::new(sequences * rl.epochs as u64, prompt, response);
    let updates = u32::try_from(rl.epochs * rl.minibatches).unwrap_or(u32::MAX);

    let critics = [
        (hybrid::Model::Critic, rl.baseline().has_critic()),
        (hybrid::Model::CostCritic, recipe.cost.is_some()),
    ];
    let critics = critics.into_iter().filter(|&(_, is)| is);
    let critics: Vec<String> = critics.map(|(model, _)| model.to_string()).collect();
    let reference = (rl.kl > 0.0).then(|| hybrid::Model::Reference.to_string());

    let all = [POLICY.to_string()].into_iter();
    let all = all.chain(critics.clone()).chain(reference.clone());
    let forward = critics.iter().chain(&reference);
    let train = [POLICY.to_string()].into_iter().chain(critics.clone());
    Workload::new(all.map(|name| shape.named(name)))
        .stage("generate", [Task::generate(POLICY.to_string(), batch)])
        .stage("prepare", forward.map(|name| Task::forward(name, batch)))
        .stage(
            "learn",
            train.map(|name| Task::train(name, passes, updates)),
        )
}

impl Shape {
    fn named(&self, name: String) -> Model {
        let small = |value: usize| u32::try_from(value).unwrap_or(u32::MAX);
        Model::new(
            name,
            self.parameters,
            small(self.layers),
            small(self.hidden),
        )
        .kv_bytes_per_token(self.cache_per_token * NUMBER)
    }
}

/// The pool of the ranks: their devices and the links between them.
fn pool(recipe: &Recipe, memory: u64) -> Pool {
    let placement = &recipe.placement;
    let ranks = u32::try_from(placement.ranks).unwrap_or(u32::MAX);
    let said = (placement.device_memory_gib > 0).then_some(placement.device_memory_gib << 30);
    match placement.card.map(CardName::card) {
        Some(card) => {
            let memory_bytes = said.unwrap_or(card.device.memory_bytes);
            let device = DeviceModel {
                memory_bytes,
                ..card.device
            };
            Pool::new(card.name, device, ranks)
        }
        None => {
            let memory = said.unwrap_or_else(|| memory / u64::from(ranks.max(1)));
            let threads = recipe.processes.trainer_threads as f64;
            let device = DeviceModel {
                flops: threads * CORE_FLOPS,
                memory_bytes: memory.max(1),
                memory_bytes_per_second: CORE_BANDWIDTH,
                per_node: ranks,
                ..DeviceModel::default()
            };
            let shared = Link::new(LinkKind::Memory, SHARED_MEMORY);
            Pool::new("processor", device, ranks).links(shared, shared)
        }
    }
}

/// f32 products of a core with AVX2 and FMA at 3 GHz, FLOP/s.
const CORE_FLOPS: f64 = 96e9;

/// Bandwidth of one core to main memory, B/s.
const CORE_BANDWIDTH: f64 = 10e9;

/// Bandwidth between ranks on one machine, B/s.
const SHARED_MEMORY: f64 = 2e9;

/// Bytes of an f32.
const NUMBER: u64 = 4;

/// [`Analytic`] for models that lie whole on each rank, in f32.
struct Replicas(Analytic);

/// More than any rank has.
const NEVER: u64 = 1 << 50;

impl CostModel for Replicas {
    fn usable_bytes(&self, device: &DeviceModel) -> u64 {
        self.0.usable_bytes(device)
    }

    fn resident_bytes(&self, model: &Model, role: Role, parallel: Degrees) -> u64 {
        if parallel.shards() > 1 {
            return NEVER;
        }
        // Trained: with gradients and two moments.
        let copies = match role {
            Role::Trained => 4,
            Role::Frozen => 1,
        };
        model.parameters.saturating_mul(copies * NUMBER).min(NEVER)
    }

    fn seconds(&self, run: &Run<'_>) -> f64 {
        self.0.seconds(run)
    }

    fn generation_bytes(&self, run: &Run<'_>, resident: Degrees) -> u64 {
        self.0.generation_bytes(run, resident)
    }

    fn generation(&self, run: &Run<'_>, resident: Degrees, free_bytes: u64) -> Generation {
        self.0.generation(run, resident, free_bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// A model of a billion parameters.
    const SHAPE: Shape = Shape {
        hidden: 2048,
        context: 2048,
        layers: 22,
        parameters: 1_000_000_000,
        cache_per_token: 2 * 22 * 2048,
    };

    fn recipe(placement: &str) -> Recipe {
        let text = format!(
            "[run]\nname = \"r\"\n[model]\n[task.sums]\n[rl]\nalgorithm = \"ppo\"\nsteps = 3\nlr = 1e-3\n\
             groups = 32\ngroup_size = 8\nstaleness_max = 0\nresponse_max = 4\nkl = 0.01\n\
             [placement]\nmodels = \"auto\"\n{placement}\n"
        );
        Recipe::parse(Path::new("r.toml"), &text).unwrap()
    }

    #[test]
    fn each_model_has_one_place_and_no_rank_is_given_twice() {
        for ranks in [1, 2, 3, 5, 8, 16, 24] {
            let recipe = recipe(&format!("card = \"h100\"\nranks = {ranks}"));
            let mapping = find(&recipe, &SHAPE, 0).unwrap();
            let given: u32 = mapping.sets.iter().map(|set| set.devices).sum();
            assert!(given <= ranks, "{mapping}");
            let placement = placement(&mapping);
            for model in ["policy", "critic", "reference"] {
                let mesh = &mapping.of(model).unwrap().mesh;
                assert_eq!(mesh.len(), mesh.size("dp"), "{mapping}");
                let set = mapping.set_of(model).unwrap();
                let of = hybrid::Model::ALL.into_iter();
                let of = of.filter(|it| it.to_string() == model);
                for it in of {
                    let pool = placement.pool_of(it);
                    assert_eq!(placement.ranks_of(&pool), Some(set.devices as usize));
                }
            }
            let judged = placement.pool_of(hybrid::Model::Reward);
            assert_eq!(judged, placement.pool_of(hybrid::Model::Policy));
        }
    }

    #[test]
    fn models_part_where_memory_does_not_hold_them_together() {
        let roomy = find(&recipe("card = \"h100\"\nranks = 2"), &SHAPE, 0).unwrap();
        let both = roomy.sets.iter().any(|set| set.models.len() > 1);
        assert!(both, "three models on two ranks: {roomy}");
        // Policy and critic take 16 GB each, and the policy's cache comes on top.
        let tight = recipe("card = \"h100\"\nranks = 2\ndevice_memory_gib = 24");
        let tight = find(&tight, &SHAPE, 0).unwrap();
        let apart = tight.set_of("policy").unwrap() != tight.set_of("critic").unwrap();
        assert!(apart, "{tight}");
        let none = recipe("card = \"h100\"\nranks = 8\ndevice_memory_gib = 12");
        let error = find(&none, &SHAPE, 0).unwrap_err();
        assert!(matches!(error, MappingError::NoFit { .. }), "{error}");
    }

    #[test]
    fn processors_share_the_memory_of_their_machine() {
        let recipe = recipe("ranks = 4");
        let mapping = find(&recipe, &SHAPE, 400 << 30).unwrap();
        assert_eq!(mapping.sets[0].pool, "processor");
        assert_eq!(mapping.sets[0].usable_bytes, (90u64 << 30));
        assert!(find(&recipe, &SHAPE, 4 << 30).is_err());
    }
}
