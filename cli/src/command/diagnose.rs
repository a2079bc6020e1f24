//! `odeon diagnose`: dumps of NCCL's flight recorder, and the ranks to blame for what hangs in them.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use odeon_cluster::unix::Unix;
use odeon_diagnosis::flight_recorder::{
    FlightCause, FlightDump, FlightDumps, UnfinishedCollectives,
};
use odeon_diagnosis::{Detector, Finding};
use serde_json::{Value, json};

use crate::args::DiagnoseArgs;
use crate::print;

/// The most bytes of a dump.
const BYTES_MAX: u64 = 1 << 30;
/// Findings that are shown after those to begin with.
const SHOWN_MAX: usize = 10;

pub(crate) fn run(args: &DiagnoseArgs) -> Result<()> {
    let dumps = read(&args.dumps)?;
    let found = UnfinishedCollectives.observe(&dumps, dumps.last_ns());
    if args.json {
        return Ok(print::line(serde_json::to_string(&as_json(
            &dumps, &found,
        ))?)?);
    }
    tell(&dumps, &found)
}

/// The dumps of files, and of all files in folders whose names end with a number.
fn read(paths: &[PathBuf]) -> Result<FlightDumps> {
    let mut files = vec![];
    for path in paths {
        if !path.is_dir() {
            let rank = rank_of(path).with_context(|| {
                format!(
                    "{}: its name must end with its rank, as nccl_trace_rank_3 or dump_3.json does",
                    path.display()
                )
            })?;
            files.push((rank, path.clone()));
            continue;
        }
        let before = files.len();
        for entry in fs::read_dir(path).with_context(|| path.display().to_string())? {
            let entry = entry?.path();
            if let Some(rank) = rank_of(&entry).filter(|_| entry.is_file()) {
                files.push((rank, entry));
            }
        }
        if files.len() == before {
            bail!(
                "{}: no file in it has a name that ends with a rank, as nccl_trace_rank_3 or dump_3.json does",
                path.display()
            );
        }
    }
    files.sort();
    let mut dumps = FlightDumps::default();
    for pair in files.windows(2) {
        if pair[0].0 == pair[1].0 {
            bail!(
                "{} and {} are both of rank {}: give the dumps of one moment",
                pair[0].1.display(),
                pair[1].1.display(),
                pair[0].0
            );
        }
    }
    for (rank, path) in files {
        let named = || path.display().to_string();
        let file = fs::metadata(&path).with_context(named)?;
        if !file.is_file() {
            bail!("{}: it is no file", path.display());
        }
        if file.len() > BYTES_MAX {
            let length = file.len();
            bail!("{}: {length} bytes, of {BYTES_MAX} at most", path.display());
        }
        let bytes = fs::read(&path).with_context(named)?;
        dumps.add(FlightDump::read(rank, &bytes).with_context(named)?);
    }
    Ok(dumps)
}

/// The number at the end of a name, before its ending.
fn rank_of(path: &Path) -> Option<usize> {
    let stem = path.file_stem()?.to_str()?;
    let digits = stem.trim_end_matches(|it: char| it.is_ascii_digit()).len();
    stem[digits..].parse().ok()
}

fn tell(dumps: &FlightDumps, found: &[Finding<FlightDumps>]) -> Result<()> {
    let lacking: Vec<String> = dumps.lacking().iter().map(ToString::to_string).collect();
    print::line(format!(
        "{} dumps, {} groups{}",
        dumps.ranks().count(),
        dumps.groups().len(),
        match lacking.is_empty() {
            true => String::new(),
            false => format!("; no dump of ranks {}", lacking.join(", ")),
        }
    ))?;
    if found.is_empty() && dumps.is_empty() {
        return Ok(print::line("no collective is in any of them")?);
    }
    if found.is_empty() {
        return Ok(print::line("all collectives in them have ended")?);
    }
    let (first, later): (Vec<_>, Vec<_>) = found.iter().partition(|it| is_first(it, found));
    for finding in first {
        print::line(line_of(finding))?;
    }
    if !later.is_empty() {
        print::line(match later.len() {
            1 => "and, as it seems in consequence:".to_owned(),
            more => format!("and {more} more, as it seems in consequence:"),
        })?;
    }
    for finding in later.iter().take(SHOWN_MAX) {
        print::line(format!("  {}", line_of(finding)))?;
    }
    if later.len() > SHOWN_MAX {
        print::say(format!(
            "the first {SHOWN_MAX} of these are shown; --json has all"
        ));
    }
    Ok(())
}

fn line_of(finding: &Finding<FlightDumps>) -> String {
    format!(
        "since {}: {}",
        Unix(finding.since / 1_000_000),
        finding.cause
    )
}

/// Where some ranks are behind, what does not end is a consequence.
fn is_first(finding: &Finding<FlightDumps>, found: &[Finding<FlightDumps>]) -> bool {
    match &finding.cause {
        FlightCause::NotLaunched { is_first, .. } => *is_first,
        _ => !matches!(found[0].cause, FlightCause::NotLaunched { .. }),
    }
}

fn as_json(dumps: &FlightDumps, found: &[Finding<FlightDumps>]) -> Value {
    let findings = found.iter().map(|it| {
        let (kind, call) = match &it.cause {
            FlightCause::NotLaunched { call, .. } => ("not_launched", call),
            FlightCause::Differ { call, .. } => ("differ", call),
            FlightCause::NotEnded { call, .. } => ("not_ended", call),
            _ => return json!({ "text": it.cause.to_string() }),
        };
        json!({
            "kind": kind,
            "ranks": it.who,
            "since_ns": it.since,
            "is_first": is_first(it, found),
            "text": it.cause.to_string(),
            "call": {
                "group": call.group.name,
                "description": call.group.description,
                "ranks": call.group.ranks,
                "operation": call.operation,
                "sequence": call.sequence,
                "sizes": call.sizes,
            },
        })
    });
    json!({
        "ranks": dumps.ranks().collect::<Vec<_>>(),
        "lacking": dumps.lacking(),
        "groups": dumps.groups().len(),
        "findings": findings.collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rank_is_the_number_at_the_end_of_a_name() {
        let of = |name: &str| rank_of(Path::new(name));
        assert_eq!(of("/tmp/nccl_trace_rank_12"), Some(12));
        assert_eq!(of("_dump_3.json"), Some(3));
        assert_eq!(of("trace7.pkl"), Some(7));
        assert_eq!(of("fault_injection.log"), None);
    }
}
