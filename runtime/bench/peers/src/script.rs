//! Peers that are measured by a script in Python, with a Python of their own under `target`.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use serde_json::{Map, Value};
use tokio::process::Command;

use crate::figures::Figures;

/// This workspace, where the scripts lie.
const HERE: &str = env!("CARGO_MANIFEST_DIR");
/// From there: where the packages are installed.
const PYTHON: &str = "../../../target/peers-python";

/// A script, and the package that it measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Script {
    file: &'static str,
    package: &'static str,
    version: &'static str,
}

/// A line that a script prints.
#[derive(Deserialize)]
struct Line {
    figure: String,
    value: f64,
}

impl Script {
    pub(crate) const RAY: Self = Self {
        file: "ray_peer.py",
        package: "ray",
        version: "2.60.0",
    };
    pub(crate) const MONARCH: Self = Self {
        file: "monarch_peer.py",
        package: "torchmonarch",
        version: "0.7.0",
    };

    /// Installs the package, unless that was done before.
    pub(crate) async fn install(self) -> Result<()> {
        let check = format!(
            "from importlib.metadata import version; assert version('{}') == '{}'",
            self.package, self.version
        );
        if run(Command::new(python()).args(["-c", &check]))
            .await
            .is_ok()
        {
            return Ok(());
        }
        if !python().exists() {
            let base = std::env::var("ODEON_PYTHON").unwrap_or_else(|_| "python3".into());
            let folder = Path::new(HERE).join(PYTHON);
            run(Command::new(base).args(["-m", "venv"]).arg(folder)).await?;
        }
        let wanted = format!("{}=={}", self.package, self.version);
        let pip = ["-m", "pip", "install", "--quiet", &wanted];
        run(Command::new(python()).args(pip)).await?;
        Ok(())
    }

    /// One round, in a process of its own. What its package says of itself goes to a file.
    pub(crate) fn command(self) -> Result<Command> {
        let log = Path::new(HERE).join(PYTHON).join(self.package);
        let mut command = Command::new(python());
        command
            .arg(Path::new(HERE).join(self.file))
            .stderr(File::create(log.with_extension("log"))?);
        Ok(command)
    }

    /// The figures that a round has printed, among whatever else the package prints.
    pub(crate) fn figures(said: &[u8]) -> Result<Figures> {
        let said = String::from_utf8_lossy(said);
        let lines = said
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok());
        let figures: Map<String, Value> = lines
            .map(|Line { figure, value }| (figure, value.into()))
            .collect();
        serde_json::from_value(figures.into()).context("it printed not all figures")
    }
}

fn python() -> PathBuf {
    Path::new(HERE).join(PYTHON).join("bin/python")
}

/// Runs a command to its end; an error has the last line that it said.
async fn run(command: &mut Command) -> Result<()> {
    let output = command.stdin(Stdio::null()).output().await;
    let program = command.as_std().get_program().to_string_lossy();
    let output = output.with_context(|| format!("{program} cannot be run"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    let last = said.lines().last().unwrap_or("it failed").to_owned();
    ensure!(output.status.success(), last);
    Ok(())
}
