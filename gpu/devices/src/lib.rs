//! The accelerators of a machine, apart from any arithmetic on them: all that a runtime needs to hand
//! devices out.
//!
//! | module | what |
//! | --- | --- |
//! | [`topology`] | which device is in which machine, rack and zone |
//! | [`inventory`] | what a machine has, and its state, from NVIDIA's management library (feature `nvml`) or from fake devices |
//! | [`driver`] | what can be done with a device: contexts, memory, copies |
//! | [`memory`] | device memory given out under budgets |
//! | [`fault`] | what goes wrong with a device, and the remedy |
//! | [`fake`] | a cluster of devices that are not there, with a script of faults |
//!
//! The drivers of real devices are in `odeon-gpu`.
//!
//! This crate knows nothing of arithmetic, models, actors or networks.

pub mod driver;
pub mod fake;
pub mod fault;
pub mod inventory;
pub mod memory;
pub mod topology;
