//! A pretraining run, step by step, from its checkpoint on.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::future::{FutureExt, join, join_all};
use odeon::{AskError, Clock, Failure, FailureKind, Group, Ref, System, Timestamp, telemetry};
use odeon_algorithms::train::Sharing;
use odeon_data::plane::{DataPlan, DataPlane, SourceChange, SourceLeftOut, json_blob};
use odeon_diagnosis::Detector;
use odeon_diagnosis::ladder::{OrderedAction, RankFault};
use odeon_diagnosis::run::{RunEvent, Watch};
use parking_lot::Mutex;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::batches::AwaitedBatches;
use super::before::{Before, End, Unbegun};
use super::checkpoint::{newest, storage};
use super::gradients::Gradients;
use super::meshes::{data_mesh, of_ranks};
use super::plan::PretrainPlan;
use super::rank::{
    Join, Origin, Present, PretrainRank, RankArgs, Rate, Restore, Restored, Save, Settle, Settled,
    SourcePart, Trained,
};
use super::report::{Report, of_step};
use super::seats::Seating;
use super::standbys::Standbys;
use crate::going_on::GoingOn;
use crate::ranks::asking::{LONG, agreed, answers};
use crate::ranks::board::{Acted, RecoveryBoard};
use crate::ranks::desk::{OpenBoard, RecoveryDesk};
use crate::ranks::recovery::{FaultAtWork, Recovery, record_order};
use crate::ranks::{Formed, Mark, mesh};

/// Between a run and who started it.
#[derive(Debug)]
pub struct Desk {
    /// Channel for the reports of the run. Nobody has to listen.
    pub reports: UnboundedSender<Report>,
    /// The processes of the run, while they live: name, actor, and process where that is another.
    pub members: watch::Sender<Vec<Member>>,
    /// Turns true when the run is to save after the step under way, and do no more.
    pub halt: watch::Receiver<bool>,
    /// Number of ranks that there should be, where that changes while the run goes on.
    pub ranks: watch::Receiver<Option<u32>>,
}

/// An actor of a run: its name, itself and its process, where that is another.
pub use crate::hybrid::Member;

/// Steps between two looks at what loaders give.
const TEND_EVERY: u64 = 5;

/// Runs a plan to its end, or until it is asked to halt. Answers the steps that are done.
///
/// # Errors
/// The data cannot be had, a step not be computed or saved, or ranks are lost too often.
#[odeon::boxed]
pub async fn run(system: &System, plan: &PretrainPlan, desk: Desk) -> Result<u64, Failure> {
    let moves = (!plan.needs.is_empty()).then(|| system.clone());
    let (board, orders) =
        RecoveryBoard::new((system.admin().clone(), ""), plan.recovery.clone(), moves);
    let standbys = Standbys::new(system, plan, &board, &desk)?;
    // Before anybody can order anything.
    let mut recovery = Recovery::new(board.clone(), plan.recovery.patience);
    recovery.go_on_after(&plan.avoided, &plan.forbidden);
    let open = OpenBoard::new(board.clone());
    let hand = system
        .spawn::<RecoveryDesk>(open.of_role(""))
        .await
        .map_err(Failure::error)?;
    let reports = desk.reports.clone();
    let tell = |acted: Acted| {
        record_order(&board, &acted);
        // A run goes on when nobody listens.
        drop(reports.send(Report::of_recovery(acted)));
    };
    let lives = Box::pin(async {
        let watched = (&board, recovery);
        let ended = all_lives(system, plan, desk, watched, &standbys).await;
        standbys.close();
        ended
    });
    let both = async { join(lives, standbys.keep()).await.0 };
    let ended = orders.beside(tell, both).await;
    drop(hand.stop().await);
    ended
}

/// One life of the ranks behind the other, up to the end of the run.
async fn all_lives(
    system: &System,
    plan: &PretrainPlan,
    mut desk: Desk,
    (board, mut recovery): (&RecoveryBoard, Recovery),
    standbys: &Standbys<'_>,
) -> Result<u64, Failure> {
    let wanted = *desk.ranks.borrow_and_update();
    let mut sharing = wanted.map_or(plan.sharing, |ranks| of_ranks(plan.sharing, ranks));
    let storage = storage(&plan.checkpoint)?;
    let newest = newest(&storage, plan.train.optimizer).await?;
    let goes_on = newest.as_ref().map_or(0, |(steps, _)| *steps);
    let data = DataPlan {
        state: newest.map(|(_, state)| state),
        mesh: data_mesh(sharing)?,
        ..plan.data.clone()
    };
    let mut plane = DataPlane::start(system, data)
        .await
        .map_err(Failure::error)?;
    for (source, change) in plane.changes() {
        let (steps, source) = (goes_on, source.to_owned());
        let report = match change.clone() {
            SourceChange::Grown(what) => Report::Grown {
                steps,
                source,
                what,
            },
            SourceChange::Other(what) => Report::Changed {
                steps,
                source,
                what,
            },
        };
        // A run goes on when nobody listens.
        let _ = desk.reports.send(report);
    }
    let held_out = match &plan.held_out {
        Some(held_out) => {
            let data = DataPlan {
                mesh: data_mesh(Sharing::ALONE)?,
                // So that nothing is held out that was learnt from.
                earlier: plane.earlier(),
                ..held_out.data.clone()
            };
            let plane = DataPlane::start(system, data).await;
            Some(plane.map_err(Failure::error)?)
        }
        None => None,
    };
    let (mut lives, mut placed) = (0, false);
    let mut before = Before::default();
    let mut durable = None;
    let mut watch = plan.watch.clone();
    let mut going_on = GoingOn::default();
    let mut gradients = Gradients::new(plan.gradients.clone());
    let ended = loop {
        lives += 1;
        let unseen = watch.clone();
        let run = RunParts {
            system,
            plan,
            desk: &desk,
            plane: &mut plane,
            held_out: held_out.as_ref(),
            board,
            standbys,
            watch: &mut watch,
            going_on: &mut going_on,
            gradients: &mut gradients,
        };
        let last = Before {
            lives: lives - 1,
            placed,
            ..std::mem::take(&mut before)
        };
        // A run goes on when nobody listens.
        let tell = |acted| drop(desk.reports.send(Report::of_recovery(acted)));
        let life = Life::start(run, sharing, last, &mut recovery);
        let mut life = match life.await {
            Ok(life) => life,
            // Nothing is done beyond the last checkpoint.
            Err(_) if *desk.halt.borrow() => {
                let steps = durable.unwrap_or(goes_on);
                let _ = desk.reports.send(Report::Halted { steps });
                break Ok(steps);
            }
            Err(unbegun) if unbegun.is_final(placed) => break Err(unbegun.failure),
            Err(Unbegun { failure, lost }) => {
                tracing::warn!(%failure, "ranks have not begun");
                let fault = FaultAtWork::of_lost(lost.into_iter(), &failure);
                before.lost = true;
                match recovery.leave(&mut before.members, fault, tell).await {
                    Ok(()) => continue,
                    Err(failure) => break Err(failure),
                }
            }
        };
        placed = true;
        let group = life.group.clone();
        let (batches, ranks) = (life.batches.clone(), desk.ranks.clone());
        let excused = |rank| batches.clone().awaited_by(rank).boxed();
        let ended = recovery.beside(&group, excused, tell, life.drive(ranks));
        let ended = ended.await;
        let (steps, saved, fault) = (life.steps, life.saved, life.fault.take());
        durable = saved.or(durable);
        match ended {
            Ok(End::Done) => {
                life.stop().await;
                break Ok(steps);
            }
            Ok(End::Resized(others)) => {
                life.stop().await;
                sharing = others;
                let others = async {
                    plane
                        .remesh(data_mesh(others)?, steps)
                        .await
                        .map_err(Failure::error)
                };
                if let Err(failure) = others.await {
                    break Err(failure);
                }
                desk.ranks.borrow_and_update();
            }
            Err(failure) if failure.kind != FailureKind::Fatal => {
                tracing::warn!(%failure, "all ranks go back, to the checkpoint");
                before = life.lost().await;
                if fault.is_some() {
                    // Where the same comes again it is to be seen again.
                    watch = unseen;
                }
                let left = &mut before.members;
                let lost = (0..sharing.ranks()).filter(|rank| !left.contains_key(rank));
                let fault = fault.unwrap_or_else(|| FaultAtWork::of_lost(lost, &failure));
                if let Err(failure) = recovery.leave(left, fault, tell).await {
                    break Err(failure);
                }
            }
            Err(failure) => {
                life.stop().await;
                break Err(failure);
            }
        }
    };
    recovery.over();
    plane.stop().await;
    if let Some(held_out) = held_out {
        held_out.stop().await;
    }
    ended
}

/// Parts of a run that outlive its ranks.
struct RunParts<'a> {
    system: &'a System,
    plan: &'a PretrainPlan,
    desk: &'a Desk,
    plane: &'a mut DataPlane,
    held_out: Option<&'a DataPlane>,
    board: &'a RecoveryBoard,
    standbys: &'a Standbys<'a>,
    watch: &'a mut Watch,
    going_on: &'a mut GoingOn,
    gradients: &'a mut Gradients,
}

/// The ranks, from their start to their end.
struct Life<'a> {
    run: RunParts<'a>,
    sharing: Sharing,
    group: Group<PretrainRank>,
    /// Ranks can talk to each other while this is there.
    formed: Formed,
    /// A fault that ranks have shown in their work, for which they go back.
    fault: Option<FaultAtWork>,
    /// The batches that its ranks wait for.
    batches: AwaitedBatches,
    /// Steps that are done.
    steps: u64,
    /// Steps of the last checkpoint that is durable.
    saved: Option<u64>,
    /// The checkpoint that is on its way.
    saving: Option<JoinHandle<Result<Report, Failure>>>,
    /// When a step began whose passes were recorded as spans, the last time.
    passes_told: Timestamp,
}

/// From a step of a pipeline whose passes are recorded as spans to the next: those of all steps would take the place of
/// all other spans.
const PASSES_EVERY: Duration = Duration::from_secs(2);

impl<'a> Life<'a> {
    async fn start(
        run: RunParts<'a>,
        sharing: Sharing,
        before: Before,
        recovery: &mut Recovery,
    ) -> Result<Self, Unbegun> {
        let RunParts { system, plan, .. } = run;
        let args = plan.rank_args(sharing);
        let of = |rank: usize| RankArgs {
            rank: rank as u32,
            ..args.clone()
        };
        let shape = mesh(sharing)?;
        let mut left = before.members.clone();
        run.standbys.follow(sharing);
        if before.lost {
            left.extend(run.standbys.take(&before.members, sharing, recovery).await);
        }
        let seating = Seating {
            system,
            needs: &plan.needs,
            patience: plan.recovery.patience,
            recovery: Mutex::new(&mut *recovery),
            reports: &run.desk.reports,
            sharing,
            left: &left,
            waits: before.placed,
        };
        let waiting = |why: &str| {
            run.standbys.give_way();
            // A run goes on when nobody listens.
            let _ = run.desk.reports.send(Report::Waiting {
                steps: before.saved.unwrap_or_default(),
                why: why.to_owned(),
            });
        };
        let mut halt = run.desk.halt.clone();
        let halted = async { halt.wait_for(|halt| *halt).await.is_ok() };
        let group = tokio::select! {
            group = seating.seated(shape, of, waiting) => group?,
            true = halted => return Err(halted_beside(&left).await.into()),
        };
        recovery.seated(&group).await;
        let new = |rank: &usize| !before.members.contains_key(rank);
        let named = group.members().iter().enumerate();
        for (rank, member) in named.filter(|(rank, _)| new(rank)) {
            let name = format!("rank-{rank}");
            // For people who look on. Nobody needs it to be found.
            if let Err(error) = system.register(&name, *member).await {
                tracing::warn!(name, %error, "a rank has no name");
            }
        }
        let formed = match Formed::of(&group, sharing).await {
            Ok(formed) => formed,
            Err(failure) => return Err(given_up(&group, failure).await),
        };
        let mut begun = Self {
            run,
            sharing,
            group,
            formed,
            fault: None,
            batches: AwaitedBatches::default(),
            steps: 0,
            saved: before.saved,
            saving: None,
            passes_told: Timestamp::default(),
        };
        match begun.begin(before.lives + 1, before.since).await {
            Ok(()) => Ok(begun),
            Err(failure) => {
                if let Some(saving) = begun.saving.take() {
                    saving.abort();
                }
                Err(given_up(&begun.group, failure).await)
            }
        }
    }

    /// Seats the ranks and has them load the newest checkpoint.
    async fn begin(&mut self, life: u32, since: Option<Timestamp>) -> Result<(), Failure> {
        self.tell_members();
        let joins = self.formed.seats.iter().cloned().map(Join).collect();
        let joined = answers(self.group.scatter::<Join>(joins).timeout(LONG).await)?;
        self.batches = AwaitedBatches::of(&joined);
        let mark = Mark::set(&self.run.plan.checkpoint)?;
        let restore = Restore {
            life,
            joined,
            supply: self.run.plane.supply(),
            mark: mark.name(),
        };
        let restored = answers(self.group.gather(restore).timeout(LONG).await)?;
        let Restored { steps, from } = agreed(restored)?;
        self.steps = steps;
        self.run.gradients.back_to(steps);
        match from {
            Origin::Start => {}
            Origin::Storage => self.saved = Some(steps),
            // Of what was lost there is one copy left: another may be lost when there are two.
            Origin::Memory => {
                self.snapshot(false).await?;
                answers(self.group.gather(Settle).timeout(LONG).await)?;
            }
        }
        self.report(Report::Resumed {
            life,
            steps,
            ranks: self.sharing.ranks() as u32,
            from,
            seconds: since.map(|since| Clock::now().since(since).as_secs_f64()),
        });
        Ok(())
    }

    /// Says who takes part.
    fn tell_members(&self) {
        let members = self.group.members().iter().enumerate();
        let mut all: Vec<Member> = members
            .map(|(rank, member)| {
                let process = self.run.system.admin().process_of(*member);
                (format!("rank-{rank}"), member.id(), process)
            })
            .collect();
        all.extend(self.run.plane.roles());
        all.extend(self.run.standbys.members());
        self.run.desk.members.send_replace(all);
    }

    /// Has loaders follow what the mixture asks for.
    async fn tend(&mut self) -> Result<(), Failure> {
        let rescaled = self.run.plane.tend().await.map_err(Failure::error)?;
        if rescaled.is_empty() {
            return Ok(());
        }
        self.tell_members();
        for source in rescaled {
            self.report(Report::Rescaled {
                steps: self.steps,
                source: source.source,
                loaders: source.loaders.len() as u32,
            });
        }
        Ok(())
    }

    /// All steps that are left.
    async fn drive(&mut self, mut ranks: watch::Receiver<Option<u32>>) -> Result<End, Failure> {
        let plan = self.run.plan;
        self.tell_left_out(false).await;
        if plan.checkpoint_first && self.steps == 0 {
            self.save().await?;
        }
        self.evaluate().await?;
        while self.steps < plan.steps {
            let stepped = self.step().await;
            self.tell_left_out(stepped.is_err()).await;
            stepped?;
            if self.steps.is_multiple_of(TEND_EVERY) {
                self.tend().await?;
            }
            let due = self.steps.is_multiple_of(plan.checkpoint_every);
            if due || self.steps == plan.steps {
                self.save().await?;
            } else if plan.memory_every > 0 && self.steps.is_multiple_of(plan.memory_every) {
                self.copy().await?;
            }
            self.evaluate().await?;
            if *self.run.desk.halt.borrow() && self.steps < plan.steps {
                self.save().await?;
                self.settle().await?;
                self.tell_left_out(true).await;
                self.report(Report::Halted { steps: self.steps });
                return Ok(End::Done);
            }
            let wanted = *ranks.borrow_and_update();
            let wanted = wanted.map_or(self.sharing, |ranks| of_ranks(self.sharing, ranks));
            if wanted != self.sharing && self.steps < plan.steps {
                self.save().await?;
                self.settle().await?;
                return Ok(End::Resized(wanted));
            }
        }
        self.settle().await?;
        self.tell_left_out(true).await;
        self.report(Report::Finished { steps: self.steps });
        Ok(End::Done)
    }

    /// Says what was left out of sources, where it is much more than before or all is over.
    async fn tell_left_out(&mut self, at_end: bool) {
        for SourceLeftOut { source, left_out } in self.run.plane.left_out_news(at_end).await {
            self.report(Report::LeftOut {
                steps: self.steps,
                source,
                files: left_out.files,
                others: left_out.others,
                records: left_out.records,
                bad: left_out.bad,
                first: left_out.first.iter().map(ToString::to_string).collect(),
            });
        }
    }

    async fn step(&mut self) -> Result<(), Failure> {
        let begun = Clock::now();
        let step = self.steps;
        self.batches.begin(step);
        let spans = self.sharing.stages > 1 && begun.since(self.passes_told) >= PASSES_EVERY;
        if spans {
            self.passes_told = begun;
        }
        let train = self.run.gradients.order(step, spans);
        let span = telemetry::span("train step").with("step", step + 1);
        let asked = self.group.gather(train).timeout(LONG);
        let parts = answers(span.around(asked.into_future()).await);
        match &parts {
            Ok(_) => span.end(),
            Err(_) => span.fail(),
        }
        let parts = parts?;
        self.steps += 1;
        self.run.board.with(|state| state.ladder.came_to_work());
        let seconds = Clock::now().since(begun).as_secs_f64();
        let names = &self.run.plan.data.sources;
        self.report(Report::Step(of_step(
            self.steps,
            &parts,
            self.sharing,
            seconds,
            |source| names[usize::from(source)].name.clone(),
        )));
        let losses = parts.iter().map(|part| part.own_loss).collect();
        let repeated = self.run.gradients.note(&train, &parts);
        let seen = repeated.map(RunEvent::Repeated);
        for event in seen.into_iter().chain([RunEvent::Losses(losses)]) {
            let found = self.run.watch.observe(&event, self.steps);
            self.run.going_on.record(self.run.watch, self.steps);
            for found in found {
                let fault = FaultAtWork::of_losses(&found);
                let why = found.cause.sentence.clone();
                self.report(Report::Finding {
                    step: self.steps,
                    rule: found.cause.rule.to_owned(),
                    ranks: found.who,
                    why: found.cause.sentence,
                    evidence: found.cause.evidence,
                });
                // Of a gradient alone the weights are as they were, and the step was computed once more.
                let is_of_loss = matches!(event, RunEvent::Losses(_));
                if is_of_loss && self.run.plan.recovery.acts.contains(&RankFault::NotFinite) {
                    if let Some(forbidden) = self.run.board.forbids(OrderedAction::EndProcess) {
                        let why = format!("{why}; nothing is done: {forbidden}");
                        let told = Acted::told(fault.ranks, why);
                        self.run.board.note(&told);
                        self.report(Report::of_recovery(told));
                        continue;
                    }
                    self.fault = Some(fault);
                    return Err(Failure::error(why));
                }
            }
        }
        self.run.gradients.check()
    }

    /// Has a checkpoint made of where the run is, while it goes on.
    async fn save(&mut self) -> Result<(), Failure> {
        if self.saved == Some(self.steps) {
            return Ok(());
        }
        self.settle().await?;
        let blocked_seconds = self.snapshot(true).await?;
        let (group, steps) = (self.group.clone(), self.steps);
        self.saving = Some(tokio::spawn(async move {
            let saved = answers(group.gather(Settle).timeout(LONG).await)?;
            let bytes = saved.iter().map(|part| part.bytes).sum();
            let first = saved.into_iter().next();
            let Settled { stages, .. } = first.unwrap_or_default();
            Ok(Report::Saved {
                steps,
                blocked_seconds,
                // The answer itself may wait behind a step.
                seconds: stages.iter().map(|(_, seconds)| seconds).sum(),
                bytes,
                stages,
            })
        }));
        Ok(())
    }

    /// Has ranks keep a checkpoint in their memory.
    async fn copy(&mut self) -> Result<(), Failure> {
        self.settle().await?;
        let blocked_seconds = self.snapshot(false).await?;
        self.report(Report::Copied {
            steps: self.steps,
            blocked_seconds,
        });
        Ok(())
    }

    /// Answers for how many seconds the ranks stood still.
    async fn snapshot(&mut self, durable: bool) -> Result<f64, Failure> {
        let state = self.run.plane.state_before(self.steps).await;
        let state = state.map_err(Failure::error)?;
        let save = Save {
            steps: self.steps,
            data: json_blob(self.run.system, &state)?,
            durable,
        };
        let begun = Clock::now();
        answers(self.group.gather(save).timeout(LONG).await)?;
        Ok(Clock::now().since(begun).as_secs_f64())
    }

    /// Waits for the checkpoint that is on its way.
    async fn settle(&mut self) -> Result<(), Failure> {
        let Some(saving) = self.saving.take() else {
            return Ok(());
        };
        let report = saving.await.map_err(Failure::error)??;
        if let Report::Saved { steps, .. } = report {
            self.saved = Some(steps);
            self.run.plane.commit(steps).await.map_err(Failure::error)?;
        }
        self.report(report);
        Ok(())
    }

    /// Rates what nobody learns from.
    async fn evaluate(&mut self) -> Result<(), Failure> {
        let (Some(held_out), Some(plane)) = (&self.run.plan.held_out, self.run.held_out) else {
            return Ok(());
        };
        let ends = self.steps == 0 || self.steps == self.run.plan.steps;
        if !ends && !self.steps.is_multiple_of(held_out.every.max(1)) {
            return Ok(());
        }
        let rate = Rate {
            step: 0,
            constructor: plane.supply().constructor_of(0)?,
        };
        // Those that have all of the model between them, all at once.
        let Sharing {
            context,
            tensor,
            stages,
            ..
        } = self.sharing;
        let copies = self.sharing.copies_of_shards();
        let raters = &self.group.members()[..copies * self.sharing.of_copy()];
        let rated = join_all(
            raters
                .iter()
                .map(|rater| rater.ask(rate.clone()).timeout(LONG)),
        );
        let rated: Vec<Trained> = answers(rated.await.into_iter().collect())?;
        // Those of the last stage with other rows of the samples: what tensor and expert ranks and other copies tell is the same.
        let scoring = rated.iter().skip((stages - 1) * context * tensor);
        let rated = scoring.step_by(tensor).take(context);
        let mut parts: BTreeMap<u16, SourcePart> = BTreeMap::new();
        for (source, part) in rated.flat_map(|rated| &rated.sources) {
            parts.entry(*source).or_default().add(part);
        }
        let mut all = SourcePart::default();
        parts.values().for_each(|part| all.add(part));
        let names = &held_out.data.sources;
        let sources = parts.iter().map(|(source, part)| {
            let name = names[usize::from(*source)].name.clone();
            (name, part.mean_loss())
        });
        self.report(Report::Evaluated {
            steps: self.steps,
            loss: all.mean_loss(),
            sources: sources.collect(),
        });
        Ok(())
    }

    fn report(&self, report: Report) {
        // A run goes on when nobody listens.
        let _ = self.run.desk.reports.send(report);
    }

    /// Ends the life, and looks who is left.
    async fn lost(self) -> Before {
        let since = Some(Clock::now());
        if let Some(saving) = self.saving {
            saving.abort();
        }
        let members = self.group.members().iter().enumerate();
        let asked = members.map(async |(rank, member)| {
            let present = member.ask(Present).timeout(PRESENT).await;
            if present.is_err() {
                // One that is there and hears nothing is as good as lost.
                let _ = member.stop().await;
            }
            present.is_ok().then_some((rank, *member))
        });
        Before {
            lives: 0,
            placed: true,
            lost: true,
            members: join_all(asked).await.into_iter().flatten().collect(),
            saved: self.saved,
            since,
        }
    }

    async fn stop(self) {
        if let Some(saving) = self.saving {
            saving.abort();
        }
        stop(&self.group).await;
    }
}

/// Time that a rank may take to say that it is there: what it does when another is lost ends soon.
const PRESENT: Duration = Duration::from_secs(30);

/// Time after which a rank that has not answered counts as one that is there.
const GONE: Duration = Duration::from_secs(1);

/// Ends ranks that are left where others wait for room and the run is to halt.
async fn halted_beside(left: &BTreeMap<usize, Ref<PretrainRank>>) -> Failure {
    let stopped = join_all(left.values().map(async |rank| rank.stop().await));
    // One that stands still ends with the run.
    drop(Clock::timeout(GONE, stopped).await);
    Failure::error("the run is to stop while ranks wait for room")
}

/// Ends ranks that have not begun, and notes whose processes are gone by themselves.
async fn given_up(group: &Group<PretrainRank>, failure: Failure) -> Unbegun {
    let members = group.members().iter().enumerate();
    let asked = members.map(async |(rank, member)| {
        let present = member.ask(Present).timeout(GONE).await;
        // One that loads its part answers late.
        let gone = matches!(present, Err(AskError::Dead(_) | AskError::Died(_)));
        gone.then_some(rank)
    });
    let lost = join_all(asked).await.into_iter().flatten().collect();
    stop(group).await;
    Unbegun { failure, lost }
}

pub(super) async fn stop(group: &Group<PretrainRank>) {
    if let Err(error) = group.stop().await {
        tracing::debug!(%error, "ranks were gone already");
    }
}
