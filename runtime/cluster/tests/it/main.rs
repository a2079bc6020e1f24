//! The cluster with real nodes on loopback, and without any, under faults of every kind.

mod lives;
mod simulation;
