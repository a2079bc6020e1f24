//! The states of the readers of a data loader, dealt anew where readers become more or fewer: no
//! sample is dropped, and none comes twice. Pure.

use bytes::{BufMut, Bytes, BytesMut};
use serde::{Deserialize, Serialize};

/// The state from which one reader goes on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReaderState {
    /// Sources that it reads from, and its position in each.
    pub streams: Vec<Stream>,
    /// Samples that it has read and nobody has trained on yet, oldest first.
    pub buffer: Vec<Sample>,
}

/// Samples of a source that one reader reads: `next`, `next + stride` and so on, up to `end`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Stream {
    /// The source: a file, a shard, an epoch of a shuffle.
    pub source: String,
    /// The sample that it reads next.
    pub next: u64,
    /// Distance between two of its samples; those between are of other readers.
    pub stride: u64,
    /// Where the source ends, unless it never does.
    pub end: Option<u64>,
}

/// A sample that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    /// The source that it is of.
    pub source: String,
    /// Which sample of it.
    pub index: u64,
    /// The sample, tokenised or however the reader has it.
    pub bytes: Bytes,
}

/// A state without the bytes of its samples, which lie behind it.
#[derive(Serialize, Deserialize)]
struct Head {
    streams: Vec<Stream>,
    samples: Vec<(String, u64, usize)>,
}

impl ReaderState {
    /// The state as a file.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let samples = self.buffer.iter();
        let head = Head {
            streams: self.streams.clone(),
            samples: samples
                .map(|sample| (sample.source.clone(), sample.index, sample.bytes.len()))
                .collect(),
        };
        let head = serde_json::to_vec(&head).expect("names are text, so it is JSON");
        let bytes: usize = self.buffer.iter().map(|sample| sample.bytes.len()).sum();
        let mut file = BytesMut::with_capacity(8 + head.len() + bytes);
        file.put_u64_le(head.len() as u64);
        file.put_slice(&head);
        for sample in &self.buffer {
            file.put_slice(&sample.bytes);
        }
        file.freeze()
    }

    /// Reads what [`encode`](Self::encode) wrote.
    ///
    /// # Errors
    /// What is wrong with it, in words.
    pub fn decode(file: &[u8]) -> Result<Self, String> {
        let short = || "the state of a reader is cut off".to_owned();
        let (length, rest) = file.split_first_chunk().ok_or_else(short)?;
        let length = usize::try_from(u64::from_le_bytes(*length)).map_err(|_| short())?;
        let (head, mut rest) = rest.split_at_checked(length).ok_or_else(short)?;
        let head: Head = serde_json::from_slice(head).map_err(|error| error.to_string())?;
        let mut buffer = vec![];
        for (source, index, bytes) in head.samples {
            let (sample, behind) = rest.split_at_checked(bytes).ok_or_else(short)?;
            rest = behind;
            buffer.push(Sample {
                source,
                index,
                bytes: Bytes::copy_from_slice(sample),
            });
        }
        Ok(Self {
            streams: head.streams,
            buffer,
        })
    }
}

impl Stream {
    /// All samples of a source from `next` on.
    #[must_use]
    pub fn new(source: impl Into<String>, next: u64, end: Option<u64>) -> Self {
        Self {
            source: source.into(),
            next,
            stride: 1,
            end,
        }
    }

    /// Takes the next sample, if there is one.
    pub fn take(&mut self) -> Option<u64> {
        let index = self.next;
        if self.end.is_some_and(|end| index >= end) {
            return None;
        }
        self.next = index.saturating_add(self.stride);
        Some(index)
    }

    /// The same samples as `parts` streams.
    #[must_use]
    pub fn split(&self, parts: u64) -> Vec<Self> {
        let part = |at: u64| Self {
            next: self.next.saturating_add(at.saturating_mul(self.stride)),
            stride: self.stride.saturating_mul(parts),
            ..self.clone()
        };
        (0..parts).map(part).collect()
    }
}

/// Deals the states of all readers of a loader to `readers`, at least one. As many as before have
/// what they had, to the bit. Else streams and buffered samples go round among the new ones, in the
/// order in which the old would have given them; where there are fewer streams than readers, each is
/// split.
#[must_use]
pub fn reshard(states: Vec<ReaderState>, readers: usize) -> Vec<ReaderState> {
    let readers = readers.max(1);
    if states.len() == readers {
        return states;
    }
    let mut dealt = vec![ReaderState::default(); readers];
    let mut streams = vec![];
    let mut buffers = vec![];
    for state in states {
        streams.push(state.streams);
        buffers.push(state.buffer);
    }
    let streams = in_turns(streams);
    let parts = readers.div_ceil(streams.len().max(1)) as u64;
    // Parts of one stream go to readers that are far apart, so that none has two of one.
    let split: Vec<Vec<Stream>> = streams.iter().map(|stream| stream.split(parts)).collect();
    for (at, stream) in in_turns(split).into_iter().enumerate() {
        dealt[at % readers].streams.push(stream);
    }
    for (at, sample) in in_turns(buffers).into_iter().enumerate() {
        dealt[at % readers].buffer.push(sample);
    }
    dealt
}

/// The first of each, then the second of each, and so on.
fn in_turns<T>(lists: Vec<Vec<T>>) -> Vec<T> {
    let mut lists: Vec<_> = lists.into_iter().map(Vec::into_iter).collect();
    let mut all = vec![];
    loop {
        let before = all.len();
        all.extend(lists.iter_mut().filter_map(Iterator::next));
        if all.len() == before {
            return all;
        }
    }
}

/// Under which name a checkpoint has the state of a reader.
pub(crate) fn blob_name(loader: &str, index: usize) -> String {
    format!("loader/{loader}/{index}")
}

#[cfg(test)]
mod tests;
