//! Inputs of objectives: their check, and what is wrong with them.

/// Why an objective could not be evaluated. Nothing was computed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ObjectiveError {
    /// Two inputs that must have one entry per token (or sequence) differ in length.
    #[error("`{what}` has {given} entries where {expected} are expected")]
    Length {
        /// The input.
        what: &'static str,
        /// Its length.
        given: usize,
        /// The length it should have.
        expected: usize,
    },
    /// An input is infinite or not a number: the forward pass has diverged, or masked tokens were
    /// given in.
    #[error("`{what}` is not finite at {at}")]
    NotFinite {
        /// The input.
        what: &'static str,
        /// The index of its first such entry.
        at: usize,
    },
    /// A term of the loss is configured, but the input it needs is absent.
    #[error("`{what}` is needed by the configured objective, but absent")]
    Absent {
        /// The input.
        what: &'static str,
    },
    /// The totals of the optimiser step are smaller than this micro-batch.
    #[error("the step's totals are smaller than one of its micro-batches")]
    Totals,
}

/// Checks an input's length and that all of it is finite.
pub(super) fn check(
    what: &'static str,
    values: &[f32],
    expected: usize,
) -> Result<(), ObjectiveError> {
    if values.len() != expected {
        return Err(ObjectiveError::Length {
            what,
            given: values.len(),
            expected,
        });
    }
    match values.iter().position(|value| !value.is_finite()) {
        Some(at) => Err(ObjectiveError::NotFinite { what, at }),
        None => Ok(()),
    }
}
