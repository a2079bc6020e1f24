//! Pictures beside Pillow and the processors of transformers, and bytes that are no pictures.

#![allow(clippy::unwrap_used, reason = "a test ends where something is wrong")]

mod broken;
mod extracts;
mod formats;
mod patches;
mod positions;
mod sizes;
