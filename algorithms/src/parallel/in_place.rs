//! A rank's shards from one layout into another, in the buffer in which they lie.

use super::{
    transfer::Transfer,
    window::{ByteRun, WindowError},
};

/// Makes a buffer longer, and copies boxes in it from where they lie to where they belong there, no
/// byte to the left: a training shard into the generation shard around it. What is between them is
/// for others to fill.
///
/// Boxes come in the order in which they lie, before and after, as those of [`Origin::Own`] in a
/// [`Plan`] of HybridFlow do.
///
/// [`Origin::Own`]: super::Origin::Own
/// [`Plan`]: super::Plan
///
/// # Errors
/// [`WindowError::Order`] or [`WindowError::Short`]. Nothing was written.
pub fn spread(buffer: &mut Vec<u8>, boxes: &[Transfer], bytes: usize) -> Result<(), WindowError> {
    check(boxes, buffer.len(), bytes, |run| run.source <= run.target)?;
    buffer.reserve_exact(bytes.saturating_sub(buffer.len()));
    buffer.resize(bytes, 0);
    for transfer in boxes.iter().rev() {
        let runs: Vec<ByteRun> = transfer.runs()?.collect();
        for run in runs.into_iter().rev() {
            copy(buffer, run);
        }
    }
    Ok(())
}

/// Copies boxes in a buffer from where they lie to where they belong, no byte to the right, and
/// makes it shorter: a generation shard into the training shard in it, by [`Reshard::views`], or
/// what was gathered into what is generated with, by the slices of a [`Plan`](super::Plan).
///
/// [`Reshard::views`]: super::Reshard::views
///
/// # Errors
/// As for [`spread`].
pub fn condense(buffer: &mut Vec<u8>, boxes: &[Transfer], bytes: usize) -> Result<(), WindowError> {
    check(boxes, buffer.len(), bytes, |run| run.target <= run.source)?;
    for transfer in boxes {
        for run in transfer.runs()? {
            copy(buffer, run);
        }
    }
    buffer.truncate(bytes);
    buffer.shrink_to_fit();
    Ok(())
}

fn copy(buffer: &mut [u8], run: ByteRun) {
    buffer.copy_within(run.source..run.source + run.bytes, run.target);
}

/// No copy overwrites what is still to be copied, and all are inside.
fn check(
    boxes: &[Transfer],
    source_bytes: usize,
    target_bytes: usize,
    fits: fn(&ByteRun) -> bool,
) -> Result<(), WindowError> {
    let (mut source_end, mut target_end) = (0, 0);
    for transfer in boxes {
        for run in transfer.runs()? {
            if !fits(&run) || run.source < source_end || run.target < target_end {
                return Err(WindowError::Order {
                    source_at: run.source,
                    target_at: run.target,
                });
            }
            (source_end, target_end) = (run.source + run.bytes, run.target + run.bytes);
        }
    }
    for (which, bytes, end_bytes) in [
        ("source", source_bytes, source_end),
        ("target", target_bytes, target_end),
    ] {
        if bytes < end_bytes {
            return Err(WindowError::Short {
                which,
                bytes,
                end_bytes,
            });
        }
    }
    Ok(())
}
