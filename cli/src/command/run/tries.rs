//! Tries of a run without progress: lives of its trainer that all begin at the same place.

use std::pin::Pin;

use odeon::{Down, Reason, Ref};
use odeon_actors::engine::Progress;
use odeon_actors::rl::trainer::Trainer;

/// Counts the lives that began at the same checkpoint, one after the other.
#[derive(Debug, Default)]
pub(super) struct Tries {
    from: Option<Progress>,
    count: u32,
}

impl Tries {
    /// A life begins here. Returns true if so many have begun here that none will come further.
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

/// Hears why a life of the trainer ended.
pub(super) struct Watch {
    trainer: Ref<Trainer>,
    down: Option<Pin<Box<dyn Future<Output = Down> + Send>>>,
    last: Option<Reason>,
}

impl Watch {
    pub(super) fn new(trainer: Ref<Trainer>) -> Self {
        let mut watch = Self {
            trainer,
            down: None,
            last: None,
        };
        watch.again();
        watch
    }

    /// Another life has begun.
    pub(super) fn again(&mut self) {
        self.down = Some(Box::pin(self.trainer.down()));
    }

    /// Waits for the end of the life, once for each. Nothing is lost when that is given up.
    pub(super) async fn heard(&mut self) {
        let Some(down) = &mut self.down else {
            return std::future::pending().await;
        };
        let down = down.await;
        self.down = None;
        self.last = Some(down.reason);
    }

    /// That nothing comes of another life, and why the last one that was heard of ended.
    pub(super) fn given_up(&self) -> String {
        let times = Tries::MAX;
        let lost = format!("the trainer was lost {times} times and came to no further checkpoint");
        match &self.last {
            Some(reason) => format!("{lost}, the last time because {reason}"),
            None => lost,
        }
    }
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
