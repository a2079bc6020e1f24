//! `odeon ui`: where the pages of a cluster are.

use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use odeon_client::{CONNECTION_FILE, Connection, default_folder};

use crate::args::UiArgs;
use crate::print;

pub(crate) fn run(args: &UiArgs) -> Result<()> {
    let folder = match &args.cluster.dir {
        Some(folder) => folder.clone(),
        None => default_folder(),
    };
    let connection = Connection::read(&folder.join(CONNECTION_FILE)).with_context(|| {
        format!(
            "{}: no daemon of yours keeps its connection there",
            folder.display()
        )
    })?;
    let url = address_of(&connection);
    print::line(&url)?;
    if args.open {
        open(&url);
    }
    Ok(())
}

/// Where the pages of a daemon are, with the key.
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
