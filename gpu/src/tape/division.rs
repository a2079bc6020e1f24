//! The ways in which a backward pass is run.

/// A choice between one backward pass and two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Division<'a> {
    /// One.
    #[default]
    Whole,
    /// Two, over parameter sets that are here all the time.
    Resident,
    /// Two, over sets that come when they are read. Gradients of some come in the first, and of others in the second:
    /// what norms have for these waits until then. Each comes once, unless an embedding or a head reads one of these.
    Sets {
        /// Set for each whose gradient comes in the second.
        later: &'a [bool],
    },
}
