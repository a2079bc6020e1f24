//! The file that describes a long run under faults, checked before anything is simulated.

use odeon_diagnosis::group_test::GroupTest;
use odeon_diagnosis::standbys::standbys;
use serde::{Deserialize, Serialize};

use super::class::{ClassSection, FaultClass};
use super::restart::RestartSection;
use crate::recipe::{RecipeError, Source};

/// A long run under faults, as a file describes it.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FaultScenario {
    /// Its size, and how often machines fail.
    pub simulation: FaultedRunSection,
    /// Steps and checkpoints.
    #[serde(default)]
    pub training: CheckpointingSection,
    /// Seconds of restarts.
    #[serde(default)]
    pub restart: RestartSection,
    /// The rungs of the ladder: what is tried, and how long each takes.
    #[serde(default)]
    pub ladder: LadderSection,
    /// Standbys, repairs and switches.
    #[serde(default)]
    pub fleet: FleetSection,
    /// Differences of classes of incidents from the usual ones.
    #[serde(default)]
    pub class: Vec<ClassSection>,
    /// Policies that are compared; all switches one after the other, if nothing is said.
    #[serde(default)]
    pub policy: Vec<FaultPolicy>,
}

/// `[simulation]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FaultedRunSection {
    /// Its name.
    pub name: String,
    /// Seeds, each simulated by itself.
    #[serde(default = "default_seeds")]
    pub seeds: Vec<u64>,
    /// Cards of the job.
    pub cards: u32,
    /// Cards of a machine.
    #[serde(default = "default_cards_per_machine")]
    pub cards_per_machine: u32,
    /// Days.
    pub days: f64,
    /// The probability that a machine fails on a day.
    #[serde(default = "default_machine_faults")]
    pub machine_faults_daily: f64,
}

/// `[training]`
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CheckpointingSection {
    /// Seconds of a step.
    pub step_seconds: f64,
    /// Minutes between checkpoints.
    pub checkpoint_minutes: f64,
    /// Seconds for which training stands still for one, without copies at peers.
    pub checkpoint_stall_seconds: f64,
    /// Seconds for which each step stands still for copies at peers.
    pub copy_stall_seconds: f64,
    /// Steps after which a step's copies are complete.
    pub copy_lag_steps: u32,
    /// Seconds of loading a checkpoint.
    pub load_seconds: f64,
    /// Seconds of loading copies of peers.
    pub copy_load_seconds: f64,
}

impl Default for CheckpointingSection {
    fn default() -> Self {
        Self {
            step_seconds: 10.0,
            checkpoint_minutes: 30.0,
            checkpoint_stall_seconds: 7.0,
            copy_stall_seconds: 0.03,
            copy_lag_steps: 1,
            load_seconds: 60.0,
            copy_load_seconds: 5.0,
        }
    }
}

/// `[ladder]`
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LadderSection {
    /// Seconds of the suite of self-checks.
    pub suite_seconds: Between,
    /// Seconds of aggregating stacks.
    pub aggregate_seconds: Between,
    /// The probability that the group that is evicted then holds the machine to blame.
    pub aggregate_recall: f64,
    /// Machines of the smallest group that holds what is out of line, and of a replay; if nothing is said, as many as
    /// divide the job's, 8 at most.
    pub group_machines: Option<u32>,
    /// Seconds of a round of replays.
    pub replay_seconds: Between,
    /// The probability that a fault shows in a replay.
    pub reproduce: f64,
    /// Mean seconds of training until a fault that is still there shows again.
    pub recur_seconds: f64,
    /// Seconds until a person has read a message that says enough.
    pub operator_seconds: Between,
    /// Seconds until a person has found what nothing else did.
    pub person_seconds: Between,
    /// The part of the changes of code that cannot wait.
    pub urgent: f64,
    /// Hours after which a change is made even where nothing has failed.
    pub hot_update_hours: f64,
}

impl Default for LadderSection {
    fn default() -> Self {
        Self {
            suite_seconds: Between([60.0, 180.0]),
            aggregate_seconds: Between([10.0, 50.0]),
            aggregate_recall: 0.9,
            group_machines: None,
            replay_seconds: Between([1200.0, 2400.0]),
            reproduce: 0.9,
            recur_seconds: 300.0,
            operator_seconds: Between([120.0, 900.0]),
            person_seconds: Between([3600.0, 14_400.0]),
            urgent: 0.2,
            hot_update_hours: 24.0,
        }
    }
}

/// `[fleet]`
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FleetSection {
    /// Standbys, if not as many as the binomial rule says.
    pub standbys: Option<u32>,
    /// The part of all days on which standbys are to be enough.
    pub standby_quantile: f64,
    /// Machines beside the job and its standbys.
    pub reserve: u32,
    /// Seconds until a free machine is a standby.
    pub provision_seconds: f64,
    /// Hours until a broken machine is repaired.
    pub repair_hours: f64,
    /// Hours until a machine that was evicted with others is found sound.
    pub recheck_hours: f64,
    /// The part of the faults of machines that a switch is to blame for.
    pub switch_share: f64,
    /// Machines of a switch; if nothing is said 32, or all of a smaller job.
    pub switch_machines: Option<u32>,
    /// Hours until a switch is repaired.
    pub switch_repair_hours: f64,
}

impl Default for FleetSection {
    fn default() -> Self {
        Self {
            standbys: None,
            standby_quantile: 0.99,
            reserve: 64,
            provision_seconds: 1800.0,
            repair_hours: 24.0,
            recheck_hours: 2.0,
            switch_share: 0.01,
            switch_machines: None,
            switch_repair_hours: 4.0,
        }
    }
}

/// `[[policy]]`: what a run has against faults. Without any of it, a time-out ends the run, and it is queued again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FaultPolicy {
    /// Its name.
    pub name: String,
    /// Machines and steps are inspected while the run goes on, and the ladder is climbed by itself.
    #[serde(default)]
    pub inspection: bool,
    /// Standbys replace machines.
    #[serde(default)]
    pub standbys: bool,
    /// Programs start again on machines that are kept, and changes of code wait for that.
    #[serde(default)]
    pub hot_update: bool,
    /// Each step leaves copies at peers.
    #[serde(default)]
    pub peer_copies: bool,
}

impl FaultPolicy {
    /// Every switch after the other, from none on to all.
    #[must_use]
    pub fn ladder() -> Vec<Self> {
        let names = [
            "requeue",
            "inspection",
            "standbys",
            "hot_update",
            "peer_copies",
        ];
        let policy = |(switches, name): (usize, &str)| Self {
            name: name.to_owned(),
            inspection: switches >= 1,
            standbys: switches >= 2,
            hot_update: switches >= 3,
            peer_copies: switches >= 4,
        };
        names.into_iter().enumerate().map(policy).collect()
    }
}

/// The least and the most of a number, all between which are as likely.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Between(pub [f64; 2]);

impl Between {
    /// The least.
    #[must_use]
    pub const fn low(self) -> f64 {
        self.0[0]
    }

    /// The most.
    #[must_use]
    pub const fn high(self) -> f64 {
        self.0[1]
    }

    /// Both in times of what they are.
    pub(super) fn times(self, factor: f64) -> Self {
        Self(self.0.map(|it| it * factor))
    }
}

/// A field of a table, its value, and the least and most that it may be.
type FieldRange = (&'static str, &'static str, f64, [f64; 2]);

impl FaultScenario {
    /// Reads and checks a file's text.
    ///
    /// # Errors
    /// It is no TOML, has a wrong field, or asks for something impossible; with its line.
    pub fn read(source: &Source) -> Result<Self, RecipeError> {
        let mut scenario: Self = source.typed()?;
        scenario.check(source)?;
        if scenario.policy.is_empty() {
            scenario.policy = FaultPolicy::ladder();
        }
        Ok(scenario)
    }

    /// Machines of the job.
    #[must_use]
    pub const fn machines(&self) -> u32 {
        self.simulation.cards / self.simulation.cards_per_machine
    }

    /// The classes of incidents, with what the file says of them.
    #[must_use]
    pub fn classes(&self) -> Vec<FaultClass> {
        let mut classes = FaultClass::usual();
        for class in &self.class {
            class.apply(&mut classes);
        }
        classes
    }

    /// Incidents on a day of training: so many that machines fail as often as the file says.
    #[must_use]
    pub fn incidents_daily(&self) -> f64 {
        let classes = self.classes();
        let all: f64 = classes.iter().map(|class| class.share).sum();
        let machine = classes.iter().filter(|class| !class.request);
        let machine: f64 = machine.map(|class| class.share * class.machine).sum();
        f64::from(self.machines()) * self.simulation.machine_faults_daily * all / machine
    }

    /// Machines of the smallest group that is evicted together, and of a replay.
    #[must_use]
    pub fn group_machines(&self) -> u32 {
        let machines = self.machines();
        let divides = |it: &u32| machines.is_multiple_of(*it);
        let most = || (1..=8).rev().find(divides).unwrap_or(1);
        self.ladder.group_machines.unwrap_or_else(most)
    }

    /// Machines of a switch.
    #[must_use]
    pub fn switch_machines(&self) -> u32 {
        let usual = || 32.min(self.machines());
        self.fleet.switch_machines.unwrap_or_else(usual)
    }

    /// Standbys of the job, where the policy has some.
    #[must_use]
    pub fn pool(&self) -> u32 {
        let (daily, quantile) = (
            self.simulation.machine_faults_daily,
            self.fleet.standby_quantile,
        );
        // Both were checked.
        let rule = || standbys(self.machines(), daily, quantile).unwrap_or(0);
        self.fleet.standbys.unwrap_or_else(rule)
    }

    fn check(&self, source: &Source) -> Result<(), RecipeError> {
        self.check_simulation(source)?;
        for (table, field, value, [least, most]) in self.ranges() {
            if !(least..=most).contains(&value) {
                let what = format!("{field} is {value}: expected {least} to {most}");
                return Err(source.error(table, field, &what));
            }
        }
        self.check_spans(source)?;
        let machines = self.machines();
        let group = self.group_machines();
        if GroupTest::new(machines, group).is_err() {
            let what = format!(
                "group_machines is {group}: expected a number that divides the {machines} machines"
            );
            return Err(source.error("ladder", "group_machines", &what));
        }
        let switch = self.switch_machines();
        if !(1..=machines).contains(&switch) {
            let what = format!(
                "switch_machines is {switch}: expected 1 to the {machines} machines of the job"
            );
            return Err(source.error("fleet", "switch_machines", &what));
        }
        self.check_classes(source)?;
        self.check_policies(source)
    }

    fn check_simulation(&self, source: &Source) -> Result<(), RecipeError> {
        let section = &self.simulation;
        let refuse = |field, what: String| Err(source.error("simulation", field, &what));
        let is_name = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
        if section.name.is_empty() || !section.name.chars().all(is_name) {
            let what = format!(
                "name is {:?}: expected letters, digits, `-` and `_`",
                section.name
            );
            return refuse("name", what);
        }
        if section.seeds.is_empty() || section.seeds.len() > 1000 {
            let what = format!("{} seeds: expected 1 to 1000", section.seeds.len());
            return refuse("seeds", what);
        }
        let each = section.cards_per_machine;
        if !(1..=1024).contains(&each) {
            let what = format!("cards_per_machine is {each}: expected 1 to 1024");
            return refuse("cards_per_machine", what);
        }
        let cards = section.cards;
        if !(1..=1_000_000).contains(&cards) || !cards.is_multiple_of(each) {
            let what = format!(
                "cards is {cards}: expected 1 to 1000000, and whole machines of {each} cards"
            );
            return refuse("cards", what);
        }
        Ok(())
    }

    /// Numbers with their least and most.
    fn ranges(&self) -> impl Iterator<Item = FieldRange> {
        let parts = [
            self.run_ranges(),
            self.restart_ranges(),
            self.fleet_ranges(),
        ];
        parts.into_iter().flatten()
    }

    /// Those of the run and its checkpoints.
    fn run_ranges(&self) -> Vec<FieldRange> {
        let (run, training) = (&self.simulation, &self.training);
        vec![
            ("simulation", "days", run.days, [0.01, 3650.0]),
            (
                "simulation",
                "machine_faults_daily",
                run.machine_faults_daily,
                [0.0, 0.5],
            ),
            (
                "training",
                "step_seconds",
                training.step_seconds,
                [0.01, 3600.0],
            ),
            (
                "training",
                "checkpoint_minutes",
                training.checkpoint_minutes,
                [0.1, 10_080.0],
            ),
            (
                "training",
                "checkpoint_stall_seconds",
                training.checkpoint_stall_seconds,
                [0.0, 3600.0],
            ),
            (
                "training",
                "copy_stall_seconds",
                training.copy_stall_seconds,
                [0.0, 3600.0],
            ),
            (
                "training",
                "copy_lag_steps",
                training.copy_lag_steps.into(),
                [0.0, 1000.0],
            ),
            (
                "training",
                "load_seconds",
                training.load_seconds,
                [0.0, 86_400.0],
            ),
            (
                "training",
                "copy_load_seconds",
                training.copy_load_seconds,
                [0.0, 86_400.0],
            ),
        ]
    }

    /// Those of restarts and of the ladder.
    fn restart_ranges(&self) -> Vec<FieldRange> {
        let (restart, ladder) = (&self.restart, &self.ladder);
        vec![
            (
                "restart",
                "schedule_seconds",
                restart.schedule_seconds,
                [0.0, 86_400.0],
            ),
            (
                "restart",
                "pod_seconds",
                restart.pod_seconds,
                [0.0, 86_400.0],
            ),
            ("restart", "pod_sigma", restart.pod_sigma, [0.0, 3.0]),
            (
                "restart",
                "process_seconds",
                restart.process_seconds,
                [0.0, 86_400.0],
            ),
            (
                "restart",
                "process_sigma",
                restart.process_sigma,
                [0.0, 3.0],
            ),
            (
                "restart",
                "wake_seconds",
                restart.wake_seconds,
                [0.0, 86_400.0],
            ),
            (
                "ladder",
                "aggregate_recall",
                ladder.aggregate_recall,
                [0.0, 1.0],
            ),
            ("ladder", "reproduce", ladder.reproduce, [0.0, 1.0]),
            (
                "ladder",
                "recur_seconds",
                ladder.recur_seconds,
                [1.0, 864_000.0],
            ),
            ("ladder", "urgent", ladder.urgent, [0.0, 1.0]),
            (
                "ladder",
                "hot_update_hours",
                ladder.hot_update_hours,
                [0.0, 8760.0],
            ),
        ]
    }

    /// Those of machines.
    fn fleet_ranges(&self) -> Vec<FieldRange> {
        let fleet = &self.fleet;
        let standbys = fleet.standbys.unwrap_or(0);
        vec![
            ("fleet", "standbys", standbys.into(), [0.0, 100_000.0]),
            (
                "fleet",
                "standby_quantile",
                fleet.standby_quantile,
                [0.0, 0.999_999],
            ),
            ("fleet", "reserve", fleet.reserve.into(), [0.0, 1_000_000.0]),
            (
                "fleet",
                "provision_seconds",
                fleet.provision_seconds,
                [0.0, 8_640_000.0],
            ),
            ("fleet", "repair_hours", fleet.repair_hours, [0.0, 8760.0]),
            ("fleet", "recheck_hours", fleet.recheck_hours, [0.0, 8760.0]),
            ("fleet", "switch_share", fleet.switch_share, [0.0, 1.0]),
            (
                "fleet",
                "switch_repair_hours",
                fleet.switch_repair_hours,
                [0.0, 8760.0],
            ),
        ]
    }

    fn check_spans(&self, source: &Source) -> Result<(), RecipeError> {
        let ladder = &self.ladder;
        for (field, span) in [
            ("suite_seconds", ladder.suite_seconds),
            ("aggregate_seconds", ladder.aggregate_seconds),
            ("replay_seconds", ladder.replay_seconds),
            ("operator_seconds", ladder.operator_seconds),
            ("person_seconds", ladder.person_seconds),
        ] {
            check_span(source, "ladder", field, span)?;
        }
        Ok(())
    }

    fn check_classes(&self, source: &Source) -> Result<(), RecipeError> {
        let mut sofar = FaultClass::usual();
        for (number, section) in self.class.iter().enumerate() {
            let table = format!("class.{number}");
            let is_new = sofar.iter().all(|class| class.name != section.name);
            if self.class[..number]
                .iter()
                .any(|it| it.name == section.name)
            {
                let what = format!(
                    "`{}` is there twice: say all of it in one table",
                    section.name
                );
                return Err(source.error(&table, "name", &what));
            }
            if is_new && section.share.is_none() {
                let names: Vec<&str> = sofar.iter().map(|class| class.name.as_str()).collect();
                let what = format!(
                    "there is no class `{}` without a share: classes are {}; a new one needs `share`",
                    section.name,
                    names.join(", ")
                );
                return Err(source.error(&table, "name", &what));
            }
            section.apply(&mut sofar);
            let class = sofar.iter().find(|class| class.name == section.name);
            if let Some(class) = class {
                check_class(source, &table, class)?;
            }
        }
        let machines: f64 = sofar
            .iter()
            .filter(|class| !class.request)
            .map(|class| class.share * class.machine)
            .sum();
        if machines <= 0.0 {
            let what = "no class has faults of machines, by whose rate all others are counted: give one `share` and \
                        `machine` above 0";
            return Err(source.error("class", "", what));
        }
        Ok(())
    }

    fn check_policies(&self, source: &Source) -> Result<(), RecipeError> {
        for (number, policy) in self.policy.iter().enumerate() {
            let table = format!("policy.{number}");
            if policy.name.is_empty() {
                return Err(source.error(&table, "name", "name is empty: expected a word"));
            }
            if self.policy[..number]
                .iter()
                .any(|it| it.name == policy.name)
            {
                let what = format!(
                    "there are two policies `{}`: name each by itself",
                    policy.name
                );
                return Err(source.error(&table, "name", &what));
            }
        }
        Ok(())
    }
}

fn check_span(
    source: &Source,
    table: &str,
    field: &str,
    Between([low, high]): Between,
) -> Result<(), RecipeError> {
    match 0.0 <= low && low <= high && high <= 8_640_000.0 {
        true => Ok(()),
        false => {
            let what = format!(
                "{field} is [{low}, {high}]: expected the least and the most, from 0 to 8640000"
            );
            Err(source.error(table, field, &what))
        }
    }
}

fn check_class(source: &Source, table: &str, class: &FaultClass) -> Result<(), RecipeError> {
    for (field, value, most) in [
        ("share", class.share, 1e6),
        ("machine", class.machine, 1.0),
        ("code", class.code, 1.0),
        ("named", class.named, 1.0),
        ("plain", class.plain, 1.0),
        ("recall", class.recall, 1.0),
        ("slowdown", class.slowdown, 1.0),
        ("stress_seconds", class.stress_seconds, 8_640_000.0),
        (
            "extra_check_seconds",
            class.extra_check_seconds,
            8_640_000.0,
        ),
        ("latent_seconds", class.latent_seconds, 8_640_000.0),
    ] {
        if !(0.0..=most).contains(&value) {
            let what = format!("{field} is {value}: expected 0 to {most}");
            return Err(source.error(table, field, &what));
        }
    }
    if class.machine + class.code > 1.0 + 1e-9 {
        let what = format!(
            "machine = {} and code = {} are more than all incidents of `{}`: expected 1 together at most",
            class.machine, class.code, class.name
        );
        return Err(source.error(table, "machine", &what));
    }
    check_span(source, table, "detect_seconds", class.detect_seconds)?;
    check_span(source, table, "unwatched_seconds", class.unwatched_seconds)
}

fn default_seeds() -> Vec<u64> {
    vec![1, 2, 3, 4, 5]
}
const fn default_cards_per_machine() -> u32 {
    8
}
const fn default_machine_faults() -> f64 {
    0.0012
}
