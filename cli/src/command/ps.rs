//! `odeon ps`: the processes of a run.

use anyhow::Result;

use super::processes;
use crate::args::PsArgs;
use crate::print;

pub(crate) fn run(args: &PsArgs) -> Result<()> {
    let rows: Vec<Vec<String>> = processes::read(&args.run)?
        .into_iter()
        .map(|process| vec![process.role, process.actor, process.pid.to_string()])
        .collect();
    Ok(print::table(&["role", "actor", "pid"], &rows)?)
}
