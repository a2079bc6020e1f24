//! Training runs that go wrong, from what their steps tell.
//!
//! A [`Watch`] is told the events of a run in their order, and answers what is found. It remembers a bounded
//! part of them: the same events give the same findings.
//!
//! The *noise* of a number is the deviation of a step about its neighbours: the root of half the mean
//! square of what it changes from step to step, which a slow trend hardly moves. A *window* is `w` steps
//! in a row, a twentieth of the run but 5 to 20; means over two windows differ by the noise times
//! `sqrt(2 / w)` where nothing has happened, here called the *error*.
//!
//! | finding | rule | source |
//! | --- | --- | --- |
//! | `reward_hacking` | since the first window, or since that in which most was right, what is trained on has risen by more than 0.05 and five errors; what is right by less than a quarter of that; and their distance has grown by more than 0.1 and five errors | the shape is that of Gao et al. 2022, arXiv 2210.10760 |
//! | the same, held out | held-out problems right have fallen from their best by more than 0.05 and five binomial errors, while what is trained on has risen by more than 0.05 and five errors | as above |
//! | `length_collapse` | the mean length of a window is below 0.6 of that of the first, `w` steps in a row | Balanced Actor Initialization, arXiv 2509.00309 |
//! | `hockey_stick` | in the first tenth of the run (or two windows) a window's reward is below that of the first three steps by more than two noises, four errors and 0.02, and later windows have come back by as much | as above |
//! | `entropy_collapse` | the entropy of a window is below a tenth of that of the first, `w` steps in a row, while less than 0.9 are right | DAPO, arXiv 2503.14476 |
//! | `loss_not_finite` | the loss of a rank is not a number, or infinite | |
//! | `gradient_corrupt` | a step was computed twice, and the gradient of a rank, or their sum, was another | ByteRobust, arXiv 2509.16293, replays steps to find corruption |
//! | `gradient_not_finite`, `gradient_spike` | the same, and it was the same | as above |
//!
//! A finding that goes on is told once; again when it was gone for three windows, or of held-out problems
//! in an evaluation, of a loss after a step in which it was finite. Of runs in which nothing
//! happens but independent noise, fewer than one in a hundred is told of, over 400 steps.

mod entropy_collapse;
mod event;
mod held_out;
mod history;
mod hockey_stick;
mod length_collapse;
mod loss_not_finite;
mod repeated_step;
mod reward_hacking;

use std::fmt::Debug;

pub use entropy_collapse::EntropyCollapse;
pub use event::{RankGradient, RepeatedStep, RlStep, RunEvent};
pub use held_out::HeldOut;
pub use hockey_stick::HockeyStick;
pub use length_collapse::LengthCollapse;
pub use loss_not_finite::LossNotFinite;
pub use repeated_step::{RepeatedSteps, UsualNorm};
pub use reward_hacking::RewardHacking;

use crate::{Detector, Finding};

/// The detectors of a run.
#[derive(Debug)]
pub struct Watch {
    detectors: Vec<Watched>,
}

/// A detector, and the last that it has found.
#[derive(Debug)]
struct Watched {
    detector: Box<dyn RunDetector>,
    last: Option<Finding<RunEvent>>,
}

/// A detector of runs that can be copied, since a run that begins anew goes on with a copy of its watch.
trait RunDetector: Detector<RunEvent> {
    fn copied(&self) -> Box<dyn RunDetector>;

    /// Returns true where the last that it has found goes on at this step.
    fn goes_on(&self, at: u64) -> bool;
}

/// Implements [`RunDetector`] for a detector, of which an expression says that what it found goes on.
macro_rules! run_detector {
    ($detector:ty, |$own:ident, $at:ident| $goes_on:expr) => {
        impl $crate::run::RunDetector for $detector {
            fn copied(&self) -> Box<dyn $crate::run::RunDetector> {
                Box::new(self.clone())
            }

            fn goes_on(&self, $at: u64) -> bool {
                let $own = self;
                $goes_on
            }
        }
    };
}
use run_detector;

impl Clone for Watch {
    fn clone(&self) -> Self {
        let detectors = self.detectors.iter().map(|it| Watched {
            detector: it.detector.copied(),
            last: it.last.clone(),
        });
        Self {
            detectors: detectors.collect(),
        }
    }
}

impl Watch {
    /// For a run of so many steps.
    #[must_use]
    pub fn new(steps: u64) -> Self {
        let detectors: [Box<dyn RunDetector>; 7] = [
            Box::new(RewardHacking::new(steps)),
            Box::new(HeldOut::new(steps)),
            Box::new(LengthCollapse::new(steps)),
            Box::new(HockeyStick::new(steps)),
            Box::new(EntropyCollapse::new(steps)),
            Box::new(LossNotFinite::default()),
            Box::new(RepeatedSteps::default()),
        ];
        let detectors = detectors.map(|detector| Watched {
            detector,
            last: None,
        });
        Self {
            detectors: detectors.into(),
        }
    }

    /// The findings that go on at this step, each as it began. One that is about a moment goes on for three windows.
    pub fn going_on(&self, at: u64) -> impl Iterator<Item = &Finding<RunEvent>> {
        let goes_on = self
            .detectors
            .iter()
            .filter(move |it| it.detector.goes_on(at));
        goes_on.filter_map(|it| it.last.as_ref())
    }
}

impl Detector<RunEvent> for Watch {
    /// Answers what begins with an event of the step `at`. One that is told of again, as after a restart,
    /// adds nothing, and neither does a step with a number that is none.
    fn observe(&mut self, seen: &RunEvent, at: u64) -> Vec<Finding<RunEvent>> {
        let detectors = self.detectors.iter_mut();
        let found = detectors.flat_map(|it| {
            let found = it.detector.observe(seen, at);
            if let Some(last) = found.last() {
                it.last = Some(last.clone());
            }
            found
        });
        found.collect()
    }
}

#[cfg(test)]
mod tests;
