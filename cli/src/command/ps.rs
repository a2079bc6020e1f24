//! `odeon ps`: the processes of a run, as its driver wrote them down.

use std::path::Path;

use anyhow::{Context, Result};

use crate::args::PsArgs;
use crate::print;

/// One line of the file: role and process id.
pub(crate) fn read(run: &Path) -> Result<Vec<(String, i32)>> {
    let path = run.join(super::run::PROCESSES);
    let text = std::fs::read_to_string(&path)
        .with_context(|| format!("{}: no run is going on there", path.display()))?;
    let rows = text.lines().filter_map(|line| {
        let (role, pid) = line.split_once('\t')?;
        Some((role.to_owned(), pid.parse().ok()?))
    });
    Ok(rows.collect())
}

pub(crate) fn run(args: &PsArgs) -> Result<()> {
    let rows: Vec<Vec<String>> = read(&args.run)?
        .into_iter()
        .map(|(role, pid)| vec![role, pid.to_string()])
        .collect();
    print::table(&["role", "pid"], &rows);
    Ok(())
}
