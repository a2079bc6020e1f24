//! Choice of the number of loaders of each source, from what it was measured to take.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::sample::SourceNumber;

/// The measured time and memory that a source takes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, odeon::Shape)]
pub struct Profile {
    /// The source.
    pub source: SourceNumber,
    /// Seconds of one thread to read, decode and tokenise a sample.
    pub work_seconds: f64,
    /// Seconds of one thread to hand a sample on.
    pub transfer_seconds: f64,
    /// Bytes that a loader of it holds whatever it does: connections, indices, footers.
    pub memory_fixed: u64,
    /// Bytes that each thread holds beside that: buffers of what it works on.
    pub memory_per_thread: u64,
    /// Samples that steps want of it in a second.
    pub samples_per_second: f64,
}

/// Bounds on what one loader may take, and how full it should be.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, odeon::Shape)]
#[serde(deny_unknown_fields, default)]
pub struct LoaderCaps {
    /// Threads.
    pub threads: u32,
    /// Bytes of memory.
    pub memory: u64,
    /// The part of a thread's time that is planned for, above 0 and up to 1. The rest is for
    /// samples that take longer than the mean.
    pub fill: f64,
}

impl Default for LoaderCaps {
    fn default() -> Self {
        Self {
            threads: 8,
            memory: 8 << 30,
            fill: 0.8,
        }
    }
}

/// A source, or a shard of it, in a loader.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, odeon::Shape)]
pub struct Part {
    /// The source.
    pub source: SourceNumber,
    /// It has the cells whose number leaves this rest.
    pub shard: u32,
    /// Over this many.
    pub shards: u32,
}

/// A loader to start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, odeon::Shape)]
pub struct LoaderPreset {
    /// The sources, or shards of them, that it reads.
    pub parts: Vec<Part>,
    /// With so many threads.
    pub threads: u32,
    /// Bytes that it is expected to hold.
    pub memory: u64,
}

/// A source that no loader can read within the caps. Nothing was decided; raise them.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PartitionError {
    /// One thread of it takes more memory than a loader may.
    #[error("{source_number:?} takes {bytes} bytes with one thread, and a loader may take {cap}")]
    Memory {
        /// The source.
        source_number: SourceNumber,
        /// Bytes that it takes with one thread.
        bytes: u64,
        /// The most bytes that a loader may take.
        cap: u64,
    },
    /// A measure that is no number of at least 0, or caps that leave nothing.
    #[error("{0} is not a measure")]
    Measure(&'static str),
}

impl Profile {
    /// Threads that it keeps busy.
    #[must_use]
    pub fn busy(&self) -> f64 {
        self.samples_per_second * (self.work_seconds + self.transfer_seconds)
    }

    /// Samples in a second that a loader of so many threads gives.
    #[must_use]
    pub fn capacity(&self, threads: u32) -> f64 {
        f64::from(threads) / (self.work_seconds + self.transfer_seconds).max(1e-9)
    }
}

/// The loaders of all sources.
///
/// A source that needs more threads or memory than one loader may have is sharded over several,
/// equally. Light ones come together, the heaviest first and each into the first loader with room,
/// until a loader is full of work or memory.
///
/// # Errors
/// A source that fits into no loader, or a measure that is none.
pub fn partition(
    profiles: &[Profile],
    caps: &LoaderCaps,
) -> Result<Vec<LoaderPreset>, PartitionError> {
    if caps.threads == 0 || !(caps.fill > 0.0 && caps.fill <= 1.0) {
        return Err(PartitionError::Measure("caps"));
    }
    let mut loaders = vec![];
    let mut light = vec![];
    for profile in profiles {
        let busy = profile.busy() / caps.fill;
        if !(0.0..=1e6).contains(&busy) {
            return Err(PartitionError::Measure("busy"));
        }
        let bytes = profile
            .memory_fixed
            .saturating_add(profile.memory_per_thread);
        if bytes > caps.memory {
            return Err(PartitionError::Memory {
                source_number: profile.source,
                bytes,
                cap: caps.memory,
            });
        }
        // Threads that one loader of this source has memory for.
        let room = caps.memory - profile.memory_fixed;
        let held = room.checked_div(profile.memory_per_thread);
        let most = held.map_or(caps.threads, |held| {
            held.min(u64::from(caps.threads)) as u32
        });
        let threads = (busy.ceil() as u32).max(1);
        let shards = threads.div_ceil(most);
        if shards == 1 {
            light.push((busy, profile));
            continue;
        }
        let threads = threads.div_ceil(shards);
        loaders.extend((0..shards).map(|shard| LoaderPreset {
            parts: vec![Part {
                source: profile.source,
                shard,
                shards,
            }],
            threads,
            memory: profile.memory(threads),
        }));
    }
    loaders.extend(group(light, caps));
    Ok(loaders)
}

impl Profile {
    fn memory(&self, threads: u32) -> u64 {
        self.memory_fixed + self.memory_per_thread * u64::from(threads)
    }
}

/// Light sources together in loaders. One that shares a thread is counted with the memory of a
/// whole one, since it is there while the thread works for it.
fn group(mut light: Vec<(f64, &Profile)>, caps: &LoaderCaps) -> Vec<LoaderPreset> {
    let threads = |busy: f64| (busy.ceil() as u32).max(1);
    let weight = |(busy, profile): &(f64, &Profile)| {
        let memory = profile.memory(threads(*busy)) as f64 / caps.memory.max(1) as f64;
        memory.max(busy / f64::from(caps.threads))
    };
    light.sort_by(|a, b| {
        let order = weight(b).total_cmp(&weight(a));
        order.then(a.1.source.cmp(&b.1.source))
    });
    let mut groups: Vec<(f64, LoaderPreset)> = vec![];
    for (busy, profile) in light {
        let memory = profile.memory(threads(busy));
        let part = Part {
            source: profile.source,
            shard: 0,
            shards: 1,
        };
        let fits = |(held, loader): &&mut (f64, LoaderPreset)| {
            threads(held + busy) <= caps.threads && loader.memory + memory <= caps.memory
        };
        if let Some((held, loader)) = groups.iter_mut().find(fits) {
            *held += busy;
            loader.parts.push(part);
            loader.threads = threads(*held);
            loader.memory += memory;
        } else {
            let preset = LoaderPreset {
                parts: vec![part],
                threads: threads(busy),
                memory,
            };
            groups.push((busy, preset));
        }
    }
    groups.into_iter().map(|(_, loader)| loader).collect()
}
