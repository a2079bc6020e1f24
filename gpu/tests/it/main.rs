//! The back-ends, the driver and communicators, on the processor, on the emulated card and on real cards
//! where there are some. `scripts/gpu-check` runs what needs a card module by module, each
//! in a process of its own, so that what one leaves on a card reaches no other.

#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod cpu;
mod cuda;
mod emulated;
mod emulated_nccl;
mod ipc;
mod lacking;
mod nccl;
mod nvrtc;
