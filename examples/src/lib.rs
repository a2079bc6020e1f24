//! Short runnable stories: one file each, beside this folder.
//!
//! ```text
//! cargo run -p odeon-examples --example counter
//! ```
//!
//! Each prints what happens and fails when it does not.
