//! The page of problems: those of now with what shows them, and those that are over.

use odeon::ProcessId;
use odeon::inspect::Metric;
use odeon_client::inspect as told;
use odeon_observe::PastProblem;
use odeon_observe::detectors::{Finding, ProblemRule};
use odeon_observe::event::Subject;
use odeon_observe::machines::MachinePart;

use super::dto::{Shown, rounded};
use super::jobs::job_number;
use super::workload::{POINTS_MAX, label};

/// Problems that are over, of which the newest are told.
const PAST_MAX: usize = 200;
/// Pictures of a problem.
const PICTURES_MAX: usize = 4;

/// The curves of a run that show a finding of its steps, by the rule.
const CURVES: [(&str, &[&str]); 8] = [
    ("reward_hacking", &["rl.reward", "rl.accuracy"]),
    ("hockey_stick", &["rl.reward"]),
    ("length_collapse", &["rl.response"]),
    ("entropy_collapse", &["rl.entropy", "rl.accuracy"]),
    ("loss_not_finite", &["train.loss", "rl.loss"]),
    ("gradient_corrupt", &["train.grad_norm", "train.loss"]),
    ("gradient_not_finite", &["train.grad_norm"]),
    ("gradient_spike", &["train.grad_norm", "train.loss"]),
];

impl Shown<'_> {
    pub(super) fn problems_page(&self) -> told::Problems {
        let now = self.seen.findings().iter();
        let past = self.seen.past_problems().take(PAST_MAX);
        told::Problems {
            now: now.map(|it| self.shown_problem(it)).collect(),
            past: past.map(|it| self.past_problem(it)).collect(),
        }
    }

    fn shown_problem(&self, found: &Finding) -> told::ShownProblem {
        let evidence = found.cause.evidence.iter();
        told::ShownProblem {
            problem: self.problem(found),
            evidence: evidence
                .map(|(name, number)| (name.clone(), rounded(*number)))
                .collect(),
            pictures: self.pictures(found),
        }
    }

    fn past_problem(&self, past: PastProblem) -> told::PastProblem {
        let subject = past.subject.as_ref();
        told::PastProblem {
            subject: subject.map(|(it, name)| self.subject_then(it, name.as_ref())),
            rule: past.rule,
            sentence: past.sentence,
            since: past.since.as_ms(),
            ended: past.ended.as_ms(),
        }
    }

    /// Numbers over time in which a problem is seen: those that it was found by, where they are of a machine; the curves of
    /// a run; else what its process, device or machine has used.
    fn pictures(&self, found: &Finding) -> Vec<told::Series> {
        let rule = found.cause.rule;
        let curves = CURVES.iter().find(|(name, _)| *name == rule);
        let mut pictures = match curves {
            Some((_, names)) => self.curves(found, names),
            None => found
                .who
                .iter()
                .flat_map(|it| self.of_subject(it, found))
                .collect(),
        };
        pictures.truncate(PICTURES_MAX);
        pictures
    }

    /// Curves that the run of a problem's process records.
    fn curves(&self, found: &Finding, names: &[&str]) -> Vec<told::Series> {
        let job = found.who.iter().find_map(|it| self.job_of(it));
        let of_job = |home: ProcessId| {
            let process = self.seen.process(home);
            process.map(|it| it.job.as_str()) == job.as_deref()
        };
        let recorded = self.seen.recorded().filter(|it| {
            names.contains(&it.name.as_str())
                && label(it, "rank").is_none()
                && of_job(it.actor.home)
        });
        let series = recorded.map(|it| {
            let skip = it.points.len().saturating_sub(POINTS_MAX);
            let points = it.points.iter().skip(skip);
            let unit = label(it, "unit");
            told::Series {
                name: it.name.clone(),
                title: it
                    .name
                    .rsplit('.')
                    .next()
                    .unwrap_or(&it.name)
                    .replace('_', " "),
                unit: unit.map_or_else(String::new, |it| it.to_string()),
                points: points.map(|(at, _, value)| (at.as_ms(), *value)).collect(),
            }
        });
        series.collect()
    }

    /// The next step of a person, with the number of the job in its commands.
    pub(super) fn advice(&self, rule: &ProblemRule, found: &Finding) -> String {
        // A run by itself has no number by which commands know it.
        let number = |tag: String| tag.contains('/').then(|| job_number(&tag).to_owned());
        rule.advice(&found.who, |it| self.job_of(it).and_then(number))
    }

    /// The name under which the processes run of the job that something belongs to.
    fn job_of(&self, subject: &Subject) -> Option<String> {
        let job = match subject {
            Subject::Job(job) => Some(job.clone()),
            Subject::Process(id) => self.seen.process(*id).map(|it| it.job.clone()),
            Subject::Actor(id) => self.seen.actors().get(*id).map(|it| it.job.clone()),
            _ => None,
        };
        job.filter(|job| !job.is_empty())
    }

    fn of_subject(&self, subject: &Subject, found: &Finding) -> Vec<told::Series> {
        let named = |name: &str| found.cause.evidence.iter().any(|(it, _)| it == name);
        match subject {
            Subject::Node(name) => {
                let Some(node) = self.seen.node(name) else {
                    return vec![];
                };
                let all = self.history_of(node);
                let metric = |it: &told::Series| {
                    let own = it.name.split(" of ").next().unwrap_or_default();
                    named(own)
                };
                let odd: Vec<_> = all.iter().filter(|it| metric(it)).cloned().collect();
                match odd.is_empty() {
                    true => all
                        .into_iter()
                        .filter(|it| is_told_of_node(&it.name))
                        .collect(),
                    false => odd,
                }
            }
            Subject::Device(node, index) => {
                let node = self.seen.node(node);
                node.map_or_else(Vec::new, |node| self.history_of_device(node, *index))
            }
            Subject::Process(id) => self.of_process(*id),
            Subject::Actor(id) => self
                .seen
                .actors()
                .get(*id)
                .map_or_else(Vec::new, |it| self.of_process(it.view.process)),
            _ => vec![],
        }
    }

    /// The numbers of a process, and those of the ranks of its job on its node.
    fn of_process(&self, id: ProcessId) -> Vec<told::Series> {
        let Some(process) = self.seen.process(id) else {
            return vec![];
        };
        let mut all = match self.seen.node(&process.node) {
            Some(node) => {
                let part = MachinePart::Job(process.job.clone());
                self.history_of_part(node, &part, &format!(" of {}", process.job))
            }
            None => vec![],
        };
        all.extend(self.history_of_process(process));
        all
    }
}

/// Numbers of a machine that tell whether it was there and what it did.
fn is_told_of_node(name: &str) -> bool {
    [Metric::Cpu, Metric::Memory, Metric::Sent]
        .iter()
        .any(|it| it.name() == name)
}
