//! Properties of plans, over worlds of synthetic sources.

mod placing;
mod sets;
mod sharing;
mod sources;
mod world;
