//! Resources of jobs: what one asks for, and what a try of it was given.
//!
//! A reservation is a part of its try, so what is held is the sum over the present tries: it comes
//! free when the try is over, however that came about, and nothing else is to be kept or tidied.

use std::fmt;

use odeon::JobReservation;
use odeon_placement::{
    Affinity, Demand, Device, DeviceGrant, Isolation, Lease, Level, Process, Resources,
};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::job::Job;

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
const fn is_zero(n: &u64) -> bool {
    *n == 0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
const fn is_none(n: &u32) -> bool {
    *n == 0
}

/// The resources of one process of a job: its driver, or a rank. What is zero is not asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(default)]
pub struct Allotment {
    /// Processor time, in thousandths of a core.
    #[serde(skip_serializing_if = "is_zero")]
    pub cpu_milli: u64,
    /// Main memory, in bytes.
    #[serde(skip_serializing_if = "is_zero")]
    pub memory_bytes: u64,
    /// Whole devices, all on one node.
    #[serde(skip_serializing_if = "is_none")]
    pub devices: u32,
    /// Memory that each of these devices has at least, in bytes.
    #[serde(skip_serializing_if = "is_zero")]
    pub device_memory_bytes: u64,
}

impl Allotment {
    /// Returns true where nothing is asked for.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Both together; of devices the number, and the larger of the two memories.
    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            cpu_milli: self.cpu_milli.saturating_add(other.cpu_milli),
            memory_bytes: self.memory_bytes.saturating_add(other.memory_bytes),
            devices: self.devices.saturating_add(other.devices),
            device_memory_bytes: self.device_memory_bytes.max(other.device_memory_bytes),
        }
    }

    fn demand(self, job: &Job, holder: String) -> Demand {
        let demand = Demand::new(tag_of(job), holder, self.resources()).isolated();
        match (self.devices, self.device_memory_bytes) {
            (0, _) => demand,
            (count, 0) => demand.gpus(count),
            (count, bytes) => demand.gpus(count).device_memory(bytes),
        }
    }

    /// The part of it that is no device.
    pub(crate) fn resources(self) -> Resources {
        Resources::new()
            .cpu_milli(self.cpu_milli)
            .memory_bytes(self.memory_bytes)
    }
}

impl fmt::Display for Allotment {
    /// As people read it: `2 gpu of 20 GiB each + 1.5 cpu + 4 GiB memory`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            devices,
            device_memory_bytes,
            ..
        } = self;
        let rest = self.resources();
        if *devices == 0 {
            return rest.fmt(f);
        }
        write!(f, "{devices} gpu")?;
        if *device_memory_bytes > 0 {
            let each = if *devices > 1 { " each" } else { "" };
            write!(f, " of {}{each}", Bytes(*device_memory_bytes))?;
        }
        match rest.is_empty() {
            true => Ok(()),
            false => write!(f, " + {rest}"),
        }
    }
}

/// A number of bytes as people read it: `1.5 GiB`.
#[derive(Clone, Copy, Debug)]
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(u64, &str); 3] = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
        match UNITS.iter().find(|(size, _)| self.0 >= *size) {
            Some((size, unit)) => {
                let rounded = (self.0 as f64 / *size as f64 * 100.0).round() / 100.0;
                write!(f, "{rounded} {unit}")
            }
            None => write!(f, "{} bytes", self.0),
        }
    }
}

/// The resources that a job asks for, before it begins: all of them or none. A job that asks for
/// nothing gets a driver on any node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct JobResources {
    /// For its driver.
    #[serde(skip_serializing_if = "Allotment::is_empty")]
    pub driver: Allotment,
    /// Number of equal ranks beside the driver, on the same node or on others.
    #[serde(skip_serializing_if = "is_none")]
    pub ranks: u32,
    /// Number of ranks that it has at most, as there is room; 0 for those that it has at least.
    #[serde(skip_serializing_if = "is_none")]
    pub ranks_max: u32,
    /// For each rank.
    #[serde(skip_serializing_if = "Allotment::is_empty")]
    pub rank: Allotment,
}

/// A request for resources that cannot be meant.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum JobResourcesError {
    /// More ranks than a job may have.
    #[error("{0} ranks, at most {RANKS_MAX} are possible")]
    Ranks(u32),
    /// More ranks at least than at most.
    #[error("{0} ranks at least and {1} at most: the first number is the smaller one")]
    Range(u32, u32),
    /// Ranks without resources, or resources of ranks without ranks.
    #[error("a job with ranks says what each of them needs, and one without says nothing of them")]
    Empty,
    /// Memory of devices, without devices.
    #[error("memory of devices is asked for, but no device: say how many devices, too")]
    NoDevices,
    /// More devices than a node has numbers for.
    #[error("{0} devices for one process, at most {DEVICES_MAX} are possible")]
    Devices(u32),
    /// A quantity that no cluster has.
    #[error("{0} is more than any node has")]
    TooMuch(String),
}

/// Most ranks of a job.
const RANKS_MAX: u32 = 4096;
/// Most devices of a process, as many as the solver knows on one node.
const DEVICES_MAX: u32 = 128;
/// The most of a quantity, so that sums over all jobs stay far from the end of the numbers.
const QUANTITY_MAX: u64 = 1 << 50;

impl JobResources {
    /// For a driver, without ranks.
    #[must_use]
    pub fn of_driver(driver: Allotment) -> Self {
        Self {
            driver,
            ..Self::default()
        }
    }

    /// For so many ranks; the driver beside them asks for nothing.
    #[must_use]
    pub fn of_ranks(ranks: u32, rank: Allotment) -> Self {
        Self {
            ranks,
            rank,
            ..Self::default()
        }
    }

    /// As many ranks as there is room for, up to this number.
    #[must_use]
    pub const fn up_to(mut self, ranks: u32) -> Self {
        self.ranks_max = ranks;
        self
    }

    /// Returns true where nothing is asked for.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Checks that it can be meant.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn check(&self) -> Result<(), JobResourcesError> {
        if self.most() > RANKS_MAX {
            return Err(JobResourcesError::Ranks(self.most()));
        }
        if self.ranks_max > 0 && self.ranks > self.ranks_max {
            return Err(JobResourcesError::Range(self.ranks, self.ranks_max));
        }
        if (self.ranks == 0) != self.rank.is_empty() {
            return Err(JobResourcesError::Empty);
        }
        for it in [self.driver, self.rank] {
            if it.devices == 0 && it.device_memory_bytes > 0 {
                return Err(JobResourcesError::NoDevices);
            }
            if it.devices > DEVICES_MAX {
                return Err(JobResourcesError::Devices(it.devices));
            }
            let most = it.cpu_milli.max(it.memory_bytes);
            if most.max(it.device_memory_bytes) > QUANTITY_MAX {
                return Err(JobResourcesError::TooMuch(it.to_string()));
            }
        }
        Ok(())
    }

    /// The ranks that it has at most.
    #[must_use]
    pub fn most(&self) -> u32 {
        self.ranks.max(self.ranks_max)
    }

    /// The demands that the solver is given for the least number of ranks: these as a gang, then the
    /// driver, which belongs beside one of them, so that no further node can end the job.
    pub(crate) fn demands(&self, job: &Job) -> Vec<Demand> {
        let mut driver = self.driver.demand(job, job.id.to_string());
        if let Some(node) = &job.spec.node {
            driver = driver.on_node(node.clone());
        }
        if self.ranks == 0 {
            return vec![driver];
        }
        let ranks = self.rank.demand(job, ranks_of(job)).gang(self.ranks);
        let near = Affinity::Near(ranks_of(job), Level::Node);
        vec![ranks, driver.prefer(near, 1)]
    }

    /// The demand for more ranks of a job that runs.
    pub(crate) fn more(&self, job: &Job, ranks: u32) -> Demand {
        self.rank.demand(job, ranks_of(job)).gang(ranks)
    }

    /// The reservations for more ranks that a plan stands for, with these numbers.
    pub(crate) fn reserved_more(
        &self,
        leases: &[Lease],
        ranks: impl Iterator<Item = u32>,
        boot: impl Fn(&str) -> u64,
    ) -> Vec<Reservation> {
        let reservation = |(lease, rank): (&Lease, u32)| Reservation {
            node: lease.node.clone(),
            boot: boot(&lease.node),
            rank: Some(rank),
            allotment: self.rank,
            devices: lease.devices.iter().map(|grant| grant.index).collect(),
        };
        leases.iter().zip(ranks).map(reservation).collect()
    }

    /// The reservations that a plan for [`JobResources::demands`] stands for, of as many ranks as it
    /// has, with the life of each node: that of the driver first.
    pub(crate) fn reserved(
        &self,
        leases: &[Lease],
        boot: impl Fn(&str) -> u64,
    ) -> Vec<Reservation> {
        let ranks = match self.ranks {
            0 => 0,
            _ => leases.len().saturating_sub(1),
        };
        let (ranks, driver) = leases.split_at(ranks);
        let reservation = |lease: &Lease, rank| Reservation {
            node: lease.node.clone(),
            boot: boot(&lease.node),
            rank,
            allotment: match rank {
                None => self.driver,
                Some(_) => self.rank,
            },
            devices: lease.devices.iter().map(|grant| grant.index).collect(),
        };
        let driver = driver.iter().map(|lease| reservation(lease, None));
        let ranks = ranks.iter().zip(0..);
        let ranks = ranks.map(|(lease, rank)| reservation(lease, Some(rank)));
        driver.chain(ranks).collect()
    }

    /// Returns true where these reservations are for a driver on `node` and a number of ranks that the
    /// job may have.
    pub(crate) fn is_met_by(&self, reserved: &[Reservation], node: &str) -> bool {
        if self.is_empty() {
            return reserved.is_empty();
        }
        let mut expected = (0..=self.most()).map(|at| at.checked_sub(1));
        let ranks = reserved.len().saturating_sub(1);
        (self.ranks as usize..=self.most() as usize).contains(&ranks)
            && reserved.first().is_some_and(|first| first.node == node)
            && reserved.iter().all(|it| {
                let wanted = match it.rank {
                    None => self.driver,
                    Some(_) => self.rank,
                };
                expected.next() == Some(it.rank)
                    && it.allotment == wanted
                    && it.devices.len() == wanted.devices as usize
            })
    }
}

impl fmt::Display for JobResources {
    /// As people read it: `1 cpu`, `4 ranks of 1 gpu each`, `1 cpu, and 4 ranks of 1 gpu each`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { driver, rank, .. } = self;
        let ranks = match self.most() {
            most if most > self.ranks => format!("{} to {most}", self.ranks),
            most => most.to_string(),
        };
        match (driver.is_empty(), self.ranks) {
            (_, 0) => driver.fmt(f),
            (true, _) => write!(f, "{ranks} x ({rank})"),
            (false, _) => write!(f, "{driver}, and {ranks} x ({rank})"),
        }
    }
}

/// A part of a node that a try has to itself: that of its driver, or of one of its ranks.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Reservation {
    /// The node.
    pub node: String,
    /// Which life of it. With that life the reservation is over.
    pub boot: u64,
    /// Which rank; none for the driver.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank: Option<u32>,
    /// The quantities.
    #[serde(default)]
    pub allotment: Allotment,
    /// The devices, by their numbers on the node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<u32>,
}

impl Reservation {
    /// As the engines know it.
    pub(crate) fn of_job(&self, job: String) -> JobReservation {
        JobReservation {
            job,
            node: self.node.clone(),
            resources: self.allotment.resources(),
            devices: self.devices.clone(),
        }
    }

    /// As the solver sees it, on a node with these devices.
    pub(crate) fn lease(&self, job: &Job, devices: &[Device]) -> Lease {
        let memory = |index| {
            let known = devices.iter().find(|device| device.index == index);
            known.map_or(0, |device| device.memory)
        };
        Lease {
            job: tag_of(job),
            holder: job.id.to_string(),
            rank: self.rank.unwrap_or(0),
            node: self.node.clone(),
            // No process of it is known yet, and none is shared.
            process: Process::Existing(0),
            isolation: Isolation::Process,
            resources: self.allotment.resources(),
            devices: self
                .devices
                .iter()
                .map(|index| DeviceGrant {
                    index: *index,
                    milli: 1000,
                    memory: memory(*index),
                })
                .collect(),
            device_set: None,
            priority: job.spec.priority,
        }
    }
}

/// A job by the name that quotas of its namespace count it under.
fn tag_of(job: &Job) -> String {
    format!("{}/{}", job.spec.namespace, job.id)
}

/// The ranks of a job, as people read of them in refusals.
fn ranks_of(job: &Job) -> String {
    format!("the ranks of {}", job.id)
}

#[cfg(test)]
mod tests;
