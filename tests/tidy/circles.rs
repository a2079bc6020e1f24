//! Circles of imports: files of one crate of which each needs all others, so that none can be read,
//! tested or changed alone.

use std::collections::{BTreeMap, BTreeSet};

use super::{LAYERS, code, expect_none, is_word, sources};

/// The most files in a circle.
const CIRCLE_MAX: usize = 8;

/// A file of a crate.
pub(super) struct File {
    /// The file's place in the tree.
    pub(super) path: String,
    /// Its path as a module, without `crate`; empty for the root.
    pub(super) module: Vec<String>,
    /// Its text without comments, strings and tests.
    pub(super) code: String,
}

impl File {
    /// A file below the folder of the sources, unless it holds tests or a program of its own. The root
    /// holds the map of its crate, and counts for none.
    pub(super) fn new(sources: &str, path: &str, text: &str) -> Option<Self> {
        let below = path.strip_prefix(sources)?.strip_suffix(".rs")?;
        let module: Vec<String> = below.split('/').map(str::to_owned).collect();
        let (name, folders) = module.split_last()?;
        let apart = |folder: &String| ["tests", "bin", "benches"].contains(&folder.as_str());
        let is_root = folders.is_empty() && ["lib", "main"].contains(&name.as_str());
        if is_root || ["tests", "test"].contains(&name.as_str()) || folders.iter().any(apart) {
            return None;
        }
        Some(Self {
            path: path.to_owned(),
            module,
            code: without_tests(&code(text)).to_owned(),
        })
    }

    /// The modules that it names in a `use` or in its code, as far as they are known.
    pub(super) fn imports(&self, modules: &Modules<'_>) -> BTreeSet<usize> {
        let mut paths = vec![];
        for statement in self.code.split(';') {
            let (before, tree) = split_use(statement);
            paths.extend(written_out(before));
            paths.extend(tree.map(expand).unwrap_or_default());
        }
        let named = paths
            .iter()
            .filter_map(|path| self.module_of(path, modules));
        let own = modules.known[&*self.module];
        named.filter(|it| *it != own).collect()
    }

    /// The innermost known module on a path.
    fn module_of(&self, path: &[String], modules: &Modules<'_>) -> Option<usize> {
        let known = &modules.known;
        let ups = path.iter().take_while(|part| *part == "super").count();
        let (from, rest) = match path.first()?.as_str() {
            "crate" => (&[][..], &path[1..]),
            "self" => (&*self.module, &path[1..]),
            "super" => (
                &self.module[..self.module.len().saturating_sub(ups)],
                &path[ups..],
            ),
            child => {
                let child = [&*self.module, &[child.to_owned()]].concat();
                known.get(&*child)?;
                (&*self.module, path)
            }
        };
        let whole = [from, rest].concat();
        let inner = |path: &[String]| {
            let mut lengths = (1..=path.len()).rev();
            lengths.find_map(|length| known.get(&path[..length]).copied())
        };
        // What the root exports under a name of its own comes from where that is.
        inner(&whole).or_else(|| inner(modules.exported.get(whole.first()?)?))
    }
}

/// The modules of a crate.
pub(super) struct Modules<'a> {
    /// Which file each is.
    known: BTreeMap<&'a [String], usize>,
    /// The paths of what the root exports, by name.
    exported: BTreeMap<String, Vec<String>>,
}

impl<'a> Modules<'a> {
    /// Those of a crate's files, with the text of its root.
    pub(super) fn new(files: &'a [File], root: &str) -> Self {
        let known = files.iter().enumerate();
        let known = known.map(|(at, file)| (&*file.module, at)).collect();
        let root = code(root);
        let exports = root
            .split(';')
            .filter_map(|statement| split_use(statement).1);
        let exports = exports.flat_map(expand);
        let exported = exports.filter_map(|path| Some((path.last()?.clone(), path)));
        Self {
            known,
            exported: exported.collect(),
        }
    }
}

/// The text of a crate's root.
pub(super) fn root_of<'a>(sources: &'a [(String, String)], folder: &str) -> &'a str {
    let is_root = |path: &str| {
        let below = path.strip_prefix(folder);
        below.is_some_and(|below| ["lib.rs", "main.rs"].contains(&below))
    };
    let root = sources.iter().find(|(path, _)| is_root(path));
    root.map_or("", |(_, text)| text)
}

/// The code in front of the module of tests. One that lies in a file of its own is declared at the top,
/// and cuts off nothing.
pub(super) fn without_tests(code: &str) -> &str {
    let mut marks = code.match_indices("#[cfg(test)]");
    let tests = marks.find(|(at, mark)| {
        let item = code[at + mark.len()..].trim_start();
        let head = item.split(['{', ';']).next().unwrap_or_default();
        item.starts_with("mod ") && item[head.len()..].starts_with('{')
    });
    tests.map_or(code, |(at, _)| &code[..at])
}

/// A statement, cut where a `use` begins in it, and the tree of that.
fn split_use(statement: &str) -> (&str, Option<&str>) {
    let mut at = 0;
    for line in statement.split_inclusive('\n') {
        let item = line.trim_start();
        let item = item.strip_prefix("pub").map_or(item, |seen_by| {
            let whom = seen_by.strip_prefix('(').and_then(|it| it.split_once(')'));
            whom.map_or(seen_by, |(_, item)| item).trim_start()
        });
        if let Some(first) = item.strip_prefix("use ") {
            let tree = at + line.len() - first.len();
            return (&statement[..at], Some(&statement[tree..]));
        }
        at += line.len();
    }
    (statement, None)
}

/// The paths in code that begin with `crate`, `self` or `super`. What a macro writes with `$crate` stands
/// where the macro is used.
fn written_out(code: &str) -> Vec<Vec<String>> {
    let paths = code
        .split(|c| !is_word(c) && c != ':' && c != '$')
        .map(parts);
    let far = |path: &Vec<String>| {
        path.len() > 1 && ["crate", "self", "super"].contains(&path[0].as_str())
    };
    paths.filter(far).collect()
}

/// The paths of a tree: `a::{b, c::{d, e}}` is `a::b`, `a::c::d` and `a::c::e`.
fn expand(tree: &str) -> Vec<Vec<String>> {
    let Some((base, branches)) = tree.split_once('{') else {
        let path = tree.split(" as ").next().unwrap_or_default();
        return vec![parts(path)];
    };
    let branches = branches
        .rsplit_once('}')
        .map_or(branches, |(inner, _)| inner);
    let (mut depth, base) = (0, parts(base));
    let branches = branches.split(|c| {
        depth += i32::from(c == '{') - i32::from(c == '}');
        c == ',' && depth == 0
    });
    let branches = branches.filter(|it| !it.trim().is_empty()).flat_map(expand);
    branches.map(|branch| [&*base, &*branch].concat()).collect()
}

fn parts(path: &str) -> Vec<String> {
    let parts = path.split("::").map(str::trim);
    parts
        .filter(|it| !it.is_empty())
        .map(str::to_owned)
        .collect()
}

/// The paths of the files in the largest circle; of one that is in none, where there is no circle.
fn largest_circle<'a>(files: &'a [File], root: &str) -> Vec<&'a str> {
    let modules = Modules::new(files, root);
    let arrows: Vec<_> = files.iter().map(|file| file.imports(&modules)).collect();
    let reached = |from: usize| {
        let (mut found, mut next) = (BTreeSet::from([from]), vec![from]);
        while let Some(file) = next.pop() {
            next.extend(arrows[file].iter().filter(|it| found.insert(**it)));
        }
        found
    };
    let reached: Vec<BTreeSet<usize>> = (0..files.len()).map(reached).collect();
    let circle = |of: usize| -> Vec<usize> {
        let needed = reached[of].iter().copied();
        needed.filter(|it| reached[*it].contains(&of)).collect()
    };
    let largest = (0..files.len()).map(circle).max_by_key(Vec::len);
    let largest = largest.unwrap_or_default().into_iter();
    largest.map(|it| &*files[it].path).collect()
}

#[test]
fn files_of_a_crate_do_not_import_each_other_in_large_circles() {
    let mut violations = vec![];
    let sources = sources();
    for (folder, ..) in LAYERS {
        let below = format!("{folder}/src/");
        let files = sources
            .iter()
            .filter_map(|(path, text)| File::new(&below, path, text));
        let files: Vec<File> = files.collect();
        let circle = largest_circle(&files, root_of(&sources, &below));
        if circle.len() > CIRCLE_MAX {
            violations.push(format!(
                "{folder}: {} files import each other in a circle, {CIRCLE_MAX} at most: move what two of them \
                 need into a file below both, or import from the file that defines a thing and not \
                 from its parent:\n  {}",
                circle.len(),
                circle.join("\n  ")
            ));
        }
    }
    expect_none(&violations);
}

/// The largest circle of made-up files.
fn circle_of(files: &[(&str, &str)]) -> Vec<String> {
    let root = files.iter().find(|(path, _)| *path == "src/lib.rs");
    let files = files.iter();
    let files = files.filter_map(|(path, text)| File::new("src/", path, text));
    let files: Vec<File> = files.collect();
    let circle = largest_circle(&files, root.map_or("", |(_, text)| text)).into_iter();
    circle.map(str::to_owned).collect()
}

#[test]
fn a_circle_is_found_whatever_way_files_import() {
    let files = [
        ("src/lib.rs", "mod a;\nmod b;\npub use a::A;"),
        // A tree in a tree, and a child by its name alone.
        (
            "src/a.rs",
            "pub mod in_a;\npub(crate) use in_a::{self, One as Other};\nuse crate::{b::B, c::{C, deep::D}};",
        ),
        ("src/a/in_a.rs", "use std::fmt;"),
        ("src/b.rs", "struct B;"),
        (
            "src/c.rs",
            "fn f() {\n    use self::deep::{\n        D,\n    };\n}",
        ),
        ("src/c/deep.rs", "use super::super::d;"),
        // No `use`.
        ("src/d.rs", "type D = crate::e::E;"),
        ("src/e.rs", "use super::a;"),
        // A comment, a string and a test are no import; what is below tests is no file of the crate.
        (
            "src/b/low.rs",
            "// use crate::a;\nconst S: &str = \"crate::a::A\";\n#[cfg(test)]\nmod tests {\n    use crate::a::A;\n}",
        ),
        ("src/b/tests/more.rs", "use crate::a;"),
    ];
    let circle = [
        "src/a.rs",
        "src/c.rs",
        "src/c/deep.rs",
        "src/d.rs",
        "src/e.rs",
    ];
    assert_eq!(circle_of(&files), circle);
    // Without any one of its arrows there is none.
    for cut in [1, 5, 6, 7] {
        let mut files = files;
        files[cut].1 = "";
        assert_eq!(
            circle_of(&files).len(),
            1,
            "without those of {}",
            files[cut].0
        );
    }
}

#[test]
fn what_the_root_exports_is_imported_from_where_it_is() {
    let files = [
        ("src/lib.rs", "mod a;\nmod b;\npub use a::{deep::One, Two};"),
        ("src/a.rs", "struct Two;"),
        ("src/a/deep.rs", "use crate::b::B;\nstruct One;"),
        ("src/b.rs", "fn f(one: impl crate::One) {}"),
    ];
    assert_eq!(circle_of(&files), ["src/a/deep.rs", "src/b.rs"]);
    let mut other = files;
    other[3].1 = "use super::Two;";
    assert_eq!(circle_of(&other).len(), 1);
}

#[test]
fn a_parent_and_a_child_that_name_each_other_are_a_circle() {
    let parent = (
        "src/p.rs",
        "mod child;\npub use child::Child;\npub struct Other;",
    );
    let up = ("src/p/child.rs", "use super::{Other, sibling::Both};");
    let sibling = ("src/p/sibling.rs", "use crate::q::*;");
    let down = ("src/p/child.rs", "use super::sibling::{self, Both};");
    assert_eq!(circle_of(&[parent, up, sibling]), [parent.0, up.0]);
    assert_eq!(circle_of(&[parent, down, sibling]).len(), 1);
}

#[test]
fn trees_of_imports_are_taken_apart() {
    let paths = |tree| -> Vec<String> { expand(tree).iter().map(|it| it.join("::")).collect() };
    assert_eq!(paths("a::{b, c::d}"), ["a::b", "a::c::d"]);
    assert_eq!(
        paths("super::{\n    a::{b as c, d::{e, f}},\n    g::*,\n}"),
        [
            "super::a::b",
            "super::a::d::e",
            "super::a::d::f",
            "super::g::*"
        ]
    );
}
