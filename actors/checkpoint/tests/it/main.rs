//! Checkpoints of whole jobs: ranks of one process that save and load, over folders, memory, and a
//! server that speaks S3.

#![allow(clippy::unwrap_used, reason = "a test ends where something is wrong")]

mod agreement;
mod crashes;
mod damage;
mod faulty;
mod golden;
mod layouts;
mod memory;
mod s3;
mod whole;
mod world;
