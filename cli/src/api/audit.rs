//! The audit log, of who has changed what: a file of JSON lines, the last of them.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use axum::response::Response;
use odeon_cluster::unix::Unix;
use parking_lot::Mutex;
use serde::Serialize;

/// The open file to which each change is appended.
#[derive(Debug)]
pub(crate) struct Audit {
    path: PathBuf,
    file: Mutex<File>,
}

#[derive(Serialize)]
struct Entry<'a> {
    at_ms: u64,
    key: &'a str,
    /// The address that the request came from; without one, another node has handed it on.
    #[serde(skip_serializing_if = "Option::is_none")]
    from: Option<IpAddr>,
    method: &'a str,
    path: &'a str,
    /// The name of what was made, where the path does not say it.
    #[serde(skip_serializing_if = "Option::is_none")]
    made: Option<&'a str>,
    status: u16,
}

/// The name of what a request has made, for the audit log.
#[derive(Clone, Debug)]
pub(super) struct Made(pub(super) String);

/// Bytes of the file; then it becomes the older one, and another begins.
const BYTES_MAX: u64 = 16 << 20;

impl Audit {
    /// Goes on with the file of this folder.
    pub(crate) fn open(folder: &Path) -> io::Result<Self> {
        let path = folder.join("audit.log");
        let file = Mutex::new(begin(&path)?);
        Ok(Self { path, file })
    }

    /// Writes down a request, and what became of it.
    pub(super) fn note(
        &self,
        key: &str,
        from: Option<IpAddr>,
        (method, path): (&str, &str),
        response: &Response,
    ) {
        let status = response.status().as_u16();
        let made = response.extensions().get::<Made>();
        let entry = Entry {
            at_ms: Unix::now().0,
            key,
            from,
            method,
            path,
            made: made.map(|Made(what)| what.as_str()),
            status,
        };
        if let Err(error) = self.write(&entry) {
            tracing::error!(%error, key, method, path, status, "the audit log cannot be written");
        }
    }

    fn write(&self, entry: &Entry<'_>) -> io::Result<()> {
        let mut line = serde_json::to_vec(entry)?;
        line.push(b'\n');
        let mut file = self.file.lock();
        if file.metadata()?.len() >= BYTES_MAX {
            fs::rename(&self.path, self.path.with_extension("log.old"))?;
            *file = begin(&self.path)?;
        }
        file.write_all(&line)
    }
}

fn begin(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o600)
        .open(path)
}
