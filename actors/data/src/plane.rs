//! The data plane of a run as a graph of supervised actors.
//!
//! ```text
//!  Ledger   Planner        in the driver: metadata alone
//!  SourceLoader ..         a process each, on processors that accelerators leave idle
//!  ShadowLoader ..         a process each
//!  DataConstructor ..      a process each, on the node of the ranks that it serves
//! ```

use std::path::PathBuf;
use std::time::Duration;

use odeon::{
    Actor, ActorId, AskError, Clock, Failure, FailureKind, Handler, Message, Needs, ProcessId, Ref,
    Registered, Restart, Spawn, SpawnError, System,
};
use odeon_algorithms::tokenizer::Tokenizer;

use crate::constructor::{ConstructorArgs, ConstructorCounts, CountBuilt, DataConstructor};
use crate::ledger::{Committed, CountLedger, Ledger, LedgerCounts};
use crate::loader::{
    CountLoaded, LoadFault, LoaderArgs, LoaderCounts, ShadowLoader, SourceLoader, Survey,
};
use crate::plan::{PlaceTree, PlanError, PlanSpec, PlanState, Planning, SourceShape};
use crate::planner::{
    CountPlanned, Dealing, Planner, PlannerArgs, PlannerCounts, Redeal, Retree, StateBefore,
};
use crate::sample::SourceNumber;
use crate::source::SourceSpec;

/// What a data plane is made from.
#[derive(Clone, Debug)]
pub struct DataPlan {
    /// What the names of its actors begin with; nothing where a run has one plane.
    pub prefix: String,
    /// The sources, by their numbers.
    pub sources: Vec<SourceSpec>,
    /// What text becomes tokens by.
    pub tokenizer: Tokenizer,
    /// Where indices are kept, and what files unpack to.
    pub cache: PathBuf,
    /// What steps are made of.
    pub spec: PlanSpec,
    /// Who gets what.
    pub tree: PlaceTree,
    /// Where the data goes on; from the begin of all sources without.
    pub state: Option<PlanState>,
    /// Who reads.
    pub loaders: Loaders,
    /// Who builds.
    pub constructors: Constructors,
    /// Steps whose plans are ready before somebody asks.
    pub planned_ahead: u64,
    /// How long a loader may take before its shadow is asked, too.
    pub patience: Duration,
    /// Who has a process of its own.
    pub processes: Processes,
}

/// The loaders of a data plane.
#[derive(Clone, Debug)]
pub struct Loaders {
    /// The loaders of each source, by their numbers; the cells of a source go around. See
    /// [`partition`](crate::plan::partition).
    pub sources: Vec<Vec<u32>>,
    /// Loaders that stand in for others.
    pub shadows: u32,
    /// Bytes of samples that each reads ahead.
    pub bytes_max: u64,
    /// Cells that each makes at a time.
    pub threads: usize,
    /// What each reserves on its node.
    pub needs: Needs,
}

impl DataPlan {
    fn loader_args(&self, identities: Vec<[u8; 32]>) -> LoaderArgs {
        LoaderArgs {
            name: String::new(),
            sources: self.sources.clone(),
            identities,
            tokenizer: self.tokenizer.clone(),
            cache: self.cache.clone(),
            bytes_max: self.loaders.bytes_max,
            threads: self.loaders.threads,
        }
    }

    /// What an actor of this role is called.
    fn named(&self, role: &str) -> String {
        format!("{}{role}", self.prefix)
    }

    /// A loader, or one that stands in for others.
    async fn spawn<A: Registered + Actor<Args = LoaderArgs>>(
        &self,
        system: &System,
        args: &LoaderArgs,
        name: String,
    ) -> Result<Ref<A>, SpawnError> {
        let name = self.named(&name);
        let args = LoaderArgs {
            name: name.clone(),
            ..args.clone()
        };
        let loader = system.spawn::<A>(args).restart(Restart::Permanent);
        let loader = loader.needs(|_| self.loaders.needs.clone());
        let loader = self.processes.spawn(loader).await?;
        called(system, &name, loader).await;
        Ok(loader)
    }
}

impl Loaders {
    /// How many there are.
    #[must_use]
    pub fn count(&self) -> u32 {
        let last = self.sources.iter().flatten().max();
        last.map_or(0, |last| last + 1)
    }
}

/// The constructors of a data plane.
#[derive(Clone, Debug)]
pub struct Constructors {
    /// How many: each has an equal part of the buckets, and at most as many as there are.
    pub count: u32,
    /// Steps that each builds ahead.
    pub ahead: u64,
    /// What each reserves on its node.
    pub needs: Needs,
}

/// Who has a process of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Processes {
    /// Loaders and constructors, so that none takes another down.
    #[default]
    Own,
    /// Nobody.
    Shared,
}

impl Processes {
    fn spawn<A: Actor>(self, spawn: Spawn<A>) -> Spawn<A> {
        match self {
            Self::Own => spawn.isolated(),
            Self::Shared => spawn,
        }
    }
}

/// Why a data plane is not there.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlaneError {
    /// An actor did not start.
    #[error(transparent)]
    Spawn(#[from] SpawnError),
    /// A source cannot be read.
    #[error(transparent)]
    Source(#[from] LoadFault),
    /// The plan cannot be carried out with these sources and ranks.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// An actor gave no answer.
    #[error("the data plane does not answer: {0}")]
    Ask(#[from] AskError),
    /// An actor cannot do its part.
    #[error(transparent)]
    Failed(#[from] Failure),
}

/// A data plane that works.
#[derive(Debug)]
pub struct DataPlane {
    system: System,
    loader_args: LoaderArgs,
    plan: DataPlan,
    ledger: Ref<Ledger>,
    planner: Ref<Planner>,
    loaders: Vec<Ref<SourceLoader>>,
    shadows: Vec<Ref<ShadowLoader>>,
    constructors: Vec<Seat>,
}

/// A constructor and its buckets.
#[derive(Clone, Copy, Debug)]
struct Seat {
    actor: Ref<DataConstructor>,
    first: u32,
    count: u32,
}

/// Sources are listed, and their files read once, when a run is begun for the first time.
const SURVEY: Duration = Duration::from_secs(1800);

/// Before the planner is asked again.
const PAUSE: Duration = Duration::from_millis(20);

/// Times that it may be lost while it is asked one thing.
const LOSSES_MAX: u32 = 20;

impl DataPlane {
    /// Spawns the graph, which begins to read, plan and build at once.
    ///
    /// # Errors
    /// [`PlaneError`]; what was spawned is stopped.
    pub async fn start(system: &System, plan: DataPlan) -> Result<Self, PlaneError> {
        let always = Restart::Permanent;
        let shapes = survey(system, &plan).await?;
        let identities = shapes.iter().map(|(_, identity)| *identity).collect();
        let shapes: Vec<SourceShape> = shapes.into_iter().map(|(shape, _)| shape).collect();
        let args = plan.loader_args(identities);
        let count = plan.loaders.count();
        let mut loaders = vec![];
        for nth in 0..count {
            loaders.push(
                plan.spawn::<SourceLoader>(system, &args, format!("loader-{nth}"))
                    .await?,
            );
        }
        let mut shadows = vec![];
        for nth in 0..plan.loaders.shadows {
            shadows.push(
                plan.spawn::<ShadowLoader>(system, &args, format!("shadow-{nth}"))
                    .await?,
            );
        }
        // What cannot be planned is said before anything waits for it.
        let planning = match plan.state.clone() {
            None => Planning::new(plan.spec.clone(), &shapes, plan.tree.clone())?,
            Some(state) => Planning::at(plan.spec.clone(), &shapes, plan.tree.clone(), state)?,
        };
        let state = planning.state();
        let step = planning.step();
        let ledger = system
            .spawn::<Ledger>(state.clone())
            .restart(always)
            .await?;
        let dealing = Dealing {
            loaders: loaders.clone(),
            shadows: shadows.clone(),
            sources: plan.loaders.sources.clone(),
        };
        let planner_args = PlannerArgs {
            spec: plan.spec.clone(),
            sources: shapes,
            tree: plan.tree.clone(),
            state,
            ledger,
            dealing,
            ahead: plan.planned_ahead,
            patience: plan.patience,
        };
        let planner = system
            .spawn::<Planner>(planner_args)
            .restart(always)
            .await?;
        called(system, &plan.named("planner"), planner).await;
        called(system, &plan.named("ledger"), ledger).await;
        let mut plane = Self {
            system: system.clone(),
            loader_args: args,
            plan,
            ledger,
            planner,
            loaders,
            shadows,
            constructors: vec![],
        };
        plane.seat(step).await?;
        Ok(plane)
    }

    /// The constructor that has a bucket.
    #[must_use]
    pub fn constructor_of(&self, bucket: u32) -> Option<Ref<DataConstructor>> {
        let mut seats = self.constructors.iter();
        let seat = seats.find(|seat| (seat.first..seat.first + seat.count).contains(&bucket));
        seat.map(|seat| seat.actor)
    }

    /// The planner.
    #[must_use]
    pub const fn planner(&self) -> Ref<Planner> {
        self.planner
    }

    /// The loaders.
    #[must_use]
    pub fn loaders(&self) -> &[Ref<SourceLoader>] {
        &self.loaders
    }

    /// Those that stand in for loaders.
    #[must_use]
    pub fn shadows(&self) -> &[Ref<ShadowLoader>] {
        &self.shadows
    }

    /// The constructors.
    pub fn constructors(&self) -> impl Iterator<Item = Ref<DataConstructor>> + '_ {
        self.constructors.iter().map(|seat| seat.actor)
    }

    /// What a checkpoint keeps of the data plane, so that a run goes on with this step.
    ///
    /// # Errors
    /// The step is durably done, or the planner does not answer.
    pub async fn state_before(&self, step: u64) -> Result<PlanState, PlaneError> {
        self.planned(StateBefore { step }).await
    }

    /// Asks the planner, over its losses.
    async fn planned<M, R>(&self, message: M) -> Result<R, PlaneError>
    where
        Planner: Handler<M>,
        M: Message<Reply = Result<R, Failure>> + Clone,
    {
        let mut losses = 0;
        loop {
            let failure = match self.planner.ask(message.clone()).await {
                Ok(Ok(reply)) => return Ok(reply),
                Ok(Err(failure)) => failure,
                Err(error @ (AskError::Died(_) | AskError::LinkLost { .. })) => {
                    Failure::error(error)
                }
                Err(error) => return Err(error.into()),
            };
            if failure.kind == FailureKind::Fatal || losses == LOSSES_MAX {
                return Err(failure.into());
            }
            losses += 1;
            Clock::sleep(PAUSE).await;
        }
    }

    /// Steps before this one are durably done: a run goes back to it at most.
    ///
    /// # Errors
    /// The ledger does not answer.
    pub async fn commit(&self, next: u64) -> Result<(), PlaneError> {
        let told = self.ledger.tell(Committed { next }).await;
        told.map_err(|error| Failure::error(error).into())
    }

    /// Has other ranks from a step on. The samples of each step stay what they are; constructors are
    /// others.
    ///
    /// # Errors
    /// The plan cannot be carried out with these ranks, or an actor does not answer.
    pub async fn retree(&mut self, tree: PlaceTree, from: u64) -> Result<(), PlaneError> {
        let retree = Retree {
            tree: tree.clone(),
            state: self.state_before(from).await?,
        };
        self.planned(retree).await?;
        self.plan.tree = tree;
        for seat in std::mem::take(&mut self.constructors) {
            // One that is gone has ended already.
            let _ = seat.actor.stop().await;
        }
        self.seat(from).await
    }

    /// Reads each source with these loaders from now on: those that are missing are spawned, and the
    /// others go on with what they have. The order of the samples stays what it is.
    ///
    /// # Errors
    /// A loader did not start.
    pub async fn redeal(&mut self, sources: Vec<Vec<u32>>) -> Result<(), PlaneError> {
        self.plan.loaders.sources = sources.clone();
        let count = self.plan.loaders.count();
        for nth in self.loaders.len() as u32..count {
            let (system, name) = (&self.system, format!("loader-{nth}"));
            let loader = self
                .plan
                .spawn::<SourceLoader>(system, &self.loader_args, name)
                .await?;
            self.loaders.push(loader);
        }
        let dealing = Dealing {
            loaders: self.loaders.clone(),
            shadows: self.shadows.clone(),
            sources,
        };
        let told = self.planner.tell(Redeal { dealing }).await;
        told.map_err(|error| Failure::error(error).into())
    }

    /// What all of its actors have done.
    ///
    /// # Errors
    /// One of them does not answer.
    pub async fn counts(&self) -> Result<PlaneCounts, PlaneError> {
        let mut counts = PlaneCounts {
            planner: self.planner.ask(CountPlanned).await?,
            ledger: self.ledger.ask(CountLedger).await?,
            ..PlaneCounts::default()
        };
        for loader in &self.loaders {
            counts.loaders.push(loader.ask(CountLoaded).await?);
        }
        for shadow in &self.shadows {
            counts.shadows.push(shadow.ask(CountLoaded).await?);
        }
        for seat in &self.constructors {
            counts.constructors.push(seat.actor.ask(CountBuilt).await?);
        }
        Ok(counts)
    }

    /// The actors by what people call them, with their processes where these are others.
    pub fn roles(&self) -> impl Iterator<Item = (String, ActorId, Option<ProcessId>)> {
        let system = &self.system;
        let loaders = self.loaders.iter().enumerate().map(|(nth, actor)| {
            let process = system.process_of(*actor);
            (format!("loader-{nth}"), actor.id(), process)
        });
        let shadows = self.shadows.iter().enumerate().map(|(nth, actor)| {
            let process = system.process_of(*actor);
            (format!("shadow-{nth}"), actor.id(), process)
        });
        let constructors = self.constructors.iter().enumerate().map(|(nth, seat)| {
            let process = system.process_of(seat.actor);
            (format!("constructor-{nth}"), seat.actor.id(), process)
        });
        loaders.chain(shadows).chain(constructors)
    }

    /// Ends all of its actors.
    pub async fn stop(self) {
        // Those that are gone have ended already.
        for seat in &self.constructors {
            let _ = seat.actor.stop().await;
        }
        let _ = self.planner.stop().await;
        let _ = self.ledger.stop().await;
        for loader in &self.loaders {
            let _ = loader.stop().await;
        }
        for shadow in &self.shadows {
            let _ = shadow.stop().await;
        }
    }

    /// Spawns the constructors, each with an equal part of the buckets.
    async fn seat(&mut self, step: u64) -> Result<(), PlaneError> {
        let axis = self.plan.spec.distribute.axis;
        let buckets = self.plan.tree.buckets(axis);
        let count = self.plan.constructors.count.clamp(1, buckets.max(1));
        for nth in 0..count {
            let (first, end) = (buckets * nth / count, buckets * (nth + 1) / count);
            let args = ConstructorArgs {
                planner: self.planner,
                ledger: self.ledger,
                first,
                count: end - first,
                step,
                ahead: self.plan.constructors.ahead,
                patience: self.plan.patience,
            };
            let actor = self.system.spawn::<DataConstructor>(args);
            let actor = actor.restart(Restart::Permanent);
            let actor = actor.needs(|_| self.plan.constructors.needs.clone());
            let actor = self.plan.processes.spawn(actor).await?;
            let name = self.plan.named(&format!("constructor-{nth}"));
            called(&self.system, &name, actor).await;
            self.constructors.push(Seat {
                actor,
                first,
                count: end - first,
            });
        }
        Ok(())
    }
}

/// What the actors of a data plane have done.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PlaneCounts {
    /// The planner.
    pub planner: PlannerCounts,
    /// The ledger.
    pub ledger: LedgerCounts,
    /// Each loader.
    pub loaders: Vec<LoaderCounts>,
    /// Each that stands in for one.
    pub shadows: Vec<LoaderCounts>,
    /// Each constructor.
    pub constructors: Vec<ConstructorCounts>,
}

/// Has loaders open the sources, each the same as later, and ends them: what they have found is kept
/// on disk, and those that follow are told what the sources are.
async fn survey(
    system: &System,
    plan: &DataPlan,
) -> Result<Vec<(SourceShape, [u8; 32])>, PlaneError> {
    let args = plan.loader_args(vec![]);
    let mut surveyors = vec![];
    for nth in 0..plan.loaders.count() {
        let name = format!("surveyor-{nth}");
        surveyors.push(plan.spawn::<SourceLoader>(system, &args, name).await?);
    }
    let asked = plan.sources.iter().zip(&plan.loaders.sources).enumerate();
    let asked = asked.map(async |(nth, (spec, own))| {
        let source = SourceNumber(nth as u16);
        let surveyor = surveyors[own.first().copied().unwrap_or(0) as usize];
        let surveyed = surveyor.ask(Survey { source }).timeout(SURVEY).await??;
        let shape = SourceShape {
            name: spec.name.clone(),
            cells: surveyed.cells,
        };
        Ok::<_, PlaneError>((shape, surveyed.identity))
    });
    let shapes = futures::future::try_join_all(asked).await;
    for surveyor in surveyors {
        // One that is gone has ended already.
        let _ = surveyor.stop().await;
    }
    shapes
}

/// Gives an actor its role for a name, for people who look on. Nobody needs it to be found.
async fn called<A: Registered>(system: &System, role: &str, actor: Ref<A>) {
    if let Err(error) = system.register(role, actor).await {
        tracing::warn!(role, %error, "an actor has no name");
    }
}
