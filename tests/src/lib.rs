//! Harness shared by tests that cross crates and processes: see each module.
//!
//! # Files
//!
//! | file | holds |
//! | --- | --- |
//! | `again` | test binaries that start themselves again, for workers, other nodes and tests that want a process alone |
//! | `wires`, `peer` | two systems with a wire that can be slowed, damaged and cut; another node as a process of its own |
//! | `cases` | stories of what newcomers' programs do, for `bin/mishap` and simulations |
//! | `bin/job`, `bin/stranger` | programs of jobs, for tests of clusters |
//! | `bin/mishap` | a program in which something goes wrong, alone or as a job |
//! | `flow_faults/*` | sixteen processes that do collectives, in one of which something goes wrong |
//! | `record/*` | the runs that `odeon demo` shows |

pub mod again;
pub mod cases;
pub mod peer;
pub mod wires;
