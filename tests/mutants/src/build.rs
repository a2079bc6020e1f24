//! The copy of the tree, and what the compiler makes of it.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{fs, str};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::weave::last_switch;

/// Brings the copy up to date with the tree around this folder. Files that are as they were are not written, so
/// that what was built of them stays good.
pub fn copy_tree(from: &Path, to: &Path) -> Result<()> {
    let git = [
        "ls-files",
        "-z",
        "--cached",
        "--others",
        "--exclude-standard",
    ];
    let listed = Command::new("git").args(git).current_dir(from).output()?;
    ensure!(
        listed.status.success(),
        "git ls-files: {}",
        String::from_utf8_lossy(&listed.stderr)
    );
    for file in listed
        .stdout
        .split(|it| *it == 0)
        .filter(|it| !it.is_empty())
    {
        let file = str::from_utf8(file)?;
        // One that was removed and is still in the index.
        if let Ok(bytes) = fs::read(from.join(file)) {
            write_changed(&to.join(file), &bytes)?;
        }
    }
    Ok(())
}

pub fn write_changed(path: &Path, bytes: &[u8]) -> Result<()> {
    if fs::read(path).is_ok_and(|old| old == bytes) {
        return Ok(());
    }
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::write(path, bytes).with_context(|| path.display().to_string())
}

/// The outcome of a build.
pub struct Built {
    /// By package, the binary of its library's tests.
    pub tests: BTreeMap<String, PathBuf>,
    /// The mutants that do not compile, and the compiler's first words about each.
    pub refused: BTreeMap<usize, String>,
    /// Errors that belong to no mutant.
    pub errors: Vec<String>,
}

/// Builds the tests of the libraries of some packages.
pub fn build(tree: &Path, target: &Path, packages: &BTreeSet<String>) -> Result<Built> {
    let mut cargo = Command::new("cargo");
    cargo.args(["test", "--no-run", "--lib", "--message-format=json"]);
    for package in packages {
        cargo.args(["--package", package]);
    }
    cargo
        .env("CARGO_TARGET_DIR", target)
        .env("RUSTFLAGS", "--cap-lints=warn -Awarnings");
    let mut child = cargo
        .current_dir(tree)
        .stdout(Stdio::piped())
        .spawn()
        .context("cargo")?;
    let mut built = Built {
        tests: BTreeMap::new(),
        refused: BTreeMap::new(),
        errors: Vec::new(),
    };
    for line in BufReader::new(child.stdout.take().context("no output")?).lines() {
        let line = line?;
        if let Ok(message) = serde_json::from_str::<Value>(&line) {
            note(&message, tree, &mut built);
        }
    }
    let ended = child.wait()?;
    if !ended.success() && built.refused.is_empty() && built.errors.is_empty() {
        built.errors.push(format!("cargo test --no-run: {ended}"));
    }
    Ok(built)
}

fn note(message: &Value, tree: &Path, built: &mut Built) {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    match message["reason"].as_str() {
        Some("compiler-artifact") if message["profile"]["test"] == true => {
            // "path+file:///tree/placement#odeon-placement@0.1.0"
            let id = text(&message["package_id"]);
            let behind = id.rsplit_once('#').map_or(id.as_str(), |(_, it)| it);
            let package = behind.split('@').next().unwrap_or(behind).to_owned();
            built
                .tests
                .insert(package, PathBuf::from(text(&message["executable"])));
        }
        Some("compiler-message") if message["message"]["level"] == "error" => {
            let said = &message["message"];
            let mutants = said["spans"].as_array().into_iter().flatten();
            let mutants = mutants
                .filter(|it| it["is_primary"] == true)
                .filter_map(|it| mutant_at(it, tree));
            let words = format!("{} {}", text(&said["code"]["code"]), text(&said["message"]));
            let mutants: Vec<usize> = mutants.collect();
            for &mutant in &mutants {
                built.refused.entry(mutant).or_insert_with(|| words.clone());
            }
            if mutants.is_empty() && !words.contains("aborting due to") {
                built.errors.push(text(&said["rendered"]));
            }
        }
        _ => {}
    }
}

/// The mutant whose text a span of the compiler lies in: its switch is the last before it.
fn mutant_at(span: &Value, tree: &Path) -> Option<usize> {
    let source = fs::read_to_string(tree.join(span["file_name"].as_str()?)).ok()?;
    let start = usize::try_from(span["byte_start"].as_u64()?).ok()?;
    let end = usize::try_from(span["byte_end"].as_u64()?).ok()?;
    let line = source[..start].rfind('\n').map_or(0, |it| it + 1);
    last_switch(&source[line..start]).or_else(|| last_switch(&source[start..end]))
}
