//! Harness shared by the tests in `tests/`: see each module.

pub mod wires;
