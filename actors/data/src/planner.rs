//! The planner: has the plan of each step ready before it is needed. It sees what samples are like and
//! never a byte of them.
//!
//! ```text
//!  SourceLoader ── what a cell has ──> Planner ── the part of a step ──> DataConstructor
//!       ^                                │ ^                                   │
//!       └── which cells to hold ─────────┘ └── which steps are passed ─────────┘
//! ```
//!
//! What it decides is [`Planning`]'s, which is pure: the same metadata gives the same plans. Before
//! anybody hears of a plan, the [`Ledger`] has what the planner knew before it; so a planner that is
//! lost makes the same plans again, and nobody notices but by the time.

mod account;

use odeon_mesh::Mesh;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use odeon::serde::{Deserialize, Serialize};
use odeon::{Clock, Context, Failure, Later, Ref, Timestamp, actor, message};
use tokio::sync::oneshot;

use self::account::Account;
use crate::asking::Holder;
use crate::ledger::{Arranged, Arrangement, Ledger, Planned, Recall};
use crate::loader::{Describe, Hold, ShadowLoader, SourceLoader};
use crate::plan::{
    Bucket, CellMeta, CellName, Dealing, EncoderShare, PlanSpec, PlanState, Planning, SourceShape,
    StepPlan, Waiting,
};
use crate::source::LeftOut;

/// The arguments of a planner.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(crate = "odeon::serde")]
pub struct PlannerArgs {
    /// The plan of the run's steps.
    pub spec: PlanSpec,
    /// The sources, by their numbers.
    pub sources: Vec<SourceShape>,
    /// The mesh of ranks that it plans for.
    pub mesh: Mesh,
    /// The state that the first step begins with, in the first life.
    pub state: PlanState,
    /// The ledger that remembers what the next life has to know.
    pub ledger: Ref<Ledger>,
    /// The loaders that read.
    pub readers: Readers,
    /// Steps whose plans are ready before somebody asks.
    pub ahead: u64,
    /// The longest time that a loader may take before its shadow is asked, too.
    pub patience: Duration,
}

/// Loaders that read the cells of each source, and those that stand in for them.
#[derive(Clone, Debug, Serialize, Deserialize, odeon::Shape)]
#[serde(crate = "odeon::serde")]
pub struct Readers {
    /// All loaders, by their numbers.
    pub loaders: BTreeMap<u32, Ref<SourceLoader>>,
    /// Those who stand in: the n-th for each loader whose number is n modulo their count.
    pub shadows: Vec<Ref<ShadowLoader>>,
    /// The dealing of each source's cells to loaders.
    pub sources: Vec<Dealing>,
}

impl Readers {
    /// The number of the loader that reads a cell. Any can read any, should that one be gone.
    fn loader_of(&self, cell: CellName) -> u32 {
        let dealt = self.sources[usize::from(cell.source.0)].loader(cell);
        let found = self.loaders.range(dealt..).next();
        let found = found.or_else(|| self.loaders.first_key_value());
        found.map_or(dealt, |(number, _)| *number)
    }

    fn shadow_of(&self, loader: u32) -> Option<usize> {
        (!self.shadows.is_empty()).then(|| loader as usize % self.shadows.len())
    }

    fn holder(&self, cell: CellName) -> Holder {
        let loader = self.loader_of(cell);
        Holder {
            loader: self.loaders[&loader],
            shadow: self.shadow_of(loader).map(|nth| self.shadows[nth]),
        }
    }
}

/// The part of a step that buckets of these numbers are. Answered when the step is planned.
#[message(reply = Result<Dealt, Failure>, name = "data.PartOf")]
#[derive(Clone, Debug)]
pub struct PartOf {
    /// The step.
    pub step: u64,
    /// The first bucket.
    pub first: u32,
    /// Number of buckets.
    pub count: u32,
}

/// See [`PartOf`].
#[derive(Clone, Debug, Serialize, Deserialize, odeon::Shape)]
#[serde(crate = "odeon::serde")]
pub enum Dealt {
    /// The part.
    Part(Part),
    /// There is no such step: the sources ended before.
    Ended(Ended),
}

/// The part of a step that some buckets are.
#[derive(Clone, Debug, Serialize, Deserialize, odeon::Shape)]
#[serde(crate = "odeon::serde")]
pub struct Part {
    /// The step.
    pub step: u64,
    /// Samples of the whole step.
    pub samples: u32,
    /// Buckets of the whole step.
    pub buckets: u32,
    /// The buckets that were asked for.
    pub own: Vec<Bucket>,
    /// For each rank of the mesh the pictures that it encodes; empty where pictures are encoded with
    /// their samples.
    pub encoder: Vec<EncoderShare>,
    /// Holders of the cells that their samples, and the pictures of their ranks, are of.
    pub holders: Vec<(CellName, Holder)>,
}

/// A constructor has no more use for steps below this one. Told.
#[message(name = "data.Passed")]
#[derive(Clone, Debug)]
pub struct Passed {
    /// The first bucket of the constructor: its name.
    pub first: u32,
    /// The step.
    pub below: u64,
}

/// Asks for the planner's state before a step: what a checkpoint keeps of the data plane.
#[message(reply = Result<PlanState, Failure>, name = "data.StateBefore")]
#[derive(Clone, Debug)]
pub struct StateBefore {
    /// The step. It is planned now if it was not.
    pub step: u64,
}

/// Ranks are others from a step on. What was planned behind it is planned anew: with the same samples.
#[message(reply = Result<(), Failure>, name = "data.Remesh")]
#[derive(Clone, Debug)]
pub struct Remesh {
    /// The mesh of ranks from then on.
    pub mesh: Mesh,
    /// The state before the first step with it.
    pub state: PlanState,
}

/// Other loaders read what nobody was asked for yet.
#[message(reply = Result<(), Failure>, name = "data.Redeal")]
#[derive(Clone, Debug)]
pub struct Redeal {
    /// All loaders, by their numbers.
    pub loaders: BTreeMap<u32, Ref<SourceLoader>>,
    /// The loaders of each source.
    pub sources: Vec<Vec<u32>>,
}

/// Asks for what the planner knows of the past and of what is coming.
#[message(reply = Outlook, name = "data.LookAhead")]
#[derive(Clone, Debug)]
pub struct LookAhead {
    /// The first step whose drawn samples are told.
    pub since: u64,
    /// Number of steps ahead for which the samples to come are told.
    pub lead: u32,
}

/// See [`LookAhead`].
#[derive(Clone, Debug, Serialize, Deserialize, odeon::Shape)]
#[serde(crate = "odeon::serde")]
pub struct Outlook {
    /// The next step that is planned.
    pub next: u64,
    /// Samples of each source in each step since, the last thousand at most.
    pub drawn: Vec<Vec<u32>>,
    /// The most samples of each source that any step will want.
    pub coming: Vec<f64>,
    /// Seconds that steps have taken lately.
    pub step_seconds: Option<f64>,
    /// Loaders with cells that may still be needed.
    pub used: Vec<u32>,
}

/// Why a step has no part: the sources have ended.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, odeon::Shape, thiserror::Error,
)]
#[serde(crate = "odeon::serde")]
#[error("the sources ended after {steps} steps: let them repeat, or ask for fewer steps")]
pub struct Ended {
    /// Number of steps that there are.
    pub steps: u64,
}

/// Asks for the counts of the planner since it started.
#[message(reply = PlannerCounts, name = "data.CountPlanned")]
#[derive(Clone, Debug)]
pub struct CountPlanned;

/// See [`CountPlanned`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, odeon::Shape)]
#[serde(crate = "odeon::serde")]
pub struct PlannerCounts {
    /// Steps that were planned, those that were planned again counted again.
    pub planned: u64,
    /// Seconds that it took, without what was waited for.
    pub planning_seconds: f64,
    /// Seconds in which a plan was wanted and metadata of a cell was missing.
    pub starved_seconds: f64,
    /// The next step that it plans.
    pub next: u64,
    /// Cells that were described.
    pub cells: u64,
}

/// Asks for what was left out of the cells that were described, by the numbers of their sources.
#[message(reply = Vec<LeftOut>, name = "data.CountLeftOut")]
#[derive(Clone, Debug)]
pub struct CountLeftOut;

/// A cell was described. A planner tells itself.
#[message(name = "data.Described")]
#[derive(Clone, Debug)]
struct Described {
    name: CellName,
    meta: Result<CellMeta, Failure>,
}

/// Tell loaders once more what they should hold: those that are new have heard of nothing.
#[message(name = "data.Again")]
#[derive(Clone, Debug)]
struct Again;

/// The pause between two such tellings.
const AGAIN: Duration = Duration::from_millis(500);

/// Somebody waits for a step to be planned.
#[derive(Debug)]
enum Waiter {
    Part(PartOf, oneshot::Sender<Result<Dealt, Failure>>),
    State(u64, oneshot::Sender<Result<PlanState, Failure>>),
}

/// The actor that plans steps ahead and serves each constructor its part of them.
#[derive(Debug)]
pub struct Planner {
    args: PlannerArgs,
    planning: Planning,
    /// Steps that are planned and not passed.
    plans: BTreeMap<u64, StepPlan>,
    /// The state before each of them.
    states: BTreeMap<u64, PlanState>,
    /// The step that each constructor has passed, by its first bucket.
    passed: BTreeMap<u32, u64>,
    /// Those who wait for a step to be planned.
    waiting: Vec<Waiter>,
    /// Cells that loaders are asked to describe.
    asked: BTreeSet<CellName>,
    /// Cells that were described and are not passed.
    known: BTreeSet<CellName>,
    /// Number of steps that there are, once the sources have ended.
    ended: Option<u64>,
    /// Samples of each source in steps that were planned.
    drawn: BTreeMap<u64, Vec<u32>>,
    /// When steps were passed, of late.
    pace: VecDeque<(Timestamp, u64)>,
    starved: Option<Timestamp>,
    counts: PlannerCounts,
    account: Account,
    /// Why no more is planned.
    failed: Option<Failure>,
}

#[actor(name = "data.Planner")]
impl Planner {
    async fn start(args: PlannerArgs, cx: &mut Context<Self>) -> Result<Self, Failure> {
        let mut args = args;
        if cx.incarnation() > 1 {
            let ledger = args.ledger;
            let arranged = ledger.ask(Arrangement).await.map_err(Failure::error)?;
            if let Some((mesh, readers)) = arranged {
                (args.mesh, args.readers) = (mesh, readers);
            }
            let kept = ledger.ask(Recall { step: u64::MAX }).await;
            if let Some(state) = kept.map_err(Failure::error)? {
                args.state = state;
            }
        }
        let planning = planning_at(&args, &args.mesh, args.state.clone())?;
        cx.every(AGAIN, Again);
        let mut planner = Self {
            planning,
            plans: BTreeMap::new(),
            states: BTreeMap::new(),
            passed: BTreeMap::new(),
            waiting: vec![],
            asked: BTreeSet::new(),
            known: BTreeSet::new(),
            ended: None,
            drawn: BTreeMap::new(),
            pace: VecDeque::new(),
            starved: None,
            counts: PlannerCounts::default(),
            account: Account::new(args.sources.len()),
            failed: None,
            args,
        };
        planner.go_on(cx).await;
        Ok(planner)
    }

    #[handler(message = PartOf)]
    async fn part_of(
        &mut self,
        part: PartOf,
        cx: &mut Context<Self>,
    ) -> Later<Result<Dealt, Failure>> {
        let (sender, receiver) = oneshot::channel();
        if let Err(failure) = self.come_back_to(part.step).await {
            return Later::new(async move { Err(failure) });
        }
        self.waiting.push(Waiter::Part(part, sender));
        self.go_on(cx).await;
        self.end_if_failed(cx);
        later(receiver)
    }

    #[handler(message = StateBefore)]
    async fn state_before(
        &mut self,
        state: StateBefore,
        cx: &mut Context<Self>,
    ) -> Later<Result<PlanState, Failure>> {
        let (sender, receiver) = oneshot::channel();
        if let Err(failure) = self.come_back_to(state.step).await {
            return Later::new(async move { Err(failure) });
        }
        self.waiting.push(Waiter::State(state.step, sender));
        self.go_on(cx).await;
        self.end_if_failed(cx);
        later(receiver)
    }

    #[handler(message = Described)]
    async fn described(&mut self, described: Described, cx: &mut Context<Self>) {
        self.asked.remove(&described.name);
        match described.meta {
            Ok(meta) => {
                self.counts.cells += 1;
                self.account.hear(&meta);
                self.known.insert(described.name);
                if let Err(error) = self.planning.hear(meta) {
                    self.fail(Failure::error(error).fatal());
                }
            }
            Err(failure) => self.fail(failure),
        }
        self.go_on(cx).await;
        self.end_if_failed(cx);
    }

    #[handler(message = Passed)]
    async fn passed(&mut self, passed: Passed, cx: &mut Context<Self>) {
        self.passed.insert(passed.first, passed.below);
        let below = self.passed.values().copied().min().unwrap_or(0);
        self.plans = self.plans.split_off(&below);
        self.states = self.states.split_off(&below);
        self.pass_time(below);
        self.forget(below);
        self.go_on(cx).await;
        self.hold().await;
        self.end_if_failed(cx);
    }

    #[handler(message = Remesh)]
    async fn remesh(&mut self, remesh: Remesh, cx: &mut Context<Self>) -> Result<(), Failure> {
        let Remesh { mesh, state } = remesh;
        self.planning = planning_at(&self.args, &mesh, state)?;
        self.args.mesh = mesh;
        self.plans.clear();
        self.states.clear();
        self.passed.clear();
        self.restart();
        self.arranged().await?;
        self.go_on(cx).await;
        Ok(())
    }

    #[handler(message = Redeal)]
    async fn redeal(&mut self, redeal: Redeal) -> Result<(), Failure> {
        self.args.readers.loaders = redeal.loaders;
        let ends: Vec<CellName> = self.sources().map(|(_, end)| end).collect();
        let sources = self.args.readers.sources.iter_mut();
        for ((own, from), loaders) in sources.zip(ends).zip(redeal.sources) {
            own.redeal(from, loaders);
        }
        self.arranged().await?;
        self.hold().await;
        Ok(())
    }

    #[handler(message = LookAhead)]
    fn look_ahead(&mut self, look: LookAhead) -> Outlook {
        let used: BTreeSet<u32> = self
            .sources()
            .zip(&self.args.readers.sources)
            .flat_map(|((first, _), dealing)| dealing.loaders_from(first))
            .collect();
        let drawn = self.drawn.range(look.since..);
        Outlook {
            next: self.planning.step(),
            drawn: drawn.map(|(_, drawn)| drawn.clone()).collect(),
            coming: self.planning.coming(look.lead),
            step_seconds: self.step_seconds(),
            used: used.into_iter().collect(),
        }
    }

    #[handler(message = Again)]
    async fn again(&mut self, _again: Again) {
        self.hold().await;
    }

    #[handler(message = CountLeftOut)]
    fn count_left_out(&mut self, _count: CountLeftOut) -> Vec<LeftOut> {
        self.account.sources().to_vec()
    }

    #[handler(message = CountPlanned)]
    fn count(&mut self, _count: CountPlanned) -> PlannerCounts {
        PlannerCounts {
            next: self.planning.step(),
            ..self.counts.clone()
        }
    }
}

impl Planner {
    /// Plans as far ahead as it may, answers who can be answered, and asks for what is missing.
    async fn go_on(&mut self, cx: &Context<Self>) {
        while self.failed.is_none() && self.planning.step() < self.end() {
            let (state, step) = (self.planning.state(), self.planning.step());
            let begun = Clock::now();
            let planned = self.planning.plan();
            self.counts.planning_seconds += Clock::now().since(begun).as_secs_f64();
            let plan = match planned {
                Ok(plan) => plan,
                Err(Waiting::Cell(_)) => break,
                Err(Waiting::Ended { steps }) => {
                    self.ended = Some(steps);
                    break;
                }
                Err(Waiting::Barren(source)) => {
                    let why = self.account.barren(source, &self.args.sources);
                    self.fail(Failure::error(why).fatal());
                    break;
                }
            };
            let planned = Planned {
                state: state.clone(),
                step,
            };
            // First of all: whoever comes after this life has to know.
            if let Err(error) = self.args.ledger.tell(planned).await {
                self.fail(Failure::error(error));
                break;
            }
            self.counts.planned += 1;
            self.drawn
                .insert(step, drawn(&plan, self.args.sources.len()));
            if self.drawn.len() > DRAWN_MAX {
                self.drawn.pop_first();
            }
            self.plans.insert(step, plan);
            self.states.insert(step, state);
        }
        self.starve();
        self.answer();
        self.ask_for_cells(cx);
    }

    /// The step that is not planned yet: so far behind the last that is passed, or the first that
    /// somebody waits for.
    fn end(&self) -> u64 {
        let passed = self.passed.values().copied().min();
        let first = passed.unwrap_or_else(|| {
            self.plans
                .keys()
                .next()
                .copied()
                .unwrap_or_else(|| self.planning.step())
        });
        let wanted = self.waiting.iter().map(|waiter| waiter.step() + 1).max();
        (first + self.args.ahead).max(wanted.unwrap_or(0))
    }

    /// Goes back to a step that was passed, or planned by a former life.
    async fn come_back_to(&mut self, step: u64) -> Result<(), Failure> {
        if self.plans.contains_key(&step) || step >= self.planning.step() {
            return Ok(());
        }
        let kept = self.recall(step).await?;
        let Some(state) = kept else {
            let lost = format!(
                "step {step} was asked for, and is before what is durably done: go on from the newest \
                 checkpoint"
            );
            return Err(Failure::error(lost).fatal());
        };
        self.planning = planning_at(&self.args, &self.args.mesh, state)?;
        self.plans.clear();
        self.states.clear();
        self.restart();
        self.passed
            .values_mut()
            .for_each(|below| *below = (*below).min(step));
        Ok(())
    }

    /// Has the next life know for whom this one plans, and who reads.
    async fn arranged(&self) -> Result<(), Failure> {
        let arranged = Arranged {
            mesh: self.args.mesh.clone(),
            readers: self.args.readers.clone(),
        };
        let told = self.args.ledger.tell(arranged).await;
        told.map_err(Failure::error)
    }

    /// Forgets what was heard with the planning that heard it.
    fn restart(&mut self) {
        self.asked.clear();
        self.known.clear();
        self.ended = None;
    }

    async fn recall(&self, step: u64) -> Result<Option<PlanState>, Failure> {
        let recalled = self.args.ledger.ask(Recall { step }).await;
        recalled.map_err(Failure::error)
    }

    fn fail(&mut self, failure: Failure) {
        self.failed.get_or_insert(failure);
    }

    /// Whoever waits asks the next life, if there is one.
    fn end_if_failed(&mut self, cx: &mut Context<Self>) {
        if let Some(failure) = self.failed.clone() {
            self.waiting.clear();
            cx.fail(failure);
        }
    }

    /// Measures for how long somebody has waited for metadata.
    fn starve(&mut self) {
        let next = self.planning.step();
        let waits = self.waiting.iter().any(|waiter| waiter.step() >= next);
        match (waits, self.starved) {
            (true, None) => self.starved = Some(Clock::now()),
            (false, Some(since)) => {
                self.counts.starved_seconds += Clock::now().since(since).as_secs_f64();
                self.starved = None;
            }
            _ => {}
        }
    }

    fn answer(&mut self) {
        for waiter in std::mem::take(&mut self.waiting) {
            // Who does not wait any more has asked again, or is gone.
            match waiter {
                Waiter::Part(part, sender) => match self.part(&part) {
                    Some(part) => drop(sender.send(part)),
                    None => self.waiting.push(Waiter::Part(part, sender)),
                },
                Waiter::State(step, sender) => match self.state(step) {
                    Some(state) => drop(sender.send(Ok(state))),
                    None => self.waiting.push(Waiter::State(step, sender)),
                },
            }
        }
    }

    fn state(&self, step: u64) -> Option<PlanState> {
        let kept = self.states.get(&step).cloned();
        kept.or_else(|| (self.planning.step() == step).then(|| self.planning.state()))
    }

    fn part(&self, part: &PartOf) -> Option<Result<Dealt, Failure>> {
        if let Some(steps) = self.ended.filter(|steps| part.step >= *steps) {
            return Some(Ok(Dealt::Ended(Ended { steps })));
        }
        let plan = self.plans.get(&part.step)?;
        let buckets = plan.buckets.len() as u32;
        let own = part.first as usize..(part.first + part.count) as usize;
        let Some(own) = plan.buckets.get(own) else {
            let PartOf { step, first, count } = part;
            return Some(Err(Failure::error(format!(
                "step {step} has {buckets} buckets, and {count} from {first} on were asked for"
            ))));
        };
        let samples = own.iter().flat_map(Bucket::samples);
        let buckets_of = part.first..part.first + part.count;
        let fetch = &plan.fetch;
        let encoded = (0..).zip(&plan.encoder);
        let encoded = encoded
            .filter(|(rank, _)| buckets_of.contains(&fetch.axis.bucket(&fetch.mesh, *rank)))
            .flat_map(|(_, share)| share.pictures.iter().map(|picture| picture.sample));
        let cells: BTreeSet<CellName> = samples.chain(encoded).map(CellName::of).collect();
        let holders = cells
            .into_iter()
            .map(|cell| (cell, self.args.readers.holder(cell)));
        Some(Ok(Dealt::Part(Part {
            step: part.step,
            samples: plan.samples,
            buckets,
            own: own.to_vec(),
            encoder: plan.encoder.clone(),
            holders: holders.collect(),
        })))
    }

    /// Marks the time at which a step is passed.
    fn pass_time(&mut self, below: u64) {
        let last = self.pace.back().map(|(_, step)| *step);
        if last.is_some_and(|last| below < last) {
            self.pace.clear();
        }
        if last != Some(below) {
            self.pace.push_back((Clock::now(), below));
        }
        if self.pace.len() > PACE_STEPS {
            self.pace.pop_front();
        }
    }

    fn step_seconds(&self) -> Option<f64> {
        let (first, last) = (self.pace.front()?, self.pace.back()?);
        let steps = last.1 - first.1;
        (steps > 0).then(|| last.0.since(first.0).as_secs_f64() / steps as f64)
    }

    /// For each source the first cell that was asked for and may still be needed, and the first behind
    /// all that were asked for.
    fn sources(&self) -> impl Iterator<Item = (CellName, CellName)> + '_ {
        self.planning.cursors().map(|cursor| {
            let source = cursor.source;
            let own = |cells: &BTreeSet<CellName>| {
                let mut own = cells.iter().filter(|cell| cell.source == source);
                let first = own.next().copied();
                (first, own.next_back().copied().or(first))
            };
            let (known, asked) = (own(&self.known), own(&self.asked));
            let first = [known.0, asked.0].into_iter().flatten().min();
            let last = known.1.max(asked.1);
            let end = last.map_or(cursor, |last| CellName {
                cell: last.cell + 1,
                ..last
            });
            (first.unwrap_or(end), end)
        })
    }

    /// Cells of which no step from this one on needs anything.
    fn forget(&mut self, below: u64) {
        for passed in self.planning.passed(below) {
            let kept: BTreeSet<CellName> = passed.kept.iter().map(|id| CellName::of(*id)).collect();
            let source = passed.below.source;
            self.args.readers.sources[usize::from(source.0)].forget(passed.below);
            self.known.retain(|cell| {
                cell.source != source || *cell >= passed.below || kept.contains(cell)
            });
        }
    }

    /// Has the loaders describe what is wanted and was not asked for.
    fn ask_for_cells(&mut self, cx: &Context<Self>) {
        for name in self.planning.wants() {
            if !self.asked.insert(name) {
                continue;
            }
            let (holder, patience) = (self.args.readers.holder(name), self.args.patience);
            let me = cx.me();
            cx.spawn_task(async move {
                let meta = holder.ask(Describe { cell: name }, patience).await;
                // A planner that is gone asks again in its next life.
                let _ = me.tell(Described { name, meta }).await;
            });
        }
    }

    /// Tells all loaders which cells they should have: what plans need that are not passed, then what
    /// will be planned next.
    async fn hold(&self) {
        let readers = &self.args.readers;
        let mut loaders: BTreeMap<u32, Vec<CellName>> = BTreeMap::new();
        let mut shadows: Vec<Vec<CellName>> = vec![vec![]; readers.shadows.len()];
        let samples = self
            .plans
            .values()
            .flat_map(|plan| plan.buckets.iter().flat_map(Bucket::samples));
        let planned: BTreeSet<CellName> = samples.map(CellName::of).collect();
        let mut after: Vec<CellName> = self.known.difference(&planned).copied().collect();
        // Sources take turns, so that what one needs next is not behind all that another has.
        after.sort_by_key(|name| (name.epoch, name.cell, name.source));
        let wanted = self.planning.wants();
        for name in planned.iter().copied().chain(after).chain(wanted) {
            let loader = readers.loader_of(name);
            loaders.entry(loader).or_default().push(name);
            if let Some(shadow) = readers.shadow_of(loader) {
                shadows[shadow].push(name);
            }
        }
        // One that is gone is told again.
        for (number, loader) in &readers.loaders {
            let cells = loaders.remove(number).unwrap_or_default();
            let _ = loader.tell(Hold { cells }).now();
        }
        for (shadow, cells) in readers.shadows.iter().zip(shadows) {
            let _ = shadow.tell(Hold { cells }).now();
        }
    }
}

impl Waiter {
    const fn step(&self) -> u64 {
        match self {
            Self::Part(part, _) => part.step,
            Self::State(step, _) => *step,
        }
    }
}

/// Samples of each source in a step.
fn drawn(plan: &StepPlan, sources: usize) -> Vec<u32> {
    let mut drawn = vec![0; sources];
    for id in plan.buckets.iter().flat_map(Bucket::samples) {
        drawn[usize::from(id.source.0)] += 1;
    }
    drawn
}

/// Steps of which is remembered what was drawn.
const DRAWN_MAX: usize = 1024;

/// Steps over which their time is averaged.
const PACE_STEPS: usize = 17;

fn planning_at(args: &PlannerArgs, mesh: &Mesh, state: PlanState) -> Result<Planning, Failure> {
    let planning = Planning::at(args.spec.clone(), &args.sources, mesh.clone(), state);
    // Another life would be made from the same.
    planning.map_err(|error| Failure::error(error).fatal())
}

fn later<R: Send + 'static>(
    answer: oneshot::Receiver<Result<R, Failure>>,
) -> Later<Result<R, Failure>> {
    Later::new(async move {
        let answer = answer.await;
        answer.unwrap_or_else(|_| Err(Failure::error("the planner has ended")))
    })
}
