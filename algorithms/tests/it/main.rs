//! Models that others have made: files that PyTorch wrote, and a real model where it was fetched.

#![allow(clippy::unwrap_used, reason = "a test ends where something is wrong")]
#![allow(clippy::print_stdout, reason = "a test reports what it measured")]

mod brought;
mod conversations;
mod golden;
mod smollm2;
#[path = "../golden/unpack.rs"]
mod unpack;
