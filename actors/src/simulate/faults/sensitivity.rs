//! The constants of a fault scenario: where each has its default from, and what the result owes to it.

use serde::{Deserialize, Serialize};

use super::class::{ClassSection, FaultClass};
use super::outcome::OverSeeds;
use super::scenario::{FaultPolicy, FaultScenario};

/// Where a default comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ConstantOrigin {
    /// A paper tells it.
    Paper,
    /// It was chosen so that other numbers of a paper come out.
    Fitted,
    /// Nobody tells it.
    Guessed,
}

/// The ratio with one constant halved and doubled.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SensitivityRow {
    /// The field.
    pub field: &'static str,
    /// Where its default comes from.
    pub origin: ConstantOrigin,
    /// With half of it.
    pub halved: OverSeeds,
    /// With twice as much.
    pub doubled: OverSeeds,
}

/// A constant that can be scaled.
type Constant = (&'static str, ConstantOrigin, fn(&mut FaultScenario, f64));

impl FaultScenario {
    /// The ratio that one policy reaches with each constant halved and doubled, the others as they are. Probabilities stay
    /// at most 1.
    #[must_use]
    pub fn sensitivity(&self, policy: &FaultPolicy) -> Vec<SensitivityRow> {
        let row = |(field, origin, scale): &Constant| {
            let scaled = |factor| {
                let mut scenario = self.clone();
                scale(&mut scenario, factor);
                scenario.outcome(policy).ettr
            };
            SensitivityRow {
                field,
                origin: *origin,
                halved: scaled(0.5),
                doubled: scaled(2.0),
            }
        };
        CONSTANTS.iter().map(row).collect()
    }

    /// Changes a field of all classes to what is said of each.
    fn each_class(&mut self, change: impl Fn(&FaultClass, &mut ClassSection)) {
        let classes = self.classes();
        let section = |class: &FaultClass| {
            let mut section = ClassSection::of(class);
            change(class, &mut section);
            section
        };
        self.class = classes.iter().map(section).collect();
    }
}

use ConstantOrigin::{Fitted, Guessed, Paper};

/// In the order of the file.
const CONSTANTS: &[Constant] = &[
    ("simulation.machine_faults_daily", Paper, |it, by| {
        it.simulation.machine_faults_daily *= by;
    }),
    ("training.step_seconds", Guessed, |it, by| {
        it.training.step_seconds *= by;
    }),
    ("training.checkpoint_minutes", Guessed, |it, by| {
        it.training.checkpoint_minutes *= by;
    }),
    ("training.checkpoint_stall_seconds", Paper, |it, by| {
        it.training.checkpoint_stall_seconds *= by;
    }),
    ("training.copy_stall_seconds", Paper, |it, by| {
        it.training.copy_stall_seconds *= by;
    }),
    ("training.load_seconds", Guessed, |it, by| {
        it.training.load_seconds *= by;
    }),
    ("training.copy_load_seconds", Guessed, |it, by| {
        it.training.copy_load_seconds *= by;
    }),
    ("restart.schedule_seconds", Fitted, |it, by| {
        it.restart.schedule_seconds *= by;
    }),
    ("restart.pod_seconds", Fitted, |it, by| {
        it.restart.pod_seconds *= by;
    }),
    ("restart.pod_sigma", Fitted, |it, by| {
        it.restart.pod_sigma *= by;
    }),
    ("restart.process_seconds", Fitted, |it, by| {
        it.restart.process_seconds *= by;
    }),
    ("restart.process_sigma", Fitted, |it, by| {
        it.restart.process_sigma *= by;
    }),
    ("restart.wake_seconds", Guessed, |it, by| {
        it.restart.wake_seconds *= by;
    }),
    ("ladder.suite_seconds", Guessed, |it, by| {
        it.ladder.suite_seconds = it.ladder.suite_seconds.times(by);
    }),
    ("ladder.aggregate_seconds", Guessed, |it, by| {
        it.ladder.aggregate_seconds = it.ladder.aggregate_seconds.times(by);
    }),
    ("ladder.aggregate_recall", Guessed, |it, by| {
        it.ladder.aggregate_recall = (it.ladder.aggregate_recall * by).min(1.0);
    }),
    ("ladder.replay_seconds", Guessed, |it, by| {
        it.ladder.replay_seconds = it.ladder.replay_seconds.times(by);
    }),
    ("ladder.reproduce", Guessed, |it, by| {
        it.ladder.reproduce = (it.ladder.reproduce * by).min(1.0);
    }),
    ("ladder.recur_seconds", Guessed, |it, by| {
        it.ladder.recur_seconds *= by;
    }),
    ("ladder.operator_seconds", Paper, |it, by| {
        it.ladder.operator_seconds = it.ladder.operator_seconds.times(by);
    }),
    ("ladder.person_seconds", Guessed, |it, by| {
        it.ladder.person_seconds = it.ladder.person_seconds.times(by);
    }),
    ("ladder.urgent", Guessed, |it, by| {
        it.ladder.urgent = (it.ladder.urgent * by).min(1.0);
    }),
    ("ladder.hot_update_hours", Paper, |it, by| {
        it.ladder.hot_update_hours *= by;
    }),
    ("fleet.provision_seconds", Guessed, |it, by| {
        it.fleet.provision_seconds *= by;
    }),
    ("fleet.reserve", Guessed, |it, by| {
        it.fleet.reserve = (f64::from(it.fleet.reserve) * by).round() as u32;
    }),
    ("fleet.repair_hours", Guessed, |it, by| {
        it.fleet.repair_hours *= by;
    }),
    ("fleet.recheck_hours", Guessed, |it, by| {
        it.fleet.recheck_hours *= by;
    }),
    ("fleet.switch_share", Paper, |it, by| {
        it.fleet.switch_share = (it.fleet.switch_share * by).min(1.0);
    }),
    ("fleet.switch_repair_hours", Guessed, |it, by| {
        it.fleet.switch_repair_hours *= by;
    }),
    ("class.machine", Guessed, |it, by| {
        it.each_class(|class, section| {
            let most = 1.0 - class.code;
            section.machine = Some((class.machine * by).min(most));
        });
    }),
    ("class.code", Guessed, |it, by| {
        it.each_class(|class, section| {
            let most = 1.0 - class.machine;
            section.code = Some((class.code * by).min(most));
        });
    }),
    ("class.named", Guessed, |it, by| {
        it.each_class(|class, section| section.named = Some((class.named * by).min(1.0)));
    }),
    ("class.plain", Guessed, |it, by| {
        it.each_class(|class, section| section.plain = Some((class.plain * by).min(1.0)));
    }),
    ("class.detect_seconds", Paper, |it, by| {
        it.each_class(|class, section| {
            section.detect_seconds = Some(class.detect_seconds.times(by));
        });
    }),
    ("class.unwatched_seconds", Paper, |it, by| {
        it.each_class(|class, section| {
            section.unwatched_seconds = Some(class.unwatched_seconds.times(by));
        });
    }),
    ("class.stress_seconds", Paper, |it, by| {
        it.each_class(|class, section| {
            section.stress_seconds = Some(class.stress_seconds * by);
        });
    }),
    ("class.slowdown", Guessed, |it, by| {
        it.each_class(|class, section| {
            section.slowdown = Some((class.slowdown * by).min(1.0));
        });
    }),
    ("class.recall", Guessed, |it, by| {
        it.each_class(|class, section| section.recall = Some((class.recall * by).min(1.0)));
    }),
    ("class.extra_check_seconds", Fitted, |it, by| {
        it.each_class(|class, section| {
            section.extra_check_seconds = Some(class.extra_check_seconds * by);
        });
    }),
    ("class.latent_seconds", Guessed, |it, by| {
        it.each_class(|class, section| {
            section.latent_seconds = Some(class.latent_seconds * by);
        });
    }),
];
