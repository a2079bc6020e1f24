//! Tests that lack something of the machine say so here, where it is seen: past the capture of the harness, which
//! shows the output of failed tests only. Two variables are for who runs them:
//!
//! - `ODEON_SKIPS` names a file that gets a line for each test that did not run in full: the test, what it needs and
//!   why that is not to be had, with tabs between.
//! - `ODEON_REQUIRE` lists needs, with commas between, or is `all`. A test that lacks one of these fails.
//!
//! ```
//! use odeon_skip::{Need, skip};
//! # use std::process::Command;
//!
//! if let Err(error) = Command::new("python3").arg("--version").output() {
//!     return skip(Need::Python, error);
//! }
//! // Here the test would go on.
//! ```

use std::env;
use std::fmt::{self, Display, Formatter};
use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::thread;

/// The variable that names the file for what was skipped.
const SKIPS: &str = "ODEON_SKIPS";
/// The variable that lists what no test may lack.
const REQUIRE: &str = "ODEON_REQUIRE";
/// The word in it for everything.
const ALL: &str = "all";

/// The device of NVIDIA's first card. Where it exists, no test may lack a card: it is the driver that is broken.
const FIRST_CARD: &str = "/dev/nvidia0";

macro_rules! needs {
    ($($(#[$doc:meta])+ $need:ident = $name:literal,)+) => {
        /// Something of the machine that tests need and that is not everywhere.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Need {
            $($(#[$doc])+ $need,)+
        }

        impl Need {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$need,)+];

            /// The name in `ODEON_REQUIRE` and in what is written.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$need => $name,)+
                }
            }
        }
    };
}

needs! {
    /// The shell `bash`.
    Bash = "bash",
    /// A processor with AVX-512 and BF16.
    Bf16 = "bfloat",
    /// The program `bwrap`, which isolates programs, and leave to use it.
    Bubblewrap = "bubblewrap",
    /// A C compiler that does what it is asked.
    CCompiler = "c-compiler",
    /// A card of NVIDIA's that the kernels run on, with its driver.
    Card = "card",
    /// A C++ compiler.
    CppCompiler = "cpp-compiler",
    /// NVIDIA's library of matrix products.
    Cublas = "cublas",
    /// A folder to download into, and with it the consent to do so: `ODEON_FETCH_TO`.
    Download = "download",
    /// A system whose C library is glibc.
    Glibc = "glibc",
    /// The program `ldd` of glibc.
    Ldd = "ldd",
    /// The files of a model.
    Model = "model",
    /// File systems of one's own: in memory, and by FUSE.
    Mounts = "mounts",
    /// `moto`, a server that speaks S3.
    Moto = "moto",
    /// Namespaces by `unshare`, in which programs are isolated.
    Namespaces = "namespaces",
    /// NVIDIA's library of collectives.
    Nccl = "nccl",
    /// Networks of one's own, with wires between them, by `unshare` and `ip`.
    Networks = "networks",
    /// NVIDIA's run-time compiler.
    Nvrtc = "nvrtc",
    /// Measurements and published values of others, in a folder beside the project or in `ODEON_ORACLES`.
    Oracles = "oracles",
    /// A program that another crate of the workspace builds.
    OtherBinary = "other-binary",
    /// The program `py-spy`, which reads stacks of Python.
    PySpy = "py-spy",
    /// The interpreter `python3`; under `/usr`, where programs are isolated.
    Python = "python",
    /// The program `readelf`.
    Readelf = "readelf",
    /// The program `script`, which makes a terminal.
    Terminal = "terminal",
    /// Python with PyTorch and its companions.
    Torch = "torch",
    /// A second card beside the first.
    TwoCards = "two-cards",
    /// The tools of util-linux that limit programs.
    UtilLinux = "util-linux",
}

impl Display for Need {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Says that this test, or a part of it, does not run, since the machine lacks what it needs. To be called from the
/// thread of the test, whose name is the test's.
///
/// # Panics
/// If `ODEON_REQUIRE` holds the need or a word that is none, if a card is needed and this machine has one, or if the
/// file that `ODEON_SKIPS` names cannot be written.
#[track_caller]
#[allow(
    clippy::needless_pass_by_value,
    reason = "an error or a text is handed over as it is"
)]
pub fn skip(need: Need, why: impl Display) {
    let why = one_line(&why.to_string());
    let required = env::var_os(REQUIRE).unwrap_or_default();
    let required =
        required_by(&required.to_string_lossy()).unwrap_or_else(|error| panic!("{error}"));
    if let Some(refusal) = refusal(need, &why, &required, Path::new(FIRST_CARD).exists()) {
        panic!("{refusal}");
    }
    let thread = thread::current();
    let test = thread.name().unwrap_or("a test");
    // Whoever has closed it does not want to know. `eprintln!` would be captured.
    let said = format!("skipped: {test}: {need}: {why}\n");
    let _ = std::io::stderr().lock().write_all(said.as_bytes());
    if let Some(path) = env::var_os(SKIPS) {
        // One write, so that the lines of many processes do not mix.
        let file = OpenOptions::new().create(true).append(true).open(&path);
        let kept = file.and_then(|mut file| file.write_all(row(test, need, &why).as_bytes()));
        kept.unwrap_or_else(|error| panic!("{SKIPS}={}: {error}", path.display()));
    }
}

/// The text without breaks and tabs.
fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The line for the file.
fn row(test: &str, need: Need, why: &str) -> String {
    format!("{test}\t{need}\t{why}\n")
}

/// The needs that a value of `ODEON_REQUIRE` lists.
fn required_by(text: &str) -> Result<Vec<Need>, String> {
    let mut required = vec![];
    let words = text.split(',').map(str::trim);
    for word in words.filter(|word| !word.is_empty()) {
        if word == ALL {
            required.extend(Need::ALL);
            continue;
        }
        let known = Need::ALL.iter().find(|need| need.name() == word);
        required.push(*known.ok_or_else(|| {
            let known: Vec<&str> = Need::ALL.iter().map(|need| need.name()).collect();
            format!(
                "{REQUIRE} has `{word}`, which is none of {}, {ALL}",
                known.join(", ")
            )
        })?);
    }
    Ok(required)
}

/// The reason why a test may not go without this; `None` where it may.
fn refusal(need: Need, why: &str, required: &[Need], has_card: bool) -> Option<String> {
    if required.contains(&need) {
        return Some(format!(
            "{need} is required by {REQUIRE}, and not to be had: {why}"
        ));
    }
    (need == Need::Card && has_card)
        .then(|| format!("{FIRST_CARD} is there, and yet no card is to be had: {why}"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::process::{Command, Output};

    use super::*;

    #[test]
    fn each_need_has_a_name_of_its_own_that_is_no_other_word() {
        let names: BTreeSet<&str> = Need::ALL.iter().map(|need| need.name()).collect();
        assert_eq!(names.len(), Need::ALL.len());
        assert!(!names.contains(ALL));
        for name in names {
            assert!(
                name.bytes()
                    .all(|byte| byte.is_ascii_lowercase() || byte == b'-'),
                "{name}"
            );
        }
    }

    #[test]
    fn what_is_required_is_a_list_of_words() {
        assert_eq!(required_by(""), Ok(vec![]));
        assert_eq!(required_by("card"), Ok(vec![Need::Card]));
        assert_eq!(
            required_by(" nccl, two-cards,"),
            Ok(vec![Need::Nccl, Need::TwoCards])
        );
        assert_eq!(required_by("all"), Ok(Need::ALL.to_vec()));
        let error = required_by("card,cinema").unwrap_err();
        assert!(
            error.starts_with("ODEON_REQUIRE has `cinema`, which is none of bash, "),
            "{error}"
        );
        assert!(error.ends_with(", util-linux, all"), "{error}");
    }

    #[test]
    fn what_is_required_is_not_skipped() {
        let refused = |need, required: &[Need]| refusal(need, "why", required, false);
        assert_eq!(refused(Need::Python, &[]), None);
        assert_eq!(refused(Need::Python, &[Need::Card, Need::Moto]), None);
        assert_eq!(
            refused(Need::Python, &[Need::Card, Need::Python]).unwrap(),
            "python is required by ODEON_REQUIRE, and not to be had: why"
        );
    }

    #[test]
    fn a_card_that_is_there_and_not_to_be_had_is_a_failure() {
        assert_eq!(refusal(Need::Card, "why", &[], false), None);
        assert_eq!(refusal(Need::TwoCards, "why", &[], true), None);
        assert_eq!(
            refusal(Need::Card, "why", &[], true).unwrap(),
            "/dev/nvidia0 is there, and yet no card is to be had: why"
        );
    }

    #[test]
    fn what_was_skipped_is_one_line() {
        let why = one_line("it says:\n\tnothing \r\n");
        assert_eq!(
            row("a::b", Need::CCompiler, &why),
            "a::b\tc-compiler\tit says: nothing\n"
        );
    }

    /// Set for the process in which the test below skips.
    const INSIDE: &str = "ODEON_TEST_SKIP";

    /// The test below, in a process of its own whose output is captured as ever.
    fn again(required: &str, skips: &Path) -> Output {
        Command::new(env::current_exe().unwrap())
            .args([
                "--exact",
                "tests::a_test_that_skips_is_seen_though_it_passes",
            ])
            .env(INSIDE, "1")
            .env(REQUIRE, required)
            .env(SKIPS, skips)
            .output()
            .unwrap()
    }

    #[test]
    fn a_test_that_skips_is_seen_though_it_passes() {
        if env::var_os(INSIDE).is_some() {
            return skip(Need::Terminal, "there is\nnone");
        }
        let skips = env::temp_dir().join(format!("odeon-skip-{}", std::process::id()));
        let name = "tests::a_test_that_skips_is_seen_though_it_passes";
        let row = format!("{name}\tterminal\tthere is none\n");
        for times in 1..3 {
            let passed = again("python", &skips);
            assert!(passed.status.success(), "{passed:?}");
            let said = String::from_utf8_lossy(&passed.stderr);
            assert!(
                said.contains(&format!("skipped: {name}: terminal: there is none\n")),
                "{said}"
            );
            assert_eq!(fs::read_to_string(&skips).unwrap(), row.repeat(times));
        }
        fs::remove_file(&skips).unwrap();
        for (required, why) in [
            (
                "terminal",
                "terminal is required by ODEON_REQUIRE, and not to be had: there is none",
            ),
            ("cinema", "ODEON_REQUIRE has `cinema`"),
        ] {
            let failed = again(required, &skips);
            let said = String::from_utf8_lossy(&failed.stdout);
            assert!(!failed.status.success() && said.contains(why), "{said}");
            assert!(!skips.exists());
        }
    }
}
