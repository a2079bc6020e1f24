//! Parts of the machine that programs see where they have a root of their own.

use std::path::{Component, Path, PathBuf};

use super::SandboxSpec;

/// Something of the machine that programs see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Mount {
    /// A folder or file, at the same place, read-only.
    Shown(PathBuf),
    /// A device.
    Device(PathBuf),
    /// A link, and where it leads.
    Link(PathBuf, PathBuf),
}

/// Parts of the machine that programs see, as far as they are there.
pub(super) fn system(readable: &[PathBuf]) -> Vec<Mount> {
    let mut found = vec![];
    for path in ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64"].map(PathBuf::from) {
        if let Ok(to) = std::fs::read_link(&path) {
            found.push(Mount::Link(path, to));
        } else if path.exists() {
            found.push(Mount::Shown(path));
        }
    }
    // Where libraries are, and which of several programs a name means.
    let named = ["/etc/ld.so.cache", "/etc/alternatives"].map(PathBuf::from);
    let shown = named.iter().chain(readable).filter(|path| path.exists());
    found.extend(shown.cloned().map(Mount::Shown));
    let devices = ["null", "zero", "full", "random", "urandom"];
    let devices = devices.map(|name| Path::new("/dev").join(name));
    found.extend(
        devices
            .into_iter()
            .filter(|path| path.exists())
            .map(Mount::Device),
    );
    if !readable.iter().any(|path| path.starts_with("/tmp")) {
        found.push(Mount::Link("/tmp".into(), "work".into()));
    }
    found
}

/// Returns true when a folder can be shown, beside what the sandbox itself has.
pub(super) fn can_be_shown(path: &Path) -> bool {
    let plain = path.components().all(|part| part != Component::ParentDir);
    plain
        && path.parent().is_some_and(Path::is_absolute)
        && !TAKEN.iter().any(|it| path.starts_with(it))
}

/// Where something of the machine is in another root.
pub(super) fn under(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

/// Lines for `mount` of all that it is to show under `root`, in the format of fstab(5).
pub(super) fn table(shown: &[Mount], root: &Path, spec: &SandboxSpec) -> String {
    let root_text = in_fstab(root);
    let mut text = format!("{root_text} {root_text} none bind,ro,nosuid,nodev,noexec 0 0\n");
    let mut line = |path: &Path, options: &str| {
        let (from, to) = (in_fstab(path), in_fstab(&under(root, path)));
        text.push_str(&format!("{from} {to} none {options} 0 0\n"));
    };
    for mount in shown {
        match mount {
            Mount::Shown(path) => line(path, "rbind,ro,nosuid,nodev"),
            Mount::Device(path) => line(path, "bind"),
            Mount::Link(..) => {}
        }
    }
    let work = in_fstab(&root.join("work"));
    let size = spec.file_bytes;
    text.push_str(&format!(
        "tmpfs {work} tmpfs size={size},nr_inodes={FILES},mode=755,nosuid,nodev 0 0\n"
    ));
    text
}

/// A path as a field of fstab(5).
fn in_fstab(path: &Path) -> String {
    let text = path.to_string_lossy();
    text.replace('\\', "\\134")
        .replace(' ', "\\040")
        .replace('\t', "\\011")
        .replace('\n', "\\012")
}

/// Number of files that a program may have in its folder.
const FILES: u32 = 4096;
/// Folders that are of the sandbox itself, or that it is to keep away.
pub(super) const TAKEN: [&str; 5] = ["/work", "/old", "/proc", "/sys", "/dev"];
