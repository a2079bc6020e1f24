//! Making a recording.

use std::fmt;
use std::io::Write;

use flate2::{Compress, Compression, FlushCompress};

use super::{BLOCK_HEAD, BYTES_MAX, FULL, Frame, Head, MAGIC, RecordingError, VERSION};
use crate::date::Date;

/// Writes down what an observer is told. Each tick is on its way to the disk before the next.
pub struct Recorder {
    to: Box<dyn Write + Send>,
    deflate: Compress,
    /// Frames of the block that is not written yet, and its dates.
    frames: Vec<u8>,
    dates: Option<(Date, Date)>,
    written: u64,
    most: u64,
    /// Why it has ended.
    failed: Option<RecordingError>,
}

/// A block is written when its frames have so many bytes, tick or not.
const BLOCK_BYTES: usize = 1 << 20;

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder")
            .field("written", &self.written)
            .field("failed", &self.failed)
            .finish_non_exhaustive()
    }
}

impl Recorder {
    /// Begins a recording of what people call so.
    ///
    /// # Errors
    /// What it is written to does not take it.
    pub fn new(
        mut to: Box<dyn Write + Send>,
        name: &str,
        began: Date,
    ) -> Result<Self, RecordingError> {
        let head = Head {
            name: name.to_owned(),
            release: env!("CARGO_PKG_VERSION").to_owned(),
            began,
        };
        let head = encoded(&head)?;
        let mut bytes = MAGIC.to_vec();
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend((head.len() as u32).to_le_bytes());
        bytes.extend(crc32fast::hash(&head).to_le_bytes());
        bytes.extend(head);
        to.write_all(&bytes)?;
        to.flush()?;
        Ok(Self {
            to,
            // Of a run that told much, 6 took a fifth of the processor time of its first process.
            deflate: Compress::new(Compression::new(2), false),
            frames: vec![],
            dates: None,
            written: bytes.len() as u64,
            most: BYTES_MAX,
            failed: None,
        })
    }

    /// Ends at so many bytes rather than at [`BYTES_MAX`].
    #[must_use]
    pub fn at_most(mut self, bytes: u64) -> Self {
        self.most = bytes;
        self
    }

    /// Bytes that were written.
    #[must_use]
    pub const fn written(&self) -> u64 {
        self.written
    }

    /// Takes a frame in. After the first error nothing is recorded any more; [`Recorder::finish`]
    /// tells it.
    pub fn add(&mut self, frame: &Frame<'_>) {
        if self.failed.is_some() {
            return;
        }
        if let Err(error) = self.try_add(frame) {
            if matches!(error, RecordingError::Full) {
                // Without the mark it is one that was cut.
                let _ = self.put(FULL, Date(0), &[]);
            }
            tracing::warn!(%error, "recording has ended");
            self.failed = Some(error);
        }
    }

    fn try_add(&mut self, frame: &Frame<'_>) -> Result<(), RecordingError> {
        let bytes = encoded(frame)?;
        self.frames.extend((bytes.len() as u32).to_le_bytes());
        self.frames.extend(bytes);
        let date = frame.date();
        let (first, last) = self.dates.unwrap_or((date, date));
        self.dates = Some((first.min(date), last.max(date)));
        if matches!(frame, Frame::Tick { .. }) || self.frames.len() >= BLOCK_BYTES {
            self.block()?;
        }
        Ok(())
    }

    fn block(&mut self) -> Result<(), RecordingError> {
        let Some((first, last)) = self.dates.take() else {
            return Ok(());
        };
        let frames = std::mem::take(&mut self.frames);
        let deflated = self.deflated(&frames)?;
        // The mark of the end has room behind it.
        if self.written + (2 * BLOCK_HEAD + deflated.len()) as u64 > self.most {
            return Err(RecordingError::Full);
        }
        self.put(first, last, &deflated)
    }

    fn deflated(&mut self, frames: &[u8]) -> Result<Vec<u8>, RecordingError> {
        let mut out = Vec::with_capacity(frames.len() / 4 + 64);
        let before = self.deflate.total_in();
        loop {
            let taken = (self.deflate.total_in() - before) as usize;
            out.reserve(frames.len() / 4 + 64);
            self.deflate
                .compress_vec(&frames[taken..], &mut out, FlushCompress::Sync)
                .map_err(std::io::Error::other)?;
            let taken = (self.deflate.total_in() - before) as usize;
            // Room that is left says that all is out.
            if taken == frames.len() && out.len() < out.capacity() {
                return Ok(out);
            }
        }
    }

    fn put(&mut self, first: Date, last: Date, deflated: &[u8]) -> Result<(), RecordingError> {
        let mut block = Vec::with_capacity(BLOCK_HEAD + deflated.len());
        block.extend((deflated.len() as u32).to_le_bytes());
        block.extend([0; 4]);
        block.extend(first.0.to_le_bytes());
        block.extend(last.0.to_le_bytes());
        block.extend(deflated);
        let crc = crc32fast::hash(&block[8..]);
        block[4..8].copy_from_slice(&crc.to_le_bytes());
        self.to.write_all(&block)?;
        self.to.flush()?;
        self.written += block.len() as u64;
        Ok(())
    }

    /// Ends it in order, and says how many bytes it has.
    ///
    /// # Errors
    /// Why it has ended before; what was written until then replays.
    pub fn finish(mut self) -> Result<u64, RecordingError> {
        if let Some(failed) = self.failed {
            return Err(failed);
        }
        self.block()?;
        self.put(Date(0), Date(0), &[])?;
        Ok(self.written)
    }
}

fn encoded<T: serde::Serialize>(value: &T) -> Result<Vec<u8>, RecordingError> {
    rmp_serde::to_vec_named(value).map_err(|error| std::io::Error::other(error).into())
}
