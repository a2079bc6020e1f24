//! Harness shared by the tests in `tests/`: see each module.

pub mod peer;
pub mod wires;
