//! The steps of a recorded pipeline as a trace for what-if analysis.

use anyhow::{Result, bail};
use odeon_observe::passes::RankPlaces;
use odeon_replay::StepTrace;

use super::replay::Replay;

impl Replay {
    /// The steps of the run of a recording, as far as the pages could show them at its end.
    ///
    /// # Errors
    /// The recording is damaged, or has no run with a pipeline or several.
    pub(crate) fn traced_steps(&self) -> Result<StepTrace> {
        self.stand_at(self.recording().to())?;
        let found = self.inspect().shown(|shown| {
            let runs = shown.recorded_by_run();
            let places = runs
                .values()
                .filter_map(|recorded| RankPlaces::of(recorded));
            let steps = places.filter_map(|it| it.traced_steps(shown.seen, usize::MAX));
            steps.map(|it| it.0).collect::<Vec<_>>()
        });
        let [trace] = <[StepTrace; 1]>::try_from(found).or_else(|found| match found.len() {
            0 => bail!(
                "no run in it has a pipeline whose passes were recorded: train with parallel.pp of 2 or more, and \
                 record it (odeon run RECIPE --record FILE)"
            ),
            runs => bail!("it has {runs} runs with a pipeline: record one alone"),
        })?;
        Ok(trace)
    }
}
