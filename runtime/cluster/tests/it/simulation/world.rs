//! A cluster without sockets, threads and disks: nodes with agents, a committed log with a leader
//! that changes, people, and a network that delays, repeats and loses. One seed draws everything.
//!
//! The decisions are the real ones: [`Tables`], [`plan`] and [`Attempts`]. What is around them follows
//! the daemon: how it repeats what was not answered, how often it looks, and what it waits for.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use odeon::Timestamp;
use odeon_artifacts::Digest;
use odeon_cluster::attempts::{AttemptStep, Attempts};
use odeon_cluster::controller::plan::{Rules, plan};
use odeon_cluster::controller::{Order, silent};
use odeon_cluster::fact::{Command, Fact, NamespaceQuota, NodeSpec, Refusal, Writer, Written};
use odeon_cluster::job::version::Program;
use odeon_cluster::job::{Event, Job, JobId, JobSpec, Outcome, State};
use odeon_cluster::resources::{Allotment, JobResources};
use odeon_cluster::tables::{NodeState, Tables};
use odeon_cluster::unix::Unix;
use odeon_diagnosis::node::{Silence, Silent, WatchedNode};

use super::oracle::{Attempt, Oracle, Tally};

/// Small and good enough to choose faults with.
#[derive(Debug)]
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    fn roll(&mut self, below: u64) -> u64 {
        self.next() % below
    }

    /// Once in so many times.
    fn once_in(&mut self, times: u64) -> bool {
        self.roll(times) == 0
    }
}

/// A part of the protocol that is left out, to see that the oracle misses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    None,
    /// Nodes do not ask which of their tries are over.
    NoSweep,
    /// A decision of the leader reaches the leader after it.
    Forwards,
    /// A command that is sent again has a new number.
    NewNumbers,
    /// A life of a node takes orders that were meant for another.
    AnyLife,
}

const NODES: usize = 5;
/// Processors of each.
pub(crate) const CPUS: u32 = 2;
/// The first nodes vote.
const VOTERS: usize = 3;

// As the daemon has them, in milliseconds.
const PATIENCE: u64 = 10_000;
const TRY_PATIENCE: u64 = 4_000;
const PAUSE: u64 = 100;
const QUORUM_SILENCE: u64 = 1_200;
const LINK_IDLE: u64 = 10_000;
const AGAIN: u64 = 5_000;
const MESH_PAUSE: u64 = 1_000;
const KEEPER_PAUSE: u64 = 250;
const GRACE: u64 = 10_000;
const LEAVE_PATIENCE: u64 = 2_000;
const RAFT_PAUSE: u64 = 200;

/// When the story begins, in milliseconds since 1970.
const EPOCH: u64 = 1_700_000_000_000;
/// Faults and people come to rest.
const CALM: u64 = 60_000;
/// The time at which all that still runs is stopped, in milliseconds.
const STOP_ALL: u64 = 125_000;
/// All is over.
const END: u64 = 170_000;

/// An event at some time.
#[derive(Clone, Debug)]
enum What {
    Mail {
        from: Option<usize>,
        to: usize,
        boot: u64,
        sent: u64,
        mail: Mail,
    },
    /// Somebody who writes hears what became of it.
    Answer(u64, Result<Result<Written, Refusal>, Elsewhere>),
    /// Somebody who writes tries again, if it was not answered since.
    Again(u64, u32),
    Raft,
    CatchUp(usize),
    Keep(usize, u64),
    Mesh(usize, u64),
    Try(usize, u64, Attempt, Progress),
    Announce(usize, u64),
    Gone(usize, u64),
    Fault,
    Heal(u64),
    Start(usize),
    Person,
    Calm,
    StopAll,
}

/// The leader, as far as the one who was asked knows.
type Elsewhere = Option<usize>;

#[derive(Clone, Debug)]
enum Mail {
    Note(Box<Command>),
    Begin(Box<Job>),
    Finish {
        job: JobId,
        attempt: u32,
        in_order: bool,
    },
}

#[derive(Clone, Copy, Debug)]
enum Progress {
    Staged,
    Exits { well: bool },
    Cleared,
}

/// A command on its way into the catalog.
#[derive(Debug)]
struct Write {
    origin: Origin,
    command: Command,
    deadline: u64,
    tries: u32,
    leader: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    /// A node that repeats it until the catalog listens.
    Stubborn(usize, u64),
    /// A node that has started, and says so until the catalog takes it.
    Up(usize, u64),
    /// A node that gives it up in the end.
    Once(usize, u64),
    /// A try, whose end waits for that.
    Started(usize, u64, Attempt),
    /// The leader's part of a node.
    Controller(usize, u64),
    /// A person, who sends the same again until it is answered.
    Person,
}

#[derive(Debug)]
struct Node {
    name: String,
    alive: bool,
    boot: u64,
    /// Which of the cuts in the network it is behind, a bit for each.
    side: u64,
    /// By how many milliseconds its clock is ahead of the others', or behind.
    clock: i64,
    attempts: Attempts,
    runs: BTreeMap<Attempt, Run>,
    leaving: bool,
}

/// A try that runs on a node.
#[derive(Debug)]
struct Run {
    driver: bool,
    deaf: bool,
    /// Set once the catalog has heard that it has started, or need not.
    told: bool,
    outcome: Option<Outcome>,
}

#[derive(Debug, Default)]
struct Voter {
    tables: Tables,
    applied: usize,
    /// Set while it takes itself for the leader.
    leads: bool,
    /// When it heard of a majority last, while it leads.
    quorum: u64,
    /// When it was last in touch with each node.
    contact: [u64; NODES],
    silence: Option<Silence>,
    told: BTreeMap<Order, u64>,
    orders: VecDeque<Order>,
    awaits: Option<u64>,
}

/// One simulated cluster, with all that is under way in it.
#[derive(Debug)]
pub(crate) struct World {
    dice: Dice,
    flaw: Flaw,
    rules: Rules,
    now: u64,
    serial: u64,
    queue: BTreeMap<(u64, u64), What>,
    names: Vec<String>,
    nodes: Vec<Node>,
    voters: Vec<Voter>,
    leader: Option<usize>,
    elect_at: Option<u64>,
    log: Vec<Command>,
    writes: BTreeMap<u64, Write>,
    /// Since when each node has been connected to the leader.
    connected: Vec<Option<u64>>,
    jobs: Vec<JobId>,
    oracle: Oracle,
}

/// The end of a run with one seed.
#[derive(Debug, PartialEq)]
pub(crate) struct Told {
    pub(crate) tables: Tables,
    pub(crate) tally: Tally,
}

impl World {
    pub(crate) fn new(seed: u64, flaw: Flaw) -> Self {
        let dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x0dec);
        let names: Vec<String> = (0..NODES).map(|n| format!("n{n}")).collect();
        let nodes = names.iter().map(|name| Node {
            name: name.clone(),
            alive: false,
            boot: 0,
            side: 0,
            clock: 0,
            attempts: Attempts::new(name, 0),
            runs: BTreeMap::new(),
            leaving: false,
        });
        let nodes = nodes.collect();
        Self {
            dice,
            flaw,
            rules: Rules {
                drivers_max: 2,
                ..Rules::default()
            },
            now: 0,
            serial: 0,
            queue: BTreeMap::new(),
            nodes,
            names,
            voters: (0..VOTERS).map(|_| Voter::default()).collect(),
            leader: None,
            elect_at: None,
            log: vec![],
            writes: BTreeMap::new(),
            connected: vec![None; NODES],
            jobs: vec![],
            oracle: Oracle::default(),
        }
    }

    /// Plays the story to its end.
    pub(crate) fn play(mut self) -> Told {
        for node in 0..NODES {
            let after = self.dice.roll(500);
            self.after(after, What::Start(node));
        }
        for voter in 0..VOTERS {
            self.after(1, What::CatchUp(voter));
        }
        self.after(0, What::Raft);
        for _ in 0..4 + self.dice.roll(16) {
            let at = 3_000 + self.dice.roll(CALM - 3_000);
            self.at(at, What::Fault);
        }
        for _ in 0..10 + self.dice.roll(40) {
            let at = 1_000 + self.dice.roll(CALM - 1_000);
            self.at(at, What::Person);
        }
        self.at(CALM, What::Calm);
        self.at(STOP_ALL, What::StopAll);
        while let Some(((at, _), what)) = self.queue.pop_first() {
            if at > END {
                break;
            }
            self.now = at;
            self.happens(what);
        }
        self.finish()
    }

    fn at(&mut self, at: u64, what: What) {
        self.serial += 1;
        self.queue.insert((at, self.serial), what);
    }

    fn after(&mut self, time: u64, what: What) {
        self.at(self.now + time, what);
    }

    fn happens(&mut self, what: What) {
        match what {
            What::Mail {
                from,
                to,
                boot,
                sent,
                mail,
            } => self.arrives(from, to, boot, sent, mail),
            What::Answer(id, outcome) => self.answered(id, outcome),
            What::Again(id, tries) => self.again(id, tries),
            What::Raft => self.raft(),
            What::CatchUp(voter) => self.catch_up(voter),
            What::Keep(node, boot) if self.lives(node, boot) => self.keep(node),
            What::Mesh(node, boot) if self.lives(node, boot) => self.mesh(node),
            What::Try(node, boot, attempt, progress) if self.lives(node, boot) => {
                self.progress(node, attempt, progress);
            }
            What::Gone(node, boot) if self.lives(node, boot) => self.crash(node),
            What::Announce(node, boot) if self.lives(node, boot) => self.announce(node),
            What::Keep(..)
            | What::Mesh(..)
            | What::Try(..)
            | What::Gone(..)
            | What::Announce(..) => {}
            What::Fault => self.fault(),
            What::Heal(cut) => self.nodes.iter_mut().for_each(|node| node.side &= !cut),
            What::Start(node) => self.start(node),
            What::Person => self.person(),
            What::Calm => self.calm(),
            What::StopAll => self.stop_all(),
        }
    }

    fn lives(&self, node: usize, boot: u64) -> bool {
        self.nodes[node].alive && self.nodes[node].boot == boot
    }

    fn reach(&self, from: usize, to: usize) -> bool {
        let (from, to) = (&self.nodes[from], &self.nodes[to]);
        from.alive && to.alive && from.side == to.side
    }

    // ---- the network ----

    fn send(&mut self, from: Option<usize>, to: usize, mail: &Mail) {
        let boot = self.nodes[to].boot;
        let sent = self.now;
        let calm = self.now >= CALM || from == Some(to);
        let copies = if !calm && self.dice.once_in(25) { 2 } else { 1 };
        for _ in 0..copies {
            let mut delay = match from == Some(to) {
                true => 0,
                false => 1 + self.dice.roll(40),
            };
            if !calm && self.dice.once_in(20) {
                delay += 500 + self.dice.roll(8_000);
            }
            let mail = mail.clone();
            let what = What::Mail {
                from,
                to,
                boot,
                sent,
                mail,
            };
            self.after(delay, what);
        }
    }

    fn arrives(&mut self, from: Option<usize>, to: usize, boot: u64, sent: u64, mail: Mail) {
        if !self.lives(to, boot) {
            return;
        }
        if from.is_some_and(|from| self.nodes[from].side != self.nodes[to].side) {
            // The link goes on when the other is there again in time.
            if self.now < sent + LINK_IDLE {
                let what = What::Mail {
                    from,
                    to,
                    boot,
                    sent,
                    mail,
                };
                self.after(200, what);
            }
            return;
        }
        match mail {
            Mail::Note(command) => self.note(to, *command),
            Mail::Begin(mut job) => {
                if self.flaw == Flaw::AnyLife {
                    adopt(&mut job, boot);
                }
                let step = self.nodes[to].attempts.begin(&job);
                self.step(to, job.id, &step);
            }
            Mail::Finish {
                job,
                attempt,
                in_order,
            } => {
                let step = self.nodes[to].attempts.finish(job, attempt, in_order);
                self.step(to, job, &step);
            }
        }
    }

    // ---- the voters ----

    /// The side on which a majority of the voters is.
    fn majority(&self) -> Option<u64> {
        let voters = || self.nodes[..VOTERS].iter().filter(|node| node.alive);
        let votes = |side: u64| voters().filter(|node| node.side == side).count();
        let mut sides = voters().map(|node| node.side);
        sides.find(|side| votes(*side) * 2 > VOTERS)
    }

    fn is_effective(&self, voter: usize) -> bool {
        let node = &self.nodes[voter];
        self.leader == Some(voter) && node.alive && Some(node.side) == self.majority()
    }

    fn raft(&mut self) {
        self.after(RAFT_PAUSE, What::Raft);
        if !self.leader.is_some_and(|leader| self.is_effective(leader)) {
            self.leader = None;
            match (self.majority(), self.elect_at) {
                (None, _) => self.elect_at = None,
                (Some(_), None) => self.elect_at = Some(self.now + 800 + self.dice.roll(1_700)),
                (Some(_), Some(at)) if self.now >= at => self.elect(),
                _ => {}
            }
        }
        for voter in 0..VOTERS {
            if self.leader.is_some_and(|leader| self.reach(leader, voter)) {
                self.voters[voter].leads = self.leader == Some(voter);
            }
            if self.is_effective(voter) {
                self.voters[voter].quorum = self.now;
            }
            for node in 0..NODES {
                if self.reach(voter, node) {
                    self.voters[voter].contact[node] = self.now;
                }
            }
        }
        for node in 0..NODES {
            let reached = self.leader.is_some_and(|leader| self.reach(leader, node));
            self.connected[node] = match (reached, self.connected[node]) {
                (true, None) => Some(self.now),
                (true, since) => since,
                (false, _) => None,
            };
        }
        self.oracle.look(self.now, &self.connected);
    }

    fn elect(&mut self) {
        let Some(side) = self.majority() else {
            return;
        };
        let there = |voter: &usize| self.nodes[*voter].alive && self.nodes[*voter].side == side;
        let candidates: Vec<usize> = (0..VOTERS).filter(there).collect();
        let chosen = candidates[self.dice.roll(candidates.len() as u64) as usize];
        self.oracle.tally.elections += 1;
        self.leader = Some(chosen);
        self.elect_at = None;
        let voter = &mut self.voters[chosen];
        voter.leads = true;
        voter.quorum = self.now;
    }

    /// A voter is asked to write a command.
    fn note(&mut self, to: usize, mut command: Command) {
        if to >= VOTERS {
            return;
        }
        let id = command.id;
        if !self.is_effective(to) {
            let voter = &self.voters[to];
            if !voter.leads {
                let known = self.leader.filter(|leader| self.reach(*leader, to));
                self.answer(to, id, Err(known));
            } else if self.now > voter.quorum + QUORUM_SILENCE {
                self.answer(to, id, Err(None));
            }
            // Else it lies in a log that nobody else will have.
            return;
        }
        command.at = self.clock_of(to);
        let calm = self.now >= CALM;
        if !calm && self.dice.once_in(50) {
            // The leader was deposed before another had it.
            return;
        }
        let outcome = self
            .oracle
            .commit(&command, self.now, &self.names, &self.connected);
        self.log.push(command);
        self.apply(to);
        if calm || !self.dice.once_in(40) {
            self.answer(to, id, Ok(outcome));
        }
    }

    fn answer(
        &mut self,
        from: usize,
        id: u64,
        outcome: Result<Result<Written, Refusal>, Elsewhere>,
    ) {
        let Some(write) = self.writes.get(&id) else {
            return;
        };
        let reached = match write.origin {
            Origin::Person => true,
            Origin::Stubborn(node, boot)
            | Origin::Up(node, boot)
            | Origin::Once(node, boot)
            | Origin::Started(node, boot, _)
            | Origin::Controller(node, boot) => self.lives(node, boot) && self.reach(from, node),
        };
        let local = matches!(write.origin, Origin::Controller(node, _) if node == from);
        let lost = !local && self.now < CALM && self.dice.once_in(30);
        if reached && !lost {
            let delay = if local { 0 } else { 1 + self.dice.roll(40) };
            self.after(delay, What::Answer(id, outcome));
        }
    }

    fn apply(&mut self, voter: usize) {
        let voter = &mut self.voters[voter];
        for command in &self.log[voter.applied..] {
            let _ = voter.tables.apply(command.clone());
        }
        voter.applied = self.log.len();
    }

    fn catch_up(&mut self, voter: usize) {
        let mut pause = 10 + self.dice.roll(300);
        if self.now < CALM && self.dice.once_in(60) {
            pause += self.dice.roll(3_000);
        }
        self.after(pause, What::CatchUp(voter));
        if self.leader.is_some_and(|leader| self.reach(leader, voter)) {
            self.apply(voter);
        }
    }

    // ---- writing ----

    fn write(&mut self, origin: Origin, writer: Writer, fact: Fact) -> u64 {
        let command = Command {
            id: self.dice.next() << 20 | self.serial,
            at: self.clock(),
            writer,
            fact,
        };
        self.put(origin, command)
    }

    fn put(&mut self, origin: Origin, command: Command) -> u64 {
        let id = command.id;
        let patience = match origin {
            Origin::Controller(..) if self.flaw != Flaw::Forwards => 0,
            _ => PATIENCE,
        };
        let write = Write {
            origin,
            command,
            deadline: self.now + patience,
            tries: 0,
            leader: None,
        };
        self.writes.insert(id, write);
        self.try_write(id);
        id
    }

    fn try_write(&mut self, id: u64) {
        let any = self.dice.roll(VOTERS as u64) as usize;
        let Some(write) = self.writes.get_mut(&id) else {
            return;
        };
        write.tries += 1;
        let (tries, hint) = (write.tries, write.leader.take());
        let (from, here) = match write.origin {
            Origin::Person => (None, None),
            Origin::Stubborn(node, _)
            | Origin::Up(node, _)
            | Origin::Once(node, _)
            | Origin::Started(node, ..)
            | Origin::Controller(node, _) => (Some(node), Some(node).filter(|node| *node < VOTERS)),
        };
        let to = hint.or(here).unwrap_or(any);
        let mut command = write.command.clone();
        if self.flaw == Flaw::NewNumbers && tries > 1 {
            command.id ^= u64::from(tries) << 52;
        }
        self.send(from, to, &Mail::Note(Box::new(command)));
        self.after(TRY_PATIENCE, What::Again(id, tries));
    }

    fn again(&mut self, id: u64, tries: u32) {
        let Some(write) = self.writes.get_mut(&id) else {
            return;
        };
        if write.tries != tries {
            return;
        }
        let origin = write.origin;
        let over = self.now >= write.deadline;
        match origin {
            Origin::Person => {}
            Origin::Stubborn(node, boot)
            | Origin::Up(node, boot)
            | Origin::Started(node, boot, _) => {
                if !self.lives(node, boot) {
                    self.writes.remove(&id);
                    return;
                }
                if over && let Some(write) = self.writes.remove(&id) {
                    // It is said again, as if it were new.
                    let command = write.command;
                    self.write(origin, command.writer, command.fact);
                    return;
                }
            }
            Origin::Once(node, boot) => {
                if over || !self.lives(node, boot) {
                    self.writes.remove(&id);
                    return;
                }
            }
            Origin::Controller(node, boot) => {
                if over || !self.lives(node, boot) {
                    self.writes.remove(&id);
                    // What else was to be done came of an old look.
                    self.voters[node].orders.clear();
                    self.kept(node, boot, id);
                    return;
                }
            }
        }
        self.try_write(id);
    }

    fn answered(&mut self, id: u64, outcome: Result<Result<Written, Refusal>, Elsewhere>) {
        let Some(write) = self.writes.get_mut(&id) else {
            return;
        };
        let outcome = match outcome {
            Ok(outcome) => outcome,
            Err(leader) => {
                write.leader = leader;
                let tries = write.tries;
                let pause = if leader.is_some() { 0 } else { PAUSE };
                self.after(pause, What::Again(id, tries));
                return;
            }
        };
        let origin = write.origin;
        self.writes.remove(&id);
        match origin {
            Origin::Person => {
                if let Ok(Written::Job(job)) = outcome {
                    self.jobs.push(job);
                }
            }
            Origin::Started(node, boot, attempt) if self.lives(node, boot) => {
                if let Some(run) = self.nodes[node].runs.get_mut(&attempt) {
                    run.told = true;
                    self.clear(node, attempt);
                }
            }
            Origin::Controller(node, boot) => self.kept(node, boot, id),
            Origin::Up(node, boot) if outcome.is_err() => {
                self.after(PAUSE, What::Announce(node, boot));
            }
            _ => {}
        }
    }

    // ---- the leader's part ----

    fn keep(&mut self, node: usize) {
        let boot = self.nodes[node].boot;
        self.after(KEEPER_PAUSE, What::Keep(node, boot));
        let now = self.now;
        let clock = self.clock_of(node);
        let voter = &mut self.voters[node];
        if voter.awaits.is_some() {
            return;
        }
        if !voter.leads {
            voter.silence = None;
            voter.told.clear();
            voter.orders.clear();
            return;
        }
        let known = voter.tables.living_nodes().map(|row| {
            let name = &row.spec.name;
            let which = self.names.iter().position(|it| it == name);
            let contact = which.map_or(0, |which| voter.contact[which]);
            let silent_for = now.saturating_sub(contact);
            WatchedNode {
                name: name.clone(),
                life: (row.spec.boot, row.since.0),
                silent_for: (silent_for < LINK_IDLE).then(|| Duration::from_millis(silent_for)),
            }
        });
        let known: Vec<WatchedNode> = known.collect();
        let looked = Timestamp(now * 1_000_000);
        let pause = Duration::from_millis(KEEPER_PAUSE);
        let silence = voter
            .silence
            .get_or_insert_with(|| self.rules.silence(pause, looked));
        let Some(silent) = silent(silence, &known, looked) else {
            return;
        };
        let orders = plan(&voter.tables, &silent, &self.rules, clock);
        voter.told.retain(|order, _| orders.contains(order));
        let fresh = |order: &Order| voter.told.get(order).is_none_or(|at| now >= at + AGAIN);
        voter.orders = orders.into_iter().filter(fresh).collect();
        self.carry_out(node);
    }

    fn kept(&mut self, node: usize, boot: u64, id: u64) {
        if self.lives(node, boot) && self.voters[node].awaits == Some(id) {
            self.voters[node].awaits = None;
            self.carry_out(node);
        }
    }

    fn carry_out(&mut self, node: usize) {
        while let Some(order) = self.voters[node].orders.pop_front() {
            let now = self.now;
            self.voters[node].told.insert(order.clone(), now);
            let fact = match order {
                Order::Lose {
                    node,
                    boot,
                    silent: silent_for,
                } => {
                    let lost_after = self.rules.lost_after;
                    let why = Silent {
                        silent_for,
                        lost_after,
                    }
                    .to_string();
                    Fact::NodeLost { node, boot, why }
                }
                Order::Assign {
                    job,
                    node: name,
                    boot,
                    reserved,
                } => {
                    let event = Event::Assigned {
                        node: name,
                        boot,
                        reserved,
                    };
                    Fact::Job { job, event }
                }
                Order::Extend { job, attempt, more } => {
                    let event = Event::Extended { attempt, more };
                    Fact::Job { job, event }
                }
                Order::Turn { job, to } => {
                    let event = Event::TurnDue { to };
                    Fact::Job { job, event }
                }
                Order::Hold { job, why } => {
                    let event = Event::Held { why };
                    Fact::Job { job, event }
                }
                Order::Start { job, node: to, .. } => {
                    let row = self.voters[node].tables.jobs.get(&job).cloned();
                    if let (Some(row), Some(to)) = (row, self.named(&to)) {
                        self.send(Some(node), to, &Mail::Begin(Box::new(row)));
                    }
                    continue;
                }
                Order::Stop {
                    job,
                    attempt,
                    node: to,
                    in_order,
                } => {
                    if let Some(to) = self.named(&to) {
                        let mail = Mail::Finish {
                            job,
                            attempt,
                            in_order,
                        };
                        self.send(Some(node), to, &mail);
                    }
                    continue;
                }
            };
            let origin = Origin::Controller(node, self.nodes[node].boot);
            let id = self.write(origin, Writer::Leader, fact);
            self.voters[node].awaits = Some(id);
            return;
        }
    }

    fn named(&self, name: &str) -> Option<usize> {
        self.names.iter().position(|it| it == name)
    }

    // ---- the agents ----

    fn start(&mut self, node: usize) {
        if self.nodes[node].alive {
            return;
        }
        let boot = self.dice.next();
        let it = &mut self.nodes[node];
        (it.alive, it.boot, it.leaving) = (true, boot, false);
        it.attempts = Attempts::new(&it.name, boot);
        self.announce(node);
        self.after(MESH_PAUSE, What::Mesh(node, boot));
        if let Some(voter) = self.voters.get_mut(node) {
            // What it had is on its disk.
            let text = serde_json::to_string(&voter.tables).expect("tables are JSON");
            *voter = Voter {
                tables: serde_json::from_str(&text).expect("it was just written"),
                applied: voter.applied,
                ..Voter::default()
            };
            self.after(KEEPER_PAUSE, What::Keep(node, boot));
        }
    }

    /// Tells the catalog that the node is up, in the place of the life that it knows.
    fn announce(&mut self, node: usize) {
        let mut spec = self.spec(node);
        let known = self.voter_of(node).and_then(|voter| {
            let nodes = &self.voters[voter].tables.nodes;
            nodes.get(&spec.name)
        });
        spec.follows = known.map(|row| row.spec.boot);
        let origin = Origin::Up(node, self.nodes[node].boot);
        self.write(origin, Writer::Node(spec.name.clone()), Fact::NodeUp(spec));
    }

    /// The voter that a node looks at.
    fn voter_of(&mut self, node: usize) -> Option<usize> {
        if node < VOTERS {
            return Some(node);
        }
        let first = self.dice.roll(VOTERS as u64) as usize;
        let mut voters = (0..VOTERS).map(|n| (first + n) % VOTERS);
        voters.find(|voter| self.reach(node, *voter))
    }

    fn spec(&self, node: usize) -> NodeSpec {
        NodeSpec {
            name: self.nodes[node].name.clone(),
            boot: self.nodes[node].boot,
            address: String::new(),
            release: String::new(),
            cpus: CPUS,
            memory: 1,
            devices: vec![],
            votes: false,
            api: None,
            follows: None,
            certificate: None,
            upgrades: 0,
            inventory: vec![],
            unlimited: None,
            low_disk: None,
        }
    }

    fn crash(&mut self, node: usize) {
        let it = &mut self.nodes[node];
        it.alive = false;
        for (attempt, _) in std::mem::take(&mut it.runs) {
            self.oracle.end(attempt);
        }
        if let Some(voter) = self.voters.get_mut(node) {
            voter.leads = false;
        }
        self.connected[node] = None;
    }

    /// The node looks after its links and its row, and asks which of its tries are over.
    fn mesh(&mut self, node: usize) {
        let boot = self.nodes[node].boot;
        self.after(MESH_PAUSE, What::Mesh(node, boot));
        let Some(voter) = self.voter_of(node) else {
            return;
        };
        let tables = &self.voters[voter].tables;
        let row = tables.nodes.get(&self.nodes[node].name);
        let is_lost = row.is_some_and(|row| matches!(row.state, NodeState::Lost { .. }));
        let running = self.nodes[node].attempts.running();
        let over: Vec<Attempt> = running
            .into_iter()
            .filter(|(job, attempt)| tables.is_over(*job, *attempt))
            .collect();
        if is_lost && !self.nodes[node].leaving {
            let spec = self.spec(node);
            let writer = Writer::Node(spec.name.clone());
            self.write(Origin::Once(node, boot), writer, Fact::NodeUp(spec));
        }
        if self.flaw != Flaw::NoSweep {
            for attempt in self.nodes[node].attempts.sweep(&over) {
                self.oracle.tally.swept += 1;
                self.end(node, attempt, false);
            }
        }
    }

    fn step(&mut self, node: usize, job: JobId, step: &AttemptStep) {
        let boot = self.nodes[node].boot;
        match *step {
            AttemptStep::Nothing => {}
            AttemptStep::Begin { attempt } => {
                let run = Run {
                    driver: false,
                    deaf: self.dice.once_in(5),
                    told: true,
                    outcome: None,
                };
                let attempt = (job, attempt);
                self.nodes[node].runs.insert(attempt, run);
                let staging = self.dice.roll(3_000);
                self.after(staging, What::Try(node, boot, attempt, Progress::Staged));
            }
            AttemptStep::End { attempt, in_order } => self.end(node, (job, attempt), in_order),
            AttemptStep::NeverRan { attempt } => {
                let outcome = stopped();
                self.tell_over(node, (job, attempt), outcome);
            }
        }
    }

    fn end(&mut self, node: usize, attempt: Attempt, in_order: bool) {
        let boot = self.nodes[node].boot;
        let Some(run) = self.nodes[node].runs.get_mut(&attempt) else {
            return;
        };
        if run.outcome.is_some() {
            return;
        }
        if !run.driver {
            run.outcome = Some(stopped());
            self.clear(node, attempt);
            return;
        }
        let time = match (in_order, run.deaf) {
            (false, _) => 5,
            (true, true) => GRACE,
            (true, false) => self.dice.roll(2_000),
        };
        let well = in_order && time < GRACE && self.dice.once_in(4);
        self.after(
            time,
            What::Try(node, boot, attempt, Progress::Exits { well }),
        );
    }

    fn progress(&mut self, node: usize, attempt: Attempt, progress: Progress) {
        let boot = self.nodes[node].boot;
        let Some(run) = self.nodes[node].runs.get_mut(&attempt) else {
            return;
        };
        match progress {
            Progress::Staged if run.outcome.is_none() => {
                let why = "its files are damaged".to_owned();
                if self.dice.once_in(40) {
                    run.outcome = Some(Outcome::Refused { why });
                    return self.clear(node, attempt);
                }
                if self.dice.once_in(20) {
                    run.outcome = Some(Outcome::Failed { code: None, why });
                    return self.clear(node, attempt);
                }
                (run.driver, run.told) = (true, false);
                self.oracle.begin(attempt, node, self.now, &self.connected);
                let well = !self.dice.once_in(3);
                let time = match self.dice.roll(4) {
                    0 => Some(self.dice.roll(300)),
                    1 => Some(self.dice.roll(5_000)),
                    2 => Some(self.dice.roll(45_000)),
                    _ => None,
                };
                if let Some(time) = time {
                    self.after(
                        time,
                        What::Try(node, boot, attempt, Progress::Exits { well }),
                    );
                }
                let (job, number) = attempt;
                let event = Event::Started {
                    attempt: number,
                    pid: 1,
                };
                let writer = Writer::Node(self.nodes[node].name.clone());
                let origin = Origin::Started(node, boot, attempt);
                self.write(origin, writer, Fact::Job { job, event });
            }
            Progress::Exits { well } if run.outcome.is_none() => {
                run.outcome = Some(match well {
                    true => Outcome::Succeeded,
                    false => Outcome::Failed {
                        code: Some(1),
                        why: "exit status: 1".to_owned(),
                    },
                });
                self.oracle.end(attempt);
                self.clear(node, attempt);
            }
            Progress::Cleared => {
                let outcome = run.outcome.take();
                let it = &mut self.nodes[node];
                if it.runs.remove(&attempt).is_none() {
                    return;
                }
                let tell = it.attempts.ended(attempt.0, attempt.1);
                if tell && let Some(outcome) = outcome {
                    self.tell_over(node, attempt, outcome);
                }
                self.leave(node);
            }
            _ => {}
        }
    }

    /// The rest of a try is removed once its driver is gone and the catalog knows that it was there.
    fn clear(&mut self, node: usize, attempt: Attempt) {
        let boot = self.nodes[node].boot;
        let run = self.nodes[node].runs.get(&attempt);
        if run.is_some_and(|run| run.told && run.outcome.is_some()) {
            let time = self.dice.roll(500);
            self.after(time, What::Try(node, boot, attempt, Progress::Cleared));
        }
    }

    fn tell_over(&mut self, node: usize, (job, attempt): Attempt, outcome: Outcome) {
        assert!(!self.oracle.runs((job, attempt)));
        let origin = Origin::Stubborn(node, self.nodes[node].boot);
        let writer = Writer::Node(self.nodes[node].name.clone());
        let event = Event::Over { attempt, outcome };
        self.write(origin, writer, Fact::Job { job, event });
    }

    /// A node that leaves goes when nothing runs there any more, and says so.
    fn leave(&mut self, node: usize) {
        let it = &self.nodes[node];
        if !it.leaving || !it.runs.is_empty() {
            return;
        }
        let (name, boot) = (it.name.clone(), it.boot);
        let writer = Writer::Node(name.clone());
        let fact = Fact::NodeLeft { node: name, boot };
        self.write(Origin::Once(node, boot), writer, fact);
        self.after(LEAVE_PATIENCE, What::Gone(node, boot));
    }

    // ---- faults ----

    fn fault(&mut self) {
        let node = self.dice.roll(NODES as u64) as usize;
        match self.dice.roll(8) {
            7 => {
                // Somebody sets it, up to a day off.
                let off = self.dice.roll(2 * 86_400_000) as i64 - 86_400_000;
                self.nodes[node].clock = off;
            }
            0 => {
                self.crash(node);
                let time = 100 + self.dice.roll(25_000);
                self.after(time, What::Start(node));
            }
            1 | 2 => self.cut(&[node]),
            3 => {
                let half = (0..NODES)
                    .filter(|_| self.dice.once_in(2))
                    .collect::<Vec<_>>();
                self.cut(&half);
            }
            4 => {
                if self.leader.is_some_and(|leader| self.is_effective(leader)) {
                    self.elect();
                }
            }
            5 => {
                let it = &mut self.nodes[node];
                if it.alive && !it.leaving {
                    it.leaving = true;
                    for attempt in it.attempts.close() {
                        self.end(node, attempt, true);
                    }
                    self.leave(node);
                    let time = 20_000 + self.dice.roll(10_000);
                    self.after(time, What::Start(node));
                }
            }
            _ => {
                // One after the other, faster than anybody notices.
                self.crash(node);
                let time = self.dice.roll(300);
                self.after(time, What::Start(node));
            }
        }
    }

    /// The time of day, where it is right.
    fn clock(&self) -> Unix {
        Unix(EPOCH + self.now)
    }

    /// The time of day on a node.
    fn clock_of(&self, node: usize) -> Unix {
        Unix(self.clock().0.saturating_add_signed(self.nodes[node].clock))
    }

    /// These nodes and the others do not reach each other for a while.
    fn cut(&mut self, nodes: &[usize]) {
        let cut = 1 << (self.serial % 64);
        for node in nodes {
            self.nodes[*node].side |= cut;
        }
        // Shorter than a node is waited for, or longer.
        let time = match self.dice.roll(2) {
            0 => 100 + self.dice.roll(10_000),
            _ => 15_000 + self.dice.roll(40_000),
        };
        self.after(time, What::Heal(cut));
    }

    // ---- people ----

    fn say(&mut self, fact: Fact) {
        self.write(Origin::Person, Writer::Leader, fact);
    }

    fn person(&mut self) {
        let by = "ann".to_owned();
        let name = self.names[self.dice.roll(NODES as u64) as usize].clone();
        let job = match self.jobs.len() {
            0 => None,
            count => Some(self.jobs[self.dice.roll(count as u64) as usize]),
        };
        let fact = match (self.dice.roll(20), job) {
            (0..=1, Some(job)) => {
                let in_order = !self.dice.once_in(3);
                let event = Event::Stop { by, in_order };
                Fact::Job { job, event }
            }
            (2..=4, Some(job)) => {
                let event = Event::Retry { by };
                Fact::Job { job, event }
            }
            (15..=17, Some(job)) => {
                self.serial += 1;
                let why = String::new();
                let event = match self.dice.roll(4) {
                    0 => Event::RollBack { to: None, by, why },
                    n => Event::Update {
                        program: Program {
                            bundle: Digest::of(&self.serial.to_le_bytes()),
                            args: vec![],
                            env: BTreeMap::new(),
                            links: BTreeMap::new(),
                            environment: None,
                        },
                        by,
                        why,
                        wait_s: (n == 1).then_some(20),
                    },
                };
                Fact::Job { job, event }
            }
            (5, _) => {
                let drained = !self.dice.once_in(3);
                Fact::NodeDrained {
                    node: name,
                    drained,
                    by,
                }
            }
            (6, _) => {
                let running_max = self.dice.roll(4) as u32;
                let quota = (running_max > 0).then_some(NamespaceQuota::running(running_max));
                let name = format!("s{}", self.dice.roll(2));
                Fact::NamespaceSet { name, quota, by }
            }
            (7, _) => Fact::NodeForgotten { node: name },
            (8, _) => match self.dice.once_in(2) {
                true => Fact::NodeRefused {
                    node: name,
                    why: "it flips bits".to_owned(),
                    by,
                },
                false => Fact::NodeLetBack {
                    node: name,
                    why: String::new(),
                    by,
                    passed: false,
                    of: None,
                },
            },
            _ => {
                let spec = self.job_spec(name);
                Fact::JobSubmitted { spec, by }
            }
        };
        self.say(fact);
    }

    fn job_spec(&mut self, node: String) -> JobSpec {
        let node = match self.dice.roll(8) {
            0 => Some(node),
            1 => Some("nowhere".to_owned()),
            _ => None,
        };
        let share = Allotment {
            cpu_milli: 500 * self.dice.roll(3),
            ..Allotment::default()
        };
        let resources = match self.dice.roll(3) {
            0 if share.cpu_milli > 0 => JobResources::of_ranks(2, share),
            _ => JobResources::of_driver(share),
        };
        JobSpec {
            name: "job".to_owned(),
            namespace: format!("s{}", self.dice.roll(2)),
            bundle: Digest::of(b"files"),
            args: vec![],
            env: BTreeMap::new(),
            priority: self.dice.roll(3) as i32,
            retries: self.dice.roll(4) as u32,
            node,
            hosts: None,
            resources,
            after: vec![],
            array: None,
            links: BTreeMap::new(),
            grace_s: None,
            idle_limit_s: None,
            environment: None,
            time_limit_s: match self.dice.roll(2) {
                0 => Some(1 + self.dice.roll(100)),
                _ => None,
            },
        }
    }

    /// The faults end: everybody runs and reaches everybody, and nothing is bounded.
    fn calm(&mut self) {
        self.happens(What::Heal(u64::MAX));
        for node in 0..NODES {
            let forgotten = !self.oracle.truth.nodes.contains_key(&self.names[node]);
            if forgotten || self.nodes[node].leaving {
                self.crash(node);
            }
            self.start(node);
            self.say(Fact::NodeDrained {
                node: self.names[node].clone(),
                drained: false,
                by: "ann".to_owned(),
            });
            self.say(Fact::NodeLetBack {
                node: self.names[node].clone(),
                why: String::new(),
                by: "ann".to_owned(),
                passed: false,
                of: None,
            });
        }
        for n in 0..2 {
            self.say(Fact::NamespaceSet {
                name: format!("s{n}"),
                quota: None,
                by: "ann".to_owned(),
            });
        }
    }

    /// Stops what does not end by itself. What is on its way has long arrived.
    fn stop_all(&mut self) {
        let mut ids = BTreeSet::new();
        for job in self.oracle.truth.living_jobs() {
            let word = job.word();
            let moves = ["staging", "stopping"].contains(&word);
            let begun = job.attempt().map(|attempt| attempt.since);
            let stuck = begun.is_some_and(|at| at.0 + 40_000 < self.now);
            assert!(
                !(moves && stuck),
                "{job:#?} at {}; nodes {:#?}; leader {:?}; writes {:#?}",
                self.now,
                self.nodes,
                self.leader,
                self.writes
            );
            ids.insert(job.id);
        }
        let orders = plan(
            &self.oracle.truth,
            &BTreeMap::new(),
            &self.rules,
            self.clock(),
        );
        let could = |order: &&Order| matches!(order, Order::Assign { .. });
        let late = orders.iter().filter(could).count();
        assert!(late <= 2, "{orders:?} at {}", self.now);
        for job in ids {
            let (by, in_order) = ("ann".to_owned(), true);
            let event = Event::Stop { by, in_order };
            self.say(Fact::Job { job, event });
        }
    }

    fn finish(mut self) -> Told {
        self.oracle.finish();
        for node in &self.nodes {
            assert!(node.runs.is_empty() && node.attempts.is_empty(), "{node:?}");
        }
        for voter in 0..VOTERS {
            self.apply(voter);
            assert_eq!(self.voters[voter].tables, self.oracle.truth);
        }
        Told {
            tally: self.oracle.tally,
            tables: self.oracle.truth,
        }
    }
}

fn stopped() -> Outcome {
    Outcome::Stopped {
        by: "its node, before it began".to_owned(),
    }
}

/// Has a try be meant for this life of its node.
fn adopt(job: &mut Job, life: u64) {
    if let State::Staging { attempt } = &mut job.state {
        attempt.boot = life;
    }
}
