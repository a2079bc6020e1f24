//! Harness shared by the tests in `tests/`: see each module.
//!
//! # Files
//!
//! | file | holds |
//! | --- | --- |
//! | `wires`, `peer` | two systems with a wire that can be slowed, damaged and cut; another node as a process of its own |
//! | `bin/job`, `bin/stranger` | programs of jobs, for tests of clusters |
//! | `record/*` | the runs that `odeon demo` shows |

pub mod peer;
pub mod wires;
