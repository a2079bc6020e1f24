//! The export of what is seen: to a collector, as text that is scraped, and from one node to the next.

#![allow(clippy::unwrap_used, reason = "a test ends where something is wrong")]

mod collector;
mod exposition;
mod handover;
mod sights;
