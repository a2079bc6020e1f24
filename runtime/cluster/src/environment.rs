//! The environment that a job is to run in: how it is made, and by what it is known. Pure.

mod inputs;

use std::collections::BTreeMap;
use std::fmt::Write as _;

use odeon_artifacts::{Bundle, Digest};
use serde::{Deserialize, Serialize};
use thiserror::Error;

pub use self::inputs::LOCK_BYTES_MAX;

/// A folder of programs and packages that is installed before a job begins, once for all jobs and nodes that want the
/// same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnvironmentSpec {
    /// The files that say what is in it, by their paths among the job's files.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lock: Vec<String>,
    /// The command of a shell that makes the folder `$ODEON_ENVIRONMENT`, in the job's folder. Without one it is made by
    /// `python3 -m venv`, and `pip` installs what the lock files list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub setup: Option<String>,
    /// A digest over the other files of the job that making it reads ([`Self::read_inputs`]).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inputs: Option<Digest>,
}

/// Why a job cannot have such an environment.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum EnvironmentSpecError {
    /// It says nothing.
    #[error(
        "an environment has lock files (--environment), a command that makes it (--setup), or both"
    )]
    Empty,
    /// It is said in too many words.
    #[error(
        "the environment names {0} bytes of lock files and commands, at most {SPEC_BYTES_MAX} are possible"
    )]
    TooLong(usize),
    /// A command that does nothing.
    #[error("the command that makes the environment (--setup) is empty: leave it away, or say one")]
    EmptySetup,
    /// Text that no shell can be given.
    #[error("`{0}` contains a zero byte")]
    Zero(String),
    /// A lock file that does not come with the job.
    #[error(
        "the lock file `{0}` of its environment is not among its files: submit it with the job (--file)"
    )]
    NoLockFile(String),
    /// A lock file of too many bytes.
    #[error(
        "the lock file `{0}` of its environment has {1} bytes, at most {LOCK_BYTES_MAX} are possible: it lists what \
         to install, and is no data"
    )]
    LargeLockFile(String, u64),
    /// A lock file that cannot be read.
    #[error("the lock file `{0}` of its environment cannot be read: {1}")]
    Unreadable(String, String),
    /// A package that stays in the folder of the job.
    #[error(
        "line {line} of `{lock}` installs a package where it lies (`{text}`): it would be in the folder of one job, \
         which goes with that, while jobs share the environment. Name it without -e"
    )]
    Editable {
        /// The lock file.
        lock: String,
        /// Which line of it, counted from 1.
        line: usize,
        /// What it says.
        text: String,
    },
}

/// Bytes of the names of lock files and of the command, together.
const SPEC_BYTES_MAX: usize = 64 << 10;
/// The way in which keys are made: another one makes all environments anew.
const KEY_VERSION: u32 = 2;

impl EnvironmentSpec {
    /// Checks that it can be meant.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn check(&self) -> Result<(), EnvironmentSpecError> {
        match &self.setup {
            None if self.lock.is_empty() => return Err(EnvironmentSpecError::Empty),
            Some(setup) if setup.trim().is_empty() => return Err(EnvironmentSpecError::EmptySetup),
            _ => {}
        }
        let texts = || self.lock.iter().chain(&self.setup);
        let bytes = texts().map(String::len).sum();
        if bytes > SPEC_BYTES_MAX {
            return Err(EnvironmentSpecError::TooLong(bytes));
        }
        match texts().find(|text| text.contains('\0')) {
            Some(text) => Err(EnvironmentSpecError::Zero(text.clone())),
            None => Ok(()),
        }
    }

    /// The command of a shell that makes it.
    #[must_use]
    pub fn command(&self) -> String {
        if let Some(setup) = &self.setup {
            return setup.clone();
        }
        let mut command = "python3 -m venv \"$ODEON_ENVIRONMENT\" && \
            \"$ODEON_ENVIRONMENT/bin/python3\" -m pip install --no-input --disable-pip-version-check"
            .to_owned();
        for lock in &self.lock {
            let quoted = lock.replace('\'', "'\\''");
            write!(command, " -r '{quoted}'").expect("a text takes all");
        }
        command
    }

    /// Takes in the other files of the job that making it reads, so that its key is of those, too. `read` gives the
    /// content of a file.
    ///
    /// # Errors
    /// As [`Self::inputs_among`].
    pub fn read_inputs(
        &mut self,
        files: &Bundle,
        read: impl FnMut(&str) -> Result<Vec<u8>, String>,
    ) -> Result<(), EnvironmentSpecError> {
        let bytes = files.files();
        let bytes: BTreeMap<String, u64> = bytes
            .map(|(path, file)| (path.to_owned(), file.listing.bytes()))
            .collect();
        let mut inputs = self.inputs_among(&bytes, read)?;
        inputs.retain(|path| !self.lock.contains(path));
        let mut text = String::new();
        for path in &inputs {
            let digest = files.file(path).map(|file| file.listing.digest());
            let digest = digest.ok_or_else(|| EnvironmentSpecError::NoLockFile(path.clone()))?;
            writeln!(text, "{digest} {path}").expect("a text takes all");
        }
        self.inputs = (!inputs.is_empty()).then(|| Digest::of(text.as_bytes()));
        Ok(())
    }

    /// The key of it on a node: what is made of the same files by the same command, for the same architecture and
    /// interpreter, is the same. `interpreter` is all that a node says of that.
    ///
    /// # Errors
    /// A lock file is not among the files of the job.
    pub fn key(&self, files: &Bundle, interpreter: &str) -> Result<Digest, EnvironmentSpecError> {
        let mut text = format!(
            "odeon-environment {KEY_VERSION}\n{}\n{interpreter}\n",
            std::env::consts::ARCH
        );
        // Lengths, so that no two of them are one text.
        let command = self.command();
        write!(text, "{}\n{command}\n", command.len()).expect("a text takes all");
        for lock in &self.lock {
            let file = files.file(lock);
            let file = file.ok_or_else(|| EnvironmentSpecError::NoLockFile(lock.clone()))?;
            writeln!(text, "{} {}", file.listing.digest(), lock).expect("a text takes all");
        }
        if let Some(inputs) = &self.inputs {
            writeln!(text, "{inputs}").expect("a text takes all");
        }
        Ok(Digest::of(text.as_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use odeon_artifacts::{BundleFile, Listing};

    use super::*;

    fn files(lock: &str) -> Bundle {
        let file = |text: &str, executable| BundleFile {
            executable,
            listing: Listing::of(text.as_bytes()).unwrap(),
        };
        let all = [
            ("run".to_owned(), file("run", true)),
            ("a.lock".to_owned(), file(lock, false)),
        ];
        Bundle::new("run", all).unwrap()
    }

    fn of(lock: &[&str], setup: Option<&str>) -> EnvironmentSpec {
        EnvironmentSpec {
            lock: lock.iter().map(|it| (*it).to_owned()).collect(),
            setup: setup.map(str::to_owned),
            inputs: None,
        }
    }

    /// SEMANTICS 191.
    #[test]
    fn a_key_changes_with_the_files_that_a_lock_file_names_and_not_with_others() {
        let key = |package: &str, script: &str| {
            let file = |text: &str| BundleFile {
                executable: true,
                listing: Listing::of(text.as_bytes()).unwrap(),
            };
            let all = [
                ("a.lock".to_owned(), file("./pkg")),
                ("pkg/a.py".to_owned(), file(package)),
                ("train.py".to_owned(), file(script)),
            ];
            let files = Bundle::new("train.py", all).unwrap();
            let mut spec = of(&["a.lock"], None);
            spec.read_inputs(&files, |_| Ok(b"./pkg".to_vec())).unwrap();
            spec.key(&files, "3.11").unwrap()
        };
        assert_eq!(key("V = 1", "1"), key("V = 1", "2"));
        assert_ne!(key("V = 1", "1"), key("V = 2", "1"));
    }

    /// SEMANTICS 191.
    #[test]
    fn a_key_changes_with_lock_files_command_and_interpreter_and_with_nothing_else() {
        let spec = of(&["a.lock"], Some("make"));
        let key = spec.key(&files("x==1"), "3.11").unwrap();
        assert_eq!(spec.key(&files("x==1"), "3.11").unwrap(), key);
        assert_ne!(spec.key(&files("x==2"), "3.11").unwrap(), key);
        assert_ne!(spec.key(&files("x==1"), "3.12").unwrap(), key);
        let other = of(&["a.lock"], Some("make all"));
        assert_ne!(other.key(&files("x==1"), "3.11").unwrap(), key);
        let missing = of(&["b.lock"], None).key(&files("x==1"), "3.11");
        assert!(missing.unwrap_err().to_string().contains("`b.lock`"));
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        assert_eq!(of(&[], None).check(), Err(EnvironmentSpecError::Empty));
        let empty = Err(EnvironmentSpecError::EmptySetup);
        assert_eq!(of(&[], Some(" ")).check(), empty);
        assert_eq!(of(&["a.lock"], Some(" \n")).check(), empty);
        assert!(of(&["a\0"], None).check().is_err());
        assert!(of(&[&"x".repeat(70_000)], None).check().is_err());
        assert_eq!(of(&["a.lock"], None).check(), Ok(()));
        let command = of(&["it's.lock"], None).command();
        assert!(command.ends_with(r"-r 'it'\''s.lock'"), "{command}");
    }
}
