//! Answers of the routes below `/api/v1/inspect`: the same for the pages in a browser, for
//! `odeon top` and for scripts.
//!
//! Times are milliseconds since 1970, shares go from 0 to 1, ids are opaque. What cannot be measured
//! says why ([`Measured`]); a 0 is a measured 0.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A number, or why there is none.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
#[schema(as = seen::Measured)]
pub enum Measured {
    /// It was measured.
    Value(f64),
    /// It was not.
    Missing {
        /// Why, in words.
        missing: String,
    },
}

impl Measured {
    /// A number, if there is one; else why not.
    #[must_use]
    pub fn new(value: Option<f64>, missing: &str) -> Self {
        match value {
            Some(value) => Self::Value(value),
            None => Self::Missing {
                missing: missing.to_owned(),
            },
        }
    }

    /// The number.
    #[must_use]
    pub const fn value(&self) -> Option<f64> {
        match self {
            Self::Value(value) => Some(*value),
            Self::Missing { .. } => None,
        }
    }
}

macro_rules! records {
    ($($(#[$about:meta])* $name:ident { $($(#[$field_about:meta])* $field:ident: $kind:ty,)* })*) => {$(
        $(#[$about])*
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
        #[schema(as = seen::$name)]
        pub struct $name {
            $($(#[$field_about])* pub $field: $kind,)*
        }
    )*};
}

/// Every answer: what it is of, how true it is, and the data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = seen::Envelope)]
pub struct Envelope<T> {
    /// Another one when the observer began anew.
    pub epoch: String,
    /// Counts up with what is seen.
    pub seq: u64,
    /// When it was put together.
    pub captured_at: f64,
    /// Rows that are in it.
    pub shown: u64,
    /// Rows that there are.
    pub total: u64,
    /// Spans that were lost before anybody saw them.
    pub dropped: u64,
    /// Spans that were seen and are kept no longer, since there is room for so many only.
    #[serde(default)]
    pub forgotten: u64,
    /// Spans that ended later are kept; `None` while nothing was forgotten.
    #[serde(default)]
    pub kept_from: Option<f64>,
    /// n of "one trace in n is kept".
    pub sampled: f64,
    /// The largest error of times of different nodes against each other, in microseconds.
    pub clock_error_us: Option<f64>,
    /// Nodes that do not answer.
    pub missing: Vec<MissingNode>,
    /// The whole in a few numbers.
    pub head: Head,
    /// The data that was asked for.
    pub data: T,
}

records! {
    /// A node that does not answer.
    MissingNode {
        /// Its name.
        node: String,
        /// When it was last heard.
        since: f64,
        /// Why, in words.
        why: String,
    }

    /// The whole in a few numbers.
    Head {
        /// The name of what is looked at.
        name: String,
        /// Its nodes.
        nodes: NodeCount,
        /// Devices on all of them.
        devices: u64,
        /// Its actors.
        actors: ActorCount,
        /// Its problems.
        problems: ProblemCount,
        /// Spans recorded in a second.
        spans_per_s: f64,
        /// A recording is shown rather than what is.
        replay: Option<Replay>,
    }

    /// Counts of nodes.
    NodeCount {
        /// That are there.
        up: u64,
        /// That are known.
        all: u64,
    }

    /// Counts of actors.
    ActorCount {
        /// In all, without those of the system itself.
        all: u64,
        /// That have failed for good.
        failed: u64,
    }

    /// Counts of problems.
    ProblemCount {
        /// Where something does not work.
        error: u64,
        /// That are worth a look.
        warning: u64,
    }

    /// A recording that is shown.
    Replay {
        /// Its name.
        name: String,
        /// The speed, as a multiple of the recorded one.
        speed: f64,
        /// True while it stands.
        paused: bool,
        /// Where it is.
        at: f64,
        /// Where it begins.
        from: f64,
        /// Where it ends.
        to: f64,
    }

    /// Something that has a place of its own.
    Subject {
        /// `actor`, `node`, `device`, `job`, `process`, `span`, `transfer`.
        kind: String,
        /// Its id among those.
        id: String,
        /// Its name for people.
        name: String,
    }

    /// The system that can be looked at, and the bounds on what is kept of it.
    About {
        /// The name of what is looked at.
        name: String,
        /// The version of the observer.
        version: String,
        /// See [`Envelope::epoch`].
        epoch: String,
        /// When it began.
        started: f64,
        /// True if actors may be stopped from here.
        allow_actions: bool,
        /// The pages that it has, of those that not every system has.
        faces: Faces,
        /// The bounds on what is kept.
        limits: Vec<Bound>,
    }

    /// Pages that not every system has.
    Faces {
        /// Jobs of a cluster.
        jobs: bool,
        /// Runs of workloads.
        runs: bool,
    }

    /// A bound on what is kept of something.
    Bound {
        /// Of what.
        name: String,
        /// The bound.
        value: f64,
        /// In what.
        unit: String,
        /// Why, and what goes first.
        why: String,
    }

    /// A problem at the moment.
    Problem {
        /// By which rule.
        rule: String,
        /// `error` or `warning`.
        severity: String,
        /// Things that it is about.
        count: u64,
        /// The problem in words, with the threshold.
        sentence: String,
        /// Since when, as far as is known.
        since: f64,
        /// The first of what it is about.
        subjects: Vec<Subject>,
        /// The action that the system takes by itself.
        #[serde(default)]
        done: String,
        /// The next step of a person.
        #[serde(default)]
        advice: String,
    }

    /// A problem with what shows it.
    ShownProblem {
        /// The problem.
        problem: Problem,
        /// The numbers that it was found by, with their names.
        evidence: Vec<(String, f64)>,
        /// Numbers over time that show it, from before it began.
        pictures: Vec<Series>,
    }

    /// A problem that is over.
    PastProblem {
        /// By which rule.
        rule: String,
        /// The problem in words, as it was last.
        sentence: String,
        /// The first of what it was about.
        subject: Option<Subject>,
        /// Since when it was.
        since: f64,
        /// When it was over, to a minute.
        ended: f64,
    }

    /// The page of problems.
    Problems {
        /// Those of now, the worst first.
        now: Vec<ShownProblem>,
        /// Those that are over, the newest first.
        past: Vec<PastProblem>,
    }

    /// A number over time.
    Series {
        /// Its name.
        name: String,
        /// Its name for people.
        title: String,
        /// Its unit.
        unit: String,
        /// Times and values.
        points: Vec<(f64, f64)>,
    }

    /// A number over time with its spread: time, least, most, mean.
    Spread {
        /// Its name.
        name: String,
        /// Its unit.
        unit: String,
        /// Time, least, most, mean.
        points: Vec<(f64, f64, f64, f64)>,
    }

    /// Something that has happened.
    Event {
        /// Counts up.
        seq: u64,
        /// When.
        at: f64,
        /// The kind of event.
        kind: String,
        /// `info`, `warning`, `error`.
        severity: String,
        /// The actor, node or other thing that it is about.
        subject: Option<Subject>,
        /// The event in words.
        sentence: String,
        /// Why, outermost first.
        chain: Vec<String>,
    }

    /// The page of what matters now.
    Now {
        /// The problems, the worst first.
        problems: Vec<Problem>,
        /// The actors that have waited longest for others.
        #[serde(default)]
        waiting: Vec<Waiting>,
        /// The nodes.
        nodes: Vec<Node>,
        /// The whole over time.
        series: Vec<Series>,
        /// The last events, newest last.
        events: Vec<Event>,
    }

    /// The page of nodes.
    Cluster {
        /// The nodes, in the order of their names.
        nodes: Vec<Node>,
        /// The links between them.
        links: Vec<Link>,
    }

    /// A node.
    Node {
        /// Its name.
        name: String,
        /// `up`, `suspect`, `draining`, `refused`, `down`.
        state: String,
        /// Since when it is there.
        since: f64,
        /// Where it listens.
        address: String,
        /// It leads the cluster.
        leads: bool,
        /// It votes.
        votes: bool,
        /// Its release.
        version: String,
        /// Processors.
        cores: u32,
        /// The part of them in use.
        cpu: Measured,
        /// Its memory.
        memory: Memory,
        /// Its devices.
        devices: Vec<Device>,
        /// Actors on it.
        actors: u64,
        /// Its processes.
        processes: Vec<Process>,
        /// The offset of its clock from the observer's.
        clock: Option<Clock>,
        /// There and back, from the observer.
        rtt_us: Measured,
        /// The labels that it was started with.
        labels: BTreeMap<String, String>,
    }

    /// The offset of a clock from the observer's.
    Clock {
        /// By how much it is ahead.
        offset_us: f64,
        /// The largest error of that, in microseconds.
        error_us: f64,
    }

    /// Memory of a machine or a device, in bytes.
    Memory {
        /// In use.
        used: Measured,
        /// In all.
        total: u64,
    }

    /// A device.
    Device {
        /// Its node and number.
        id: String,
        /// Its node.
        node: String,
        /// Its number there.
        index: u32,
        /// Its model.
        name: String,
        /// `gpu`: accelerators are the devices that there are.
        kind: String,
        /// `ok` or `faulty`.
        state: String,
        /// The part of the time that it works.
        utilisation: Measured,
        /// Its memory.
        memory: Memory,
        /// In degrees Celsius.
        temperature: Measured,
        /// Draw of its board, in watts.
        power_w: Measured,
        /// The leases on it.
        leases: Vec<Lease>,
        /// The owners of its memory.
        owners: Vec<Owner>,
        /// Actors that were granted it.
        actors: u64,
    }

    /// A lease of a part of a device.
    Lease {
        /// The holder.
        holder: Subject,
        /// The part of it that is leased.
        share: f64,
    }

    /// A process that uses memory of a device.
    Owner {
        /// The process, if it is one of ours.
        subject: Option<Subject>,
        /// Its name.
        name: String,
        /// Bytes that it uses.
        bytes: Measured,
    }

    /// A process.
    Process {
        /// Its number in the cluster.
        id: String,
        /// Its node.
        node: String,
        /// The operating system's number.
        pid: Option<u32>,
        /// `node`, `driver`, `worker`.
        kind: String,
        /// The job that it works for.
        job: Option<String>,
        /// `running` or `gone`.
        state: String,
        /// When it was first seen.
        started: f64,
        /// Bytes of memory.
        rss: Measured,
        /// Processors in use.
        cpu: Measured,
        /// Actors in it.
        actors: u64,
        /// Messages without an answer that nobody handled, so far.
        #[serde(default)]
        dead_letters: u64,
    }

    /// A link between two nodes.
    Link {
        /// From this one.
        from: String,
        /// To that one.
        to: String,
        /// `network` or `socket`.
        kind: String,
        /// There and back.
        rtt_us: Measured,
        /// Bytes that are sent over it in a second.
        bytes_per_s: Measured,
        /// Bytes that wait to be sent.
        queued_bytes: u64,
        /// Bytes that were sent and not acknowledged.
        unacknowledged_bytes: u64,
        /// The number of times that it went on over another connection.
        resumed: u32,
        /// Why the last connection ended.
        last_break: Option<String>,
        /// The time since anything has come, in milliseconds.
        silent_ms: f64,
    }

    /// The page of actors.
    Actors {
        /// Those that the filter takes, in the order asked for.
        rows: Vec<ActorRow>,
        /// Their sums by group, where they are grouped.
        groups: Option<Vec<ActorGroup>>,
    }

    /// Changes on the page of actors.
    ActorsDelta {
        /// Rows that are new or have changed, whole.
        upsert: Vec<ActorRow>,
        /// Rows that are not there any more.
        remove: Vec<String>,
    }

    /// An actor.
    ActorRow {
        /// Its id.
        id: String,
        /// Its name, if it has one.
        name: Option<String>,
        /// Its type.
        r#type: String,
        /// The job that it belongs to.
        job: Option<String>,
        /// Its node.
        node: String,
        /// Its process.
        process: String,
        /// The devices that it was granted.
        devices: Vec<String>,
        /// Its supervisor, if that is an actor.
        parent: Option<String>,
        /// It belongs to the system itself.
        system: bool,
        /// Its state.
        state: String,
        /// Since when.
        since: f64,
        /// The messages that wait for it.
        mailbox: Mailbox,
        /// Messages that came.
        received: u64,
        /// Messages that it has taken out of its mailbox.
        handled: u64,
        /// Handlers that have failed.
        failed: u64,
        /// The number of times that it began anew.
        restarts: u32,
        /// Which life it is in.
        incarnation: u32,
        /// Messages in a second.
        rate: f64,
        /// The part of the time that handlers run.
        busy: f64,
        /// The part in which they wait for others.
        waiting: f64,
        /// The message that it handles.
        current: Option<Current>,
        /// Its wait, while it waits.
        waits_on: Option<WaitsOn>,
        /// Its end, once it has ended.
        ended: Option<Ended>,
    }

    /// The contents of a mailbox.
    Mailbox {
        /// Messages.
        len: u32,
        /// Messages of its own process for which there is room.
        max: u32,
        /// Bytes of those that came from other processes.
        bytes: u64,
    }

    /// The message that is handled.
    Current {
        /// Its name.
        message: String,
        /// Since when.
        since: f64,
    }

    /// The wait of an actor: for another one, or for a place.
    WaitsOn {
        /// The other actor.
        id: String,
        /// Its name for people.
        name: String,
        /// `ask`: for an answer; `room`: for room in its mailbox; `place`: for room on the nodes.
        how: String,
        /// The message.
        message: String,
        /// Since when.
        since: f64,
    }

    /// The end of an actor.
    Ended {
        /// When.
        at: f64,
        /// Why, in words.
        sentence: String,
    }

    /// Actors taken together.
    ActorGroup {
        /// The value that they have in common.
        key: String,
        /// The number of them.
        count: u64,
        /// The worst that one of them is at.
        worst: String,
        /// The contents of their mailboxes.
        mailbox: GroupMailbox,
        /// Messages in a second.
        rate: f64,
        /// The mean part of the time that handlers run.
        busy: f64,
        /// Handlers that have failed.
        failed: u64,
        /// The number of times that they began anew.
        restarts: u64,
    }

    /// The contents of several mailboxes.
    GroupMailbox {
        /// In all.
        sum: u64,
        /// In the fullest.
        max: u64,
    }

    /// All about one actor.
    ActorDetail {
        /// Its row.
        row: ActorRow,
        /// Its supervisors, the topmost first, then itself.
        lineage: Vec<Subject>,
        /// The actors that it supervises.
        children: Children,
        /// Whom it waits for, and whom those do, to the end.
        chain: Vec<ChainLink>,
        /// The chain comes back to where it has been.
        circle: bool,
        /// It is one of those who wait for each other and of whom none can go on.
        #[serde(default)]
        deadlock: bool,
        /// By kind of message.
        messages: Vec<MessageStats>,
        /// All messages together.
        all_messages: MessageTimes,
        /// Why it is where it is.
        placement: Option<Placement>,
        /// Its lives, the last ones.
        lives: Vec<Life>,
        /// Its last spans.
        spans: Vec<SpanBrief>,
    }

    /// The actors that an actor supervises.
    Children {
        /// The number of them.
        count: u64,
        /// By what they are at.
        by_state: BTreeMap<String, u64>,
        /// Some of them.
        some: Vec<ActorRow>,
    }

    /// An actor that waits.
    Waiting {
        /// Which.
        subject: Subject,
        /// Whom it waits for, and whom those do, to the end.
        chain: Vec<ChainLink>,
        /// The chain comes back to where it has been.
        circle: bool,
        /// It is one of those who wait for each other and of whom none can go on.
        #[serde(default)]
        deadlock: bool,
        /// Since when.
        since: f64,
    }

    /// One step of a chain of waits.
    ChainLink {
        /// The actor that is waited for.
        subject: Subject,
        /// See [`WaitsOn::how`].
        how: String,
        /// The message.
        message: String,
        /// Since when.
        since: f64,
    }

    /// The work of an actor on one kind of message.
    MessageStats {
        /// Its name.
        name: String,
        /// The number of them that were handled.
        count: u64,
        /// Those that failed.
        failed: u64,
        /// The run times of the handler, in microseconds.
        handling_us: Quantiles,
        /// The times that they lay in the mailbox, in microseconds.
        waiting_us: Quantiles,
    }

    /// The times of all messages of an actor.
    MessageTimes {
        /// The run times of handlers, in microseconds.
        handling_us: Quantiles,
        /// The times that messages lay in the mailbox, in microseconds.
        waiting_us: Quantiles,
    }

    /// Of some times; nothing where there are none.
    Quantiles {
        /// Half of them were shorter.
        p50: Option<f64>,
        /// One of a hundred was longer.
        p99: Option<f64>,
    }

    /// Why an actor is where it is, or has no place.
    Placement {
        /// In words.
        sentence: String,
        /// The node.
        node: Option<String>,
        /// The devices.
        devices: Vec<String>,
    }

    /// One life of an actor.
    Life {
        /// Its number.
        number: u32,
        /// When it was first seen.
        from: f64,
        /// When it ended.
        to: Option<f64>,
        /// Why.
        cause: Option<String>,
        /// The causes of that.
        chain: Vec<String>,
    }

    /// A span in short.
    SpanBrief {
        /// Its id.
        id: String,
        /// Its trace.
        trace: String,
        /// The span that caused it.
        parent: Option<String>,
        /// `ask`, `tell`, `handle`, `user`, `copy`.
        kind: String,
        /// Its name.
        name: String,
        /// The actor that did it.
        actor: Subject,
        /// When it began.
        start: f64,
        /// When it was over.
        end: Option<f64>,
        /// The time that its message lay in the mailbox, in milliseconds.
        queued_ms: f64,
        /// True if it went well.
        ok: bool,
    }

    /// All about one span.
    SpanDetail {
        /// The span.
        span: SpanFull,
        /// The span that caused it.
        cause: Option<SpanBrief>,
        /// The spans that it caused.
        effects: Vec<SpanBrief>,
    }

    /// A span.
    SpanFull {
        /// The span in short.
        #[serde(flatten)]
        brief: SpanBrief,
        /// Why not, as far as is known.
        error: Option<String>,
        /// Where.
        node: String,
        /// In which process.
        process: String,
        /// Whom it concerns, where that is another.
        caller: Option<Subject>,
        /// Its attributes, by name.
        attributes: BTreeMap<String, String>,
    }

    /// All that one message caused.
    Trace {
        /// Its id.
        trace: String,
        /// Its spans, parents before their children.
        spans: Vec<SpanBrief>,
        /// Those that decided when it was over.
        critical: Vec<String>,
        /// Spans whose parents are missing.
        lost: u64,
    }

    /// Spans as a list.
    Spans {
        /// Oldest first.
        spans: Vec<SpanBrief>,
    }

    /// Traces, the slowest first.
    Traces {
        /// Each in a few numbers.
        traces: Vec<TraceBrief>,
    }

    /// A trace in a few numbers.
    TraceBrief {
        /// Its id.
        trace: String,
        /// Its first span.
        first: SpanBrief,
        /// When the last of its spans was over; now, if one goes on.
        end: f64,
        /// The number of its spans.
        spans: u64,
        /// Those that failed.
        failed: u64,
    }

    /// Spans added up by name.
    Aggregate {
        /// The longest first.
        rows: Vec<Total>,
    }

    /// Spans of one kind and name.
    Total {
        /// Their name.
        name: String,
        /// Their kind.
        kind: String,
        /// The number of spans.
        count: u64,
        /// Time in all of them.
        total_ms: f64,
        /// Time of that which no span below them covers.
        self_ms: f64,
        /// Half of them were shorter.
        p50_ms: f64,
        /// One in a hundred was longer.
        p99_ms: f64,
        /// Those that failed.
        failed: u64,
    }

    /// A part of time, in lanes.
    Timeline {
        /// From here.
        from: f64,
        /// To here.
        to: f64,
        /// The length of a bucket, in milliseconds.
        bucket_ms: f64,
        /// The names of spans, by number.
        names: Vec<String>,
        /// The kinds of spans, by number.
        kinds: Vec<String>,
        /// The lanes, each before those below it.
        lanes: Vec<Lane>,
        /// Lanes of open processes that are not among them, since others are busier.
        lanes_left_out: u64,
    }

    /// A line of time.
    Lane {
        /// Its id.
        id: String,
        /// The lane above.
        parent: Option<String>,
        /// The number of levels that it is below the top.
        depth: u32,
        /// `node`, `process`, `actor`.
        kind: String,
        /// Its name for people.
        name: String,
        /// The node, process or actor that it belongs to.
        subject: Option<Subject>,
        /// It is of the system itself.
        #[serde(default)]
        system: bool,
        /// True if the lanes below follow.
        open: bool,
        /// The number of lanes below.
        children: u64,
        /// Id, begin and end from the window's begin, kind, name, whether it went well, row.
        #[schema(value_type = Option<Vec<(String, f64, Option<f64>, u8, u32, u8, u16)>>)]
        spans: Option<Vec<Mark>>,
        /// Number, actors at work on average, failures.
        buckets: Option<Vec<(u64, f64, u32)>>,
        /// Begin, end, how many are missing.
        gaps: Vec<(f64, f64, u64)>,
    }

    /// The page of jobs.
    Jobs {
        /// Newest first.
        jobs: Vec<Job>,
    }

    /// A job.
    Job {
        /// Its number.
        id: String,
        /// Its name.
        name: String,
        /// Its namespace.
        namespace: String,
        /// Where it is in its life.
        state: String,
        /// Since when.
        since: f64,
        /// When it was submitted.
        submitted: f64,
        /// By whom.
        by: String,
        /// Higher ones come first.
        priority: i64,
        /// The program that runs.
        program: String,
        /// With what.
        arguments: Vec<String>,
        /// Which try this is.
        attempt: u32,
        /// The number of tries that there may be.
        attempts: u32,
        /// The node that its driver runs on.
        node: Option<String>,
        /// Its actors.
        actors: u64,
        /// Its needs, in words.
        needs: String,
        /// Where it has been.
        phases: Vec<JobPhase>,
        /// Why it has no place.
        refusal: Option<Refusal>,
        /// Its end, once it has ended.
        exit: Option<Exit>,
    }

    /// A part of a job's life.
    JobPhase {
        /// The name of the state that it was in.
        name: String,
        /// Since when.
        at: f64,
        /// Its length in milliseconds; nothing while it lasts.
        ms: Option<f64>,
    }

    /// Why a job has no place.
    Refusal {
        /// In words.
        sentence: String,
        /// By node.
        rows: Vec<NodeRefusal>,
    }

    /// Why a job has no place on one node.
    NodeRefusal {
        /// The node.
        node: String,
        /// The resources that were asked for.
        asked: String,
        /// The resources that were free.
        free: String,
        /// The reason why it did not fit.
        why: String,
        /// True if it would fit, and another came first.
        fits: bool,
    }

    /// The end of a job.
    Exit {
        /// In words.
        sentence: String,
        /// The exit code of its driver.
        code: Option<i32>,
        /// The causes of it.
        chain: Vec<String>,
    }

    /// All about one job.
    JobDetail {
        /// The job.
        job: Job,
        /// Some of its actors.
        actors: Vec<ActorRow>,
        /// The events about it.
        events: Vec<Event>,
        /// How long stages of its last start took, in their order: those that some node has passed.
        #[serde(default)]
        startup: Vec<StartupStage>,
    }

    /// A stage of a job's start, over its nodes.
    StartupStage {
        /// `queued`, `placed`, `files`, `environment`, `process`, `checkpoint` or `first_step`.
        stage: String,
        /// Milliseconds on the slowest node: those of the job.
        ms: f64,
        /// That node.
        slowest: String,
        /// Milliseconds of the node in the middle.
        median_ms: f64,
        /// The slowest relative to the median; nothing where that is under a millisecond.
        ratio: Option<f64>,
        /// Milliseconds on each node that has passed it.
        nodes: BTreeMap<String, f64>,
    }

    /// The page of events.
    Events {
        /// Newest last.
        events: Vec<Event>,
    }

    /// The page of transfers.
    Transfers {
        /// The boards of versions: who has which.
        boards: Vec<Board>,
        /// The copies, newest first.
        copies: Vec<Copy>,
    }

    /// A board of versions of something, which tells who has which.
    Board {
        /// Its id.
        id: String,
        /// Its name.
        name: String,
        /// The versions, oldest first.
        versions: Vec<i64>,
        /// The actors that take part.
        rows: Vec<BoardRow>,
        /// Which way it goes: from, to (places in `rows`, -1 for the source).
        edges: Vec<Edge>,
        /// Where it comes from.
        source: Subject,
    }

    /// The versions that one of them has.
    BoardRow {
        /// Its name.
        name: String,
        /// The actor.
        subject: Subject,
        /// By version.
        cells: Vec<Cell>,
    }

    /// The state of one version at one of them.
    Cell {
        /// `none`, `receiving`, `whole`, `used`.
        state: String,
        /// The part of it that is there.
        share: f64,
    }

    /// A way that a version goes.
    Edge {
        /// From this row; -1 for the source.
        from: i64,
        /// To this row.
        to: i64,
        /// The rate, in gigabytes a second.
        gb_per_s: Measured,
        /// Much slower than the others.
        straggler: bool,
    }

    /// Bytes that were copied.
    Copy {
        /// Its id.
        id: String,
        /// When it began.
        start: f64,
        /// When it was over.
        end: Option<f64>,
        /// From here.
        from: Subject,
        /// To here.
        to: Subject,
        /// The name of what was copied.
        what: String,
        /// The size in bytes.
        bytes: u64,
        /// Bytes of it that are there.
        done: u64,
        /// `shared memory`, `socket`, `network`, `device`.
        route: String,
        /// The rate, in gigabytes a second.
        gb_per_s: Measured,
        /// The rate that it might have, in gigabytes a second.
        expected_gb_per_s: Measured,
        /// True if it went well.
        ok: bool,
        /// Why not.
        error: Option<String>,
        /// Its span.
        span: Option<String>,
    }

    /// All about a copy, or a board.
    TransferDetail {
        /// The copy.
        copy: Option<Copy>,
        /// The board.
        board: Option<Board>,
    }

    /// All about one node.
    NodeDetail {
        /// The node.
        node: Node,
        /// Its recent numbers over time.
        series: Vec<Series>,
        /// Its links.
        links: Vec<Link>,
        /// Some of its actors.
        actors: Vec<ActorRow>,
        /// The events about it.
        events: Vec<Event>,
    }

    /// All about one device.
    DeviceDetail {
        /// The device.
        device: Device,
        /// Its recent numbers over time.
        series: Vec<Series>,
        /// The actors that were granted it.
        actors: Vec<ActorRow>,
    }

    /// All about one process.
    ProcessDetail {
        /// The process.
        process: Process,
        /// Its recent numbers over time.
        #[serde(default)]
        series: Vec<Series>,
        /// Some of its actors.
        actors: Vec<ActorRow>,
        /// The events about it.
        events: Vec<Event>,
    }

    /// The result of an action on an actor.
    Done {
        /// In words.
        sentence: String,
    }

    /// Lines that a job has printed.
    Logs {
        /// Oldest first.
        lines: Vec<LogLine>,
        /// There are earlier ones.
        more: bool,
        /// Where those begin, as `before` of the next request.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        earlier: Option<String>,
        /// Why there are none, where none are kept.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        none_kept: Option<String>,
    }

    /// A line that a job has printed.
    LogLine {
        /// When.
        at: f64,
        /// Where.
        node: String,
        /// By which process.
        process: String,
        /// `out` or `err`.
        stream: String,
        /// The text of the line.
        text: String,
    }

    /// The page of workloads.
    Runs {
        /// Newest first.
        runs: Vec<Run>,
    }

    /// A workload.
    Run {
        /// Its id.
        id: String,
        /// Its name.
        name: String,
        /// `rl`, `train`, `data`, `other`.
        kind: String,
        /// The recipe that it was started from.
        recipe: String,
        /// Where it keeps what it makes.
        folder: String,
        /// `running`, `finished`, `failed`, `halted`.
        state: String,
        /// When it began.
        started: f64,
        /// When it was over.
        ended: Option<f64>,
        /// Its progress.
        progress: Option<Progress>,
        /// Its present state, in numbers.
        facts: Vec<Fact>,
        /// Numbers over steps or time.
        curves: Vec<Curve>,
        /// Distributions of numbers.
        histograms: Vec<Histogram>,
        /// The work of its rollouts.
        rollouts: Vec<Rollout>,
        /// Its store of samples.
        store: Option<Store>,
        /// The board of weights: who has which.
        board: Option<Board>,
        /// Numbers by rank and stage.
        heat: Option<Heat>,
        /// Where its data comes from.
        sources: Vec<Source>,
        /// Its ranks, where they share a model.
        #[serde(default)]
        mesh: Option<RunMesh>,
        /// The passes of a pipeline of them.
        #[serde(default)]
        pipeline: Option<Pipeline>,
        /// Its machines, those together that do the same.
        #[serde(default)]
        machines: Vec<RunMachines>,
    }

    /// Machines that host as many ranks of the same stages, beside each other.
    RunMachines {
        /// The stages of these ranks.
        stages: Vec<String>,
        /// The seconds up to now over which means are taken.
        seconds: f64,
        /// The number of machines.
        total: u64,
        /// The metrics that were measured.
        metrics: Vec<MachineMetric>,
        /// The machines, by name; of many those furthest from the others.
        machines: Vec<RunMachine>,
    }

    /// A metric of machines.
    MachineMetric {
        /// Its name.
        name: String,
        /// Its name for people.
        title: String,
        /// Its unit.
        unit: String,
        /// The median of the means of all machines.
        median: f64,
    }

    /// A machine of a run.
    RunMachine {
        /// The name of its node.
        node: String,
        /// The ranks that it hosts.
        ranks: u64,
        /// For each metric; none where it was not measured.
        cells: Vec<Option<MachineCell>>,
    }

    /// A metric of a machine.
    MachineCell {
        /// The mean.
        mean: f64,
        /// Its distance from the median in robust standard deviations; none of fewer than three machines.
        deviations: Option<f64>,
        /// Its course, oldest first; none of many machines.
        points: Vec<f64>,
    }

    /// The ranks of a workload on their mesh.
    RunMesh {
        /// Its dimensions; the last one changes fastest from rank to rank.
        dims: Vec<MeshDim>,
        /// The ranks, in order.
        ranks: Vec<MeshRank>,
        /// The medians over ranks in the last step of each.
        median: Option<RankSeconds>,
        /// Those that wait to take the number of a rank that is lost.
        #[serde(default)]
        standbys: Vec<MeshStandby>,
    }

    /// A standby of ranks.
    MeshStandby {
        /// Its number among standbys.
        standby: u64,
        /// The actor.
        actor: Subject,
        /// The node that it is on.
        node: String,
    }

    /// A dimension of a mesh.
    MeshDim {
        /// `dp`, `fsdp`, `ep`, `pp`, `cp`, `tp`.
        name: String,
        /// The number of places along it.
        size: u64,
        /// For each place the means over the ranks there, and over their last 8 steps.
        means: Vec<Option<RankSeconds>>,
    }

    /// The seconds of ranks in a step.
    RankSeconds {
        /// In which they compute.
        compute: f64,
        /// Of adding up and exchanging with others, for whom they wait there.
        exchange: f64,
        /// For which they wait for their batch.
        wait: f64,
    }

    /// A rank on its mesh.
    MeshRank {
        /// Its number.
        rank: u64,
        /// Its places along the dimensions, in their order.
        coordinates: Vec<u64>,
        /// `running`, `starting` where it is made, or made again, `lost`, `stopped`.
        state: String,
        /// The actor; none before it is seen.
        actor: Option<Subject>,
        /// The node that it is on.
        node: String,
        /// The process that it is in.
        process: String,
        /// The devices that it was granted.
        devices: Vec<String>,
        /// The last step that it has made.
        step: Option<u64>,
        /// The seconds of that.
        last: Option<RankSeconds>,
        /// Its memory, as the settings ask for it, and activations as they were measured.
        memory: Option<RankMemory>,
        /// The bytes of its process that are present.
        resident: Measured,
    }

    /// Bytes of a rank.
    RankMemory {
        /// Of its parameters.
        parameters: u64,
        /// Of their gradients.
        gradients: u64,
        /// Of the optimiser's state.
        optimizer: u64,
        /// Of others' parameters that it gathers for passes, and of their gradients.
        gathered: u64,
        /// Of activations and their gradients: what its passes have held so far at most; none before the first.
        #[serde(default)]
        activations: Option<u64>,
    }

    /// The passes of a pipeline in one of its last steps.
    Pipeline {
        /// The step.
        step: u64,
        /// When its first pass began.
        start: f64,
        /// Milliseconds from then to the end of the last pass.
        ms: f64,
        /// The order of passes: `gpipe`, `1f1b`, `zb_h1`, `zero_bubble`.
        schedule: String,
        /// The number of micro-batches.
        micro_batches: u64,
        /// The number of stages of each rank.
        chunks: u64,
        /// The share of its ranks' time in which they make no pass.
        idle_share: f64,
        /// The same where all passes take as long as the mean of their kind, and nothing is waited for but what the
        /// order asks for.
        schedule_idle_share: f64,
        /// Its ranks, from the first stage to the last.
        lanes: Vec<PipelineLane>,
    }

    /// A rank of a pipeline.
    PipelineLane {
        /// Its number.
        rank: u64,
        /// The share of time in which it makes no pass.
        idle_share: f64,
        /// Begin and end in milliseconds since the first pass, its kind, micro-batch, and stage among those of the
        /// rank. Kinds are `forward` and `backward`, and where this is in two, `input` and `weight`.
        passes: Vec<(f64, f64, String, u64, u64)>,
    }

    /// The progress of a workload.
    Progress {
        /// Done.
        done: f64,
        /// Of so many.
        of: f64,
        /// Of these.
        unit: String,
    }

    /// A number of a workload.
    Fact {
        /// Its name.
        name: String,
        /// Its present value.
        value: f64,
        /// Its unit.
        unit: String,
    }

    /// A number of a workload over steps or time.
    Curve {
        /// Its name.
        name: String,
        /// Its name for people.
        title: String,
        /// Its unit.
        unit: String,
        /// `step` or `time`.
        x: String,
        /// Places and values.
        points: Vec<(f64, f64)>,
    }

    /// The distribution of a number.
    Histogram {
        /// Its name.
        name: String,
        /// Its name for people.
        title: String,
        /// Its unit.
        unit: String,
        /// From, to, how many.
        bins: Vec<(f64, f64, u64)>,
    }

    /// The work of a rollout.
    Rollout {
        /// The actor.
        subject: Subject,
        /// Its name.
        name: String,
        /// The newest version that it uses.
        version: Option<i64>,
        /// Those of the last minute that are over and were kept.
        done: u64,
        /// Those that go on.
        going: u64,
        /// Those of the last minute that were given up.
        dropped: u64,
        /// Tokens of all of these.
        tokens: u64,
        /// Begin, end, version, tokens, state, reward; every n-th where there are very many.
        trajectories: Vec<(f64, Option<f64>, i64, u64, String, Option<f64>)>,
    }

    /// A store of samples.
    Store {
        /// Rows in it.
        rows: u64,
        /// Rows for which there is room.
        most: u64,
        /// Rows that wait to be used.
        waiting: u64,
        /// Rows that are used now.
        in_use: u64,
    }

    /// Numbers by row and column.
    Heat {
        /// Their name for people.
        title: String,
        /// Their unit.
        unit: String,
        /// The rows.
        rows: Vec<String>,
        /// The columns.
        columns: Vec<String>,
        /// Row by row.
        values: Vec<Vec<f64>>,
    }

    /// Where data comes from.
    Source {
        /// Its name.
        name: String,
        /// The rate.
        rate: f64,
        /// Of what in a second.
        unit: String,
        /// Samples that are ready.
        buffer: f64,
        /// Samples for which there is room.
        buffer_max: f64,
        /// The state of its shadow.
        shadow: String,
    }
}

/// A span on a lane: id, begin and end from the window's begin, kind, name, whether it went well, row.
pub type Mark = (String, f64, Option<f64>, u8, u32, u8, u16);
