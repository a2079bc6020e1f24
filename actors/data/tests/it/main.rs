//! Sources in a bucket, and the data plane with real processes.

#![allow(clippy::unwrap_used, reason = "a test ends where something is wrong")]

mod bucket;
mod plane;
