//! Skips: a test that cannot run says so by `odeon_skip::skip`, which is seen. What it prints by itself is shown
//! only when it fails, so that it seems to have run.

use super::{expect_none, holds_word, is_word, sources};

/// Macros that print, of whose text the word is taken wherever it stands.
const PRINTING: &[&str] = &["print", "println", "eprint", "eprintln"];

/// Macros whose text may be printed, which is taken where it begins with the word.
const MAKING: &[&str] = &["format", "write", "writeln"];

/// Folders whose programs are no tests, and what prints for all tests.
const APART: &[&str] = &["benches/", "examples/", "runtime/bench/", "tests/skip/"];

/// The part of a file that is test code: all of it in a folder or a file of tests, else what follows the first
/// module of tests in it.
fn tests_of<'a>(path: &str, text: &'a str) -> &'a str {
    let folders = || path.split('/').rev().skip(1);
    if folders().any(|it| it == "tests") || path.ends_with("/tests.rs") {
        return text;
    }
    text.find("#[cfg(test)]\nmod tests {")
        .map_or("", |at| &text[at..])
}

/// The first text that stands between the brackets of a call of a macro, up to its last quote.
fn first_text(call: &str) -> Option<&str> {
    let begin = call.find('"')? + 1;
    let mut escaped = false;
    let end = call[begin..].find(|c| {
        let ends = c == '"' && !escaped;
        escaped = c == '\\' && !escaped;
        ends
    })?;
    Some(&call[begin..begin + end])
}

/// Texts of macros that say that something is skipped, each with how many bytes stand before its macro.
fn said(code: &str) -> Vec<(usize, &str)> {
    let mut found = vec![];
    for (at, _) in code.match_indices("!(") {
        let name = code[..at].rsplit(|c| !is_word(c)).next();
        let name = name.unwrap_or_default();
        let prints = PRINTING.contains(&name);
        if !prints && !MAKING.contains(&name) {
            continue;
        }
        // A call without a text ends before that of the next statement.
        let call = code[at..].split(";\n").next().unwrap_or_default();
        let Some(text) = first_text(call) else {
            continue;
        };
        // A variable of that name is none of the words.
        let words = text.replace("{skipped", "");
        if text.starts_with("skipped") || (prints && holds_word(&words, "skipped")) {
            found.push((at, text));
        }
    }
    found
}

#[test]
fn tests_say_that_they_are_skipped_where_it_is_seen() {
    let mut violations = vec![];
    for (path, text) in sources() {
        let apart =
            |folder: &&str| path.starts_with(*folder) || path.contains(&format!("/{folder}"));
        if APART.iter().any(apart) || path == "tests/tidy/skips.rs" {
            continue;
        }
        let tests = tests_of(&path, &text);
        for (at, said) in said(tests) {
            let before = text.len() - tests.len() + at;
            let line = text[..before].matches('\n').count() + 1;
            violations.push(format!(
                "{path}:{line}: `{said}` is not seen when the test passes: call `odeon_skip::skip`"
            ));
        }
    }
    expect_none(&violations);
}

#[test]
fn words_that_hide_a_skip_are_found_and_others_are_not() {
    for hidden in [
        "println!(\"skipped: there is none\");",
        "eprintln!(\"{name}: skipped, nobody misses it\");",
        "println!(\n    \"skipped: {}\",\n    why\n);",
        "writeln!(\n    std::io::stderr(),\n    \"skipped: none\"\n)",
        "say(&format!(\"skipped: {error}\"));",
        "print!(\"a \\\"b\\\" is skipped\");",
    ] {
        assert_eq!(said(hidden).len(), 1, "{hidden}");
    }
    for other in [
        "println!(\"{skips} rows\");",
        "let skipped = \"skipped\";",
        "println!();\nassert_eq!(text, \"skipped\");",
        "println!(\"unskipped\");",
        "println!(\"{skipped:?}\");",
        "assert!(text.contains(&format!(\"{n} rows skipped\")));",
        "skip(Need::Python, \"there is none\");",
    ] {
        assert_eq!(said(other), [], "{other}");
    }
    let text = "println!(\"skipped\");\n#[cfg(test)]\nmod tests {\n}";
    assert!(said(tests_of("a/src/b.rs", text)).is_empty());
    assert_eq!(said(tests_of("a/src/b/tests.rs", text)).len(), 1);
    assert_eq!(said(tests_of("a/tests/it/b.rs", text)).len(), 1);
    assert_eq!(tests_of("a/src/b.rs", &text[21..]), &text[21..]);
}
