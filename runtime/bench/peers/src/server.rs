//! The other process of a measurement.

use std::fmt::Display;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};
use tempfile::TempDir;

use crate::say;
use crate::subject::Subject;

/// A server process, ended when this is dropped. It ends by itself when this process is gone.
pub(crate) struct Server {
    child: Child,
    _folder: TempDir,
    /// Where it listens.
    pub(crate) address: String,
}

impl Server {
    /// Starts the server of a subject, and waits until it listens. Both know the folder.
    pub(crate) fn start(subject: Subject, folder: TempDir) -> Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["server", subject.name()])
            .arg(folder.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let said = child.stdout.take().context("it is piped")?;
        let mut server = Self {
            child,
            _folder: folder,
            address: String::new(),
        };
        BufReader::new(said).read_line(&mut server.address)?;
        server.address.truncate(server.address.trim_end().len());
        Ok(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// In the server process: says where it listens, then waits until the client is gone.
pub(crate) async fn serve_at(address: impl Display) -> Result<()> {
    say(&address.to_string())?;
    tokio::io::copy(&mut tokio::io::stdin(), &mut tokio::io::sink()).await?;
    Ok(())
}
