//! From any placement of a model to any other.

use serde::{Deserialize, Serialize};

use super::{
    holders::{Holder, Holders},
    reshard::ReshardError,
    shard::Shards,
    spec::ModelSpec,
    transfer::{Origin, Transfer},
};

/// The copies by which all ranks come from one placement to another.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Transfers {
    ranks: Vec<Vec<Transfer>>,
}

/// Plans the copies by which ranks that have `source[rank]` of a model come to have `target[rank]`,
/// each in a buffer of its own. A list that is shorter than the other has nothing for the ranks
/// behind its end; where ranks leave or come, empty [`Shards`] stand for them.
///
/// Each byte of each target is filled once: from the rank's own source if it is there, else from
/// one other rank. Of several that have a piece, it comes from the one that has sent the fewest
/// bytes so far; of those from the nearest by number, then from the lesser. Ranks are served in
/// order, pieces in that of the target: the same arguments give the same plan.
///
/// A piece is what a target box and a source box have in common. It is not divided among replicas,
/// and where source boxes that are not equal overlap, it is of the one with the lesser offsets.
///
/// # Errors
/// [`ReshardError::Missing`] when nobody has something that a target wants, or
/// [`ReshardError::Foreign`].
pub fn between(
    model: &ModelSpec,
    source: &[Shards],
    target: &[Shards],
) -> Result<Transfers, ReshardError> {
    for (which, ranks) in [("source", source), ("target", target)] {
        if let Some(rank) = ranks.iter().position(|shards| !model.made(shards)) {
            return Err(ReshardError::Foreign { which, rank });
        }
    }
    let mut holders = Holders::new(model.tensors().len());
    for (rank, shards) in source.iter().enumerate() {
        holders.add(rank, shards);
    }
    let nothing = Shards::default();
    let mut sent_bytes = vec![0; source.len()];
    let mut ranks = vec![];
    for rank in 0..source.len().max(target.len()) {
        let own = source.get(rank).unwrap_or(&nothing);
        let wanted = target.get(rank).unwrap_or(&nothing);
        let least = |holders: &[Holder], bytes: usize| {
            let load = |holder: &&Holder| {
                let peer = holder.rank;
                (sent_bytes[peer], peer.abs_diff(rank), peer)
            };
            let chosen = holders.iter().min_by_key(load).copied();
            if let Some(holder) = chosen {
                sent_bytes[holder.rank] += bytes;
            }
            chosen
        };
        let filled = holders.fill(own, wanted, least);
        ranks.push(filled.map_err(|gap| gap.error(model, rank))?);
    }
    Ok(Transfers { ranks })
}

impl Transfers {
    /// Number of ranks: those of the longer list.
    #[must_use]
    pub fn ranks(&self) -> usize {
        self.ranks.len()
    }

    /// The copies of a rank into its buffer; nothing for a rank that is not there.
    #[must_use]
    pub fn of(&self, rank: usize) -> &[Transfer] {
        self.ranks.get(rank).map_or(&[], Vec::as_slice)
    }

    /// Bytes that others send to a rank.
    #[must_use]
    pub fn received_bytes(&self, rank: usize) -> usize {
        self.of(rank).iter().map(Transfer::received_bytes).sum()
    }

    /// Bytes that each rank sends to others.
    #[must_use]
    pub fn sent_bytes(&self) -> Vec<usize> {
        let mut sent = vec![0; self.ranks.len()];
        for transfer in self.ranks.iter().flatten() {
            if let Origin::Rank(from) = transfer.from {
                sent[from] += transfer.bytes();
            }
        }
        sent
    }
}
