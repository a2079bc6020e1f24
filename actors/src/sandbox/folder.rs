//! The folder of a sandbox: the root that programs get, and a folder for the files of each run.

use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};

use tempfile::TempDir;

use super::backend::{Backend, Plan};
use super::mounts::{Mount, under};
use super::{SandboxError, Work};

/// Removed with what is in it when it is dropped.
#[derive(Debug)]
pub(super) struct Folder {
    dir: TempDir,
    owner: Option<u32>,
    runs: AtomicU64,
}

/// The folder of one run.
#[derive(Debug)]
pub(super) struct RunFolder {
    path: PathBuf,
    /// Set when only this process wrote into it.
    ours: bool,
}

impl Folder {
    pub(super) fn new(plan: &Plan) -> Result<Self, SandboxError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| SandboxError::Folder { path, source }
        };
        let dir = tempfile::Builder::new().prefix("odeon-sandbox-").tempdir();
        let dir = dir.map_err(failed(&std::env::temp_dir()))?;
        let folder = Self {
            dir,
            owner: plan.other_user(),
            runs: AtomicU64::new(0),
        };
        let made = if plan.backend() == Backend::UtilLinux {
            folder.lay_root(plan)
        } else {
            Ok(())
        };
        made.and_then(|()| folder.give(folder.path()))
            .map_err(failed(folder.path()))?;
        Ok(folder)
    }

    pub(super) fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Makes the folder for a run, with the files of the work.
    pub(super) fn run(&self, plan: &Plan, work: &Work) -> Result<RunFolder, SandboxError> {
        let plain = |name: &str| {
            !name.is_empty() && ![".", ".."].contains(&name) && !name.contains(['/', '\0'])
        };
        if let Some((name, _)) = work.files.iter().find(|(name, _)| !plain(name)) {
            return Err(SandboxError::FileName(name.clone()));
        }
        let number = self.runs.fetch_add(1, Ordering::Relaxed);
        let path = self.path().join(format!("run-{number}"));
        let failed = |source| SandboxError::Folder {
            path: path.clone(),
            source,
        };
        fs::create_dir(&path).map_err(failed)?;
        let folder = RunFolder {
            path: path.clone(),
            ours: plan.backend() != Backend::Limits,
        };
        for (name, content) in &work.files {
            let file = path.join(name);
            let written = fs::write(&file, content).and_then(|()| self.give(&file));
            written.map_err(failed)?;
        }
        self.give(&path).map_err(failed)?;
        Ok(folder)
    }

    /// Makes the places at which the new root shows the machine.
    fn lay_root(&self, plan: &Plan) -> io::Result<()> {
        let root = self.path().join("root");
        for folder in ["work", "old"] {
            fs::create_dir_all(root.join(folder))?;
        }
        for mount in plan.system() {
            match mount {
                Mount::Shown(path) | Mount::Device(path) => {
                    let at = under(&root, path);
                    if path.is_dir() {
                        fs::create_dir_all(at)?;
                    } else {
                        fs::create_dir_all(at.parent().unwrap_or(&root))?;
                        fs::File::create(at)?;
                    }
                }
                Mount::Link(path, to) => symlink(to, under(&root, path))?,
            }
        }
        symlink("old/proc", root.join("proc"))?;
        fs::write(self.path().join("mounts"), plan.mounts(&root))
    }

    /// To the user that programs are, and to nobody else.
    fn give(&self, path: &Path) -> io::Result<()> {
        if path.is_dir() {
            fs::set_permissions(path, fs::Permissions::from_mode(0o700))?;
        }
        match self.owner {
            Some(owner) => chown(path, Some(owner), Some(owner)),
            None => Ok(()),
        }
    }
}

impl RunFolder {
    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for RunFolder {
    fn drop(&mut self) {
        // What a program has laid out may be deeper than this process has stack for.
        let removed = if self.ours {
            fs::remove_dir_all(&self.path).is_ok()
        } else {
            let mut rm = Command::new("/bin/sh");
            rm.args(["-c", REMOVE]).arg(&self.path);
            rm.stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null());
            rm.status().is_ok_and(|status| status.success())
        };
        if !removed {
            let folder = self.path.display();
            tracing::warn!(%folder, "a program's folder could not be removed");
        }
    }
}

/// A program may have taken its own rights away.
const REMOVE: &str = r#"rm -rf "$0" || { chmod -R u+rwx "$0"; rm -rf "$0"; }"#;
