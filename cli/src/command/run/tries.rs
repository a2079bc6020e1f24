//! Whether a run gets on: lives of its trainer that all begin at the same place do not.

use odeon_actors::engine::Progress;

/// Counts the lives that began at the same checkpoint, one after the other.
#[derive(Debug, Default)]
pub(super) struct Tries {
    from: Option<Progress>,
    count: u32,
}

impl Tries {
    /// A life begins here. Whether so many have begun here that none will come further.
    #[must_use]
    pub(super) fn begin(&mut self, from: Progress) -> bool {
        if self.from == Some(from) {
            self.count += 1;
        } else {
            *self = Self {
                from: Some(from),
                count: 1,
            };
        }
        self.count > Self::MAX
    }

    /// The most lives from one checkpoint. Whoever kills trainers by hand stays below.
    pub(super) const MAX: u32 = 10;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SEMANTICS 38.
    #[test]
    fn only_lives_without_a_new_checkpoint_between_them_are_too_many() {
        let at = |version| Progress { warmup: 4, version };
        let mut tries = Tries::default();
        for version in 0..100 {
            for _ in 0..Tries::MAX {
                assert!(!tries.begin(at(version)));
            }
        }
        assert!(tries.begin(at(99)));
        assert!(!tries.begin(at(100)), "it came further after all");
    }
}
