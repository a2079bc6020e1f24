//! Stacks of programs that are none of Odeon, taken from outside by `py-spy`, which reads the memory of an interpreter.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;

use crate::base::clock::Clock;

/// The frames of a stack that are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StackFrames {
    /// Those of Python. The program goes on meanwhile.
    Python,
    /// Those of libraries, too. The program stands for that long, some tenths of a second.
    Native,
}

/// Why there is no stack of a program. Nothing has happened to it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StackError {
    /// No process of it is an interpreter of Python.
    #[error("process {0} is no Python program")]
    NoPython(u32),
    /// The program `py-spy` is neither in `PATH` here nor in that of the program, nor beside its interpreter.
    #[error(
        "py-spy is not installed there: `pip install py-spy` beside the program, or on its node"
    )]
    NoReader,
    /// It was there, and refused.
    #[error("py-spy: {0}")]
    Refused(String),
    /// It took too long.
    #[error("py-spy gave no answer in {} s", TAKEN_WITHIN.as_secs())]
    Late,
}

/// The stacks of the threads of a program, as `py-spy dump --json` prints them. Of a shell or a launcher, those of the
/// Python program that it has started. Where native frames are refused, as those of a program that is stopped, the
/// frames of Python.
///
/// # Errors
/// Why there is none.
pub async fn program_stack(pid: u32, frames: StackFrames) -> Result<Vec<u8>, StackError> {
    let python = python_of(pid).ok_or(StackError::NoPython(pid))?;
    let reader = reader_for(python).ok_or(StackError::NoReader)?;
    let taken = async {
        match dump(&reader, python, frames).await {
            Err(StackError::Refused(_)) if frames == StackFrames::Native => {
                dump(&reader, python, StackFrames::Python).await
            }
            taken => taken,
        }
    };
    let taken = Clock::timeout(TAKEN_WITHIN, taken).await;
    taken.ok_or(StackError::Late)?
}

/// The answer of `py-spy` about an interpreter.
async fn dump(reader: &Path, python: u32, frames: StackFrames) -> Result<Vec<u8>, StackError> {
    let mut command = Command::new(reader);
    command
        .args(["dump", "--json", "--full-filenames", "--pid"])
        .arg(python.to_string())
        .arg(match frames {
            StackFrames::Python => "--nonblocking",
            StackFrames::Native => "--native",
        })
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    let output = command.output().await;
    let output = output.map_err(|error| StackError::Refused(error.to_string()))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let said = said.lines().find(|line| !line.trim().is_empty());
        let said = said.unwrap_or("it failed without a word").trim();
        return Err(StackError::Refused(said.to_owned()));
    }
    Ok(output.stdout)
}

/// The interpreter of a program: itself, or what it has started, level by level.
fn python_of(pid: u32) -> Option<u32> {
    let mut level = vec![pid];
    for _ in 0..DEPTH_MAX {
        if let Some(python) = level.iter().find(|pid| is_python(**pid)) {
            return Some(*python);
        }
        level = level.iter().flat_map(|pid| children(*pid)).collect();
    }
    None
}

/// The processes that a process has started, by any of its threads.
fn children(pid: u32) -> Vec<u32> {
    let threads = fs::read_dir(format!("/proc/{pid}/task"));
    let threads = threads.into_iter().flatten().flatten();
    let children = threads.filter_map(|it| fs::read_to_string(it.path().join("children")).ok());
    let children = children.flat_map(|of_one| {
        let numbers = of_one.split_whitespace();
        numbers.filter_map(|it| it.parse().ok()).collect::<Vec<_>>()
    });
    children.collect()
}

fn is_python(pid: u32) -> bool {
    let exe = fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
    let name = exe
        .file_name()
        .map(|name| name.to_string_lossy().into_owned());
    if name.is_some_and(|name| name.starts_with("python")) {
        return true;
    }
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    maps.contains("/libpython")
}

/// Where `py-spy` is for a program.
fn reader_for(pid: u32) -> Option<PathBuf> {
    let own = std::env::var_os("PATH").unwrap_or_default();
    let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let program = command.split(|byte| *byte == 0).next().unwrap_or_default();
    let program = Path::new(std::ffi::OsStr::from_bytes(program));
    let beside = program.parent().filter(|it| it.is_absolute());
    let environ = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    let mut variables = environ.split(|byte| *byte == 0);
    let path = variables.find_map(|it| it.strip_prefix(b"PATH="));
    let path = std::ffi::OsStr::from_bytes(path.unwrap_or_default());
    let folders = std::env::split_paths(&own)
        .chain(beside.map(Path::to_owned))
        .chain(std::env::split_paths(path));
    let mut readers = folders.map(|folder| folder.join("py-spy"));
    readers.find(|it| {
        let meta = fs::metadata(it);
        it.is_absolute()
            && meta.is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
    })
}

/// Time that a stack may take: native ones need the symbols of all libraries.
const TAKEN_WITHIN: Duration = Duration::from_secs(15);
/// Levels of launchers.
const DEPTH_MAX: usize = 8;
