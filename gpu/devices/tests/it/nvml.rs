//! The management library is loaded, read and lost: a small library of our own in its place, which
//! behaves as a file tells it. Needs a C compiler, as the workspace does.

#![cfg(target_os = "linux")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use odeon_devices::inventory::{Inventory, Nvml, Probe, Reading, Xid, conformance};
use odeon_skip::{Need, skip};

/// Two devices. The file `STATE` holds a letter: `s`ound, `l`ost (the second one), `g`one driver.
const LIBRARY: &str = r#"
#include <stdio.h>
#include <string.h>
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } Memory;
typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } Pci;
typedef struct { void *device; unsigned long long type, data; unsigned gpu, compute; } Event;
static char devices[2], sets[2];
static int made, waiting;
static int state(void) { FILE *f = fopen(STATE, "r"); int c = f ? fgetc(f) : 'g'; if (f) fclose(f); return c; }
static int lost(void *device) { return state() == 'l' && device == &devices[1]; }
int nvmlInit_v2(void) { return state() == 'g' ? 9 : 0; }
int nvmlShutdown(void) { return 0; }
int nvmlSystemGetDriverVersion(char *text, unsigned n) {
    if (state() == 'g') return 9;
    strncpy(text, "580.1", n); return 0; }
int nvmlSystemGetCudaDriverVersion_v2(int *version) { *version = 13000; return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    *device = &devices[index]; return lost(*device) ? 15 : 0; }
int nvmlDeviceGetUUID(void *device, char *text, unsigned n) {
    strncpy(text, device == devices ? "GPU-a" : "GPU-b", n); return 0; }
int nvmlDeviceGetName(void *device, char *text, unsigned n) { strncpy(text, "Stub", n); return 0; }
int nvmlDeviceGetMemoryInfo_v2(void *device, Memory *memory) {
    memory->total = 1000; memory->reserved = 100; memory->free = 600; memory->used = 300; return 0; }
int nvmlDeviceGetTemperature(void *device, unsigned sensor, unsigned *value) { return 4; }
int nvmlDeviceGetClockInfo(void *device, unsigned kind, unsigned *mhz) { *mhz = 1000 + kind; return 0; }
int nvmlDeviceGetPcieReplayCounter(void *device, unsigned *count) { *count = 7; return 0; }
int nvmlDeviceGetPciInfo_v3(void *device, Pci *pci) {
    memset(pci, 0, sizeof *pci);
    strcpy(pci->bus_id, device == devices ? "00000000:1A:00.0" : "00000000:1B:00.0"); return 0; }
int nvmlDeviceGetTopologyCommonAncestor(void *a, void *b, unsigned *level) { *level = 20; return 0; }
int nvmlEventSetCreate(void **set) { *set = &sets[made++ % 2]; return 0; }
int nvmlEventSetFree(void *set) { return 0; }
int nvmlDeviceRegisterEvents(void *device, unsigned long long types, void *set) {
    return device == devices ? 3 : 0; }
int nvmlEventSetWait_v2(void *set, Event *event, unsigned timeout) {
    if (timeout != 0) return 999;
    if (state() != 'l' || waiting++) return 10;
    memset(event, 0, sizeof *event);
    event->device = &devices[1]; event->type = 8; event->data = 79; return 0; }
"#;

fn set(folder: &Path, state: &str) {
    fs::write(folder.join("state"), state).unwrap();
}

/// The library, or why there is none.
fn build(folder: &Path) -> Result<PathBuf, String> {
    let (source, library) = (folder.join("nvml.c"), folder.join("libstub.so"));
    fs::write(&source, LIBRARY).unwrap();
    let state = format!("-DSTATE=\"{}\"", folder.join("state").display());
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-w", &state, "-o"])
        .args([&library, &source])
        .output()
        .map_err(|error| format!("no C compiler: {error}"))?;
    assert!(
        built.status.success(),
        "{}",
        String::from_utf8_lossy(&built.stderr)
    );
    Ok(library)
}

fn sound(inventory: &Inventory) {
    conformance::coherent(inventory);
    assert_eq!(inventory.driver.value().unwrap().driver, "580.1");
    let [first, second] = &inventory.devices[..] else {
        panic!("{inventory:?}");
    };
    assert_eq!(first.uuid, Reading::Measured("GPU-a".to_owned()));
    assert_eq!(second.bus_id, Reading::Measured("0000:1b:00.0".to_owned()));
    let memory = first.memory.value().unwrap();
    assert_eq!((memory.used_bytes, memory.free_bytes), (300, 600));
    // The multiprocessors are the driver's kind 1, memory is 2.
    let clocks = first.clocks.value().unwrap();
    assert_eq!((clocks.compute_mhz, clocks.memory_mhz), (1001, 1002));
    assert_eq!(first.pcie_replays, Reading::Measured(7));
    // Not permitted, not supported, and not in the library.
    assert!(
        first
            .temperature_celsius
            .why()
            .unwrap()
            .contains("permission")
    );
    assert!(first.xids.why().unwrap().contains("not available"));
    assert!(first.power_milliwatts.why().is_some());
}

#[test]
fn a_driver_is_read_loses_a_device_vanishes_and_comes_back() {
    let folder = tempfile::tempdir().unwrap();
    let library = match build(folder.path()) {
        Ok(library) => library,
        Err(why) => return skip(Need::CCompiler, why),
    };
    let mut nvml = Nvml::at(library, folder.path());

    set(folder.path(), "gone");
    let before = nvml.inventory();
    assert!(before.driver.why().unwrap().contains("not loaded"));
    assert!(before.devices.is_empty());

    set(folder.path(), "sound");
    let inventory = nvml.inventory();
    sound(&inventory);
    assert_eq!(inventory.devices[1].xids, Reading::Measured(vec![]));

    set(folder.path(), "lost");
    let inventory = nvml.inventory();
    conformance::coherent(&inventory);
    let lost = &inventory.devices[1];
    assert_eq!(lost.uuid, Reading::Measured("GPU-b".to_owned()));
    assert!(lost.memory.why().unwrap().contains("fell off the bus"));
    let events = vec![Xid { code: Some(79) }];
    assert_eq!(lost.xids, Reading::Measured(events));
    assert!(inventory.devices[0].memory.value().is_some());

    set(folder.path(), "gone");
    let inventory = nvml.inventory();
    conformance::coherent(&inventory);
    assert_eq!(inventory.devices.len(), 2);
    for device in &inventory.devices {
        assert!(device.uuid.value().is_some());
        assert!(device.memory.why().unwrap().contains("not loaded"));
    }

    set(folder.path(), "sound");
    sound(&nvml.inventory());
}
