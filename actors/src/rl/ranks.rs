//! Roles whose models several ranks share: the trainer's policy, critics, the reference, and the reward model.
//!
//! ```text
//!  Trainer ── batch, signals ──> ModelRank 0 .. n - 1      children of the trainer, in processes of their own
//!     |  <──── loss, means ─────   |  passes, gradients, updates over their groups
//!     |  <──── parcels ─────────   |  each number of the model from one rank that has it
//!  Source, weights as one model
//! ```
//!
//! The role's actor asks all of its ranks at once, and each takes its run of the batch, its part of the model. Batches,
//! signals and weights lie in blobs. When a rank is lost the role fails, and its next life makes all ranks anew, which
//! load the checkpoint: a role with ranks is lost and comes back as one without. Where no node has room for them it
//! waits.

pub mod rank;

use std::path::Path;

use futures::future::{FutureExt, try_join_all};
use odeon::HandledBy;
use odeon::serde::{Deserialize, Serialize};
use odeon::{Actor, Blob, Blobs, Context, Failure, Group, Needs, Ref, Restart};
use odeon_algorithms::train::Sharing;
use odeon_algorithms::weights::StoredType;
use odeon_diagnosis::ladder::LadderPolicy;

use self::rank::{
    Examine, ModelRank, ModelRankArgs, Publish, RankHeld, RankLearn, RankParcel, RankRate,
    RankRead, RankRestore, RankSave, RankTell, RankedRole, Reach, Train, WarmUp,
};
use super::referee::wait;
use crate::engine::compute::checkpoint::{forget_after, newest_step};
use crate::engine::compute::parcels::Parcels;
use crate::engine::compute::{
    self, ComputeSpec, Device, PairModel, Precision, RankPlace, write_whole,
};
use crate::engine::{
    EngineSpec, EvalStats, Progress, RewardModelSpec, RunState, ScoreEngine, Signals, StepStats,
    TrainEngine,
};
use crate::packed::{Packed, PackedBatch};
use crate::ranks::asking::{LONG, agreed, answers};
use crate::ranks::board::RecoveryBoard;
use crate::ranks::desk::{OpenBoard, RecoveryDesk, board_of};
use crate::ranks::meeting::{Begun, begin};
use crate::ranks::mesh;
use crate::ranks::places::{near, refused, talks};
use crate::ranks::recovery::{Recovery, record_order};
use crate::ranks::trained::RankTrained;
use crate::room::WaitForRoom;
use crate::trajectory::{Batch, Version};

/// The ranks that a role's model is shared by.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(crate = "odeon::serde")]
pub struct RanksPlan {
    /// The way in which they share it.
    pub sharing: Sharing,
    /// Resources that each of them reserves on its node.
    pub needs: Needs,
    /// The response to one that holds up the others. With its process the role ends, which begins anew with nothing
    /// tried.
    pub recovery: LadderPolicy,
}

impl RanksPlan {
    /// The name of a rank of a role.
    #[must_use]
    pub fn name_of(role: &str, rank: usize) -> String {
        format!("{role}-rank-{rank}")
    }

    /// The role and the number of a rank of that name; a rank of pretraining has no role.
    #[must_use]
    pub fn rank_of(name: &str) -> Option<(&str, usize)> {
        let (role, rank) = match name.strip_prefix("rank-") {
            Some(rank) => ("", rank),
            None => name.rsplit_once("-rank-")?,
        };
        Some((role, rank.parse().ok()?))
    }
}

/// Ranks of a role, which are there.
#[derive(Debug)]
struct Ranks {
    group: Group<ModelRank>,
    /// Their seats, unless who made them keeps these.
    _begun: Option<Begun>,
    blobs: Blobs,
}

impl Ranks {
    /// Makes the ranks of a role as children of an actor, and has them take their seats. Their checkpoints are in a
    /// folder that all of them see.
    async fn start<A: Actor>(
        (plan, spec): (&RanksPlan, &ComputeSpec),
        (role, name, reward): (RankedRole, &str, Option<&RewardModelSpec>),
        checkpoint: &Path,
        waiting: impl Fn(&str),
        cx: &Context<A>,
    ) -> Result<(Self, Option<Parcels>), Failure> {
        let sharing = plan.sharing;
        let args = |rank: usize| ModelRankArgs {
            role,
            name: RanksPlan::name_of(name, rank),
            spec: spec.clone(),
            place: RankPlace { sharing, rank },
            checkpoint: checkpoint.to_owned(),
            reward: reward.cloned(),
        };
        let (shape, talks) = (mesh(sharing)?, talks(sharing));
        let spawn = |needs: Needs| {
            let group = cx.spawn_group::<ModelRank>(shape.clone(), |rank| args(rank.index()));
            // One that came back by itself would be asked as if it had the others' weights.
            let group = group.restart(Restart::Temporary).isolated();
            near(group.needs(|_| needs.clone()), sharing, talks.clone())
        };
        let group = match cx.incarnation() > 1 && !plan.needs.is_empty() {
            true => {
                let tell = |why: &str| {
                    tracing::warn!(role = name, why, "its ranks wait for room");
                    waiting(why);
                };
                let spawn = |needs| spawn(needs).returning().into_future();
                WaitForRoom::new(plan.needs.clone())
                    .place(spawn, tell)
                    .await
            }
            false => spawn(plan.needs.clone()).await,
        };
        let group = group.map_err(|error| refused(&error))?;
        let begun = begin(&group, sharing, checkpoint).await?;
        let parcels = match role {
            RankedRole::Policy => Some(Parcels::of(&begun.held, spec.weights)?),
            RankedRole::Critic | RankedRole::Reference | RankedRole::Reward => None,
        };
        if let Some(parcels) = &parcels {
            let boxes = parcels.boxes.iter().cloned().map(RankParcel).collect();
            let told = group.scatter::<RankParcel>(boxes).timeout(LONG).await;
            told.map_err(Failure::error)?;
        }
        look_on(&group, plan, name, cx).await?;
        let ranks = Self {
            group,
            _begun: Some(begun),
            blobs: cx.blobs(),
        };
        Ok((ranks, parcels))
    }

    /// Asks all of them, and waits for their answers.
    fn ask<M, T>(&self, message: M) -> Result<Vec<T>, Failure>
    where
        M: HandledBy<ModelRank, Reply = Result<T, Failure>> + Clone + Unpin,
        T: Unpin,
    {
        let asked = self.group.gather(message).timeout(LONG);
        wait(async { answers(asked.await) })
    }

    fn members(&self) -> Vec<Ref<ModelRank>> {
        self.group.members().to_vec()
    }

    /// Has all of them load the newest checkpoint of a folder, which is chosen here: one that looked by itself might see
    /// another than the rest.
    fn restore(&self, folder: &Path) -> Result<Option<(Progress, Option<RunState>)>, Failure> {
        agreed(self.ask(RankRestore(newest_step(folder)?))?)
    }

    /// One number for each response token of a batch: its runs, one behind the other.
    fn rate(&self, batch: &Batch) -> Result<Vec<Vec<f32>>, Failure> {
        let told = self.ask(RankRate(PackedBatch::pack(&self.blobs, batch)?))?;
        wait(async {
            let mut all = vec![];
            for run in told.iter().flatten() {
                all.extend(run.unpack().await?);
            }
            Ok(all)
        })
    }
}

/// Looks at ranks as long as the actor lives that has made them, and has a desk where people order something about them.
async fn look_on<A: Actor>(
    group: &Group<ModelRank>,
    plan: &RanksPlan,
    role: &str,
    cx: &Context<A>,
) -> Result<(), Failure> {
    let new = || RecoveryBoard::new((cx.admin(), role), plan.recovery.clone(), None);
    let (board, orders) = board_of(cx.me().id(), new);
    let open = OpenBoard::new(board.clone());
    let desk = cx.spawn::<RecoveryDesk>(open.of_role(role)).await;
    desk.map_err(Failure::error)?;
    let mut recovery = Recovery::new(board.clone(), plan.recovery.patience);
    let watched = group.clone();
    cx.spawn_task(async move {
        let never = std::future::pending::<Result<(), Failure>>();
        let excused = |_| futures::future::ready(false).boxed();
        // The role hears of the end of a rank, and says why it ended.
        let looking = recovery.beside(&watched, excused, |_| (), never);
        let ended = orders.beside(|acted| record_order(&board, &acted), looking);
        if let Err(failure) = ended.await {
            tracing::warn!(%failure, "ranks are not looked at any more");
        }
        drop(open);
    });
    Ok(())
}

/// The policy's trainer where several ranks share the model.
#[derive(Debug)]
pub(super) struct RankedTrainer {
    ranks: Ranks,
    parcels: Parcels,
}

impl RankedTrainer {
    /// Makes the ranks as children of an actor, with the first weights. Where they wait for room that others had and
    /// lost, it is told why.
    ///
    /// # Errors
    /// A rank does not start, or they cannot share the model.
    pub(super) async fn start<A: Actor>(
        (plan, engine): (&RanksPlan, &EngineSpec),
        checkpoint: &Path,
        waiting: impl Fn(&str),
        cx: &Context<A>,
    ) -> Result<Self, Failure> {
        let spec = computed(engine)?;
        let role = (RankedRole::Policy, "trainer", None);
        let (ranks, parcels) = Ranks::start((plan, spec), role, checkpoint, waiting, cx).await?;
        let parcels =
            parcels.ok_or_else(|| Failure::error("no rank has anything of the policy"))?;
        Ok(Self { ranks, parcels })
    }

    /// The ranks.
    pub(super) fn members(&self) -> Vec<Ref<ModelRank>> {
        self.ranks.members()
    }

    /// Brings the weights together in room for all of them.
    fn gather(&self, out: &mut [u8]) -> Result<(), Failure> {
        if out.len() != self.parcels.bytes {
            return Err(Failure::error("the room for the weights has another size"));
        }
        let sent = self.ranks.ask(Publish)?;
        wait(async {
            let views = try_join_all(sent.iter().map(Blob::open)).await;
            for (rank, view) in views.map_err(Failure::error)?.iter().enumerate() {
                self.parcels.put(rank, view, out)?;
            }
            Ok(())
        })
    }
}

impl TrainEngine for RankedTrainer {
    fn warm_up(&mut self, step: u64) -> Result<StepStats, Failure> {
        Ok(RankTrained::of_all(&self.ranks.ask(WarmUp(step))?))
    }

    fn train(&mut self, batch: &Batch, signals: &Signals) -> Result<StepStats, Failure> {
        let blobs = &self.ranks.blobs;
        let train = Train {
            batch: PackedBatch::pack(blobs, batch)?,
            reference: Packed::pack(blobs, &signals.reference)?,
            advantages: Packed::pack(blobs, &signals.advantages)?,
        };
        Ok(RankTrained::of_all(&self.ranks.ask(train)?))
    }

    fn evaluate(&mut self, problems: usize) -> Result<EvalStats, Failure> {
        let writer = self.ranks.blobs.writer(self.parcels.bytes);
        let mut writer = writer.map_err(Failure::error)?;
        self.gather(&mut writer)?;
        let examine = Examine {
            weights: writer.seal(),
            problems: problems as u64,
        };
        // One answers for all.
        let first = self.ranks.group.members()[0];
        wait(async {
            let answered = first.ask(examine).timeout(LONG).await;
            answered.map_err(Failure::error)?
        })
    }

    fn reachable_flops(&self) -> Option<f64> {
        let reached = self.ranks.ask(Reach).ok()?;
        Some(reached.iter().sum())
    }

    fn weight_bytes(&self) -> usize {
        self.parcels.bytes
    }

    fn write_weights(&mut self, out: &mut [u8]) -> Result<(), Failure> {
        self.gather(out)
    }

    fn save(&mut self, _folder: &Path, progress: &Progress, run: &RunState) -> Result<(), Failure> {
        let save = RankSave {
            progress: *progress,
            run: Some(run.clone()),
        };
        self.ranks.ask(save).map(drop)
    }

    fn restore(&mut self, folder: &Path) -> Result<Option<(Progress, RunState)>, Failure> {
        let Some((progress, run)) = self.ranks.restore(folder)? else {
            return Ok(None);
        };
        let lacks = || {
            let folder = folder.display();
            Failure::error(format!("the checkpoint in {folder} has no state of a run"))
        };
        Ok(Some((progress, run.ok_or_else(lacks)?)))
    }
}

/// A critic or a reference whose model several ranks share.
#[derive(Debug)]
pub(super) struct RankedScores {
    ranks: Ranks,
}

impl RankedScores {
    /// Makes the ranks of a role as children of an actor. The folder is that of a critic's checkpoints; a reference has
    /// none, and any folder that all of its ranks see.
    ///
    /// # Errors
    /// A rank does not start.
    pub(super) async fn start<A: Actor>(
        (plan, engine): (&RanksPlan, &EngineSpec),
        (role, name): (RankedRole, &str),
        checkpoint: &Path,
        cx: &Context<A>,
    ) -> Result<Self, Failure> {
        let spec = computed(engine)?;
        let role = (role, name, None);
        let (ranks, _) = Ranks::start((plan, spec), role, checkpoint, |_| (), cx).await?;
        Ok(Self { ranks })
    }

    /// The ranks.
    pub(super) fn members(&self) -> Vec<Ref<ModelRank>> {
        self.ranks.members()
    }
}

impl ScoreEngine for RankedScores {
    fn score(&mut self, batch: &Batch) -> Result<Vec<Vec<f32>>, Failure> {
        self.ranks.rate(batch)
    }

    fn learn(&mut self, batch: &Batch, returns: &[Vec<f32>]) -> Result<f64, Failure> {
        let blobs = &self.ranks.blobs;
        let learn = RankLearn {
            batch: PackedBatch::pack(blobs, batch)?,
            returns: Packed::pack(blobs, returns)?,
        };
        // All have the loss of all.
        let told = self.ranks.ask(learn)?.into_iter().next();
        told.ok_or_else(|| Failure::error("no rank has learnt"))
    }

    fn save(&mut self, _folder: &Path, learnt: Version) -> Result<(), Failure> {
        let progress = Progress {
            warmup: 0,
            version: learnt,
        };
        let save = RankSave {
            progress,
            run: None,
        };
        self.ranks.ask(save).map(drop)
    }

    fn restore(
        &mut self,
        folder: &Path,
        at_most: Option<Version>,
    ) -> Result<Option<Version>, Failure> {
        if let Some(at_most) = at_most {
            forget_after(folder, at_most)?;
        }
        let restored = self.ranks.restore(folder)?;
        Ok(restored.map(|(progress, _)| progress.version))
    }
}

/// A reward model that several ranks share.
#[derive(Debug)]
pub(crate) struct RankedPairs {
    ranks: Ranks,
    spec: ComputeSpec,
}

impl RankedPairs {
    /// Makes its ranks as children of an actor. The folder is one that all of them see.
    ///
    /// # Errors
    /// A rank does not start.
    pub(super) async fn start<A: Actor>(
        (plan, engine): (&RanksPlan, &EngineSpec),
        reward: &RewardModelSpec,
        folder: &Path,
        cx: &Context<A>,
    ) -> Result<Self, Failure> {
        let spec = computed(engine)?.clone();
        let role = (RankedRole::Reward, "reward-model", Some(reward));
        let (ranks, _) = Ranks::start((plan, &spec), role, folder, |_| (), cx).await?;
        Ok(Self { ranks, spec })
    }

    /// One over ranks that have begun, as long as who made them keeps their seats.
    pub(crate) const fn over(group: Group<ModelRank>, spec: ComputeSpec, blobs: Blobs) -> Self {
        let ranks = Ranks {
            group,
            _begun: None,
            blobs,
        };
        Self { ranks, spec }
    }

    /// The ranks.
    pub(super) fn members(&self) -> Vec<Ref<ModelRank>> {
        self.ranks.members()
    }

    /// The engine over them. Who makes pairs and likeliest replies here does so on a processor: devices are those of ranks.
    pub(crate) fn engine(self, reward: &RewardModelSpec) -> compute::RewardModel {
        let mut own = self.spec.clone();
        if own.device != Device::Cpu {
            (own.device, own.products, own.share) = (Device::Cpu, Precision::F32, None);
        }
        compute::RewardModel::over(&own, reward, Box::new(self))
    }
}

impl PairModel for RankedPairs {
    fn learn(&mut self, pairs: &Batch) -> Result<f64, Failure> {
        let blobs = &self.ranks.blobs;
        let learn = RankLearn {
            batch: PackedBatch::pack(blobs, pairs)?,
            returns: Packed::pack(blobs, &[])?,
        };
        // All have the loss of all.
        let told = self.ranks.ask(learn)?.into_iter().next();
        told.ok_or_else(|| Failure::error("no rank has learnt"))
    }

    fn write(&mut self, folder: &Path) -> Result<(), Failure> {
        let parcels = Parcels::of(&self.ranks.ask(RankHeld)?, StoredType::F32)?;
        let mut all = vec![0; parcels.bytes];
        let tells = parcels.boxes.iter().cloned().map(RankTell).collect();
        wait(async {
            let asked = self.ranks.group.scatter::<RankTell>(tells).timeout(LONG);
            let sent = answers(asked.await)?;
            for (rank, blob) in sent.iter().enumerate() {
                let parcel = blob.open().await.map_err(Failure::error)?;
                parcels.put(rank, &parcel, &mut all)?;
            }
            Ok::<_, Failure>(())
        })?;
        let numbers = all.as_chunks::<4>().0.iter();
        let flat: Vec<f32> = numbers.map(|bytes| f32::from_le_bytes(*bytes)).collect();
        write_whole(folder, &flat, &self.spec)
    }

    fn read(&mut self, folder: &Path) -> Result<(), Failure> {
        self.ranks.ask(RankRead(folder.to_owned())).map(drop)
    }

    fn scores(&mut self, batch: &Batch) -> Result<Vec<f32>, Failure> {
        Ok(self.ranks.rate(batch)?.concat())
    }
}

/// The settings of an engine that computes: others have no model to share.
fn computed(engine: &EngineSpec) -> Result<&ComputeSpec, Failure> {
    match engine {
        EngineSpec::Compute(spec) => Ok(spec),
        EngineSpec::Served(spec) => Ok(&spec.compute),
        EngineSpec::Scripted(_) | EngineSpec::Modelled(_) => {
            Err(Failure::error("an engine without a model is shared by no ranks").fatal())
        }
    }
}
