//! Under construction.

pub mod task;
