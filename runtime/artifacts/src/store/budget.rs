//! The account of a store: the bytes it holds, and the most it may hold.

use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

/// Bytes on the disk of a store. Names and the listings of bundles are not counted; they take about
/// a part in five thousand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Footprint {
    /// Of pieces.
    pub piece_bytes: u64,
    /// Of folders in which bundles were put together.
    pub folder_bytes: u64,
}

/// The store would hold more than it may. Nothing was written: collect, or give it more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{needed} more bytes of {kind} do not fit the store: it holds {held} of at most {budget}; \
     collect what is not in use, or give it more"
)]
pub struct Full {
    /// The kind of content that is full.
    pub kind: ContentKind,
    /// Bytes that were to be added.
    pub needed: u64,
    /// The most that it may hold.
    pub budget: u64,
    /// Bytes of that kind that it holds, with those that are being written.
    pub held: u64,
}

/// A kind of content of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContentKind {
    /// Pieces.
    Pieces,
    /// Folders in which bundles were put together.
    Folders,
}

impl std::fmt::Display for ContentKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Pieces => "pieces",
            Self::Folders => "folders",
        })
    }
}

/// The account of a store.
#[derive(Debug)]
pub(super) struct Account {
    budget: Footprint,
    held: Mutex<Footprint>,
}

impl Account {
    pub(super) fn new(budget: Footprint, held: Footprint) -> Self {
        Self {
            budget,
            held: Mutex::new(held),
        }
    }

    /// The bytes held, locked.
    pub(super) fn held(&self) -> MutexGuard<'_, Footprint> {
        // Numbers are whole whatever panicked.
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes room for `needed` bytes, which are given back unless they are kept.
    pub(super) fn reserve(&self, kind: ContentKind, needed: u64) -> Result<Reserved<'_>, Full> {
        let mut sums = self.held();
        let (held, budget) = (*kind.of(&mut sums), *kind.of(&mut { self.budget }));
        if held.saturating_add(needed) > budget {
            return Err(Full {
                kind,
                needed,
                budget,
                held,
            });
        }
        *kind.of(&mut sums) += needed;
        Ok(Reserved {
            account: self,
            kind,
            bytes: needed,
        })
    }

    /// Bytes went away.
    pub(super) fn release(&self, kind: ContentKind, bytes: u64) {
        let mut sums = self.held();
        let held = kind.of(&mut sums);
        // Another process may have added what goes away here, which this account did not see.
        *held = held.saturating_sub(bytes);
    }
}

impl ContentKind {
    fn of(self, footprint: &mut Footprint) -> &mut u64 {
        match self {
            Self::Pieces => &mut footprint.piece_bytes,
            Self::Folders => &mut footprint.folder_bytes,
        }
    }
}

/// Room that goes back unless it is kept.
#[derive(Debug)]
#[must_use]
pub(super) struct Reserved<'a> {
    account: &'a Account,
    kind: ContentKind,
    bytes: u64,
}

impl Reserved<'_> {
    /// The bytes are on the disk.
    pub(super) fn keep(mut self) {
        self.bytes = 0;
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        self.account.release(self.kind, self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_refused_with_the_numbers() {
        let budget = Footprint {
            piece_bytes: 10,
            folder_bytes: 5,
        };
        let account = Account::new(budget, Footprint::default());
        account.reserve(ContentKind::Pieces, 7).unwrap().keep();
        let dropped = account.reserve(ContentKind::Pieces, 3).unwrap();
        let full = account.reserve(ContentKind::Pieces, 1).unwrap_err();
        assert_eq!((full.needed, full.budget, full.held), (1, 10, 10));
        drop(dropped);
        account.reserve(ContentKind::Pieces, 3).unwrap().keep();
        let full = account.reserve(ContentKind::Folders, u64::MAX).unwrap_err();
        assert_eq!(full.kind, ContentKind::Folders);
        assert!(full.to_string().contains("holds 0 of at most 5"), "{full}");
    }
}
