//! Exchanges between ranks that gather together, from one rank's side.

use super::{
    grouping::Grouping,
    reshard::{Reshard, ReshardError},
    transfer::{Origin, Transfer},
    window::Window,
};

/// The exchange of a rank with one other. Both have the same bytes in mind, in the same order: the
/// boxes one after the other, each row by row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exchange {
    /// The other.
    pub peer: usize,
    /// The boxes that the other gets: in this rank's gathered buffer where its training shard lives
    /// in that (strided grouping), else in its training buffer.
    pub gives: Vec<Window>,
    /// The boxes that come from the other, in this rank's gathered buffer.
    pub takes: Vec<Window>,
}

impl Reshard {
    /// The boxes that a rank gives to others and takes from them, so that each has what its
    /// [`plan`](Self::plan) says. Two ranks that both give do so in turns, the lesser first; when
    /// all keep to the order of the list, no rank waits for one that waits for it.
    ///
    /// # Errors
    /// [`ReshardError::Cut`] when there is no such rank.
    pub fn exchanges(&self, rank: usize) -> Result<Vec<Exchange>, ReshardError> {
        let views = self.views(rank)?;
        let own = self.plan(rank)?;
        let mut exchanges = vec![];
        for peer in self.gather_group(rank)? {
            if peer == rank {
                continue;
            }
            let theirs = self.plan(peer)?;
            let given = from(&theirs.gather, rank).map(|transfer| match self.engine().grouping() {
                Grouping::Usual => transfer.source.clone(),
                Grouping::Strided => lent(&views, transfer),
            });
            let exchange = Exchange {
                peer,
                gives: given.collect(),
                takes: from(&own.gather, peer)
                    .map(|transfer| transfer.target.clone())
                    .collect(),
            };
            if !exchange.gives.is_empty() || !exchange.takes.is_empty() {
                exchanges.push(exchange);
            }
        }
        // In a round each rank meets one other at most, and both know in which.
        let ranks = self.groups().training().len();
        exchanges.sort_by_key(|exchange| (rank + exchange.peer) % ranks);
        Ok(exchanges)
    }
}

fn from(gather: &[Transfer], rank: usize) -> impl Iterator<Item = &Transfer> {
    gather
        .iter()
        .filter(move |transfer| transfer.from == Origin::Rank(rank))
}

/// The wanted part of a training shard, where that lives in the gathered buffer.
fn lent(views: &[Transfer], transfer: &Transfer) -> Window {
    let shard = views.iter().find(|view| {
        let starts = view.target.start_bytes() == transfer.source.start_bytes();
        view.tensor == transfer.tensor && starts
    });
    let view = shard.expect("under strided grouping all of a training shard is in the other");
    transfer.source.seen_through(&view.source)
}
