//! A job as it is submitted, and what is wrong with one that cannot be meant.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use odeon_artifacts::Digest;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::array::{After, ArraySpec};
use crate::environment::{EnvironmentSpec, EnvironmentSpecError};
use crate::resources::{JobResources, JobResourcesError};

/// A job that somebody wants to have run.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobSpec {
    /// For people; it need not be unique.
    pub name: String,
    /// Whose quota it counts against, and where the names of its detached actors are found.
    #[serde(default = "default_namespace")]
    pub namespace: String,
    /// The files that it consists of, the executable among them.
    pub bundle: Digest,
    /// Arguments of the executable.
    #[serde(default)]
    pub args: Vec<String>,
    /// Variables, whose values are shown nowhere; of the daemon's own it sees `PATH`, `HOME`, `USER`, `LOGNAME`, `LANG`, `TZ`,
    /// `LD_LIBRARY_PATH` and `CUDA_VISIBLE_DEVICES`, and `PYTHONUNBUFFERED` is 1.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Those of a higher priority start first.
    #[serde(default)]
    pub priority: i32,
    /// The most times that a run of it is begun anew after a failure, or after its node was lost.
    #[serde(default)]
    pub retries: u32,
    /// The node that its driver must run on.
    #[serde(default)]
    pub node: Option<String>,
    /// The detached actor that it is there for, in place of the `main` of its program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hosts: Option<Hosted>,
    /// The resources that it asks for; it does not begin before it has all of them.
    #[serde(default, skip_serializing_if = "JobResources::is_empty")]
    pub resources: JobResources,
    /// The longest time that a try of it may run, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_limit_s: Option<u64>,
    /// The jobs that have to succeed before it begins.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub after: Vec<After>,
    /// Set where it is submitted to be one job for each of several indices; each of these has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub array: Option<ArraySpec>,
    /// Links in its folder by their paths, each with what it leads to, seen from the link; inside of the
    /// folder.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub links: BTreeMap<String, String>,
    /// The time between SIGTERM and SIGKILL when it has to end, in seconds; ten where it says nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grace_s: Option<u64>,
    /// The longest time that a try may neither print anything nor use a processor, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_limit_s: Option<u64>,
    /// The environment that its processes run in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub environment: Option<EnvironmentSpec>,
}

/// Without the values of variables: what is shown ends in a log, and they may be secrets.
impl fmt::Debug for JobSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JobSpec")
            .field("name", &self.name)
            .field("namespace", &self.namespace)
            .field("bundle", &self.bundle)
            .field("args", &self.args)
            .field("env", &self.env.keys())
            .field("priority", &self.priority)
            .field("retries", &self.retries)
            .field("node", &self.node)
            .field("hosts", &self.hosts)
            .field("resources", &self.resources)
            .field("time_limit_s", &self.time_limit_s)
            .field("after", &self.after)
            .field("array", &self.array)
            .field("links", &self.links)
            .field("grace_s", &self.grace_s)
            .field("idle_limit_s", &self.idle_limit_s)
            .field("environment", &self.environment)
            .finish()
    }
}

/// A detached actor, whose life a job is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hosted {
    /// The name by which it is bound, alone in its namespace.
    pub name: String,
    /// The name of its type.
    pub actor: String,
    /// Set where it begins anew after a failure, or when its node was lost; then as often as that
    /// happens.
    pub kept: bool,
    /// The order to spawn it ([`odeon::DetachedActor::to_text`]).
    pub order: String,
}

/// The namespace of who names none.
pub const DEFAULT_NAMESPACE: &str = "default";

fn default_namespace() -> String {
    DEFAULT_NAMESPACE.to_owned()
}

/// Longest name of a job or namespace, in bytes.
const NAME_BYTES_MAX: usize = 100;
/// Arguments and variables of a job together, in bytes: what the operating system passes on.
pub(super) const ARGS_BYTES_MAX: usize = 128 << 10;
/// Most retries.
pub(super) const RETRIES_MAX: u32 = 1000;
/// The longest time limit, in seconds: a year.
const TIME_LIMIT_MAX_S: u64 = 366 * 86_400;
/// Most jobs or arrays that one comes after.
pub(super) const AFTER_MAX: usize = 100;
/// Most links in a job's folder.
const LINKS_MAX: usize = 1000;
/// The time between SIGTERM and SIGKILL of a job that does not say it.
const GRACE: Duration = Duration::from_secs(10);
/// The longest grace, in seconds: a node that ends waits for it.
pub(super) const GRACE_MAX_S: u64 = 3600;
/// The shortest idle limit, in seconds: a node looks every few of them.
pub(super) const IDLE_LIMIT_MIN_S: u64 = 10;
/// Arguments and variables of all jobs of an array together, in bytes: the catalog has them for each.
const ARRAY_BYTES_MAX: usize = 16 << 20;

impl JobSpec {
    /// Checks that it can be meant.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn check(&self) -> Result<(), JobSpecError> {
        for (what, name) in [("name", &self.name), ("namespace", &self.namespace)] {
            let plain = |c: char| c.is_alphanumeric() || "-_.".contains(c);
            if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.chars().all(plain) {
                return Err(JobSpecError::Name {
                    what,
                    name: name.clone(),
                });
            }
        }
        if let Some(name) = self.node.as_ref().filter(|name| name.is_empty()) {
            let (what, name) = ("node", name.clone());
            return Err(JobSpecError::Name { what, name });
        }
        let env = self
            .env
            .iter()
            .map(|(name, value)| name.len() + value.len());
        let bytes = self.args.iter().map(String::len).chain(env).sum();
        if bytes > ARGS_BYTES_MAX {
            return Err(JobSpecError::TooLong { bytes });
        }
        self.check_links()?;
        let links = self.links.iter().map(|(path, to)| path.len() + to.len());
        self.check_array(bytes + links.sum::<usize>())?;
        let strange = |name: &&String| name.is_empty() || name.contains(['=', '\0']);
        if let Some(name) = self.env.keys().find(strange) {
            return Err(JobSpecError::Variable(name.clone()));
        }
        let texts = self.args.iter().chain(self.env.values());
        if let Some(text) = texts.into_iter().find(|text| text.contains('\0')) {
            return Err(JobSpecError::Zero(text.clone()));
        }
        if let Some(name) = self.env.keys().find(|name| *name == "ODEON_WORKER") {
            return Err(JobSpecError::Reserved(name.clone()));
        }
        if self.retries > RETRIES_MAX {
            return Err(JobSpecError::Retries(self.retries));
        }
        if let Some(limit) = self.time_limit_s
            && !(1..=TIME_LIMIT_MAX_S).contains(&limit)
        {
            return Err(JobSpecError::TimeLimit(limit));
        }
        if let Some(grace) = self.grace_s.filter(|grace| *grace > GRACE_MAX_S) {
            return Err(JobSpecError::Grace(grace));
        }
        if let Some(limit) = self.idle_limit_s
            && !(IDLE_LIMIT_MIN_S..=TIME_LIMIT_MAX_S).contains(&limit)
        {
            return Err(JobSpecError::IdleLimit(limit));
        }
        if self.after.len() > AFTER_MAX {
            return Err(JobSpecError::After(self.after.len()));
        }
        if let Some(environment) = &self.environment {
            environment.check()?;
        }
        self.resources.check()?;
        Ok(())
    }

    fn check_links(&self) -> Result<(), JobSpecError> {
        let count = self.links.len();
        if count > LINKS_MAX {
            return Err(JobSpecError::Links(count));
        }
        for (path, target) in &self.links {
            let names = || path.split('/');
            let plain = names().all(|name| !["", ".", ".."].contains(&name));
            // How deep it is in the folder where each part of the target leads.
            let parts = target.split('/');
            let inside = parts.map(|part| match part {
                "" | "." => 0,
                ".." => -1,
                _ => 1,
            });
            let begin = names().count() as i64 - 1;
            let stays = inside.scan(begin, |depth, step| {
                *depth += step;
                Some(*depth)
            });
            let leads_inside =
                !target.is_empty() && !target.starts_with('/') && stays.min() >= Some(0);
            if !plain || !leads_inside || [path, target].iter().any(|it| it.contains('\0')) {
                let (path, target) = (path.clone(), target.clone());
                return Err(JobSpecError::Link { path, target });
            }
        }
        Ok(())
    }

    /// Checks what an array adds, where each of its jobs has so many bytes of arguments and variables.
    fn check_array(&self, bytes: usize) -> Result<(), JobSpecError> {
        let Some(array) = &self.array else {
            return Ok(());
        };
        if self.hosts.is_some() {
            return Err(JobSpecError::HostedArray);
        }
        let reserved = |name: &&&str| self.env.contains_key(**name);
        if let Some(name) = ArraySpec::VARIABLES.iter().find(reserved) {
            return Err(JobSpecError::Reserved((*name).to_owned()));
        }
        let longest = array.indices().iter().max().copied().unwrap_or(0);
        let name = ArraySpec::name_of(&self.name, longest);
        if name.len() > NAME_BYTES_MAX {
            return Err(JobSpecError::Name { what: "name", name });
        }
        let (count, all) = (array.count(), array.count() * bytes);
        if all > ARRAY_BYTES_MAX {
            return Err(JobSpecError::ArrayTooLong { count, bytes });
        }
        Ok(())
    }

    /// The time between SIGTERM and SIGKILL when it has to end.
    #[must_use]
    pub fn grace(&self) -> Duration {
        self.grace_s.map_or(GRACE, Duration::from_secs)
    }

    /// The longest time that a try may do nothing.
    #[must_use]
    pub fn idle_limit(&self) -> Option<Duration> {
        self.idle_limit_s.map(Duration::from_secs)
    }

    /// The longest time that a try may run.
    #[must_use]
    pub fn time_limit(&self) -> Option<Duration> {
        self.time_limit_s.map(Duration::from_secs)
    }
}

/// The fault of a job that is submitted.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum JobSpecError {
    /// A name that is none.
    #[error(
        "a job's {what} has 1 to {NAME_BYTES_MAX} letters, digits, `-`, `_` and `.`; `{name}` does not"
    )]
    Name {
        /// Which one.
        what: &'static str,
        /// As given.
        name: String,
    },
    /// Too much to pass to a process.
    #[error(
        "arguments and variables have {bytes} bytes, at most {ARGS_BYTES_MAX} can be passed: put them into a file (--file)"
    )]
    TooLong {
        /// Of all together.
        bytes: usize,
    },
    /// A variable that cannot be set.
    #[error("`{0}` is no name of a variable")]
    Variable(String),
    /// Text that no process can be given.
    #[error("`{0}` contains a zero byte")]
    Zero(String),
    /// A variable that is the runtime's own.
    #[error("`{0}` is a variable that the runtime keeps for itself")]
    Reserved(String),
    /// More retries than there may be.
    #[error("{0} retries, at most {RETRIES_MAX} are possible")]
    Retries(u32),
    /// No time at all, or more than there may be.
    #[error("a time limit of {0} s: it is at least one second and at most {TIME_LIMIT_MAX_S} s")]
    TimeLimit(u64),
    /// A grace that nobody waits for.
    #[error("a grace of {0} s: it is at most {GRACE_MAX_S} s, since a node that ends waits for it")]
    Grace(u64),
    /// An idle limit that cannot be kept, or is longer than there may be.
    #[error(
        "an idle limit of {0} s: it is at least {IDLE_LIMIT_MIN_S} s and at most {TIME_LIMIT_MAX_S} s"
    )]
    IdleLimit(u64),
    /// A link that leads out of the job's folder, or lies outside of it.
    #[error(
        "the link `{path}` to `{target}` is none that a job can have: both lie in its folder, and it leads from \
         one to the other"
    )]
    Link {
        /// Where it would lie.
        path: String,
        /// What it would lead to.
        target: String,
    },
    /// More links than there may be.
    #[error("{0} links, at most {LINKS_MAX} are possible: name a part of them in .odeonignore")]
    Links(usize),
    /// More to come after than there may be.
    #[error(
        "it comes after {0} jobs, at most {AFTER_MAX} are possible: make them an array (--array), which \
         counts as one"
    )]
    After(usize),
    /// An array of detached actors.
    #[error("a detached actor is one job, and no array")]
    HostedArray,
    /// Too much for every job of an array.
    #[error(
        "each of the {count} jobs of the array has {bytes} bytes of arguments and variables, and all \
         together at most {ARRAY_BYTES_MAX}: put them into a file (--file)"
    )]
    ArrayTooLong {
        /// The number of jobs.
        count: usize,
        /// Of each.
        bytes: usize,
    },
    /// An environment that nobody can mean.
    #[error(transparent)]
    Environment(#[from] EnvironmentSpecError),
    /// Resources that nobody can mean.
    #[error(transparent)]
    Resources(#[from] JobResourcesError),
}
