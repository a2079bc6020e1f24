//! Models on whichever device a process opens.

use odeon_algorithms::{generate, model, train};
use odeon_gpu::Any;

/// A model.
pub(crate) type Model = model::Model<Any>;
/// A model that generates.
pub(crate) type Generator = generate::Generator<Any>;
/// A model that learns.
pub(crate) type Optimizer = train::Trainer<Any>;
