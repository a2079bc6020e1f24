//! Where the pages of a run are, as its driver notes it in the run's folder: for its owner alone.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use odeon_client::Connection;
use serde::{Deserialize, Serialize};

use super::processes::{self, DRIVER, Process};

/// Its name in the run's folder.
pub(crate) const FILE: &str = "pages.json";

/// The contents of the file.
#[derive(Debug, Serialize, Deserialize)]
struct Written {
    #[serde(flatten)]
    connection: Connection,
    /// The process that serves them. Without it, another program may have got the port.
    driver: Process,
}

/// The note, removed when this is dropped: after the run it would lead nowhere.
#[derive(Debug)]
pub(crate) struct Note {
    path: PathBuf,
}

impl Note {
    /// Writes it. Readers see all of it or nothing, and others cannot read it at any moment.
    fn write(run: &Path, connection: &Connection) -> Result<Self> {
        let driver = Process::running(DRIVER, "-".to_owned(), std::process::id());
        let written = Written {
            connection: connection.clone(),
            driver: driver.context("this process does not find itself in /proc")?,
        };
        let text = serde_json::to_vec(&written)?;
        let path = run.join(FILE);
        let fresh = path.with_extension("new");
        let put = || -> std::io::Result<()> {
            match fs::remove_file(&fresh) {
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            let mut options = File::options();
            let mut file = options
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(&fresh)?;
            file.write_all(&text)?;
            fs::rename(&fresh, &path)
        };
        put().with_context(|| format!("writing {}", path.display()))?;
        Ok(Self { path })
    }

    /// Writes where the pages are of a run that has any, and removes what one that was killed may have
    /// left.
    pub(crate) fn keep(run: &Path, connection: Option<&Connection>) -> Result<Option<Self>> {
        let Some(connection) = connection else {
            // Whoever reads it asks whether the driver lives.
            let _ = fs::remove_file(run.join(FILE));
            return Ok(None);
        };
        Self::write(run, connection).map(Some)
    }
}

impl Drop for Note {
    fn drop(&mut self) {
        // As above.
        let _ = fs::remove_file(&self.path);
    }
}

/// Finds the connection to the pages of a run; nothing when it goes on without any.
pub(crate) fn find(run: &Path) -> Result<Option<Connection>> {
    if !run.is_dir() {
        bail!("{}: there is no such folder", run.display());
    }
    let path = run.join(FILE);
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        // Whether it goes on at all.
        Err(error) if error.kind() == ErrorKind::NotFound => {
            processes::read(run)?;
            return Ok(None);
        }
        Err(error) if error.kind() == ErrorKind::PermissionDenied => bail!(
            "{}: only whoever started the run may look on; they can give you its address",
            path.display()
        ),
        Err(error) => return Err(error).with_context(|| format!("reading {}", path.display())),
    };
    let written: Written = serde_json::from_str(&text).map_err(|error| {
        anyhow!(
            "{} does not say where the pages are: {error}",
            path.display()
        )
    })?;
    if !written.driver.is_alive() {
        return Err(processes::ended_without_notice(run));
    }
    Ok(Some(written.connection))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn connection() -> Connection {
        Connection {
            url: "http://127.0.0.1:1".to_owned(),
            key: "secret".to_owned(),
            authority: None,
            others: vec![],
        }
    }

    #[test]
    fn the_note_is_for_its_owner_alone_and_goes_with_the_run() {
        let run = tempfile::tempdir().unwrap();
        let path = run.path().join(FILE);
        fs::write(path.with_extension("new"), "of one that was killed").unwrap();
        let note = Note::write(run.path(), &connection()).unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(find(run.path()).unwrap(), Some(connection()));
        drop(note);
        assert_eq!(fs::read_dir(run.path()).unwrap().count(), 0);
        let why = find(run.path()).unwrap_err().to_string();
        assert!(why.contains("no run is going on there"), "{why}");
    }

    #[test]
    fn the_note_of_a_driver_that_is_gone_leads_nowhere() {
        let run = tempfile::tempdir().unwrap();
        let note = Note::write(run.path(), &connection()).unwrap();
        let path = run.path().join(FILE);
        let text = fs::read_to_string(&path).unwrap();
        // Another process has the same id now.
        let mut written: serde_json::Value = serde_json::from_str(&text).unwrap();
        written["driver"]["started"] = 1.into();
        fs::write(&path, written.to_string()).unwrap();
        let why = find(run.path()).unwrap_err().to_string();
        assert!(why.contains("ended without notice"), "{why}");
        fs::write(&path, "{").unwrap();
        let why = find(run.path()).unwrap_err().to_string();
        assert!(why.contains("does not say where the pages are"), "{why}");
        drop(note);
    }
}
