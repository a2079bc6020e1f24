//! The owner's book of who reads which region in other processes. Pure.

use std::collections::{BTreeMap, BTreeSet};

/// Regions that other processes may still read, with a pin on each.
///
/// `K` identifies a region (the engine uses [`RegionName::region`](crate::RegionName)) and `P`
/// keeps it alive (the engine uses [`Region`](crate::Region)). A pin leaves the book when the last
/// lease on its region ends; dropping it then gives the space back, unless a local handle is left.
///
/// A holder is a process, by any number that is not reused while it appears here.
#[derive(Clone, Debug)]
pub struct Leases<K, P> {
    regions: BTreeMap<K, Lease<P>>,
    /// The same facts by holder, so that a death costs what the dead one held.
    held: BTreeMap<u64, BTreeSet<K>>,
}

#[derive(Clone, Debug)]
struct Lease<P> {
    pin: P,
    /// Grants of the region that each holder has not given back.
    holders: BTreeMap<u64, u64>,
}

/// A release for which there is no lease: given back before, or the holder was declared dead.
///
/// Nothing was changed; a release that crosses with the news of a death on its way is harmless.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("process {holder} holds no lease on this region")]
#[non_exhaustive]
pub struct NotHeld {
    /// The process that tried to give back.
    pub holder: u64,
}

impl<K: Ord + Clone, P> Leases<K, P> {
    /// An empty book.
    #[must_use]
    pub fn new() -> Self {
        Self {
            regions: BTreeMap::new(),
            held: BTreeMap::new(),
        }
    }

    /// Lets `holder` read `region`, once more if it already does. `pin` is asked for only when the
    /// region is not in the book yet.
    ///
    /// Grant before the name is sent, so that a fast release finds its lease.
    pub fn grant(&mut self, region: K, holder: u64, pin: impl FnOnce() -> P) {
        self.held.entry(holder).or_default().insert(region.clone());
        let lease = self.regions.entry(region).or_insert_with(|| Lease {
            pin: pin(),
            holders: BTreeMap::new(),
        });
        *lease.holders.entry(holder).or_default() += 1;
    }

    /// Takes back one grant; gives the pin when it was the region's last.
    ///
    /// # Errors
    ///
    /// [`NotHeld`] when `holder` has no grant left on `region`.
    pub fn release(&mut self, region: &K, holder: u64) -> Result<Option<P>, NotHeld> {
        let lease = self.regions.get_mut(region).ok_or(NotHeld { holder })?;
        let count = lease.holders.get_mut(&holder).ok_or(NotHeld { holder })?;
        *count -= 1;
        if *count > 0 {
            return Ok(None);
        }
        if let Some(regions) = self.held.get_mut(&holder) {
            regions.remove(region);
            if regions.is_empty() {
                self.held.remove(&holder);
            }
        }
        Ok(self.end(region, holder))
    }

    /// Takes back everything that a dead process held; gives the regions that became free.
    pub fn holder_died(&mut self, holder: u64) -> Vec<(K, P)> {
        let regions = self.held.remove(&holder).unwrap_or_default();
        regions
            .into_iter()
            .filter_map(|key| Some((key.clone(), self.end(&key, holder)?)))
            .collect()
    }

    /// The holders that may read `region` at present, in ascending order.
    pub fn holders(&self, region: &K) -> impl Iterator<Item = u64> {
        self.regions
            .get(region)
            .into_iter()
            .flat_map(|lease| lease.holders.keys().copied())
    }

    /// Regions in the book.
    #[must_use]
    pub fn len(&self) -> usize {
        self.regions.len()
    }

    /// Returns true while no other process may read anything.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.regions.is_empty()
    }

    /// Strikes `holder` from `region`, and the region from the book if no one is left.
    fn end(&mut self, region: &K, holder: u64) -> Option<P> {
        let lease = self.regions.get_mut(region)?;
        lease.holders.remove(&holder);
        if !lease.holders.is_empty() {
            return None;
        }
        self.regions.remove(region).map(|lease| lease.pin)
    }
}

impl<K: Ord + Clone, P> Default for Leases<K, P> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Grant(u8, u64),
        Release(u8, u64),
        Died(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            5 => (0u8..6, 0u64..4).prop_map(|(region, holder)| Step::Grant(region, holder)),
            4 => (0u8..6, 0u64..4).prop_map(|(region, holder)| Step::Release(region, holder)),
            1 => (0u64..4).prop_map(Step::Died),
        ]
    }

    proptest! {
        /// The oracle is the plain list of grants: a region is free when none is left on it.
        #[test]
        fn a_region_is_freed_exactly_when_its_last_grant_ends(
            steps in prop::collection::vec(step(), 0..120),
        ) {
            let mut leases = Leases::new();
            let mut grants: Vec<(u8, u64)> = Vec::new();
            for step in steps {
                match step {
                    Step::Grant(region, holder) => {
                        leases.grant(region, holder, || region);
                        grants.push((region, holder));
                    }
                    Step::Release(region, holder) => {
                        let at = grants.iter().position(|grant| *grant == (region, holder));
                        let expected = match at {
                            None => Err(NotHeld { holder }),
                            Some(at) => {
                                grants.swap_remove(at);
                                let last = grants.iter().all(|grant| grant.0 != region);
                                Ok(last.then_some(region))
                            }
                        };
                        prop_assert_eq!(leases.release(&region, holder), expected);
                    }
                    Step::Died(holder) => {
                        let had: BTreeSet<u8> =
                            grants.iter().filter(|g| g.1 == holder).map(|g| g.0).collect();
                        grants.retain(|grant| grant.1 != holder);
                        let free: Vec<(u8, u8)> = had
                            .into_iter()
                            .filter(|region| grants.iter().all(|grant| grant.0 != *region))
                            .map(|region| (region, region))
                            .collect();
                        prop_assert_eq!(leases.holder_died(holder), free);
                    }
                }
                let live: BTreeSet<u8> = grants.iter().map(|grant| grant.0).collect();
                prop_assert_eq!(leases.len(), live.len());
                prop_assert_eq!(leases.is_empty(), live.is_empty());
                for region in live {
                    let holders: BTreeSet<u64> =
                        grants.iter().filter(|g| g.0 == region).map(|g| g.1).collect();
                    prop_assert!(leases.holders(&region).eq(holders));
                }
            }
        }
    }
}
