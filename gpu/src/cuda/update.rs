//! Steps of optimisers: a rule's kernel over its runs of the flat buffers.

use std::ops::Range;
use std::panic::panic_any;

use crate::cuda::buffer::CudaBuffer;
use crate::cuda::card::{Arg, Card};
use crate::cuda::error::CudaError;
use crate::cuda::handle::Cuda;
use crate::cuda::queue::chunks;
use crate::update_rule::{STATES_ALIGN, UpdateRule};

impl<C: Card> Cuda<C> {
    /// # Panics
    /// If the rule does not compile, or the card fails: operations have no results.
    #[track_caller]
    pub(super) fn updated<R: UpdateRule>(
        &self,
        runs: &[(Range<usize>, R)],
        params: &CudaBuffer<C>,
        grads: &CudaBuffer<C>,
        from: usize,
        states: &[&mut CudaBuffer<C>],
    ) {
        match self.card.prepare(R::TEXT) {
            Ok(()) => {}
            Err(CudaError::Fault(fault)) => panic_any(fault),
            Err(error) => panic!("{error}"),
        }
        let kept = R::TEXT.states.len();
        assert_eq!(states.len(), kept, "as many buffers as the rule keeps");
        assert!(from.is_multiple_of(STATES_ALIGN), "vectors are aligned");
        let mut queue = self.begun();
        for (range, rule) in runs {
            let shortest = states.iter().map(|state| from + state.len()).min();
            let shortest = shortest.unwrap_or(usize::MAX).min(grads.len());
            assert!(
                from <= range.start && range.end <= shortest.min(params.len()),
                "a run of the buffers"
            );
            let copy = params.rounded().map_or(0, |held| held.address);
            let count = range.len() as u64;
            let mut args = vec![
                Arg::Pointer(params.address()),
                Arg::Pointer(grads.address()),
            ];
            // As if they began with the parameters: the kernel has one index for all.
            let before = (4 * from) as u64;
            let begin = |state: &&mut CudaBuffer<C>| state.address().wrapping_sub(before);
            args.extend(states.iter().map(|state| Arg::Pointer(begin(state))));
            args.extend([
                Arg::Pointer(copy),
                Arg::U64(range.start as u64),
                Arg::U64(count),
            ]);
            args.extend(rule.numbers().into_iter().map(Arg::from));
            if count > 0 {
                queue.launch(R::TEXT, chunks(count + 3), 256, args);
            }
            if let Some(held) = params.rounded() {
                held.fresh.lock().insert(range.clone());
            }
        }
    }
}
