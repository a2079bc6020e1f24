//! Which models of a run share processes. Pure.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

/// A model of a run, or what works like one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Model {
    /// Generates and trains.
    Policy,
    /// Expects reward.
    Critic,
    /// Expects cost.
    CostCritic,
    /// The policy as it was.
    Reference,
    /// Says what replies are worth.
    Reward,
}

impl Model {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Policy,
        Self::Critic,
        Self::CostCritic,
        Self::Reference,
        Self::Reward,
    ];
}

impl fmt::Display for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Policy => "policy",
            Self::Critic => "critic",
            Self::CostCritic => "cost-critic",
            Self::Reference => "reference",
            Self::Reward => "reward",
        })
    }
}

/// Ways to place the models of a run that people have names for (HybridFlow, arXiv 2409.19256,
/// figure 12).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Arrangement {
    /// All in the same processes, one after the other: DeepSpeed-Chat.
    #[default]
    Colocated,
    /// Policy and reference in some, critics and judges in others: NeMo-Aligner.
    Split,
    /// Each in processes of its own: OpenRLHF.
    Standalone,
}

/// The choice of a placement for a run's models.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Choice {
    /// As is predicted to be fastest.
    Auto,
    /// As said.
    #[serde(untagged)]
    Arranged(Arrangement),
}

/// For each model the pool that it is in, by name, and how many ranks a pool has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    pools: Vec<(Model, String)>,
    ranks: BTreeMap<String, usize>,
}

impl Placement {
    /// Models by the name of their pool; those that are not named have one of their own.
    pub fn new<N: Into<String>>(pools: impl IntoIterator<Item = (Model, N)>) -> Self {
        let pools = pools.into_iter().map(|(model, pool)| (model, pool.into()));
        Self {
            pools: pools.collect(),
            ranks: BTreeMap::new(),
        }
    }

    /// Gives a pool ranks of its own number.
    #[must_use]
    pub fn ranks(mut self, pool: impl Into<String>, ranks: usize) -> Self {
        self.ranks.insert(pool.into(), ranks);
        self
    }

    /// Number of ranks of a pool, where that was said.
    #[must_use]
    pub fn ranks_of(&self, pool: &str) -> Option<usize> {
        self.ranks.get(pool).copied()
    }

    /// The name of a model's pool.
    #[must_use]
    pub fn pool_of(&self, model: Model) -> String {
        let named = self.pools.iter().find(|(named, _)| *named == model);
        named.map_or_else(|| model.to_string(), |(_, pool)| pool.clone())
    }
}

impl From<Arrangement> for Placement {
    fn from(arrangement: Arrangement) -> Self {
        let pool = |model| match (arrangement, model) {
            (Arrangement::Colocated, _) => "models".to_owned(),
            (Arrangement::Split, Model::Policy | Model::Reference) => "policy".to_owned(),
            (Arrangement::Split, _) => "judges".to_owned(),
            (Arrangement::Standalone, model) => model.to_string(),
        };
        Self::new(Model::ALL.map(|model| (model, pool(model))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrangements_are_pools() {
        let pools = |arrangement| Model::ALL.map(|it| Placement::from(arrangement).pool_of(it));
        assert_eq!(pools(Arrangement::Colocated), ["models"; 5]);
        let split = ["policy", "judges", "judges", "policy", "judges"];
        assert_eq!(pools(Arrangement::Split), split);
        let own = ["policy", "critic", "cost-critic", "reference", "reward"];
        assert_eq!(pools(Arrangement::Standalone), own);
    }
}
