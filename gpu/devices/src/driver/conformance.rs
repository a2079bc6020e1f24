//! One suite that every driver passes, on a device and on a fake one.
//!
//! [`driver_conformance_tests!`](crate::driver_conformance_tests) makes one test of each promise.
//! The suite takes a few MiB of device 0 and gives them back.

use super::{BufferId, ContextId, Driver, DriverError, Operation, Progress, Side};
use crate::inventory::Reading;
use crate::memory::MemoryError;

/// A driver to check, and what the suite needs around it.
#[derive(Debug)]
pub struct Rig<D> {
    /// With at least one sound device.
    pub driver: D,
    /// A process that the driver acts for.
    pub process: u32,
    /// Lets a little time pass: virtual time, or a turn of the processor.
    pub pass: fn(&mut D),
}

/// The most times that time may pass before an operation of the suite must be done.
const PASSES_MAX: u32 = 10_000_000;
const MIB: u64 = 1 << 20;
const OWNER: &str = "conformance";

/// Makes one test of each promise. The expression gives a [`Rig`].
///
/// ```
/// use std::time::Duration;
///
/// use odeon_devices::driver::conformance::Rig;
/// use odeon_devices::fake::{Fake, Machine, Spec};
/// use odeon_topology::DeviceModel;
///
/// fn rig() -> Rig<Machine> {
///     let fake = Fake::new(Spec::cluster(1, DeviceModel::default())).expect("a sound specification");
///     Rig {
///         driver: fake.machine("node0").expect("the only node"),
///         process: 1,
///         pass: |machine| machine.advance(Duration::from_millis(1)),
///     }
/// }
///
/// odeon_devices::driver_conformance_tests!(rig());
/// ```
#[macro_export]
macro_rules! driver_conformance_tests {
    ($rig:expr) => {
        $crate::driver_conformance_tests!($rig; copies_arrive_in_order
            a_budget_refuses_its_owner_by_name closing_gives_all_memory_back
            handles_of_what_is_gone_are_refused places_outside_of_memory_are_refused
            unknown_devices_are_refused an_idle_device_is_healthy);
    };
    ($rig:expr; $($check:ident)*) => {$(
        #[test]
        fn $check() {
            $crate::driver::conformance::$check($rig);
        }
    )*};
}

impl<D: Driver> Rig<D> {
    #[track_caller]
    fn open(&mut self) -> ContextId {
        let context = expect("open", self.driver.open(0, self.process));
        for side in [Side::Device, Side::Host] {
            let reserved = self.driver.reserve(context, side, OWNER, 16 * MIB);
            expect("reserve", reserved);
        }
        context
    }

    #[track_caller]
    fn alloc(&mut self, context: ContextId, side: Side, bytes: u64) -> BufferId {
        expect("alloc", self.driver.alloc(context, side, OWNER, bytes))
    }

    /// Lets time pass until the operation is done.
    #[track_caller]
    fn finish(&mut self, operation: &Operation) {
        for _ in 0..PASSES_MAX {
            if expect("poll", self.driver.poll(operation)) == Progress::Done {
                return;
            }
            (self.pass)(&mut self.driver);
        }
        panic!("{operation:?} does not end");
    }

    #[track_caller]
    fn held(&mut self) -> u64 {
        match expect("held", self.driver.held(0, self.process)) {
            Reading::Measured(bytes) => bytes,
            // A driver that cannot count by process is not wrong about it.
            Reading::Unmeasured { .. } => 0,
        }
    }
}

#[track_caller]
fn expect<T>(what: &str, result: Result<T, DriverError>) -> T {
    match result {
        Ok(value) => value,
        Err(error) => panic!("{what}: {error}"),
    }
}

#[track_caller]
fn expect_error<T>(result: Result<T, DriverError>, fits: impl Fn(&DriverError) -> bool) {
    match result {
        Ok(_) => panic!("accepted what it should refuse"),
        Err(error) => assert!(fits(&error), "refused otherwise: {error:?}"),
    }
}

/// Bytes go to the device, through it and back, and a later copy sees an earlier one.
pub fn copies_arrive_in_order<D: Driver>(mut rig: Rig<D>) {
    let context = rig.open();
    let length = 3 * MIB + 17;
    let sent: Vec<u8> = (0..length).map(|i| (i * 7 % 253) as u8).collect();
    let there = rig.alloc(context, Side::Host, length);
    let back = rig.alloc(context, Side::Host, length);
    let first = rig.alloc(context, Side::Device, length);
    let second = rig.alloc(context, Side::Device, length + 5);
    expect("write", rig.driver.write(there.at(0), &sent));
    let begun = [
        (there.at(0), first.at(0)),
        (first.at(0), second.at(5)),
        (second.at(5), back.at(0)),
    ]
    .map(|(from, to)| expect("copy", rig.driver.copy(from, to, length)));
    for operation in &begun {
        rig.finish(operation);
        rig.finish(operation); // asking again is allowed
    }
    let mut got = vec![0; sent.len()];
    expect("read", rig.driver.read(back.at(0), &mut got));
    assert!(got == sent, "other bytes came back");
    let mut middle = [0; 3];
    expect("read", rig.driver.read(back.at(1000), &mut middle));
    assert_eq!(middle, sent[1000..1003]);
    expect("close", rig.driver.close(context));
}

/// The owner that would exceed its reservation is refused by name; others are not.
pub fn a_budget_refuses_its_owner_by_name<D: Driver>(mut rig: Rig<D>) {
    let context = rig.open();
    let side = Side::Device;
    expect("reserve", rig.driver.reserve(context, side, "other", MIB));
    let held = rig.alloc(context, side, 10 * MIB);
    let asked = rig.driver.alloc(context, side, OWNER, 7 * MIB);
    expect_error(
        asked,
        |error| matches!(error, DriverError::Memory(MemoryError::OverBudget { owner, .. }) if owner == OWNER),
    );
    let other = expect("alloc", rig.driver.alloc(context, side, "other", MIB));
    let nobody = rig.driver.alloc(context, side, "nobody", 1);
    expect_error(nobody, |error| {
        matches!(error, DriverError::Memory(MemoryError::Unreserved { .. }))
    });
    expect("free", rig.driver.free(held));
    let again = rig.alloc(context, side, 16 * MIB);
    let stats = expect("owner", rig.driver.owner(context, side, OWNER)).unwrap_or_default();
    assert_eq!((stats.used_bytes, stats.refusals), (16 * MIB, 1));
    for buffer in [again, other] {
        expect("free", rig.driver.free(buffer));
    }
    expect("close", rig.driver.close(context));
}

/// All memory of a context is with the device again after it is closed, freed before or not.
pub fn closing_gives_all_memory_back<D: Driver>(mut rig: Rig<D>) {
    let warm = rig.open();
    let before = rig.held();
    let context = rig.open();
    let freed = rig.alloc(context, Side::Device, 8 * MIB);
    rig.alloc(context, Side::Device, 5 * MIB);
    rig.alloc(context, Side::Device, 100);
    expect("free", rig.driver.free(freed));
    expect("close", rig.driver.close(context));
    for _ in 0..PASSES_MAX {
        if rig.held() <= before {
            expect("close", rig.driver.close(warm));
            return;
        }
        (rig.pass)(&mut rig.driver);
    }
    panic!("{} bytes are held, {before} before", rig.held());
}

/// Freed memory and closed contexts are refused, whatever took their place.
pub fn handles_of_what_is_gone_are_refused<D: Driver>(mut rig: Rig<D>) {
    let context = rig.open();
    let buffer = rig.alloc(context, Side::Host, 100);
    let target = rig.alloc(context, Side::Device, 100);
    expect("free", rig.driver.free(buffer));
    let _heir = rig.alloc(context, Side::Host, 100);
    let no_buffer = |error: &DriverError| *error == DriverError::NoBuffer;
    expect_error(rig.driver.free(buffer), no_buffer);
    expect_error(rig.driver.write(buffer.at(0), &[1]), no_buffer);
    expect_error(rig.driver.copy(buffer.at(0), target.at(0), 1), no_buffer);
    let operation = expect("copy", rig.driver.copy(target.at(0), target.at(50), 50));
    expect("close", rig.driver.close(context));
    let no_context = |error: &DriverError| *error == DriverError::NoContext;
    expect_error(rig.driver.close(context), no_context);
    expect_error(rig.driver.poll(&operation), no_context);
    expect_error(
        rig.driver.alloc(context, Side::Device, OWNER, 1),
        no_context,
    );
    expect_error(rig.driver.free(target), no_buffer);
}

/// A place that does not lie in its memory is refused before anything is touched.
pub fn places_outside_of_memory_are_refused<D: Driver>(mut rig: Rig<D>) {
    let context = rig.open();
    let host = rig.alloc(context, Side::Host, 100);
    let device = rig.alloc(context, Side::Device, 100);
    let outside = |error: &DriverError| matches!(error, DriverError::OutOfRange { .. });
    expect_error(rig.driver.write(host.at(99), &[1, 2]), outside);
    expect_error(rig.driver.read(host.at(u64::MAX), &mut [0]), outside);
    expect_error(rig.driver.copy(host.at(0), device.at(1), 100), outside);
    expect_error(rig.driver.copy(host.at(50), device.at(0), 51), outside);
    expect_error(rig.driver.copy(host.at(1), device.at(0), u64::MAX), outside);
    expect_error(rig.driver.write(device.at(0), &[1]), |error| {
        *error == DriverError::NotHost
    });
    expect("close", rig.driver.close(context));
}

/// A device that is not there is an error that says how many there are.
pub fn unknown_devices_are_refused<D: Driver>(mut rig: Rig<D>) {
    let devices = rig.driver.devices();
    assert!(devices > 0, "the suite needs a device");
    let unknown = |error: &DriverError| {
        *error
            == DriverError::NoDevice {
                device: devices,
                devices,
            }
    };
    expect_error(rig.driver.open(devices, rig.process), unknown);
    expect_error(rig.driver.health(devices), unknown);
    expect_error(rig.driver.held(devices, rig.process), unknown);
}

/// A device without work takes work, and so it does after some.
pub fn an_idle_device_is_healthy<D: Driver>(mut rig: Rig<D>) {
    expect("health", rig.driver.health(0));
    let context = rig.open();
    let host = rig.alloc(context, Side::Host, MIB);
    let device = rig.alloc(context, Side::Device, MIB);
    let operation = expect("copy", rig.driver.copy(host.at(0), device.at(0), MIB));
    assert_eq!(operation.device, 0);
    rig.finish(&operation);
    expect("health", rig.driver.health(0));
    expect("close", rig.driver.close(context));
}
