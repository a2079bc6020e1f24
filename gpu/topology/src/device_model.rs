//! Models of devices: what each has and can do.

use serde::{Deserialize, Serialize};

use crate::cluster::quantity::{QuantityError, gib};

/// The capacities and speeds of a model of devices, eight to a node unless it says otherwise.
///
/// Rates are in one direction. What a file leaves out is that of an H200; its memory it must say.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "ModelEntry", into = "ModelEntry")]
pub struct DeviceModel {
    /// Device memory, in bytes.
    pub memory_bytes: u64,
    /// Of its memory, in bytes a second.
    pub memory_bytes_per_second: f64,
    /// Dense bf16 arithmetic, FLOP/s.
    pub flops: f64,
    /// To and from host memory, in bytes a second.
    pub pcie_bytes_per_second: f64,
    /// To another device of the NVLink domain, in bytes a second.
    pub nvlink_bytes_per_second: f64,
    /// Its share of the network of its node, in bytes a second.
    pub network_bytes_per_second: f64,
    /// Devices in a node.
    pub per_node: u32,
    /// From the call to the first byte of a copy, in nanoseconds.
    pub latency_ns: u64,
    /// Host memory that each context can pin, in bytes.
    pub pinned_bytes: u64,
    /// The time that the memory of a killed process stays held, in milliseconds.
    pub release_ms: u64,
}

impl Default for DeviceModel {
    /// An H200 of 141 GiB with the speeds that copies on it reach, which are below those of its data
    /// sheet ([`DeviceModel::h200`]).
    fn default() -> Self {
        Self {
            memory_bytes: 141 << 30,
            memory_bytes_per_second: 4.3e12,
            pcie_bytes_per_second: 55e9,
            ..Self::h100()
        }
    }
}

/// Data sheets of NVIDIA; memory as drivers show it.
impl DeviceModel {
    /// H100 SXM, 80 GB, eight in a node with 8 x 400 Gbit/s.
    #[must_use]
    pub const fn h100() -> Self {
        Self {
            memory_bytes: 85_500_000_000,
            memory_bytes_per_second: 3.35e12,
            flops: 989e12,
            pcie_bytes_per_second: 64e9,
            nvlink_bytes_per_second: 450e9,
            network_bytes_per_second: 50e9,
            per_node: 8,
            latency_ns: 8_000,
            pinned_bytes: 64 << 30,
            release_ms: 2_000,
        }
    }

    /// H800 SXM: an H100 with 400 GB/s of NVLink, both directions together.
    #[must_use]
    pub const fn h800() -> Self {
        Self {
            nvlink_bytes_per_second: 200e9,
            ..Self::h100()
        }
    }

    /// H200 SXM, 141 GB: an H100 with more and faster memory.
    #[must_use]
    pub const fn h200() -> Self {
        Self {
            memory_bytes: 150_700_000_000,
            memory_bytes_per_second: 4.8e12,
            ..Self::h100()
        }
    }

    /// A100 SXM, 80 GB, eight in a node with 8 x 200 Gbit/s.
    #[must_use]
    pub const fn a100() -> Self {
        Self {
            memory_bytes: 85_900_000_000,
            memory_bytes_per_second: 2.039e12,
            flops: 312e12,
            pcie_bytes_per_second: 32e9,
            nvlink_bytes_per_second: 300e9,
            network_bytes_per_second: 25e9,
            ..Self::h100()
        }
    }

    /// The network of a whole node, in bytes a second.
    #[must_use]
    pub fn node_network_bytes_per_second(&self) -> f64 {
        self.network_bytes_per_second * f64::from(self.per_node)
    }

    /// The first quantity that no device can have, with its value: all but latency and release must be
    /// above zero. `None` where all is well.
    #[must_use]
    pub fn flaw(&self) -> Option<(&'static str, f64)> {
        [
            ("memory_bytes", self.memory_bytes as f64),
            ("memory_bytes_per_second", self.memory_bytes_per_second),
            ("flops", self.flops),
            ("pcie_bytes_per_second", self.pcie_bytes_per_second),
            ("nvlink_bytes_per_second", self.nvlink_bytes_per_second),
            ("network_bytes_per_second", self.network_bytes_per_second),
            ("per_node", f64::from(self.per_node)),
            ("pinned_bytes", self.pinned_bytes as f64),
        ]
        .into_iter()
        .find(|(_, value)| !(value.is_finite() && *value > 0.0))
    }
}

/// A model as a file writes it: its memory in one of two units, and what differs from the default.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct ModelEntry {
    memory_gib: Option<f64>,
    memory_bytes: Option<u64>,
    memory_bytes_per_second: Option<f64>,
    flops: Option<f64>,
    pcie_bytes_per_second: Option<f64>,
    nvlink_bytes_per_second: Option<f64>,
    network_bytes_per_second: Option<f64>,
    per_node: Option<u32>,
    latency_ns: Option<u64>,
    pinned_bytes: Option<u64>,
    release_ms: Option<u64>,
}

/// A model that cannot be meant.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
enum ModelEntryError {
    #[error("the model says no memory: write `memory_gib` or `memory_bytes`")]
    NoMemory,
    #[error("the model says its memory twice: write `memory_gib` or `memory_bytes`, not both")]
    MemoryTwice,
    #[error("memory_gib: {0}")]
    Memory(QuantityError),
    #[error("{0} is {1}: a number above zero is wanted")]
    NotPositive(&'static str, f64),
}

impl TryFrom<ModelEntry> for DeviceModel {
    type Error = ModelEntryError;

    fn try_from(entry: ModelEntry) -> Result<Self, ModelEntryError> {
        let memory_bytes = match (entry.memory_gib, entry.memory_bytes) {
            (None, None) => return Err(ModelEntryError::NoMemory),
            (Some(_), Some(_)) => return Err(ModelEntryError::MemoryTwice),
            (Some(number), None) => gib(number).map_err(ModelEntryError::Memory)?,
            (None, Some(bytes)) => bytes,
        };
        let usual = Self::default();
        let model = Self {
            memory_bytes,
            memory_bytes_per_second: entry
                .memory_bytes_per_second
                .unwrap_or(usual.memory_bytes_per_second),
            flops: entry.flops.unwrap_or(usual.flops),
            pcie_bytes_per_second: entry
                .pcie_bytes_per_second
                .unwrap_or(usual.pcie_bytes_per_second),
            nvlink_bytes_per_second: entry
                .nvlink_bytes_per_second
                .unwrap_or(usual.nvlink_bytes_per_second),
            network_bytes_per_second: entry
                .network_bytes_per_second
                .unwrap_or(usual.network_bytes_per_second),
            per_node: entry.per_node.unwrap_or(usual.per_node),
            latency_ns: entry.latency_ns.unwrap_or(usual.latency_ns),
            pinned_bytes: entry.pinned_bytes.unwrap_or(usual.pinned_bytes),
            release_ms: entry.release_ms.unwrap_or(usual.release_ms),
        };
        match model.flaw() {
            None => Ok(model),
            Some((field, value)) => Err(ModelEntryError::NotPositive(field, value)),
        }
    }
}

impl From<DeviceModel> for ModelEntry {
    fn from(model: DeviceModel) -> Self {
        Self {
            memory_gib: None,
            memory_bytes: Some(model.memory_bytes),
            memory_bytes_per_second: Some(model.memory_bytes_per_second),
            flops: Some(model.flops),
            pcie_bytes_per_second: Some(model.pcie_bytes_per_second),
            nvlink_bytes_per_second: Some(model.nvlink_bytes_per_second),
            network_bytes_per_second: Some(model.network_bytes_per_second),
            per_node: Some(model.per_node),
            latency_ns: Some(model.latency_ns),
            pinned_bytes: Some(model.pinned_bytes),
            release_ms: Some(model.release_ms),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn refused(text: &str, expected: &str) {
        let error = toml::from_str::<DeviceModel>(text).unwrap_err();
        assert_eq!(error.message(), expected);
    }

    #[test]
    fn a_file_says_the_memory_and_what_differs() {
        let model: DeviceModel = toml::from_str("memory_gib = 0.5\nflops = 312e12").unwrap();
        assert_eq!((model.memory_bytes, model.flops), (512 << 20, 312e12));
        assert_eq!(model.per_node, DeviceModel::default().per_node);
    }

    #[test]
    fn a_model_that_cannot_be_is_refused() {
        refused(
            "flops = 1e12",
            "the model says no memory: write `memory_gib` or `memory_bytes`",
        );
        refused(
            "memory_gib = 1\nmemory_bytes = 5",
            "the model says its memory twice: write `memory_gib` or `memory_bytes`, not both",
        );
        refused(
            "memory_gib = -1",
            "memory_gib: -1 is no quantity: give a number of at least 0.001 and at most 1e15, in steps of 0.001",
        );
        refused(
            "memory_bytes = 0",
            "memory_bytes is 0: a number above zero is wanted",
        );
        refused(
            "memory_gib = 1\nflops = nan",
            "flops is NaN: a number above zero is wanted",
        );
    }

    #[test]
    fn a_model_reads_as_it_was_written() {
        for model in [
            DeviceModel::default(),
            DeviceModel::a100(),
            DeviceModel::h800(),
        ] {
            let text = toml::to_string(&model).unwrap();
            assert_eq!(toml::from_str::<DeviceModel>(&text).unwrap(), model);
            let text = serde_json::to_string(&model).unwrap();
            assert_eq!(serde_json::from_str::<DeviceModel>(&text).unwrap(), model);
        }
    }
}
