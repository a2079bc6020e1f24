//! Pictures and sound beside other libraries, and bytes that are neither.

#![allow(clippy::unwrap_used, reason = "a test ends where something is wrong")]

mod broken;
mod extracts;
mod formats;
mod patches;
mod photographs;
mod positions;
mod sizes;
mod sounds;
