//! Parameters that lie whole on a rank, as passes read them where these are rounded.

use odeon_gpu::Backend;

/// Numbers that are rounded at a time: so much memory is all that bf16 takes.
const AT_ONCE: usize = 1 << 20;

/// Rounded copies of parameter sets, until the parameters change.
#[derive(Debug)]
pub(super) struct Rounded<B: Backend> {
    sets: Vec<B::Buffer>,
    /// Numbers of bf16 on their way, two in each.
    halves: B::Buffer,
    is_current: bool,
}

impl<B: Backend> Default for Rounded<B> {
    fn default() -> Self {
        Self {
            sets: vec![],
            halves: B::Buffer::default(),
            is_current: false,
        }
    }
}

impl<B: Backend> Rounded<B> {
    /// Has them made anew when they are read next.
    pub(super) fn forget(&mut self) {
        self.is_current = false;
    }

    /// Each number of these sets as it is in bf16, in 32 bits.
    pub(super) fn of(&mut self, backend: &B, sets: &[&B::Buffer]) -> &[B::Buffer] {
        if !self.is_current {
            self.sets.resize_with(sets.len(), B::Buffer::default);
            let longest = sets.iter().map(|set| B::len(set)).max().unwrap_or(0);
            let words = longest.min(AT_ONCE).div_ceil(2);
            if B::len(&self.halves) < words {
                self.halves = backend.alloc(words);
            }
            for (copy, set) in self.sets.iter_mut().zip(sets) {
                if B::len(copy) != B::len(set) {
                    // Never both at once.
                    *copy = B::Buffer::default();
                    *copy = backend.alloc(B::len(set));
                }
                round(backend, set, copy, &mut self.halves);
            }
            self.is_current = true;
        }
        &self.sets
    }

    /// Numbers of the copies.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.sets.iter().map(B::len).sum()
    }
}

/// Writes the numbers of a buffer, rounded to bf16, to one of the same length.
fn round<B: Backend>(backend: &B, from: &B::Buffer, to: &mut B::Buffer, halves: &mut B::Buffer) {
    let len = B::len(from);
    for first in (0..len).step_by(AT_ONCE) {
        let part = first..len.min(first + AT_ONCE);
        let pairs = part.len() / 2;
        let (words, paired) = (0..pairs, first..first + 2 * pairs);
        if pairs > 0 {
            let rounded = B::view_mut(halves, words.clone());
            backend.narrow(B::view(from, paired.clone()), rounded);
            backend.widen(B::view(halves, words), B::view_mut(to, paired.clone()));
        }
        // Two are rounded together, so the last of an odd number has itself beside it.
        if paired.end < part.end {
            let last = paired.end..part.end;
            let mut two = backend.alloc(2);
            for place in [0..1, 1..2] {
                let number = B::view(from, last.clone());
                backend.copy(number, B::view_mut(&mut two, place));
            }
            backend.narrow(B::view(&two, 0..2), B::view_mut(halves, 0..1));
            backend.widen(B::view(halves, 0..1), B::view_mut(&mut two, 0..2));
            backend.copy(B::view(&two, 0..1), B::view_mut(to, last));
        }
    }
}

#[cfg(test)]
mod tests {
    use odeon_gpu::Cpu;

    use super::*;

    #[test]
    fn every_number_is_rounded_to_the_nearest_of_bf16_also_the_last_of_an_odd_number() {
        let cpu = Cpu::new(1);
        for len in [0, 1, 2, 5, AT_ONCE - 1, AT_ONCE, AT_ONCE + 1, AT_ONCE + 3] {
            let numbers = (0..len).map(|at| (at as f32).sin() * 3.0);
            let numbers: Vec<f32> = numbers.collect();
            let buffer = cpu.buffer(&numbers);
            let mut rounded = Rounded::default();
            let [got] = rounded.of(&cpu, &[&buffer]) else {
                panic!("one set")
            };
            let want = numbers.iter().map(|it| half::bf16::from_f32(*it).to_f32());
            assert!(cpu.to_vec(got).into_iter().eq(want), "{len} numbers");
        }
    }
}
