//! Attribute and derive macros of odeon.
