//! The tests, run once for each mutant.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::list::Mutant;

/// The end of a mutant.
pub enum Fate {
    /// A test failed.
    Caught,
    /// The tests did not end in time.
    Late,
    Missed,
    /// It does not compile.
    Unviable,
    /// It does not compile as it is woven, and why.
    NotWoven(String),
}

impl Fate {
    pub fn word(&self) -> &'static str {
        match self {
            Self::Caught => "caught",
            Self::Late => "late",
            Self::Missed => "missed",
            Self::Unviable => "unviable",
            Self::NotWoven(_) => "not woven",
        }
    }

    pub fn why(&self) -> String {
        match self {
            Self::NotWoven(why) => format!(" ({why})"),
            _ => String::new(),
        }
    }
}

/// The tests of each package, and how long they take.
pub struct Trials {
    /// The folder of each package, as it is in the copy.
    tree: PathBuf,
    scratch: PathBuf,
    tests: BTreeMap<String, PathBuf>,
    /// Set where the tests of the module are all that run.
    own: bool,
    /// What tests take without a mutant, by package and filter.
    unharmed: BTreeMap<(String, String), Duration>,
}

impl Trials {
    pub fn new(tree: &Path, target: &Path, tests: BTreeMap<String, PathBuf>, own: bool) -> Self {
        Self {
            tree: tree.to_owned(),
            scratch: target.join("tmp"),
            tests,
            own,
            unharmed: BTreeMap::new(),
        }
    }

    /// Tries a mutant: first by the tests of the module that it is in, then by all of its crate's library.
    pub fn run(&mut self, number: usize, mutant: &Mutant) -> Result<Fate> {
        let own = std::iter::once(module(&mutant.file));
        let all = (!self.own).then(String::new);
        for filter in own.chain(all) {
            let key = (mutant.package.clone(), filter);
            let unharmed = match self.unharmed.get(&key) {
                Some(took) => *took,
                None => {
                    let begun = Instant::now();
                    let fate = self.tests(0, mutant, &key.1, Duration::from_secs(1800))?;
                    ensure!(
                        matches!(fate, Fate::Missed),
                        "{} fails without a mutant: {}",
                        key.0,
                        key.1
                    );
                    println!(
                        "{} {}: {:.1} s",
                        key.0,
                        key.1,
                        begun.elapsed().as_secs_f64()
                    );
                    self.unharmed.insert(key.clone(), begun.elapsed());
                    begun.elapsed()
                }
            };
            match self.tests(
                number,
                mutant,
                &key.1,
                unharmed * 5 + Duration::from_secs(20),
            )? {
                Fate::Missed => {}
                fate => return Ok(fate),
            }
        }
        Ok(Fate::Missed)
    }

    /// Runs those tests whose name begins with `filter`, until one fails.
    fn tests(&self, number: usize, mutant: &Mutant, filter: &str, limit: Duration) -> Result<Fate> {
        let binary = self
            .tests
            .get(&mutant.package)
            .with_context(|| format!("{} has no tests", mutant.package))?;
        let folder = mutant
            .file
            .split_once("/src/")
            .map_or("", |(folder, _)| folder);
        std::fs::create_dir_all(&self.scratch)?;
        let mut child = Command::new("timeout")
            .args(["--signal=KILL", &limit.as_secs().to_string()])
            .arg(binary)
            .arg(filter)
            .current_dir(self.tree.join(folder))
            .env("ODEON_MUTANT", number.to_string())
            .env("TMPDIR", &self.scratch)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .context("timeout")?;
        let mut failed = false;
        for line in BufReader::new(child.stdout.take().context("no output")?).lines() {
            if line.is_ok_and(|it| it.starts_with("test ") && it.ends_with("FAILED")) {
                failed = true;
                // `timeout` leads a group with all that it started.
                Command::new("kill")
                    .args(["-KILL", "--", &format!("-{}", child.id())])
                    .status()?;
                break;
            }
        }
        let ended = child.wait()?;
        let _ = std::fs::remove_dir_all(&self.scratch);
        Ok(match ended.code() {
            _ if failed => Fate::Caught,
            Some(0) => Fate::Missed,
            // `timeout` ends as what it killed.
            Some(137) | None => Fate::Late,
            Some(_) => Fate::Caught,
        })
    }
}

/// The path of a file's module in its crate, with which the names of its tests begin.
fn module(file: &str) -> String {
    let inside = file
        .split_once("/src/")
        .map_or(file, |(_, it)| it)
        .trim_end_matches(".rs");
    match inside {
        "lib" => String::new(),
        inside => inside.replace('/', "::") + "::",
    }
}
