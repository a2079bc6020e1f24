//! Control groups that hold the processes of a try to the processors and the memory that it has
//! reserved on this node.
//!
//! ```text
//!  the daemon's group        where whoever started it lets it
//!  ├─ odeon-daemon           the daemon, and what has reserved nothing
//!  └─ odeon-7a3f-j1.1        a try: cpu.max, memory.max
//! ```
//!
//! Version 2 alone: a group that has processes of its own cannot divide what it has, so the daemon
//! goes into one below its own first. Where any of that is not allowed, [`Cgroups::obstacle`] says
//! why, and tries run as they like.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use odeon::WorkerCommand;

use crate::job::JobId;
use crate::resources::Allotment;

/// The group of the daemon itself.
const OWN: &str = "odeon-daemon";
/// The beginning of the names of all groups.
const PREFIX: &str = "odeon-";
/// The period over which processor time is counted, in microseconds.
const PERIOD_US: u64 = 100_000;
/// Puts itself into the group whose file it is given, then becomes the program: nothing that the
/// program starts is ever outside.
const ENTER: &str = r#"echo $$ > "$0" && exec "$@""#;

/// The groups of a node's tries.
#[derive(Clone, Debug)]
pub(crate) struct Cgroups {
    /// The group that they lie in, or why there is none.
    base: Result<PathBuf, String>,
    /// The number that tells them from those of other daemons.
    life: u64,
}

impl Cgroups {
    /// Those below the group of this process, in this life of the node.
    pub(crate) fn begin(life: u64) -> Self {
        let base = own_group().and_then(|group| divide(group, std::process::id()));
        match &base {
            Ok(base) => {
                sweep(base);
                tracing::info!(group = %base.display(), "jobs are held to what they have reserved");
            }
            Err(why) => tracing::info!(why, "jobs are not held to what they have reserved"),
        }
        Self { base, life }
    }

    /// Why tries are not held to what they have reserved.
    pub(crate) fn obstacle(&self) -> Option<&str> {
        self.base.as_ref().err().map(String::as_str)
    }

    fn path(&self, (job, attempt): (JobId, u32)) -> Option<PathBuf> {
        let base = self.base.as_ref().ok()?;
        Some(base.join(format!("{PREFIX}{:x}-{job}.{attempt}", self.life)))
    }

    /// The command that starts a program of a try, inside the group of that where it has reserved
    /// something that a group bounds.
    pub(crate) fn command(
        &self,
        of: (JobId, u32),
        reserved: Allotment,
        program: &Path,
    ) -> WorkerCommand {
        let bare = || WorkerCommand::new(program);
        if reserved.cpu_milli == 0 && reserved.memory_bytes == 0 {
            return bare();
        }
        let Some(group) = self.path(of) else {
            return bare();
        };
        if let Err(error) = make(&group, reserved) {
            tracing::warn!(%error, group = %group.display(), "a job is not held to what it has reserved");
            return bare();
        }
        WorkerCommand::new("/bin/sh")
            .arg("-c")
            .arg(ENTER)
            .arg(group.join("cgroup.procs"))
            .arg(program)
    }

    /// The memory that a try may have here, in bytes, where the kernel has killed a process of it that
    /// wanted more.
    pub(crate) fn killed_at(&self, of: (JobId, u32)) -> Option<u64> {
        let group = self.path(of)?;
        let events = fs::read_to_string(group.join("memory.events")).ok()?;
        let count = |line: &str| line.strip_prefix("oom_kill ")?.trim().parse::<u64>().ok();
        let killed = events.lines().find_map(count)?;
        let most = fs::read_to_string(group.join("memory.max")).ok()?;
        most.trim().parse().ok().filter(|_| killed > 0)
    }

    /// Nothing of a try is left here.
    pub(crate) fn remove(&self, of: (JobId, u32)) {
        let Some(group) = self.path(of) else {
            return;
        };
        match fs::remove_dir(&group) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            // The next daemon here removes it when it is empty.
            Err(error) => tracing::debug!(%error, group = %group.display(), "a group is left"),
        }
    }
}

/// The folder of the group that this process is in.
fn own_group() -> Result<PathBuf, String> {
    let read = |path: &str| fs::read_to_string(path).map_err(|error| format!("{path}: {error}"));
    let mounts = read("/proc/self/mountinfo")?;
    let groups = read("/proc/self/cgroup")?;
    group_of(&mounts, &groups)
}

/// The folder of a process's group, from its mounts and its groups.
fn group_of(mounts: &str, groups: &str) -> Result<PathBuf, String> {
    // Fields: number, parent, device, root, mount point, ...; after a dash, the kind.
    let mount = mounts.lines().find_map(|line| {
        let (place, kind) = line.split_once(" - ")?;
        let mut fields = place.split(' ').skip(3);
        let (root, point) = (fields.next()?, fields.next()?);
        kind.starts_with("cgroup2 ").then_some((root, point))
    });
    let (root, point) = mount.ok_or("no cgroup of version 2 is mounted here")?;
    let group = groups.lines().find_map(|line| line.strip_prefix("0::"));
    let group = group.ok_or("this process is in no cgroup of version 2")?;
    let below = group.strip_prefix(root.trim_end_matches('/'));
    let below = below.ok_or_else(|| format!("the cgroup {group} is not to be seen at {point}"))?;
    Ok(Path::new(point).join(below.trim_start_matches('/')))
}

/// Gets a group ready to have groups below it that bound processors and memory.
fn divide(group: PathBuf, pid: u32) -> Result<PathBuf, String> {
    // A program before this one may have done so in this process.
    let base = match group.file_name() {
        Some(name) if name == OWN => group.parent().map_or_else(PathBuf::new, Path::to_owned),
        _ => group,
    };
    let told = |what: &str, error: &io::Error| format!("{}: {what}: {error}", base.display());
    let read = |file: &str| {
        let text = fs::read_to_string(base.join(file));
        text.map_err(|error| told(&format!("reading {file}"), &error))
    };
    let controllers = read("cgroup.controllers")?;
    for wanted in ["cpu", "memory"] {
        if !controllers.split_whitespace().any(|it| it == wanted) {
            return Err(format!(
                "the cgroup {} has no controller `{wanted}`: whoever made it has to delegate it \
                 (systemd: Delegate=yes)",
                base.display()
            ));
        }
    }
    // The root of all has processes, and may.
    let is_root = !base.join("cgroup.type").exists();
    if !is_root {
        let others = read("cgroup.procs")?;
        if others.lines().any(|it| it.trim() != pid.to_string()) {
            return Err(format!(
                "other processes are in the cgroup {}: start the daemon in one of its own (systemd: \
                 a unit with Delegate=yes)",
                base.display()
            ));
        }
        let own = base.join(OWN);
        fs::create_dir_all(&own).map_err(|error| told("making a group below it", &error))?;
        let moved = fs::write(own.join("cgroup.procs"), pid.to_string());
        moved.map_err(|error| told("moving the daemon below it", &error))?;
    }
    let enabled = fs::write(base.join("cgroup.subtree_control"), "+cpu +memory");
    if let Err(error) = enabled {
        if !is_root {
            // As it was. What else there is to say stands in the error.
            let _ = fs::write(base.join("cgroup.procs"), pid.to_string());
        }
        return Err(told("dividing it", &error));
    }
    Ok(base)
}

/// Removes groups that a killed daemon has left. Those that have processes stay.
fn sweep(base: &Path) {
    let found = fs::read_dir(base).into_iter().flatten().flatten();
    for entry in found {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with(PREFIX) && name != OWN {
            // One with processes is another daemon's, or a driver's that is about to be ended.
            let _ = fs::remove_dir(entry.path());
        }
    }
}

/// Makes the group of a try with its bounds.
fn make(group: &Path, reserved: Allotment) -> io::Result<()> {
    fs::create_dir_all(group)?;
    let set = |file: &str, value: String| fs::write(group.join(file), value);
    if reserved.cpu_milli > 0 {
        let quota = reserved.cpu_milli * PERIOD_US / 1000;
        // The kernel takes no quota below a millisecond.
        set("cpu.max", format!("{} {PERIOD_US}", quota.max(1000)))?;
    }
    if reserved.memory_bytes > 0 {
        set("memory.max", reserved.memory_bytes.to_string())?;
        // Where there is swap, what is reserved is memory. A kernel without it has no such file.
        if group.join("memory.swap.max").exists() {
            set("memory.swap.max", "0".to_owned())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PID: u32 = 77;
    const TRY: (JobId, u32) = (JobId(3), 2);

    /// A folder that looks like a group of a process, below the root.
    fn group(controllers: &str, processes: &str) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let write = |file: &str, text: &str| fs::write(folder.path().join(file), text).unwrap();
        write("cgroup.controllers", controllers);
        write("cgroup.procs", processes);
        write("cgroup.type", "domain\n");
        folder
    }

    fn text(path: impl AsRef<Path>) -> String {
        let path = path.as_ref();
        fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }

    #[test]
    fn the_group_of_a_process_is_found_where_version_2_is_mounted() {
        let mounts = "25 1 0:22 / /sys rw - sysfs sysfs rw\n\
                      30 25 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n";
        let found = group_of(mounts, "0::/system.slice/odeon.service\n");
        let expected = PathBuf::from("/sys/fs/cgroup/system.slice/odeon.service");
        assert_eq!(found, Ok(expected));
        // A container may see a part alone.
        let part = mounts.replace(" / /sys/fs", " /kube/pod7 /sys/fs");
        let found = group_of(&part, "4:memory:/x\n0::/kube/pod7/main\n");
        assert_eq!(found, Ok(PathBuf::from("/sys/fs/cgroup/main")));
        let why = group_of(&part, "0::/elsewhere\n").unwrap_err();
        assert!(why.contains("/elsewhere is not to be seen"), "{why}");
        let why = group_of("25 1 0:22 / /sys rw - sysfs sysfs rw\n", "").unwrap_err();
        assert_eq!(why, "no cgroup of version 2 is mounted here");
    }

    #[test]
    fn who_may_not_divide_its_group_says_why() {
        let folder = group("cpuset pids\n", "77\n");
        let why = divide(folder.path().to_owned(), PID).unwrap_err();
        assert!(
            why.contains("no controller `cpu`") && why.contains("Delegate=yes"),
            "{why}"
        );
        let folder = group("cpu memory\n", "77\n78\n");
        let why = divide(folder.path().to_owned(), PID).unwrap_err();
        assert!(why.contains("other processes are in the cgroup"), "{why}");
        let cgroups = Cgroups {
            base: Err(why.clone()),
            life: 1,
        };
        assert_eq!(cgroups.obstacle(), Some(why.as_str()));
        let all = Allotment {
            cpu_milli: 500,
            memory_bytes: 1 << 30,
            ..Allotment::default()
        };
        let command = cgroups.command(TRY, all, Path::new("/bin/true"));
        assert_eq!(command.program(), Path::new("/bin/true"));
    }

    #[test]
    fn a_try_is_held_to_what_it_has_reserved_and_its_end_by_memory_is_seen() {
        let folder = group("cpu memory pids\n", "77\n");
        let base = divide(folder.path().to_owned(), PID).unwrap();
        assert_eq!(text(base.join("odeon-daemon/cgroup.procs")), "77");
        assert_eq!(text(base.join("cgroup.subtree_control")), "+cpu +memory");
        // The next program of this process finds the same one.
        assert_eq!(own_again(&base), base);
        let cgroups = Cgroups {
            base: Ok(base.clone()),
            life: 0xab,
        };
        let reserved = Allotment {
            cpu_milli: 1500,
            memory_bytes: 1 << 30,
            ..Allotment::default()
        };
        let command = cgroups.command(TRY, reserved, Path::new("/bin/true"));
        assert_eq!(command.program(), Path::new("/bin/sh"));
        let own = base.join("odeon-ab-j3.2");
        assert_eq!(text(own.join("cpu.max")), "150000 100000");
        assert_eq!(text(own.join("memory.max")), (1u64 << 30).to_string());
        assert_eq!(cgroups.killed_at(TRY), None);
        fs::write(own.join("memory.events"), "low 0\noom 1\noom_kill 0\n").unwrap();
        assert_eq!(cgroups.killed_at(TRY), None);
        fs::write(own.join("memory.events"), "low 0\noom 1\noom_kill 1\n").unwrap();
        assert_eq!(cgroups.killed_at(TRY), Some(1 << 30));
        assert_eq!(cgroups.killed_at((JobId(3), 1)), None);
        // What has reserved nothing that a group bounds is in none.
        let devices = Allotment {
            devices: 1,
            ..Allotment::default()
        };
        let command = cgroups.command((JobId(4), 1), devices, Path::new("/bin/true"));
        assert_eq!(command.program(), Path::new("/bin/true"));
    }

    fn own_again(base: &Path) -> PathBuf {
        fs::write(base.join("cgroup.procs"), "").unwrap();
        divide(base.join(OWN), PID).unwrap()
    }

    /// The line that a program is started by, with a file in the place of a group's.
    #[test]
    fn a_program_is_in_its_group_before_it_begins() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("procs");
        let output = std::process::Command::new("/bin/sh")
            .args(["-c", ENTER])
            .arg(&file)
            .args(["/bin/sh", "-c", "echo $$ \"$1\"", "sh", "a b"])
            .output()
            .unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        let pid = text(file);
        assert_eq!(said, format!("{} a b\n", pid.trim()));
    }
}
