//! A job before it is submitted: its files cut into pieces, and what it is to be run with.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use odeon_artifacts::{
    Bundle, BundleError, BundleFile, Executable, InspectError, ListError, Listing, OfProgramError,
};
use thiserror::Error;

use crate::types::NewJob;

/// A job that is ready to be submitted, with the places of its files on this machine.
#[derive(Clone, Debug)]
pub struct Submission {
    program: PathBuf,
    /// Where each file of the bundle is here.
    sources: BTreeMap<String, PathBuf>,
    bundle: Bundle,
    job: NewJob,
}

/// Why files cannot be submitted.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SubmissionError {
    /// The program is none.
    #[error(transparent)]
    Program(#[from] InspectError),
    /// The program cannot be read.
    #[error(transparent)]
    OfProgram(#[from] OfProgramError),
    /// A file cannot be read.
    #[error(transparent)]
    List(#[from] ListError),
    /// The files do not fit together.
    #[error(transparent)]
    Bundle(#[from] BundleError),
    /// A file cannot be looked at.
    #[error("{}: {source}", .path.display())]
    Io {
        /// Which.
        path: PathBuf,
        /// The error of the operating system.
        source: std::io::Error,
    },
}

impl Submission {
    /// Of an executable, named after it.
    ///
    /// # Errors
    /// It is no executable of Linux, or cannot be read.
    pub fn of_program(program: impl Into<PathBuf>) -> Result<Self, SubmissionError> {
        let program = program.into();
        Executable::inspect(&program)?;
        let bundle = Bundle::of_program(&program)?;
        let name = bundle.entry().to_owned();
        let sources = [(name.clone(), program.clone())].into_iter().collect();
        let plain = |c: char| {
            if c.is_alphanumeric() || "-_.".contains(c) {
                c
            } else {
                '-'
            }
        };
        let job = NewJob {
            name: name.chars().map(plain).collect(),
            namespace: None,
            bundle: bundle.digest().to_string(),
            args: vec![],
            env: BTreeMap::new(),
            priority: 0,
            retries: 0,
            node: None,
            word: None,
            resources: None,
            time_limit_s: None,
            after: vec![],
            array: None,
            links: BTreeMap::new(),
            grace_s: None,
            idle_limit_s: None,
            environment: None,
        };
        Ok(Self {
            program,
            sources,
            bundle,
            job,
        })
    }

    /// With files beside the executable: each under a path relative to the folder that the job runs
    /// in.
    ///
    /// # Errors
    /// A file cannot be read, or the paths do not fit together.
    pub fn files(
        mut self,
        files: impl IntoIterator<Item = (String, PathBuf)>,
    ) -> Result<Self, SubmissionError> {
        use std::os::unix::fs::PermissionsExt;
        let entry = self.bundle.entry().to_owned();
        let known = self.bundle.files();
        let mut all: Vec<(String, BundleFile)> = known
            .map(|(path, file)| (path.to_owned(), file.clone()))
            .collect();
        for (name, path) in files {
            let meta = std::fs::metadata(&path).map_err(|source| SubmissionError::Io {
                path: path.clone(),
                source,
            })?;
            let file = BundleFile {
                executable: meta.permissions().mode() & 0o111 != 0,
                listing: Listing::of_file(&path)?,
            };
            all.push((name.clone(), file));
            self.sources.insert(name, path);
        }
        self.bundle = Bundle::new(entry, all)?;
        self.job.bundle = self.bundle.digest().to_string();
        Ok(self)
    }

    /// Adds an argument.
    #[must_use]
    pub fn arg(mut self, arg: impl Into<String>) -> Self {
        self.job.args.push(arg.into());
        self
    }

    /// Changes what it is to be run with.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut NewJob)) -> Self {
        change(&mut self.job);
        self
    }

    /// The settings that it is to be run with.
    #[must_use]
    pub const fn job(&self) -> &NewJob {
        &self.job
    }

    /// Its files.
    #[must_use]
    pub const fn bundle(&self) -> &Bundle {
        &self.bundle
    }

    /// The executable, here.
    #[must_use]
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// Where a file of the bundle is here.
    pub(crate) fn source(&self, name: &str) -> Option<&Path> {
        self.sources.get(name).map(PathBuf::as_path)
    }
}
