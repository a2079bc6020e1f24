//! Rows in shared memory. A batch is megabytes: it travels as a handle and never enters a mailbox.

use std::fmt;
use std::marker::PhantomData;

use odeon::serde::{Deserialize, Serialize};
use odeon::{Blob, Blobs, Failure, Shape, Wire, codec, shape};

use crate::trajectory::{Batch, GreedyReply, Trajectory, Used};

/// Rows of `T`, encoded in a blob: small in a message, mapped by the reader.
#[derive(Serialize, Deserialize)]
#[serde(crate = "odeon::serde", bound = "")]
pub struct Packed<T> {
    blob: Blob,
    rows: PhantomData<fn() -> T>,
}

impl<T> Clone for Packed<T> {
    fn clone(&self) -> Self {
        Self {
            blob: self.blob.clone(),
            rows: PhantomData,
        }
    }
}

impl<T> fmt::Debug for Packed<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Packed").field(&self.blob).finish()
    }
}

impl<T: Shape> Shape for Packed<T> {
    const SHAPE: u64 = shape::mix(shape::name("rl.Packed"), T::SHAPE);
}

impl<T: Wire> Packed<T> {
    /// Writes rows into a new blob: for each its length in 8 bytes, little-endian, and its encoding.
    ///
    /// # Errors
    /// A row cannot be encoded, or there is no room for the blob.
    pub fn pack(blobs: &Blobs, rows: &[T]) -> Result<Self, Failure> {
        let mut bytes = vec![];
        for row in rows {
            let row = codec::encode(row).map_err(Failure::error)?;
            bytes.extend((row.len() as u64).to_le_bytes());
            bytes.extend(row);
        }
        let blob = blobs.copy_in(&bytes).map_err(Failure::error)?;
        Ok(Self {
            blob,
            rows: PhantomData,
        })
    }

    /// Reads all rows.
    ///
    /// # Errors
    /// The blob is gone, or does not hold rows of `T`.
    pub async fn unpack(&self) -> Result<Vec<T>, Failure> {
        self.unpack_range(0, usize::MAX).await
    }

    /// Reads so many rows from the `first` on, or those that there are. Only these are decoded.
    ///
    /// # Errors
    /// The blob is gone, or does not hold rows of `T`.
    pub async fn unpack_range(&self, first: usize, count: usize) -> Result<Vec<T>, Failure> {
        let view = self.blob.open().await.map_err(Failure::error)?;
        let mut rest = &view[..];
        let (mut rows, mut at) = (vec![], 0);
        while !rest.is_empty() && rows.len() < count {
            let cut = || Failure::error("a packed row is cut off");
            let (length, more) = rest.split_first_chunk::<8>().ok_or_else(cut)?;
            let length = usize::try_from(u64::from_le_bytes(*length)).map_err(Failure::error)?;
            let (row, more) = more.split_at_checked(length).ok_or_else(cut)?;
            if at >= first {
                rows.push(codec::decode(row).map_err(Failure::error)?);
            }
            at += 1;
            rest = more;
        }
        Ok(rows)
    }

    /// Bytes of the blob.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.blob.len()
    }
}

/// A [`Batch`] on its way.
#[derive(Clone, Debug, Serialize, Deserialize, Shape)]
#[serde(crate = "odeon::serde")]
pub struct PackedBatch {
    /// The optimiser step that it belongs to.
    pub step: u64,
    group_size: u32,
    greedy: Vec<GreedyReply>,
    uniform: u64,
    used: Used,
    trajectories: Packed<Trajectory>,
}

impl PackedBatch {
    /// Writes a batch into a new blob.
    ///
    /// # Errors
    /// There is no room for the blob.
    pub fn pack(blobs: &Blobs, batch: &Batch) -> Result<Self, Failure> {
        Ok(Self {
            step: batch.step,
            group_size: batch.group_size,
            greedy: batch.greedy.clone(),
            uniform: batch.uniform,
            used: batch.used.clone(),
            trajectories: Packed::pack(blobs, &batch.trajectories)?,
        })
    }

    /// Reads it.
    ///
    /// # Errors
    /// The blob is gone.
    #[odeon::boxed]
    pub async fn unpack(&self) -> Result<Batch, Failure> {
        Ok(Batch {
            step: self.step,
            trajectories: self.trajectories.unpack().await?,
            group_size: self.group_size,
            greedy: self.greedy.clone(),
            uniform: self.uniform,
            used: self.used.clone(),
        })
    }
}
