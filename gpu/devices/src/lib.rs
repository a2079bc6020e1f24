//! The accelerators of a machine, apart from any arithmetic on them: all that a runtime needs to hand
//! devices out.
//!
//! The drivers of real devices are in `odeon-gpu`.
//!
//! This crate knows nothing of arithmetic, models, actors or networks.
//!
//! # Files
//!
//! | file | holds |
//! | --- | --- |
//! | `inventory`, `inventory/*` | the accelerators of a machine and their state: by NVIDIA's library (`nvml`, with `nvml/xid` for its events), without it (`absent`), by the kernel's files (`sysfs`); a value or why there is none (`reading`); one suite for every source (`conformance`) |
//! | `fault` | faults of a device, and the remedy for each |
//! | `driver`, `driver/conformance` | the interface between the runtime and devices; one suite that every driver passes |
//! | `memory`, `memory/*` | device memory: a caching allocator with a byte budget for each owner; segments cut into pieces (`pieces`) |
//! | `fake`, `fake/*` | devices that are not there: memory, bandwidths, topology and faults from a specification (`spec`), all under one virtual clock (`world`); those of a node as a driver (`machine`) and as an inventory (`probe`) |

pub mod driver;
pub mod fake;
pub mod fault;
pub mod inventory;
pub mod memory;
