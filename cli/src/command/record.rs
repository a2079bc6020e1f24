//! `odeon record`: what the pages of something that runs show, into a file.

use std::fs::File;
use std::io::{self, Write};

use anyhow::{Context, Result, bail};
use odeon_client::{CONNECTION_FILE, Client, Connection, default_folder};
use odeon_observe::Recording;

use super::replay::on_runtime;
use super::signals::Signals;
use crate::args::RecordArgs;
use crate::print;

pub(crate) fn run(args: &RecordArgs) -> Result<()> {
    let connection = match (&args.url, &args.cluster.dir) {
        (Some(url), _) => of_pages(url)?,
        (None, Some(folder)) => Connection::read(&folder.join(CONNECTION_FILE))?,
        (None, None) => Connection::find(&default_folder())?,
    };
    let path = args.file.display();
    let mut file = File::create_new(&args.file).with_context(|| {
        format!("{path} cannot be made: recordings go to a file that is not there yet")
    })?;
    let client = Client::new(connection)?;
    let mut written: io::Result<()> = Ok(());
    on_runtime(async {
        let mut signals = Signals::listen()?;
        let recording = client.record(args.seconds, |piece| {
            written = file.write_all(piece);
            written.is_ok()
        });
        tokio::select! {
            outcome = recording => outcome.map_err(Into::into),
            // What has come until now replays.
            _ = signals.asked() => Ok(()),
        }
    })
    .inspect_err(|_| {
        // Nothing has come: nothing stays.
        if file.metadata().is_ok_and(|it| it.len() == 0) {
            let _ = std::fs::remove_file(&args.file);
        }
    })?;
    written.with_context(|| format!("{path} is not whole"))?;
    let recording = Recording::open(&args.file).with_context(|| path.to_string())?;
    let long = recording.to().since(recording.from()).as_secs_f64();
    print::say(format!(
        "recorded {long:.0} s in {path}: `odeon replay {path}` shows it"
    ));
    Ok(())
}

/// Takes the address of pages apart: where they are, and the key behind its `#`.
fn of_pages(url: &str) -> Result<Connection> {
    let Some((place, key)) = url.split_once("/#k=") else {
        bail!("--url {url}: give the whole address that was printed, with `/#k=` and the key");
    };
    Ok(Connection {
        url: place.to_owned(),
        key: key.to_owned(),
        authority: None,
        others: vec![],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_says_where_and_with_which_key() {
        let connection = of_pages("http://127.0.0.1:80/#k=odeon-1").unwrap();
        assert_eq!(connection.url, "http://127.0.0.1:80");
        assert_eq!(connection.key, "odeon-1");
        let error = of_pages("http://127.0.0.1:80/").unwrap_err();
        assert!(error.to_string().contains("with `/#k="), "{error}");
    }
}
