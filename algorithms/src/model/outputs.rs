//! The outputs that a pass is asked for, and what it answers.

use odeon_gpu::{Var, VocabVars};

use super::recompute::Recompute;

/// The outputs of a forward pass at the rows of the response tokens.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    pub(crate) logprobs: bool,
    pub(crate) values: bool,
    /// Set where the head that predicts one token further is wanted, if there is one.
    pub(crate) next_token: bool,
    /// What a backward pass computes again, where there is one.
    pub(crate) recompute: Recompute,
    /// Set where what layers keep for it leaves the device meanwhile.
    pub(crate) offload: bool,
}

/// One number a response token each.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outputs {
    pub(crate) vocab: Option<VocabVars>,
    pub(crate) values: Option<Var>,
    /// Scores of the head that predicts one token further.
    pub(crate) next_token: Option<VocabVars>,
}

/// Features of pictures as one more parameter set: a row of zeros, then a row each.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    /// The number of the set.
    pub(crate) set: usize,
    /// Rows, that of zeros among them.
    pub(crate) rows: usize,
}

/// The rows that go into a stage, and what comes out of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StageVars {
    /// Rows of the stage before, where there is one.
    pub(crate) input: Option<Var>,
    pub(crate) output: StageOutput,
}

/// The output of a stage.
#[derive(Clone, Copy, Debug)]
pub(crate) enum StageOutput {
    /// Rows for the next one.
    Rows(Var),
    /// Scores, of the last one.
    Scores(Outputs),
}
