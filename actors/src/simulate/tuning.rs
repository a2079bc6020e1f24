//! The best setting of a mode, by short runs of what the search wants to know.

use std::collections::BTreeMap;

use odeon::Failure;

use super::mode::Mode;
use super::scenario::{ModelSection, Scenario};
use super::search::{self, Axis, Known, Next, Point};
use super::{Outcome, Searched, Written};

/// The settings that are tried: what the coordinates of a [`Point`] mean.
struct Settings<'a> {
    scenario: &'a Scenario,
    written: &'a ModelSection,
    gpus: u32,
    mode: Mode,
    /// Cards of a rollout, by the first coordinate.
    cards: Vec<u32>,
    /// Machines in all. The second coordinate is how many of them roll out.
    machines: u32,
}

/// All of a setting that a run depends on: cards of a rollout, rollouts, and replies of each.
type Effect = (u32, usize, u32);

impl Scenario {
    /// Simulates one run with the setting that suits the mode best, as far as short runs with others
    /// can tell, and one with the setting of the file; gives the better.
    ///
    /// The part of the machines that roll out, the cards of a rollout and the bound on its replies
    /// under way are searched, from the setting of the file on.
    ///
    /// # Errors
    /// As those of [`run`](Self::run), with the setting of the file.
    pub fn run_best(
        &self,
        model: &ModelSection,
        gpus: u32,
        mode: Mode,
    ) -> Result<Outcome, Failure> {
        let written = self.run(model, gpus, mode)?;
        let settings = Settings::new(self, model, gpus, mode)?;
        let trial = self.trial();
        let found = settings.search(|section| {
            let outcome = trial.run(section, gpus, mode)?;
            Ok(outcome.tokens_per_s)
        })?;
        let mut best = written.clone();
        if let Some(other) = &found.section {
            let other = self.run(other, gpus, mode)?;
            // What is best over a few steps need not be over many.
            if other.tokens_per_s > best.tokens_per_s {
                best = other;
            }
        }
        best.searched = Some(Searched {
            trials: found.trials,
            written: Written {
                tokens_per_s: written.tokens_per_s,
                rollout_gpus: written.rollout_gpus,
                replica_gpus: written.replica_gpus,
                under_way: written.under_way,
            },
        });
        Ok(best)
    }

    /// The same scenario with few steps, and with nothing lost.
    fn trial(&self) -> Self {
        let mut trial = self.clone();
        trial.failure = None;
        if self.search.iterations < self.simulation.iterations {
            trial.simulation.iterations = self.search.iterations;
            trial.simulation.skip = self.search.skip;
        }
        trial
    }
}

/// Results of a search.
struct Found {
    /// The best setting, if it is not that of the file.
    section: Option<ModelSection>,
    /// Settings that were tried.
    trials: u32,
}

impl<'a> Settings<'a> {
    fn new(
        scenario: &'a Scenario,
        written: &'a ModelSection,
        gpus: u32,
        mode: Mode,
    ) -> Result<Self, Failure> {
        let mut cards = scenario.search.rollout_gpus.clone();
        cards.push(written.rollout_gpus);
        cards.sort_unstable();
        cards.dedup();
        Ok(Self {
            scenario,
            written,
            gpus,
            mode,
            cards,
            machines: gpus.div_ceil(scenario.card().device.per_node),
        })
    }

    /// The best setting by the rates of trials, of which there are as many as the scenario allows.
    fn search(
        &self,
        mut trial: impl FnMut(&ModelSection) -> Result<f64, Failure>,
    ) -> Result<Found, Failure> {
        let (axes, start) = (self.axes(), self.start()?);
        let written = self.effect(self.written)?;
        let mut rates = BTreeMap::<Effect, f64>::new();
        let mut known = Known::new();
        while let Next::Try(point) = search::next(&axes, start, &known) {
            let rate = match self.at(point) {
                None => None,
                Some((section, effect)) => {
                    if !rates.contains_key(&effect) {
                        if rates.len() >= self.scenario.search.runs as usize {
                            break;
                        }
                        rates.insert(effect, trial(&section)?);
                    }
                    rates.get(&effect).copied()
                }
            };
            known.insert(point, rate);
        }
        let best = self.at(search::best(start, &known));
        let other = best.filter(|(_, effect)| *effect != written);
        Ok(Found {
            section: other.map(|(section, _)| section),
            trials: rates.len() as u32,
        })
    }

    fn axes(&self) -> [Axis; 3] {
        let cards = Axis {
            least: 0,
            most: self.cards.len() as u32 - 1,
            stride: 1,
        };
        let machines = match self.mode.is_apart() {
            true => Axis {
                least: 1,
                most: self.machines - 1,
                stride: self.machines / MACHINE_STRIDES,
            },
            // All of them, always.
            false => Axis {
                least: self.machines,
                most: self.machines,
                stride: 1,
            },
        };
        let bounds = Axis {
            least: 0,
            most: RUNGS,
            stride: 2,
        };
        [cards, machines, bounds]
    }

    /// The point of the setting of the file, or the next below where it bounds replies otherwise.
    fn start(&self) -> Result<Point, Failure> {
        let at = self
            .cards
            .iter()
            .position(|it| *it == self.written.rollout_gpus);
        let rolling = match self.mode.is_apart() {
            true => self
                .scenario
                .rollout_machines(self.written, self.machines)?,
            false => self.machines,
        };
        let open = ModelSection {
            batch_max: None,
            ..self.written.clone()
        };
        let (_, _, most) = self.effect(&open)?;
        let below = |rung: &u32| match (search::bound(most, *rung), self.written.batch_max) {
            (Some(Some(bound)), Some(written)) => bound <= written,
            (Some(None), Some(written)) => most <= written,
            (_, None) | (None, _) => true,
        };
        let rung = (0..RUNGS).find(below).unwrap_or(RUNGS);
        Ok([at.unwrap_or(0) as u32, rolling, rung])
    }

    /// The setting at a point, and what it comes to; `None` where the model does not fit, or nothing is
    /// left to be bounded.
    fn at(&self, [cards, rolling, rung]: Point) -> Option<(ModelSection, Effect)> {
        let mut section = ModelSection {
            rollout_gpus: *self.cards.get(cards as usize)?,
            batch_max: None,
            ..self.written.clone()
        };
        if self.mode.is_apart() {
            section.rollout_share = Some(f64::from(rolling) / f64::from(self.machines));
        }
        let (_, _, most) = self.effect(&section).ok()?;
        section.batch_max = search::bound(most, rung)?;
        let effect = self.effect(&section).ok()?;
        Some((section, effect))
    }

    fn effect(&self, section: &ModelSection) -> Result<Effect, Failure> {
        let planned = self.scenario.plan(section, self.gpus, self.mode)?;
        Ok((section.rollout_gpus, planned.rollouts, planned.under_way))
    }
}

/// The first change of the number of machines that roll out is a part of all of them.
const MACHINE_STRIDES: u32 = 8;

/// Bounds on replies of a rollout that are tried: down to a sixty-fourth of what it would have.
const RUNGS: u32 = 12;

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"
[simulation]
name = "small"
card = "h800"
gpus = [64]
iterations = 6
skip = 2
modes = ["laminar"]

[workload]
prompts = 64
group_size = 8
kind = "math"

[[model]]
size = "qwen2.5-32b"
rollout_gpus = 4
trainer_tensor = 4
rollout_share = 0.5
in_flight = 1.0
"#;

    fn scenario(more: &str) -> Scenario {
        Scenario::parse(&format!("{TEXT}{more}")).unwrap()
    }

    /// Cards of a rollout, share, and bound.
    type Setting = (u32, Option<f64>, Option<u32>);

    /// The setting that a search takes for a made-up rate, and its trials.
    fn search(
        scenario: &Scenario,
        mode: Mode,
        rate: impl Fn(&ModelSection) -> f64,
    ) -> (Option<Setting>, Vec<ModelSection>) {
        let settings = Settings::new(scenario, &scenario.model[0], 64, mode).unwrap();
        let mut tried = vec![];
        let found = settings.search(|section| {
            tried.push(section.clone());
            Ok(rate(section))
        });
        let found = found.unwrap();
        assert_eq!(found.trials as usize, tried.len());
        let setting = found
            .section
            .map(|it| (it.rollout_gpus, it.rollout_share, it.batch_max));
        (setting, tried)
    }

    /// Of a rollout's bound, how far it is from one: as many replies as there are, if it has none.
    fn off(section: &ModelSection, wanted: f64) -> f64 {
        (section.batch_max.map_or(512.0, f64::from) / wanted)
            .ln()
            .abs()
    }

    #[test]
    fn the_best_of_all_three_is_found_and_what_does_not_fit_is_not_tried() {
        let scenario = scenario("");
        let (found, tried) = search(&scenario, Mode::Laminar, |it| {
            let share = it.rollout_share.unwrap();
            10.0 - 4.0 * (share - 0.75).abs() - off(it, 16.0) + f64::from(it.rollout_gpus) / 10.0
        });
        // A trainer of 32B has 16 cards at least, and 48 of 64 leave it so many.
        assert_eq!(found, Some((8, Some(0.75), Some(16))));
        assert!(tried.iter().all(|it| it.rollout_share <= Some(0.75)));
        assert!(tried.len() <= 16);
    }

    #[test]
    fn the_setting_of_the_file_is_kept_where_nothing_is_better() {
        let (found, tried) = search(&scenario(""), Mode::Laminar, |it| {
            f64::from(u8::from(it.rollout_gpus == 4 && it.batch_max.is_none()))
                - (it.rollout_share.unwrap() - 0.5).abs()
        });
        assert_eq!(found, None);
        assert_eq!(tried[0].rollout_share, Some(0.5), "it is tried first");
        assert!(tried.len() > 3);
    }

    #[test]
    fn a_search_ends_with_its_trials() {
        let few = scenario(
            "[search]
runs = 3
",
        );
        let (found, tried) = search(&few, Mode::Partial, |it| -off(it, 1.0));
        assert_eq!(tried.len(), 3);
        assert_eq!(found, None, "three of one rate");
    }

    #[test]
    fn modes_that_share_cards_have_no_split_to_look_for() {
        let (found, tried) = search(&scenario(""), Mode::Synchronous, |it| {
            f64::from(it.rollout_gpus)
        });
        assert!(
            tried.iter().all(|it| it.rollout_share == Some(0.5)),
            "as it is written"
        );
        assert_eq!(found.map(|it| it.0), Some(8));
    }

    #[test]
    fn a_bound_of_the_file_is_where_the_search_begins() {
        let text = TEXT.replace(
            "in_flight = 1.0",
            "in_flight = 1.0
batch_max = 20",
        );
        let bounded = Scenario::parse(&text).unwrap();
        let (_, tried) = search(&bounded, Mode::Drain, |_| 1.0);
        assert_eq!(tried[0].batch_max, Some(16));
        assert!(
            tried.iter().any(|it| it.batch_max.is_none_or(|it| it > 20)),
            "and above"
        );
    }

    #[test]
    fn trials_are_no_longer_than_the_run_and_lose_nothing() {
        let lost = "[failure]
after_step = 3
rollouts = 1
replaced_seconds = 1.0
";
        let trial = scenario(lost).trial();
        assert_eq!((trial.simulation.iterations, trial.simulation.skip), (6, 2));
        assert_eq!(trial.failure, None);
        let short = scenario(
            "[search]
iterations = 4
skip = 1
",
        )
        .trial();
        assert_eq!((short.simulation.iterations, short.simulation.skip), (4, 1));
    }

    #[test]
    fn the_better_of_two_runs_is_given_and_the_same_each_time() {
        let text = TEXT
            .replace("qwen2.5-32b", "qwen2.5-7b")
            .replace("rollout_gpus = 4", "rollout_gpus = 1");
        let text = text
            .replace("trainer_tensor = 4", "trainer_tensor = 2")
            .replace("= 0.5", "= 0.25");
        let small = Scenario::parse(&format!(
            "{text}[search]\nruns = 6\niterations = 4\nskip = 2\n"
        ));
        let small = small.unwrap();
        for mode in [Mode::Partial, Mode::Synchronous] {
            let outcome = small.run_best(&small.model[0], 64, mode).unwrap();
            let searched = outcome.searched.unwrap();
            let written = small.run(&small.model[0], 64, mode).unwrap();
            assert_eq!(searched.written.tokens_per_s, written.tokens_per_s);
            assert_eq!(searched.written.rollout_gpus, written.rollout_gpus);
            // One card a rollout is slow where each has few replies.
            assert!(outcome.tokens_per_s > written.tokens_per_s, "{outcome:?}");
            assert!((2..=6).contains(&searched.trials), "{searched:?}");
            let again = small.run_best(&small.model[0], 64, mode).unwrap();
            assert_eq!(again, outcome, "the same file, the same setting");
        }
    }

    #[test]
    fn a_setting_of_the_file_that_does_not_fit_is_an_error_and_nothing_is_looked_for() {
        let text = TEXT
            .replace("-32b", "-72b")
            .replace("rollout_gpus = 4", "rollout_gpus = 1");
        let scenario = Scenario::parse(&text).unwrap();
        let wrong = scenario.run_best(&scenario.model[0], 64, Mode::Laminar);
        let wrong = wrong.unwrap_err().to_string();
        assert!(wrong.contains("take more GPUs"), "{wrong}");
    }
}
