//! The data plane of a run as a graph of supervised actors.
//!
//! ```text
//!  Ledger   Planner        in the driver: metadata alone
//!  SourceLoader ..         a process each, on processors that accelerators leave idle
//!  ShadowLoader ..         a process each
//!  DataConstructor ..      a process each, on the node of the ranks that it serves
//!  DataClient ..           with their ranks, which spawn them
//! ```

mod found;

use odeon_mesh::Mesh;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use odeon::serde::Serialize;
use odeon::{
    Actor, ActorId, AskError, Blob, Clock, Failure, FailureKind, Handler, Message, Needs,
    ProcessId, Ref, Registered, Restart, Spawn, SpawnError, System,
};
use odeon_algorithms::tokenizer::Tokenizer;

pub use self::found::{Changed, SourceChange, SourceLeftOut};
use self::found::{Found, Surveyed, survey, take_up};
use crate::client::Supply;
use crate::constructor::{ConstructorArgs, ConstructorCounts, CountBuilt, DataConstructor};
use crate::ledger::{Committed, CountLedger, Ledger, LedgerCounts};
use crate::loader::{
    CountLoaded, LoadFault, LoaderArgs, LoaderCounts, ShadowLoader, SourceLoader, SourceWork,
};
use crate::plan::{
    Dealing, FetchPlan, LoaderCaps, Look, PartitionError, PlanError, PlanSpec, PlanState, Planning,
    Profile, Roster, Scaler, ScalingSpec, SourceShape, partition,
};
use crate::planner::{
    CountPlanned, LookAhead, Planner, PlannerArgs, PlannerCounts, Readers, Redeal, Remesh,
    StateBefore,
};
use crate::sample::SourceNumber;
use crate::source::{Earlier, SourceSpec};

/// The settings of a data plane.
#[derive(Clone, Debug)]
pub struct DataPlan {
    /// A prefix of the names of its actors; empty where a run has one plane.
    pub prefix: String,
    /// The sources, by their numbers.
    pub sources: Vec<SourceSpec>,
    /// The tokenizer of text.
    pub tokenizer: Tokenizer,
    /// Where indices are kept, and what files unpack to.
    pub cache: PathBuf,
    /// The plan of steps: their mixture, their size, and their placing.
    pub spec: PlanSpec,
    /// The mesh of ranks that it feeds.
    pub mesh: Mesh,
    /// Where the data goes on; from the begin of all sources without.
    pub state: Option<PlanState>,
    /// The sources as they were before more came, by their names, for a plane that reads them as another
    /// does that goes on: [`DataPlane::earlier`]. A state has its own.
    pub earlier: BTreeMap<String, Vec<Earlier>>,
    /// The loaders, which read.
    pub loaders: Loaders,
    /// The constructors, which build.
    pub constructors: Constructors,
    /// Steps whose plans are ready before somebody asks.
    pub planned_ahead: u64,
    /// The longest time that a loader may take before its shadow is asked, too.
    pub patience: Duration,
    /// The placing of actors in processes.
    pub processes: Processes,
    /// The rule for files that are not what they were when `state` was made.
    pub changed: Changed,
}

/// The loaders of a data plane.
#[derive(Clone, Debug)]
pub struct Loaders {
    /// The loaders of each source at first, by their numbers; the cells of a source go around.
    /// Without, sources are measured, and loaders follow from that: see [`partition`].
    pub sources: Option<Vec<Vec<u32>>>,
    /// When they become more or fewer.
    pub scaling: Option<ScalingSpec>,
    /// Seconds that a step is expected to take, until that is known: what loaders must give follows
    /// from it.
    pub step_seconds: f64,
    /// Loaders that stand in for others.
    pub shadows: u32,
    /// Bytes of samples that each reads ahead.
    pub bytes_max: u64,
    /// Cells that each makes at a time.
    pub threads: usize,
    /// The resources that each reserves on its node. They stay the same when sources come and go.
    pub needs: Needs,
}

impl Loaders {
    /// The most that one loader may take.
    fn caps(&self) -> LoaderCaps {
        LoaderCaps {
            threads: self.threads.max(1) as u32,
            ..LoaderCaps::default()
        }
    }
}

impl DataPlan {
    fn loader_args(
        &self,
        system: &System,
        earlier: &[Vec<Earlier>],
        identities: Vec<[u8; 32]>,
    ) -> Result<LoaderArgs, Failure> {
        let earlier = match earlier.iter().all(Vec::is_empty) {
            true => None,
            false => Some(json_blob(system, &earlier)?),
        };
        Ok(LoaderArgs {
            name: String::new(),
            sources: self.sources.clone(),
            earlier,
            identities,
            tokenizer: self.tokenizer.clone(),
            cache: self.cache.clone(),
            bytes_max: self.loaders.bytes_max,
            threads: self.loaders.threads,
        })
    }

    /// Which ranks fetch what.
    fn fetch(&self) -> FetchPlan {
        FetchPlan {
            mesh: self.mesh.clone(),
            axis: self.spec.distribute.axis,
            broadcast_at: self.spec.broadcast_at.clone(),
            slicing: self.spec.slicing,
        }
    }

    /// The name of an actor of this role.
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

/// The constructors of a data plane.
#[derive(Clone, Debug)]
pub struct Constructors {
    /// Number of constructors: each has an equal part of the buckets, and there are at most as many
    /// as buckets.
    pub count: u32,
    /// Steps that each builds ahead.
    pub ahead: u64,
    /// The resources that each reserves on its node.
    pub needs: Needs,
}

/// The actors that have a process of their own.
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
    /// The files of a source are not those that the run has read so far, with more behind them or not.
    #[error(
        "source `{name}` is not what it was when it was read: {what}; put the old files back, begin \
         anew with --fresh, or set `data.changed = \"go_on\"`, with which records may come twice or \
         never"
    )]
    Changed {
        /// The source.
        name: String,
        /// The difference between the files.
        what: String,
    },
    /// No loader can read a source.
    #[error(transparent)]
    Partition(#[from] PartitionError),
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
    /// By their numbers.
    loaders: BTreeMap<u32, Ref<SourceLoader>>,
    shadows: Vec<Ref<ShadowLoader>>,
    constructors: Vec<Seat>,
    roster: Roster,
    scaler: Option<Scaler>,
    /// The first step that the scaler has not seen.
    seen: u64,
    /// The findings about each source when it was opened.
    found: Vec<Found>,
    /// As much was left out of each source when it was told last.
    told: Vec<u64>,
}

/// A source whose loaders have changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rescaled {
    /// The source.
    pub source: String,
    /// Its loaders from now on, by their numbers.
    pub loaders: Vec<u32>,
}

/// A constructor and its buckets.
#[derive(Clone, Copy, Debug)]
struct Seat {
    actor: Ref<DataConstructor>,
    /// The first bucket behind its own.
    end: u32,
}

/// Before the planner is asked again.
const PAUSE: Duration = Duration::from_millis(20);

/// Times that it may be lost while it is asked one thing.
const LOSSES_MAX: u32 = 20;

impl DataPlane {
    /// Spawns the graph, which begins to read, plan and build at once.
    ///
    /// # Errors
    /// [`PlaneError`]; what was spawned is stopped.
    #[odeon::boxed]
    pub async fn start(system: &System, plan: DataPlan) -> Result<Self, PlaneError> {
        let always = Restart::Permanent;
        let surveyed = survey(system, &plan).await?;
        let identities = surveyed.iter().map(|it| it.identity).collect();
        let shapes: Vec<SourceShape> = surveyed.iter().map(|it| it.shape.clone()).collect();
        let earlier: Vec<_> = surveyed.iter().map(|it| it.found.earlier.clone()).collect();
        let args = plan.loader_args(system, &earlier, identities)?;
        // What cannot be planned is said before anything waits for it.
        let mut planning = match plan.state.clone() {
            None => Planning::new(plan.spec.clone(), &shapes, plan.mesh.clone())?,
            Some(state) => {
                let state = take_up(state, &surveyed);
                Planning::at(plan.spec.clone(), &shapes, plan.mesh.clone(), state)?
            }
        };
        let (state, step) = (planning.state(), planning.step());
        let roster = match &plan.loaders.sources {
            Some(sources) => Roster::new(sources.clone()),
            None => measured(&plan.loaders, &surveyed, &mut planning)?,
        };
        let mut loaders = BTreeMap::new();
        for nth in roster.loaders() {
            let name = format!("loader-{nth}");
            loaders.insert(nth, plan.spawn::<SourceLoader>(system, &args, name).await?);
        }
        let mut shadows = vec![];
        for nth in 0..plan.loaders.shadows {
            shadows.push(
                plan.spawn::<ShadowLoader>(system, &args, format!("shadow-{nth}"))
                    .await?,
            );
        }
        let ledger = system
            .spawn::<Ledger>(state.clone())
            .restart(always)
            .await?;
        let dealt = roster.sources().iter().cloned();
        let readers = Readers {
            loaders: loaders.clone(),
            shadows: shadows.clone(),
            sources: dealt.map(Dealing::around).collect(),
        };
        let planner_args = PlannerArgs {
            spec: plan.spec.clone(),
            sources: shapes,
            mesh: plan.mesh.clone(),
            state,
            ledger,
            readers,
            ahead: plan.planned_ahead,
            patience: plan.patience,
        };
        let planner = system
            .spawn::<Planner>(planner_args)
            .restart(always)
            .await?;
        called(system, &plan.named("planner"), planner).await;
        called(system, &plan.named("ledger"), ledger).await;
        let scaler = plan.loaders.scaling.map(|spec| {
            let Loaders { step_seconds, .. } = plan.loaders;
            Scaler::new(spec, plan.loaders.caps(), roster.clone(), step_seconds)
        });
        let mut plane = Self {
            system: system.clone(),
            loader_args: args,
            roster,
            scaler,
            seen: step,
            told: vec![0; surveyed.len()],
            found: surveyed.into_iter().map(|it| it.found).collect(),
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

    /// From where each rank has its batches.
    #[must_use]
    pub fn supply(&self) -> Supply {
        let seats = self.constructors.iter();
        Supply {
            fetch: self.plan.fetch(),
            constructors: seats.map(|seat| (seat.actor, seat.end)).collect(),
        }
    }

    /// The planner.
    #[must_use]
    pub const fn planner(&self) -> Ref<Planner> {
        self.planner
    }

    /// The loaders, by their numbers.
    #[must_use]
    pub fn loaders(&self) -> &BTreeMap<u32, Ref<SourceLoader>> {
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

    /// The state of the data plane that a checkpoint keeps, so that a run goes on with this step.
    ///
    /// # Errors
    /// The step is durably done, or the planner does not answer.
    #[odeon::boxed]
    pub async fn state_before(&self, step: u64) -> Result<PlanState, PlaneError> {
        let state: PlanState = self.planned(StateBefore { step }).await?;
        let sources = self.plan.sources.iter().zip(&self.found);
        let files = sources.map(|(source, found)| (source.name.clone(), found.files.clone()));
        Ok(PlanState {
            files: files.collect(),
            earlier: self.earlier(),
            ..state
        })
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
    #[odeon::boxed]
    pub async fn commit(&self, next: u64) -> Result<(), PlaneError> {
        let told = self.ledger.tell(Committed { next }).await;
        told.map_err(|error| Failure::error(error).into())
    }

    /// Has other ranks from a step on. The samples of each step stay what they are; constructors are
    /// others.
    ///
    /// # Errors
    /// The plan cannot be carried out with these ranks, or an actor does not answer.
    #[odeon::boxed]
    pub async fn remesh(&mut self, mesh: Mesh, from: u64) -> Result<(), PlaneError> {
        let remesh = Remesh {
            mesh: mesh.clone(),
            state: self.state_before(from).await?,
        };
        self.planned(remesh).await?;
        self.plan.mesh = mesh;
        for seat in std::mem::take(&mut self.constructors) {
            // One that is gone has ended already.
            let _ = seat.actor.stop().await;
        }
        self.seat(from).await
    }

    /// Reads what of each source nobody was asked for yet with these loaders: those that are missing
    /// are spawned. Those that have no source any more stay until what they have is passed. The order
    /// of the samples stays what it is.
    ///
    /// # Errors
    /// A loader did not start.
    #[odeon::boxed]
    pub async fn redeal(&mut self, sources: Vec<Vec<u32>>) -> Result<(), PlaneError> {
        self.roster = Roster::new(sources.clone());
        for nth in self.roster.loaders() {
            if self.loaders.contains_key(&nth) {
                continue;
            }
            let (system, name) = (&self.system, format!("loader-{nth}"));
            let loader = self
                .plan
                .spawn::<SourceLoader>(system, &self.loader_args, name)
                .await?;
            self.loaders.insert(nth, loader);
        }
        self.dealt().await
    }

    async fn dealt(&self) -> Result<(), PlaneError> {
        let redeal = Redeal {
            loaders: self.loaders.clone(),
            sources: self.roster.sources().to_vec(),
        };
        self.planned(redeal).await
    }

    /// Has loaders become more or fewer, as the mixture and what sources take ask for. To be called
    /// now and then, once in some steps. Nothing of the order of samples depends on it.
    ///
    /// # Errors
    /// A loader did not start, or the planner does not answer.
    #[odeon::boxed]
    pub async fn tend(&mut self) -> Result<Vec<Rescaled>, PlaneError> {
        let Some(scaler) = &self.scaler else {
            return Ok(vec![]);
        };
        let look = LookAhead {
            since: self.seen,
            lead: scaler.lead_steps(),
        };
        // One that is being made again is looked at next time.
        let Ok(outlook) = self.planner.ask(look).await else {
            return Ok(vec![]);
        };
        let work_seconds = self.work_seconds().await;
        let look = Look {
            drawn: outlook.drawn,
            coming: outlook.coming,
            work_seconds,
            step_seconds: outlook.step_seconds,
        };
        self.seen = outlook.next;
        let Some(scaler) = &mut self.scaler else {
            return Ok(vec![]);
        };
        let changed = scaler.look(&look);
        if !changed.is_empty() {
            let sources = scaler.roster().sources().to_vec();
            self.redeal(sources).await?;
        }
        self.retire(&outlook.used).await?;
        let rescaled = changed.into_iter().map(|source| Rescaled {
            source: self.plan.sources[usize::from(source.0)].name.clone(),
            loaders: self.roster.sources()[usize::from(source.0)].clone(),
        });
        Ok(rescaled.collect())
    }

    /// Ends loaders that have no source, and no cell that may still be needed.
    async fn retire(&mut self, used: &[u32]) -> Result<(), PlaneError> {
        let has = self.roster.loaders();
        let idle = self.loaders.keys().copied();
        let idle: Vec<u32> = idle
            .filter(|nth| !has.contains(nth) && !used.contains(nth))
            .collect();
        if idle.is_empty() {
            return Ok(());
        }
        let retired: Vec<_> = idle
            .iter()
            .filter_map(|it| self.loaders.remove(it))
            .collect();
        self.dealt().await?;
        for loader in retired {
            // One that is gone has ended already.
            let _ = loader.stop().await;
        }
        Ok(())
    }

    /// Seconds of a thread that a sample of each source takes, where any loader knows.
    async fn work_seconds(&self) -> Vec<Option<f64>> {
        let mut sums = vec![SourceWork::default(); self.plan.sources.len()];
        for loader in self.loaders.values() {
            let Ok(counts) = loader.ask(CountLoaded).await else {
                continue;
            };
            for (source, work) in counts.sources {
                let sum = &mut sums[usize::from(source)];
                sum.samples += work.samples;
                sum.busy_seconds += work.busy_seconds;
            }
        }
        let each =
            |sum: SourceWork| (sum.samples > 0).then(|| sum.busy_seconds / sum.samples as f64);
        sums.into_iter().map(each).collect()
    }

    /// Counts of all of its actors.
    ///
    /// # Errors
    /// One of them does not answer.
    #[odeon::boxed]
    pub async fn counts(&self) -> Result<PlaneCounts, PlaneError> {
        let mut counts = PlaneCounts {
            planner: self.planner.ask(CountPlanned).await?,
            ledger: self.ledger.ask(CountLedger).await?,
            ..PlaneCounts::default()
        };
        for loader in self.loaders.values() {
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
        let loaders = self.loaders.iter().map(|(nth, actor)| {
            let process = system.admin().process_of(*actor);
            (format!("loader-{nth}"), actor.id(), process)
        });
        let shadows = self.shadows.iter().enumerate().map(|(nth, actor)| {
            let process = system.admin().process_of(*actor);
            (format!("shadow-{nth}"), actor.id(), process)
        });
        let constructors = self.constructors.iter().enumerate().map(|(nth, seat)| {
            let process = system.admin().process_of(seat.actor);
            (format!("constructor-{nth}"), seat.actor.id(), process)
        });
        loaders.chain(shadows).chain(constructors)
    }

    /// Ends all of its actors.
    #[odeon::boxed]
    pub async fn stop(self) {
        // Those that are gone have ended already.
        for seat in &self.constructors {
            let _ = seat.actor.stop().await;
        }
        let _ = self.planner.stop().await;
        let _ = self.ledger.stop().await;
        for loader in self.loaders.values() {
            let _ = loader.stop().await;
        }
        for shadow in &self.shadows {
            let _ = shadow.stop().await;
        }
    }

    /// Spawns the constructors, each with an equal part of the buckets.
    async fn seat(&mut self, step: u64) -> Result<(), PlaneError> {
        let axis = self.plan.spec.distribute.axis;
        let buckets = axis.buckets(&self.plan.mesh);
        let count = self.plan.constructors.count.clamp(1, buckets.max(1));
        for nth in 0..count {
            let (first, end) = (buckets * nth / count, buckets * (nth + 1) / count);
            let args = ConstructorArgs {
                planner: self.planner,
                ledger: self.ledger,
                fetch: self.plan.fetch(),
                encodes: self.plan.spec.encoder.is_some(),
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
            self.constructors.push(Seat { actor, end });
        }
        Ok(())
    }
}

/// Counts of the actors of a data plane.
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

/// The loaders that sources need, by what was measured of them and what the mixture will want.
fn measured(
    loaders: &Loaders,
    surveyed: &[Surveyed],
    planning: &mut Planning,
) -> Result<Roster, PlaneError> {
    for cell in surveyed.iter().filter_map(|it| it.measured.as_ref()) {
        // Where the plan goes on further behind, it says how long samples are all the same.
        planning.hear(cell.cell.clone()).map_err(Failure::error)?;
    }
    let lead = loaders.scaling.unwrap_or_default().lead_steps;
    let coming = planning.coming(lead);
    let profile = |(nth, (surveyed, coming)): (usize, (&Surveyed, f64))| {
        let measured = surveyed.measured.as_ref()?;
        let samples = measured.cell.samples.len().max(1) as f64;
        Some(Profile {
            source: SourceNumber(nth as u16),
            work_seconds: measured.busy_seconds / samples,
            // Samples are handed out as they are, in one piece for each step.
            transfer_seconds: 0.0,
            memory_fixed: measured.memory_fixed,
            memory_per_thread: measured.memory_per_thread,
            samples_per_second: coming / loaders.step_seconds.max(1e-9),
        })
    };
    let profiles = surveyed.iter().zip(coming).enumerate().filter_map(profile);
    let presets = partition(&profiles.collect::<Vec<_>>(), &loaders.caps())?;
    let mut sources = vec![vec![]; surveyed.len()];
    for (preset, nth) in presets.iter().zip(0..) {
        for part in &preset.parts {
            sources[usize::from(part.source.0)].push(nth);
        }
    }
    Ok(Roster::new(sources))
}

/// Something as JSON in a blob, which may be larger than a message.
///
/// # Errors
/// There is no room for it.
pub fn json_blob(system: &System, what: &impl Serialize) -> Result<Blob, Failure> {
    let json = serde_json::to_vec(what).map_err(Failure::error)?;
    let mut writer = system.blobs().writer(json.len()).map_err(Failure::error)?;
    writer.copy_from_slice(&json);
    Ok(writer.seal())
}

/// Gives an actor its role for a name, for people who look on. Nobody needs it to be found.
async fn called<A: Registered>(system: &System, role: &str, actor: Ref<A>) {
    if let Err(error) = system.register(role, actor).await {
        tracing::warn!(role, %error, "an actor has no name");
    }
}
