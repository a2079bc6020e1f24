//! Looking on in a terminal: what `odeon top` knows, how keys and news change that, and how it is
//! drawn. All of it is pure; [`terminal`] alone touches the terminal and the network.

pub(crate) mod draw;
mod machines;
mod mesh;
pub(crate) mod model;
mod page;
mod panel;
pub(crate) mod rows;
pub(crate) mod signs;
pub(crate) mod terminal;
#[cfg(test)]
mod tests;
