//! Fake devices: memory, bandwidths, latencies, topology and faults from a specification.
//!
//! ```text
//!  Spec ── Fake (all machines, one virtual clock, the script of faults)
//!            ├─ machine("node0") ─> Machine: Driver + Probe
//!            └─ machine("node1") ─> Machine: Driver + Probe
//! ```
//!
//! There is no wall clock and no chance: time passes when [`Fake::advance`] is called, and faults
//! strike at their virtual time or operation, so a simulation with a seed repeats itself. The bytes
//! that are copied are real, so that a test sees what arrives.
//!
//! ```
//! use std::time::Duration;
//!
//! use odeon_devices::driver::Driver;
//! use odeon_devices::fake::{Fake, Spec, Strike, When};
//! use odeon_topology::DeviceModel;
//!
//! let spec = Spec::cluster(1, DeviceModel::default()).fault("node0/gpu3", When::Ms(5), Strike::Xid(79));
//! let fake = Fake::new(spec)?;
//! let mut machine = fake.machine("node0").expect("the specification has it");
//! assert!(machine.health(3).is_ok());
//! fake.advance(Duration::from_millis(5));
//! let fault = machine.health(3).unwrap_err();
//! assert_eq!(fault.to_string(), "device 3: the device has fallen off the bus");
//! # Ok::<(), odeon_devices::fake::SpecError>(())
//! ```

mod bytes;
mod card;
mod machine;
mod probe;
mod space;
mod spec;
#[cfg(test)]
mod tests;
mod world;

use odeon_topology::{Level, Topology};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;

pub use machine::Machine;
pub use spec::{Scripted, Spec, SpecError, SpecErrorKind, Strike, When};
use world::World;

/// Process number of the one from outside that takes memory in [`Strike::Oom`].
pub const FOREIGN_PROCESS: u32 = u32::MAX;

/// The fake devices of a whole cluster. Clones are the same devices.
#[derive(Clone, Debug)]
pub struct Fake {
    world: Arc<Mutex<World>>,
}

impl Fake {
    /// The nodes by name, in the order of the specification.
    #[must_use]
    pub fn nodes(&self) -> Vec<String> {
        let world = self.world.lock();
        let elements = world.topology.elements().iter();
        let nodes = elements.filter(|element| element.level == Level::Node);
        nodes.map(|node| node.name.clone()).collect()
    }

    /// The devices of a specification, at virtual time zero.
    ///
    /// # Errors
    ///
    /// What is wrong with the specification.
    pub fn new(spec: Spec) -> Result<Self, SpecError> {
        let topology = spec.check()?;
        let world = Arc::new(Mutex::new(World::new(spec, topology)));
        Ok(Self { world })
    }

    /// The devices of one node, by its name. Every call opens it anew: contexts and memory belong
    /// to the handle, devices to the cluster.
    #[must_use]
    pub fn machine(&self, node: &str) -> Option<Machine> {
        let cards = self.world.lock().cards_of(node)?;
        Some(Machine::new(Arc::clone(&self.world), cards))
    }

    /// Lets virtual time pass, and what is scripted for it happen.
    pub fn advance(&self, by: Duration) {
        self.world.lock().advance(by);
    }

    /// Virtual time since the start.
    #[must_use]
    pub fn now(&self) -> Duration {
        self.world.lock().now
    }

    /// Lets something befall a device now; whether there is a device of this name.
    #[must_use = "nothing happens when there is no such device"]
    pub fn strike(&self, device: &str, what: Strike) -> bool {
        self.world.lock().strike(device, what)
    }

    /// A person replaces or resets a device: its own faults are gone, its speed is back, memory
    /// that was taken from outside is free. Processes whose contexts broke stay broken. Returns
    /// true if there is a device of this name.
    #[must_use = "nothing happens when there is no such device"]
    pub fn repair(&self, device: &str) -> bool {
        self.world.lock().repair(device)
    }

    /// Where the devices are.
    #[must_use]
    pub fn topology(&self) -> Topology {
        self.world.lock().topology.clone()
    }
}
