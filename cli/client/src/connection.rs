//! Connections to a cluster: found by a file that the daemon of this machine writes, or by the
//! environment.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::client::ClientError;

/// The file in a daemon's folder that says how to reach its API.
pub const CONNECTION_FILE: &str = "api.json";

/// The address of an API, and the key for it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Connection {
    /// Where: `http://127.0.0.1:7433`, or with `https` where it listens beyond this machine.
    pub url: String,
    /// The key, which goes into `Authorization: Bearer`.
    pub key: String,
    /// The cluster's own authority, as PEM, for `https`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub authority: Option<String>,
    /// Other nodes that answer, when that one does not.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<String>,
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection")
            .field("url", &self.url)
            .finish_non_exhaustive()
    }
}

impl Connection {
    /// Finds the connection that the environment names (`ODEON_CONNECTION`: such a file), else the
    /// daemon's own file in its folder.
    ///
    /// # Errors
    /// There is no daemon, or its file cannot be read.
    pub fn find(folder: &Path) -> Result<Self, ClientError> {
        let path = match std::env::var_os("ODEON_CONNECTION") {
            Some(path) => PathBuf::from(path),
            None => folder.join(CONNECTION_FILE),
        };
        Self::read(&path)
    }

    /// Reads such a file.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn read(path: &Path) -> Result<Self, ClientError> {
        let path = path.to_owned();
        let text = std::fs::read_to_string(&path).map_err(|source| ClientError::NoCluster {
            path: path.clone(),
            source,
        })?;
        serde_json::from_str(&text).map_err(|error| ClientError::Connection {
            path,
            why: error.to_string(),
        })
    }
}

/// The folder of this user's daemon: `ODEON_DIR`, else `odeon` in the user's data folder.
#[must_use]
pub fn default_folder() -> PathBuf {
    if let Some(folder) = std::env::var_os("ODEON_DIR") {
        return PathBuf::from(folder);
    }
    if let Some(data) = std::env::var_os("XDG_DATA_HOME").filter(|data| !data.is_empty()) {
        return PathBuf::from(data).join("odeon");
    }
    let home = std::env::var_os("HOME").map_or_else(|| PathBuf::from("."), PathBuf::from);
    home.join(".local/share/odeon")
}
