//! Sources of inventories: the fake one, that of this machine, and a driver that behaves as it is told.

#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod devices;
#[cfg(feature = "nvml")]
mod nvml;
