//! Floors of the runtime: nothing on one names what lies above it, be it by an import or by a method that
//! a floor above adds to a type of a lower one.

use std::collections::{BTreeMap, BTreeSet};

use super::circles::{File, Modules, root_of};
use super::{expect_none, is_word, sources};

/// The floors of the runtime, the lowest first. The files beside them are the calls of users, and stand
/// on all.
const FLOORS: [&str; 4] = ["base", "net", "actor", "node"];

const SOURCES: &str = "runtime/src/";

/// The floor of a module of the runtime.
fn floor_of(file: &File) -> usize {
    let name = file.module.first().map_or("", String::as_str);
    let floor = FLOORS.iter().position(|floor| *floor == name);
    floor.unwrap_or(FLOORS.len())
}

/// The imports among these files that point to a floor above.
fn imports_that_point_up(files: &[File], root: &str) -> Vec<String> {
    let modules = Modules::new(files, root);
    let mut found = vec![];
    for file in files {
        let own = floor_of(file);
        let named = file.imports(&modules).into_iter().map(|at| &files[at]);
        for above in named.filter(|named| floor_of(named) > own) {
            found.push(format!(
                "{} names {}, which lies above it",
                file.path, above.path
            ));
        }
    }
    found
}

/// The names that follow a word of code: of functions after `fn`, of types after `struct`.
fn names_after<'a>(code: &'a str, word: &str) -> BTreeSet<&'a str> {
    let mut words = code.split(|c| !is_word(c)).filter(|it| !it.is_empty());
    let mut names = BTreeSet::new();
    while let Some(next) = words.next() {
        if next == word {
            names.extend(words.next());
        }
    }
    names
}

/// The methods that a file adds to types: each with its type. Traits are named on their own floor.
fn methods_added(code: &str) -> Vec<(&str, &str)> {
    let mut added = vec![];
    for (at, head) in code.match_indices("\nimpl") {
        let block = &code[at + head.len()..];
        let Some((head, body)) = block.split_once('{') else {
            continue;
        };
        let head = match head.strip_prefix('<').and_then(|it| it.split_once("> ")) {
            Some((_, named)) => named,
            None => head,
        };
        if head.contains(" for ") {
            continue;
        }
        let name = head
            .trim()
            .split(|c| !is_word(c))
            .next()
            .unwrap_or_default();
        // The block ends at the margin.
        let body = body.split_once("\n}").map_or(body, |(body, _)| body);
        added.extend(
            names_after(body, "fn")
                .into_iter()
                .map(|method| (name, method)),
        );
    }
    added
}

/// The calls among these files of methods that a floor above the caller's adds to a type of a lower
/// floor. A method of which the caller's floor or one below has another of the same name counts for that.
fn calls_that_point_up(files: &[File]) -> Vec<String> {
    let mut types: BTreeMap<&str, BTreeSet<usize>> = BTreeMap::new();
    let mut lowest: BTreeMap<&str, usize> = BTreeMap::new();
    let mut added: Vec<(&str, &str, &File)> = vec![];
    for file in files {
        let floor = floor_of(file);
        let kinds = ["struct", "enum"].into_iter();
        for name in kinds.flat_map(|word| names_after(&file.code, word)) {
            types.entry(name).or_default().insert(floor);
        }
        for name in names_after(&file.code, "fn") {
            let first = lowest.entry(name).or_insert(floor);
            *first = floor.min(*first);
        }
        added.extend(
            methods_added(&file.code)
                .into_iter()
                .map(|(name, method)| (name, method, file)),
        );
    }
    let mut found = vec![];
    for (name, method, from) in added {
        let floor = floor_of(from);
        // Some floors have private types of one name.
        let is_of_a_lower_floor = types
            .get(name)
            .is_some_and(|homes| !homes.contains(&floor) && homes.iter().any(|home| *home < floor));
        if !is_of_a_lower_floor {
            continue;
        }
        for file in files {
            let own = floor_of(file);
            if own < floor && lowest[method] > own && calls(&file.code, method) {
                found.push(format!(
                    "{} calls `{method}`, which {} adds to `{name}` on a floor above",
                    file.path, from.path
                ));
            }
        }
    }
    found.sort();
    found.dedup();
    found
}

/// Returns true if code has `.method(` or `::method(`, also with types in between.
fn calls(code: &str, method: &str) -> bool {
    code.match_indices(method).any(|(at, _)| {
        let after = code[at + method.len()..].trim_start();
        let before = code[..at].trim_end();
        (after.starts_with('(') || after.starts_with("::<"))
            && (before.ends_with('.') || before.ends_with("::"))
    })
}

fn files_of_the_runtime(sources: &[(String, String)]) -> Vec<File> {
    let files = sources.iter();
    let files = files.filter_map(|(path, text)| File::new(SOURCES, path, text));
    files.collect()
}

#[test]
fn no_floor_of_the_runtime_names_one_above_it() {
    let sources = sources();
    let files = files_of_the_runtime(&sources);
    for floor in FLOORS {
        let has_files = files.iter().any(|file| file.module[0] == floor);
        assert!(has_files, "the runtime has a floor `{floor}`");
    }
    let root = root_of(&sources, SOURCES);
    assert!(!root.is_empty(), "the runtime has a root");
    expect_none(&imports_that_point_up(&files, root));
}

#[test]
fn no_floor_of_the_runtime_calls_what_one_above_adds_to_its_types() {
    let sources = sources();
    let files = files_of_the_runtime(&sources);
    let added = files.iter().flat_map(|file| methods_added(&file.code));
    assert!(
        added.filter(|(name, _)| *name == "Engine").count() > 100,
        "the engine's methods are found"
    );
    expect_none(&calls_that_point_up(&files));
}

/// Files below `src`, by their paths without `.rs`.
fn made_up<const N: usize>(files: [(&str, &str); N]) -> [File; N] {
    files.map(|(name, code)| {
        File::new("src/", &format!("src/{name}.rs"), code).expect("it is no file of tests")
    })
}

#[test]
fn an_import_that_points_up_is_found() {
    let files = made_up([
        ("base/id", "use crate::base::clock::Clock;"),
        ("base/clock", "fn f() { crate::net::link::now() }"),
        ("base/needs", "fn near<A: crate::Actor>() {}"),
        ("net/link", "use crate::{base::id::Id, actor::cell::Cell};"),
        ("actor/cell", "use crate::system::System;"),
        ("actor/handler", "trait Actor {}"),
        ("system", "use crate::base::id::Id;"),
    ]);
    let root = "mod base;\npub use actor::handler::{Actor, Handler};";
    let lines = [
        "src/base/clock.rs names src/net/link.rs, which lies above it",
        "src/base/needs.rs names src/actor/handler.rs, which lies above it",
        "src/net/link.rs names src/actor/cell.rs, which lies above it",
        "src/actor/cell.rs names src/system.rs, which lies above it",
    ];
    assert_eq!(imports_that_point_up(&files, root), lines);
}

#[test]
fn a_call_that_points_up_is_found() {
    let files = made_up([
        (
            "base/id",
            "\nstruct Id;\nimpl Id {\n    fn number(&self) {}\n}\n",
        ),
        (
            "actor/engine",
            "\nstruct Engine;\nimpl Engine {\n    fn send(&self) {\n        self\n            .map_blob::<u8>(1);\n        self.send();\n    }\n}\n",
        ),
        // A name that the lower floor has as well is no call of this one.
        (
            "node/blob",
            "\nstruct Store;\nimpl Store {\n    fn keep(&self) {}\n}\nimpl Engine {\n    fn map_blob<T>(&self, n: T) {}\n    fn send(&self) {}\n}\nimpl<T> From<T> for Engine {\n    fn from(it: T) {}\n}\n",
        ),
        (
            "net/link",
            "fn f(engine: E) { engine.keep(); Id::number(); Id::show() }",
        ),
        (
            "system",
            "\nimpl Id {\n    fn show(&self) {}\n}\nimpl System { fn f(e: Engine) { e.map_blob(2) } }",
        ),
    ]);
    let lines = [
        "src/actor/engine.rs calls `map_blob`, which src/node/blob.rs adds to `Engine` on a floor above",
        "src/net/link.rs calls `show`, which src/system.rs adds to `Id` on a floor above",
    ];
    assert_eq!(calls_that_point_up(&files), lines);
}
