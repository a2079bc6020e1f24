//! Types that travel over the API, as JSON. These types change only so that older programs still
//! read them; `cli/openapi.json` describes them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A failed request: the kind of trouble and the reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    /// The kind of trouble: `unauthorized`, `forbidden`, `unknown`, `conflict`, `invalid`,
    /// `too_large`, `too_many`, `unavailable`, `internal`.
    pub kind: String,
    /// In words, with what to do.
    pub why: String,
}

/// The cluster at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Status {
    /// The release of the node that answers.
    pub release: String,
    /// The node that answers.
    pub node: String,
    /// The node that leads the voters, if one does.
    pub leader: Option<String>,
    /// True if the voters have a majority that works together. Without one nothing is accepted, and
    /// what is told here may be old. An election takes up to three seconds.
    #[serde(default = "yes")]
    pub majority: bool,
    /// The voters.
    pub voters: Vec<String>,
    /// The number of voters that are wanted; there are fewer while there are too few nodes.
    #[serde(default)]
    pub voters_wanted: u32,
    /// All nodes.
    pub nodes: Vec<Node>,
    /// Jobs by where they are in their lives.
    pub jobs: BTreeMap<String, u64>,
    /// Milliseconds since 1970: by the catalog's clock, or that of the node that answers where it is
    /// ahead.
    pub now_ms: u64,
}

/// The value that an older release leaves out.
const fn yes() -> bool {
    true
}

/// A node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// `up`, `drained`, `refused`, `left` or `lost`; of one that the node which answers does not hear `silent`, until
    /// it is lost or heard again, or `unknown` while there is no majority.
    pub state: String,
    /// Why it is lost or called silent, or who refuses it and why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Since when, in milliseconds since 1970.
    pub since_ms: u64,
    /// Where other nodes reach it.
    pub address: String,
    /// The release that it runs.
    pub release: String,
    /// Processors.
    pub cpus: u32,
    /// Main memory, in bytes.
    pub memory_bytes: u64,
    /// Its devices, by model.
    pub devices: Vec<String>,
    /// Drivers that it runs.
    pub drivers: u64,
    /// The number of times that it was upgraded in place since it was started.
    #[serde(default)]
    pub upgrades: u32,
    /// Why it does not hold jobs to the processors and the memory that they have reserved; none where
    /// it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unlimited: Option<String>,
    /// Why the disk of its folder is about to be full; none where it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub low_disk: Option<String>,
    /// The number of times that it was refused.
    #[serde(default)]
    pub refusals: u32,
    /// The number of those after which a check found nothing wrong with it.
    #[serde(default)]
    pub over_refusals: u32,
}

/// The resources of one process of a job: its driver, or a rank. What is zero is not asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Allotment {
    /// Processor time, in thousandths of a core.
    pub cpu_milli: u64,
    /// Main memory, in bytes.
    pub memory_bytes: u64,
    /// Whole devices, all on one node.
    pub devices: u32,
    /// Memory that each of these devices has at least, in bytes.
    pub device_memory_bytes: u64,
}

/// The resources that a job asks for, before it begins: all of them or none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct JobResources {
    /// For its driver.
    pub driver: Allotment,
    /// The number of equal ranks beside the driver, on the same node or on others.
    pub ranks: u32,
    /// The number of ranks that it has at most, as there is room; none for as many as it has at least.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ranks_max: Option<u32>,
    /// For each rank.
    pub rank: Allotment,
}

/// A part of a node that a job has to itself: that of its driver, or of one of its ranks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Reservation {
    /// The node.
    pub node: String,
    /// Which rank; none for the driver.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank: Option<u32>,
    /// The quantities.
    pub allotment: Allotment,
    /// The devices, by their numbers on the node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<u32>,
    /// The same for people: `1 gpu + 2 cpu`.
    pub in_words: String,
}

/// A job that is submitted. Its files were uploaded before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewJob {
    /// For people; letters, digits, `-`, `_` and `.`.
    pub name: String,
    /// Whose quota it counts against; `default` unless told otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The digest of its files, as the upload gave it.
    pub bundle: String,
    /// Arguments of its executable.
    #[serde(default)]
    pub args: Vec<String>,
    /// Its variables.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Those of a higher priority start first.
    #[serde(default)]
    pub priority: i32,
    /// The number of times that it is begun anew after a failure, or after its node was lost.
    #[serde(default)]
    pub retries: u32,
    /// The node that its driver must run on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// A word of the client's own. The same key's second job under a word is the first one, so that
    /// a client that has not heard the answer may ask again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub word: Option<String>,
    /// The resources that it asks for; it does not begin before it has all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<JobResources>,
    /// The longest time that a try of it may run, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_limit_s: Option<u64>,
    /// The jobs that have to succeed before it begins, each by its number or by a name, which may be that
    /// of an array.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub after: Vec<String>,
    /// One job for each of these indices, and how many may have a node at the same time: `0-99%8`,
    /// `1,3,7`, `0-10:2`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub array: Option<String>,
    /// Links in its folder by their paths, each with what it leads to inside of that, seen from the link.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub links: BTreeMap<String, String>,
    /// The time between SIGTERM and SIGKILL when it has to end, in seconds; ten unless told otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grace_s: Option<u64>,
    /// The longest time that a try of it may neither print anything nor use a processor, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_limit_s: Option<u64>,
    /// The environment that its processes run in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub environment: Option<Environment>,
}

/// A folder of programs and packages that is installed before a job begins, once for all jobs and nodes that want the
/// same; its processes find its programs first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Environment {
    /// The files that say what is in it, by their paths among the job's files.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lock: Vec<String>,
    /// The command of a shell that makes the folder `$ODEON_ENVIRONMENT`, in the job's folder; without one it is made by
    /// `python3 -m venv`, and `pip` installs what the lock files list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub setup: Option<String>,
}

/// A job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Job {
    /// Its number: `j17`.
    pub id: String,
    /// For people.
    pub name: String,
    /// Whose quota it counts against.
    pub namespace: String,
    /// The name of the key that submitted it.
    pub by: String,
    /// `waiting`, `staging`, `running`, `updating`, `stopping`, `succeeded`, `failed`, `stopped`, `cancelled`,
    /// `refused` or `lost`.
    pub state: String,
    /// Why it waits, what is in its way, or how it ended, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// True once it is over.
    pub over: bool,
    /// The code that whoever waits for it should exit with, when it is over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// The node of its present or last try.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// The driver's number of the operating system, while it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// When it was submitted, in milliseconds since 1970.
    pub submitted_ms: u64,
    /// When it came into this state.
    pub since_ms: u64,
    /// When its present or last try was given to a node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub begun_ms: Option<u64>,
    /// Tries so far.
    pub tries: u32,
    /// Tries that it may have after the first.
    pub retries: u32,
    /// Those of a higher priority start first.
    pub priority: i32,
    /// The digest of its files.
    pub bundle: String,
    /// Arguments of its executable.
    pub args: Vec<String>,
    /// The names of its variables.
    #[serde(default)]
    pub env: Vec<String>,
    /// The type of the detached actor that it hosts under its name; none for a job that runs a
    /// program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hosts: Option<String>,
    /// Its earlier tries and their ends.
    pub earlier: Vec<Earlier>,
    /// The resources that it asks for, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<JobResources>,
    /// The same for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asks: Option<String>,
    /// The parts of nodes that its present try has to itself.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reserved: Vec<Reservation>,
    /// The longest time that a try of it may run, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_limit_s: Option<u64>,
    /// Lines of its output that no voter had kept when the try ended that printed them.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unkept_lines: u64,
    /// The jobs and arrays that it comes after which have not succeeded yet, for people.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub after: Vec<String>,
    /// Its place in an array, if it is of one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub array: Option<ArrayTask>,
    /// The time between SIGTERM and SIGKILL when it has to end, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grace_s: Option<u64>,
    /// The longest time that a try of it may neither print anything nor use a processor, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_limit_s: Option<u64>,
    /// The number of the version that it has.
    #[serde(default = "first_version")]
    pub version: u32,
    /// The versions that are kept, the oldest first; none where it was never updated.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub versions: Vec<JobVersion>,
}

const fn first_version() -> u32 {
    1
}

/// A program that a job has, had, or is to have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct JobVersion {
    /// Its number, from 1.
    pub number: u32,
    /// `waiting`, `starting`, `at work` or `failed`.
    pub state: String,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
    /// The version whose place it has taken, to which it goes back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<u32>,
    /// Set for the one that the job is about to have.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub next: bool,
    /// When that comes at the latest, where it waits for a restart; in milliseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub due_ms: Option<u64>,
    /// The name of the key that wanted it.
    pub by: String,
    /// Why; may be empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub why: String,
    /// When it was wanted, in milliseconds since 1970.
    pub at_ms: u64,
    /// The digest of its files.
    pub bundle: String,
    /// Arguments of its executable.
    pub args: Vec<String>,
}

/// Another program for a job that goes on, on the places that it has. What is missing stays as the version has it that the
/// job has, or is about to have.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct UpdateJob {
    /// The digest of its files, as the upload gave it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bundle: Option<String>,
    /// Arguments of its executable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub args: Option<Vec<String>>,
    /// Links in its folder; with `bundle`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub links: BTreeMap<String, String>,
    /// Variables beside those that it has, or in their place.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Fields of its recipe, each as `KEY=VALUE`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub set: Vec<String>,
    /// Why, for those who see it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub why: String,
    /// The time for which it may wait for a restart that comes anyway, in seconds, a week at most; at once without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_s: Option<u64>,
    /// A word of the client's own, under which the same key's update counts once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub word: Option<String>,
}

/// A version that a job is to go back to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RollBackJob {
    /// Its number; the one before, or that a version which waits is taken back, without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<u32>,
    /// Why, for those who see it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub why: String,
}

/// The place of a job in an array.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ArrayTask {
    /// The name of the array.
    pub name: String,
    /// The first of its jobs, which have numbers without gaps.
    pub first: String,
    /// The last of them.
    pub last: String,
    /// The number of its jobs.
    pub count: u32,
    /// The index of this one.
    pub index: u32,
    /// The most of its jobs that may have a node at the same time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_once: Option<u32>,
}

/// An act on all jobs of an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ArrayAct {
    /// Those that wait never begin.
    Cancel,
    /// Those that wait never begin, and the others end in order.
    Stop,
    /// Those that wait never begin, and the others are killed.
    Kill,
    /// Those that are over and have not succeeded are run again.
    Retry,
}

/// An act on an array that somebody wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ActOnArray {
    /// Which.
    pub act: ArrayAct,
}

/// An earlier try of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Earlier {
    /// Counted from 1.
    pub attempt: u32,
    /// Where it ran.
    pub node: String,
    /// Its end, in words.
    pub outcome: String,
}

/// The answer to an offer of files: the pieces that an upload lacks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Offered {
    /// The digest of the files together: what a job names.
    pub bundle: String,
    /// The digests of the pieces that are to be put.
    pub missing: Vec<String>,
}

/// The manner in which a job is to be stopped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StopJob {
    /// Killed, rather than asked to end.
    #[serde(default)]
    pub force: bool,
}

/// Where the programs of a job stand, all at about the same moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Stacks {
    /// When, in milliseconds since 1970.
    pub at_ms: u64,
    /// By rank, then by node and process.
    pub programs: Vec<StackOfProgram>,
    /// Nodes that did not say, each with the reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub silent: Vec<SilentNode>,
}

/// A program of a job, and where its threads stand.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StackOfProgram {
    /// Its rank, of a gang's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank: Option<u64>,
    /// The node that it runs on.
    pub node: String,
    /// Its process.
    pub pid: u32,
    /// Its threads, the main one first.
    pub threads: Vec<StackOfThread>,
    /// Why nothing is known of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// A thread of a program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StackOfThread {
    /// Its name.
    pub name: String,
    /// Its frames, the innermost first.
    pub frames: Vec<CodePlace>,
}

/// A place in the code of a program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CodePlace {
    /// The function.
    pub function: String,
    /// Its file, or the library that it is in.
    pub file: String,
    /// The line of the file; nothing for native frames.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
}

/// A node that did not answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SilentNode {
    /// Its name.
    pub node: String,
    /// Why, in words.
    pub why: String,
}

/// Lines that a job has printed: by time, then by who has sent them, then by number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Lines {
    /// The lines.
    pub lines: Vec<Line>,
    /// Where to read on, at whichever node.
    pub next: String,
    /// True if the job is over and nothing follows.
    pub over: bool,
    /// Voters that did not answer: what they alone have is not here.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub silent: Vec<String>,
}

/// A line that a process of a job has printed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Line {
    /// When, in milliseconds since 1970.
    pub at_ms: u64,
    /// In which try of the job.
    pub attempt: u32,
    /// On which node.
    pub node: String,
    /// Which of the lines that the node has sent of this try, in this life of it; counted from 0.
    pub number: u64,
    /// `driver`, or the number of a worker process.
    pub process: String,
    /// `out` or `err`.
    pub stream: String,
    /// The text of the line.
    pub text: String,
    /// True for how a line stood for a while before the process wrote over it, as progress bars do.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub changes: bool,
    /// Lines right before it from that node that are not kept any more: newer ones have taken their
    /// room.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub gone: u64,
    /// Lines right before it from that node that no voter has of those that answer.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub lost: u64,
}

const fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// A drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Drain {
    /// True if the node gets no new jobs.
    pub drained: bool,
}

/// A node that is refused, or let back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Refuse {
    /// True if nothing is placed on the node from now on, false if it may get work again.
    pub refused: bool,
    /// Why, in words; a node is not refused without a reason.
    #[serde(default)]
    pub why: String,
}

/// A join token that is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewToken {
    /// The number of nodes that may use it.
    pub uses: u32,
    /// For how long, in seconds.
    pub valid_s: u64,
}

/// A join token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Token {
    /// The token, as `odeon join` takes it.
    pub token: String,
    /// Where: the address of the node that answers.
    pub address: String,
    /// Until when, in milliseconds since 1970.
    pub until_ms: u64,
}

/// A key of the API that is wanted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewKey {
    /// Whose it is.
    pub name: String,
    /// `view`, `submit` or `admin`.
    pub role: String,
}

/// A key of the API, shown once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Key {
    /// Whose it is.
    pub name: String,
    /// `view`, `submit` or `admin`.
    pub role: String,
    /// The key, which goes into `Authorization: Bearer`; only where it is made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Since when, in milliseconds since 1970.
    pub since_ms: u64,
}

/// One thing that was checked of a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MachineCheck {
    /// The thing, such as `open files`.
    pub what: String,
    /// Its state: `good`, `doubtful` (slower, or something is missing) or `bad` (jobs fail by it).
    pub fitness: String,
    /// The state as it was found, in words.
    pub found: String,
    /// A change that mends it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub advice: Option<String>,
}

/// The checks of a node's machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CheckedNode {
    /// The node.
    pub node: String,
    /// Its checks; none where it has not answered.
    pub checks: Vec<MachineCheck>,
    /// Why it has not answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unreached: Option<String>,
    /// Set where it was refused, and may get work again since it has passed.
    #[serde(default)]
    pub let_back: bool,
}

/// The checks of all machines of a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CheckedCluster {
    /// The nodes, by name.
    pub nodes: Vec<CheckedNode>,
    /// The checks that they can fail only beside each other.
    pub together: Vec<MachineCheck>,
}

/// A group test of nodes that is wanted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct GroupTest {
    /// The nodes, four or more; all that take jobs where none is named.
    #[serde(default)]
    pub nodes: Vec<String>,
    /// Seconds that a process may take to begin, and then a group for its replay; 30 where none are given, 120 at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_s: Option<u64>,
    /// Set where the node that is found to blame is refused to all jobs.
    #[serde(default)]
    pub refuse: bool,
}

/// A group test that was made: nodes have made the same training steps in groups, of two rounds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct GroupTested {
    /// The node that is to blame, if one alone is suspected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub culprit: Option<String>,
    /// Nodes that are suspected.
    pub suspects: Vec<String>,
    /// True where the culprit is refused now.
    pub refused: bool,
    /// The nodes that were tested.
    pub nodes: Vec<String>,
    /// Nodes that were not, and why.
    pub left_out: Vec<LeftOutNode>,
    /// The groups of both rounds.
    pub groups: Vec<TestedGroup>,
    /// The time that it has taken, in milliseconds.
    pub took_ms: u64,
    /// The one that is to blame and why, in words.
    pub sentence: String,
}

/// A node that is left out of a group test.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LeftOutNode {
    /// The node.
    pub node: String,
    /// Why, in words.
    pub why: String,
}

/// A group of nodes in a group test.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TestedGroup {
    /// The number of its round: 1 or 2.
    pub round: u32,
    /// Its nodes.
    pub nodes: Vec<String>,
    /// Why it has failed, in words; nothing where it has come to the bits of the others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
}

/// The number of nodes that shall vote.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Voters {
    /// An odd number, 9 at most.
    pub count: u32,
}

/// The bounds of a namespace; what is missing has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Namespace {
    /// Jobs that have a node at the same time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub running_max: Option<u32>,
    /// Devices that the actors of all its jobs hold at the same time, in thousandths.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_milli: Option<u64>,
    /// Processor time that they hold, in thousandths of a core.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_milli: Option<u64>,
    /// Main memory that they hold, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
}

/// A namespace: its bounds, and what it uses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NamespaceUse {
    /// Its name.
    pub name: String,
    /// Its bounds.
    #[serde(flatten)]
    pub bounds: Namespace,
    /// Jobs that have a node.
    pub running: u64,
    /// Jobs that wait for one.
    pub waiting: u64,
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct News {
    /// When, in milliseconds since 1970.
    pub at_ms: u64,
    /// A job, a node, or what else it is about.
    pub about: String,
    /// The event in words.
    pub what: String,
}
