//! Rules about the tree itself, each with the reason in its failure message: layers, names, unsafe
//! code, leftovers, docs, and papers that are short and cite what exists. `circles` has those about what
//! files import, `figures` one about what makes the figures of papers, `floors` those about what lies above
//! what in the runtime, `maps` those about the files that the docs of a crate name, `sizes` those about how
//! long files are, `nouns` those about what types are called, `skips` one about tests that do not run.

mod circles;
mod figures;
mod floors;
mod maps;
mod nouns;
mod sizes;
mod skips;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// This file, which names what it forbids.
const OWN: &str = "tests/tidy/tidy.rs";

/// The lowest crate, by which tests say what they lack: those of every other may stand on it.
const TESTS_SAY: &str = "odeon-skip";

/// A crate's folder, and what of this workspace it may stand on. Nothing points up.
const LAYERS: &[(&str, &str, &[&str])] = &[
    ("tests/skip", TESTS_SAY, &[]),
    ("gpu/simd", "odeon-simd", &[]),
    ("gpu/topology", "odeon-topology", &[]),
    ("gpu/devices", "odeon-devices", &["odeon-topology"]),
    (
        "gpu/collective",
        "odeon-collective",
        &["odeon-simd", "odeon-topology"],
    ),
    // Below whatever is watched.
    (
        "algorithms/diagnosis",
        "odeon-diagnosis",
        &["odeon-collective", "odeon-devices", "odeon-topology"],
    ),
    // Pure, and below whoever loads, trains and talks.
    ("algorithms/media", "odeon-media", &["odeon-simd"]),
    (
        "gpu",
        "odeon-gpu",
        &[
            "odeon-collective",
            "odeon-devices",
            "odeon-diagnosis",
            "odeon-simd",
        ],
    ),
    ("placement/mesh", "odeon-mesh", &[]),
    ("placement/replay", "odeon-replay", &[]),
    (
        "algorithms/sharding",
        "odeon-sharding",
        &["odeon-collective", "odeon-mesh", "odeon-simd"],
    ),
    (
        "placement",
        "odeon-placement",
        &["odeon-mesh", "odeon-topology"],
    ),
    ("runtime/artifacts", "odeon-artifacts", &[]),
    ("runtime/shm", "odeon-shm", &["odeon-collective"]),
    ("runtime/macros", "odeon-macros", &[]),
    (
        "algorithms",
        "odeon-algorithms",
        &[
            "odeon-gpu",
            "odeon-mesh",
            "odeon-replay",
            "odeon-sharding",
            "odeon-simd",
            "odeon-topology",
        ],
    ),
    (
        "runtime",
        "odeon",
        &[
            "odeon-collective",
            "odeon-devices",
            "odeon-diagnosis",
            "odeon-placement",
            "odeon-shm",
            "odeon-macros",
            "odeon-mesh",
            "odeon-topology",
        ],
    ),
    ("runtime/bench", "odeon-bench", &["odeon"]),
    (
        "runtime/observe",
        "odeon-observe",
        &["odeon", "odeon-diagnosis", "odeon-mesh", "odeon-replay"],
    ),
    // Reads what is seen and sends it elsewhere, so that nobody else knows of those formats.
    (
        "runtime/observe/otel",
        "odeon-otel",
        &["odeon", "odeon-observe"],
    ),
    (
        "runtime/cluster",
        "odeon-cluster",
        &[
            "odeon",
            "odeon-artifacts",
            "odeon-devices",
            "odeon-diagnosis",
            "odeon-observe",
            "odeon-placement",
        ],
    ),
    (
        "actors",
        "odeon-actors",
        &[
            "odeon",
            "odeon-algorithms",
            "odeon-checkpoint",
            "odeon-data",
            "odeon-devices",
            "odeon-diagnosis",
            "odeon-gpu",
            "odeon-mesh",
            "odeon-placement",
            "odeon-topology",
        ],
    ),
    // Knows storage and layouts, and no actor.
    (
        "actors/checkpoint",
        "odeon-checkpoint",
        &["odeon-algorithms", "odeon-macros", "odeon-mesh"],
    ),
    (
        "actors/data",
        "odeon-data",
        &["odeon", "odeon-algorithms", "odeon-mesh"],
    ),
    (
        "cli/client",
        "odeon-client",
        &["odeon-artifacts", "odeon-macros"],
    ),
    (
        "cli",
        "odeon-cli",
        &[
            "odeon",
            "odeon-actors",
            "odeon-algorithms",
            "odeon-artifacts",
            "odeon-checkpoint",
            "odeon-bench",
            "odeon-client",
            "odeon-cluster",
            "odeon-data",
            "odeon-devices",
            "odeon-diagnosis",
            "odeon-gpu",
            "odeon-mesh",
            "odeon-observe",
            "odeon-otel",
            "odeon-placement",
            "odeon-replay",
            "odeon-topology",
        ],
    ),
    (
        "examples",
        "odeon-examples",
        &[
            "odeon",
            "odeon-actors",
            "odeon-algorithms",
            "odeon-checkpoint",
            "odeon-data",
            "odeon-devices",
            "odeon-diagnosis",
            "odeon-mesh",
            "odeon-placement",
            "odeon-topology",
        ],
    ),
    (
        "tests",
        "odeon-tests",
        &[
            "odeon",
            "odeon-artifacts",
            "odeon-cluster",
            "odeon-devices",
            "odeon-diagnosis",
            "odeon-observe",
            "odeon-placement",
            "odeon-topology",
        ],
    ),
    ("tests/tidy", "odeon-tidy", &[]),
];

/// The documentation of the macros shows what they make, so its tests need the runtime. Those of the
/// export need a node with devices. Those of whole runs and of the command start their own binaries
/// again, as the harness does it.
const DEV_EDGES: &[(&str, &str)] = &[
    ("odeon-macros", "odeon"),
    ("odeon-otel", "odeon-devices"),
    ("odeon-otel", "odeon-topology"),
    ("odeon-actors", "odeon-tests"),
    ("odeon-cli", "odeon-tests"),
];

/// Crates that the pure ones must not know: a runtime or a network.
const EFFECTS: &[&str] = &["tokio", "kameo", "actix", "quinn", "rustls", "socket2"];
const PURE: &[&str] = &[
    "odeon-mesh",
    "odeon-simd",
    "odeon-topology",
    "odeon-devices",
    "odeon-collective",
    "odeon-gpu",
    "odeon-placement",
    "odeon-replay",
    "odeon-sharding",
    "odeon-algorithms",
    "odeon-macros",
    "odeon-media",
];

/// The files that may hold unsafe code, each with its argument written down.
const UNSAFE: &[&str] = &[
    // Memory shared between processes.
    "runtime/shm/src/arena.rs",
    "runtime/shm/src/descriptor.rs",
    "runtime/shm/src/gang.rs",
    "runtime/shm/src/mapper.rs",
    "runtime/shm/src/mapping.rs",
    "runtime/shm/tests/it/processes.rs",
    // Vector instructions that the processor was seen to have.
    "gpu/simd/src/lib.rs",
    // Threads that write disjoint parts of one buffer, and vector instructions.
    "gpu/src/cpu/attention.rs",
    "gpu/src/cpu/attention/blocks.rs",
    "gpu/src/cpu/buffer.rs",
    "gpu/src/cpu/decode.rs",
    "gpu/src/cpu/decode/kernels.rs",
    "gpu/src/cpu/gemm.rs",
    "gpu/src/cpu/gemm/bf16.rs",
    "gpu/src/cpu/gemm/bf16/kernels.rs",
    "gpu/src/cpu/in_order.rs",
    "gpu/src/cpu/pool.rs",
    "gpu/src/cpu/update.rs",
    "gpu/src/cpu/vocab.rs",
    // Kernels compiled for the processor, which touch memory by address.
    "gpu/src/cuda/emulated/library.rs",
    // Calls of CUDA's driver and of its matrix products, loaded at run time.
    "gpu/src/cuda/driver.rs",
    "gpu/src/cuda/gpu/api.rs",
    "gpu/src/cuda/gpu/blas.rs",
    "gpu/src/cuda/gpu/context.rs",
    "gpu/src/cuda/gpu/kernels.rs",
    "gpu/src/cuda/gpu/pinned.rs",
    // NVIDIA's compiler and its library of collectives, loaded at run time.
    "gpu/src/cuda/nccl/library.rs",
    "gpu/src/cuda/nvrtc.rs",
    // Events of the management library, which borrow the library they are kept beside.
    "gpu/devices/src/inventory/nvml/xid.rs",
    // A function of the allocator.
    "cli/src/heap.rs",
    // Read-only maps of model files.
    "algorithms/src/weights/gguf.rs",
    "algorithms/src/weights/safetensors.rs",
];

/// Words that say nothing about what a file holds.
const EMPTY_NAMES: &[&str] = &[
    "util", "utils", "helper", "helpers", "common", "misc", "manager", "core",
];

/// Marks that a finished tree does not hold.
const LEFTOVERS: &[&str] = &[
    "todo!(",
    "unimplemented!(",
    "dbg!(",
    "thread::sleep",
    "#[ignore",
    "FIXME",
    "XXX",
];

// rustfmt keeps code at 100 columns; tables and figures in docs, and lines inside macros, which it
// leaves alone, may be wider.
const COLUMNS: usize = 140;

/// The papers that a stranger reads first, each with the most lines it may have and the most columns
/// of a line, and the place of what finds no room.
const SHORT_PAPERS: &[(&str, usize, usize, &str)] = &[
    (
        "ARCHITECTURE.md",
        300,
        120,
        "a map of files belongs into its crate's lib.rs, a decision into docs/decisions",
    ),
    (
        "README.md",
        200,
        usize::MAX,
        "what goes deeper belongs into docs, with a link here",
    ),
];

/// First words that make a question of a doc.
const QUESTIONS: &[&str] = &["What", "Who", "Whether", "How"];

fn root() -> &'static Path {
    let mut folders = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    folders.nth(2).unwrap()
}

/// The files of the tree under `folder`, relative to the root, without what is built or run.
fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    let mut entries: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap())
        .collect();
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let (path, name) = (entry.path(), entry.file_name().into_string().unwrap());
        if name.starts_with('.') || ["target", "runs", "models"].contains(&name.as_str()) {
            continue;
        }
        if entry.file_type().unwrap().is_dir() {
            files(&path, found);
        } else {
            found.push(path.strip_prefix(root()).unwrap().to_owned());
        }
    }
}

/// Every Rust file with its text.
fn sources() -> Vec<(String, String)> {
    let mut found = vec![];
    files(root(), &mut found);
    found
        .into_iter()
        .filter(|path| path.extension().is_some_and(|extension| extension == "rs"))
        .map(|path| (path.to_str().unwrap().to_owned(), read(&path)))
        .collect()
}

fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Fails with all violations, one a line.
fn expect_none(violations: &[String]) {
    assert!(violations.is_empty(), "\n{}\n", violations.join("\n"));
}

/// The text with comments and the insides of strings blanked, line for line. Quotes stay.
fn code(text: &str) -> String {
    #[derive(Clone, Copy)]
    enum In {
        Code,
        Line,
        Block(u32),
        Text { hashes: Option<usize> },
    }
    let chars: Vec<char> = text.chars().collect();
    let at = |i: usize| chars.get(i).copied().unwrap_or('\0');
    let (mut out, mut state, mut i) = (String::with_capacity(text.len()), In::Code, 0);
    while i < chars.len() {
        let c = chars[i];
        let mut taken = 1;
        match state {
            _ if c == '\n' => {
                out.push('\n');
                if matches!(state, In::Line) {
                    state = In::Code;
                }
            }
            In::Code => match (c, at(i + 1)) {
                ('/', '/') => state = In::Line,
                ('/', '*') => {
                    taken = 2;
                    state = In::Block(1);
                }
                ('"', _) => {
                    out.push('"');
                    state = In::Text { hashes: None };
                }
                ('r', '"' | '#') if i == 0 || !is_word(chars[i - 1]) || chars[i - 1] == 'b' => {
                    let hashes = chars[i + 1..].iter().take_while(|c| **c == '#').count();
                    out.push('r');
                    if at(i + 1 + hashes) == '"' {
                        out.push('"');
                        taken = hashes + 2;
                        state = In::Text {
                            hashes: Some(hashes),
                        };
                    }
                }
                // A character, not a lifetime.
                ('\'', '\\') => {
                    let end = (i + 3..chars.len()).find(|end| chars[*end] == '\'');
                    taken = end.map_or(1, |end| end + 1 - i);
                }
                ('\'', _) if at(i + 2) == '\'' => taken = 3,
                _ => out.push(c),
            },
            In::Line => {}
            In::Block(depth) => match (c, at(i + 1)) {
                ('*', '/') => {
                    taken = 2;
                    state = if depth == 1 {
                        In::Code
                    } else {
                        In::Block(depth - 1)
                    };
                }
                ('/', '*') => {
                    taken = 2;
                    state = In::Block(depth + 1);
                }
                _ => {}
            },
            In::Text { hashes: None } => match c {
                '\\' if at(i + 1) != '\n' => taken = 2,
                '"' => {
                    out.push('"');
                    state = In::Code;
                }
                _ => {}
            },
            In::Text {
                hashes: Some(hashes),
            } => {
                let closing = c == '"' && (1..=hashes).all(|n| at(i + n) == '#');
                if closing {
                    out.push('"');
                    taken = 1 + hashes;
                    state = In::Code;
                }
            }
        }
        i += taken;
    }
    out
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Returns true if the line holds `word` and not merely a longer one.
fn holds_word(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + word.len()..].chars().next();
        !before.is_some_and(is_word) && !after.is_some_and(is_word)
    })
}

#[test]
fn the_scanner_sees_code_and_nothing_else() {
    let text = "a // b\nlet c = \"d \\\" e\"; /* f /* g */ h */ i\nlet j = r#\"k \" l\"#; 'm'; &'n o '\\'' p";
    assert_eq!(
        code(text),
        "a \nlet c = \"\";  i\nlet j = r\"\"; ; &'n o  p",
    );
    assert!(holds_word("an unsafe block", "unsafe") && !holds_word("unsafety", "unsafe"));
}

#[test]
fn the_top_level_folders_are_there() {
    for folder in [
        "actors",
        "algorithms",
        "cli",
        "examples",
        "gpu",
        "placement",
        "runtime",
        "tests",
    ] {
        assert!(
            root().join(folder).join("Cargo.toml").exists(),
            "{folder} has no Cargo.toml"
        );
    }
}

#[test]
fn dependencies_point_down() {
    let mut violations = vec![];
    let names: BTreeSet<&str> = LAYERS.iter().map(|(_, name, _)| *name).collect();
    for (folder, name, allowed) in LAYERS {
        let path = format!("{folder}/Cargo.toml");
        let text = read(&path);
        let manifest: toml::Table = text
            .parse()
            .unwrap_or_else(|error| panic!("{path}: {error}"));
        assert_eq!(manifest["package"]["name"].as_str(), Some(*name), "{path}");
        let line_of = |word: &str| {
            text.lines()
                .position(|line| line.trim_start().starts_with(word))
                .map_or(0, |n| n + 1)
        };
        for section in ["dependencies", "build-dependencies", "dev-dependencies"] {
            let Some(table) = manifest.get(section).and_then(toml::Value::as_table) else {
                continue;
            };
            for (key, value) in table {
                let on = value
                    .get("package")
                    .and_then(toml::Value::as_str)
                    .unwrap_or(key);
                let line = line_of(key);
                let dev = section == "dev-dependencies"
                    && (on == TESTS_SAY || DEV_EDGES.contains(&(name, on)));
                if names.contains(on) && !allowed.contains(&on) && !dev {
                    violations.push(format!(
                        "{path}:{line}: {name} may not stand on {on}: allowed are {allowed:?}"
                    ));
                }
                if section == "dependencies" && PURE.contains(name) && EFFECTS.contains(&on) {
                    violations.push(format!(
                        "{path}:{line}: {name} is pure and may not know {on}"
                    ));
                }
            }
        }
    }
    expect_none(&violations);
}

/// Workspaces of their own inside this one, which cargo does not look at when it builds it.
const APART: &[&str] = &["runtime/bench/peers"];

#[test]
fn lock_files_of_workspaces_apart_fit_the_crates() {
    let mut violations = vec![];
    for folder in APART {
        let asked = Command::new(env!("CARGO"))
            .args(["update", "--workspace", "--locked", "--offline"])
            .current_dir(root().join(folder))
            .output()
            .expect("cargo runs, as it runs this test");
        let said = String::from_utf8_lossy(&asked.stderr);
        // Without the index of the registry cargo says something else, and only the build can tell.
        if said.contains("cannot update the lock file") {
            violations.push(format!(
                "{folder}/Cargo.lock: a crate of this workspace has other dependencies now: run `cargo update \
                 --workspace` there"
            ));
        }
    }
    expect_none(&violations);
}

#[test]
fn every_crate_has_its_layer() {
    let workspace: toml::Table = read("Cargo.toml").parse().unwrap();
    let members: BTreeSet<&str> = workspace["workspace"]["members"]
        .as_array()
        .unwrap()
        .iter()
        .map(|member| member.as_str().unwrap())
        .collect();
    let known: BTreeSet<&str> = LAYERS.iter().map(|(folder, ..)| *folder).collect();
    assert_eq!(members, known, "Cargo.toml and LAYERS in {OWN}");
}

#[test]
fn files_are_named_by_what_they_hold() {
    let mut violations = vec![];
    for (path, _) in sources() {
        for part in path.trim_end_matches(".rs").split('/') {
            if part == "mod" {
                violations.push(format!(
                    "{path}:1: write `foo.rs` and `foo/`, not `foo/mod.rs`"
                ));
            }
            if EMPTY_NAMES.contains(&part) {
                violations.push(format!("{path}:1: `{part}` does not say what it holds"));
            }
        }
    }
    expect_none(&violations);
}

#[test]
fn every_file_says_what_it_is() {
    let mut violations = vec![];
    for (path, text) in sources() {
        if !text.starts_with("//!") {
            violations.push(format!(
                "{path}:1: begin with a `//!` sentence about the file"
            ));
        }
    }
    expect_none(&violations);
}

/// Returns true if the text of a doc begins with a question word.
fn asks(doc: &str) -> bool {
    QUESTIONS.iter().any(|word| {
        doc.strip_prefix(word)
            .is_some_and(|rest| rest.starts_with(' '))
    })
}

#[test]
fn docs_open_with_a_thing_or_an_act() {
    let mut violations = vec![];
    for (path, text) in sources() {
        let lines: Vec<&str> = text.lines().map(str::trim_start).collect();
        let doc = |line: usize| lines[line].strip_prefix("///");
        let mut questions = vec![];
        if lines[0].strip_prefix("//! ").is_some_and(asks) {
            questions.push(0);
        }
        for line in 0..lines.len() {
            let first = line == 0 || doc(line - 1).is_none();
            let asked = doc(line).is_some_and(|doc| doc.strip_prefix(' ').is_some_and(asks));
            let item = lines[line..]
                .iter()
                .find(|line| !line.starts_with("///") && !line.starts_with("#["));
            if first && asked && item.is_some_and(|item| item.starts_with("pub ")) {
                questions.push(line);
            }
        }
        violations.extend(questions.into_iter().map(|line| {
            format!(
                "{path}:{}: open with what it is or does, as \"The queue of ...\" or \"Sends ...\": \
                 no {QUESTIONS:?}",
                line + 1
            )
        }));
    }
    expect_none(&violations);
}

#[test]
fn unsafe_code_stays_in_its_files() {
    let mut violations = vec![];
    let mut needless: BTreeSet<&str> = UNSAFE.iter().copied().collect();
    for (path, text) in sources() {
        for (line, code) in code(&text).lines().enumerate() {
            if !holds_word(code, "unsafe") {
                continue;
            }
            needless.remove(path.as_str());
            if !UNSAFE.contains(&path.as_str()) {
                violations.push(format!(
                    "{path}:{}: unsafe code in a file without it",
                    line + 1
                ));
            }
        }
    }
    violations.extend(
        needless
            .iter()
            .map(|path| format!("{path}:1: holds no unsafe code: take it from UNSAFE in {OWN}")),
    );
    expect_none(&violations);
}

#[test]
fn nothing_unfinished_is_left() {
    let mut violations = vec![];
    for (path, text) in sources() {
        if path == OWN {
            continue;
        }
        for (line, code) in code(&text).lines().enumerate() {
            for word in LEFTOVERS.iter().filter(|word| code.contains(**word)) {
                violations.push(format!("{path}:{}: `{word}`", line + 1));
            }
        }
    }
    expect_none(&violations);
}

#[test]
fn lines_fit_the_page() {
    let mut violations = vec![];
    for (path, text) in sources() {
        let code = code(&text);
        // A figure in the documentation is as wide as it is.
        let mut figure = false;
        for (number, (line, code)) in text.lines().zip(code.lines()).enumerate() {
            let comment = line.trim_start();
            figure ^= comment.starts_with("//") && comment.contains("```");
            let table = comment.starts_with("/// |") || comment.starts_with("//! |");
            let exempt = figure || table || code.contains('"') || line.contains("://");
            // Inside of a string over several lines nothing of the code is left.
            let in_text = code.trim().is_empty() && !comment.starts_with("//");
            if line.chars().count() > COLUMNS && !exempt && !in_text {
                violations.push(format!("{path}:{}: over {COLUMNS} columns", number + 1));
            }
        }
    }
    expect_none(&violations);
}

/// The numbers of the guarantees in SEMANTICS.md, each with its line.
fn guarantees() -> Vec<(usize, usize)> {
    let text = read("SEMANTICS.md");
    let lines = text.lines().enumerate();
    lines
        .filter_map(|(line, text)| {
            let (number, _) = text.split_once(". **")?;
            Some((number.parse().ok()?, line + 1))
        })
        .collect()
}

/// The numbers at the start of what follows `SEMANTICS`.
fn numbers_of(rest: &str) -> impl Iterator<Item = usize> {
    let numbers = rest.split([':', ';', '.']).next().unwrap_or_default();
    numbers
        .split(", ")
        .filter_map(|number| number.trim().parse().ok())
}

#[test]
fn guarantees_are_numbered_without_gaps() {
    let mut violations = vec![];
    for (index, (number, line)) in guarantees().into_iter().enumerate() {
        if number != index + 1 {
            violations.push(format!(
                "SEMANTICS.md:{line}: {number} should be {}: a number never changes, and a new \
                 guarantee takes the next one",
                index + 1
            ));
        }
    }
    expect_none(&violations);
}

#[test]
fn every_guarantee_is_proved_by_tests_that_cite_it() {
    let made = Command::new("sh")
        .arg(root().join("scripts/proofs"))
        .arg("--print")
        .output()
        .expect("there is a shell");
    let complaint = String::from_utf8_lossy(&made.stderr);
    assert!(
        made.status.success() && complaint.is_empty(),
        "scripts/proofs: {complaint}"
    );
    let made = String::from_utf8(made.stdout).unwrap();
    let mut violations = vec![];
    for section in made.split("\n## ").skip(1) {
        let title = section.lines().next().unwrap_or_default();
        if !section.contains("\n- ") {
            let number = title.split('.').next().unwrap_or_default();
            violations.push(format!(
                "SEMANTICS.md: no test cites guarantee {title}: write `SEMANTICS {number}` into the \
                 comment above one that proves it, and run scripts/proofs"
            ));
        }
    }
    assert_eq!(
        made.matches("\n## ").count(),
        guarantees().len(),
        "scripts/proofs and this test count the guarantees of SEMANTICS.md differently"
    );
    if made != fs::read_to_string(root().join("docs/proofs.md")).unwrap_or_default() {
        violations.push("docs/proofs.md is not what tests cite: run scripts/proofs".to_owned());
    }
    expect_none(&violations);
}

#[test]
fn code_cites_guarantees_that_exist() {
    let last = guarantees().len();
    let mut violations = vec![];
    for (path, text) in sources().into_iter().filter(|(path, _)| path != OWN) {
        for (line, text) in text.lines().enumerate() {
            let Some((_, rest)) = text.split_once("SEMANTICS ") else {
                continue;
            };
            for number in numbers_of(rest) {
                if !(1..=last).contains(&number) {
                    let line = line + 1;
                    violations.push(format!("{path}:{line}: SEMANTICS.md has no {number}"));
                }
            }
        }
    }
    expect_none(&violations);
}

#[test]
fn papers_stay_short() {
    let mut violations = vec![];
    for (path, lines_max, columns_max, elsewhere) in SHORT_PAPERS {
        let text = read(path);
        let lines = text.lines().count();
        if lines > *lines_max {
            violations.push(format!(
                "{path}: {lines} lines, {lines_max} at most: {elsewhere}"
            ));
        }
        for (line, text) in text.lines().enumerate() {
            let columns = text.chars().count();
            if columns > *columns_max {
                violations.push(format!(
                    "{path}:{}: {columns} columns, {columns_max} at most: break the line",
                    line + 1
                ));
            }
        }
    }
    expect_none(&violations);
}

#[test]
fn the_index_of_decisions_lists_each() {
    let index = read("docs/decisions/README.md");
    let mut found = vec![];
    files(&root().join("docs/decisions"), &mut found);
    let mut violations = vec![];
    let mut numbers = BTreeSet::new();
    for path in found {
        let name = path.file_name().unwrap().to_str().unwrap();
        if name == "README.md" {
            continue;
        }
        let place = path.display();
        let number = name.split('-').next().unwrap_or_default();
        if number.len() != 4 || number.parse::<u32>().is_err() || !name.ends_with(".md") {
            violations.push(format!("{place}: name it NNNN-short-name.md"));
        }
        if !numbers.insert(number.to_owned()) {
            violations.push(format!("{place}: {number} is taken: use the next number"));
        }
        if !index.contains(&format!("]({name})")) {
            violations.push(format!(
                "{place}: add a line with a link to it to docs/decisions/README.md"
            ));
        }
    }
    expect_none(&violations);
}

#[test]
fn every_field_of_a_recipe_is_documented() {
    let papers = read("docs/recipes.md");
    let mut violations = vec![];
    for path in [
        "actors/src/recipe.rs",
        "algorithms/src/task/sums.rs",
        "algorithms/src/task/countdown.rs",
        "algorithms/src/task/gsm8k.rs",
        "algorithms/src/task/maths.rs",
    ] {
        let text = read(path);
        let mut inside = false;
        for (line, text) in text.lines().enumerate() {
            if let Some(name) = text.strip_prefix("pub struct ") {
                inside = name.contains("Section {") || name.contains("Config {");
            } else if text == "}" {
                inside = false;
            }
            let field = text
                .strip_prefix("    pub ")
                .and_then(|field| field.split_once(": "));
            if let Some((field, _)) = field.filter(|_| inside)
                && !papers.contains(&format!("| `{field}` |"))
            {
                violations.push(format!(
                    "{path}:{}: docs/recipes.md lacks `{field}`",
                    line + 1
                ));
            }
        }
    }
    expect_none(&violations);
}

#[test]
fn the_readme_shows_an_example_that_runs() {
    let example = read("examples/quickstart.rs");
    let shown = read("README.md");
    let shown = shown
        .split("```rust\n")
        .nth(1)
        .and_then(|rest| rest.split("```").next());
    let begins = example.find("use ").expect("it uses the crate");
    assert_eq!(
        shown.expect("README.md has a program"),
        &example[begins..],
        "README.md and examples/quickstart.rs differ"
    );
}

#[test]
fn links_between_papers_lead_somewhere() {
    let mut found = vec![];
    files(root(), &mut found);
    let mut violations = vec![];
    for path in found
        .iter()
        .filter(|path| path.extension().is_some_and(|e| e == "md"))
    {
        let folder = path.parent().unwrap();
        for (line, text) in read(path).lines().enumerate() {
            for rest in text.split("](").skip(1) {
                let target = rest.split([')', '#']).next().unwrap_or_default();
                let outside = target.contains("://") || target.is_empty();
                if !outside && !root().join(folder).join(target).exists() {
                    let place = format!("{}:{}", path.display(), line + 1);
                    violations.push(format!("{place}: there is no {target}"));
                }
            }
        }
    }
    expect_none(&violations);
}
