//! Choice of the items that go when a store makes room. Pure.

use std::collections::HashSet;
use std::time::SystemTime;

use crate::Digest;

/// Something that a store holds and could do without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Item {
    pub(super) digest: Digest,
    pub(super) bytes: u64,
    pub(super) used: SystemTime,
}

/// The items that go, first what has not been used for longest, until no more than `down_to` bytes
/// are left or all that is left is in `marked`.
pub(super) fn sweep(items: &[Item], marked: &HashSet<Digest>, down_to: u64) -> Vec<Item> {
    let mut held: u64 = items.iter().map(|item| item.bytes).sum();
    let mut free: Vec<Item> = items
        .iter()
        .copied()
        .filter(|item| !marked.contains(&item.digest))
        .collect();
    free.sort_by_key(|item| (item.used, item.digest));
    let mut going = free.into_iter();
    std::iter::from_fn(|| {
        let item = if held > down_to { going.next() } else { None }?;
        held -= item.bytes;
        Some(item)
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    fn items() -> impl Strategy<Value = Vec<(Item, bool)>> {
        let item = (1_u64..100, 0_u64..20, any::<bool>());
        prop::collection::vec(item, 0..40).prop_map(|rows| {
            let item = |(n, (bytes, used, marked)): (usize, (u64, u64, bool))| {
                let item = Item {
                    digest: Digest::of(&n.to_le_bytes()),
                    bytes,
                    used: SystemTime::UNIX_EPOCH + Duration::from_secs(used),
                };
                (item, marked)
            };
            rows.into_iter().enumerate().map(item).collect()
        })
    }

    proptest! {
        #[test]
        fn a_sweep_takes_the_oldest_that_nobody_needs_and_no_more_than_it_must(
            items in items(), down_to in 0_u64..3_000,
        ) {
            let marked: HashSet<Digest> =
                items.iter().filter(|(_, marked)| *marked).map(|(it, _)| it.digest).collect();
            let items: Vec<Item> = items.into_iter().map(|(item, _)| item).collect();
            let going = sweep(&items, &marked, down_to);
            prop_assert!(going.iter().all(|item| !marked.contains(&item.digest)));
            let sum = |items: &[Item]| items.iter().map(|item| item.bytes).sum::<u64>();
            let left = sum(&items) - sum(&going);
            let stays = |item: &&Item| !going.contains(item) && !marked.contains(&item.digest);
            let staying: Vec<&Item> = items.iter().filter(stays).collect();
            if let Some(last) = going.last() {
                // It was still too much before the last one went, and nothing older stays.
                prop_assert!(left + last.bytes > down_to);
                prop_assert!(staying.iter().all(|item| item.used >= last.used));
            }
            prop_assert!(left <= down_to || staying.is_empty());
        }
    }
}
