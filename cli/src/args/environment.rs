//! The environment that a submitted job runs in.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use odeon_client::types;
use odeon_cluster::environment::EnvironmentSpec;

/// Files, each with the name by which a job finds it.
type NamedFiles = Vec<(String, PathBuf)>;

/// Settings of the environment of a job.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct EnvironmentArgs {
    /// A file that lists the Python packages of the job, as pip reads it: they are installed once for all nodes and
    /// later starts. Several times for several
    #[arg(long, value_name = "LOCK")]
    environment: Vec<PathBuf>,
    /// The command that makes the folder $ODEON_ENVIRONMENT instead of venv and pip, in the job's folder
    #[arg(long, value_name = "COMMAND")]
    setup: Option<String>,
}

impl EnvironmentArgs {
    /// Returns true where something is to be installed.
    pub(crate) fn is_asked(&self) -> bool {
        !self.environment.is_empty() || self.setup.is_some()
    }

    /// The environment, with the files that say what is in it: each under its path below the current folder, or else
    /// under its name.
    pub(crate) fn asked(&self) -> Result<Option<(types::Environment, NamedFiles)>> {
        if !self.is_asked() {
            return Ok(None);
        }
        let mut files = vec![];
        for path in &self.environment {
            if !path.is_file() {
                bail!("`--environment {}` is no file", path.display());
            }
            let name =
                name_of(path).with_context(|| format!("`{}` has no name", path.display()))?;
            if files.iter().any(|(known, _)| *known == name) {
                bail!("two files of `--environment` are named `{name}`: rename one");
            }
            files.push((name, path.clone()));
        }
        let environment = types::Environment {
            lock: files.iter().map(|(name, _)| name.clone()).collect(),
            setup: self.setup.clone(),
        };
        Ok(Some((environment, files)))
    }

    /// Checks it with the files of its job, before these travel.
    pub(crate) fn check(&self, files: &[(String, PathBuf)]) -> Result<()> {
        let Some((asked, _)) = self.asked()? else {
            return Ok(());
        };
        let environment = EnvironmentSpec {
            lock: asked.lock,
            setup: asked.setup,
            inputs: None,
        };
        environment.check()?;
        let paths: BTreeMap<&str, &Path> = files
            .iter()
            .map(|(name, path)| (name.as_str(), path.as_path()))
            .collect();
        let mut bytes = BTreeMap::new();
        for (name, path) in &paths {
            let meta = fs::metadata(path).with_context(|| path.display().to_string())?;
            bytes.insert((*name).to_owned(), meta.len());
        }
        let read = |name: &str| {
            let path = paths.get(name).ok_or("it is no file of the job")?;
            fs::read(path).map_err(|error| error.to_string())
        };
        environment.inputs_among(&bytes, read)?;
        Ok(())
    }
}

fn name_of(path: &Path) -> Option<String> {
    use std::path::Component;
    let parts = path.components().filter(|it| *it != Component::CurDir);
    let parts: Option<Vec<&str>> = parts
        .map(|part| match part {
            Component::Normal(part) => part.to_str(),
            _ => None,
        })
        .collect();
    match parts {
        Some(parts) => Some(parts.join("/")),
        None => Some(path.file_name()?.to_str()?.to_owned()),
    }
}
