//! Parameter sets that come to a pass when an operation reads them.

use crate::backend::Backend;

/// The parameter sets of a pass, one buffer each. Ranks that keep a shard of each set gather it here before operations
/// that read it, and add up its gradient over all of them behind these.
///
/// A pass tells of every operation before it runs; so sets come in the order in which they were recorded, and on the
/// way back in the other one. Gradients are added to one buffer a set, which a [`bring_back`](Self::bring_back) may put
/// there, and a later call may take away again.
///
/// A backward pass in [two](super::Tape::backward_inputs) tells of operations twice, each time of what they need then.
pub trait PassParams<B: Backend>: Send {
    /// The buffer of a set that has been brought.
    fn buffer(&self, set: usize) -> &B::Buffer;

    /// Tells before a pass which sets its operations will read, in their order: what comes next may be brought while the
    /// pass computes.
    fn announce(&mut self, _sets: &mut dyn Iterator<Item = usize>) {}

    /// Brings a set: the operation of a forward pass that comes next reads it.
    fn bring(&mut self, backend: &B, set: usize);

    /// Brings a set, its gradient or both: the operation of a backward pass that comes next needs them.
    fn bring_back(
        &mut self,
        backend: &B,
        set: usize,
        needs: SetNeeds,
        gradients: &mut [Option<B::Buffer>],
    );

    /// Called at the end of a forward pass.
    fn end(&mut self, backend: &B);

    /// Called at the end of a backward pass.
    fn end_back(&mut self, backend: &B, gradients: &mut [Option<B::Buffer>]);
}

/// Needs of an operation of a backward pass in a parameter set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetNeeds {
    /// Set where it reads the parameters.
    pub reads: bool,
    /// Set where it adds to their gradient.
    pub adds: bool,
}

/// Parameter sets that are here all the time.
pub struct Resident<'a, B: Backend>(
    /// The buffer of each set.
    pub &'a [&'a B::Buffer],
);

impl<B: Backend> std::fmt::Debug for Resident<'_, B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Resident").finish_non_exhaustive()
    }
}

impl<B: Backend> PassParams<B> for Resident<'_, B> {
    fn buffer(&self, set: usize) -> &B::Buffer {
        self.0[set]
    }

    fn bring(&mut self, _: &B, _: usize) {}

    fn bring_back(&mut self, _: &B, _: usize, _: SetNeeds, _: &mut [Option<B::Buffer>]) {}

    fn end(&mut self, _: &B) {}

    fn end_back(&mut self, _: &B, _: &mut [Option<B::Buffer>]) {}
}
