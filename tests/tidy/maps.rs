//! Maps of files: the table in the docs of a crate that tells a stranger which file holds what. It names
//! no file that is gone, and leaves out none that is there.

use std::collections::BTreeSet;

use super::{expect_none, sources};

/// The head of a map.
const MAP: &str = "//! | file | holds |";

/// The most files of a crate that a stranger finds the way in without a map.
const FILES_WITHOUT_MAP_MAX: usize = 5;

/// The names in the maps of a file, each with its line: those in backticks in the first column.
fn names(text: &str) -> Vec<(usize, &str)> {
    let (mut found, mut inside) = (vec![], false);
    for (line, row) in text.lines().enumerate() {
        inside = row == MAP || (inside && row.starts_with("//! |"));
        if inside {
            let cell = row.split('|').nth(1).unwrap_or_default();
            let named = cell.split('`').skip(1).step_by(2);
            found.extend(named.map(|name| (line + 1, name)));
        }
    }
    found
}

/// The names in maps that lead nowhere. A name is a path from the folder of the map's file.
fn names_that_lead_nowhere(sources: &[(String, String)]) -> Vec<String> {
    let mut violations = vec![];
    for (path, text) in sources {
        let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
        for (line, name) in names(text) {
            let exists = match name.strip_suffix("/*") {
                Some(below) => {
                    let below = format!("{folder}/{below}/");
                    sources.iter().any(|(path, _)| path.starts_with(&below))
                }
                None => {
                    let file = format!("{folder}/{name}.rs");
                    sources.iter().any(|(path, _)| *path == file)
                }
            };
            if !exists {
                violations.push(format!(
                    "{path}:{line}: there is no file `{name}`: correct the map"
                ));
            }
        }
    }
    violations
}

/// The path below `src` of a file that a map names; `None` for a root, which holds the map, and for
/// tests.
fn name_of<'a>(src: &str, path: &'a str) -> Option<&'a str> {
    let name = path.strip_prefix(src)?.strip_suffix(".rs")?;
    let is_test = |part: &str| part == "tests" || part.ends_with("_tests");
    let is_root = ["lib", "main"].contains(&name);
    (!is_root && !name.split('/').any(is_test)).then_some(name)
}

/// Returns true if the name stands in a map, or a folder above it does with a star.
fn is_named(name: &str, map: &BTreeSet<&str>) -> bool {
    let mut folders = name.match_indices('/').map(|(at, _)| &name[..at]);
    map.contains(name) || folders.any(|folder| map.contains(&*format!("{folder}/*")))
}

/// The files that the map of their crate leaves out, and crates that lack one.
fn files_that_no_map_names(sources: &[(String, String)]) -> Vec<String> {
    let mut violations = vec![];
    for (root, text) in sources {
        let mut ends = ["lib.rs", "main.rs"].into_iter();
        let src = ends.find_map(|end| root.strip_suffix(end).filter(|src| src.ends_with("/src/")));
        let Some(src) = src else {
            continue;
        };
        let files = sources.iter().filter_map(|(path, _)| name_of(src, path));
        let files: Vec<&str> = files.collect();
        if files.len() <= FILES_WITHOUT_MAP_MAX {
            continue;
        }
        let map: BTreeSet<&str> = names(text).into_iter().map(|(_, name)| name).collect();
        if map.is_empty() {
            violations.push(format!(
                "{root}:1: {} files and no map: write a table with the head `{MAP}`",
                files.len()
            ));
            continue;
        }
        let left_out = files.into_iter().filter(|name| !is_named(name, &map));
        violations.extend(left_out.map(|name| {
            format!(
                "{root}:1: the map of files lacks `{name}`: name it, or a folder above it as `a/*`"
            )
        }));
    }
    violations
}

#[test]
fn maps_of_files_name_files_that_exist() {
    expect_none(&names_that_lead_nowhere(&sources()));
}

#[test]
fn maps_of_files_leave_no_file_out() {
    let sources = sources();
    let maps = sources.iter().filter(|(_, text)| !names(text).is_empty());
    assert!(maps.count() > 15, "the maps of the crates are found");
    expect_none(&files_that_no_map_names(&sources));
}

/// A crate `a` of six files, and of three with tests, with this text of its root.
fn made_up(root: &str) -> Vec<(String, String)> {
    let files = [
        "one",
        "one/deep",
        "one/deep/low",
        "one/deep/tests",
        "two",
        "three_tests",
        "three",
        "tests/more",
        "four",
    ];
    let files = files.map(|name| (format!("a/src/{name}.rs"), String::new()));
    let mut sources = files.to_vec();
    sources.push(("a/src/lib.rs".to_owned(), root.to_owned()));
    // No file of that crate.
    sources.push(("a/tests/it/main.rs".to_owned(), String::new()));
    sources
}

/// A map of these rows.
fn map(rows: &[&str]) -> String {
    format!(
        "//! A crate.\n//!\n{MAP}\n//! | --- | --- |\n{}\n\nmod one;\n",
        rows.join("\n")
    )
}

#[test]
fn a_file_that_a_map_leaves_out_is_found() {
    let lacking = |rows: &[&str]| -> Vec<String> {
        let found = files_that_no_map_names(&made_up(&map(rows)));
        let names = found.iter().map(|it| it.split('`').nth(1).unwrap());
        names.map(str::to_owned).collect()
    };
    let all = [
        "//! | `one`, `one/*`, `two` | numbers |",
        "//! | `three`, `four` | more of them |",
    ];
    assert!(lacking(&all).is_empty());
    // Named in passing, but in no row of its own.
    assert_eq!(
        lacking(&["//! | `one`, `one/*` | before `two` |", all[1]]),
        ["two"]
    );
    // A folder is not the file beside it, and a file not the folder.
    assert_eq!(
        lacking(&["//! | `one/*`, `two` | numbers |", all[1]]),
        ["one"]
    );
    assert_eq!(
        lacking(&["//! | `one`, `one/deep`, `two` | numbers |", all[1]]),
        ["one/deep/low"]
    );
    assert_eq!(
        lacking(&["//! | `one`, `one/deep/*`, `two` | numbers |", all[1]]),
        ["one/deep"]
    );
    // What follows the table is none of it.
    let after = [all[0], "//!", "//! | `three`, `four` | more of them |"];
    assert_eq!(lacking(&after), ["three", "four"]);
}

#[test]
fn a_crate_without_a_map_is_found_unless_it_is_small() {
    let mut sources = made_up("//! A crate.");
    let found = files_that_no_map_names(&sources);
    assert_eq!(found.len(), 1);
    assert!(
        found[0].starts_with("a/src/lib.rs:1: 6 files and no map"),
        "{found:?}"
    );
    sources.retain(|(path, _)| path != "a/src/four.rs");
    assert!(files_that_no_map_names(&sources).is_empty());
}

#[test]
fn a_name_that_leads_nowhere_is_found() {
    let rows = [
        "//! | `one`, `one/*`, `two/*` | numbers |",
        "//! | `one/deep`, [`three`], `five` | more of them |",
    ];
    // Also in the second map of a file.
    let text = format!("{0}//!\n{0}", map(&rows).replace("\nmod one;\n", ""));
    let found = names_that_lead_nowhere(&made_up(&text));
    let names: Vec<&str> = found
        .iter()
        .map(|it| it.split('`').nth(1).unwrap())
        .collect();
    assert_eq!(names, ["two/*", "five", "two/*", "five"]);
    assert!(found[0].starts_with("a/src/lib.rs:5: "), "{found:?}");
}
