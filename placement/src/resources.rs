//! Named quantities in fixed point.

use std::{collections::BTreeMap, fmt};

use serde::{Deserialize, Serialize};

/// A quantity that a node has and an actor needs, devices apart: those are individuals, see
/// [`Device`](crate::Device). Written as its name wherever it is serialised.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
#[non_exhaustive]
pub enum Resource {
    /// Processor time, in thousandths of a core.
    Cpu,
    /// Main memory in bytes.
    Memory,
    /// Anything else a node declares (licences, network slots), in thousandths.
    Custom(String),
}

impl Resource {
    /// The quantity in the unit that people use, without the name: `1.5`, `8 GiB`.
    pub(crate) fn quantity(&self, quantity: u64) -> impl fmt::Display {
        fmt::from_fn(move |f| match self {
            Self::Memory => write!(f, "{}", bytes(quantity)),
            Self::Cpu | Self::Custom(_) => write!(f, "{}", thousandths(quantity)),
        })
    }
}

impl From<String> for Resource {
    fn from(name: String) -> Self {
        match name.as_str() {
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
            Self::Cpu => "cpu",
            Self::Memory => "memory",
            Self::Custom(name) => name,
        })
    }
}

/// Quantities by resource; what is not named is zero. Sums saturate.
///
/// The two that every node has are fields, so that a comparison over a thousand nodes touches no
/// tree.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(from = "BTreeMap<Resource, u64>", into = "BTreeMap<Resource, u64>")]
pub struct Resources {
    cpu: u64,
    memory: u64,
    /// By name; zeros are left out.
    custom: BTreeMap<String, u64>,
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

    /// Sets a resource of the cluster's own, in thousandths.
    #[must_use]
    pub fn custom_milli(self, name: impl Into<String>, milli: u64) -> Self {
        self.with(name.into().into(), milli)
    }

    /// Sets one quantity.
    #[must_use]
    pub fn with(mut self, resource: Resource, quantity: u64) -> Self {
        match resource {
            Resource::Cpu => self.cpu = quantity,
            Resource::Memory => self.memory = quantity,
            Resource::Custom(name) if quantity == 0 => {
                self.custom.remove(&name);
            }
            Resource::Custom(name) => {
                self.custom.insert(name, quantity);
            }
        }
        self
    }

    /// One quantity.
    #[must_use]
    pub fn get(&self, resource: &Resource) -> u64 {
        match resource {
            Resource::Cpu => self.cpu,
            Resource::Memory => self.memory,
            Resource::Custom(name) => self.custom.get(name).copied().unwrap_or(0),
        }
    }

    /// Quantities above zero: processor time, memory, then the custom ones by name.
    pub fn iter(&self) -> impl Iterator<Item = (Resource, u64)> {
        let fields = [(Resource::Cpu, self.cpu), (Resource::Memory, self.memory)];
        let custom = self.custom.iter();
        fields
            .into_iter()
            .chain(custom.map(|(name, &q)| (Resource::Custom(name.clone()), q)))
            .filter(|(_, q)| *q > 0)
    }

    /// Returns true when nothing is asked for or left.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.cpu == 0 && self.memory == 0 && self.custom.is_empty()
    }

    /// Adds `other`.
    pub fn add(&mut self, other: &Self) {
        self.cpu = self.cpu.saturating_add(other.cpu);
        self.memory = self.memory.saturating_add(other.memory);
        for (name, quantity) in &other.custom {
            let sum = self.custom.entry(name.clone()).or_default();
            *sum = sum.saturating_add(*quantity);
        }
    }

    /// The rest after `other` is taken; never below zero.
    #[must_use]
    pub fn less(&self, other: &Self) -> Self {
        let mut left = self.clone();
        left.take(other);
        left
    }

    /// Takes `other` away; never below zero.
    pub(crate) fn take(&mut self, other: &Self) {
        self.cpu = self.cpu.saturating_sub(other.cpu);
        self.memory = self.memory.saturating_sub(other.memory);
        for (name, quantity) in &other.custom {
            if let Some(left) = self.custom.get_mut(name) {
                *left = left.saturating_sub(*quantity);
            }
        }
        self.custom.retain(|_, left| *left > 0);
    }

    /// Processor time and memory, which every node has.
    pub(crate) fn common(&self) -> [u64; 2] {
        [self.cpu, self.memory]
    }

    /// Returns true for processor time and memory alone.
    pub(crate) fn is_common(&self) -> bool {
        self.custom.is_empty()
    }

    /// Number of times that `bundle` fits, at most `wanted`.
    pub(crate) fn times(&self, bundle: &Self, wanted: u32) -> u32 {
        let times = |have: u64, asked: u64| have.checked_div(asked).unwrap_or(u64::MAX);
        let mut least = u64::from(wanted)
            .min(times(self.cpu, bundle.cpu))
            .min(times(self.memory, bundle.memory));
        for (name, asked) in &bundle.custom {
            least = least.min(times(self.custom.get(name).copied().unwrap_or(0), *asked));
        }
        // At most `wanted`, which is of this type.
        least as u32
    }

    /// The resource that stops the bundle after as many times as it fits; `None` for an empty one.
    pub(crate) fn tightest(&self, bundle: &Self) -> Option<(Resource, u64)> {
        bundle
            .iter()
            .map(|(resource, asked)| (self.get(&resource) / asked, resource))
            .min_by_key(|(times, _)| *times)
            .map(|(times, resource)| (resource, times))
    }

    /// The largest share of `capacity` in use when this is free and `count` bundles more come.
    pub(crate) fn load(&self, capacity: &Self, bundle: &Self, count: u32) -> f64 {
        let share = |capacity: u64, free: u64, asked: u64| {
            if capacity == 0 {
                return 0.0;
            }
            let used = capacity.saturating_sub(free) as f64 + asked as f64 * f64::from(count);
            used / capacity as f64
        };
        let mut most = share(capacity.cpu, self.cpu, bundle.cpu).max(share(
            capacity.memory,
            self.memory,
            bundle.memory,
        ));
        for (name, capacity) in &capacity.custom {
            let of = |r: &Self| r.custom.get(name).copied().unwrap_or(0);
            most = most.max(share(*capacity, of(self), of(bundle)));
        }
        most
    }
}

impl From<BTreeMap<Resource, u64>> for Resources {
    fn from(quantities: BTreeMap<Resource, u64>) -> Self {
        let with = |all: Self, (resource, quantity)| all.with(resource, quantity);
        quantities.into_iter().fold(Self::new(), with)
    }
}

impl From<Resources> for BTreeMap<Resource, u64> {
    fn from(resources: Resources) -> Self {
        resources.iter().collect()
    }
}

impl fmt::Display for Resources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return f.write_str("no resources");
        }
        for (i, (resource, quantity)) in self.iter().enumerate() {
            let plus = if i > 0 { " + " } else { "" };
            write!(f, "{plus}{} {resource}", resource.quantity(quantity))?;
        }
        Ok(())
    }
}

/// `1.5`, of thousandths.
pub(crate) fn thousandths(quantity: u64) -> impl fmt::Display {
    quantity as f64 / 1000.0
}

/// `1.5 GiB`: two decimals at most, and none where they are zero.
pub(crate) fn bytes(bytes: u64) -> impl fmt::Display {
    const UNITS: [(u64, &str); 3] = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    fmt::from_fn(
        move |f| match UNITS.iter().find(|(size, _)| bytes >= *size) {
            Some((size, unit)) => {
                let rounded = (bytes as f64 / *size as f64 * 100.0).round() / 100.0;
                write!(f, "{rounded} {unit}")
            }
            None => write!(f, "{bytes} bytes"),
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_read_in_the_units_that_people_use() {
        let resources = Resources::new()
            .memory_bytes(3 << 29)
            .cpu_milli(1_500)
            .custom_milli("licence", 250);
        assert_eq!(
            resources.to_string(),
            "1.5 cpu + 1.5 GiB memory + 0.25 licence"
        );
        assert_eq!(Resources::new().cpu_milli(0).to_string(), "no resources");
    }

    #[test]
    fn names_are_the_serialised_form() {
        let resources = Resources::new()
            .custom_milli("cpu", 500)
            .custom_milli("x", 7);
        assert_eq!(
            resources.get(&Resource::Cpu),
            500,
            "a known name means the known resource"
        );
        let json = serde_json::to_string(&resources).unwrap();
        assert_eq!(json, r#"{"cpu":500,"x":7}"#);
        assert_eq!(serde_json::from_str::<Resources>(&json).unwrap(), resources);
    }

    #[test]
    fn arithmetic_saturates() {
        let mut sum = Resources::new().cpu_milli(u64::MAX);
        sum.add(&Resources::new().cpu_milli(1).custom_milli("x", 1));
        assert_eq!(sum.get(&Resource::Cpu), u64::MAX);
        let left = Resources::new()
            .custom_milli("x", 1)
            .less(&Resources::new().custom_milli("x", 3).cpu_milli(1));
        assert!(left.is_empty());
    }
}
