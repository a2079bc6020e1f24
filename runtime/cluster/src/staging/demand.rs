//! When files are read while they come, and how that is bounded. Pure.

use std::time::Duration;

/// Settings for files of a job that are brought on demand to a node that lacks many of them: its
/// program starts at once, what it reads is brought before the rest, and the rest in the order in
/// which earlier starts have read it.
///
/// This needs `/dev/fuse` and the right to mount. Without them, and where little is missing, all
/// files are brought before the program starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OnDemand {
    /// More missing bytes than these are worth it: fewer are brought in the time that a mount and its
    /// reads cost. `u64::MAX` for never.
    pub above_bytes: u64,
    /// The longest time that a read waits for a piece that no node gives, before it fails.
    pub patience: Duration,
    /// The length of a start: what is read later is not part of it.
    pub window: Duration,
}

impl Default for OnDemand {
    /// 64 MiB; half a minute, in which a node comes back or is known to be lost; two minutes.
    fn default() -> Self {
        Self {
            above_bytes: 64 << 20,
            patience: Duration::from_secs(30),
            window: Duration::from_secs(120),
        }
    }
}

/// The part of a bundle that a node has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Holding {
    /// All bytes of the bundle.
    pub(crate) bytes: u64,
    /// Those of pieces that are not here.
    pub(crate) missing: u64,
    /// Set where its files are put together.
    pub(crate) is_assembled: bool,
    /// Set where it is known what a start reads first.
    pub(crate) is_known: bool,
}

impl OnDemand {
    /// Returns true where files are to be read while they come. Also where nothing has to come,
    /// when nobody knows yet what a start of so large a program reads: somebody must be the first
    /// to find out.
    pub(crate) const fn is_worth(&self, holding: Holding) -> bool {
        let large = holding.bytes > self.above_bytes && !holding.is_known;
        !holding.is_assembled && (holding.missing > self.above_bytes || large)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_is_for_what_is_large_and_not_here_or_not_known() {
        let rule = OnDemand {
            above_bytes: 10,
            ..OnDemand::default()
        };
        let check = |bytes, missing, is_assembled, is_known| {
            rule.is_worth(Holding {
                bytes,
                missing,
                is_assembled,
                is_known,
            })
        };
        assert!(check(20, 11, false, true));
        assert!(check(20, 11, false, false));
        assert!(!check(20, 10, false, true));
        assert!(check(20, 0, false, false));
        assert!(!check(10, 10, false, false));
        assert!(!check(20, 11, true, false));
        let never = OnDemand {
            above_bytes: u64::MAX,
            ..rule
        };
        let all = Holding {
            bytes: u64::MAX,
            missing: u64::MAX,
            is_assembled: false,
            is_known: false,
        };
        assert!(!never.is_worth(all));
    }
}
