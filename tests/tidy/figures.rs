//! Figures: where a paper has a table of what was measured, its section says by which command, in a line that
//! begins with `Made by` and the command, and each command so named is there. Where a sentence has them, its
//! section says so, too, or the sentence names the command.

use std::collections::BTreeSet;

use super::{expect_none, files, is_word, read, root};

/// The beginning of a mark. The text up to the next backtick is a command, and so is each other text in
/// backticks on that line that begins with a program of [`PROGRAMS`].
const MARK: &str = "Made by `";

/// Programs of this tree, and those that know its crates.
const PROGRAMS: &[&str] = &["odeon", "cargo", "scripts/", ".ci/"];

/// Units of what is measured, as they stand behind a number.
const UNITS: &[&str] = &[
    "ns", "µs", "ms", "s", "min", "CPU-min", "KiB", "MiB", "GiB", "KB", "MB", "GB", "KB/s", "MB/s",
    "GB/s", "/s", "k/s", "M/s", "k", "M", "%", "x",
];

/// Units as they stand in the heading of a column of numbers, alone or behind a comma.
const HEADINGS: &[&str] = &["seconds", "s", "ms", "µs", "MiB", "tokens/s", "samples/s"];

/// A paper that lies beside the one program that makes all figures in it.
const BESIDE: &str = "runtime/bench/peers/README.md";

/// A section of a paper: its heading, the line that is on, and what stands in it outside of fences.
struct Section<'a> {
    line: usize,
    heading: &'a str,
    lines: Vec<&'a str>,
}

fn sections(text: &str) -> Vec<Section<'_>> {
    let mut found = vec![Section {
        line: 1,
        heading: "the beginning",
        lines: vec![],
    }];
    let mut fenced = false;
    for (number, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if !fenced && line.starts_with('#') {
            found.push(Section {
                line: number + 1,
                heading: line.trim_start_matches('#').trim(),
                lines: vec![],
            });
        } else if !fenced {
            found.last_mut().unwrap().lines.push(line);
        }
    }
    found
}

/// Returns true for a cell that begins with a number and a unit, and holds nothing else up to its first comma,
/// semicolon, bracket or `and`, or a range. A limit in words, `10 s without an answer`, is none.
fn is_measured(cell: &str) -> bool {
    let cell = cell.trim();
    let number = |text: &str| text.find(|c: char| !c.is_ascii_digit() && c != '.' && c != ',');
    let first = cell.split([';', '(']).next().unwrap_or_default();
    let first = first.split(", ").next().unwrap_or_default();
    let first = first.split(" and ").next().unwrap_or_default();
    let first = first.rsplit(" to ").next().unwrap_or_default().trim();
    let Some(end) = number(first).filter(|end| *end > 0) else {
        return false;
    };
    UNITS.contains(&first[end..].trim_start())
}

/// Returns true for a section with a table of which a cell is measured, or a heading is a unit.
fn measured(section: &Section<'_>) -> bool {
    let mut before = "";
    section.lines.iter().any(|line| {
        let begins = !before.starts_with('|');
        before = line;
        let Some(cells) = line.strip_prefix('|') else {
            return false;
        };
        let is_unit = |cell: &str| {
            let last = cell.rsplit(", ").next().unwrap_or_default().trim();
            HEADINGS.contains(&last)
        };
        let mut cells = cells.split('|');
        cells.any(|cell| is_measured(cell) || (begins && is_unit(cell)))
    })
}

/// Words in which a sentence says on what something was measured.
const MACHINE: &[&str] = &[
    "one core",
    "two cores",
    "shared cores",
    "virtual cores",
    "processor time",
];

/// Units as sentences have them besides.
const WORDS: &[&str] = &["seconds", "minutes", "hours"];

/// Returns true for a line outside of tables that says on what something was measured, and has a number with a
/// unit.
fn is_told(line: &str) -> bool {
    let words: Vec<&str> = line.split_whitespace().collect();
    let is_unit = |word: &str| {
        let word = word.trim_end_matches(['.', ',', ';', ':', ')']);
        UNITS.contains(&word) || WORDS.contains(&word)
    };
    let is_figure = |at: usize| {
        let word = words[at].trim_start_matches('(');
        let end = word.find(|c: char| !c.is_ascii_digit() && c != '.' && c != ',');
        let (number, unit) = word.split_at(end.unwrap_or(word.len()));
        let behind = words.get(at + 1).copied().unwrap_or_default();
        !number.is_empty() && (is_unit(unit) || (unit.is_empty() && is_unit(behind)))
    };
    let is_prose = !line.starts_with('|') && !line.starts_with(MARK);
    is_prose
        && MACHINE.iter().any(|machine| line.contains(machine))
        && (0..words.len()).any(is_figure)
}

/// Sentences of a paper that tell of figures, without a command on their line or a mark in their section.
fn untold<'a>(text: &'a str, known: &Known, exists: impl Fn(&str) -> bool) -> Vec<&'a str> {
    let names = |line: &str| {
        let mut quoted = line.split('`').skip(1).step_by(2);
        quoted.any(|it| lacks(it, known, &exists).is_none())
    };
    let sections = sections(text).into_iter();
    sections
        .filter(|section| section.lines.iter().all(|line| marked(line).is_empty()))
        .flat_map(|section| section.lines)
        .filter(|line| is_told(line) && !names(line))
        .collect()
}

/// The commands that a line names as what made the figures of its section; none where it is no mark.
fn marked(line: &str) -> Vec<&str> {
    let Some(rest) = line.strip_prefix(MARK) else {
        return vec![];
    };
    let mut commands: Vec<_> = rest.split('`').step_by(2).collect();
    let first = commands.remove(0);
    commands.retain(|command| PROGRAMS.iter().any(|program| command.starts_with(program)));
    commands.insert(0, first);
    commands
}

/// Sections of a paper that have measured figures and no mark.
fn unmarked(text: &str) -> Vec<(usize, &str)> {
    let sections = sections(text).into_iter();
    sections
        .filter(|section| measured(section))
        .filter(|section| section.lines.iter().all(|line| marked(line).is_empty()))
        .map(|section| (section.line, section.heading))
        .collect()
}

/// The names that commands of this tree may use.
struct Known {
    /// Commands of `odeon`.
    subcommands: BTreeSet<String>,
    /// Parts of `odeon bench`.
    parts: BTreeSet<String>,
    /// Packages, and those of benchmarks with a slash and the name of the target.
    packages: BTreeSet<String>,
}

/// Variants of an enumeration as the command line spells them.
fn variants(text: &str, name: &str) -> BTreeSet<String> {
    let begins = format!("enum {name} {{");
    let (_, rest) = text.split_once(&begins).expect("the enumeration is there");
    let body = rest.split("\n}").next().unwrap_or_default();
    body.lines()
        .filter_map(|line| line.strip_prefix("    "))
        .filter(|line| line.starts_with(|c: char| c.is_ascii_uppercase()))
        .map(|line| {
            let name: String = line.chars().take_while(|c| is_word(*c)).collect();
            let mut spelt = String::new();
            for letter in name.chars() {
                if letter.is_ascii_uppercase() && !spelt.is_empty() {
                    spelt.push('-');
                }
                spelt.push(letter.to_ascii_lowercase());
            }
            spelt
        })
        .collect()
}

/// The first text of each row of a constant list of tuples.
fn first_texts(text: &str, name: &str) -> BTreeSet<String> {
    let begins = format!("const {name}: ");
    let (_, rest) = text.split_once(&begins).expect("the list is there");
    let body = rest.split("\n];").next().unwrap_or_default();
    let rows = body
        .lines()
        .filter_map(|line| line.trim().strip_prefix("(\""));
    rows.filter_map(|row| Some(row.split_once('"')?.0.to_owned()))
        .collect()
}

fn known() -> Known {
    let mut found = vec![];
    files(root(), &mut found);
    let mut packages = BTreeSet::new();
    for path in found.iter().filter(|path| path.ends_with("Cargo.toml")) {
        let manifest: toml::Table = read(path).parse().unwrap();
        let name = |table: &toml::Value| {
            table
                .get("name")
                .and_then(|it| it.as_str().map(str::to_owned))
        };
        let Some(package) = manifest.get("package").and_then(name) else {
            continue;
        };
        for bench in manifest
            .get("bench")
            .and_then(toml::Value::as_array)
            .into_iter()
            .flatten()
        {
            packages.insert(format!("{package}/{}", name(bench).unwrap()));
        }
        packages.insert(package);
    }
    let mut parts = first_texts(&read("runtime/bench/src/lib.rs"), "GROUPS");
    // The part that the command measures itself.
    parts.insert("head".to_owned());
    Known {
        subcommands: variants(&read("cli/src/args.rs"), "Command"),
        parts,
        packages,
    }
}

/// What a command names that is not there.
fn lacks(command: &str, known: &Known, exists: impl Fn(&str) -> bool) -> Option<String> {
    let words: Vec<_> = command.split_whitespace().collect();
    let after = |flag| {
        words
            .iter()
            .skip_while(|word| **word != flag)
            .nth(1)
            .copied()
    };
    let lacked = |what: &str, name: &str| Some(format!("there is no {what} `{name}`"));
    // Files of the tree that are given to whatever it is.
    let is_path = |word: &&&str| {
        ["scripts/", "recipes/", ".ci/", "runtime/"]
            .iter()
            .any(|folder| word.starts_with(folder))
    };
    if let Some(path) = words.iter().find(|word| is_path(word) && !exists(word)) {
        return lacked("file", path);
    }
    match words.as_slice() {
        ["odeon", "bench", rest @ ..] => {
            let mut parts = rest.iter().take_while(|word| !word.starts_with('-'));
            let part = parts.find(|part| !known.parts.contains(**part))?;
            lacked("part of `odeon bench`", part)
        }
        ["odeon", command, ..] if known.subcommands.contains(*command) => None,
        ["odeon", command, ..] => lacked("command of `odeon`", command),
        ["cargo", kind, ..] => {
            let package = after("-p").unwrap_or(after("--package").unwrap_or_default());
            if !package.is_empty() && !known.packages.contains(package) {
                return lacked("package", package);
            }
            let bench = after("--bench").filter(|_| *kind == "bench")?;
            let target = format!("{package}/{bench}");
            if known.packages.contains(&target) {
                return None;
            }
            lacked("benchmark", &target)
        }
        [path, ..] if is_path(&path) => None,
        _ => Some("it is no command of this tree".to_owned()),
    }
}

#[test]
fn figures_say_what_makes_them() {
    let known = known();
    let exists = |path: &str| root().join(path).is_file();
    let mut found = vec![];
    files(root(), &mut found);
    let mut violations = vec![];
    for path in found {
        if path.extension().is_none_or(|extension| extension != "md") || path.ends_with(BESIDE) {
            continue;
        }
        let text = read(&path);
        // A decision or a change tells what was, and is not written again.
        if path.starts_with("docs") && !path.starts_with("docs/decisions")
            || path.ends_with("README.md")
        {
            violations.extend(untold(&text, &known, exists).into_iter().map(|line| {
                format!(
                    "{}: say which command makes the figures of \"{line}\"",
                    path.display()
                )
            }));
        }
        let path = path.display();
        for (line, heading) in unmarked(&text) {
            violations.push(format!(
                "{path}:{line}: \"{heading}\" has measured figures: say which command makes them, in a line that \
                 begins with \"Made by\" and the command in backticks"
            ));
        }
        for (number, line) in text.lines().enumerate() {
            for command in marked(line) {
                if let Some(lacks) = lacks(command, &known, exists) {
                    violations.push(format!("{path}:{}: `{command}`: {lacks}", number + 1));
                }
            }
        }
    }
    expect_none(&violations);
}

/// A paper with one section.
fn paper(lines: &[&str]) -> String {
    format!(
        "# Speed\n\n## Asks\n\n{}\n\n## Other\n\nNothing.\n",
        lines.join("\n")
    )
}

#[test]
fn a_table_of_figures_without_a_mark_is_found() {
    let missed = [(3, "Asks")];
    for row in [
        "| local ask | 740 ns | 615 ns, kameo |",
        "| asks | 677k/s |",
        "| right | 38.7 % (31.6 to 48.0) |",
        "| until it runs | 0.3 to 0.4 s |",
        "| held out | 20 % and 26 % |",
        "| ready; fifty of them | 9 ms; 0.12 s |",
        "| train | 14.7k |",
    ] {
        let table = ["| | now |", "| --- | --- |", row];
        assert_eq!(unmarked(&paper(&table)), missed, "{row}");
        let marked = ["Made by `odeon bench`.", "", table[0], table[1], row];
        assert_eq!(unmarked(&paper(&marked)), [], "{row}");
        // A mark of another section is none of this.
        let text = paper(&table) + "Made by `odeon bench`.\n";
        assert_eq!(unmarked(&text), missed, "{row}");
    }
    for heading in ["wait, median, ms", "seconds", "samples/s"] {
        let table = [
            &*format!("| what | {heading} |"),
            "| --- | --- |",
            "| it | 3 |",
        ];
        assert_eq!(unmarked(&paper(&table)), missed, "{heading}");
    }
    for row in [
        "| `clip_low` | 0.2 | above 0, at most 1 | trust region |",
        "| slow link | 100 ms there and back |",
        "| `seconds` | seconds | from the batch to the weights |",
        "| 4,096 | tree |",
        "| `loader_megabytes` | 64 | 12 KiB of each |",
    ] {
        let table = ["| field | default |", "| --- | --- |", row];
        assert_eq!(unmarked(&paper(&table)), [], "{row}");
    }
    let fenced = ["```text", "| 3 ms |", "```"];
    assert_eq!(unmarked(&paper(&fenced)), []);
}

#[test]
fn a_mark_that_names_nothing_is_found() {
    let known = Known {
        subcommands: ["bench", "run"].map(str::to_owned).into(),
        parts: ["head"].map(str::to_owned).into(),
        packages: ["odeon-data", "odeon-data/loading"]
            .map(str::to_owned)
            .into(),
    };
    let lacks = |command| {
        lacks(command, &known, |path| {
            ["scripts/curves", "recipes/a.toml"].contains(&path)
        })
    };
    for good in [
        "scripts/curves OUT 4",
        "odeon bench",
        "odeon bench head --rounds 9",
        "odeon run recipes/a.toml",
        "cargo bench -p odeon-data --bench loading -- samples",
        "cargo build --release",
    ] {
        assert_eq!(lacks(good), None, "{good}");
    }
    for bad in [
        "scripts/curve OUT 4",
        "odeon benches",
        "odeon bench heads",
        "odeon run recipes/b.toml",
        "cargo bench -p odeon-dat",
        "cargo bench -p odeon-data --bench balance",
        "by hand",
    ] {
        assert!(lacks(bad).is_some(), "{bad}");
    }
    let line = "Made by `scripts/curves OUT`, the fields as `grpo` has them, and `odeon bench` for the rest.";
    assert_eq!(marked(line), ["scripts/curves OUT", "odeon bench"]);
    assert_eq!(marked("They are made by `odeon bench`."), [""; 0]);
    let tree = self::known();
    assert!(tree.subcommands.contains("bench") && tree.parts.contains("head"));
    assert!(tree.packages.contains("odeon-data/loading"));
}

#[test]
fn a_sentence_of_figures_without_a_command_is_found() {
    let known = known();
    let none = |_: &str| false;
    for line in [
        "On two cores 4 GB are read in 3 s.",
        "All groups are planned in 31 ms on one core.",
        "It took 53 s of processor time.",
        "On two shared cores sums went to 93 %, in 64 seconds.",
    ] {
        assert_eq!(untold(&paper(&[line]), &known, none), [line]);
        assert_eq!(
            untold(&paper(&["Made by `odeon bench`.", line]), &known, none),
            [""; 0]
        );
        let named = format!("{line} (`cargo bench -p odeon-data --bench loading`)");
        assert_eq!(untold(&paper(&[&named]), &known, none), [""; 0]);
    }
    for line in [
        "A link is lost after 10 s.",
        "A job may hold two cores.",
        "| on one core | 3 s |",
    ] {
        assert_eq!(untold(&paper(&[line]), &known, none), [""; 0]);
    }
}
