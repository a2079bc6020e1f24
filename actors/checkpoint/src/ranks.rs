//! Messages from one rank to another, however the caller carries them, and agreement of all ranks
//! through such messages, over a [`Tree`].

mod within;

use std::fmt;

use bytes::{BufMut, Bytes, BytesMut};
use futures::future::BoxFuture;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::plan::Tree;

pub use self::within::{Within, within};

/// A rank's way to the others: collectives, actors, or [`within`] one process.
///
/// Messages from one rank to another arrive whole, once, and in order. Those from different ranks
/// may be received at the same time. Sending waits when the receiver is slow, so that what is on the
/// way is bounded; whoever sends to several ranks here receives from all of them meanwhile.
pub trait Ranks: Send + Sync + fmt::Debug {
    /// This rank's number, from 0.
    fn rank(&self) -> usize;

    /// Number of ranks.
    fn ranks(&self) -> usize;

    /// Sends to another rank.
    ///
    /// Fails with [`RanksError::Lost`] when it is gone.
    fn send(&self, to: usize, bytes: Bytes) -> BoxFuture<'_, Result<(), RanksError>>;

    /// The next message of another rank.
    ///
    /// Fails with [`RanksError::Lost`] when it is gone and has left none.
    fn receive(&self, from: usize) -> BoxFuture<'_, Result<Bytes, RanksError>>;
}

/// Why ranks could not agree. What they were about to do has no effect that counts.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[non_exhaustive]
pub enum RanksError {
    /// A rank is gone.
    #[error("rank {rank} is lost")]
    Lost {
        /// Its number.
        rank: usize,
    },
    /// A rank has sent something that is no message of this release.
    #[error("what rank {rank} has sent cannot be read: {detail}")]
    Garbled {
        /// Its number.
        rank: usize,
        /// The error, in words.
        detail: String,
    },
}

/// Joins what all ranks have. Rank 0 gets it, or why it cannot be told: it has to say so to all.
pub(crate) async fn up<T: Serialize + DeserializeOwned>(
    ranks: &dyn Ranks,
    tree: &Tree,
    own: T,
    mut join: impl FnMut(&mut T, T),
) -> Result<Option<Result<T, RanksError>>, RanksError> {
    let mut joined = Ok(own);
    for child in tree.children(ranks.rank()) {
        let heard = ranks.receive(child).await;
        let heard = heard.and_then(|bytes| read::<Result<T, RanksError>>(child, &bytes)?);
        match (&mut joined, heard) {
            (Ok(own), Ok(other)) => join(own, other),
            (Ok(_), Err(error)) => joined = Err(error),
            (Err(_), _) => {}
        }
    }
    match tree.parent(ranks.rank()) {
        Some(parent) => {
            ranks.send(parent, written(&joined)).await?;
            Ok(None)
        }
        None => Ok(Some(joined)),
    }
}

/// All ranks get what rank 0 has.
pub(crate) async fn down<T: Serialize + DeserializeOwned>(
    ranks: &dyn Ranks,
    tree: &Tree,
    value: Option<T>,
) -> Result<T, RanksError> {
    let (bytes, value) = match (tree.parent(ranks.rank()), value) {
        (Some(parent), _) => {
            let bytes = ranks.receive(parent).await?;
            let value = read(parent, &bytes)?;
            (bytes, value)
        }
        (None, Some(value)) => (written(&value), value),
        (None, None) => {
            let detail = "it has nothing to say".into();
            return Err(RanksError::Garbled { rank: 0, detail });
        }
    };
    for child in tree.children(ranks.rank()) {
        // That one is lost is found when it is waited for; the others hear of this all the same.
        let _ = ranks.send(child, bytes.clone()).await;
    }
    Ok(value)
}

/// Each rank gets its part of what rank 0 has.
pub(crate) async fn deal(
    ranks: &dyn Ranks,
    tree: &Tree,
    parts: Option<Vec<Bytes>>,
) -> Result<Bytes, RanksError> {
    let rank = ranks.rank();
    let bundle = match (tree.parent(rank), parts) {
        (Some(parent), _) => unbundled(parent, ranks.receive(parent).await?)?,
        (None, parts) => parts.unwrap_or_default().into_iter().enumerate().collect(),
    };
    let children: Vec<usize> = tree.children(rank).collect();
    let mut bundles = vec![vec![]; children.len()];
    let mut own = None;
    for (of, part) in bundle {
        if of == rank {
            own = Some(part);
        } else if let Some(child) = tree.towards(rank, of)
            && let Some(at) = children.iter().position(|known| *known == child)
        {
            bundles[at].push((of, part));
        }
    }
    for (child, bundle) in children.into_iter().zip(bundles) {
        // As in `down`.
        let _ = ranks.send(child, bundled(&bundle)).await;
    }
    own.ok_or_else(|| RanksError::Garbled {
        rank: tree.parent(rank).unwrap_or(0),
        detail: "nothing in it is for this rank".into(),
    })
}

pub(crate) fn written(value: &impl Serialize) -> Bytes {
    let bytes = serde_json::to_vec(value).expect("messages are JSON");
    bytes.into()
}

pub(crate) fn read<T: DeserializeOwned>(rank: usize, bytes: &[u8]) -> Result<T, RanksError> {
    serde_json::from_slice(bytes).map_err(|error| RanksError::Garbled {
        rank,
        detail: error.to_string(),
    })
}

fn bundled(parts: &[(usize, Bytes)]) -> Bytes {
    let bytes: usize = parts.iter().map(|(_, part)| part.len() + 16).sum();
    let mut bundle = BytesMut::with_capacity(bytes);
    for (rank, part) in parts {
        bundle.put_u64_le(*rank as u64);
        bundle.put_u64_le(part.len() as u64);
        bundle.put_slice(part);
    }
    bundle.freeze()
}

fn unbundled(from: usize, mut bundle: Bytes) -> Result<Vec<(usize, Bytes)>, RanksError> {
    let garbled = || RanksError::Garbled {
        rank: from,
        detail: "a bundle is cut off".into(),
    };
    let mut parts = vec![];
    while !bundle.is_empty() {
        if bundle.len() < 16 {
            return Err(garbled());
        }
        let head = bundle.split_to(16);
        let number = |at: usize| {
            let bytes = head[at..at + 8].try_into().expect("eight bytes");
            u64::from_le_bytes(bytes) as usize
        };
        if bundle.len() < number(8) {
            return Err(garbled());
        }
        parts.push((number(0), bundle.split_to(number(8))));
    }
    Ok(parts)
}
