//! Faults that befell devices between two looks at the machine.

use std::time::Duration;

use odeon_devices::fault::{FaultKind, GpuFault, Remedy};
use odeon_devices::inventory::{DeviceFacts, Inventory, XIDS_MAX};

use crate::{Action, Detector, Finding, FindingCause, Observation};

/// The look is at the devices of a machine; who is to blame is a device, by its index.
impl Observation for Inventory {
    type Subject = u32;
    type Moment = Duration;
    type Cause = FaultKind;
}

impl FindingCause for FaultKind {
    fn action(&self) -> Action {
        // The remedy is the same of every device.
        match GpuFault::new(0, *self).remedy() {
            Remedy::ReplaceProcess => Action::EndProcess,
            Remedy::QuarantineDevice => Action::QuarantineDevice,
            _ => Action::Tell,
        }
    }
}

/// Finds what has befallen devices since the look before, each fault once. A driver that cannot be asked
/// tells nothing of them: whatever runs on them goes on.
#[derive(Clone, Debug, Default)]
pub struct DeviceFaults {
    before: Option<Inventory>,
}

impl DeviceFaults {
    /// One that has looked before.
    #[must_use]
    pub const fn since(before: Inventory) -> Self {
        Self {
            before: Some(before),
        }
    }
}

impl Detector<Inventory> for DeviceFaults {
    fn observe(&mut self, seen: &Inventory, at: Duration) -> Vec<Finding<Inventory>> {
        let before = self.before.replace(seen.clone());
        let Some(before) = before.filter(|it| it.driver.value().is_some()) else {
            return vec![];
        };
        if seen.driver.value().is_none() {
            return vec![];
        }
        let mut found = vec![];
        for facts in &seen.devices {
            let same = |other: &&DeviceFacts| other.index == facts.index;
            let Some(old) = before.devices.iter().find(same) else {
                continue;
            };
            found.extend(befallen(old, facts).into_iter().map(|cause| Finding {
                who: vec![facts.index],
                cause,
                since: at,
            }));
        }
        found
    }
}

/// Faults of one device.
fn befallen(old: &DeviceFacts, facts: &DeviceFacts) -> Vec<FaultKind> {
    let mut faults = vec![];
    if let (Some(old), Some(new)) = (old.xids.value(), facts.xids.value()) {
        // A full list has dropped its oldest, so the old one ends somewhere in the new one.
        let kept = if new.len() < XIDS_MAX {
            old.len().min(new.len())
        } else {
            let ends = |skip: &usize| new.starts_with(&old[*skip..]);
            (0..=old.len())
                .find(ends)
                .map_or(0, |skip| old.len() - skip)
        };
        // An event without a number is one that nobody knows: the device rests.
        let code = |code: Option<u64>| code.unwrap_or(u64::MAX);
        let new = new[kept..].iter();
        faults.extend(new.map(|xid| FaultKind::Xid {
            code: code(xid.code),
        }));
    }
    let uncorrected = |facts: &DeviceFacts| facts.ecc.value().map(|ecc| ecc.uncorrected);
    if let (Some(old), Some(new)) = (uncorrected(old), uncorrected(facts))
        && new > old
    {
        faults.push(FaultKind::Ecc);
    }
    // Once may be a hiccup of the driver.
    let unreadable = |facts: &DeviceFacts| facts.memory.value().is_none();
    if unreadable(old) && unreadable(facts) && facts.utilisation.value().is_none() {
        faults.push(FaultKind::Lost);
    }
    faults
}

#[cfg(test)]
mod tests {
    use odeon_devices::fake::{Fake, Machine, Spec, Strike};
    use odeon_devices::inventory::{Probe, Reading, Xid};
    use odeon_topology::DeviceModel;

    use super::*;

    fn eight() -> (Fake, Machine) {
        let fake = Fake::new(Spec::cluster(1, DeviceModel::default())).unwrap();
        let machine = fake.machine("node0").unwrap();
        (fake, machine)
    }

    /// Faults of `now` for one that has seen `before`, each with its device.
    fn between(before: &Inventory, now: &Inventory) -> Vec<GpuFault> {
        let mut faults = DeviceFaults::since(before.clone());
        let found = faults.observe(now, Duration::from_secs(9));
        assert!(found.iter().all(|it| it.since == Duration::from_secs(9)));
        let found = found.iter();
        found.map(|it| GpuFault::new(it.who[0], it.cause)).collect()
    }

    #[test]
    fn what_is_new_between_two_looks_is_a_fault() {
        let (fake, mut machine) = eight();
        let before = machine.inventory();
        let at = Duration::ZERO;
        assert_eq!(
            DeviceFaults::default().observe(&before, at),
            [],
            "the first"
        );
        assert_eq!(between(&before, &before), []);
        assert!(fake.strike("node0/gpu1", Strike::Xid(31)));
        assert!(fake.strike("node0/gpu4", Strike::Ecc));
        assert!(fake.strike("node0/gpu6", Strike::Lost));
        let now = machine.inventory();
        let faults = between(&before, &now);
        assert!(faults.contains(&GpuFault::new(1, FaultKind::Xid { code: 31 })));
        assert!(faults.contains(&GpuFault::new(4, FaultKind::Ecc)));
        let lost = GpuFault::new(6, FaultKind::Lost);
        assert!(!faults.contains(&lost), "unreadable once");
        assert_eq!(between(&now, &now), [lost]);
        // A detector goes on from look to look.
        let mut goes_on = DeviceFaults::since(before);
        assert_eq!(goes_on.observe(&now, at).len(), faults.len());
        assert_eq!(goes_on.observe(&now, at).len(), 1);
    }

    #[test]
    fn the_action_follows_the_remedy() {
        for (cause, action) in [
            (FaultKind::Xid { code: 31 }, Action::EndProcess),
            (FaultKind::Xid { code: 79 }, Action::QuarantineDevice),
            (FaultKind::Sticky, Action::EndProcess),
            (FaultKind::Ecc, Action::QuarantineDevice),
            (FaultKind::Lost, Action::QuarantineDevice),
            (FaultKind::OutOfMemory, Action::Tell),
        ] {
            assert_eq!(cause.action(), action, "{cause}");
        }
    }

    #[test]
    fn a_driver_that_vanishes_is_no_fault_of_the_devices() {
        let (_, mut machine) = eight();
        let before = machine.inventory();
        let mut now = before.clone();
        now.driver = Reading::unmeasured("the library does not fit the driver");
        for facts in &mut now.devices {
            *facts = facts.vanished("the library does not fit the driver");
        }
        assert_eq!(between(&before, &now), []);
        assert_eq!(between(&now, &now), []);
        assert_eq!(between(&now, &before), []);
    }

    #[test]
    fn a_flood_of_events_tells_only_the_new_ones() {
        let (_, mut machine) = eight();
        let mut before = machine.inventory();
        let xids = |codes: std::ops::Range<u64>| {
            let xids = codes.map(|code| Xid { code: Some(code) });
            Reading::Measured(xids.collect::<Vec<_>>())
        };
        let full = XIDS_MAX as u64;
        before.devices[0].xids = xids(0..full);
        let mut now = before.clone();
        now.devices[0].xids = xids(2..full + 2);
        let codes = [full, full + 1].map(|code| GpuFault::new(0, FaultKind::Xid { code }));
        assert_eq!(between(&before, &now), codes);
    }
}
