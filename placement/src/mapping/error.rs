//! Why there is no mapping.

use super::degrees::Degrees;

/// Why models could not be mapped. Nothing has happened; the input has to change.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum MappingError {
    /// There is nothing to map.
    #[error("the workload has no models; add at least one")]
    NoModels,
    /// There is nothing to map to.
    #[error("the pools have no devices; add a pool with at least one")]
    NoDevices,
    /// The search would take too long.
    #[error(
        "{count} models are more than {limit}, the most that are mapped exactly; \
         give models that always run together as one"
    )]
    TooManyModels {
        /// Models in the workload.
        count: usize,
        /// The most allowed.
        limit: usize,
    },
    /// Two models, stages or pools have the same name, so that an answer would be ambiguous.
    #[error("two {what}s are named {name}; rename one")]
    Duplicate {
        /// `model`, `stage` or `pool`.
        what: &'static str,
        /// The name they share.
        name: String,
    },
    /// A task names a model that is not in the workload.
    #[error("stage {stage} names the model {model}, which is not one of: {}", known.join(", "))]
    UnknownModel {
        /// The task's stage.
        stage: String,
        /// The name it uses.
        model: String,
        /// The names that exist.
        known: Vec<String>,
    },
    /// A model would hold memory and never run.
    #[error("the model {model} has no task in any stage; give it one or leave it out")]
    UnusedModel {
        /// The model.
        model: String,
    },
    /// A quantity that must be positive is zero.
    #[error("{field} of {of} is 0; it must be at least 1")]
    Zero {
        /// The owner of the field: a model, a pool, or a task of a stage.
        of: String,
        /// The field.
        field: &'static str,
    },
    /// A speed is zero, negative, infinite or not a number.
    #[error("{field} of pool {pool} is {value}; it must be a positive number")]
    Speed {
        /// The pool.
        pool: String,
        /// The field.
        field: &'static str,
        /// Its value, in FLOP/s or B/s.
        value: f64,
    },
    /// The cost model gave a time that is negative, infinite or not a number.
    #[error(
        "the cost model says {value} s for {model} in stage {stage} as {parallel} on pool {pool}; \
         it must say a finite time"
    )]
    Price {
        /// The model.
        model: String,
        /// The stage.
        stage: String,
        /// The strategy.
        parallel: Degrees,
        /// The pool.
        pool: String,
        /// The time that it gave, seconds.
        value: f64,
    },
    /// A model does not fit even when it has a whole pool to itself.
    #[error(
        "the model {model} fits on no pool: on {pool}, the largest, it needs {:.1} GB on each of \
         {devices} devices and they have {:.1} GB to use ({:.1} GB in all); \
         add devices or memory, or take a smaller model",
        gb(*needs_bytes), gb(*usable_bytes), gb(*pool_bytes)
    )]
    NoFit {
        /// The model.
        model: String,
        /// The pool with most memory in all.
        pool: String,
        /// Over how many of its devices the model is spread when it needs least of each.
        devices: u32,
        /// Memory that it needs of each of them then, bytes.
        needs_bytes: u64,
        /// Memory of each of them that models may use, bytes.
        usable_bytes: u64,
        /// Memory of the whole pool that models may use, bytes.
        pool_bytes: u64,
    },
    /// Each model fits when it is alone, but no way was found to fit all: there is none.
    #[error(
        "the models fit one at a time but not together: they need at least {:.1} GB and the \
         pools have {:.1} GB to use, in pieces that do not hold them; \
         add devices or memory, or map fewer models",
        gb(*needs_bytes), gb(*usable_bytes)
    )]
    NoRoomTogether {
        /// Sum over the models of the least that each needs over all its devices, bytes.
        needs_bytes: u64,
        /// Memory of all devices that models may use, bytes.
        usable_bytes: u64,
    },
}

/// Bytes as decimal gigabytes.
pub(super) fn gb(bytes: u64) -> f64 {
    bytes as f64 / 1e9
}
