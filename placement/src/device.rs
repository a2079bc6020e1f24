//! Accelerators as individuals.

use serde::{Deserialize, Serialize};

/// An accelerator of a node, or a hardware slice of one that is leased by itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// Number on its node, which the driver knows it by.
    pub index: u32,
    /// Model, as the vendor writes it.
    pub model: String,
    /// Memory that can be reserved, in bytes.
    pub memory: u64,
    /// Profile of a slice, such as `1g.10gb`; none for a whole card.
    #[serde(default)]
    pub slice: Option<String>,
    /// Number of the card that a slice belongs to; of a whole card its own.
    pub card: u32,
    /// NUMA node.
    #[serde(default)]
    pub numa: u32,
    /// PCIe switch, unique on the node; unknown means alone behind it.
    #[serde(default)]
    pub switch: Option<u32>,
    /// NVLink domain, unique in the cluster; none for a device without NVLink.
    #[serde(default)]
    pub nvlink: Option<String>,
    /// Its health; only a good device may be leased.
    #[serde(default)]
    pub health: Health,
}

/// The health of a device, which decides if it may be leased.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Health {
    /// It works as far as anyone knows.
    #[default]
    Good,
    /// Taken out of service, with the reason as it is told to people.
    Quarantined(String),
}

impl Device {
    /// A whole, healthy card on NUMA node 0 without NVLink.
    pub fn new(index: u32, model: impl Into<String>, memory: u64) -> Self {
        Self {
            index,
            model: model.into(),
            memory,
            slice: None,
            card: index,
            numa: 0,
            switch: None,
            nvlink: None,
            health: Health::Good,
        }
    }

    /// Makes it a hardware slice of a card.
    #[must_use]
    pub fn slice_of(mut self, card: u32, profile: impl Into<String>) -> Self {
        self.card = card;
        self.slice = Some(profile.into());
        self
    }

    /// Sets the NUMA node.
    #[must_use]
    pub fn numa(mut self, numa: u32) -> Self {
        self.numa = numa;
        self
    }

    /// Sets the PCIe switch.
    #[must_use]
    pub fn switch(mut self, switch: u32) -> Self {
        self.switch = Some(switch);
        self
    }

    /// Sets the NVLink domain by a name that is unique in the cluster.
    #[must_use]
    pub fn nvlink(mut self, domain: impl Into<String>) -> Self {
        self.nvlink = Some(domain.into());
        self
    }

    /// Returns true when demands cannot tell the two apart.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        let kind = (self.memory, &self.model, &self.slice);
        kind == (other.memory, &other.model, &other.slice)
    }

    /// Its kind, for people: `H200 of 141 GiB`.
    pub(crate) fn told(&self) -> String {
        let memory = crate::resources::bytes(self.memory);
        match &self.slice {
            Some(profile) => format!("slice {profile} of {}", self.model),
            None => format!("{} of {memory}", self.model),
        }
    }

    /// Takes it out of service.
    #[must_use]
    pub fn quarantined(mut self, reason: impl Into<String>) -> Self {
        self.health = Health::Quarantined(reason.into());
        self
    }
}
