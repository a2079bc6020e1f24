//! Tests of graphs, schedules, splits and drawings.

mod brute_force;
mod bubble_table;
mod bubbles;
mod closed_forms;
mod drawing;
mod flaws;
mod graph;
mod layers;
mod naive;
mod properties;
