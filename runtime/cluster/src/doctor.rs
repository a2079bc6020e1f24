//! A look at machines before the first job: limits, disks, clocks, networks and devices that would be in its way,
//! each with what to change.
//!
//! [`MachineFacts::read`] looks; [`examine`] judges one machine and [`compare`] several, both pure.

mod facts;

use serde::{Deserialize, Serialize};

pub use facts::{DeviceState, DiskFacts, Interface, MachineFacts};

use crate::resources::Bytes;

/// The state of what was checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Fitness {
    /// As it should be.
    Good,
    /// Jobs run, with something that is slower or missing.
    Doubtful,
    /// Jobs fail by it.
    Bad,
}

impl Fitness {
    /// Its word, as in JSON.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::Doubtful => "doubtful",
            Self::Bad => "bad",
        }
    }
}

/// One thing that was checked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    /// The thing, in a word or two, such as `open files`.
    pub what: String,
    /// Its state.
    pub fitness: Fitness,
    /// The state as it was found, in words.
    pub found: String,
    /// A change that mends it; none where nothing is to be done.
    pub advice: Option<String>,
}

impl Check {
    /// One that is as it should be.
    #[must_use]
    pub fn good(what: &str, found: impl Into<String>) -> Self {
        Self {
            what: what.to_owned(),
            fitness: Fitness::Good,
            found: found.into(),
            advice: None,
        }
    }

    /// One that is slower or lacks something, with what to change.
    #[must_use]
    pub fn doubtful(what: &str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self {
            fitness: Fitness::Doubtful,
            advice: Some(advice.into()),
            ..Self::good(what, found)
        }
    }

    /// One by which jobs fail, with what to change.
    #[must_use]
    pub fn bad(what: &str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self {
            fitness: Fitness::Bad,
            ..Self::doubtful(what, found, advice)
        }
    }
}

/// Open files with which a node of some jobs and workers comes to its end.
const FILES_LEAST: u64 = 4096;
/// Open files that are enough for what a machine can run.
const FILES_ENOUGH: u64 = 65_536;
/// Processes and threads that are enough likewise.
const PROCESSES_ENOUGH: u64 = 4096;
/// Bytes of a socket's buffer that a link between nodes asks for.
const SOCKET_BYTES: u64 = 4 << 20;
/// Bytes of `/dev/shm` that containers have unless told otherwise.
const SHM_BYTES: u64 = 64 << 20;
/// Bytes of a disk with which nothing can be kept.
const DISK_BYTES_LEAST: u64 = 1 << 30;
/// The smallest packets that QUIC's ask for, in bytes with their headers.
const MTU_LEAST: u32 = 1280;
/// Degrees Celsius at which devices become slower.
const HOT: u32 = 85;
/// The difference of two nodes' clocks from which logs and events are hard to read, in milliseconds.
const CLOCK_MS: u64 = 500;

/// The checks of one machine, in the order in which they are shown.
#[must_use]
pub fn examine(facts: &MachineFacts) -> Vec<Check> {
    let mut checks = vec![open_files(facts), processes(facts)];
    checks.extend(memory(facts));
    checks.extend(shared_memory(facts));
    checks.extend(disks(facts));
    checks.push(clock(facts));
    checks.extend(network(facts));
    checks.extend(kernel(facts));
    checks.extend(devices(facts));
    checks
}

fn open_files(facts: &MachineFacts) -> Check {
    const WHAT: &str = "open files";
    let advice = "raise it: `ulimit -n 1048576` before the daemon starts, which takes root beyond the hard limit, or \
                  LimitNOFILE=1048576 in its unit";
    match facts.open_files {
        None => Check::good(WHAT, "no limit"),
        Some(most) if most < FILES_LEAST => {
            Check::bad(WHAT, format!("{most} at most for a process"), advice)
        }
        Some(most) if most < FILES_ENOUGH => {
            Check::doubtful(WHAT, format!("{most} at most for a process"), advice)
        }
        Some(most) => Check::good(WHAT, format!("{most} at most for a process")),
    }
}

fn processes(facts: &MachineFacts) -> Check {
    const WHAT: &str = "processes";
    match facts.processes {
        None => Check::good(WHAT, "no limit"),
        Some(most) if most < PROCESSES_ENOUGH => Check::doubtful(
            WHAT,
            format!("{most} processes and threads at most"),
            "raise it: `ulimit -u 65536`, LimitNPROC= and TasksMax= in the daemon's unit",
        ),
        Some(most) => Check::good(WHAT, format!("{most} processes and threads at most")),
    }
}

fn memory(facts: &MachineFacts) -> Vec<Check> {
    const WHAT: &str = "memory";
    let mut checks = vec![];
    let found = match (facts.memory, facts.memory_limit) {
        (all, Some(most)) if most < all => {
            format!(
                "{}, of which this group may have {}",
                Bytes(all),
                Bytes(most)
            )
        }
        (all, _) => Bytes(all).to_string(),
    };
    checks.push(match facts.overcommit {
        Some(2) => Check::doubtful(
            WHAT,
            format!("{found}; the system refuses what may not be there"),
            "models and their blobs are mapped before they are used: `sysctl vm.overcommit_memory=0`",
        ),
        _ => Check::good(WHAT, found),
    });
    checks
}

fn shared_memory(facts: &MachineFacts) -> Option<Check> {
    const WHAT: &str = "/dev/shm";
    let room = facts.shared_memory?;
    let found = format!("{} free of {}", Bytes(room.free), Bytes(room.all));
    Some(if room.all <= SHM_BYTES || room.free < SHM_BYTES {
        Check::doubtful(
            WHAT,
            found,
            "Odeon needs none of it, but data loaders of PyTorch and NCCL do: start the container with --shm-size \
             of some GiB, or `mount -o remount,size=50% /dev/shm`",
        )
    } else {
        Check::good(WHAT, found)
    })
}

fn disks(facts: &MachineFacts) -> Vec<Check> {
    let judged = facts.disks.iter().map(|disk| {
        let what = format!("disk of {}", disk.folder.display());
        let free = match &disk.room {
            Err(why) => return Check::bad(&what, why.clone(), "choose another folder with --dir"),
            Ok(room) => *room,
        };
        let found = format!("{} free of {}", Bytes(free.free), Bytes(free.all));
        if disk.files_free == Some(0) {
            let found = format!("{found}, but no more files can be made");
            return Check::bad(&what, found, "remove files: its table of files is full");
        }
        if !disk.writable {
            let found = format!("{found}; it cannot be written");
            return Check::bad(
                &what,
                found,
                "give this user the right to, or choose another folder with --dir",
            );
        }
        if free.free < DISK_BYTES_LEAST {
            return Check::bad(
                &what,
                found,
                "make room: nothing is accepted on a full disk",
            );
        }
        if free.free < free.all / 20 {
            return Check::doubtful(
                &what,
                found,
                "less than 5 % is free, at which a daemon warns: make room",
            );
        }
        Check::good(&what, found)
    });
    judged.collect()
}

fn clock(facts: &MachineFacts) -> Check {
    const WHAT: &str = "clock";
    match facts.clock_synchronised {
        Some(true) => Check::good(WHAT, "kept by a time server"),
        Some(false) => Check::doubtful(
            WHAT,
            "not kept by a time server",
            "start one: `timedatectl set-ntp true`, chrony or ntpd; tokens and certificates have dates",
        ),
        None => Check::good(WHAT, "the system does not say who keeps it"),
    }
}

fn network(facts: &MachineFacts) -> Vec<Check> {
    let mut checks = vec![];
    if let Err(why) = &facts.udp {
        checks.push(Check::bad(
            "UDP",
            why.clone(),
            "links between nodes are QUIC: let this user open UDP sockets",
        ));
    }
    let out = facts.interfaces.iter().filter(|it| it.leads_out);
    for interface in out.filter(|it| it.mtu < MTU_LEAST) {
        checks.push(Check::bad(
            &format!("network {}", interface.name),
            format!("packets of {} bytes at most", interface.mtu),
            format!(
                "links need {MTU_LEAST}: `ip link set {} mtu 1500`",
                interface.name
            ),
        ));
    }
    if let Some(Err(why)) = &facts.api_port {
        checks.push(Check::doubtful(
            "port 7433",
            format!("it cannot be had: {why}"),
            "`odeon up` takes any other then, or the one that --api says",
        ));
    }
    let least = facts.socket_bytes.iter().min();
    match least {
        Some(least) if *least < SOCKET_BYTES => checks.push(Check::doubtful(
            "socket buffers",
            format!("{} at most", Bytes(*least)),
            format!(
                "links ask for {}: `sysctl net.core.rmem_max={SOCKET_BYTES} net.core.wmem_max={SOCKET_BYTES}`",
                Bytes(SOCKET_BYTES)
            ),
        )),
        Some(least) => checks.push(Check::good(
            "socket buffers",
            format!("{} at most", Bytes(*least)),
        )),
        None => {}
    }
    if !facts.interfaces.is_empty() {
        let names = facts.interfaces.iter();
        let names: Vec<String> = names
            .map(|it| format!("{} ({})", it.name, it.mtu))
            .collect();
        checks.push(Check::good("networks, MTU", names.join(", ")));
    }
    checks
}

fn kernel(facts: &MachineFacts) -> Vec<Check> {
    let mut checks = vec![];
    if facts.fuse {
        checks.push(Check::good("/dev/fuse", "it can be opened"));
    } else {
        checks.push(Check::doubtful(
            "/dev/fuse",
            "it cannot be opened",
            "files of a job are then all fetched before it begins: install fuse3, and give the container the device",
        ));
    }
    checks.push(stacks(facts));
    if let Some(governor) = &facts.slow_governor {
        checks.push(Check::doubtful(
            "processor's clock",
            format!("governed by `{governor}`"),
            "`cpupower frequency-set -g performance`",
        ));
    }
    checks
}

fn stacks(facts: &MachineFacts) -> Check {
    const WHAT: &str = "stacks";
    match facts.ptrace_scope.unwrap_or(0) {
        3.. => Check::doubtful(
            WHAT,
            "no process may look into another (kernel.yama.ptrace_scope = 3)",
            "set that to 1, which takes a restart of the machine, to see where programs hang",
        ),
        scope @ 1..3 if !facts.superuser => Check::doubtful(
            WHAT,
            format!(
                "a process may look into those it started alone (kernel.yama.ptrace_scope = {scope})"
            ),
            "run the daemon as root or with CAP_SYS_PTRACE, or `sysctl kernel.yama.ptrace_scope=0`, to see where \
             programs in Python hang",
        ),
        _ if !facts.py_spy => Check::doubtful(
            WHAT,
            "there is no py-spy in PATH",
            "`pip install py-spy`, to see where programs in Python hang",
        ),
        _ => Check::good(WHAT, "programs can be looked into"),
    }
}

fn devices(facts: &MachineFacts) -> Vec<Check> {
    const WHAT: &str = "devices";
    let devices = match &facts.devices {
        Err(why) => return vec![Check::good(WHAT, format!("none: {why}"))],
        Ok(devices) => devices,
    };
    let mut checks = vec![];
    for card in &facts.unusable {
        checks.push(Check::doubtful(
            WHAT,
            format!("a card is not used: {card}"),
            "install its driver, if jobs are to have it",
        ));
    }
    for (index, device) in devices.iter().enumerate() {
        let what = format!("device {index}");
        let before = checks.len();
        if let Some(why) = &device.lost {
            checks.push(Check::bad(
                &what,
                why.clone(),
                "reset it or restart the machine; `nvidia-smi -q` and `dmesg` say more",
            ));
        }
        if device.lost_bits.unwrap_or(0) > 0 {
            checks.push(Check::bad(
                &what,
                format!(
                    "{} memory errors beyond repair",
                    device.lost_bits.unwrap_or(0)
                ),
                "take it out of service: numbers on it may be wrong",
            ));
        }
        if device.celsius.is_some_and(|celsius| celsius >= HOT) {
            checks.push(Check::doubtful(
                &what,
                format!("{} °C", device.celsius.unwrap_or(0)),
                "cool it: it slows down",
            ));
        }
        if !device.held_by.is_empty() {
            let pids: Vec<String> = device.held_by.iter().map(u32::to_string).collect();
            checks.push(Check::doubtful(
                &what,
                format!("held by process {}", pids.join(", ")),
                "end that, or jobs lack its memory",
            ));
        }
        if checks.len() == before {
            let memory = device
                .memory
                .map_or_else(String::new, |bytes| format!(", {}", Bytes(bytes)));
            checks.push(Check::good(&what, format!("{}{memory}", device.model)));
        }
    }
    if devices.is_empty() && facts.unusable.is_empty() {
        checks.push(Check::good(WHAT, "none"));
    }
    checks
}

/// The checks that several machines fail only beside each other: clocks, packets, drivers, releases.
#[must_use]
pub fn compare(machines: &[(String, MachineFacts)]) -> Vec<Check> {
    let mut checks = vec![];
    checks.extend(clocks(machines));
    checks.extend(alike(
        machines,
        "MTU",
        "large packets are lost between them: give all the same with `ip link set INTERFACE mtu BYTES`",
        |facts| {
            let out = facts.interfaces.iter().find(|it| it.leads_out);
            out.map(|it| it.mtu.to_string())
        },
    ));
    checks.extend(alike(
        machines,
        "driver",
        "a program that runs on one node may fail on another: install one version on all",
        |facts| facts.driver.clone(),
    ));
    checks.extend(alike(
        machines,
        "release",
        "have all run one: `odeon upgrade`",
        |facts| Some(facts.release.clone()),
    ));
    checks
}

/// A check of the differences between clocks; none of a single machine.
fn clocks(machines: &[(String, MachineFacts)]) -> Option<Check> {
    const WHAT: &str = "clocks";
    let ahead = |(name, facts): &(String, MachineFacts)| Some((facts.ahead_ms?, name.clone()));
    let mut known: Vec<(i64, String)> = machines.iter().filter_map(ahead).collect();
    known.sort();
    let [(least, behind), .., (most, before)] = known.as_slice() else {
        return None;
    };
    let apart = most.abs_diff(*least);
    Some(if apart > CLOCK_MS {
        Check::doubtful(
            WHAT,
            format!("`{before}` is {apart} ms before `{behind}`"),
            "have a time server keep them: `timedatectl set-ntp true` on each",
        )
    } else {
        Check::good(WHAT, format!("at most {apart} ms apart"))
    })
}

/// A check that all machines that tell something tell the same; none where fewer than two tell it.
fn alike(
    machines: &[(String, MachineFacts)],
    what: &str,
    advice: &str,
    of: impl Fn(&MachineFacts) -> Option<String>,
) -> Option<Check> {
    let told = machines.iter();
    let told: Vec<(&String, String)> = told
        .filter_map(|(name, facts)| Some((name, of(facts)?)))
        .collect();
    let (_, first) = told.first().filter(|_| told.len() > 1)?;
    let Some((name, other)) = told.iter().find(|(_, value)| value != first) else {
        return Some(Check::good(what, format!("{first} on all")));
    };
    let found = format!("{first} on `{}`, {other} on `{name}`", told[0].0);
    Some(Check::doubtful(what, found, advice))
}

#[cfg(test)]
mod tests;
