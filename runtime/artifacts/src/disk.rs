//! Disk operations, one durable step each, and the error that says where one failed.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// The disk did not do what was asked. What was there before is there still.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DiskError {
    /// No room, or the quota of the user is used up, whatever the budget of the store says. Make
    /// room, or give the store a smaller budget.
    #[error("no room left on the disk of {}", .0.display())]
    DiskFull(PathBuf),
    /// Anything else.
    #[error("cannot {doing} {}: {source}", path.display())]
    Failed {
        /// The operation that failed.
        doing: &'static str,
        /// On what.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

impl DiskError {
    /// Says what failed where.
    pub(crate) fn at(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                Self::DiskFull(path.to_owned())
            }
            _ => Self::Failed {
                doing,
                path: path.to_owned(),
                source,
            },
        }
    }
}

/// The value, or `None` where nothing is at the path.
pub(crate) fn if_there<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// The length of the regular file at `path`, if one is there.
pub(crate) fn length(path: &Path) -> Result<Option<u64>, DiskError> {
    let found = if_there(fs::symlink_metadata(path)).map_err(DiskError::at("look at", path))?;
    Ok(found.filter(fs::Metadata::is_file).map(|it| it.len()))
}

/// Lists a folder.
pub(crate) fn entries(folder: &Path) -> Result<Vec<fs::DirEntry>, DiskError> {
    fs::read_dir(folder)
        .and_then(Iterator::collect)
        .map_err(DiskError::at("list", folder))
}

/// Makes a folder and those above it.
pub(crate) fn create_folders(path: &Path) -> Result<(), DiskError> {
    step();
    fs::create_dir_all(path).map_err(DiskError::at("create the folder", path))
}

/// Makes a folder in one that is there, durably. It may be there already.
pub(crate) fn create_folder(path: &Path) -> Result<(), DiskError> {
    step();
    match fs::create_dir(path) {
        Ok(()) => sync_folder(parent(path)),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(DiskError::at("create the folder", path)(error)),
    }
}

/// A file that nobody else has the name of yet, and that goes away again unless it is placed.
#[derive(Debug)]
pub(crate) struct Draft {
    path: PathBuf,
    file: File,
}

impl Draft {
    /// An empty one.
    pub(crate) fn create(path: PathBuf) -> Result<Self, DiskError> {
        step();
        let created = OpenOptions::new().write(true).create_new(true).open(&path);
        let file = created.map_err(DiskError::at("create", &path))?;
        Ok(Self { path, file })
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<(), DiskError> {
        let (first, second) = bytes.split_at(bytes.len() / 2);
        for half in [first, second] {
            // In tests a process may end between the halves.
            step();
            let written = self.file.write_all(half);
            written.map_err(DiskError::at("write", &self.path))?;
        }
        Ok(())
    }

    /// Sets who may do what with the file.
    pub(crate) fn permit(&self, mode: u32) -> Result<(), DiskError> {
        step();
        let permissions = fs::Permissions::from_mode(mode);
        let set = self.file.set_permissions(permissions);
        set.map_err(DiskError::at("set permissions of", &self.path))
    }

    /// Sets the time that the file carries, and waits until its bytes are on the disk.
    pub(crate) fn sync(&self, time: SystemTime) -> Result<(), DiskError> {
        step();
        let synced = self
            .file
            .set_modified(time)
            .and_then(|()| self.file.sync_all());
        synced.map_err(DiskError::at("write", &self.path))
    }

    /// Gives the file its name, in place of what has it. The caller waits for the folder.
    pub(crate) fn place(self, path: &Path) -> Result<(), DiskError> {
        step();
        fs::rename(&self.path, path).map_err(DiskError::at("name", path))
        // What goes away below is by now another name's, or nothing.
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        // Whoever opens the store next removes what stays.
        let _ = fs::remove_file(&self.path);
    }
}

/// Waits until the names in a folder are on the disk.
pub(crate) fn sync_folder(path: &Path) -> Result<(), DiskError> {
    step();
    let synced = File::open(path).and_then(|folder| folder.sync_all());
    synced.map_err(DiskError::at("write the folder", path))
}

/// Renames a folder. `false` when something is in the place that it should take.
pub(crate) fn move_folder(from: &Path, to: &Path) -> Result<bool, DiskError> {
    step();
    match fs::rename(from, to) {
        Ok(()) => sync_folder(parent(to)).map(|()| true),
        Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => Ok(false),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(DiskError::at("name the folder", to)(error)),
    }
}

/// Notes when something was used. It may be gone by now.
pub(crate) fn touch(path: &Path, now: SystemTime) -> Result<(), DiskError> {
    let touched = File::open(path).and_then(|file| file.set_modified(now));
    if_there(touched)
        .map(|_| ())
        .map_err(DiskError::at("note the use of", path))
}

/// Removes a file. `false` when there was none.
pub(crate) fn remove(path: &Path) -> Result<bool, DiskError> {
    step();
    let removed = if_there(fs::remove_file(path)).map_err(DiskError::at("remove", path))?;
    Ok(removed.is_some())
}

/// Removes a folder with all that is in it, or a file.
pub(crate) fn remove_tree(path: &Path) -> Result<(), DiskError> {
    step();
    let removed = if path.is_dir() && !path.is_symlink() {
        fs::remove_dir_all(path)
    } else {
        fs::remove_file(path)
    };
    if_there(removed)
        .map(|_| ())
        .map_err(DiskError::at("remove", path))
}

/// The folder that something lies in.
pub(crate) fn parent(path: &Path) -> &Path {
    path.parent().unwrap_or(path)
}

#[cfg(not(test))]
const fn step() {}

/// Ends the process before the step that the test chose, as if it were killed there.
#[cfg(test)]
fn step() {
    use std::sync::LazyLock;
    use std::sync::atomic::{AtomicI64, Ordering};
    static LEFT: LazyLock<Option<AtomicI64>> = LazyLock::new(|| {
        let steps = std::env::var(tests::STEPS).ok()?;
        Some(AtomicI64::new(steps.parse().expect("a number of steps")))
    });
    if let Some(left) = &*LEFT
        && left.fetch_sub(1, Ordering::Relaxed) == 0
    {
        std::process::exit(tests::KILLED);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// The variable that says after how many steps a process ends.
    pub(crate) const STEPS: &str = "ODEON_ARTIFACTS_STEPS";
    /// The exit status of a process that ended there.
    pub(crate) const KILLED: i32 = 77;

    #[test]
    fn a_full_disk_has_a_name() {
        let path = Path::new("/data/pieces");
        for code in [/* ENOSPC */ 28, /* EDQUOT */ 122] {
            let error = DiskError::at("write", path)(io::Error::from_raw_os_error(code));
            assert!(matches!(error, DiskError::DiskFull(_)), "{error:?}");
            let said = error.to_string();
            assert_eq!(said, "no room left on the disk of /data/pieces");
        }
        let error = DiskError::at("write", path)(io::Error::from_raw_os_error(/* EROFS */ 30));
        assert_eq!(
            error.to_string(),
            "cannot write /data/pieces: Read-only file system (os error 30)"
        );
    }

    #[test]
    fn a_draft_that_is_not_placed_goes_away() {
        let folder = tempfile::tempdir().unwrap();
        let (draft, placed) = (folder.path().join("draft"), folder.path().join("placed"));
        let mut first = Draft::create(draft.clone()).unwrap();
        first.write(b"half").unwrap();
        drop(first);
        assert!(!draft.exists());
        let mut second = Draft::create(draft.clone()).unwrap();
        second.write(b"whole").unwrap();
        second.place(&placed).unwrap();
        assert_eq!(fs::read(&placed).unwrap(), b"whole");
        assert!(!draft.exists());
    }
}
