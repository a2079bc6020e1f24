//! Mutants of some files, all in one build: each is behind a switch, and the tests run once for each.

mod build;
mod list;
mod trial;
mod weave;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use anyhow::{Context, Result, bail, ensure};

use build::{build, copy_tree, write_changed};
use list::{Genre, Mutant};
use trial::{Fate, Trials};

/// What was asked for.
struct Asked {
    /// How many mutants of each file at most; all where it is none.
    sample: Option<usize>,
    seed: u64,
    /// Parts of names: others are not tried, where there are any.
    only: Vec<String>,
    /// Set where a mutant is missed that the tests of its module miss.
    own: bool,
    files: Vec<String>,
}

fn asked() -> Result<Asked> {
    let mut asked = Asked {
        sample: None,
        seed: 1,
        only: Vec::new(),
        own: false,
        files: Vec::new(),
    };
    let mut arguments = env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().context(format!("{argument}: of what?"));
        match argument.as_str() {
            "--sample" => asked.sample = Some(value()?.parse()?),
            "--seed" => asked.seed = value()?.parse()?,
            "--only" => asked.only.push(value()?),
            "--own" => asked.own = true,
            file if Path::new(file).is_file() => asked.files.push(file.to_owned()),
            other => bail!("{other} is neither a file nor an option"),
        }
    }
    ensure!(!asked.files.is_empty(), "no file");
    Ok(asked)
}

fn main() -> Result<()> {
    let asked = asked()?;
    let root = env::current_dir()?;
    let target =
        env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target/mutants"), PathBuf::from);
    let tree = target.join("tree");
    copy_tree(&root, &tree)?;
    let listed = listed(&tree, &asked.files)?;
    let chosen = chosen(&listed, &asked);
    println!(
        "{} mutants of {} files, {} of them tried",
        listed.len(),
        asked.files.len(),
        chosen.len()
    );

    // A function whose type is what it returns has no other value of that type.
    let is_opaque = |number: &usize| {
        let mutant = &listed[number - 1];
        mutant.genre == Genre::FnValue && mutant.name.contains("-> impl ")
    };
    let opaque = chosen.iter().copied().filter(is_opaque);
    let mut fates: BTreeMap<usize, Fate> = opaque
        .map(|number| (number, Fate::NotWoven("its type is opaque".to_owned())))
        .collect();
    let packages: BTreeSet<String> = listed.iter().map(|it| it.package.clone()).collect();
    // Where others need a function of these files to be constant, the files keep them so.
    let mut unfix = true;
    let tests = loop {
        let is_open = |number: &usize| !fates.contains_key(number);
        let open: Vec<usize> = chosen.iter().copied().filter(is_open).collect();
        weave_all(
            &root,
            &tree,
            &listed,
            &open,
            unfix,
            &asked.files,
            &mut fates,
        )?;
        let built = build(&tree, &target.join("build"), &packages)?;
        if unfix && built.errors.iter().any(|it| it.contains("E0015")) {
            unfix = false;
            continue;
        }
        if !built.errors.is_empty() {
            bail!(
                "this does not compile, by no mutant's fault:\n{}",
                built.errors.join("\n")
            );
        }
        if built.refused.is_empty() {
            break built.tests;
        }
        for (number, words) in built.refused {
            fates.insert(number, refusal(words));
        }
    };
    let mut trials = Trials::new(&tree, &target, tests, asked.own);
    for &number in &chosen {
        if !fates.contains_key(&number) {
            let mutant = &listed[number - 1];
            let fate = trials.run(number, mutant)?;
            println!("{number} {}: {}", fate.word(), mutant.name);
            fates.insert(number, fate);
        }
    }
    report(&listed, &chosen, &fates, &asked.files);
    Ok(())
}

/// What the compiler's refusal says of a mutant. Some are refused for how they are woven.
fn refusal(words: String) -> Fate {
    let by_weaving = [
        "E0015", "E0282", "E0283", "E0284", "E0716", "E0499", "E0502", "E0505", "E0382",
    ];
    match by_weaving.iter().any(|it| words.starts_with(it)) {
        true => Fate::NotWoven(words),
        false => Fate::Unviable,
    }
}

fn listed(tree: &Path, files: &[String]) -> Result<Vec<Mutant>> {
    let mut all = Vec::new();
    for file in files {
        let out = Command::new("cargo")
            .args(["mutants", "--list", "--json", "--workspace", "--file", file])
            .current_dir(tree)
            .output()
            .context("cargo mutants: cargo install cargo-mutants --locked")?;
        ensure!(
            out.status.success(),
            "cargo mutants --list: {}",
            String::from_utf8_lossy(&out.stderr)
        );
        let of_file: Vec<Mutant> = serde_json::from_slice(&out.stdout)?;
        ensure!(!of_file.is_empty(), "{file} has no mutants");
        all.extend(of_file);
    }
    Ok(all)
}

/// The numbers of those that are tried, from one: of each file as many as asked for, by splitmix64.
fn chosen(listed: &[Mutant], asked: &Asked) -> Vec<usize> {
    let mut state = asked.seed;
    let mut random = move || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    };
    let mut chosen = Vec::new();
    for file in &asked.files {
        let all = (1..=listed.len()).filter(|number| listed[number - 1].file == *file);
        let mut drawn: Vec<(u64, usize)> = all.map(|number| (random(), number)).collect();
        drawn.sort_unstable();
        drawn.truncate(asked.sample.unwrap_or(usize::MAX));
        let mut drawn: Vec<usize> = drawn.into_iter().map(|(_, number)| number).collect();
        let wanted = |name: &str| asked.only.iter().any(|part| name.contains(part));
        drawn.retain(|number| asked.only.is_empty() || wanted(&listed[number - 1].name));
        drawn.sort_unstable();
        chosen.extend(drawn);
    }
    chosen
}

/// Writes each file with those of its mutants that are `open`, and the switches into the roots of their crates.
fn weave_all(
    root: &Path,
    tree: &Path,
    listed: &[Mutant],
    open: &[usize],
    unfix: bool,
    files: &[String],
    fates: &mut BTreeMap<usize, Fate>,
) -> Result<()> {
    for file in files {
        let source = fs::read_to_string(root.join(file))?;
        let of_file = open.iter().map(|&number| (number, &listed[number - 1]));
        let of_file: Vec<(usize, &Mutant)> = of_file.filter(|(_, it)| it.file == *file).collect();
        let (woven, left_over) =
            weave::weave(&source, &of_file, unfix).with_context(|| file.clone())?;
        write_changed(&tree.join(file), woven.as_bytes())?;
        for number in left_over {
            // A condition that binds is no operand of another operator.
            let fate = match listed[number - 1].genre {
                Genre::BinaryOperator => Fate::Unviable,
                _ => Fate::NotWoven("no place".to_owned()),
            };
            fates.insert(number, fate);
        }
    }
    let folders: BTreeSet<&str> = files
        .iter()
        .filter_map(|it| Some(it.split_once("/src/")?.0))
        .collect();
    for folder in folders {
        let lib = format!("{folder}/src/lib.rs");
        let from = if files.contains(&lib) { tree } else { root };
        let source = fs::read_to_string(from.join(&lib))?;
        write_changed(&tree.join(&lib), (source + weave::SWITCHES).as_bytes())?;
    }
    Ok(())
}

fn report(listed: &[Mutant], chosen: &[usize], fates: &BTreeMap<usize, Fate>, files: &[String]) {
    println!("\n| file | mutants | tried | caught | late | missed | unviable | not woven |");
    println!("| --- | --- | --- | --- | --- | --- | --- | --- |");
    let row = |name: &str, belongs: &dyn Fn(&Mutant) -> bool| {
        let all = listed.iter().filter(|it| belongs(it)).count();
        let of: Vec<&Fate> = chosen
            .iter()
            .filter(|&&it| belongs(&listed[it - 1]))
            .map(|it| &fates[it])
            .collect();
        let count = |word: &str| of.iter().filter(|it| it.word() == word).count();
        let [caught, late, missed] = ["caught", "late", "missed"].map(count);
        let [unviable, not_woven] = ["unviable", "not woven"].map(count);
        let tried = caught + late + missed;
        println!(
            "| {name} | {all} | {tried} | {caught} | {late} | {missed} | {unviable} | {not_woven} |"
        );
    };
    for file in files {
        row(&format!("`{file}`"), &|it| it.file == *file);
    }
    row("all", &|_| true);
    for word in ["missed", "not woven"] {
        for number in chosen.iter().filter(|it| fates[it].word() == word) {
            println!("{word}: {}{}", listed[number - 1].name, fates[number].why());
        }
    }
}
