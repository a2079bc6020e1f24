//! Nouns: the names of public types. One that names several things says nothing about any of them
//! where it stands alone, so what more than two types are called stands here with the reason, and the
//! list may only become shorter.

use std::collections::BTreeMap;

use super::{circles::without_tests, code, expect_none, is_word, sources};

/// The most public types that one noun may name.
const NAMED_MAX: usize = 2;

/// Nouns that name more, how many types each names, and why.
const CROWDED: &[(&str, usize, &str)] = &[
    (
        "Batch",
        3,
        "to be renamed with the spine of training: of trajectories, of one pass, of an iteration that is priced",
    ),
    (
        "Delivery",
        3,
        "to be renamed with the spine of training: of a block to a rank, of a step's samples, of weights",
    ),
    (
        "Ended",
        3,
        "to be renamed with the spine of training: of a split, of a program; and of an actor as it is seen",
    ),
    (
        "Hold",
        3,
        "to be renamed with the spine of training: two messages, and where a test has a trainer wait",
    ),
    (
        "Job",
        4,
        "one per layer: the catalog, the API, a program's own; and one whose recovery is computed",
    ),
    (
        "Ledger",
        3,
        "each the account of one thing: of samples, of groups, of shared memory",
    ),
    (
        "Load",
        3,
        "to be renamed with the spine of training: of a checkpoint, of a shard, of a rollout",
    ),
    (
        "Look",
        3,
        "to be renamed with the spine of training: two messages, and the sight of a data plane",
    ),
    (
        "Manifest",
        3,
        "the list of what belongs together: of a checkpoint, of weights in chunks, of a program",
    ),
    ("ManifestError", 3, "one per manifest"),
    (
        "Member",
        3,
        "one per kind of gang: of roles, of a chain of relays, of processes with shared memory",
    ),
    (
        "Model",
        3,
        "to be renamed with the spine of training: as it computes, is placed, is priced",
    ),
    (
        "Node",
        4,
        "one per layer: as it is placed, as it is seen, as the API has it; and one of a graph of data",
    ),
    (
        "Order",
        4,
        "to be renamed with the spine of training: of records, of relays, of a trajectory; and of a leader",
    ),
    (
        "Outcome",
        5,
        "to be renamed with the spine of training; and those of a recovery, of a job, of a traced message",
    ),
    (
        "Part",
        5,
        "to be renamed with the spine of training: of partitions, planners, sources, tensors and merges",
    ),
    (
        "Piece",
        3,
        "one per manifest: of a checkpoint, of a program; and one of a stream",
    ),
    (
        "Plan",
        4,
        "each what a pure planner makes: of repacking, of resharding, of a tape's memory, of a placement",
    ),
    (
        "Pool",
        4,
        "each what is lent out again: blocks, memory of a fake device, devices, workers",
    ),
    (
        "Reason",
        3,
        "one per layer: of a failure, of a refusal, of a reward",
    ),
    (
        "Refusal",
        4,
        "one per layer: joining, placement, catalog; and a chunk's in the chain of relays",
    ),
    (
        "Report",
        4,
        "to be renamed with the spine of training; and of a checkpoint's check, of a collective's fault",
    ),
    (
        "Sampling",
        3,
        "to be renamed with the spine of training: of tokens, of an engine; and of traces",
    ),
    (
        "Save",
        3,
        "to be renamed with the spine of training: the write of a checkpoint, and two messages",
    ),
    (
        "Share",
        5,
        "to be renamed with the spine of training; and those of devices and of their memory with their layers",
    ),
    (
        "Source",
        5,
        "to be renamed with the spine of training: of bytes, samples, recipes, prompts; and of kernels",
    ),
    (
        "Span",
        3,
        "one per layer: as it is traced, as it is shown; and one of indices",
    ),
    (
        "Trainer",
        4,
        "to be renamed with the spine of training: as it computes, as an actor, as it is priced",
    ),
    (
        "Turn",
        4,
        "to be renamed with the spine of training: three messages of an actor to itself, and one of a dialogue",
    ),
    (
        "Update",
        4,
        "to be renamed with the spine of training: of an optimizer, of an actor, of a server; and of a page",
    ),
    (
        "Verdict",
        3,
        "of a supervisor, of a task, and of a reply's reward",
    ),
];

/// The kinds of items that a noun may name.
const KINDS: [&str; 4] = ["struct", "enum", "trait", "type"];

/// Returns true for files of tests, benchmarks and examples, whose types are nobody else's.
fn is_apart(path: &str) -> bool {
    let mut parts = path.split('/');
    let named = |part: &str| ["tests", "benches", "examples"].contains(&part);
    parts.any(named) || path.ends_with("/tests.rs") || path.ends_with("_tests.rs")
}

/// The noun that a line makes public without restriction.
fn noun_of(line: &str) -> Option<&str> {
    let item = line.trim_start().strip_prefix("pub ")?;
    let item = item.strip_prefix("unsafe ").unwrap_or(item);
    let (kind, rest) = item.split_once(' ')?;
    let end = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
    (KINDS.contains(&kind) && end > 0).then(|| &rest[..end])
}

/// The places of the public types that each noun names.
fn nouns(sources: &[(String, String)]) -> BTreeMap<String, Vec<String>> {
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (path, text) in sources.iter().filter(|(path, _)| !is_apart(path)) {
        for (at, line) in without_tests(&code(text)).lines().enumerate() {
            if let Some(noun) = noun_of(line) {
                let places = found.entry(noun.to_owned()).or_default();
                places.push(format!("{path}:{}", at + 1));
            }
        }
    }
    found
}

/// The nouns that name more types than they may, and those in the list that name fewer than it says.
fn violations(found: &BTreeMap<String, Vec<String>>, list: &[(&str, usize, &str)]) -> Vec<String> {
    let mut violations = vec![];
    for (noun, places) in found {
        let listed = list.iter().find(|(crowded, ..)| crowded == noun);
        let most = listed.map_or(NAMED_MAX, |(_, most, _)| *most);
        if places.len() > most {
            violations.push(format!(
                "{noun} names {} public types, {most} at most: say which one the newest is, as in \
                 `Job{noun}`:\n  {}",
                places.len(),
                places.join("\n  ")
            ));
        }
    }
    for (noun, most, _) in list {
        let names = found.get(*noun).map_or(0, Vec::len);
        if names <= NAMED_MAX {
            violations.push(format!(
                "{noun} names {names} public types: take it from the list in tests/tidy/nouns.rs"
            ));
        } else if names < *most {
            violations.push(format!(
                "{noun} names {names} public types: write {names} for {most} in tests/tidy/nouns.rs"
            ));
        }
    }
    violations
}

#[test]
fn a_noun_names_two_public_types_at_most() {
    expect_none(&violations(&nouns(&sources()), CROWDED));
}

#[test]
fn a_crowded_noun_is_found_and_a_freed_one_leaves_the_list() {
    let text = "pub struct Plan<'a>(&'a u8);\n\
                pub(crate) struct Span;\n\
                // pub struct Span;\n\
                #[cfg(test)]\nmod tests;\n\
                mod inner {\n    pub enum Plan {}\n}\n\
                pub unsafe trait Span {}\n\
                #[cfg(test)]\nmod tests {\n    pub type Plan = u8;\n}\n";
    let source = |path: &str| (path.to_owned(), text.to_owned());
    let found = nouns(&[
        source("src/a.rs"),
        source("tests/it/a.rs"),
        source("src/a/tests.rs"),
    ]);
    assert_eq!(found["Plan"], ["src/a.rs:1", "src/a.rs:7"]);
    assert_eq!(found["Span"], ["src/a.rs:9"]);
    assert!(violations(&found, &[]).is_empty());

    let found = nouns(&[source("src/a.rs"), source("src/b.rs")]);
    let said = |list| violations(&found, list).len();
    assert_eq!(said(&[]), 1, "four are more than two");
    assert_eq!(said(&[("Plan", 4, "")]), 0, "four are listed");
    assert_eq!(said(&[("Plan", 3, "")]), 1, "one is new");
    assert_eq!(said(&[("Plan", 5, "")]), 1, "one is gone");
    let freed = [("Plan", 4, ""), ("Span", 3, "")];
    assert_eq!(said(&freed), 1, "two are few enough");
}
