//! The room on the disk of a daemon's folder: an alarm before it is full. [`DiskBound::judge`] is pure.

use std::fmt;
use std::path::PathBuf;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::resources::Bytes;

/// The least that is to be free of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskBound {
    /// A part of it, in hundredths.
    Share(u8),
    /// So many bytes.
    Bytes(u64),
}

impl Default for DiskBound {
    fn default() -> Self {
        Self::Share(5)
    }
}

impl fmt::Display for DiskBound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Share(percent) => write!(f, "{percent}%"),
            // As it is read again.
            Self::Bytes(bytes) => write!(f, "{}KiB", *bytes as f64 / 1024.0),
        }
    }
}

/// The room on a disk, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskRoom {
    /// The bytes that a daemon may still write.
    pub free: u64,
    /// Those of the whole disk.
    pub all: u64,
}

impl DiskBound {
    /// Why there is too little room, in words that stay the same while it lasts; none where there is
    /// enough. Of a disk that had too little, `known` says why, and a tenth more than the bound has to be
    /// free again, so that the alarm does not come and go.
    #[must_use]
    pub fn judge(self, room: DiskRoom, known: Option<&str>) -> Option<String> {
        let bound = match self {
            Self::Share(percent) => room.all / 100 * u64::from(percent),
            Self::Bytes(bytes) => bytes,
        };
        if let Some(known) = known {
            let again = bound.saturating_add(bound / 10);
            return (room.free < again).then(|| known.to_owned());
        }
        let least = match self {
            Self::Share(percent) => format!("{percent} %"),
            Self::Bytes(bytes) => Bytes(bytes).to_string(),
        };
        (room.free < bound).then(|| {
            format!(
                "less than {least} of its disk is free, {} of {} when that was seen",
                Bytes(room.free),
                Bytes(room.all)
            )
        })
    }
}

/// The disk of a folder, which is looked at again and again.
#[derive(Debug)]
pub(crate) struct WatchedDisk {
    folder: PathBuf,
    bound: DiskBound,
    low: Mutex<Option<String>>,
}

impl WatchedDisk {
    pub(crate) fn new(folder: PathBuf, bound: DiskBound) -> Self {
        Self {
            folder,
            bound,
            low: Mutex::default(),
        }
    }

    /// Why there is too little room at the moment. A disk that cannot be looked at is as it was.
    pub(crate) fn look(&self) -> Option<String> {
        let mut low = self.low.lock();
        match rustix::fs::statvfs(&self.folder) {
            Ok(seen) => {
                let room = DiskRoom {
                    free: seen.f_bavail.saturating_mul(seen.f_frsize),
                    all: seen.f_blocks.saturating_mul(seen.f_frsize),
                };
                let now = self.bound.judge(room, low.as_deref());
                let now = now.map(|why| match low.is_some() {
                    true => why,
                    false => format!("{why} (in {}): make room", self.folder.display()),
                });
                *low = now;
            }
            Err(error) => tracing::debug!(%error, "the disk of the folder cannot be looked at"),
        }
        low.clone()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const GIB: u64 = 1 << 30;

    fn room(free: u64) -> DiskRoom {
        DiskRoom {
            free,
            all: 100 * GIB,
        }
    }

    /// SEMANTICS 122.
    #[test]
    fn an_alarm_comes_below_the_bound_and_goes_a_tenth_above_it() {
        let share = DiskBound::Share(10);
        assert_eq!(share.judge(room(10 * GIB), None), None);
        let low = share.judge(room(10 * GIB - 1), None).unwrap();
        assert!(
            low.starts_with("less than 10 % of its disk is free"),
            "{low}"
        );
        // The words stay, whatever there is by then.
        let later = share.judge(room(GIB), Some(&low)).unwrap();
        assert_eq!(later, low);
        assert_eq!(
            share.judge(room(11 * GIB - 1), Some(&low)),
            Some(low.clone())
        );
        assert_eq!(share.judge(room(11 * GIB), Some(&low)), None);
        let bytes = DiskBound::Bytes(2 * GIB);
        assert_eq!(bytes.judge(room(2 * GIB), None), None);
        let low = bytes.judge(room(0), None).unwrap();
        assert!(low.contains("less than 2 GiB"), "{low}");
        assert_eq!(DiskBound::Share(0).judge(room(0), None), None);
    }

    proptest! {
        /// However the room changes, the alarm does not come and go by a byte.
        #[test]
        fn an_alarm_changes_with_the_room_alone(
            percent in 0u8..=100,
            all in 0u64..1 << 50,
            rooms in prop::collection::vec(0.0f64..1.0, 1..50),
        ) {
            let bound = DiskBound::Share(percent);
            let least = all / 100 * u64::from(percent);
            let mut low: Option<String> = None;
            for part in rooms {
                let free = (all as f64 * part) as u64;
                let next = bound.judge(DiskRoom { free, all }, low.as_deref());
                if free < least {
                    prop_assert!(next.is_some());
                } else if free >= least + least / 10 {
                    prop_assert!(next.is_none());
                } else {
                    prop_assert_eq!(&next, &low);
                }
                low = next;
            }
        }
    }
}
