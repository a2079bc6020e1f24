//! Strategies to spread a model over devices.

use odeon_mesh::{DP, Mesh, PP, TP};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Degrees of parallelism: one model over `data * tensor * pipeline` devices. They are what a search
/// chooses; where each rank stands is said by their [mesh](Self::mesh).
///
/// Shown as `pipeline-tensor-data`: `1-8-2` are two replicas of eight devices each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Degrees {
    /// Replicas, each with its part of the batch.
    pub data: u32,
    /// Devices that share each layer; all in one node.
    pub tensor: u32,
    /// Groups of layers, one after the other.
    pub pipeline: u32,
}

impl Degrees {
    /// Number of devices.
    #[must_use]
    pub fn devices(self) -> u32 {
        self.data * self.shards()
    }

    /// Devices of one replica, each with its share of the parameters.
    #[must_use]
    pub fn shards(self) -> u32 {
        self.tensor * self.pipeline
    }

    /// The mesh of these sizes: `{dp, pp, tp}`.
    ///
    /// # Panics
    /// When one of them is 0, or there are more ranks than can be numbered.
    #[must_use]
    pub fn mesh(self) -> Mesh {
        let dims = [(DP, self.data), (PP, self.pipeline), (TP, self.tensor)];
        let mesh = Mesh::new(dims.map(|(name, size)| (name, size as usize)));
        mesh.expect("a strategy has devices, and few enough to be numbered")
    }

    /// All ways to spread the model over the same devices while it generates, fewest shards first:
    /// each group splits into equal ones, so that a device keeps the shard that it has and gathers
    /// only from neighbours.
    pub(super) fn while_generating(self) -> Vec<Self> {
        let mut found: Vec<Self> = divisors(self.tensor)
            .flat_map(|tensor| {
                divisors(self.pipeline).map(move |pipeline| Self {
                    data: self.devices() / (tensor * pipeline),
                    tensor,
                    pipeline,
                })
            })
            .collect();
        found.sort_by_key(|parallel| (parallel.shards(), parallel.pipeline));
        found
    }
}

impl fmt::Display for Degrees {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = format!("{}-{}-{}", self.pipeline, self.tensor, self.data);
        f.pad(&text)
    }
}

/// The numbers that divide `number`, least first.
pub(super) fn divisors(number: u32) -> impl Iterator<Item = u32> {
    (1..=number).filter(move |&divisor| number.is_multiple_of(divisor))
}
