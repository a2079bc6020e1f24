//! The classes of incidents of a long run: how often each comes, what it comes from, and how soon it is seen.
//!
//! Shares are those of 55,366 incidents in three months (ByteRobust, arXiv 2509.16293), and so are the intervals of
//! detection. What is in a class has other sources; docs/robustness.md says which.

use serde::{Deserialize, Serialize};

use super::scenario::Between;

/// A class of incidents.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FaultClass {
    /// Its name.
    pub name: String,
    /// Its part of all incidents, in parts of their sum.
    pub share: f64,
    /// Set for one that no message tells of: a hang, a decline, numbers that are none.
    pub implicit: bool,
    /// Set for wishes of people to change code or data, which are no faults.
    pub request: bool,
    /// The part that a machine is to blame for, until it is repaired.
    pub machine: f64,
    /// The part that the program's own code or data is to blame for. The rest is gone after a restart.
    pub code: f64,
    /// The part of the machines to blame that inspection names at once.
    pub named: f64,
    /// The part of the others whose log says that no machine is to blame.
    pub plain: f64,
    /// Seconds until it is seen with inspection.
    pub detect_seconds: Between,
    /// Seconds until a time-out ends the run without.
    pub unwatched_seconds: Between,
    /// Seconds of the stress test that looks for it without inspection.
    pub stress_seconds: f64,
    /// The probability that self-checks or a stress test find the machine to blame.
    pub recall: f64,
    /// Seconds of the checks that it needs beside the suite.
    pub extra_check_seconds: f64,
    /// Set where stacks are aggregated, and the smallest group that is out of line evicted.
    pub aggregated: bool,
    /// The part of the speed that is lost until it is seen: 1 stands still.
    pub slowdown: f64,
    /// Mean seconds in which it spoils the state before there is any sign of it.
    pub latent_seconds: f64,
}

/// `[[class]]`: what is different about a class, or one more.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClassSection {
    /// Which; another name than those that there are adds a class.
    pub name: String,
    /// See [`FaultClass::share`].
    pub share: Option<f64>,
    /// See [`FaultClass::implicit`].
    pub implicit: Option<bool>,
    /// See [`FaultClass::machine`].
    pub machine: Option<f64>,
    /// See [`FaultClass::code`].
    pub code: Option<f64>,
    /// See [`FaultClass::named`].
    pub named: Option<f64>,
    /// See [`FaultClass::plain`].
    pub plain: Option<f64>,
    /// See [`FaultClass::detect_seconds`].
    pub detect_seconds: Option<Between>,
    /// See [`FaultClass::unwatched_seconds`].
    pub unwatched_seconds: Option<Between>,
    /// See [`FaultClass::stress_seconds`].
    pub stress_seconds: Option<f64>,
    /// See [`FaultClass::recall`].
    pub recall: Option<f64>,
    /// See [`FaultClass::extra_check_seconds`].
    pub extra_check_seconds: Option<f64>,
    /// See [`FaultClass::aggregated`].
    pub aggregated: Option<bool>,
    /// See [`FaultClass::slowdown`].
    pub slowdown: Option<f64>,
    /// See [`FaultClass::latent_seconds`].
    pub latent_seconds: Option<f64>,
}

/// What an incident comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FaultCause {
    /// Machines, until they are repaired.
    Machines,
    /// The program's own code or data, until they are rolled back.
    Code,
    /// Nothing that is still there after a restart.
    Transient,
    /// A wish of people.
    Request,
}

impl FaultClass {
    /// A class that crashes the run with a message and is gone after a restart.
    fn new(name: &str, share: f64) -> Self {
        Self {
            name: name.to_owned(),
            share,
            implicit: false,
            request: false,
            machine: 0.0,
            code: 0.0,
            named: 0.0,
            plain: 0.0,
            detect_seconds: Between([0.0, 10.0]),
            unwatched_seconds: Between([600.0, 600.0]),
            stress_seconds: 518.0,
            recall: 0.9,
            extra_check_seconds: 0.0,
            aggregated: false,
            slowdown: 1.0,
            latent_seconds: 0.0,
        }
    }

    fn caused(self, machine: f64, code: f64) -> Self {
        Self {
            machine,
            code,
            ..self
        }
    }

    fn told(self, named: f64, plain: f64) -> Self {
        Self {
            named,
            plain,
            ..self
        }
    }

    fn seen(self, low: f64, high: f64) -> Self {
        Self {
            detect_seconds: Between([low, high]),
            ..self
        }
    }

    fn stress(self, stress_seconds: f64) -> Self {
        Self {
            stress_seconds,
            ..self
        }
    }

    /// What an incident of it comes from, of a number in (0, 1).
    pub(super) fn cause(&self, uniform: f64) -> FaultCause {
        match uniform {
            _ if self.request => FaultCause::Request,
            it if it < self.machine => FaultCause::Machines,
            it if it < self.machine + self.code => FaultCause::Code,
            _ => FaultCause::Transient,
        }
    }

    /// The classes of the sheet.
    pub(super) fn usual() -> Vec<Self> {
        let class = Self::new;
        vec![
            class("cuda_error", 36.1).caused(0.24, 0.66).told(0.5, 0.5),
            Self {
                request: true,
                ..class("code_update", 17.3)
            },
            class("cpu_overload", 11.0)
                .caused(0.3, 0.2)
                .told(0.5, 0.5)
                .seen(0.0, 2.0),
            class("cpu_out_of_memory", 10.1)
                .caused(0.1, 0.5)
                .told(0.5, 0.8)
                .seen(0.0, 2.0),
            Self {
                implicit: true,
                aggregated: true,
                unwatched_seconds: Between([1800.0, 1800.0]),
                ..class("hang", 9.9).caused(0.6, 0.19).seen(600.0, 610.0)
            },
            class("disk_space", 5.0)
                .caused(0.5, 0.0)
                .told(0.9, 0.9)
                .seen(0.0, 2.0),
            class("infiniband", 2.9)
                .caused(0.5, 0.0)
                .told(0.9, 0.5)
                .seen(30.0, 60.0)
                .stress(288.0),
            class("file_system_mount", 2.1)
                .caused(0.3, 0.0)
                .told(0.9, 0.9)
                .seen(0.0, 2.0),
            class("hdfs", 2.0).told(0.0, 1.0),
            class("container", 1.4).caused(0.5, 0.1).told(0.5, 0.5),
            Self {
                implicit: true,
                aggregated: true,
                slowdown: 0.3,
                unwatched_seconds: Between([3600.0, 7200.0]),
                ..class("mfu_decline", 0.8).caused(1.0, 0.0).seen(60.0, 300.0)
            },
            class("kernel_panic", 0.4)
                .caused(1.0, 0.0)
                .told(1.0, 0.0)
                .seen(100.0, 120.0)
                .stress(168.0),
            class("gpu_memory", 0.3)
                .caused(1.0, 0.0)
                .told(1.0, 0.0)
                .stress(600.0),
            Self {
                implicit: true,
                recall: 0.7,
                extra_check_seconds: 3000.0,
                latent_seconds: 1800.0,
                ..class("nan", 0.3).caused(0.75, 0.25).stress(7200.0)
            },
            class("external_service", 0.2).told(0.0, 1.0),
            class("gpu_unavailable", 0.1)
                .caused(1.0, 0.0)
                .told(1.0, 0.0)
                .stress(120.0),
            class("disk", 0.1)
                .caused(1.0, 0.0)
                .told(1.0, 0.0)
                .seen(0.0, 2.0),
        ]
    }
}

impl ClassSection {
    /// A section that says nothing new of a class.
    pub(super) fn of(class: &FaultClass) -> Self {
        Self {
            name: class.name.clone(),
            share: None,
            implicit: None,
            machine: None,
            code: None,
            named: None,
            plain: None,
            detect_seconds: None,
            unwatched_seconds: None,
            stress_seconds: None,
            recall: None,
            extra_check_seconds: None,
            aggregated: None,
            slowdown: None,
            latent_seconds: None,
        }
    }

    /// Writes what it says into the classes: into the one of its name, or a new one.
    pub(super) fn apply(&self, classes: &mut Vec<FaultClass>) {
        let place = classes.iter().position(|class| class.name == self.name);
        let place = place.unwrap_or_else(|| {
            classes.push(FaultClass::new(&self.name, 0.0));
            classes.len() - 1
        });
        let class = &mut classes[place];
        let old = class.clone();
        *class = FaultClass {
            name: old.name,
            share: self.share.unwrap_or(old.share),
            implicit: self.implicit.unwrap_or(old.implicit),
            request: old.request,
            machine: self.machine.unwrap_or(old.machine),
            code: self.code.unwrap_or(old.code),
            named: self.named.unwrap_or(old.named),
            plain: self.plain.unwrap_or(old.plain),
            detect_seconds: self.detect_seconds.unwrap_or(old.detect_seconds),
            unwatched_seconds: self.unwatched_seconds.unwrap_or(old.unwatched_seconds),
            stress_seconds: self.stress_seconds.unwrap_or(old.stress_seconds),
            recall: self.recall.unwrap_or(old.recall),
            extra_check_seconds: self.extra_check_seconds.unwrap_or(old.extra_check_seconds),
            aggregated: self.aggregated.unwrap_or(old.aggregated),
            slowdown: self.slowdown.unwrap_or(old.slowdown),
            latent_seconds: self.latent_seconds.unwrap_or(old.latent_seconds),
        };
    }
}
