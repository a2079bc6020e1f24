//! `odeon ui`: where the pages of a run or of a cluster are.

use std::process::{Command, Stdio};

use anyhow::{Result, anyhow};
use odeon_client::{CONNECTION_FILE, ClientError, Connection, Inspector, default_folder};

use super::watched::Watched;
use crate::args::UiArgs;
use crate::print;
use crate::waiter::Waiter;

pub(crate) fn run(args: &UiArgs) -> Result<()> {
    let watched = Watched::of(&args.look)?;
    let connection = match &watched {
        // The daemon's own: the pages of another cluster cannot be told from a connection to it.
        Watched::Cluster(folder) => {
            let folder = folder.clone().unwrap_or_else(default_folder);
            Connection::read(&folder.join(CONNECTION_FILE)).map_err(no_daemon)?
        }
        watched => watched.connection()?,
    };
    let url = address_of(&connection);
    // An address that leads nowhere is no answer, also where another node would answer.
    let inspector = Inspector::new(Connection {
        others: vec![],
        ..connection
    })?;
    let about = Waiter::alone()?.block_on(inspector.about());
    about.map_err(|error| watched.why_not(error))?;
    print::line(&url)?;
    if args.open {
        open(&url);
    }
    Ok(())
}

/// Why there is no daemon whose pages could be shown.
fn no_daemon(error: ClientError) -> anyhow::Error {
    match error {
        ClientError::NoCluster { path, source } => anyhow!(
            "no daemon of yours has left an address in {}: {source}; start a cluster with `odeon up`, \
             give the folder of its daemon with --dir, or name a run: `odeon ui RUN`",
            path.display()
        ),
        error => error.into(),
    }
}

/// Where the pages of a daemon or a run are, with the key.
pub(crate) fn address_of(connection: &Connection) -> String {
    format!("{}/#k={}", connection.url, connection.key)
}

/// Shows an address in a browser, or says that nothing here can.
pub(crate) fn open(url: &str) {
    let programs = ["xdg-open", "open", "wslview"];
    let quiet = |program: &&str| {
        let mut command = Command::new(program);
        command.arg(url).stdin(Stdio::null());
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().is_ok()
    };
    if !programs.iter().any(quiet) {
        print::say("nothing here opens a browser: open the address yourself");
    }
}
