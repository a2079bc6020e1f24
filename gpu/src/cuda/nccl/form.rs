//! The forming of a communicator: all that can be refused is refused on the processor, before NCCL
//! begins.

use std::sync::Arc;

use thiserror::Error;

use super::library::{NcclLibrary, Refusal, UNIQUE_ID_BYTES, UniqueId, version_text};
use crate::cuda::card::Card;
use odeon_collective::{Collective, CollectiveError, Communicator, Transport};
use odeon_devices::fault::GpuFault;

/// The ranks could not come together. Nothing is held then, and the communicator that was given is
/// gone, on the other ranks too.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum NcclError {
    /// The ranks have different versions of NCCL. Install the same one for all.
    #[error("the ranks have different versions of NCCL ({versions}): install the same one for all")]
    Versions {
        /// The versions, with the ranks that have them.
        versions: String,
    },
    /// Two ranks are on one device, which NCCL does not allow. Give each rank its own.
    #[error(
        "ranks {} and {} are on one device ({device}): NCCL needs one for each rank",
        ranks.0,
        ranks.1
    )]
    SharedDevice {
        /// Two of them.
        ranks: (usize, usize),
        /// The device's identity.
        device: String,
    },
    /// NCCL does not do what it takes.
    #[error("rank {rank} cannot begin: {why}")]
    Refused {
        /// Whose NCCL.
        rank: usize,
        /// Its words, or what is known of them.
        why: String,
    },
    /// The device failed.
    #[error(transparent)]
    Device(#[from] GpuFault),
    /// The ranks failed each other: one did not come, or was lost.
    #[error(transparent)]
    Collective(#[from] CollectiveError),
}

/// Bytes of what a rank says of itself.
const CARD_BYTES: usize = 64;

/// A rank's introduction: the version of its library, and its device.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Introduction {
    version: i32,
    device: String,
}

impl Introduction {
    fn encode(&self) -> [u8; CARD_BYTES] {
        let mut out = [0; CARD_BYTES];
        out[..4].copy_from_slice(&self.version.to_le_bytes());
        let len = self.device.len().min(CARD_BYTES - 5);
        out[4] = len as u8;
        out[5..5 + len].copy_from_slice(&self.device.as_bytes()[..len]);
        out
    }

    fn decode(bytes: &[u8]) -> Self {
        let len = usize::from(bytes[4]).min(CARD_BYTES - 5);
        Self {
            version: i32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]),
            device: String::from_utf8_lossy(&bytes[5..5 + len]).into_owned(),
        }
    }
}

/// Bytes as numbers that every transport carries as they are.
fn numbers(bytes: &[u8]) -> Vec<f32> {
    bytes.iter().map(|byte| f32::from(*byte)).collect()
}

fn bytes(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().map(|number| *number as u8).collect()
}

/// Compares versions and devices of all ranks.
pub(super) fn compare<K, C: Card>(
    comm: &mut K,
    card: &Arc<C>,
    library: &NcclLibrary,
) -> Result<(), NcclError>
where
    K: Collective<Buffer<f32> = [f32]>,
{
    let world = comm.membership().world();
    let own = Introduction {
        version: library.version(),
        device: card.identity()?,
    };
    let mut all = vec![0.0; world * CARD_BYTES];
    comm.all_gather::<f32>(numbers(&own.encode()).as_slice(), all.as_mut_slice())?;
    let all: Vec<Introduction> = bytes(&all)
        .chunks_exact(CARD_BYTES)
        .map(Introduction::decode)
        .collect();
    fitting(&all)
}

/// Agrees on the version, the devices and a new communicator's name.
pub(super) fn agree<X: Transport, C: Card>(
    comm: &mut Communicator<X>,
    card: &Arc<C>,
    library: &NcclLibrary,
) -> Result<UniqueId, NcclError> {
    let rank = comm.membership().rank;
    compare(comm, card, library)?;

    // One byte says whether the first rank has a name to give.
    let made = (rank == 0).then(|| library.unique_id());
    let mut name = vec![0.0; 1 + UNIQUE_ID_BYTES];
    if let Some(Ok(id)) = &made {
        name = [vec![1.0], numbers(&id.0)].concat();
    }
    comm.broadcast(&mut name, 0)?;
    if let Some(Err(refusal)) = made {
        return Err(refused(0, &refusal));
    }
    let (flag, name) = name.split_at(1);
    let id = bytes(name).try_into().ok().filter(|_| flag[0] > 0.0);
    id.map(UniqueId).ok_or_else(|| NcclError::Refused {
        rank: 0,
        why: "its NCCL gives no name for a communicator; its own error says why".to_owned(),
    })
}

fn refused(rank: usize, refusal: &Refusal) -> NcclError {
    let why = refusal.to_string();
    NcclError::Refused { rank, why }
}

/// Every rank comes to the same conclusion.
fn fitting(all: &[Introduction]) -> Result<(), NcclError> {
    if all.iter().any(|one| one.version != all[0].version) {
        let texts = all.iter().enumerate().map(|(rank, one)| {
            let version = version_text(one.version);
            format!("rank {rank} has {version}")
        });
        let versions = texts.collect::<Vec<_>>().join(", ");
        return Err(NcclError::Versions { versions });
    }
    for (second, one) in all.iter().enumerate() {
        let first = all[..second].iter().position(|o| o.device == one.device);
        if let Some(first) = first {
            return Err(NcclError::SharedDevice {
                ranks: (first, second),
                device: one.device.clone(),
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_rank_says_of_itself_travels_as_numbers() {
        for device in ["", "GPU-0123", &"x".repeat(CARD_BYTES - 5)] {
            let card = Introduction {
                version: 23_007,
                device: device.to_owned(),
            };
            let carried = bytes(&numbers(&card.encode()));
            assert_eq!(Introduction::decode(&carried), card);
        }
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(bytes(&numbers(&all)), all);
    }

    #[test]
    fn versions_and_devices_must_fit() {
        let card = |version, device: &str| Introduction {
            version,
            device: device.to_owned(),
        };
        assert_eq!(fitting(&[card(21_805, "a"), card(21_805, "b")]), Ok(()));
        let text = |all: &[Introduction]| fitting(all).unwrap_err().to_string();
        let versions = text(&[card(21_805, "a"), card(23_007, "b")]);
        assert!(
            versions.contains("rank 0 has 2.18.5, rank 1 has 2.30.7"),
            "{versions}"
        );
        let shared = text(&[card(1, "a"), card(1, "b"), card(1, "a")]);
        assert!(
            shared.contains("ranks 0 and 2 are on one device (a)"),
            "{shared}"
        );
    }
}
