//! Settings that a program is started with.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::probe::Probe;

/// A program, and how it is started, watched and stopped.
///
/// ```
/// use std::time::Duration;
///
/// use odeon_actors::exec::{ExecSpec, Probe};
///
/// let server = ExecSpec::new("python3")
///     .args(["-m", "http.server", "--bind", "127.0.0.1", "{port}"])
///     .listens(0)
///     .ready(Probe::Http("/".to_owned()))
///     .ready_within(Duration::from_secs(20));
/// assert_eq!(server.to_string(), "`python3 -m http.server --bind 127.0.0.1 {port}`");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[must_use]
pub struct ExecSpec {
    program: String,
    args: Vec<String>,
    env: Vec<(String, String)>,
    /// Variables for a program that would have none of these names.
    defaults: Vec<(String, String)>,
    folder: Option<PathBuf>,
    port: Option<u16>,
    probe: Probe,
    ready_within: Duration,
    grace: Duration,
    prefix: String,
    held: bool,
}

impl ExecSpec {
    /// A program without arguments: a path, or a name that is looked up in its folder and then in
    /// `PATH`.
    pub fn new(program: impl Into<String>) -> Self {
        Self {
            program: program.into(),
            args: vec![],
            env: vec![],
            defaults: vec![],
            folder: None,
            port: None,
            probe: Probe::None,
            ready_within: Duration::from_secs(60),
            grace: Duration::from_secs(3),
            prefix: String::new(),
            held: false,
        }
    }

    /// Adds arguments.
    pub fn args(mut self, args: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// Sets a variable. It sees those of the process that hosts it, too.
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    /// Sets a variable where the process that hosts it has none of this name.
    pub fn default_env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.defaults.push((name.into(), value.into()));
        self
    }

    /// In this folder, rather than that of the process that hosts it.
    pub fn folder(mut self, folder: impl Into<PathBuf>) -> Self {
        self.folder = Some(folder.into());
        self
    }

    /// Says where it listens; 0 takes a free port at each start. `{port}` in its arguments and
    /// variables stands for the number.
    pub const fn listens(mut self, port: u16) -> Self {
        self.port = Some(port);
        self
    }

    /// When it counts as ready; at once, unless told otherwise.
    pub fn ready(mut self, probe: Probe) -> Self {
        self.probe = probe;
        self
    }

    /// Sets the longest time that it may take to be ready; a minute, unless told otherwise.
    pub const fn ready_within(mut self, deadline: Duration) -> Self {
        self.ready_within = deadline;
        self
    }

    /// Sets the longest time that it may take to end after SIGTERM, before SIGKILL; three seconds,
    /// unless told otherwise. A stop of the actor gives four seconds at most; [`Halt`](super::Halt)
    /// as many as it says.
    pub const fn stop_within(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// Sets the text with which each line that it prints begins in the log.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Does not begin before it is [launched](super::Launch).
    pub const fn held(mut self) -> Self {
        self.held = true;
        self
    }

    /// Its program, as it was given.
    #[must_use]
    pub fn program(&self) -> &str {
        &self.program
    }

    pub(super) const fn is_held(&self) -> bool {
        self.held
    }

    pub(super) const fn grace(&self) -> Duration {
        self.grace
    }

    pub(super) const fn port(&self) -> Option<u16> {
        self.port
    }

    pub(super) const fn probe(&self) -> &Probe {
        &self.probe
    }

    pub(super) const fn deadline(&self) -> Duration {
        self.ready_within
    }

    pub(super) fn line_prefix(&self) -> &str {
        &self.prefix
    }

    pub(super) fn work_folder(&self) -> Option<&Path> {
        self.folder.as_deref()
    }

    /// The arguments, with the port in its places.
    pub(super) fn args_with(&self, port: Option<u16>) -> Vec<String> {
        self.args.iter().map(|arg| put(arg, port)).collect()
    }

    /// The variables to set: its own, then `more`, and the defaults that neither these nor the
    /// process have.
    pub(super) fn env_with(
        &self,
        more: &[(String, String)],
        port: Option<u16>,
        is_set: impl Fn(&str) -> bool,
    ) -> Vec<(String, String)> {
        let own = self.env.iter().chain(more);
        let mut env: Vec<_> = own
            .map(|(name, value)| (name.clone(), put(value, port)))
            .collect();
        for (name, value) in &self.defaults {
            if !is_set(name) && !env.iter().any(|(known, _)| known == name) {
                env.push((name.clone(), value.clone()));
            }
        }
        env
    }

    /// Returns true when it sets this variable itself.
    pub(super) fn sets(&self, variable: &str) -> bool {
        self.env.iter().any(|(name, _)| name == variable)
    }

    /// Where the program is: a path as it is, a name in the folder or else in `path`.
    ///
    /// # Errors
    /// Why there is none, in words.
    pub(super) fn find(
        &self,
        folder: &Path,
        path: &str,
        look: impl Fn(&Path) -> Look,
    ) -> Result<PathBuf, String> {
        let program = Path::new(&self.program);
        let mut found = None;
        let beside = folder.join(program);
        let named = !self.program.contains('/');
        let others = path.split(':').filter(|part| named && !part.is_empty());
        let others = others.map(|part| folder.join(part).join(program));
        for candidate in std::iter::once(beside).chain(others) {
            match look(&candidate) {
                Look::Program => return Ok(candidate),
                Look::File => found = found.or(Some(candidate)),
                Look::Nothing => {}
            }
        }
        Err(match found {
            Some(file) => format!(
                "{} cannot be executed: name its interpreter first, as in `python3 {}`",
                file.display(),
                self.program
            ),
            None if named => format!(
                "there is no program `{}` in {} or in PATH ({path})",
                self.program,
                folder.display()
            ),
            None => format!("there is no program {}", folder.join(program).display()),
        })
    }
}

impl fmt::Display for ExecSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}", self.program)?;
        let mut width = self.program.len();
        for arg in &self.args {
            width += arg.len() + 1;
            if width > SHOWN_MAX {
                f.write_str(" ...")?;
                break;
            }
            write!(f, " {arg}")?;
        }
        f.write_str("`")
    }
}

/// The kind of thing at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// Nothing, or no file.
    Nothing,
    /// A file that cannot be executed.
    File,
    /// A file that can.
    Program,
}

fn put(text: &str, port: Option<u16>) -> String {
    match port {
        Some(port) => text.replace("{port}", &port.to_string()),
        None => text.to_owned(),
    }
}

/// Bytes of a command line that people are shown.
const SHOWN_MAX: usize = 80;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_looked_for_beside_its_files_and_then_in_the_path() {
        let look = |path: &Path| {
            let is = |files: &[&str]| files.iter().any(|file| Path::new(file) == path);
            match () {
                () if is(&["/job/tool", "/bin/python3", "/opt/x"]) => Look::Program,
                () if is(&["/job/train.py", "/job/python3"]) => Look::File,
                () => Look::Nothing,
            }
        };
        let check = |program: &str, expect: Result<&str, &str>| {
            let found = ExecSpec::new(program).find(Path::new("/job"), "/usr/bin::/bin", look);
            match expect {
                Ok(path) => assert_eq!(found, Ok(PathBuf::from(path)), "{program}"),
                Err(why) => assert!(found.clone().unwrap_err().contains(why), "{found:?}"),
            }
        };
        check("tool", Ok("/job/tool"));
        check("./tool", Ok("/job/./tool"));
        check("python3", Ok("/bin/python3"));
        check("/opt/x", Ok("/opt/x"));
        check("train.py", Err("`python3 train.py`"));
        check("nothing", Err("in /job or in PATH"));
        check("./bin/nothing", Err("/job/./bin/nothing"));
    }

    #[test]
    fn the_port_stands_where_it_is_asked_for_and_defaults_give_way() {
        let spec = ExecSpec::new("serve")
            .args(["--port={port}", "x"])
            .env("URL", "http://localhost:{port}/")
            .default_env("OMP_NUM_THREADS", "1")
            .default_env("HELD", "2")
            .default_env("URL", "no");
        assert_eq!(spec.args_with(Some(81)), ["--port=81", "x"]);
        assert_eq!(spec.args_with(None), ["--port={port}", "x"]);
        let more = [("RANK".to_owned(), "3".to_owned())];
        let env = spec.env_with(&more, Some(81), |name| name == "HELD");
        let env: Vec<_> = env.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
        let expect = [
            ("URL", "http://localhost:81/"),
            ("RANK", "3"),
            ("OMP_NUM_THREADS", "1"),
        ];
        assert_eq!(env, expect);
    }

    #[test]
    fn a_long_command_line_is_cut_for_people() {
        let spec = ExecSpec::new("a").args(["b", &"c".repeat(100), "d"]);
        assert_eq!(spec.to_string(), "`a b ...`");
    }
}
