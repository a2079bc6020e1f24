//! The reports of a run, a line for each, over all the times that it was started: `docs/metrics.md`.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;

use anyhow::{Context, Result};
use odeon::Clock;
use odeon_actors::rl::report::Report;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// A line.
#[derive(Debug, Serialize, Deserialize)]
struct Line<R> {
    /// When it was written, in seconds since 1970 (UTC). The first runs wrote none.
    #[serde(default)]
    time: f64,
    #[serde(flatten)]
    report: R,
}

/// The file that reports are added to.
#[derive(Debug)]
pub(super) struct Metrics(File);

impl Metrics {
    /// Goes on behind what is there.
    pub(super) fn open(folder: &Path) -> Result<Self> {
        let path = folder.join(METRICS);
        let mut options = OpenOptions::new();
        let file = options.create(true).read(true).append(true).open(&path);
        file.and_then(|mut file| {
            end_line(&mut file)?;
            Ok(Self(file))
        })
        .with_context(|| format!("writing {}", path.display()))
    }

    pub(super) fn write(&mut self, report: &impl Serialize) -> Result<()> {
        let line = Line {
            time: Clock::unix_time().as_millis() as f64 / 1e3,
            report,
        };
        let mut line = serde_json::to_string(&line)?;
        line.push('\n');
        self.0
            .write_all(line.as_bytes())
            .context("writing the metrics")
    }
}

/// A line that a crash cut off must not take the next one with it.
fn end_line(file: &mut File) -> std::io::Result<()> {
    if file.seek(SeekFrom::End(0))? == 0 {
        return Ok(());
    }
    let mut last = [0];
    file.seek(SeekFrom::End(-1))?;
    file.read_exact(&mut last)?;
    if last == *b"\n" {
        return Ok(());
    }
    file.write_all(b"\n")
}

/// The reports of a run of reinforcement learning so far.
pub(crate) fn reports(folder: &Path) -> Vec<Report> {
    lines(folder)
}

/// The reports of a run so far, in order. A line that a crash cut off is left out.
pub(crate) fn lines<R: DeserializeOwned>(folder: &Path) -> Vec<R> {
    let text = std::fs::read_to_string(folder.join(METRICS)).unwrap_or_default();
    let report = |line: &str| serde_json::from_str(line).ok();
    text.lines()
        .filter_map(report)
        .map(|line: Line<R>| line.report)
        .collect()
}

/// Its name in the run's folder.
pub(super) const METRICS: &str = "metrics.jsonl";

#[cfg(test)]
mod tests {
    use odeon_actors::engine::{EvalStats, Progress};

    use super::*;

    #[test]
    fn what_is_written_is_read_and_what_a_crash_cut_off_is_left_out() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(reports(folder.path()), []);
        let stats = EvalStats {
            problems: 3,
            correct: 2,
        };
        let told = [
            Report::Evaluated { version: 0, stats },
            Report::Finished(Progress::default()),
        ];
        for report in &told {
            Metrics::open(folder.path()).unwrap().write(report).unwrap();
        }
        let path = folder.path().join(METRICS);
        let mut text = std::fs::read_to_string(&path).unwrap();
        text += "{\"time\":1.5,\"Step\":{\"ver";
        std::fs::write(&path, text).unwrap();
        assert_eq!(reports(folder.path()), told);
        // The next run's first report has a line of its own.
        for _ in 0..2 {
            let mut next = Metrics::open(folder.path()).unwrap();
            next.write(&told[0]).unwrap();
        }
        let [first, second] = told;
        let all = [first.clone(), second, first.clone(), first];
        assert_eq!(reports(folder.path()), all);
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text.lines().count(), 5, "{text}");
    }
}
