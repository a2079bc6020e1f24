//! Calls to a group: who is asked what, whose answers count, and the builders that are futures.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use futures::StreamExt;
use futures::future::{BoxFuture, join_all};
use futures::stream::FuturesUnordered;
use odeon_mesh::{At, Mesh, MeshError, Rank};
use serde::{Deserialize, Serialize};

use super::misfit::Misfit;
use super::reduce::{Reduction, fold};
use super::{Group, GroupError};
use crate::actor::handler::Actor;
use crate::actor::request::HandledBy;
use crate::base::error::AskError;
use crate::base::message::Message;

/// The ranks that are asked, and the message that each gets. A pair of it and a [`Collect`] is a
/// [`Protocol`](super::Protocol).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Dispatch {
    /// One message, for every rank.
    All,
    /// One message for each coordinate along this dimension; ranks that share it get the same.
    Split(String),
    /// One message, for this rank only.
    One(usize),
    /// One message for each rank.
    PerRank,
    /// For each rank which of the messages it gets; a rank that gets none is not asked.
    Parts(Vec<Option<usize>>),
}

/// Whose answers are given back, in rank order. All who were asked are waited for, so that no
/// failure goes unseen; the answers of others are dropped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Collect {
    /// Everybody's.
    All,
    /// One for each coordinate along this dimension: that of the first rank which has it.
    FirstOf(String),
    /// One for each coordinate along this dimension: that of the last rank which has it.
    LastOf(String),
    /// Those of the ranks at these coordinates.
    At(At),
    /// That of one rank.
    One(usize),
    /// Those of these ranks.
    Ranks(Vec<usize>),
}

impl Dispatch {
    /// The number of messages that it needs.
    pub(super) fn parts(&self, mesh: &Mesh) -> Result<usize, Misfit> {
        match self {
            Self::All | Self::One(_) => Ok(1),
            Self::PerRank => Ok(mesh.len()),
            Self::Split(dim) => Ok(mesh.size_of(dim)?),
            Self::Parts(parts) => Ok(parts.iter().flatten().max().map_or(0, |last| last + 1)),
        }
    }

    /// For each rank, the index of its message among `messages`; `None` for a rank that is not
    /// asked.
    pub(super) fn plan<A>(
        &self,
        group: &Group<A>,
        messages: usize,
    ) -> Result<Vec<Option<usize>>, Misfit> {
        let mesh = group.mesh();
        let ranks = mesh.len();
        let needed = self.parts(mesh)?;
        let plan = match self {
            Self::All => vec![Some(0); ranks],
            Self::PerRank => (0..ranks).map(Some).collect(),
            Self::Split(dim) => mesh.ranks().map(|rank| rank.coordinate(dim)).collect(),
            Self::One(rank) => {
                let mut plan = vec![None; ranks];
                *plan
                    .get_mut(*rank)
                    .ok_or(MeshError::NoRank { rank: *rank, ranks })? = Some(0);
                plan
            }
            Self::Parts(parts) if parts.len() == ranks => parts.clone(),
            Self::Parts(parts) => {
                let given = parts.len();
                return Err(Misfit::Parts { given, ranks });
            }
        };
        if messages == needed {
            Ok(plan)
        } else {
            Err(Misfit::Messages { messages, needed })
        }
    }
}

impl Collect {
    /// For each rank, whether its answer counts.
    pub(super) fn plan<A>(&self, group: &Group<A>) -> Result<Vec<bool>, Misfit> {
        let mesh = group.mesh();
        let one_each = |dim: &str, ranks: &mut dyn Iterator<Item = Rank>| {
            let size = mesh.size_of(dim)?;
            let mut seen = vec![false; size];
            let mut counts = vec![false; mesh.len()];
            for rank in ranks {
                let seen = &mut seen[rank.along(dim)];
                counts[rank.index()] = !std::mem::replace(seen, true);
            }
            Ok(counts)
        };
        match self {
            Self::All => Ok(vec![true; mesh.len()]),
            Self::FirstOf(dim) => one_each(dim, &mut mesh.ranks()),
            Self::LastOf(dim) => {
                let ranks: Vec<_> = mesh.ranks().collect();
                one_each(dim, &mut ranks.into_iter().rev())
            }
            Self::At(at) => {
                let mut counts = vec![false; mesh.len()];
                for rank in mesh.slice(at)?.1 {
                    counts[rank] = true;
                }
                Ok(counts)
            }
            Self::One(rank) => {
                let ranks = mesh.len();
                let mut counts = vec![false; ranks];
                *counts
                    .get_mut(*rank)
                    .ok_or(MeshError::NoRank { rank: *rank, ranks })? = true;
                Ok(counts)
            }
            Self::Ranks(collected) => {
                let ranks = mesh.len();
                let mut counts = vec![false; ranks];
                for &rank in collected {
                    *counts
                        .get_mut(rank)
                        .ok_or(MeshError::NoRank { rank, ranks })? = true;
                }
                Ok(counts)
            }
        }
    }
}

/// A request to the members of a group. Await it for the answers in rank order.
#[must_use = "a gather is sent when it is awaited"]
pub struct Gather<A: Actor, M: Message> {
    group: Group<A>,
    messages: Vec<M>,
    dispatch: Dispatch,
    collect: Collect,
    timeout: Option<Duration>,
}

impl<A: Actor, M: Message> fmt::Debug for Gather<A, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gather")
            .field("message", &M::NAME)
            .field("mesh", self.group.mesh())
            .field("dispatch", &self.dispatch)
            .field("collect", &self.collect)
            .finish_non_exhaustive()
    }
}

impl<A: Actor, M: HandledBy<A> + Clone> Gather<A, M> {
    pub(super) const fn new(group: Group<A>, messages: Vec<M>, dispatch: Dispatch) -> Self {
        Self {
            group,
            messages,
            dispatch,
            collect: Collect::All,
            timeout: None,
        }
    }

    /// Waits at most this long for each answer; all are asked at the same time.
    pub const fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Sets which ranks are asked, and which message each gets.
    pub fn dispatch(mut self, dispatch: Dispatch) -> Self {
        self.dispatch = dispatch;
        self
    }

    /// One message for each coordinate along a dimension: [`Dispatch::Split`].
    pub fn along(self, dim: impl Into<String>) -> Self {
        self.dispatch(Dispatch::Split(dim.into()))
    }

    /// Whose answers are given back; everybody's unless told otherwise.
    pub fn collect(mut self, collect: Collect) -> Self {
        self.collect = collect;
        self
    }

    /// Ends as soon as this many of the collected answers have come, and gives them with their
    /// ranks. Who is slower is told that nobody waits any more.
    pub const fn quorum(self, answers: usize) -> Quorum<A, M> {
        Quorum {
            gather: self,
            answers,
        }
    }

    /// Combines the answers into one.
    pub const fn reduce<O: Reduction<M::Reply>>(self, operation: O) -> Reduce<A, M, O> {
        Reduce {
            gather: self,
            operation,
        }
    }

    /// Sends everything, then waits until `quorum` of the collected answers have come, or all.
    async fn run(self, quorum: Option<usize>) -> Result<BTreeMap<usize, M::Reply>, GroupError>
    where
        M: Unpin,
        M::Reply: Unpin,
    {
        let plan = self.dispatch.plan(&self.group, self.messages.len())?;
        let counts = self.collect.plan(&self.group)?;
        let counted = plan
            .iter()
            .zip(&counts)
            .filter(|(plan, counts)| plan.is_some() && **counts);
        let counted = counted.count();
        if counted == 0 {
            return Err(Misfit::NothingCollected.into());
        }
        if let Some(quorum) = quorum.filter(|quorum| *quorum == 0 || *quorum > counted) {
            return Err(Misfit::Quorum {
                quorum,
                asked: counted,
            }
            .into());
        }

        // The first polls send, one after the other; nothing waits for an answer before that.
        let mut asks: FuturesUnordered<_> = plan
            .into_iter()
            .enumerate()
            .filter_map(|(rank, message)| Some((rank, self.messages.get(message?)?.clone())))
            .map(|(rank, message)| {
                let ask = self.group.members()[rank].ask(message);
                let ask = match self.timeout {
                    Some(timeout) => ask.timeout(timeout),
                    None => ask,
                };
                async move { (rank, ask.await) }
            })
            .collect();

        let mut answers = BTreeMap::new();
        let mut failed = BTreeMap::new();
        let mut hopeful = counted;
        while let Some((rank, outcome)) = asks.next().await {
            match outcome {
                Ok(reply) if counts[rank] => {
                    answers.insert(rank, reply);
                }
                Ok(_) => {}
                Err(error) => {
                    hopeful -= usize::from(counts[rank]);
                    failed.insert(rank, error);
                }
            }
            if let Some(quorum) = quorum {
                if answers.len() == quorum {
                    return Ok(answers);
                }
                if hopeful < quorum {
                    break;
                }
            }
        }
        if failed.is_empty() {
            Ok(answers)
        } else {
            Err(self.group.missing(failed))
        }
    }
}

impl<A> Group<A> {
    fn missing(&self, failed: impl IntoIterator<Item = (usize, AskError)>) -> GroupError {
        let named = |(rank, error)| Some((self.mesh().rank(rank)?, error));
        GroupError::Missing {
            failed: failed.into_iter().filter_map(named).collect(),
        }
    }
}

impl<A: Actor, M: HandledBy<A> + Clone + Unpin> IntoFuture for Gather<A, M>
where
    M::Reply: Unpin,
{
    type Output = Result<Vec<M::Reply>, GroupError>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { Ok(self.run(None).await?.into_values().collect()) })
    }
}

/// A [`Gather`] that some of the answers are enough for. Await it for them, with their ranks, in
/// rank order.
#[must_use = "a gather is sent when it is awaited"]
pub struct Quorum<A: Actor, M: Message> {
    gather: Gather<A, M>,
    answers: usize,
}

impl<A: Actor, M: Message> fmt::Debug for Quorum<A, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Quorum")
            .field("gather", &self.gather)
            .field("answers", &self.answers)
            .finish()
    }
}

impl<A: Actor, M: HandledBy<A> + Clone + Unpin> IntoFuture for Quorum<A, M>
where
    M::Reply: Unpin,
{
    type Output = Result<Vec<(Rank, M::Reply)>, GroupError>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let mesh = self.gather.group.mesh().clone();
            let answers = self.gather.run(Some(self.answers)).await?;
            Ok(answers
                .into_iter()
                .filter_map(|(rank, reply)| Some((mesh.rank(rank)?, reply)))
                .collect())
        })
    }
}

/// A [`Gather`] whose answers become one. Await it.
#[must_use = "a gather is sent when it is awaited"]
pub struct Reduce<A: Actor, M: Message, O> {
    gather: Gather<A, M>,
    operation: O,
}

impl<A: Actor, M: Message, O> fmt::Debug for Reduce<A, M, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reduce")
            .field("gather", &self.gather)
            .finish_non_exhaustive()
    }
}

impl<A: Actor, M: HandledBy<A> + Clone, O> Reduce<A, M, O> {
    /// See [`Gather::timeout`].
    pub const fn timeout(mut self, timeout: Duration) -> Self {
        self.gather.timeout = Some(timeout);
        self
    }
}

impl<A, M, O> IntoFuture for Reduce<A, M, O>
where
    A: Actor,
    M: HandledBy<A> + Clone + Unpin,
    M::Reply: Unpin,
    O: Reduction<M::Reply>,
{
    type Output = Result<O::Output, GroupError>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let answers = self.gather.run(None).await?.into_values().collect();
            Ok(fold(answers, &self.operation).expect("a gather has at least one answer"))
        })
    }
}

/// A message to every member of a group, without an answer. Await it.
#[must_use = "a cast is sent when it is awaited"]
pub struct Cast<A: Actor, M: Message> {
    group: Group<A>,
    message: M,
    timeout: Option<Duration>,
}

impl<A: Actor, M: Message> fmt::Debug for Cast<A, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cast")
            .field("message", &M::NAME)
            .field("mesh", self.group.mesh())
            .finish_non_exhaustive()
    }
}

impl<A: Actor, M: HandledBy<A> + Clone> Cast<A, M> {
    pub(super) const fn new(group: Group<A>, message: M) -> Self {
        Self {
            group,
            message,
            timeout: None,
        }
    }

    /// Waits at most this long for room in each mailbox.
    pub const fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    async fn run(self) -> Result<(), GroupError> {
        let sent = join_all(self.group.members().iter().map(|member| {
            let tell = member.tell(self.message.clone());
            match self.timeout {
                Some(timeout) => tell.timeout(timeout),
                None => tell,
            }
            .into_future()
        }))
        .await;
        let failed: Vec<_> = sent
            .into_iter()
            .enumerate()
            .filter_map(|(rank, sent)| Some((rank, sent.err()?.error)))
            .collect();
        if failed.is_empty() {
            Ok(())
        } else {
            Err(self.group.missing(failed))
        }
    }
}

impl<A: Actor, M: HandledBy<A> + Clone + Sync> IntoFuture for Cast<A, M> {
    type Output = Result<(), GroupError>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.run())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::id::{ActorId, ProcessId, Ref};
    use odeon_mesh::{at, mesh};

    fn group() -> Group<()> {
        let mesh = mesh! { pp: 2, dp: 2, tp: 2 };
        let member = |serial| {
            Ref::from_id(
                ActorId {
                    home: ProcessId(1),
                    serial,
                },
                0,
            )
        };
        Group::new(mesh, (0..8).map(member).collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn a_dispatch_gives_each_rank_its_message() {
        let check = |dispatch: Dispatch, messages, expect: Result<[Option<usize>; 8], Misfit>| {
            assert_eq!(
                dispatch.plan(&group(), messages),
                expect.map(|plan| plan.to_vec())
            );
        };
        check(Dispatch::All, 1, Ok([Some(0); 8]));
        check(Dispatch::PerRank, 8, Ok([0, 1, 2, 3, 4, 5, 6, 7].map(Some)));
        check(
            Dispatch::Split("dp".to_owned()),
            2,
            Ok([0, 0, 1, 1, 0, 0, 1, 1].map(Some)),
        );
        let mut one = [None; 8];
        one[5] = Some(0);
        check(Dispatch::One(5), 1, Ok(one));
        check(
            Dispatch::One(8),
            1,
            Err(MeshError::NoRank { rank: 8, ranks: 8 }.into()),
        );
        let micro = [0, 0, 1, 1, 2, 2, 3, 3].map(Some);
        check(Dispatch::Parts(micro.to_vec()), 4, Ok(micro));
        check(
            Dispatch::Parts(micro[1..].to_vec()),
            4,
            Err(Misfit::Parts { given: 7, ranks: 8 }),
        );
        check(
            Dispatch::PerRank,
            7,
            Err(Misfit::Messages {
                messages: 7,
                needed: 8,
            }),
        );
    }

    #[test]
    fn a_collect_picks_whose_answers_count() {
        let check = |collect: Collect, expect: &[usize]| {
            let counts = collect.plan(&group()).unwrap();
            let ranks: Vec<_> = (0..8).filter(|rank| counts[*rank]).collect();
            assert_eq!(ranks, expect, "{collect:?}");
        };
        check(Collect::All, &[0, 1, 2, 3, 4, 5, 6, 7]);
        check(Collect::FirstOf("dp".to_owned()), &[0, 2]);
        check(Collect::LastOf("dp".to_owned()), &[5, 7]);
        check(Collect::FirstOf("pp".to_owned()), &[0, 4]);
        check(Collect::At(at!(pp = -1, tp = 0)), &[4, 6]);
        check(Collect::One(3), &[3]);
        check(Collect::Ranks(vec![6, 1]), &[1, 6]);
        assert!(Collect::Ranks(vec![8]).plan(&group()).is_err());
        assert!(Collect::FirstOf("ep".to_owned()).plan(&group()).is_err());
    }
}
