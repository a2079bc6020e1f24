//! The rules by which problems are found: in which order people should look at them, what is done about them, and what
//! people can do.

use crate::event::Subject;

/// Actors have failed for good. Each has told an event of its own.
pub(crate) const ACTOR_FAILED: &str = "actor_failed";
/// A node is gone. It has told an event of its own.
pub(crate) const NODE_DOWN: &str = "node_down";
/// A rank, or a copy of a blob, takes much longer than the others.
pub(crate) const STRAGGLER: &str = "straggler";
/// A part of a pipeline makes its steps longer than they would be.
pub(crate) const PIPELINE_STRAGGLER: &str = "pipeline_straggler";

/// A rank of a gang stands still while others do not.
pub(crate) const RANK_STILL: &str = "rank_still";
/// A rank of a gang is slow.
pub(crate) const RANK_SLOW: &str = "rank_slow";
/// A rank of a gang was the first to print a loss that is no number.
pub(crate) const RANK_NOT_FINITE: &str = "rank_not_finite";

/// A rank is waited for by all others of its job.
pub(crate) const AWAITED_RANK: &str = "awaited_rank";

/// Something is done about a rank that held up or broke its job.
pub(crate) const RANK_RECOVERY: &str = "rank_recovery";
/// A job does not place its ranks on a node.
pub(crate) const NODE_AVOIDED: &str = "node_avoided";

/// A standby of ranks could not be begun.
pub(crate) const STANDBY_MISSING: &str = "standby_missing";

/// A person forbids something to be done about the ranks of a job.
pub(crate) const ACTION_FORBIDDEN: &str = "action_forbidden";

/// Nothing is placed on a node. It has told an event of its own.
pub(crate) const NODE_REFUSED: &str = "node_refused";

/// A machine differs from those that do the same.
pub(crate) const ODD_MACHINE: &str = "odd_machine";

/// Machines of a job wait longer and longer for the last of them.
pub(crate) const LAUNCH_DRIFT: &str = "launch_drift";

/// Rules whose findings tell of something that was done at a moment: each is an event of its own, however soon it comes
/// behind another.
pub(crate) const OF_MOMENTS: [&str; 1] = [RANK_RECOVERY];

/// A rule that finds problems.
#[derive(Clone, Copy, Debug)]
pub struct ProblemRule {
    /// Its name, as reports and the API have it.
    pub name: &'static str,
    /// The action that the system takes by itself, in words.
    pub done: &'static str,
    /// The next step of a person, with places for what the problem is about.
    advice: &'static str,
}

impl ProblemRule {
    /// The next step of a person about a problem of these subjects. Commands in it name the first subject of the kind that
    /// they take; `ACTOR`, `NODE` or `JOB` stand where there is none.
    #[must_use]
    pub fn advice(&self, who: &[Subject], job_of: impl Fn(&Subject) -> Option<String>) -> String {
        let find = |of: fn(&Subject) -> Option<String>| who.iter().find_map(of);
        let actor = find(|it| match it {
            Subject::Actor(id) => Some(id.to_string()),
            _ => None,
        });
        let node = find(|it| match it {
            Subject::Node(name) | Subject::Device(name, _) => Some(name.clone()),
            _ => None,
        });
        let job = who.iter().find_map(job_of);
        self.advice
            .replace("{actor}", actor.as_deref().unwrap_or("ACTOR"))
            .replace("{node}", node.as_deref().unwrap_or("NODE"))
            .replace("{job}", job.as_deref().unwrap_or("JOB"))
    }
}

const NOTHING: &str = "nothing: people are told";
const LADDER: &str = "where the job's recovery says so, its process is ended and the ranks go on from the newest checkpoint, \
     then elsewhere, and at last the job stops";
const GANG: &str = "with `--hang-after` one that stands still has all ranks of its program begin again; else people are told";
const LOOK_AT_BATCH: &str = "look at the batches of that step and at the learning rate; go back to a checkpoint before it \
     with a smaller one";

const fn rule(name: &'static str, done: &'static str, advice: &'static str) -> ProblemRule {
    ProblemRule { name, done, advice }
}

/// The rules in the order in which people should look at what they find, of one severity.
pub(super) const RULES: [ProblemRule; 37] = [
    rule(
        "deadlock",
        "nothing: asks with a timeout end when that is over",
        "`odeon stack {actor}` shows the circle: have one of them answer before it asks, or ask from a task beside its handler",
    ),
    rule(
        ACTOR_FAILED,
        "its supervisor was told, which may make another",
        "`odeon events --kind failure` has the causes; `odeon retry {job}` runs a job again that is over",
    ),
    rule(
        NODE_DOWN,
        "it counts as lost: what ran on it is started elsewhere",
        "start its machine and `odeon join` again, or `odeon forget {node}` when it is gone for good",
    ),
    rule(
        "restart_loop",
        "it is started again until its supervisor's limit",
        "`odeon events --kind restart,failure` has the cause of each end; mend that, or stop the job: `odeon stop {job}`",
    ),
    rule(
        "blocked_thread",
        NOTHING,
        "have what blocks run in `in_place` or in a task for blocking work; `odeon stack {actor}` says where it stands",
    ),
    rule(
        "stuck_handler",
        NOTHING,
        "`odeon stack {actor}` says at what it is and whom it waits for",
    ),
    rule(
        RANK_RECOVERY,
        "as it says",
        "`odeon why {job}` has what was done and why; `odeon recover {job}` takes orders, where Odeon makes its ranks: forbid, \
         allow, force, undo",
    ),
    rule(
        RANK_STILL,
        GANG,
        "`odeon stack {job} --ranks` shows where each rank stands",
    ),
    rule(RANK_NOT_FINITE, NOTHING, LOOK_AT_BATCH),
    rule(
        RANK_SLOW,
        NOTHING,
        "look at the processors and devices of its node beside those of the others; `odeon doctor` there says what is set up \
         badly",
    ),
    rule(
        AWAITED_RANK,
        LADDER,
        "`odeon stack {job} --ranks` shows where each rank stands",
    ),
    rule(
        NODE_REFUSED,
        "nothing is placed on it; what runs there goes on",
        "`odeon node check {node}` lets it back if it passes, `odeon node allow {node}` in any case",
    ),
    rule(
        NODE_AVOIDED,
        "ranks of the job are placed on other nodes",
        "look at the machine: `odeon doctor` there; `odeon recover {job} undo --node {node}` has ranks use it again",
    ),
    rule(
        ACTION_FORBIDDEN,
        "what is forbidden is told and not done",
        "`odeon recover {job}` says who forbids it; `odeon recover {job} allow ACTION` has it done again",
    ),
    rule(
        STANDBY_MISSING,
        "it is tried again; ranks that are lost begin in new processes meanwhile",
        "make room for one more rank, reserve it with the job (`odeon submit`), or lower `recovery.standbys`",
    ),
    rule(
        "loss_not_finite",
        "with `recovery.not_finite = \"act\"` the ranks go back to the newest checkpoint",
        LOOK_AT_BATCH,
    ),
    rule(
        "gradient_corrupt",
        "the step was computed again, and what is bad was not taken",
        "have the machine of the rank checked: `odeon node check NODE`",
    ),
    rule(
        "gradient_not_finite",
        "the step changed nothing",
        LOOK_AT_BATCH,
    ),
    rule(
        "gradient_spike",
        "as the recipe says of such gradients",
        LOOK_AT_BATCH,
    ),
    rule(
        "reward_hacking",
        NOTHING,
        "read replies of now (`odeon generate`): the policy earns reward without being right; mend the reward, or go back to \
         the checkpoint before it",
    ),
    rule(
        "length_collapse",
        NOTHING,
        "read replies of now; weigh down what rewards short ones, or begin from better balanced weights",
    ),
    rule(
        "entropy_collapse",
        NOTHING,
        "raise `rl.clip_high` or `rl.entropy`, or lower the learning rate, from a checkpoint before it",
    ),
    rule(
        "hockey_stick",
        NOTHING,
        "nothing needs to be done: it has come back; a gentler learning rate at the begin avoids it",
    ),
    rule(
        "low_disk",
        "the node gets no new jobs where it could not hold their files",
        "make room on the disk of {node}'s folder",
    ),
    rule(
        "pending",
        "it waits for room",
        "`odeon why {job}` says who holds what it needs",
    ),
    rule(
        "waits_in_circle",
        NOTHING,
        "`odeon stack {actor}` shows the circle",
    ),
    rule(
        STRAGGLER,
        NOTHING,
        "look at the numbers of its node beside those of the others",
    ),
    rule(
        PIPELINE_STRAGGLER,
        NOTHING,
        "`odeon whatif` on a recording says what mending it would bring; `stages` of the recipe moves layers",
    ),
    rule(
        ODD_MACHINE,
        NOTHING,
        "`odeon doctor` on {node}; `odeon node refuse {node}` has nothing more placed there",
    ),
    rule(
        LAUNCH_DRIFT,
        NOTHING,
        "something irregular goes on on all machines, as collections of garbage: have them collect at the same step, or look \
         at what else their hosts do",
    ),
    rule(
        "device_memory",
        NOTHING,
        "make batches or caches smaller, or share the model by more ranks: `odeon plan` tells the memory of each",
    ),
    rule(
        "data_left_out",
        "those samples are left out and counted",
        "`odeon data` reads the files through and names what is odd",
    ),
    rule(
        "mailbox_full",
        "senders wait for room",
        "have it do less in a message, or share its work among more actors",
    ),
    rule(
        "node_suspect",
        "it is asked again; after a while it counts as lost",
        "look at the machine and its network",
    ),
    rule(
        "slow_link",
        NOTHING,
        "place what talks much near each other: labels of nodes, `[placement]`",
    ),
    rule(
        "events_dropped",
        "the oldest spans were overwritten",
        "sample fewer traces (`Limits::trace_sampling`)",
    ),
    rule(
        "clock_error",
        "times of the node are told with this error",
        "have clocks of all machines follow one source (NTP, PTP)",
    ),
];

/// The rule of this name.
#[must_use]
pub fn problem_rule(name: &str) -> Option<&'static ProblemRule> {
    const { &RULES }.iter().find(|rule| rule.name == name)
}

#[cfg(test)]
mod tests {
    use odeon::{ActorId, ProcessId};

    use super::*;

    #[test]
    fn advice_names_what_a_problem_is_about() {
        let actor = ActorId {
            home: ProcessId(7),
            serial: 2,
        };
        let who = [Subject::Actor(actor), Subject::Node("n2".to_owned())];
        let nobody = |_: &Subject| None;
        let advice = |name: &str, who: &[Subject], job: Option<&str>| {
            let job_of = |_: &Subject| job.map(str::to_owned);
            problem_rule(name).unwrap().advice(who, job_of)
        };
        assert!(advice("stuck_handler", &who, None).starts_with(&format!("`odeon stack {actor}`")));
        assert!(advice(NODE_REFUSED, &who, None).contains("odeon node check n2"));
        assert!(advice(RANK_STILL, &who, Some("j4")).contains("odeon stack j4 --ranks"));
        for rule in RULES {
            let without = rule.advice(&[], nobody);
            assert!(!without.is_empty() && !without.contains('{'), "{without}");
        }
    }
}
