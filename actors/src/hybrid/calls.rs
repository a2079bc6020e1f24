//! Calls from a program to its workers, and their division among the ranks.

use odeon::group::{Protocol, Seat, WorkerCall};
use odeon::serde::{Deserialize, Serialize};
use odeon::{Blob, Failure, Group, Shape, message};

use super::rows::{Rows, Share};
use super::weights::Published;
use crate::engine::compute::HeldModel;
use crate::engine::{EvalStats, Learnt, Progress, RunState, StepStats};
use crate::packed::Packed;
use crate::ranks::trained::RankTrained;
use crate::rl::ranks::rank::ModelRank;
use crate::trajectory::{Decode, SampleId, Trajectory};

/// The part of a batch that the ranks of a model are given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, Shape)]
#[serde(crate = "odeon::serde")]
pub enum Dealing {
    /// Rows of its own for each, which has the whole model.
    #[default]
    Rows,
    /// All of it for each, which has a part of the model and takes the run of its place.
    Whole,
}

/// A reply to make. The prompt follows from the number of its group, so it need not travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, Shape)]
#[serde(crate = "odeon::serde")]
pub struct Wanted {
    /// Which.
    pub id: SampleId,
    /// The choice of its tokens: sampled or greedy.
    pub decode: Decode,
}

/// Reward, correctness and cost of a reply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, Shape)]
#[serde(crate = "odeon::serde")]
pub struct Verdict {
    /// From 0 to 1.
    pub reward: f32,
    /// Set when the answer is right.
    pub correct: bool,
    /// The harm that it does, from 0 to 1; 0 where a run does not look for that.
    pub cost: f32,
}

/// Numbers of all tokens of replies, a row for each reply.
pub type PerToken = Rows<Vec<f32>>;

/// Take your seat: from now on the ranks train together.
#[message(reply = Result<(), Failure>, name = "worker.Join")]
#[derive(Clone, Debug)]
pub struct Join {
    /// One for each rank; a rank gets its own alone.
    pub seats: Vec<Seat>,
}

/// The ranks of your copy of a policy have these of it, in their order: from now on they bring it together to generate.
#[message(reply = Result<(), Failure>, name = "policy.Compose")]
#[derive(Clone, Debug)]
pub struct Compose(pub Packed<HeldModel>);

/// Write your parcel of the weights, of a policy that ranks share.
#[message(reply = Result<Blob, Failure>, name = "policy.Publish")]
#[derive(Clone, Copy, Debug)]
pub struct Publish;

/// These ranks share the model of a reward that is learnt. For the first of those that judge.
#[message(reply = Result<(), Failure>, name = "reward.Lend")]
#[derive(Clone, Debug)]
pub struct Lend(pub Group<ModelRank>);

/// Supervised steps, from one number to another. Ranks that have the whole policy make the same each, so none has to talk.
#[message(reply = Result<RankTrained, Failure>, name = "policy.WarmUp")]
#[derive(Clone, Debug)]
pub struct WarmUp {
    /// The first, from 1.
    pub first: u64,
    /// The last.
    pub last: u64,
    /// The part of a batch that each rank gets.
    pub dealing: Dealing,
}

/// Make these replies, in this order.
#[message(reply = Result<Rows<Trajectory>, Failure>, name = "policy.Generate")]
#[derive(Clone, Debug)]
pub struct Generate {
    /// The replies.
    pub wanted: Vec<Wanted>,
    /// The weights, where ranks share the policy.
    pub weights: Published,
}

/// Judge these replies.
#[message(reply = Result<Vec<Verdict>, Failure>, name = "reward.JudgeRows")]
#[derive(Clone, Debug)]
pub struct Judge(pub Rows<Trajectory>);

/// Rate these replies by what was learnt, where ranks share the model of that: from 0 to 1.
#[message(reply = Result<Vec<f32>, Failure>, name = "reward.RateRows")]
#[derive(Clone, Debug)]
pub struct RateRows(pub Rows<Trajectory>);

/// Learn what is better, or read what was learnt, and save it for the others.
#[message(reply = Result<Learnt, Failure>, name = "reward.Prepare")]
#[derive(Clone, Debug)]
pub struct Prepare;

/// Rate these replies: the log-probability of each token, in nats.
#[message(reply = Result<PerToken, Failure>, name = "reference.RateRows")]
#[derive(Clone, Debug)]
pub struct LogProbs {
    /// The replies.
    pub replies: Rows<Trajectory>,
    /// The part of a batch that each rank gets.
    pub dealing: Dealing,
}

/// Predict the return that is still to come at each token.
#[message(reply = Result<PerToken, Failure>, name = "critic.ValueRows")]
#[derive(Clone, Debug)]
pub struct Values {
    /// The replies.
    pub replies: Rows<Trajectory>,
    /// The part of a batch that each rank gets.
    pub dealing: Dealing,
}

/// Learn these returns. Answers the loss.
#[message(reply = Result<f64, Failure>, name = "critic.LearnRows")]
#[derive(Clone, Debug)]
pub struct Learn {
    /// The replies.
    pub replies: Rows<Trajectory>,
    /// Returns of the replies, token by token.
    pub returns: PerToken,
    /// The part of a batch that each rank gets.
    pub dealing: Dealing,
}

/// Estimate the advantages of these replies over the baseline.
#[message(reply = Result<Estimated, Failure>, name = "estimator.Estimate")]
#[derive(Clone, Debug)]
pub struct Estimate {
    /// The replies; those of a group follow each other.
    pub replies: Rows<Trajectory>,
    /// Of each reply.
    pub verdicts: Vec<Verdict>,
    /// Number of replies of a group.
    pub group_size: u32,
    /// For each group a greedy reply and what it is worth, where the baseline is that.
    pub greedy: Option<(Rows<Trajectory>, Vec<Verdict>)>,
    /// By the reference; empty without one.
    pub reference: PerToken,
    /// Expected reward; empty without a critic.
    pub values: PerToken,
    /// Expected cost, and its price now, where there is one.
    pub priced: Option<(PerToken, f32)>,
}

/// See [`Estimate`].
#[derive(Clone, Debug, Serialize, Deserialize, Shape)]
#[serde(crate = "odeon::serde")]
pub struct Estimated {
    /// Of each token.
    pub advantages: PerToken,
    /// Returns that the critic is to learn; empty without one.
    pub returns: PerToken,
    /// The same of cost.
    pub cost_returns: PerToken,
    /// The batch in numbers, for people.
    pub summary: Summary,
}

/// A batch in numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, Shape)]
#[serde(crate = "odeon::serde")]
pub struct Summary {
    /// Mean reward.
    pub reward: f64,
    /// Part that was right.
    pub accuracy: f64,
    /// Mean cost.
    pub cost: f64,
    /// Response tokens.
    pub response_tokens: u64,
    /// CRC-32 of all replies, their log-probabilities and advantages: the same for the same step.
    pub checksum: u32,
}

/// Train on this.
#[message(reply = Result<RankTrained, Failure>, name = "policy.Update")]
#[derive(Clone, Debug)]
pub struct Update {
    /// The step, from 1.
    pub step: u64,
    /// The replies.
    pub replies: Rows<Trajectory>,
    /// Of each reply.
    pub verdicts: Vec<Verdict>,
    /// Of each token.
    pub advantages: PerToken,
    /// By the reference; empty without one.
    pub reference: PerToken,
    /// The part of a batch that each rank gets.
    pub dealing: Dealing,
}

/// Answer held-out problems greedily.
#[message(reply = Result<EvalStats, Failure>, name = "policy.Evaluate")]
#[derive(Clone, Debug)]
pub struct Evaluate {
    /// Number of problems.
    pub problems: u64,
    /// The weights, where ranks share the policy.
    pub weights: Published,
}

/// Save all that is needed to go on after this step.
#[message(reply = Result<(), Failure>, name = "worker.Save")]
#[derive(Clone, Debug)]
pub struct Save {
    /// Steps that the run has done.
    pub progress: Progress,
    /// State that it needs to go on, beside the weights.
    pub run: RunState,
    /// The part of a batch that each rank gets: where that is all, each saves its part of the model.
    pub dealing: Dealing,
}

/// Go back to what was saved. Answers where that is.
#[message(reply = Result<Option<(Progress, RunState)>, Failure>, name = "worker.Restore")]
#[derive(Clone, Debug)]
pub struct Restore(pub Saved);

/// A checkpoint to go back to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, Shape)]
#[serde(crate = "odeon::serde")]
pub enum Saved {
    /// The newest, of this step or before where one is named.
    Newest(Option<Progress>),
    /// That of this step, or none, for ranks that share a model: one that looked by itself might see another than the
    /// rest.
    Step(Option<u64>),
}

/// The only answer.
fn only<T>(parts: Vec<T>) -> Result<T, Failure> {
    let count = parts.len();
    let mut parts = parts.into_iter();
    match (parts.next(), parts.next()) {
        (Some(only), None) => Ok(only),
        _ => Err(Failure::error(format!(
            "{count} answers where one was expected"
        ))),
    }
}

/// The answer of all, which they agree on.
fn agreed<T: PartialEq>(parts: Vec<T>) -> Result<T, Failure> {
    let mut parts = parts.into_iter();
    let first = parts
        .next()
        .ok_or_else(|| Failure::error("nobody answered"))?;
    if parts.all(|other| other == first) {
        Ok(first)
    } else {
        Err(Failure::error(
            "ranks that do the same came to different ends",
        ))
    }
}

/// A call that all ranks, or one, get as it is.
macro_rules! whole {
    ($call:ty => $part:ty, $protocol:expr, $join:ident) => {
        impl WorkerCall for $call {
            type Part = $part;
            type Output = $part;

            fn protocol(&self) -> Protocol {
                $protocol
            }

            fn deal(&self, parts: usize) -> Result<Vec<Self>, Failure> {
                Ok(vec![self.clone(); parts])
            }

            fn join(&self, parts: Vec<$part>) -> Result<$part, Failure> {
                $join(parts)
            }
        }
    };
}

whole!(Restore => Option<(Progress, RunState)>, Protocol::OneToAll, agreed);
whole!(Prepare => Learnt, Protocol::RankZero, only);
whole!(Evaluate => EvalStats, Protocol::RankZero, only);
whole!(RateRows => Vec<f32>, Protocol::RankZero, only);
whole!(Estimate => Estimated, Protocol::RankZero, only);

impl Dealing {
    /// The protocol by which a batch is dealt out.
    const fn of_batch(self) -> Protocol {
        match self {
            Self::Rows => Protocol::Data,
            Self::Whole => Protocol::OneToAll,
        }
    }
}

impl WorkerCall for WarmUp {
    type Part = RankTrained;
    type Output = StepStats;

    fn protocol(&self) -> Protocol {
        Protocol::OneToAll
    }

    fn deal(&self, parts: usize) -> Result<Vec<Self>, Failure> {
        Ok(vec![self.clone(); parts])
    }

    fn join(&self, parts: Vec<RankTrained>) -> Result<StepStats, Failure> {
        match self.dealing {
            Dealing::Rows => agreed(parts).map(|all| all.stats),
            Dealing::Whole => Ok(RankTrained::of_all(&parts)),
        }
    }
}

impl WorkerCall for Save {
    type Part = ();
    type Output = ();

    fn protocol(&self) -> Protocol {
        match self.dealing {
            Dealing::Rows => Protocol::RankZero,
            Dealing::Whole => Protocol::OneToAll,
        }
    }

    fn deal(&self, parts: usize) -> Result<Vec<Self>, Failure> {
        Ok(vec![self.clone(); parts])
    }

    fn join(&self, _parts: Vec<()>) -> Result<(), Failure> {
        Ok(())
    }
}

impl WorkerCall for Publish {
    type Part = Blob;
    type Output = Vec<Blob>;

    fn protocol(&self) -> Protocol {
        Protocol::OneToAll
    }

    fn deal(&self, parts: usize) -> Result<Vec<Self>, Failure> {
        Ok(vec![*self; parts])
    }

    fn join(&self, parts: Vec<Blob>) -> Result<Vec<Blob>, Failure> {
        Ok(parts)
    }
}

/// A call that gives each reply a row. Where rows are dealt out, all ranks have as many, so that a model whose own ranks
/// work in step has no odd one; where ranks share the model, some answer none.
macro_rules! by_row {
    ($call:ident => $row:ty) => {
        impl WorkerCall for $call {
            type Part = Rows<$row>;
            type Output = Rows<$row>;

            fn protocol(&self) -> Protocol {
                self.dealing.of_batch()
            }

            fn deal(&self, parts: usize) -> Result<Vec<Self>, Failure> {
                let dealing = self.dealing;
                let dealt = match dealing {
                    Dealing::Rows => self.replies.deal(parts, Share::Padded),
                    Dealing::Whole => vec![self.replies.clone(); parts],
                };
                let calls = dealt.into_iter();
                Ok(calls.map(|replies| Self { replies, dealing }).collect())
            }

            fn join(&self, parts: Vec<Rows<$row>>) -> Result<Rows<$row>, Failure> {
                Rows::join(parts, self.replies.len())
            }
        }
    };
}

by_row!(LogProbs => Vec<f32>);
by_row!(Values => Vec<f32>);

/// A part of a list for each rank; their sizes differ by one at most.
fn cut<T: Clone>(list: &[T], parts: usize) -> impl Iterator<Item = Vec<T>> {
    let count = list.len();
    (0..parts).map(move |part| list[count * part / parts..count * (part + 1) / parts].to_vec())
}

impl WorkerCall for Join {
    type Part = ();
    type Output = ();

    fn protocol(&self) -> Protocol {
        Protocol::AllToAll
    }

    fn deal(&self, parts: usize) -> Result<Vec<Self>, Failure> {
        if self.seats.len() != parts {
            let seats = self.seats.len();
            return Err(Failure::error(format!("{seats} seats for {parts} ranks")));
        }
        Ok(cut(&self.seats, parts)
            .map(|seats| Self { seats })
            .collect())
    }

    fn join(&self, _parts: Vec<()>) -> Result<(), Failure> {
        Ok(())
    }
}

impl WorkerCall for Generate {
    type Part = Rows<Trajectory>;
    type Output = Rows<Trajectory>;

    fn protocol(&self) -> Protocol {
        Protocol::Data
    }

    fn deal(&self, parts: usize) -> Result<Vec<Self>, Failure> {
        let dealt = cut(&self.wanted, parts).zip(self.weights.deal(parts));
        let calls = dealt.map(|(wanted, weights)| Self { wanted, weights });
        Ok(calls.collect())
    }

    fn join(&self, parts: Vec<Rows<Trajectory>>) -> Result<Rows<Trajectory>, Failure> {
        Rows::join(parts, self.wanted.len())
    }
}

impl WorkerCall for Judge {
    type Part = Vec<Verdict>;
    type Output = Vec<Verdict>;

    fn protocol(&self) -> Protocol {
        Protocol::Data
    }

    fn deal(&self, parts: usize) -> Result<Vec<Self>, Failure> {
        Ok(self
            .0
            .deal(parts, Share::Balanced)
            .into_iter()
            .map(Self)
            .collect())
    }

    fn join(&self, parts: Vec<Vec<Verdict>>) -> Result<Vec<Verdict>, Failure> {
        let all = parts.concat();
        if all.len() == self.0.len() {
            Ok(all)
        } else {
            Err(Failure::error(format!(
                "{} verdicts on {} replies",
                all.len(),
                self.0.len()
            )))
        }
    }
}

impl WorkerCall for Learn {
    type Part = f64;
    type Output = f64;

    fn protocol(&self) -> Protocol {
        self.dealing.of_batch()
    }

    fn deal(&self, parts: usize) -> Result<Vec<Self>, Failure> {
        if self.dealing == Dealing::Whole {
            return Ok(vec![self.clone(); parts]);
        }
        let replies = self.replies.deal(parts, Share::Balanced);
        let returns = self.returns.deal(parts, Share::Balanced);
        let pairs = replies.into_iter().zip(returns);
        let dealt = pairs.map(|(replies, returns)| Self {
            replies,
            returns,
            dealing: self.dealing,
        });
        Ok(dealt.collect())
    }

    /// Ranks that have rows of their own have each a part of the loss over the tokens of all; of ranks that share the
    /// critic each has all of it.
    fn join(&self, parts: Vec<f64>) -> Result<f64, Failure> {
        match self.dealing {
            Dealing::Rows => Ok(parts.into_iter().sum()),
            Dealing::Whole => {
                let first = parts.first().copied();
                first.ok_or_else(|| Failure::error("nobody answered"))
            }
        }
    }
}

impl WorkerCall for Update {
    type Part = RankTrained;
    type Output = StepStats;

    fn protocol(&self) -> Protocol {
        self.dealing.of_batch()
    }

    fn deal(&self, parts: usize) -> Result<Vec<Self>, Failure> {
        if self.dealing == Dealing::Whole {
            return Ok(vec![self.clone(); parts]);
        }
        let replies = self.replies.deal(parts, Share::Balanced);
        let advantages = self.advantages.deal(parts, Share::Balanced);
        let reference = self.reference.deal(parts, Share::Balanced);
        let columns = replies.into_iter().zip(cut(&self.verdicts, parts));
        let columns = columns.zip(advantages.into_iter().zip(reference));
        let dealt = columns.map(|((replies, verdicts), (advantages, reference))| Self {
            step: self.step,
            replies,
            verdicts,
            advantages,
            reference,
            dealing: self.dealing,
        });
        Ok(dealt.collect())
    }

    fn join(&self, parts: Vec<RankTrained>) -> Result<StepStats, Failure> {
        let all = RankTrained::of_all(&parts);
        Ok(match self.dealing {
            Dealing::Rows => StepStats {
                // Each has its part of the loss; the gradient is one of all.
                loss: parts.iter().map(|part| part.stats.loss).sum(),
                ..all
            },
            Dealing::Whole => all,
        })
    }
}
