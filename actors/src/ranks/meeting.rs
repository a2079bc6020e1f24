//! The beginning of ranks that share a model: each says what it has of it, takes its seats, and knows from then on where
//! the others get their letters.

use std::path::{Path, PathBuf};

use odeon::serde::{Deserialize, Serialize};
use odeon::{Actor, Context, Failure, Group, HandledBy, Ref, Shape, message};
use odeon_algorithms::train::Sharing;
use tokio::runtime::Handle;

use super::asking::{LONG, answers};
use super::courier::{Courier, Mail, Meet};
use super::formed::Formed;
use super::gangs::Gangs;
use super::mark::Mark;
use super::seats::RankSeats;
use crate::engine::compute::state::CheckpointRanks;
use crate::engine::compute::{HeldModel, RankPlace};

/// Say where letters for you are left, and what you have.
#[message(reply = Result<Greeted, Failure>, name = "rank.Greet")]
#[derive(Clone, Copy, Debug)]
pub struct Greet;

/// See [`Greet`].
#[derive(Clone, Debug, Serialize, Deserialize, Shape)]
#[serde(crate = "odeon::serde")]
pub struct Greeted {
    /// Where others leave letters.
    pub courier: Ref<Courier>,
    /// The boxes that it has of a policy; nothing of others, which nobody publishes.
    pub held: HeldModel,
}

/// Take your seats: from now on the ranks work together.
#[message(reply = Result<(), Failure>, name = "rank.Begin")]
#[derive(Clone, Debug)]
pub struct Begin {
    /// Where it meets the others.
    pub seats: RankSeats,
    /// Of all ranks, in their order.
    pub couriers: Vec<Ref<Courier>>,
    /// The name of a file that was put beside the checkpoints.
    pub mark: String,
}

/// Ranks that have begun: they can talk to each other while this is there.
#[derive(Debug)]
pub(crate) struct Begun {
    _formed: Formed,
    /// What each has, in their order.
    pub(crate) held: Vec<HeldModel>,
}

/// Has the ranks of a group take their seats. Their checkpoints are in a folder that all of them see.
///
/// # Errors
/// They cannot be formed, a rank cannot begin, or it does not see the folder.
pub(crate) async fn begin<A: Actor>(
    group: &Group<A>,
    sharing: Sharing,
    folder: &Path,
) -> Result<Begun, Failure>
where
    Greet: HandledBy<A>,
    Begin: HandledBy<A>,
{
    let formed = Formed::of(group, sharing).await?;
    let greeted = answers(group.gather(Greet).timeout(LONG).await)?;
    std::fs::create_dir_all(folder)
        .map_err(|error| Failure::error(format!("making {}: {error}", folder.display())).fatal())?;
    // It is gone when all have looked.
    let mark = Mark::set(folder)?;
    let couriers: Vec<_> = greeted.iter().map(|it| it.courier).collect();
    let begins = formed.seats.iter().map(|seats| Begin {
        seats: seats.clone(),
        couriers: couriers.clone(),
        mark: mark.name(),
    });
    answers(group.scatter(begins.collect()).timeout(LONG).await)?;
    Ok(Begun {
        _formed: formed,
        held: greeted.into_iter().map(|it| it.held).collect(),
    })
}

/// The end of a rank at which it meets the others.
#[derive(Debug)]
pub(crate) struct Meeting {
    place: RankPlace,
    /// Where checkpoints are.
    folder: PathBuf,
    /// There from the greeting on.
    courier: Option<Ref<Courier>>,
}

impl Meeting {
    /// That of a rank which has met nobody.
    pub(crate) const fn new(place: RankPlace, folder: PathBuf) -> Self {
        Self {
            place,
            folder,
            courier: None,
        }
    }

    /// Says what the rank has, with a courier that is its actor's child.
    ///
    /// # Errors
    /// The courier does not start.
    pub(crate) async fn greet<A: Actor>(
        &mut self,
        held: HeldModel,
        cx: &Context<A>,
    ) -> Result<Greeted, Failure> {
        let courier = match self.courier {
            Some(courier) => courier,
            None => cx.spawn::<Courier>(()).await.map_err(Failure::error)?,
        };
        self.courier = Some(courier);
        Ok(Greeted { courier, held })
    }

    /// Takes the seats. Answers with whom the rank computes, and with whom it saves and loads.
    ///
    /// # Errors
    /// A seat is of another life, or the rank does not see the checkpoints.
    pub(crate) async fn begin<A: Actor>(
        &self,
        begin: Begin,
        cx: &Context<A>,
    ) -> Result<(Gangs, CheckpointRanks), Failure> {
        let rank = self.place.rank as u32;
        Mark::check(&self.folder, &begin.mark, &format!("rank {rank}"))?;
        let gangs = Gangs::take(begin.seats, self.place.sharing.schedule, cx)?;
        let courier = self.courier;
        let courier =
            courier.ok_or_else(|| Failure::error("a rank begins before it has greeted"))?;
        let meet = Meet {
            life: LIFE,
            couriers: begin.couriers.clone(),
        };
        courier.ask(meet).await.map_err(Failure::error)?;
        let mail = Mail {
            rank,
            life: LIFE,
            couriers: begin.couriers,
            blobs: cx.blobs(),
        };
        Ok((gangs, CheckpointRanks::of(mail, Handle::current())))
    }
}

/// Ranks begin together and end together: there is no other life in which they could be.
const LIFE: u32 = 1;
