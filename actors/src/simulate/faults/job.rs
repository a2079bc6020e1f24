//! One run under faults, event by event.
//!
//! Faults come while the job trains, independently of each other. One that is there shows at once, or, where it spoils the
//! state first, after a while; then the run stands until a rung of the ladder has brought it back. Where that was the wrong
//! one the fault shows again. Each second belongs to one [`RunPhase`].

use odeon_diagnosis::group_test::{GroupTest, ReplayRound, ReplayVerdict};

use super::class::{FaultCause, FaultClass};
use super::draws::{Drawn, Draws};
use super::fleet::Fleet;
use super::restart::RestartKind;
use super::rungs::{self, Rung, Told};
use super::scenario::{FaultPolicy, FaultScenario};
use super::sums::{DAY, RunPhase, RunSums};

/// A run that is under way.
pub(super) struct JobRun<'a> {
    scenario: &'a FaultScenario,
    classes: &'a [FaultClass],
    policy: &'a FaultPolicy,
    seed: u64,
    machines: u32,
    horizon: f64,
    now: f64,
    /// Seconds of training so far, new or again: faults come by this clock.
    trained: f64,
    /// Seconds of steps that the state has in it.
    progress: f64,
    /// The most that it ever had.
    best: f64,
    /// What was loaded last: copies at peers are no older.
    loaded: f64,
    pub(super) fleet: Fleet,
    open: Vec<OpenFault>,
    /// When changes of code were wished for that wait.
    wishes: Vec<f64>,
    faults: u64,
    next_fault: f64,
    shares: f64,
    incident_seconds: f64,
    sums: RunSums,
}

/// A fault that is not over.
struct OpenFault {
    draws: Draws,
    class: usize,
    cause: FaultCause,
    /// Machines of the job, by their numbers, that are to blame.
    slots: Vec<u32>,
    told: Told,
    tries: u64,
    /// Set while it makes steps slow and nobody has seen it yet.
    slows: bool,
    /// On the clock of training.
    shows_at: f64,
    /// The progress from which on the state is spoilt.
    spoilt_from: Option<f64>,
    /// Seconds for which the run stood for it.
    stood: f64,
}

/// What a rung did.
struct Climbed {
    rung: Rung,
    evicted: u32,
    is_over: bool,
}

impl<'a> JobRun<'a> {
    pub(super) fn new(
        scenario: &'a FaultScenario,
        classes: &'a [FaultClass],
        policy: &'a FaultPolicy,
        seed: u64,
    ) -> Self {
        let machines = scenario.machines();
        let pool = if policy.standbys { scenario.pool() } else { 0 };
        let horizon = scenario.simulation.days * DAY;
        // As many machines for all policies.
        let free = scenario.fleet.reserve + scenario.pool() - pool;
        let mut run = Self {
            scenario,
            classes,
            policy,
            seed,
            machines,
            horizon,
            now: 0.0,
            trained: 0.0,
            progress: 0.0,
            best: 0.0,
            loaded: 0.0,
            fleet: Fleet::new(machines, pool, free, scenario.fleet.provision_seconds),
            open: vec![],
            wishes: vec![],
            faults: 0,
            next_fault: 0.0,
            shares: classes.iter().map(|class| class.share).sum(),
            incident_seconds: DAY / scenario.incidents_daily(),
            sums: RunSums::new(classes.len(), horizon),
        };
        run.next_fault = run.gap();
        run
    }

    /// Runs until its time is over.
    pub(super) fn run(mut self) -> RunSums {
        while self.now < self.horizon {
            self.step();
        }
        self.fleet.advance(self.now);
        self.sums.standby_seconds = self.fleet.standby_seconds;
        self.sums
    }

    /// Trains until the next event, and meets it.
    pub(super) fn step(&mut self) {
        let shows = |at: usize| self.open[at].shows_at;
        let open = (0..self.open.len()).min_by(|one, other| shows(*one).total_cmp(&shows(*other)));
        let open = open.filter(|at| shows(*at) <= self.next_fault);
        let due = open.map_or(self.next_fault, shows);
        let wait_max = self.scenario.ladder.hot_update_hours * 3600.0;
        let forced = self
            .wishes
            .first()
            .map_or(f64::INFINITY, |it| it + wait_max);
        if forced <= self.now + (due - self.trained) {
            self.train(forced - self.now);
            if self.now < self.horizon {
                self.update(Draws::new(self.seed, self.faults));
            }
            return;
        }
        self.train(due - self.trained);
        if self.now >= self.horizon {
            return;
        }
        match open {
            Some(at) => {
                let fault = self.open.swap_remove(at);
                self.meet(fault);
            }
            None => self.begin(),
        }
    }

    /// Seconds of training until the next fault.
    fn gap(&self) -> f64 {
        Draws::new(self.seed, self.faults).exponential(Drawn::Gap, self.incident_seconds)
    }

    /// Draws the next incident.
    fn begin(&mut self) {
        let draws = Draws::new(self.seed, self.faults);
        self.faults += 1;
        self.sums.incidents += 1;
        self.next_fault = self.trained + self.gap();
        let mut at = draws.uniform(Drawn::Class) * self.shares;
        let place = self.classes.iter().position(|class| {
            at -= class.share;
            at < 0.0
        });
        let number = place.unwrap_or(self.classes.len() - 1);
        let class = &self.classes[number];
        let cause = class.cause(draws.uniform(Drawn::Cause));
        if cause == FaultCause::Request {
            let urgent = draws.happens(Drawn::IsUrgent, self.scenario.ladder.urgent);
            match self.policy.hot_update && !urgent {
                true => self.wishes.push(self.now),
                false => self.update(draws),
            }
            return;
        }
        let fleet = &self.scenario.fleet;
        let is_machine = cause == FaultCause::Machines;
        let is_switch = is_machine && draws.happens(Drawn::IsSwitch, fleet.switch_share);
        let first = draws.below(Drawn::Machine, self.machines);
        let slots = match (is_machine, is_switch) {
            (false, _) => vec![],
            (true, false) => vec![first],
            (true, true) => {
                let begin = first.min(self.machines - self.scenario.switch_machines());
                (begin..begin + self.scenario.switch_machines()).collect()
            }
        };
        let plain = !is_machine && draws.happens(Drawn::IsPlain, class.plain);
        let latent = match is_switch || class.latent_seconds <= 0.0 {
            true => None,
            false => Some(draws.exponential(Drawn::Latency, class.latent_seconds)),
        };
        let fault = OpenFault {
            draws,
            class: number,
            cause,
            slots,
            told: Told {
                // All of a switch are silent at once, which names it.
                named: is_switch || is_machine && draws.happens(Drawn::IsNamed, class.named),
                code: plain && cause == FaultCause::Code,
                transient: plain && cause == FaultCause::Transient,
            },
            tries: 0,
            slows: false,
            shows_at: self.trained + latent.unwrap_or(0.0),
            spoilt_from: latent.map(|_| self.progress),
            stood: 0.0,
        };
        match latent {
            Some(_) => self.open.push(fault),
            None => self.meet(fault),
        }
    }

    /// A fault shows: it is seen, looked for, and answered.
    fn meet(&mut self, mut fault: OpenFault) {
        let class = &self.classes[fault.class];
        let draws = fault.draws.of_try(fault.tries);
        let seen = match self.policy.inspection {
            true => class.detect_seconds,
            false => class.unwatched_seconds,
        };
        let seconds = draws.between(Drawn::Detection, seen);
        // Where steps go on it is seen after so much of training, and others may come before.
        let trained = seconds * (1.0 - class.slowdown);
        if trained > 0.0 && !fault.slows {
            fault.slows = true;
            fault.stood += trained;
            fault.shows_at = self.trained + trained;
            return self.open.push(fault);
        }
        fault.slows = false;
        self.stand(&mut fault, RunPhase::Detect, seconds - trained);
        let climbed = self.climb(&mut fault);
        *self.sums.restarts.entry(climbed.rung).or_default() += 1;
        fault.tries += 1;
        let is_over_now = climbed.is_over && climbed.evicted > 0;
        if is_over_now {
            self.resolved(&fault, climbed.rung);
        }
        self.restart(&mut fault, draws, climbed.evicted);
        if climbed.is_over {
            if !is_over_now {
                self.resolved(&fault, climbed.rung);
            }
            return;
        }
        let again = draws.exponential(Drawn::Recurrence, self.scenario.ladder.recur_seconds);
        fault.shows_at = self.trained + again;
        fault.spoilt_from = fault.spoilt_from.map(|_| self.progress);
        self.open.push(fault);
    }

    fn resolved(&mut self, fault: &OpenFault, rung: Rung) {
        // What the end of the run has cut short says nothing.
        if self.now < self.horizon {
            *self.sums.resolved.entry(rung).or_default() += 1;
            self.sums.resolutions[fault.class].add(fault.stood);
        }
    }

    /// Takes the next rung, and those that follow in the same stop.
    fn climb(&mut self, fault: &mut OpenFault) -> Climbed {
        let ladder = &self.scenario.ladder;
        let class = &self.classes[fault.class];
        let draws = fault.draws.of_try(fault.tries);
        let is_machine = fault.cause == FaultCause::Machines;
        let done = |rung, evicted, is_over| Climbed {
            rung,
            evicted,
            is_over,
        };
        let rung = rungs::next(self.policy, class, fault.told, fault.tries);
        match rung {
            Rung::Eviction => done(rung, self.evict_culprit(fault), true),
            Rung::Operator => {
                let seconds = draws.between(Drawn::Localisation, ladder.operator_seconds);
                self.stand(fault, RunPhase::Localise, seconds);
                done(rung, self.evict_culprit(fault), true)
            }
            Rung::Reattempt => done(rung, 0, fault.cause == FaultCause::Transient),
            Rung::Rollback => done(rung, 0, fault.cause == FaultCause::Code),
            Rung::Aggregation => {
                let seconds = draws.between(Drawn::Localisation, ladder.aggregate_seconds);
                self.stand(fault, RunPhase::Localise, seconds);
                let hit = is_machine && draws.happens(Drawn::IsFound, ladder.aggregate_recall);
                let each = self.scenario.group_machines();
                let groups = self.machines / each;
                let group = match (hit, fault.slots.first()) {
                    (true, Some(slot)) => slot / each,
                    // Any but that of the machine to blame, where there are others.
                    (_, first) => {
                        let own = first.map_or(0, |slot| slot / each);
                        let apart = draws.below(Drawn::OtherGroup, groups.saturating_sub(1));
                        (own + 1 + apart) % groups
                    }
                };
                let begin = group * each;
                let slots: Vec<u32> = (begin..begin + each).collect();
                let hit = is_machine && fault.slots.iter().all(|slot| slots.contains(slot));
                done(rung, self.evict(&slots, fault), hit)
            }
            Rung::SelfCheck | Rung::StressTest => {
                let seconds = match rung {
                    Rung::StressTest => class.stress_seconds,
                    _ => {
                        let suite = draws.between(Drawn::Localisation, ladder.suite_seconds);
                        suite + class.extra_check_seconds
                    }
                };
                self.stand(fault, RunPhase::Localise, seconds);
                match (
                    is_machine && draws.happens(Drawn::IsFound, class.recall),
                    rung,
                ) {
                    (true, _) => done(rung, self.evict_culprit(fault), true),
                    (false, Rung::StressTest) => self.ask_person(fault, draws),
                    (false, _) => done(Rung::Reattempt, 0, fault.cause == FaultCause::Transient),
                }
            }
            Rung::Replay => self.replay(fault, draws),
            Rung::Person | Rung::Update => self.ask_person(fault, draws),
        }
    }

    /// Two rounds of replays; where they show nothing, a person.
    fn replay(&mut self, fault: &mut OpenFault, draws: Draws) -> Climbed {
        let ladder = &self.scenario.ladder;
        for round in 0..GroupTest::ROUNDS {
            let drawn = Drawn::Replay(u32::MAX - round);
            let seconds = draws.between(drawn, ladder.replay_seconds);
            self.stand(fault, RunPhase::Localise, seconds);
        }
        // It divides: that was checked.
        let verdict = GroupTest::new(self.machines, self.scenario.group_machines()).map_or(
            ReplayVerdict::Unseen,
            |test| {
                test.replay(|round, machines| {
                    let bad = self
                        .open
                        .iter()
                        .flat_map(|it| &it.slots)
                        .chain(&fault.slots);
                    let bad = bad.filter(|slot| machines.contains(slot));
                    bad.copied().any(|slot| {
                        let number = match round {
                            ReplayRound::Neighbours => 2 * slot,
                            ReplayRound::Strided => 2 * slot + 1,
                        };
                        draws.happens(Drawn::Replay(number), ladder.reproduce)
                    })
                })
            },
        );
        if verdict.suspects().is_empty() {
            return self.ask_person(fault, draws);
        }
        let suspects = verdict.suspects();
        let is_machine = fault.cause == FaultCause::Machines;
        let is_over = is_machine && fault.slots.iter().all(|slot| suspects.contains(slot));
        Climbed {
            rung: Rung::Replay,
            evicted: self.evict(suspects, fault),
            is_over,
        }
    }

    fn ask_person(&mut self, fault: &mut OpenFault, draws: Draws) -> Climbed {
        let range = self.scenario.ladder.person_seconds;
        let seconds = draws.between(Drawn::Person, range);
        self.stand(fault, RunPhase::Localise, seconds);
        Climbed {
            rung: Rung::Person,
            evicted: self.evict_culprit(fault),
            is_over: true,
        }
    }

    fn evict_culprit(&mut self, fault: &OpenFault) -> u32 {
        let slots = fault.slots.clone();
        self.evict(&slots, fault)
    }

    /// Takes machines out of the job: those to blame for repair, others for a check.
    fn evict(&mut self, slots: &[u32], fault: &OpenFault) -> u32 {
        let fleet = &self.scenario.fleet;
        let is_bad = |slot: &&u32| {
            let mut open = self.open.iter();
            fault.slots.contains(slot) || open.any(|it| it.slots.contains(slot))
        };
        let bad = slots.iter().filter(is_bad).count() as u32;
        let over = slots.len() as u32 - bad;
        let hours = match fault.slots.len() {
            0 | 1 => fleet.repair_hours,
            _ => fleet.switch_repair_hours,
        };
        self.fleet.advance(self.now);
        self.fleet.evict(bad, hours * 3600.0);
        self.fleet.evict(over, fleet.recheck_hours * 3600.0);
        self.sums.evicted += u64::from(bad + over);
        self.sums.over_evicted += u64::from(over);
        // Others that were shown already went with them. What has spoilt the state unseen still has to show.
        self.open.retain(|it| {
            let gone = !it.slots.is_empty() && it.slots.iter().all(|slot| slots.contains(slot));
            !(gone && it.tries > 0)
        });
        bad + over
    }

    /// Starts the run again on as many machines as it needs, from the newest state that is sound.
    fn restart(&mut self, fault: &mut OpenFault, draws: Draws, evicted: u32) {
        let kind = self.machines_for(fault, evicted);
        let numbers = [Drawn::Pods, Drawn::Restart].map(|of| draws.uniform(of));
        let seconds = self.scenario.restart.drawn(kind, self.machines, numbers);
        let from_copies = self.load(fault, draws);
        let training = &self.scenario.training;
        let load = match from_copies {
            true => training.copy_load_seconds,
            false => training.load_seconds,
        };
        self.stand(fault, RunPhase::Recover, seconds + load);
        self.sums.merged += self.wishes.len() as u64;
        self.wishes.clear();
    }

    /// Replaces machines that were evicted, and says what kind of restart that makes.
    fn machines_for(&mut self, fault: &mut OpenFault, evicted: u32) -> RestartKind {
        self.fleet.advance(self.now);
        let mut missing = self.machines - self.fleet.active;
        let mut placed = 0;
        if self.policy.standbys {
            missing -= self.fleet.wake(missing);
            self.sums.shortages += u64::from(missing > 0);
        }
        while missing > 0 {
            if self.fleet.place(missing) {
                placed += missing;
                break;
            }
            // The rest comes when some machine is repaired.
            let free = self.fleet.free;
            if free > 0 && self.fleet.place(free) {
                placed += free;
                missing -= free;
            }
            let Some(at) = self.fleet.next_change().filter(|at| *at < self.horizon) else {
                self.stand(fault, RunPhase::Wait, self.horizon - self.now);
                break;
            };
            self.stand(fault, RunPhase::Wait, at - self.now);
            self.fleet.advance(at);
            if self.policy.standbys {
                missing -= self.fleet.wake(missing);
            }
        }
        let FaultPolicy {
            inspection,
            standbys,
            hot_update,
            ..
        } = *self.policy;
        match evicted {
            0 if hot_update => RestartKind::InPlace,
            0 => RestartKind::Requeue,
            _ if placed == 0 && standbys => RestartKind::Standby,
            _ if inspection => RestartKind::Reschedule(placed),
            _ => RestartKind::Requeue,
        }
    }

    /// Sets the state back to the newest that there is, and says if it comes from peers.
    fn load(&mut self, fault: &OpenFault, draws: Draws) -> bool {
        let training = &self.scenario.training;
        let sound = fault
            .spoilt_from
            .unwrap_or(self.progress)
            .min(self.progress);
        let interval = training.checkpoint_minutes * 60.0;
        let stored = (sound / interval).floor() * interval;
        let copied = match self.policy.peer_copies && fault.spoilt_from.is_none() {
            true if self.copies_lost(fault, draws) => None,
            true => {
                let whole = (self.progress / training.step_seconds).floor();
                let step = whole - f64::from(training.copy_lag_steps);
                Some((step * training.step_seconds).max(self.loaded))
            }
            false => None,
        };
        let loaded = copied.unwrap_or(stored).max(stored);
        self.sums.lost_seconds += self.progress - loaded;
        self.progress = loaded;
        self.loaded = loaded;
        copied.is_some()
    }

    /// Machines that break at once may hold both copies of something: peers share no group, but may share a switch.
    fn copies_lost(&self, fault: &OpenFault, draws: Draws) -> bool {
        let broken = fault.slots.len() as f64;
        if broken < 2.0 {
            return false;
        }
        let others = (broken - 1.0) / (f64::from(self.machines) - 1.0).max(1.0);
        let kept = (1.0 - others).max(0.0).powf(broken / 2.0);
        draws.happens(Drawn::CopiesLost, 1.0 - kept)
    }

    /// Changes code or data, in a restart that was planned and loses nothing.
    fn update(&mut self, draws: Draws) {
        let training = &self.scenario.training;
        if !self.policy.peer_copies {
            self.spend(RunPhase::Stall, training.checkpoint_stall_seconds);
        }
        let (kind, load) = match (self.policy.hot_update, self.policy.peer_copies) {
            (true, true) => (RestartKind::InPlace, training.copy_load_seconds),
            (true, false) => (RestartKind::InPlace, training.load_seconds),
            (false, _) => (RestartKind::Requeue, training.load_seconds),
        };
        let numbers = [Drawn::Pods, Drawn::Restart].map(|of| draws.uniform(of));
        let seconds = load + self.scenario.restart.drawn(kind, self.machines, numbers);
        self.spend(RunPhase::Recover, seconds);
        self.loaded = self.progress;
        *self.sums.restarts.entry(Rung::Update).or_default() += 1;
        *self.sums.resolved.entry(Rung::Update).or_default() += 1;
        let request = self.classes.iter().position(|class| class.request);
        if let Some(class) = request.filter(|_| self.now < self.horizon) {
            self.sums.resolutions[class].add(seconds);
        }
        // All that wait are made at once.
        self.sums.merged += (self.wishes.len() as u64).saturating_sub(1);
        self.wishes.clear();
    }

    /// Trains for so many seconds of the clock on the wall.
    fn train(&mut self, seconds: f64) {
        let seconds = seconds.min(self.horizon - self.now).max(0.0);
        let made = seconds * self.rate();
        let again = (self.best - self.progress).clamp(0.0, made);
        self.sums.add(RunPhase::Stall, seconds - made);
        self.sums.add(RunPhase::Recompute, again);
        let begin = self.now + again / self.rate();
        let end = self.now + seconds;
        self.sums.add_productive([begin, end], made - again);
        self.progress += made;
        self.best = self.best.max(self.progress);
        self.trained += seconds;
        self.now = end;
    }

    /// Seconds of steps in a second of training: the rest is stalls.
    fn rate(&self) -> f64 {
        let training = &self.scenario.training;
        let (steps, stall) = match self.policy.peer_copies {
            true => (training.step_seconds, training.copy_stall_seconds),
            false => (
                training.checkpoint_minutes * 60.0,
                training.checkpoint_stall_seconds,
            ),
        };
        steps / (steps + stall)
    }

    /// Stands still for a fault.
    fn stand(&mut self, fault: &mut OpenFault, phase: RunPhase, seconds: f64) {
        fault.stood += seconds;
        self.spend(phase, seconds);
    }

    fn spend(&mut self, phase: RunPhase, seconds: f64) {
        let seconds = seconds.min(self.horizon - self.now).max(0.0);
        self.sums.add(phase, seconds);
        self.now += seconds;
    }
}
