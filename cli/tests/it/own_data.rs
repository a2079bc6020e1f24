//! Data as people bring them: read right, or refused with the file and the reason.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use crate::nodes::eventually;

/// A folder with data and runs.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn write(&self, name: &str, bytes: impl AsRef<[u8]>) {
        let path = self.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }

    fn odeon(&self, args: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_odeon"));
        command.args(args).current_dir(self.path());
        command.stdin(Stdio::null()).output().unwrap()
    }

    /// Runs so many steps of one sample each on `data`, with a checkpoint every ten.
    fn run(&self, steps: u32, more: &str) -> Output {
        self.run_in("kept", steps, more)
    }

    /// The same, with the lines in this order.
    fn run_in(&self, order: &str, steps: u32, more: &str) -> Output {
        let recipe = recipe(steps, more).replace("\"kept\"", &format!("\"{order}\""));
        self.write("recipe.toml", recipe);
        self.odeon(&["run", "--no-ui", "recipe.toml"])
    }

    fn reports(&self, kind: &str) -> Vec<Value> {
        let text =
            fs::read_to_string(self.path().join("runs/own/metrics.jsonl")).unwrap_or_default();
        let lines = text
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).unwrap());
        lines.filter_map(|line| line.get(kind).cloned()).collect()
    }
}

fn recipe(steps: u32, more: &str) -> String {
    format!(
        r#"
[run]
name = "own"
[model]
hidden = 8
layers = 1
heads = 2
kv_heads = 1
ffn = 8
context = 128
[pretrain]
steps = {steps}
checkpoint_every = 10
[plan]
step = {{ samples = 1 }}
[plan.mixture.sources.own]
weight = {{ constant = 1.0 }}
epochs = 1
[data]
cache = "cache"
{more}
[[source]]
name = "own"
path = "data"
format = {{ jsonl = {{ text = "text" }} }}
order = "kept"
context = 128
block_bytes = 100
"#
    )
}

fn lines(from: usize, end: usize) -> String {
    let line = |n| format!("{{\"text\": \"line {n:04}\"}}\n");
    (from..end).map(line).collect()
}

fn text(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

fn last_line(output: &Output) -> String {
    let (_, err) = text(output);
    err.lines().next_back().unwrap_or_default().to_owned()
}

/// The blocks of a page of one language, one after the other.
fn blocks(page: &str, language: &str) -> String {
    let mut blocks = String::new();
    let mut rest = page;
    while let Some((_, behind)) = rest.split_once(&format!("```{language}\n")) {
        let (block, behind) = behind.split_once("```").unwrap();
        blocks.push_str(block);
        rest = behind;
    }
    blocks
}

#[test]
fn the_example_of_the_page_about_ones_own_data_runs_as_it_stands() {
    let page = crate::section("Data");
    let place = Place::new();
    place.write("notes.toml", blocks(page, "toml"));
    let binary = PathBuf::from(env!("CARGO_BIN_EXE_odeon"));
    let path = std::env::var("PATH").unwrap();
    let path = format!("{}:{path}", binary.parent().unwrap().display());
    let output = Command::new("bash")
        .args(["-e", "-u", "-c", &blocks(page, "sh")])
        .current_dir(place.path())
        .env("PATH", path)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let (out, err) = text(&output);
    assert!(output.status.success(), "{out}{err}");
    assert!(out.contains("lines: 2 records in 1 file"), "{out}");
    assert!(out.contains("steps        4"), "{out}");
}

#[test]
fn what_a_run_leaves_out_is_told_on_the_terminal_in_its_metrics_and_at_its_end() {
    let place = Place::new();
    place.write(
        "data/a.jsonl",
        lines(0, 5) + "plain words\n" + &lines(5, 20),
    );
    place.write("data/b.jsonl.gz", lines(0, 5));
    let output = place.run(20, "");
    let (out, err) = text(&output);
    assert!(output.status.success(), "{out}{err}");
    for told in [&out, &err] {
        assert!(
            told.contains("1 record left out, 1 file not read whole"),
            "{told}"
        );
    }
    assert!(err.contains("b.jsonl.gz"), "{err}");
    assert!(out.contains("a.jsonl, at 110, record"), "{out}");
    let left_out = place.reports("LeftOut");
    let last = left_out.last().unwrap();
    assert_eq!((&last["records"], &last["files"]), (&1.into(), &1.into()));
    assert!(last["first"].to_string().contains("a.jsonl"), "{last}");
}

/// A run that is ended with the test.
struct Running(std::process::Child);

impl Drop for Running {
    fn drop(&mut self) {
        let process = rustix::process::Pid::from_child(&self.0);
        let _ = rustix::process::kill_process(process, rustix::process::Signal::TERM);
        let _ = self.0.wait();
    }
}

#[test]
fn what_a_run_leaves_out_is_told_beneath_its_actors_while_it_runs() {
    let place = Place::new();
    place.write("data/a.jsonl", lines(0, 20) + "plain words\n");
    let recipe = recipe(1_000_000, "").replace("epochs = 1\n", "epochs = 1000000\n");
    place.write("recipe.toml", recipe);
    let run = Command::new(env!("CARGO_BIN_EXE_odeon"))
        .args(["run", "recipe.toml"])
        .current_dir(place.path())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let _run = Running(run.unwrap());
    eventually("what is left out, told", || {
        let (out, err) = text(&place.odeon(&["ps", "runs/own"]));
        out.contains("mailbox")
            && err.contains("warning: the run leaves out of its source own: ")
            && err.contains("a.jsonl")
    });
}

#[test]
fn a_run_that_ends_because_of_its_data_says_the_file_and_the_reason_last() {
    for (name, bytes, reason) in [
        ("a.jsonl", lines(0, 9).replace('\n', "\r"), "CR alone"),
        ("a.jsonl", "plain words\n".repeat(50), "not JSON"),
        (
            "a.jsonl",
            format!("[{}]", lines(0, 9).trim_end().replace('\n', ",")),
            "array",
        ),
        ("a.jsonl.gz", lines(0, 9), "gzip"),
        ("a.jsonl", String::new(), "without a record"),
    ] {
        let place = Place::new();
        place.write(&format!("data/{name}"), bytes);
        let output = place.run(5, "");
        let last = last_line(&output);
        assert!(!output.status.success());
        assert!(
            last.contains(name) && last.contains(reason),
            "{name}: {last}"
        );
    }
    let place = Place::new();
    place.write("data/a.csv", "text\na\n");
    let last = last_line(&place.run(5, ""));
    assert!(
        last.contains("a.csv") && last.contains("formats are"),
        "{last}"
    );
}

#[test]
fn a_run_whose_data_are_too_few_is_told_so_by_its_check() {
    let place = Place::new();
    place.write("data/a.jsonl", lines(0, 20));
    place.write("recipe.toml", recipe(20, ""));
    let output = place.odeon(&["run", "--check", "recipe.toml"]);
    assert!(output.status.success(), "{}", text(&output).1);
    place.write("recipe.toml", recipe(21, ""));
    let output = place.odeon(&["run", "--check", "recipe.toml"]);
    let last = last_line(&output);
    assert!(
        !output.status.success() && last.contains("after 20 of 21 steps"),
        "{last}"
    );
}

#[test]
fn a_run_goes_on_with_the_files_that_it_has_read_and_with_no_others() {
    type Change = (&'static str, fn(&Place), &'static str);
    let changes: [Change; 2] = [
        (
            "reordered",
            |place| {
                let text = lines(0, 30);
                let mut all: Vec<&str> = text.lines().collect();
                all.reverse();
                place.write("data/b.jsonl", all.join("\n") + "\n");
            },
            "b.jsonl has the same size and other content",
        ),
        (
            "gone",
            |place| {
                fs::remove_file(place.path().join("data/b.jsonl")).unwrap();
                place.write("data/c.jsonl", lines(0, 30));
            },
            "b.jsonl is gone",
        ),
    ];
    for (name, change, what) in changes {
        let place = Place::new();
        place.write("data/b.jsonl", lines(0, 30));
        assert!(place.run(10, "").status.success(), "{name}");
        change(&place);
        let output = place.run(20, "");
        let last = last_line(&output);
        assert!(!output.status.success(), "{name}");
        assert!(
            last.contains("source `own`") && last.contains(what),
            "{name}: {last}"
        );
        // Whoever wants it all the same is told.
        let output = place.run(20, "changed = \"go_on\"");
        let (out, err) = text(&output);
        assert!(output.status.success(), "{name}: {out}{err}");
        assert!(err.contains(what), "{name}: {err}");
        assert_eq!(place.reports("Changed").len(), 1, "{name}");
    }
}

/// SEMANTICS 125.
#[test]
fn a_run_whose_data_have_grown_reads_each_line_once() {
    type Growth = (&'static str, fn(&Place), u32, &'static str);
    let longer: fn(&Place) = |place| place.write("data/b.jsonl", lines(0, 60));
    let growths: [Growth; 3] = [
        ("grown", longer, 10, "b.jsonl grew from"),
        // It had read them all.
        ("grown at its end", longer, 30, "b.jsonl grew from"),
        (
            "joined",
            |place| place.write("data/a.jsonl", lines(30, 60)),
            10,
            "a.jsonl is new",
        ),
    ];
    for (name, grow, before, what) in growths {
        for order in ["kept", "shuffled"] {
            let place = Place::new();
            place.write("data/b.jsonl", lines(0, 30));
            assert!(place.run_in(order, before, "").status.success(), "{name}");
            grow(&place);
            for steps in [40, 60] {
                let output = place.run_in(order, steps, "");
                let (out, err) = text(&output);
                assert!(output.status.success(), "{name}: {out}{err}");
                // It is told when it is found, and not when the run goes on with the same again.
                assert_eq!(err.contains(what), steps == 40, "{name}: {err}");
            }
            let steps = place.reports("Step");
            let digests: BTreeSet<String> =
                steps.iter().map(|it| it["digest"].to_string()).collect();
            assert_eq!((steps.len(), digests.len()), (60, 60), "{name}, {order}");
            let grown = place.reports("Grown");
            assert_eq!(grown.len(), 1, "{name}: {grown:?}");
            let output = place.run_in(order, 61, "");
            assert!(
                last_line(&output).contains("ended after 60 steps"),
                "{name}"
            );
        }
    }
}

#[test]
fn a_run_goes_on_exactly_where_its_files_were_written_again_as_they_were() {
    let place = Place::new();
    place.write("data/b.jsonl", lines(0, 30));
    assert!(place.run(10, "").status.success());
    place.write("data/b.jsonl", lines(0, 30));
    let output = place.run(30, "");
    assert!(output.status.success(), "{}", text(&output).1);
    let steps = place.reports("Step");
    let digests: BTreeSet<String> = steps
        .iter()
        .map(|step| step["digest"].to_string())
        .collect();
    assert_eq!((steps.len(), digests.len()), (30, 30));
}

/// SEMANTICS 126.
#[test]
fn a_run_whose_newest_checkpoint_is_damaged_goes_on_from_the_one_before() {
    type Damage = (&'static str, fn(&Path), &'static str);
    let damages: [Damage; 4] = [
        (
            "cut off",
            |folder| {
                let file = folder.join("rank-00000-000.safetensors");
                let file = fs::OpenOptions::new().write(true).open(file).unwrap();
                file.set_len(1000).unwrap();
            },
            "rank-00000-000.safetensors at byte 1000: the file ends here",
        ),
        (
            "changed",
            |folder| {
                let file = folder.join("rank-00000-000.safetensors");
                let mut bytes = fs::read(&file).unwrap();
                *bytes.last_mut().unwrap() ^= 1;
                fs::write(&file, bytes).unwrap();
            },
            "damaged",
        ),
        (
            "gone",
            |folder| fs::remove_file(folder.join("rank-00000-000.safetensors")).unwrap(),
            "rank-00000-000.safetensors is not there",
        ),
        (
            "without a manifest that can be read",
            |folder| fs::write(folder.join("manifest.json"), "{").unwrap(),
            "manifest.json at byte",
        ),
    ];
    let place = Place::new();
    place.write("data/b.jsonl", lines(0, 200));
    assert!(place.run(20, "").status.success());
    for ((name, damage, why), steps) in damages.into_iter().zip((20..).step_by(10)) {
        let folder = place.path().join("runs/own/checkpoint");
        let entries = fs::read_dir(&folder).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let newest = names.filter(|name| name.starts_with("0000")).max().unwrap();
        assert!(newest.ends_with(&format!("-step-{steps}")), "{newest}");
        damage(&folder.join(&newest));
        let output = place.run(steps + 10, "");
        let (out, err) = text(&output);
        assert!(output.status.success(), "{name}: {out}{err}");
        assert!(err.contains(why), "{name}: {err}");
        let on = format!("goes on from the checkpoint of step {}", steps - 10);
        assert!(err.contains(&on), "{name}: {err}");
        assert!(folder.join(format!("damaged-{newest}")).is_dir(), "{name}");
    }
    // The data of what is made again are what they were.
    let mut made: BTreeMap<u64, Value> = BTreeMap::new();
    for step in place.reports("Step") {
        let (number, digest) = (step["step"].as_u64().unwrap(), &step["digest"]);
        assert_eq!(made.entry(number).or_insert_with(|| digest.clone()), digest);
    }
    assert_eq!(made.len(), 60);
}

#[test]
fn data_are_checked_with_counts_places_and_an_exit_code() {
    let place = Place::new();
    place.write("good.jsonl", lines(0, 20));
    place.write("odd.jsonl", lines(0, 20) + "plain words\n");
    let output = place.odeon(&["data", "check", "good.jsonl", "--cache", "cache"]);
    let (out, err) = text(&output);
    assert_eq!(output.status.code(), Some(0), "{out}{err}");
    assert!(out.contains("20 records in 1 file, 20 samples"), "{out}");
    let output = place.odeon(&["data", "check", "odd.jsonl", "--cache", "cache", "--json"]);
    assert_eq!(output.status.code(), Some(1));
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (&found["records"], &found["samples"]),
        (&21.into(), &20.into())
    );
    let first = &found["left_out"]["first"][0];
    assert_eq!(
        (&first["offset"], &first["record"]),
        (&440.into(), &20.into())
    );
    let output = place.odeon(&["data", "check", "nothing.jsonl", "--cache", "cache"]);
    let (out, _) = text(&output);
    assert_eq!(output.status.code(), Some(1));
    assert!(out.contains("no file at nothing.jsonl"), "{out}");
    let format = "{ jsonl = { prompt = \"q\", response = \"a\" } }";
    place.write("pairs.jsonl", "{\"q\": \"2+2=\", \"a\": \"4\"}\n");
    let args = [
        "data",
        "check",
        "pairs.jsonl",
        "--format",
        format,
        "--tokens",
        "1",
    ];
    let output = place.odeon(&args);
    let (out, err) = text(&output);
    assert_eq!(output.status.code(), Some(0), "{out}{err}");
    assert!(
        out.contains("read   \"2+2=\"") && out.contains("learnt \"4\""),
        "{out}"
    );
}

/// Turns of a model are learnt, those of people read: as they are shown before a run, and in the run.
#[test]
fn conversations_are_learnt_by_the_template_of_the_model() {
    let place = Place::new();
    let golden =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../algorithms/tests/golden/conversations.json");
    let golden: Value = serde_json::from_str(&fs::read_to_string(golden).unwrap()).unwrap();
    for (name, file) in golden["files"].as_object().unwrap() {
        place.write(&format!("model/{name}"), file.as_str().unwrap());
    }
    let template = golden["templates"]["marked"].as_str().unwrap();
    place.write("model/chat_template.jinja", template);
    let (mut chats, mut predicted) = (String::new(), 0);
    let cases = golden["cases"].as_array().unwrap().iter();
    for case in cases.filter(|case| case["template"] == "marked") {
        chats += &format!("{}\n", serde_json::json!({ "messages": case["messages"] }));
        let mask = case["mask"].as_array().unwrap().iter();
        predicted += mask.map(|it| it.as_u64().unwrap()).sum::<u64>();
    }
    place.write("chats.jsonl", &chats);
    let format = "{ jsonl = { messages = \"messages\" } }";
    let mut args = vec![
        "data",
        "check",
        "chats.jsonl",
        "--format",
        format,
        "--tokens",
        "1",
    ];
    args.extend(["--tokenizer", "model", "--cache", "cache"]);
    let (out, err) = text(&place.odeon(&args));
    assert!(
        out.contains(
            "read   \"<|im_start|>user\\nWhat is the time?<|im_end|>\\n<|im_start|>assistant\\n\""
        ) && out.contains("learnt \"Half past nine.<|im_end|>\""),
        "{out}{err}"
    );
    assert!(
        out.contains(&format!("of which {predicted} are learnt")),
        "{out}"
    );

    let recipe = recipe(3, "")
        .replace("[model]", "[tokenizer]\nload = \"model\"\n\n[model]")
        .replace("{ jsonl = { text = \"text\" } }", format);
    assert!(recipe.contains("messages"), "{recipe}");
    place.write("recipe.toml", recipe);
    place.write("data/chats.jsonl", chats);
    let (out, err) = text(&place.odeon(&["run", "--no-ui", "recipe.toml"]));
    let steps = place.reports("Step");
    assert_eq!(steps.len(), 3, "{out}{err}");
    let learnt = |step: &Value| step["sources"]["own"]["predicted"].as_u64().unwrap();
    let all: u64 = steps.iter().map(learnt).sum();
    assert_eq!(all, predicted, "each conversation once");

    // Without a template nothing could render them.
    fs::remove_file(place.path().join("model/chat_template.jinja")).unwrap();
    let (out, err) = text(&place.odeon(&["run", "--no-ui", "--check", "recipe.toml"]));
    assert!((out + &err).contains("the tokenizer has none"));
}
