//! Named quantities in fixed point.

use std::{collections::BTreeMap, fmt};

use serde::{Deserialize, Serialize};

/// What a node has and an actor needs. Written as its name wherever it is serialised.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
#[non_exhaustive]
pub enum Resource {
    /// Whole devices.
    Gpu,
    /// Device memory in bytes, over all devices of a node.
    GpuMemory,
    /// Processor time, in thousandths of a core.
    Cpu,
    /// Main memory in bytes.
    Memory,
    /// Anything else a node declares (licences, network slots), in thousandths.
    Custom(String),
}

impl Resource {
    fn amount(&self, quantity: u64) -> Amount<'_> {
        Amount {
            resource: self,
            quantity,
        }
    }

    /// The quantity in the unit that people use, without the name: `1.5`, `8 GiB`.
    pub(crate) fn quantity(&self, quantity: u64) -> impl fmt::Display {
        fmt::from_fn(move |f| match self {
            Self::Gpu => write!(f, "{quantity}"),
            Self::GpuMemory | Self::Memory => write_bytes(f, quantity),
            Self::Cpu | Self::Custom(_) => write!(f, "{}", quantity as f64 / 1000.0),
        })
    }
}

impl From<String> for Resource {
    fn from(name: String) -> Self {
        match name.as_str() {
            "gpu" => Self::Gpu,
            "gpu_memory" => Self::GpuMemory,
            "cpu" => Self::Cpu,
            "memory" => Self::Memory,
            _ => Self::Custom(name),
        }
    }
}

impl From<Resource> for String {
    fn from(resource: Resource) -> Self {
        match resource {
            Resource::Custom(name) => name,
            resource => resource.to_string(),
        }
    }
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Gpu => "gpu",
            Self::GpuMemory => "gpu_memory",
            Self::Cpu => "cpu",
            Self::Memory => "memory",
            Self::Custom(name) => name,
        })
    }
}

/// Quantities by resource; what is not named is zero. Sums saturate.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Resources {
    quantities: BTreeMap<Resource, u64>,
}

impl Resources {
    /// Nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets processor time, in thousandths of a core.
    #[must_use]
    pub fn cpu_milli(self, milli: u64) -> Self {
        self.with(Resource::Cpu, milli)
    }

    /// Sets main memory, in bytes.
    #[must_use]
    pub fn memory_bytes(self, bytes: u64) -> Self {
        self.with(Resource::Memory, bytes)
    }

    /// Sets whole devices.
    #[must_use]
    pub fn gpus(self, count: u64) -> Self {
        self.with(Resource::Gpu, count)
    }

    /// Sets device memory, in bytes over all devices of a node.
    #[must_use]
    pub fn gpu_memory_bytes(self, bytes: u64) -> Self {
        self.with(Resource::GpuMemory, bytes)
    }

    /// Sets a resource of the cluster's own, in thousandths.
    #[must_use]
    pub fn custom_milli(self, name: impl Into<String>, milli: u64) -> Self {
        self.with(name.into().into(), milli)
    }

    /// Sets one quantity.
    #[must_use]
    pub fn with(mut self, resource: Resource, quantity: u64) -> Self {
        self.quantities.insert(resource, quantity);
        self
    }

    /// One quantity.
    #[must_use]
    pub fn get(&self, resource: &Resource) -> u64 {
        self.quantities.get(resource).copied().unwrap_or(0)
    }

    /// Quantities above zero, scarcest kind first (devices before cores before memory).
    pub fn iter(&self) -> impl Iterator<Item = (&Resource, u64)> {
        self.quantities
            .iter()
            .map(|(resource, &q)| (resource, q))
            .filter(|(_, q)| *q > 0)
    }

    /// Whether nothing is asked for or left.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.iter().next().is_none()
    }

    /// Adds `other`.
    pub fn add(&mut self, other: &Self) {
        for (resource, quantity) in other.iter() {
            let sum = self.quantities.entry(resource.clone()).or_default();
            *sum = sum.saturating_add(quantity);
        }
    }

    /// What is left after `other` is taken; never below zero.
    #[must_use]
    pub fn less(&self, other: &Self) -> Self {
        let left = |(resource, quantity): (&Resource, u64)| {
            (
                resource.clone(),
                quantity.saturating_sub(other.get(resource)),
            )
        };
        Self {
            quantities: self.iter().map(left).collect(),
        }
    }

    /// How many times `bundle` fits, and which resource runs out first; `None` for an empty bundle,
    /// which fits any number of times.
    pub(crate) fn holds<'b>(&self, bundle: &'b Self) -> Option<(u64, &'b Resource)> {
        bundle
            .iter()
            .map(|(resource, asked)| (self.get(resource) / asked, resource))
            .min_by_key(|(times, _)| *times)
    }
}

impl fmt::Display for Resources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return f.write_str("no resources");
        }
        for (i, (resource, quantity)) in self.iter().enumerate() {
            write!(
                f,
                "{}{}",
                if i > 0 { " + " } else { "" },
                resource.amount(quantity)
            )?;
        }
        Ok(())
    }
}

struct Amount<'r> {
    resource: &'r Resource,
    quantity: u64,
}

impl fmt::Display for Amount<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} {}",
            self.resource.quantity(self.quantity),
            self.resource
        )
    }
}

fn write_bytes(f: &mut fmt::Formatter<'_>, bytes: u64) -> fmt::Result {
    const UNITS: [(u64, &str); 3] = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    match UNITS.iter().find(|(size, _)| bytes >= *size) {
        // Two decimals at most, and none where they are zero.
        Some((size, unit)) => {
            write!(
                f,
                "{} {unit}",
                (bytes as f64 / *size as f64 * 100.0).round() / 100.0
            )
        }
        None => write!(f, "{bytes} bytes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_read_in_the_units_that_people_use() {
        let resources = Resources::new()
            .memory_bytes(3 << 29)
            .cpu_milli(1_500)
            .gpus(2)
            .gpu_memory_bytes(80 << 30)
            .custom_milli("licence", 250);
        assert_eq!(
            resources.to_string(),
            "2 gpu + 80 GiB gpu_memory + 1.5 cpu + 1.5 GiB memory + 0.25 licence"
        );
        assert_eq!(Resources::new().cpu_milli(0).to_string(), "no resources");
    }

    #[test]
    fn names_are_the_serialised_form() {
        let resources = Resources::new()
            .cpu_milli(500)
            .custom_milli("gpu", 2)
            .custom_milli("x", 7);
        assert_eq!(
            resources.get(&Resource::Gpu),
            2,
            "a known name means the known resource"
        );
        let json = serde_json::to_string(&resources).unwrap();
        assert_eq!(json, r#"{"gpu":2,"cpu":500,"x":7}"#);
        assert_eq!(serde_json::from_str::<Resources>(&json).unwrap(), resources);
    }

    #[test]
    fn arithmetic_saturates() {
        let mut sum = Resources::new().cpu_milli(u64::MAX);
        sum.add(&Resources::new().cpu_milli(1).gpus(1));
        assert_eq!(
            (sum.get(&Resource::Cpu), sum.get(&Resource::Gpu)),
            (u64::MAX, 1)
        );
        let left = Resources::new()
            .gpus(1)
            .less(&Resources::new().gpus(3).cpu_milli(1));
        assert!(left.is_empty());
    }
}
