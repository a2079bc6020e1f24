//! Tests of plans: against brute force, on shapes of public models, and at the edges.

mod brute_force;
mod edges;
mod models;
mod padding_table;
mod plans;
mod roots;
