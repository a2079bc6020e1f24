//! Sizes: a file that is read in one go, a function that fits a screen or two. What is longer stands
//! here with the reason, and the list may only become shorter.

use super::{expect_none, sources};

const FILE_LINES_MAX: usize = 800;
const FUNCTION_LINES_MAX: usize = 80;

/// Files that are longer, and why.
const LONG_FILES: &[(&str, &str)] = &[
    (
        "cli/client/src/client.rs",
        "one method for each path of the HTTP API",
    ),
    (
        "cli/client/src/inspect.rs",
        "one type for each object of the HTTP API",
    ),
    (
        "cli/src/args.rs",
        "one struct for each command, whose docs are its help",
    ),
    (
        "gpu/src/conformance/checks.rs",
        "one check for each operation",
    ),
    (
        "runtime/src/net/link.rs",
        "the life of a link, from greeting to end, in the order of its steps",
    ),
];

/// Functions that are longer, and why.
const LONG_FUNCTIONS: &[(&str, &str, &str)] = &[
    (
        "actors/checkpoint/src/export.rs",
        "export",
        "one file's format, written in order",
    ),
    (
        "actors/checkpoint/src/plan/save.rs",
        "holdings",
        "one plan, over all tensors",
    ),
    (
        "actors/src/pretrain/run.rs",
        "all_lives",
        "the life of a run, step by step",
    ),
    (
        "actors/src/recipe/check.rs",
        "check",
        "one rule after the other",
    ),
    (
        "actors/src/simulate/plan.rs",
        "plan",
        "one field after the other",
    ),
    (
        "algorithms/src/parallel/llama.rs",
        "spec",
        "one tensor after the other",
    ),
    (
        "cli/src/api/access.rs",
        "admit",
        "one check after the other, in an order that matters",
    ),
    (
        "cli/src/command/daemon.rs",
        "run",
        "the life of a daemon, step by step",
    ),
    (
        "cli/src/command/model.rs",
        "plan",
        "one line of the table after the other",
    ),
    (
        "cli/src/command/run/progress.rs",
        "table",
        "one row after the other",
    ),
    (
        "cli/src/command/simulate/paper.rs",
        "compared",
        "one row after the other",
    ),
    (
        "cli/src/inspect/time.rs",
        "laid_out",
        "one lane after the other",
    ),
    (
        "cli/src/top/page.rs",
        "of_cluster",
        "one panel after the other",
    ),
    (
        "cli/src/top/page.rs",
        "run",
        "the loop of the terminal, one arm for each key",
    ),
    ("cli/src/top/panel.rs", "actor", "one line after the other"),
    (
        "gpu/collective/src/schedule.rs",
        "schedule",
        "one arm for each collective",
    ),
    (
        "gpu/src/conformance/checks.rs",
        "tape",
        "one model, operation by operation",
    ),
    (
        "gpu/src/tape/run.rs",
        "backward",
        "one arm for each operation",
    ),
    (
        "gpu/src/tape/run.rs",
        "forward",
        "one arm for each operation",
    ),
    (
        "placement/src/refusal.rs",
        "fmt",
        "one sentence for each cause",
    ),
    (
        "runtime/cluster/src/job.rs",
        "apply",
        "one arm for each event of a job",
    ),
    (
        "runtime/cluster/src/tables.rs",
        "take",
        "one arm for each command of the log",
    ),
    (
        "runtime/src/actor/engine/inbound.rs",
        "receive",
        "one arm for each frame",
    ),
    (
        "runtime/src/net/link.rs",
        "carry",
        "one connection, from its tasks to their ends",
    ),
    (
        "runtime/src/net/wire.rs",
        "decode_body",
        "one arm for each frame",
    ),
    (
        "runtime/src/net/wire.rs",
        "encode",
        "one arm for each frame",
    ),
    (
        "runtime/src/net/wire/draw.rs",
        "frame",
        "one arm for each frame",
    ),
    (
        "runtime/src/node/device_manager.rs",
        "launch_leased",
        "one lease, with what may end it at each step",
    ),
];

/// Returns true for files of tests, benchmarks and examples, which are as long as what they tell.
fn is_apart(path: &str) -> bool {
    let parts = path.split('/');
    let mut apart = parts.filter(|part| ["tests", "benches", "examples"].contains(part));
    apart.next().is_some() || path.ends_with("/tests.rs")
}

/// The lines in front of the module of tests.
fn without_tests(text: &str) -> Vec<&str> {
    let lines: Vec<&str> = text.lines().collect();
    // Those in a file of their own are declared at the top.
    let begins = |line: &str| line.starts_with("mod tests") && line.ends_with('{');
    let tests = lines
        .windows(2)
        .position(|two| two[0] == "#[cfg(test)]" && begins(two[1]));
    lines[..tests.unwrap_or(lines.len())].to_vec()
}

/// The functions of a formatted file: name and lines from its first to its closing brace.
fn functions<'a>(lines: &[&'a str]) -> Vec<(&'a str, usize)> {
    let mut found = vec![];
    for (at, line) in lines.iter().enumerate() {
        let item = line.trim_start();
        let indent = &line[..line.len() - item.len()];
        let Some(name) = name_of(item) else { continue };
        let close = format!("{indent}}}");
        let rest = lines[at..].iter();
        let end = rest.take_while(|line| **line != close && !is_over(line, indent));
        found.push((name, end.count() + 1));
    }
    found
}

/// A signature without a body, or a body on its line.
fn is_over(line: &str, indent: &str) -> bool {
    let own = line
        .strip_prefix(indent)
        .is_some_and(|rest| !rest.starts_with(' '));
    own && (line.ends_with(';') || (line.contains("fn ") && line.ends_with('}')))
}

/// The name of the function that a line begins.
fn name_of(item: &str) -> Option<&str> {
    let (before, after) = item.split_once("fn ")?;
    let words = ["pub", "const", "async", "unsafe", "extern", "\"C\""];
    let is_head = before.split_whitespace().all(|word| {
        words.contains(&word)
            || word.starts_with("pub(")
            || word.starts_with("in ")
            || word.ends_with(')')
    });
    let end = after.find(|c: char| !c.is_alphanumeric() && c != '_')?;
    (is_head && end > 0).then(|| &after[..end])
}

#[test]
fn files_are_read_in_one_go() {
    let mut violations = vec![];
    let sources = sources();
    for (path, text) in &sources {
        let lines = without_tests(text).len();
        let listed = LONG_FILES.iter().any(|(long, _)| long == path);
        if lines > FILE_LINES_MAX && !listed && !is_apart(path) {
            violations.push(format!(
                "{path}: {lines} lines, {FILE_LINES_MAX} at most: cut it by what it holds"
            ));
        }
        if lines <= FILE_LINES_MAX && listed {
            violations.push(format!(
                "{path}: {lines} lines: take it from the list in tests/tidy/sizes.rs"
            ));
        }
    }
    for (long, _) in LONG_FILES
        .iter()
        .filter(|(long, _)| sources.iter().all(|(path, _)| path != long))
    {
        violations.push(format!(
            "{long} is listed in tests/tidy/sizes.rs and not there"
        ));
    }
    expect_none(&violations);
}

#[test]
fn functions_fit_a_screen_or_two() {
    let mut violations = vec![];
    let mut long = vec![];
    for (path, text) in sources().iter().filter(|(path, _)| !is_apart(path)) {
        for (name, lines) in functions(&without_tests(text)) {
            if lines <= FUNCTION_LINES_MAX {
                continue;
            }
            long.push((path.clone(), name.to_owned()));
            let mut listed = LONG_FUNCTIONS.iter();
            if !listed.any(|(file, function, _)| file == path && *function == name) {
                violations.push(format!(
                    "{path}: {name} has {lines} lines, {FUNCTION_LINES_MAX} at most"
                ));
            }
        }
    }
    for (file, function, _) in LONG_FUNCTIONS {
        if !long
            .iter()
            .any(|(path, name)| path == file && name == function)
        {
            violations.push(format!(
                "{file}: {function} is short: take it from the list in tests/tidy/sizes.rs"
            ));
        }
    }
    expect_none(&violations);
}

#[test]
fn a_file_is_measured_up_to_its_tests() {
    let text = "#[cfg(test)]\nmod tests;\n\nfn one() {}\n\n#[cfg(test)]\nmod tests {\n    fn two() {}\n}\n";
    assert_eq!(without_tests(text).len(), 5);
    assert_eq!(
        without_tests("#[cfg(test)]\nmod tests;\nfn one() {}\n").len(),
        3
    );
}

#[test]
fn functions_are_measured_from_their_name_to_their_brace() {
    let text = "impl A {\n    pub(crate) async fn one(\n        a: u8,\n    ) -> u8 {\n        a\n    }\n\n    fn two();\n}\n\nfn three() {}\n";
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(functions(&lines), [("one", 5), ("two", 1), ("three", 1)]);
}
