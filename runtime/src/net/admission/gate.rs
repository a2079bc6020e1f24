//! Limits on attempts to join by address: strangers must not keep the nodes of a cluster out. Pure.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use crate::base::clock::Timestamp;

/// Handshakes of one address under way at once: half of all, since many nodes may start on one
/// machine.
const INSIDE_MAX: usize = 32;

/// Tries to join that may fail for one address within the time.
const FAILURES_MAX: u32 = 10;
const FAILURES_WITHIN: Duration = Duration::from_secs(60);

/// Addresses that are remembered. Beyond, the one that failed first is forgotten.
const ADDRESSES_MAX: usize = 4096;

/// Attempts under way and failures by address.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    inside: HashMap<IpAddr, usize>,
    failures: HashMap<IpAddr, Failures>,
}

#[derive(Clone, Copy, Debug)]
struct Failures {
    first: Timestamp,
    count: u32,
}

impl Gate {
    /// A handshake begins, unless too many of this address are under way.
    pub(crate) fn enter(&mut self, address: IpAddr) -> bool {
        let inside = self.inside.entry(of_one_host(address)).or_default();
        let fits = *inside < INSIDE_MAX;
        *inside += usize::from(fits);
        fits
    }

    /// One that began has ended.
    pub(crate) fn leave(&mut self, address: IpAddr) {
        let host = of_one_host(address);
        if let Some(inside) = self.inside.get_mut(&host) {
            *inside -= 1;
            if *inside == 0 {
                self.inside.remove(&host);
            }
        }
    }

    /// The time that an address has to wait after failures; `None` when it may try.
    pub(crate) fn wait(&self, address: IpAddr, now: Timestamp) -> Option<Duration> {
        let failures = self.failures.get(&of_one_host(address))?;
        let left = failures.first.after(FAILURES_WITHIN).left(now);
        (failures.count >= FAILURES_MAX && !left.is_zero()).then_some(left)
    }

    /// A try to join has failed.
    pub(crate) fn failed(&mut self, address: IpAddr, now: Timestamp) {
        let host = of_one_host(address);
        if self.failures.len() >= ADDRESSES_MAX && !self.failures.contains_key(&host) {
            let oldest = self.failures.iter().min_by_key(|(_, one)| one.first);
            if let Some(oldest) = oldest.map(|(host, _)| *host) {
                self.failures.remove(&oldest);
            }
        }
        let fresh = Failures {
            first: now,
            count: 0,
        };
        let failures = self.failures.entry(host).or_insert(fresh);
        if failures.first.after(FAILURES_WITHIN).left(now).is_zero() {
            *failures = fresh;
        }
        failures.count += 1;
    }
}

/// Whoever has an address of version 6 has 2⁶⁴ of them.
const fn of_one_host(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let host = address.to_bits() >> 64 << 64;
            IpAddr::V6(Ipv6Addr::from_bits(host))
        }
        v4 @ IpAddr::V4(_) => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Timestamp {
        Timestamp(0).after(Duration::from_secs(seconds))
    }

    #[test]
    fn an_address_fails_so_often_and_then_waits() {
        let (one, other) = ("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap());
        let mut gate = Gate::default();
        for n in 0..FAILURES_MAX {
            assert_eq!(gate.wait(one, at(1)), None, "after {n}");
            gate.failed(one, at(1));
        }
        assert_eq!(gate.wait(one, at(21)), Some(Duration::from_secs(40)));
        assert_eq!(
            gate.wait("::ffff:10.0.0.1".parse().unwrap(), at(1)),
            gate.wait(one, at(1))
        );
        assert_eq!(gate.wait(other, at(1)), None);
        assert_eq!(gate.wait(one, at(61)), None);
        gate.failed(one, at(61));
        assert_eq!(gate.wait(one, at(62)), None);
    }

    #[test]
    fn one_address_does_not_take_all_handshakes() {
        let (one, near) = (
            "2001:db8::1".parse().unwrap(),
            "2001:db8::ffff:2".parse().unwrap(),
        );
        let mut gate = Gate::default();
        assert_eq!((0..100).filter(|_| gate.enter(one)).count(), INSIDE_MAX);
        assert!(!gate.enter(near) && gate.enter("2001:db8:0:1::1".parse().unwrap()));
        gate.leave(one);
        assert!(gate.enter(near) && !gate.enter(one));
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut gate = Gate::default();
        for n in 0..2 * ADDRESSES_MAX as u32 {
            let address = IpAddr::V4(n.into());
            gate.failed(address, at(u64::from(n)));
            assert!(gate.enter(address));
            gate.leave(address);
        }
        assert_eq!(gate.failures.len(), ADDRESSES_MAX);
        assert!(gate.inside.is_empty());
    }
}
