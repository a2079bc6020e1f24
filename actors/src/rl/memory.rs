//! The memory of ranks that share the models of a run, before it starts.

use odeon::Failure;
use odeon_algorithms::model::{ModelConfig, PartError};
use odeon_algorithms::train::{Footprint, MicroBatches, Sharing, TrainConfig};

use super::run::RunPlan;
use crate::engine::EngineSpec;
use crate::engine::compute::{ComputeSpec, largest_micro_batches};

/// The memory of the ranks of a role.
#[derive(Clone, Debug)]
pub struct RoleMemory {
    /// The role.
    pub role: &'static str,
    /// That of each rank. Activations are those of rows of the longest sequences that there may be; of a reference,
    /// which keeps none for a way back, they are an upper bound.
    pub ranks: Vec<Footprint>,
}

impl RunPlan {
    /// The memory of each rank of each role whose model is shared, the trainer's first; none where a role is one
    /// process, or trains adapters alone.
    ///
    /// # Errors
    /// The model cannot be read, or not be shared so.
    pub fn memory(&self) -> Result<Vec<RoleMemory>, Failure> {
        let spec = match &self.trainer_engine {
            EngineSpec::Compute(spec) if self.sharing.ranks() > 1 && spec.lora_rank == 0 => spec,
            _ => return Ok(vec![]),
        };
        let policy = spec.source.config()?;
        let micro = self.micro_batches(spec);
        let with_head = ModelConfig {
            value_head: true,
            ..policy.clone()
        };
        let critic = spec.critic_train();
        let roles = [
            ("trainer", true, &policy, spec.policy_train()),
            (
                "critic",
                self.train.baseline.has_critic(),
                &with_head,
                critic.clone(),
            ),
            (
                "cost-critic",
                self.train.price.is_some(),
                &with_head,
                critic.clone(),
            ),
            ("reward-model", self.learned.is_some(), &with_head, critic),
            ("reference", self.reference, &policy, TrainConfig::default()),
        ];
        let roles = roles.into_iter().filter(|(_, is_there, ..)| *is_there);
        let all = roles.map(|(role, _, config, train)| {
            let of = |rank| -> Result<Footprint, PartError> {
                let own = Footprint::of(config, &train, self.sharing, rank)?;
                let known = micro.activations(config, &train, self.sharing, rank)?;
                let mut own = own.with_activations(known);
                if role == "reference" {
                    // It never learns.
                    (own.gradients, own.optimizer) = (0, 0);
                }
                Ok(own)
            };
            let ranks: Result<Vec<_>, _> = (0..self.sharing.ranks()).map(of).collect();
            let refused = |error| Failure::error(format!("the ranks of {role}: {error}")).fatal();
            Ok(RoleMemory {
                role,
                ranks: ranks.map_err(refused)?,
            })
        });
        all.collect()
    }

    /// The memory of each rank of a policy that ranks share and generate with, beside that in which they train: the whole
    /// policy, and what it keeps of the tokens of its slots, as activations.
    ///
    /// # Errors
    /// The model cannot be read.
    pub fn generation_memory(&self) -> Result<RoleMemory, Failure> {
        let mut ranks = vec![];
        if let EngineSpec::Compute(spec) = &self.trainer_engine {
            let config = spec.source.config()?;
            let whole = Footprint::of(&config, &TrainConfig::default(), Sharing::ALONE, 0);
            let mut whole = whole.map_err(Failure::error)?;
            let of_token = 2 * config.layers * config.kv_heads * config.head_dim;
            (whole.gradients, whole.optimizer) = (0, 0);
            whole.activations = Some(of_token * spec.context * spec.slots * size_of::<f32>());
            ranks = vec![whole; self.sharing.ranks()];
        }
        Ok(RoleMemory {
            role: "generation",
            ranks,
        })
    }

    /// The micro-batches of a rank where all sequences are as long as they may be.
    fn micro_batches(&self, spec: &ComputeSpec) -> MicroBatches {
        let ledger = &self.store.ledger;
        let sequences = ledger.groups_per_batch * ledger.group_size as usize;
        let ranks = self.sharing.copies * self.sharing.experts;
        let own = sequences.div_ceil(ranks * spec.minibatches.max(1)).max(1);
        let (tokens, count) = largest_micro_batches(own, spec.context);
        MicroBatches {
            tokens,
            sequence: spec.context,
            count,
        }
    }
}
