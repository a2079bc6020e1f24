//! Roles, runs and hosted programs with real processes and under virtual time, in one binary: a test
//! that starts it again names its module (see `odeon_tests::again`).

#![allow(clippy::unwrap_used, reason = "a test ends where something is wrong")]

mod cards;
mod exec;
mod failures;
mod gangs;
mod group_test;
mod hybrid;
mod judged;
mod learned;
mod legacy;
mod pretrain;
mod ranked;
mod ranks;
mod relays;
mod reshard;
mod rewards;
mod rl;
mod served;
mod simulated;
mod tools;
mod versions;
