//! The accelerators of a machine and their state.
//!
//! ```text
//!  Nvml  (library loaded at run time) ─┐
//!  Fake  (from a specification)       ─┴─ Probe::inventory ─> Inventory
//! ```
//!
//! [`Nvml`] reads NVIDIA's management library with the feature `nvml`; without it, it has no devices
//! and says so.
//!
//! [`Probe::inventory`] has no error: a machine without a driver, without permission, or with a card of
//! another maker has an inventory that says so. A sensor that gives nothing is a [`Reading`] with
//! its reason and never a zero, so that no decision takes "unknown" for "idle" or "cold".

#[cfg(not(feature = "nvml"))]
mod absent;
pub mod conformance;
#[cfg(feature = "nvml")]
mod nvml;
mod reading;
pub mod sysfs;

use std::fmt::Debug;

use serde::{Deserialize, Serialize};

#[cfg(not(feature = "nvml"))]
pub use absent::Nvml;
#[cfg(feature = "nvml")]
pub use nvml::Nvml;
pub use reading::Reading;

/// A source of inventories.
pub trait Probe: Debug + Send {
    /// Looks at the machine now. Takes what events came since the last look; does not wait.
    fn inventory(&mut self) -> Inventory;
}

/// The accelerators of one machine at one time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Inventory {
    /// Versions of the driver; without one, the reason why there are no devices.
    pub driver: Reading<DriverVersion>,
    /// The devices, by index. A device that was seen once stays listed with its reasons.
    pub devices: Vec<DeviceFacts>,
    /// The distance of each pair of devices over PCIe, the lower index first.
    pub pairs: Vec<Pair>,
    /// Display and compute cards on the bus that no driver here can use, such as those of AMD.
    pub unusable: Vec<UnusableCard>,
}

impl Inventory {
    /// A machine without devices, for this reason.
    #[must_use]
    pub fn empty(why: impl Into<String>) -> Self {
        Self {
            driver: Reading::unmeasured(why),
            devices: vec![],
            pairs: vec![],
            unusable: vec![],
        }
    }
}

/// Versions of what drives the devices.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriverVersion {
    /// Of the kernel driver, such as `580.95.05`.
    pub driver: String,
    /// The newest CUDA it takes, as major and minor number.
    pub cuda: Reading<(u32, u32)>,
}

/// One device and its state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceFacts {
    /// Number on this machine, in the order of the PCIe bus.
    pub index: u32,
    /// Identity that stays over reboots and machines.
    pub uuid: Reading<String>,
    /// The maker's name of the model.
    pub model: Reading<String>,
    /// Device memory.
    pub memory: Reading<MemoryFacts>,
    /// Share of the time that it worked.
    pub utilisation: Reading<Utilisation>,
    /// Of the chip, in degrees Celsius.
    pub temperature_celsius: Reading<u32>,
    /// Draw of the board, in milliwatts.
    pub power_milliwatts: Reading<u32>,
    /// Present clocks, which fall where the board is hot or short of power.
    pub clocks: Reading<Clocks>,
    /// Transfers over PCIe that were sent again since the driver loaded: a bad slot or a bad riser.
    pub pcie_replays: Reading<u64>,
    /// Memory errors since the driver loaded.
    pub ecc: Reading<EccCounts>,
    /// Critical events since the probe opened, oldest first, the last [`XIDS_MAX`].
    pub xids: Reading<Vec<Xid>>,
    /// Partitions of the device.
    pub mig: Reading<Mig>,
    /// Address on the bus, such as `0000:1a:00.0`.
    pub bus_id: Reading<String>,
    /// The NUMA node whose memory is nearest.
    pub numa_node: Reading<u32>,
    /// Bus address of the upstream port of the PCIe switch above, which devices and network cards
    /// below it share.
    pub switch: Reading<String>,
    /// Active NVLinks, one entry for each thing at the other end.
    pub nvlinks: Reading<Vec<NvLink>>,
    /// Processes that hold a compute context.
    pub processes: Reading<Vec<ProcessFacts>>,
}

/// The most critical events that are kept for a device: a flood of them says no more than the last
/// few.
pub const XIDS_MAX: usize = 32;

impl DeviceFacts {
    /// A device of which nothing is known but its number, for this reason.
    #[must_use]
    pub fn unmeasured(index: u32, why: &str) -> Self {
        Self {
            index,
            uuid: Reading::unmeasured(why),
            model: Reading::unmeasured(why),
            memory: Reading::unmeasured(why),
            utilisation: Reading::unmeasured(why),
            temperature_celsius: Reading::unmeasured(why),
            power_milliwatts: Reading::unmeasured(why),
            clocks: Reading::unmeasured(why),
            pcie_replays: Reading::unmeasured(why),
            ecc: Reading::unmeasured(why),
            xids: Reading::unmeasured(why),
            mig: Reading::unmeasured(why),
            bus_id: Reading::unmeasured(why),
            numa_node: Reading::unmeasured(why),
            switch: Reading::unmeasured(why),
            nvlinks: Reading::unmeasured(why),
            processes: Reading::unmeasured(why),
        }
    }

    /// The same device when its state can no longer be read: what does not change stays, the rest
    /// says why it is missing.
    #[must_use]
    pub fn vanished(&self, why: &str) -> Self {
        Self {
            uuid: self.uuid.clone(),
            model: self.model.clone(),
            bus_id: self.bus_id.clone(),
            numa_node: self.numa_node.clone(),
            switch: self.switch.clone(),
            xids: self.xids.clone(),
            ..Self::unmeasured(self.index, why)
        }
    }
}

/// Device memory, in bytes. `used` and `free` need not add up to `total`: the driver keeps some.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryFacts {
    /// Installed.
    pub total_bytes: u64,
    /// Allocated by processes.
    pub used_bytes: u64,
    /// To be had.
    pub free_bytes: u64,
}

/// Share of the last sample period, in percent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Utilisation {
    /// Time in which a kernel ran.
    pub compute_percent: u32,
    /// Time in which device memory was read or written.
    pub memory_percent: u32,
}

/// Clocks of a device, in megahertz.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Clocks {
    /// Of its multiprocessors.
    pub compute_mhz: u32,
    /// Of its memory.
    pub memory_mhz: u32,
}

/// Memory errors since the driver loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EccCounts {
    /// Single bits, put right by the hardware.
    pub corrected: u64,
    /// Beyond repair: data was lost.
    pub uncorrected: u64,
}

/// A critical event that the driver reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Xid {
    /// NVIDIA's number of the event; `None` when the driver does not know it either.
    pub code: Option<u64>,
}

/// Partitioning of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mig {
    /// True while the device is partitioned.
    pub enabled: bool,
    /// The partitions.
    pub slices: Vec<MigSlice>,
}

/// One partition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MigSlice {
    /// The identifier by which CUDA opens it.
    pub uuid: Reading<String>,
    /// Its size as the maker writes it, such as `1g.10gb`.
    pub profile: Reading<String>,
    /// Its memory.
    pub memory: Reading<MemoryFacts>,
}

/// The NVLinks of a device that lead to one place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NvLink {
    /// The other end.
    pub to: NvLinkEnd,
    /// Number of links.
    pub links: u32,
    /// Of all of them together, one direction, in bytes a second.
    pub bytes_per_second: Reading<u64>,
}

/// The other end of an NVLink.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum NvLinkEnd {
    /// A device of this machine, by its index.
    Device(u32),
    /// Something else, by its bus address: mostly a switch, which leads to all devices on it.
    Other(String),
    /// The driver does not say.
    Unknown,
}

/// A process that holds a compute context on a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessFacts {
    /// As the machine (not a container) numbers it.
    pub pid: u32,
    /// Memory of the device that it holds, in bytes.
    pub memory_bytes: Reading<u64>,
}

/// The distance of two devices over PCIe.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pair {
    /// Lower index.
    pub a: u32,
    /// Higher index.
    pub b: u32,
    /// The hardware that a copy between them has to pass.
    pub nearness: Reading<Nearness>,
}

/// The hardware that a copy between two devices has to pass, nearest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Nearness {
    /// Nothing: both are on one board.
    Board,
    /// One PCIe switch.
    Switch,
    /// Several PCIe switches.
    Switches,
    /// The host bridge.
    HostBridge,
    /// Several host bridges of one NUMA node.
    Numa,
    /// The link between processors.
    System,
}

/// A card on the PCIe bus that is seen but not used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnusableCard {
    /// Address on the bus, or the name of the card where it has none.
    pub bus_id: String,
    /// PCI vendor, such as 0x1002 for AMD.
    pub vendor: u16,
    /// Why it is not used.
    pub why: String,
}
