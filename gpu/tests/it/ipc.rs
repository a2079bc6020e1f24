//! Device memory of one process is read by another, by its handle. Skipped by name where there is
//! no card.

use std::process::{self, Command};
use std::time::Duration;

use odeon_devices::driver::{BufferId, ContextId, Driver, Progress, Side};
use odeon_gpu::cuda::{CudaDriver, IpcHandle};

use crate::lacking::or_skipped;

const LENGTH: u64 = (3 << 20) + 5;
const OWNER: &str = "ipc";
/// Set for the second process: what it opens.
const HANDLE: &str = "ODEON_TEST_IPC_HANDLE";

fn content() -> Vec<u8> {
    (0..LENGTH).map(|i| (i * 11 % 251) as u8).collect()
}

fn started() -> Option<(CudaDriver, ContextId, BufferId)> {
    let mut driver = or_skipped(CudaDriver::new())?;
    let context = driver.open(0, process::id()).expect("a sound device");
    for side in [Side::Host, Side::Device] {
        driver
            .reserve(context, side, OWNER, 64 << 20)
            .expect("a sound device");
    }
    let host = driver
        .alloc(context, Side::Host, OWNER, LENGTH)
        .expect("a sound device");
    Some((driver, context, host))
}

fn copied(driver: &mut CudaDriver, from: BufferId, to: BufferId) {
    let operation = driver
        .copy(from.at(0), to.at(0), LENGTH)
        .expect("a sound device");
    for _ in 0..60_000 {
        if driver.poll(&operation).expect("a sound device") != Progress::Running {
            return;
        }
        std::thread::park_timeout(Duration::from_millis(1));
    }
    panic!("a copy goes on and on");
}

#[test]
fn another_process_reads_memory_by_its_handle() {
    if std::env::var_os(HANDLE).is_some() {
        return;
    }
    let Some((mut driver, context, host)) = started() else {
        return;
    };
    // Not at the beginning of what the driver gave.
    let before = driver.alloc(context, Side::Device, OWNER, 4096).unwrap();
    let device = driver.alloc(context, Side::Device, OWNER, LENGTH).unwrap();
    driver.write(host.at(0), &content()).unwrap();
    copied(&mut driver, host, device);
    let handle = driver.export(device).unwrap();
    assert_eq!(handle.len(), LENGTH);
    // The first part is the binary.
    let (_, module) = module_path!().split_once("::").unwrap();
    let other = format!("{module}::the_other_process");
    let done = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &other, "--nocapture"])
        .env(HANDLE, serde_json::to_string(&handle).unwrap())
        .status()
        .unwrap();
    assert!(done.success());
    for buffer in [before, device, host] {
        driver.free(buffer).unwrap();
    }
    driver.close(context).unwrap();
}

/// Does nothing but as the second process of the test above.
#[test]
fn the_other_process() {
    let Ok(handle) = std::env::var(HANDLE) else {
        return;
    };
    let handle: IpcHandle = serde_json::from_str(&handle).unwrap();
    let (mut driver, context, host) = started().expect("the first process has a card");
    let theirs = driver.import(context, handle).unwrap();
    copied(&mut driver, theirs, host);
    let mut got = vec![0; LENGTH as usize];
    driver.read(host.at(0), &mut got).unwrap();
    assert!(got == content(), "other bytes arrived");
    driver.free(theirs).unwrap();
    driver.close(context).unwrap();
}
