//! Models as people bring them, by the command.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use crate::unpack::{BROUGHT, Folder};

fn odeon(folder: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_odeon"))
        .args(args)
        .current_dir(folder)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn a_model_is_checked_before_it_is_used() {
    let check = |name: &str, more: &[&str]| {
        let folder = Folder::of("models", name);
        let args = [&["model", "check", "."], more].concat();
        let output = odeon(folder.path(), &args);
        (
            output.status.code(),
            text(&output.stdout),
            text(&output.stderr),
        )
    };
    let (code, shown, said) = check("eos-chat-token", &[]);
    assert_eq!((code, said.as_str()), (Some(0), ""), "{shown}");
    for row in [
        "llama",
        "<|end|> (0), <|im_end|> (4)",
        "<|begin|> (1)",
        "F32",
        "256 tokens",
    ] {
        assert!(shown.contains(row), "{row}: {shown}");
    }
    let (code, shown, said) = check("tied-other-head", &[]);
    assert_eq!(code, Some(1), "{shown}");
    assert!(
        said.contains("odd: `tie_word_embeddings` is true"),
        "{said}"
    );
    let (code, _, said) = check("eos-beyond-vocab", &[]);
    assert_eq!(code, Some(1));
    assert!(said.contains("token 300, which ends a reply, is beyond the embedding of 300 rows"));
    let (code, _, said) = check("nan-weight", &[]);
    assert_eq!(code, Some(1));
    assert!(
        said.contains("model.layers.1.mlp.down_proj.weight"),
        "{said}"
    );
    let asked = ["--text", "What is the time?", "--chat", "--json"];
    let (code, shown, _) = check("chat-jinja-file", &asked);
    let told: Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(code, Some(0), "{shown}");
    assert_eq!(told["chat_template"], "chat_template.jinja");
    assert_eq!(told["tokens"][0]["text"], "<|im_start|>");
    let (code, _, said) = check("tok-truncation", &["--text", "x", "--chat"]);
    assert_eq!(code, Some(1));
    assert!(said.contains("has no chat template"), "{said}");
}

#[test]
fn prompts_are_continued_as_the_files_say() {
    let generated = |name: &str, model: &str, prompt: &str| {
        let folder = Folder::of("models", name);
        let args = [
            "generate",
            model,
            "--response-max",
            "8",
            "--temperature",
            "0",
            prompt,
        ];
        let output = odeon(folder.path(), &args);
        assert!(output.status.success(), "{name}: {}", text(&output.stderr));
        text(&output.stdout)
    };
    let prompt = "The cat sat on the";
    for (name, model) in [
        // An end that `generation_config.json` alone names; a row that no token has; a first space.
        ("eos-chat-token", "."),
        ("padded-vocab-wins", "."),
        ("unigram-space", "."),
        ("qwen3", "."),
        ("gguf-eot", "model.gguf"),
        ("gguf-attention-bias", "model.gguf"),
    ] {
        let right = format!("{prompt}{}\n", right_text(name));
        assert_eq!(generated(name, model, prompt), right, "{name}");
    }
}

/// What transformers writes behind the prompt of a case.
fn right_text(name: &str) -> &'static str {
    let cases = BROUGHT.cases["models"].as_array().unwrap();
    let case = cases.iter().find(|case| case["name"] == name).unwrap();
    case["text"].as_str().unwrap()
}

/// The template counts that stands in a file of its own, and an answer is given.
#[test]
fn a_conversation_is_held_by_the_template_of_the_model() {
    use std::io::Write;

    for name in ["chat-jinja-file", "chat-inline-stale"] {
        let folder = Folder::of("models", name);
        let mut child = Command::new(env!("CARGO_BIN_EXE_odeon"))
            .args(["chat", ".", "--response-max", "8", "--temperature", "0"])
            .current_dir(folder.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut input = child.stdin.take().unwrap();
        input.write_all(b"What is the time?\n").unwrap();
        drop(input);
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert_eq!(text(&output.stdout).trim_end(), right_text(name), "{name}");
    }
}

/// The sum of a number over the steps of a run.
fn summed(folder: &Path, run: &str, key: &str) -> f64 {
    let lines = fs::read_to_string(folder.join(run).join("metrics.jsonl")).unwrap();
    let values = lines
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    values
        .filter_map(|line| named(&line["Step"], key))
        .sum::<f64>()
}

/// A number by its name, here or in what stands below.
fn named(value: &Value, key: &str) -> Option<f64> {
    let own = value.get(key).and_then(Value::as_f64);
    own.or_else(|| {
        let mut below = value.as_object()?.values();
        below.find_map(|it| named(it, key))
    })
}

#[test]
fn texts_are_learnt_whole_and_replies_end_at_any_of_the_ends() {
    // Cut to eight tokens it would be 180, with padding 820, with a first token that nothing puts there 456.
    for (name, predicted) in [
        ("tok-truncation", 456.0),
        ("tok-padding-fixed", 456.0),
        ("bos-set-not-added", 436.0),
    ] {
        let folder = Folder::of("models", name);
        let lines: String = (0..20)
            .map(|i| {
                format!(
                    "{{\"text\": \"The cat {i} sat on the mat, {} times.\"}}\n",
                    i * 7
                )
            })
            .collect();
        fs::write(folder.path().join("twenty.jsonl"), lines).unwrap();
        let recipe = r#"
            [run]
            name = "texts"
            [tokenizer]
            load = "."
            [model]
            hidden = 16
            layers = 1
            heads = 2
            kv_heads = 1
            ffn = 32
            context = 64
            [pretrain]
            steps = 2
            lr = 1e-3
            [processes]
            ranks = 1
            [plan]
            step = { tokens = 256 }
            [plan.mixture.sources.texts]
            weight = { constant = 1.0 }
            epochs = 1
            [[source]]
            name = "texts"
            path = "twenty.jsonl"
            format = { jsonl = { text = "text" } }
            context = 64
        "#;
        fs::write(folder.path().join("texts.toml"), recipe).unwrap();
        let output = odeon(folder.path(), &["run", "texts.toml"]);
        assert!(output.status.success(), "{name}: {}", text(&output.stderr));
        assert_eq!(
            summed(folder.path(), "runs/texts", "samples"),
            20.0,
            "{name}"
        );
        assert_eq!(
            summed(folder.path(), "runs/texts", "predicted"),
            predicted,
            "{name}"
        );
    }

    let folder = Folder::of("models", "two-eos-rl");
    let recipe = r#"
        [run]
        name = "ends"
        [model]
        load = "."
        context = 64
        [task.sums]
        operands_min = 2
        operands_max = 2
        digits_min = 1
        digits_max = 1
        [rl]
        algorithm = "grpo"
        lr = 1e-4
        steps = 3
        groups = 4
        group_size = 4
        response_max = 8
        temperature = 1.0
        [warmup]
        steps = 0
    "#;
    fs::write(folder.path().join("ends.toml"), recipe).unwrap();
    let output = odeon(folder.path(), &["run", "ends.toml"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let mean = summed(folder.path(), "runs/ends", "response_mean") / 3.0;
    assert!((1.0..3.0).contains(&mean), "replies of {mean} tokens");
}

#[test]
fn what_the_page_for_who_brings_a_model_shows_works() {
    let folder = Folder::of("models", "chat-jinja-file");
    let here = folder.path();
    fs::create_dir(here.join("my-model")).unwrap();
    for entry in fs::read_dir(here).unwrap().flatten() {
        if entry.path().is_file() {
            fs::rename(entry.path(), here.join("my-model").join(entry.file_name())).unwrap();
        }
    }
    let page = crate::section("Models and tokenizers");
    let block = page
        .split("```sh\n")
        .nth(1)
        .unwrap()
        .split("```")
        .next()
        .unwrap();
    let bin = Path::new(env!("CARGO_BIN_EXE_odeon")).parent().unwrap();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let output = Command::new("bash")
        .args(["-e", "-c", block])
        .current_dir(here)
        .env("PATH", path)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let shown = text(&output.stdout);
    assert!(output.status.success(), "{shown}{}", text(&output.stderr));
    assert!(shown.contains("chat_template.jinja"), "{shown}");
    assert!(shown.contains("The cat sat on the"), "{shown}");
}
