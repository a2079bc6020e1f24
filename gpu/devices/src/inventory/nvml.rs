//! NVIDIA's management library as a source of inventories, loaded at run time.

mod xid;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nvml_wrapper::Nvml as Library;
use nvml_wrapper::enum_wrappers::device::{
    Clock, EccCounter, MemoryError, TemperatureSensor, TopologyLevel,
};
use nvml_wrapper::enums::device::{SampleValue, UsedGpuMemory};
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::device::ProcessInfo;
use nvml_wrapper::structs::device::FieldId;
use nvml_wrapper::sys_exports::field_id::NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON;

use self::xid::XidWatch;
use super::{
    Clocks, DeviceFacts, DriverVersion, EccCounts, Inventory, MemoryFacts, Mig, MigSlice, Nearness,
    NvLink, NvLinkEnd, Pair, Probe, ProcessFacts, Reading, Utilisation, XIDS_MAX, Xid, sysfs,
};

/// Reads the machine through NVML.
///
/// Opening never fails. While there is no library or driver each reading says so and tries again,
/// so a driver that is loaded later, or comes back after it vanished, is found.
#[derive(Debug)]
pub struct Nvml {
    library: PathBuf,
    sys: PathBuf,
    session: Option<Session>,
    /// As last seen, so that a device that vanishes is missed.
    seen: Vec<DeviceFacts>,
}

/// One life of the library.
#[derive(Debug)]
struct Session {
    // Before the library, which their events come from.
    watches: BTreeMap<u32, Reading<XidWatch>>,
    xids: BTreeMap<u32, Vec<Xid>>,
    library: Arc<Library>,
}

impl Default for Nvml {
    fn default() -> Self {
        Self::new()
    }
}

impl Nvml {
    /// The library where the driver installs it.
    #[must_use]
    pub fn new() -> Self {
        Self::at("libnvidia-ml.so.1", "/sys")
    }

    /// A library of this name or path, and the kernel's tree at this place.
    #[must_use]
    pub fn at(library: impl Into<PathBuf>, sys: impl Into<PathBuf>) -> Self {
        Self {
            library: library.into(),
            sys: sys.into(),
            session: None,
            seen: vec![],
        }
    }

    /// Reads through the session, opening one when there is none.
    fn look(&mut self) -> Result<Inventory, NvmlError> {
        let mut session = match self.session.take() {
            Some(session) => session,
            None => Session::open(self.library.as_os_str())?,
        };
        // A session that fails as a whole is dropped here, and opened anew by the next reading.
        let inventory = session.read(&self.sys)?;
        self.session = Some(session);
        Ok(inventory)
    }
}

impl Probe for Nvml {
    fn inventory(&mut self) -> Inventory {
        let mut inventory = self.look().unwrap_or_else(|error| Inventory {
            devices: self.seen.clone(),
            ..Inventory::empty(reason(&error))
        });
        recall(&self.seen, &mut inventory);
        inventory.devices.sort_by_key(|device| device.index);
        inventory.unusable = sysfs::unusable_cards(&self.sys);
        self.seen.clone_from(&inventory.devices);
        inventory
    }
}

impl Session {
    fn open(library: &OsStr) -> Result<Self, NvmlError> {
        let library = Library::builder().lib_path(library).init()?;
        Ok(Self {
            watches: BTreeMap::new(),
            xids: BTreeMap::new(),
            library: Arc::new(library),
        })
    }

    fn read(&mut self, sys: &Path) -> Result<Inventory, NvmlError> {
        let library = Arc::clone(&self.library);
        let driver = DriverVersion {
            driver: library.sys_driver_version()?,
            cuda: Reading::of(library.sys_cuda_driver_version().map(cuda_version)),
        };
        let count = library.device_count()?;
        let addresses: BTreeMap<String, u32> = (0..count)
            .filter_map(|index| Some((bus_id(&library, index).ok()?, index)))
            .collect();
        let devices = (0..count)
            .map(|index| self.device(&library, index, &addresses, sys))
            .collect();
        let pairs = (0..count)
            .flat_map(|a| (a + 1..count).map(move |b| (a, b)))
            .map(|(a, b)| Pair {
                a,
                b,
                nearness: nearness(&library, a, b),
            })
            .collect();
        Ok(Inventory {
            driver: Reading::Measured(driver),
            devices,
            pairs,
            unusable: vec![],
        })
    }

    fn device(
        &mut self,
        library: &Library,
        index: u32,
        addresses: &BTreeMap<String, u32>,
        sys: &Path,
    ) -> DeviceFacts {
        let device = match library.device_by_index(index) {
            Ok(device) => device,
            Err(error) => {
                return DeviceFacts {
                    xids: self.xids(index),
                    ..DeviceFacts::unmeasured(index, &reason(&error))
                };
            }
        };
        let bus_id = reading(bus_id(library, index));
        let (numa_node, switch) = match &bus_id {
            Reading::Measured(id) => (sysfs::numa_node(sys, id), sysfs::pcie_switch(sys, id)),
            Reading::Unmeasured { why } => (Reading::unmeasured(why), Reading::unmeasured(why)),
        };
        DeviceFacts {
            index,
            uuid: reading(device.uuid()),
            model: reading(device.name()),
            memory: memory(&device),
            utilisation: reading(device.utilization_rates()).map(|rates| Utilisation {
                compute_percent: rates.gpu,
                memory_percent: rates.memory,
            }),
            temperature_celsius: reading(device.temperature(TemperatureSensor::Gpu)),
            power_milliwatts: reading(device.power_usage()),
            clocks: reading(clocks(&device)),
            pcie_replays: reading(device.pcie_replay_counter()).map(u64::from),
            ecc: reading(ecc(&device)),
            xids: self.xids(index),
            mig: reading(mig(&device)),
            bus_id,
            numa_node,
            switch,
            nvlinks: nvlinks(&device, addresses),
            processes: reading(device.running_compute_processes())
                .map(|processes| processes.iter().map(process).collect()),
        }
    }

    /// The critical events of this device so far. Begins to listen when it is read for the first
    /// time.
    fn xids(&mut self, index: u32) -> Reading<Vec<Xid>> {
        let watch = self
            .watches
            .entry(index)
            .or_insert_with(|| Reading::unmeasured("not asked yet"));
        // One that failed may succeed now, such as after a reset.
        if watch.value().is_none() {
            *watch = reading(XidWatch::new(&self.library, index));
        }
        let kept = self.xids.entry(index).or_default();
        match watch {
            Reading::Unmeasured { why } => Reading::unmeasured(why.clone()),
            Reading::Measured(watch) => match watch.take(XIDS_MAX) {
                Ok(new) => {
                    kept.extend(new);
                    kept.drain(..kept.len().saturating_sub(XIDS_MAX));
                    Reading::Measured(kept.clone())
                }
                // A device that fell off the bus reports that as an event before its waits fail.
                Err(_) if !kept.is_empty() => Reading::Measured(kept.clone()),
                Err(error) => Reading::unmeasured(reason(&error)),
            },
        }
    }
}

/// Puts back what is known of devices that can no longer be read, with the reason.
fn recall(seen: &[DeviceFacts], inventory: &mut Inventory) {
    let driver = inventory.driver.why().map(str::to_owned);
    for known in seen {
        let now = inventory
            .devices
            .iter_mut()
            .find(|now| now.index == known.index);
        match (now, &driver) {
            (Some(now), Some(why)) => *now = known.vanished(why),
            (Some(now), None) => {
                if let Some(why) = now.uuid.why().map(str::to_owned) {
                    // The last event may be what tells why it is gone.
                    let last = std::mem::replace(&mut now.xids, Reading::unmeasured(""));
                    *now = known.vanished(&why);
                    if last.value().is_some() {
                        now.xids = last;
                    }
                }
            }
            (None, driver) => {
                let why = driver.as_deref();
                let gone = known.vanished(why.unwrap_or("the driver no longer lists this device"));
                inventory.devices.push(gone);
            }
        }
    }
}

type Handle<'a> = nvml_wrapper::Device<'a>;

fn reading<T>(result: Result<T, NvmlError>) -> Reading<T> {
    Reading::of(result.map_err(|error| reason(&error)))
}

/// The reason for an error, in words that a person can act on.
fn reason(error: &NvmlError) -> String {
    match error {
        NvmlError::LibloadingError(error) => {
            format!("no NVIDIA driver: its management library cannot be loaded ({error})")
        }
        NvmlError::DriverNotLoaded => "the NVIDIA driver is installed but not loaded".to_owned(),
        NvmlError::NoPermission => "no permission to talk to the NVIDIA driver".to_owned(),
        NvmlError::LibRmVersionMismatch => {
            "the NVIDIA driver and its library are of different versions: it was replaced, and \
             the machine needs a restart"
                .to_owned()
        }
        other => other.to_string(),
    }
}

fn bus_id(library: &Library, index: u32) -> Result<String, NvmlError> {
    let pci = library.device_by_index(index)?.pci_info()?;
    Ok(sysfs::kernel_bus_id(&pci.bus_id))
}

/// NVML writes 13.0 as 13000.
fn cuda_version(version: i32) -> (u32, u32) {
    let version = version.unsigned_abs();
    (version / 1000, version % 1000 / 10)
}

fn memory(device: &Handle<'_>) -> Reading<MemoryFacts> {
    reading(device.memory_info()).map(|memory| MemoryFacts {
        total_bytes: memory.total,
        used_bytes: memory.used,
        free_bytes: memory.free,
    })
}

fn clocks(device: &Handle<'_>) -> Result<Clocks, NvmlError> {
    Ok(Clocks {
        compute_mhz: device.clock_info(Clock::SM)?,
        memory_mhz: device.clock_info(Clock::Memory)?,
    })
}

fn ecc(device: &Handle<'_>) -> Result<EccCounts, NvmlError> {
    let count = |kind| device.total_ecc_errors(kind, EccCounter::Volatile);
    Ok(EccCounts {
        corrected: count(MemoryError::Corrected)?,
        uncorrected: count(MemoryError::Uncorrected)?,
    })
}

fn mig(device: &Handle<'_>) -> Result<Mig, NvmlError> {
    if device.mig_mode()?.current == 0 {
        return Ok(Mig::default());
    }
    // The count is that of places; those without a partition answer with an error.
    let slices = (0..device.mig_device_count()?)
        .filter_map(|place| device.mig_device_by_index(place).ok())
        .map(|slice| MigSlice {
            uuid: reading(slice.uuid()),
            profile: profile(reading(slice.name())),
            memory: memory(&slice),
        })
        .collect();
    Ok(Mig {
        enabled: true,
        slices,
    })
}

/// The last word of a slice's name: `NVIDIA A100-SXM4-80GB MIG 1g.10gb`.
fn profile(name: Reading<String>) -> Reading<String> {
    match name {
        Reading::Measured(name) => match name.split_once("MIG ") {
            Some((_, profile)) => Reading::Measured(profile.trim().to_owned()),
            None => Reading::unmeasured(format!("its name does not tell: {name}")),
        },
        unmeasured @ Reading::Unmeasured { .. } => unmeasured,
    }
}

/// Which links a device has is not told: they are asked one by one until the driver knows no more.
const NVLINKS_MAX: u32 = 36;

fn nvlinks(device: &Handle<'_>, addresses: &BTreeMap<String, u32>) -> Reading<Vec<NvLink>> {
    let mut ends: BTreeMap<NvLinkEnd, u32> = BTreeMap::new();
    for number in 0..NVLINKS_MAX {
        let link = device.link_wrapper_for(number);
        match link.is_active() {
            Ok(true) => {
                let end = link.remote_pci_info().map_or(NvLinkEnd::Unknown, |pci| {
                    let id = sysfs::kernel_bus_id(&pci.bus_id);
                    match addresses.get(&id) {
                        Some(index) => NvLinkEnd::Device(*index),
                        None => NvLinkEnd::Other(id),
                    }
                });
                *ends.entry(end).or_default() += 1;
            }
            Ok(false) => {}
            Err(NvmlError::InvalidArg | NvmlError::NotSupported) => break,
            Err(error) => return Reading::unmeasured(reason(&error)),
        }
    }
    let speed = if ends.is_empty() {
        Reading::unmeasured("no link is active")
    } else {
        link_speed(device)
    };
    let links = ends.into_iter().map(|(to, links)| NvLink {
        to,
        links,
        bytes_per_second: speed.clone().map(|speed| speed * u64::from(links)),
    });
    Reading::Measured(links.collect())
}

/// Bytes a second of one link, one direction.
fn link_speed(device: &Handle<'_>) -> Reading<u64> {
    let megabytes = device
        .field_values_for(&[FieldId(NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON)])
        .and_then(|samples| samples.into_iter().next().ok_or(NvmlError::NoData)?)
        .and_then(|sample| sample.value)
        .and_then(|value| match value {
            SampleValue::U32(0) | SampleValue::U64(0) => Err(NvmlError::NoData),
            SampleValue::U32(speed) => Ok(u64::from(speed)),
            SampleValue::U64(speed) => Ok(speed),
            SampleValue::F64(_) | SampleValue::I64(_) => Err(NvmlError::NoData),
        });
    reading(megabytes).map(|speed| speed.saturating_mul(1_000_000))
}

fn process(info: &ProcessInfo) -> ProcessFacts {
    ProcessFacts {
        pid: info.pid,
        memory_bytes: match info.used_gpu_memory {
            UsedGpuMemory::Used(bytes) => Reading::Measured(bytes),
            UsedGpuMemory::Unavailable => {
                Reading::unmeasured("the driver does not count memory by process here")
            }
        },
    }
}

fn nearness(library: &Library, a: u32, b: u32) -> Reading<Nearness> {
    let level = library
        .device_by_index(a)
        .and_then(|first| first.topology_common_ancestor(library.device_by_index(b)?));
    reading(level).map(|level| match level {
        TopologyLevel::Internal => Nearness::Board,
        TopologyLevel::Single => Nearness::Switch,
        TopologyLevel::Multiple => Nearness::Switches,
        TopologyLevel::HostBridge => Nearness::HostBridge,
        TopologyLevel::Node => Nearness::Numa,
        TopologyLevel::System => Nearness::System,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_the_library_has_an_empty_inventory_that_says_why() {
        let mut nvml = Nvml::at("libthat-is-not-there.so", "/nowhere");
        for _ in 0..2 {
            let inventory = nvml.inventory();
            assert!(inventory.devices.is_empty() && inventory.unusable.is_empty());
            let why = inventory.driver.map(|driver| driver.driver).to_string();
            assert!(why.contains("no NVIDIA driver"), "{why}");
            assert!(why.contains("libthat-is-not-there.so"), "{why}");
        }
    }

    #[test]
    fn a_library_that_is_something_else_is_a_reason_and_not_a_crash() {
        let library = if cfg!(target_os = "linux") {
            "libc.so.6"
        } else {
            "libc"
        };
        let inventory = Nvml::at(library, "/nowhere").inventory();
        assert_eq!(inventory.driver.value(), None);
    }

    #[test]
    fn a_device_of_a_driver_that_vanished_stays_listed_with_the_reason() {
        let mut nvml = Nvml::at("libthat-is-not-there.so", "/nowhere");
        nvml.seen = vec![DeviceFacts {
            uuid: Reading::Measured("GPU-1".to_owned()),
            temperature_celsius: Reading::Measured(40),
            ..DeviceFacts::unmeasured(0, "not asked")
        }];
        let device = nvml.inventory().devices.remove(0);
        assert_eq!(device.uuid.value().map(String::as_str), Some("GPU-1"));
        assert!(
            device
                .temperature_celsius
                .to_string()
                .contains("no NVIDIA driver")
        );
    }

    #[test]
    fn a_device_that_fell_off_the_bus_keeps_its_name_and_shows_its_last_event() {
        let known = DeviceFacts {
            uuid: Reading::Measured("GPU-1".to_owned()),
            xids: Reading::Measured(vec![]),
            ..DeviceFacts::unmeasured(1, "not asked")
        };
        let lost = reason(&NvmlError::GpuLost);
        let mut inventory = Inventory {
            driver: Reading::Measured(DriverVersion {
                driver: "580".to_owned(),
                cuda: Reading::Measured((13, 0)),
            }),
            devices: vec![DeviceFacts {
                xids: Reading::Measured(vec![Xid { code: Some(79) }]),
                ..DeviceFacts::unmeasured(1, &lost)
            }],
            ..Inventory::empty("none")
        };
        recall(std::slice::from_ref(&known), &mut inventory);
        let device = &inventory.devices[0];
        assert_eq!(device.uuid, known.uuid);
        assert_eq!(device.memory.why(), Some(lost.as_str()));
        assert_eq!(device.xids, Reading::Measured(vec![Xid { code: Some(79) }]));

        inventory.devices.clear();
        recall(&[known], &mut inventory);
        let why = inventory.devices[0].memory.why().unwrap();
        assert!(why.contains("no longer lists"));
    }

    #[test]
    fn versions_are_split() {
        assert_eq!(cuda_version(13_000), (13, 0));
        assert_eq!(cuda_version(12_080), (12, 8));
    }
}
