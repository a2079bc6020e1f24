//! Checkpoints that load in any layout.

#![forbid(unsafe_code)]
