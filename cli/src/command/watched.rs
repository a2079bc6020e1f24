//! The target of a command that looks on: a run, by its folder or the address of its pages, or the
//! cluster.

use std::path::PathBuf;

use anyhow::{Result, anyhow, bail};
use odeon_client::{CONNECTION_FILE, ClientError, Connection, Inspector, default_folder};

use super::pages;
use crate::args::LookArgs;

/// The run or cluster that is looked at.
#[derive(Clone, Debug)]
pub(crate) enum Watched {
    /// A run of this machine, by its folder.
    Run(PathBuf),
    /// Whatever serves pages there.
    Address(Connection),
    /// The cluster of the daemon whose folder this is, or of this user's.
    Cluster(Option<PathBuf>),
}

impl Watched {
    pub(crate) fn of(args: &LookArgs) -> Result<Self> {
        Ok(match &args.run {
            None => Self::Cluster(args.dir.clone()),
            Some(run) if run.contains("://") => Self::Address(address(run)?),
            Some(run) => Self::Run(PathBuf::from(run)),
        })
    }

    /// The connection to it now: a run that began again is elsewhere, with another key.
    pub(crate) fn connection(&self) -> Result<Connection> {
        match self {
            Self::Run(run) => match pages::find(run)? {
                Some(connection) => Ok(connection),
                None => bail!(
                    "{}: this run serves no pages (it was started with --no-ui, or runs on a \
                     cluster, which shows it: leave RUN out); `odeon ps {0}` lists its processes",
                    run.display()
                ),
            },
            Self::Address(connection) => Ok(connection.clone()),
            Self::Cluster(Some(folder)) => Ok(Connection::read(&folder.join(CONNECTION_FILE))?),
            Self::Cluster(None) => Ok(Connection::find(&default_folder())?),
        }
    }

    pub(crate) fn inspector(&self) -> Result<Inspector> {
        Ok(Inspector::new(self.connection()?)?)
    }

    /// The folder, where it is a run of this machine.
    pub(crate) const fn run(&self) -> Option<&PathBuf> {
        match self {
            Self::Run(run) => Some(run),
            _ => None,
        }
    }

    /// Why it was not seen, in the words of what was looked at.
    pub(crate) fn why_not(&self, error: ClientError) -> anyhow::Error {
        match (self, error) {
            (Self::Cluster(_), error) => error.into(),
            (Self::Run(run), error) => match (pages::find(run), error) {
                // It has just ended.
                (Err(ended), _) => ended,
                (Ok(_), error) => lost(&format!("the run in {}", run.display()), error),
            },
            (Self::Address(at), error) => lost(&format!("the run at {}", at.url), error),
        }
    }
}

fn lost(what: &str, error: ClientError) -> anyhow::Error {
    match error {
        ClientError::Silent { why, .. } => anyhow!(
            "{what} does not answer: {why}; it may have ended, or be stopped (`odeon ps --processes` \
             shows whether its processes live)"
        ),
        ClientError::Strange { why, .. } => {
            anyhow!("{what} answers what no run of this release says: {why}")
        }
        ClientError::Refused { status: 401, .. } => anyhow!(
            "this key is not that of {what}: take the address that it printed when it started"
        ),
        error => error.into(),
    }
}

/// An address as a run prints it.
fn address(text: &str) -> Result<Connection> {
    let Some((url, key)) = text.split_once("/#k=").filter(|(_, key)| !key.is_empty()) else {
        bail!(
            "`{text}` is no address of pages: it must end with the key, /#k=..., as the run or \
             `odeon ui` prints it"
        );
    };
    Ok(Connection {
        url: url.to_owned(),
        key: key.split('/').next().unwrap_or(key).to_owned(),
        authority: None,
        others: vec![],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_leads_to_pages_only_with_its_key() {
        let whole = address("http://127.0.0.1:7433/#k=odeon-1").unwrap();
        assert_eq!(
            (whole.url.as_str(), whole.key.as_str()),
            ("http://127.0.0.1:7433", "odeon-1")
        );
        // As a browser shows it on another page.
        let page = address("http://127.0.0.1:7433/#k=odeon-1/actors").unwrap();
        assert_eq!(page.key, "odeon-1");
        for wrong in ["http://127.0.0.1:7433", "http://127.0.0.1:7433/#k="] {
            let why = address(wrong).unwrap_err().to_string();
            assert!(why.contains("must end with the key"), "{why}");
        }
    }
}
