//! Facts of a machine, and how they are read: from `/proc`, `/sys` and the devices' library.

use std::fs;
use std::net::{TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::{Resource, getrlimit};
use serde::{Deserialize, Serialize};

use crate::disk_room::DiskRoom;
use crate::unix::Unix;
use odeon_devices::inventory::{DeviceFacts, Inventory, Nvml, Probe, Reading};

/// The state of a machine as far as jobs depend on it. What the system does not tell is `None`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineFacts {
    /// Release of the program that has looked.
    pub release: String,
    /// Moment of the look by the machine's own clock, in milliseconds since 1970.
    pub now_ms: u64,
    /// Milliseconds that its clock is ahead of that of whoever has asked; `None` where nobody has compared.
    pub ahead_ms: Option<i64>,
    /// Set when a time server keeps the clock.
    pub clock_synchronised: Option<bool>,
    /// Most files that a process may have open; `None` without a limit.
    pub open_files: Option<u64>,
    /// Most processes and threads of the user; `None` without a limit.
    pub processes: Option<u64>,
    /// Bytes of memory.
    pub memory: u64,
    /// Bytes of it that the control group may have.
    pub memory_limit: Option<u64>,
    /// The system's rule for memory that is promised and not used (`vm.overcommit_memory`).
    pub overcommit: Option<u32>,
    /// The room of `/dev/shm`.
    pub shared_memory: Option<DiskRoom>,
    /// The disks that a daemon writes.
    pub disks: Vec<DiskFacts>,
    /// Why no UDP socket can be opened.
    pub udp: Result<(), String>,
    /// Most bytes of a socket's buffers, for receiving and sending.
    pub socket_bytes: Vec<u64>,
    /// Networks that are up.
    pub interfaces: Vec<Interface>,
    /// Set when file systems of a process's own can be mounted.
    pub fuse: bool,
    /// The system's rule for looking into other processes (`kernel.yama.ptrace_scope`).
    pub ptrace_scope: Option<u32>,
    /// Set when whoever looks is the superuser.
    pub superuser: bool,
    /// Set when `py-spy` is in `PATH`.
    pub py_spy: bool,
    /// Why the usual port of the API cannot be had; `None` where a daemon has its own already.
    pub api_port: Option<Result<(), String>>,
    /// The rule that keeps the processor slow, where one does.
    pub slow_governor: Option<String>,
    /// Version of the devices' driver.
    pub driver: Option<String>,
    /// The devices, or why there are none.
    pub devices: Result<Vec<DeviceState>, String>,
    /// Cards that no driver here can use, each with the reason.
    pub unusable: Vec<String>,
}

/// The port at which a daemon's API listens unless told otherwise or taken.
const API_PORT: u16 = 7433;

/// A folder that is written, and its disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskFacts {
    /// The folder, or the nearest one above that is there.
    pub folder: PathBuf,
    /// The room on its disk, or why it cannot be told.
    pub room: Result<DiskRoom, String>,
    /// Files that can still be made.
    pub files_free: Option<u64>,
    /// Set when a file can be made there.
    pub writable: bool,
}

/// A network that is up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interface {
    /// Its name, such as `eth0`.
    pub name: String,
    /// Bytes of its largest packets.
    pub mtu: u32,
    /// Set when packets to other machines leave by it.
    pub leads_out: bool,
}

/// A device, as far as it says something of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceState {
    /// The maker's name of the model.
    pub model: String,
    /// Bytes of its memory.
    pub memory: Option<u64>,
    /// Why it does not answer.
    pub lost: Option<String>,
    /// Memory errors beyond repair.
    pub lost_bits: Option<u64>,
    /// Degrees Celsius.
    pub celsius: Option<u32>,
    /// Processes that hold memory of it, without those of this daemon.
    pub held_by: Vec<u32>,
}

impl MachineFacts {
    /// Looks at this machine, and at the disk of a daemon's folder.
    #[must_use]
    pub fn read(folder: &Path) -> Self {
        let folder = &std::path::absolute(folder).unwrap_or_else(|_| folder.to_path_buf());
        let daemon = number::<u32>(folder.join("daemon.pid"));
        let ours = [Some(std::process::id()), daemon];
        let inventory = Nvml::new().inventory();
        let (devices, driver) = match &inventory.driver {
            Reading::Measured(version) => (
                Ok(inventory
                    .devices
                    .iter()
                    .map(|it| DeviceState::of(it, ours))
                    .collect()),
                Some(version.driver.clone()),
            ),
            Reading::Unmeasured { why } => (Err(why.clone()), None),
        };
        Self {
            release: env!("CARGO_PKG_VERSION").to_owned(),
            now_ms: Unix::now().0,
            ahead_ms: None,
            clock_synchronised: clock_synchronised(),
            open_files: getrlimit(Resource::Nofile).current,
            processes: getrlimit(Resource::Nproc).current,
            memory: memory().unwrap_or(0),
            memory_limit: memory_limit(),
            overcommit: number("/proc/sys/vm/overcommit_memory"),
            shared_memory: room(Path::new("/dev/shm")).ok().map(|(room, _)| room),
            disks: vec![DiskFacts::read(folder)],
            udp: UdpSocket::bind(("127.0.0.1", 0))
                .map(|_| ())
                .map_err(|error| format!("no UDP socket can be opened: {error}")),
            socket_bytes: ["rmem_max", "wmem_max"]
                .iter()
                .filter_map(|name| number(format!("/proc/sys/net/core/{name}")))
                .collect(),
            interfaces: interfaces(
                Path::new("/sys/class/net"),
                &fs::read_to_string("/proc/net/route").unwrap_or_default(),
            ),
            fuse: fs::File::options()
                .read(true)
                .write(true)
                .open("/dev/fuse")
                .is_ok(),
            ptrace_scope: number("/proc/sys/kernel/yama/ptrace_scope"),
            superuser: rustix::process::geteuid().is_root(),
            py_spy: is_in_path("py-spy"),
            api_port: daemon.is_none().then(|| {
                let bound = TcpListener::bind(("127.0.0.1", API_PORT)).map(|_| ());
                bound.map_err(|error| error.to_string())
            }),
            slow_governor: slow_governor(Path::new("/sys/devices/system/cpu/cpu0/cpufreq")),
            driver,
            devices,
            unusable: unusable(&inventory),
        }
    }
}

fn unusable(inventory: &Inventory) -> Vec<String> {
    let cards = inventory.unusable.iter();
    cards
        .map(|card| format!("{} ({})", card.bus_id, card.why))
        .collect()
}

impl DeviceState {
    fn of(facts: &DeviceFacts, ours: [Option<u32>; 2]) -> Self {
        let memory = facts.memory.value().map(|memory| memory.total_bytes);
        let held_by = facts.processes.value().into_iter().flatten();
        Self {
            model: facts.model.value().cloned().unwrap_or_default(),
            memory,
            lost: match &facts.uuid {
                Reading::Measured(_) => None,
                Reading::Unmeasured { why } => Some(why.clone()),
            },
            lost_bits: facts.ecc.value().map(|ecc| ecc.uncorrected),
            celsius: facts.temperature_celsius.value().copied(),
            held_by: held_by
                .map(|process| process.pid)
                .filter(|pid| !is_below(*pid, ours))
                .collect(),
        }
    }
}

impl DiskFacts {
    fn read(folder: &Path) -> Self {
        // A folder that is yet to be made lies on the disk of the nearest one above.
        let there = folder.ancestors().find(|it| it.exists());
        let folder = there.unwrap_or_else(|| Path::new("/")).to_path_buf();
        let told = room(&folder);
        Self {
            writable: is_writable(&folder),
            files_free: told.as_ref().ok().map(|(_, files)| *files),
            room: match folder.is_dir() {
                true => told.map(|(room, _)| room),
                false => Err("it is a file".to_owned()),
            },
            folder,
        }
    }
}

fn is_writable(folder: &Path) -> bool {
    let path = folder.join(format!(".odeon-doctor-{}", std::process::id()));
    let made = fs::File::create_new(&path).is_ok();
    if made {
        // A file that was made a moment ago can be removed, and where not it is empty.
        drop(fs::remove_file(&path));
    }
    made
}

/// The room on a folder's disk, and the files that can still be made there; on file systems without a table of
/// files as many as one likes.
fn room(folder: &Path) -> Result<(DiskRoom, u64), String> {
    let told = rustix::fs::statvfs(folder).map_err(|error| error.to_string())?;
    let files = if told.f_files == 0 {
        u64::MAX
    } else {
        told.f_favail
    };
    Ok((
        DiskRoom {
            free: told.f_bavail.saturating_mul(told.f_frsize),
            all: told.f_blocks.saturating_mul(told.f_frsize),
        },
        files,
    ))
}

fn number<T: std::str::FromStr>(path: impl AsRef<Path>) -> Option<T> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

fn memory() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kib << 10)
}

/// The limit of the control group of a container, which sees its own as the root.
fn memory_limit() -> Option<u64> {
    number("/sys/fs/cgroup/memory.max")
        .or_else(|| number("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
}

/// The word of systemd, or of what it leaves.
fn clock_synchronised() -> Option<bool> {
    if Path::new("/run/systemd/timesync/synchronized").exists() {
        return Some(true);
    }
    // It asks others, who may not answer.
    let asked = Command::new("timeout")
        .args([
            "2",
            "timedatectl",
            "show",
            "-p",
            "NTPSynchronized",
            "--value",
        ])
        .output()
        .ok()?;
    match String::from_utf8_lossy(&asked.stdout).trim() {
        "yes" => Some(true),
        "no" => Some(false),
        _ => None,
    }
}

/// Returns true when a process is one of these, or was started by one of them or by what they started.
fn is_below(pid: u32, ours: [Option<u32>; 2]) -> bool {
    let mut pid = pid;
    while pid > 1 {
        if ours.contains(&Some(pid)) {
            return true;
        }
        // Behind the name, which may have spaces and parentheses: its state, then its parent.
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let rest = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
        pid = rest
            .split_whitespace()
            .nth(1)
            .and_then(|word| word.parse().ok())
            .unwrap_or(0);
    }
    false
}

fn is_in_path(program: &str) -> bool {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&folders).any(|folder| folder.join(program).is_file())
}

/// Networks that are up; `routes` is the kernel's table, in which the way to all others has the destination 0.
fn interfaces(folder: &Path, routes: &str) -> Vec<Interface> {
    let mut out = routes.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let name = words.next()?;
        (words.next()? == "00000000").then_some(name)
    });
    let leads_out = out.next();
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut found: Vec<Interface> = entries
        .filter_map(|entry| {
            let state = fs::read_to_string(entry.path().join("operstate")).ok()?;
            // A loop-back's state is unknown.
            let is_up = ["up", "unknown"].contains(&state.trim());
            let name = entry.file_name().into_string().ok()?;
            Some(Interface {
                leads_out: leads_out == Some(name.as_str()),
                name,
                mtu: number(entry.path().join("mtu"))?,
            })
            .filter(|_| is_up)
        })
        .collect();
    found.sort_by(|a, b| a.name.cmp(&b.name));
    found
}

/// The rule that keeps processors slow; drivers that choose by themselves call theirs `powersave`, too.
fn slow_governor(folder: &Path) -> Option<String> {
    let read = |name: &str| fs::read_to_string(folder.join(name)).ok();
    let (driver, governor) = (read("scaling_driver")?, read("scaling_governor")?);
    let chooses = ["intel_pstate", "amd-pstate-epp", "amd-pstate"].contains(&driver.trim());
    let slow = governor.trim() == "powersave" && !chooses;
    slow.then(|| governor.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SEMANTICS 157.
    #[test]
    fn this_machine_is_read_without_a_trace() {
        let folder = tempfile::tempdir().unwrap();
        let wanted = folder.path().join("not/yet/there");
        let facts = MachineFacts::read(&wanted);
        assert_eq!(facts.disks[0].folder, folder.path());
        assert!(facts.disks[0].writable && facts.disks[0].room.is_ok());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        assert!(facts.memory > 0 && facts.udp.is_ok());
        assert!(facts.interfaces.iter().any(|it| it.name == "lo"));
    }

    #[test]
    fn a_file_is_no_folder_and_a_relative_folder_is_here() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        assert!(DiskFacts::read(&file).room.is_err());
        let here = MachineFacts::read(Path::new("not-there"));
        assert_eq!(here.disks[0].folder, std::env::current_dir().unwrap());
    }

    #[test]
    fn processes_of_a_daemon_hold_its_devices_rightly() {
        let own = std::process::id();
        assert!(is_below(own, [Some(own), None]));
        let parent = std::os::unix::process::parent_id();
        assert!(is_below(own, [None, Some(parent)]));
        assert!(!is_below(parent, [Some(own), None]));
    }

    #[test]
    fn networks_that_are_down_are_left_out() {
        let folder = tempfile::tempdir().unwrap();
        for (name, state, mtu) in [
            ("eth1", "down", "1500"),
            ("eth0", "up", "9000"),
            ("odd", "up", "?"),
        ] {
            let at = folder.path().join(name);
            fs::create_dir(&at).unwrap();
            fs::write(at.join("operstate"), format!("{state}\n")).unwrap();
            fs::write(at.join("mtu"), format!("{mtu}\n")).unwrap();
        }
        let want = Interface {
            name: "eth0".to_owned(),
            mtu: 9000,
            leads_out: true,
        };
        let routes = "Iface\tDestination\tGateway\neth1\t0010A8C0\t0\neth0\t00000000\t010010AC\n";
        assert_eq!(interfaces(folder.path(), routes), [want]);
    }

    #[test]
    fn a_driver_that_chooses_by_itself_is_not_slow() {
        let folder = tempfile::tempdir().unwrap();
        let governed = |driver: &str, governor: &str| {
            fs::write(folder.path().join("scaling_driver"), driver).unwrap();
            fs::write(folder.path().join("scaling_governor"), governor).unwrap();
            slow_governor(folder.path())
        };
        assert_eq!(
            governed("acpi-cpufreq\n", "powersave\n").as_deref(),
            Some("powersave")
        );
        assert_eq!(governed("intel_pstate\n", "powersave\n"), None);
        assert_eq!(governed("acpi-cpufreq\n", "performance\n"), None);
    }
}
