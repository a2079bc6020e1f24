//! A real model end to end: file, tokenizer, network, generator. Skipped where the files are not
//! there; `fetch` puts them into `models/` or `$ODEON_MODELS`.

use std::path::{Path, PathBuf};

use odeon_algorithms::{
    fetch::{Artefact, GSM8K, SMOLLM2},
    generate::{Finish, Generator, GeneratorConfig, Request, Sampling},
    task::{Gsm8k, Gsm8kConfig, Split, Task},
    tokenizer::{Message, Tokenizer},
    weights::{Gguf, LoadedModel, StoredType, load_directory, load_gguf, save},
};
use odeon_gpu::Cpu;
use odeon_skip::{Need, skip};

/// The artefact's file; `None` where it is not there, and the test is skipped.
fn present(artefact: &Artefact) -> Option<PathBuf> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models");
    let named = std::env::var_os("ODEON_MODELS").map(PathBuf::from);
    let found = named
        .into_iter()
        .chain([workspace])
        .find_map(|place| artefact.find(&place));
    if found.is_none() {
        let why = format!(
            "{} is neither in $ODEON_MODELS nor in models/; `odeon fetch {}` gets it",
            artefact.file, artefact.name
        );
        skip(Need::Model, why);
    }
    found
}

/// Greedy replies to the prompts, all in one batch, and the tokens drawn in total.
fn replies(model: LoadedModel, tokenizer: &Tokenizer, prompts: &[Vec<u32>]) -> Vec<String> {
    let model = model.into_model(Cpu::new(0)).unwrap();
    let options = GeneratorConfig {
        slots: prompts.len(),
        ..GeneratorConfig::default()
    };
    let mut generator = Generator::new(Cpu::new(0), model.config().clone(), options).unwrap();
    generator.load_flat(model.flat()).unwrap();
    let sampling = Sampling {
        temperature: 0.0,
        top_p: 1.0,
        stop: vec![tokenizer.eos()],
    };
    for (id, prompt) in (0..).zip(prompts) {
        let (prompt, sampling) = (prompt.clone(), sampling.clone());
        let request = Request {
            id,
            prompt,
            max_new_tokens: 24,
            sampling,
            seed: 0,
            resumed: 0,
        };
        generator.submit(request).unwrap();
    }
    let start = now();
    let mut replies = vec![String::new(); prompts.len()];
    let mut drawn = 0;
    while !generator.is_idle() {
        for sampled in generator.step() {
            drawn += sampled.tokens.len();
            let ended = if sampled.finish == Finish::Stop {
                ""
            } else {
                "…"
            };
            let text = tokenizer.decode(&sampled.tokens).unwrap();
            replies[sampled.id as usize] = text + ended;
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    let prompted: usize = prompts.iter().map(Vec::len).sum();
    println!(
        "{prompted} prompt tokens and {drawn} new tokens in {seconds:.2} s: {:.1} new tokens/s",
        drawn as f64 / seconds
    );
    replies
}

#[expect(
    clippy::disallowed_methods,
    reason = "it measures this machine, nothing is decided by it"
)]
fn now() -> std::time::Instant {
    std::time::Instant::now()
}

#[test]
fn it_knows_the_capital_of_france() {
    let Some(path) = present(&SMOLLM2) else {
        return;
    };
    let gguf = Gguf::open(&path).unwrap();
    let tokenizer = Tokenizer::from_gguf(&gguf).unwrap();
    let model = load_gguf(&gguf).unwrap();
    assert_eq!(model.parameters(), 134_515_008);
    let chat = |text: &str| tokenizer.encode_chat(&[Message::user(text)]).unwrap();
    let prompts = [
        tokenizer.encode("The capital of France is").unwrap(),
        chat("What is the capital of France?"),
        chat("What is the capital of Japan? Answer with one word."),
        tokenizer.encode("1, 2, 3, 4, 5,").unwrap(),
    ];
    let replies = replies(model, &tokenizer, &prompts);
    println!("{replies:#?}");
    assert!(replies[0].contains("Paris"), "{}", replies[0]);
    assert!(replies[1].contains("Paris"), "{}", replies[1]);
    assert!(replies[2].contains("Tokyo"), "{}", replies[2]);
    assert!(replies[3].starts_with(" 6, 7, 8"), "{}", replies[3]);
}

#[test]
fn its_tokenizer_is_complete() {
    let Some(path) = present(&SMOLLM2) else {
        return;
    };
    let tokenizer = Tokenizer::from_gguf(&Gguf::open(&path).unwrap()).unwrap();
    assert_eq!(tokenizer.vocabulary(), 49_152);
    assert_eq!(
        (tokenizer.before(), tokenizer.eos(), tokenizer.pad()),
        (&[][..], 2, 2)
    );
    let rendered = tokenizer
        .chat()
        .unwrap()
        .render(&[Message::user("Hi")])
        .unwrap();
    assert!(
        rendered.starts_with("<|im_start|>system\nYou are a helpful AI assistant named SmolLM"),
        "{rendered}"
    );
    for text in [
        "Hello, world!",
        " 12345 + 678",
        "für 日本 🙂\n\n\tend",
        "<|im_end|>",
        "",
    ] {
        let tokens = tokenizer.encode(text).unwrap();
        assert_eq!(tokenizer.decode(&tokens).unwrap(), text);
    }
    // Digits stand alone, and special tokens come by their ids only.
    assert_eq!(tokenizer.encode("12345").unwrap().len(), 5);
    assert!(!tokenizer.encode("<|im_end|>").unwrap().contains(&2));
    let chat = tokenizer.encode_chat(&[Message::user("Hi")]).unwrap();
    assert_eq!(chat.iter().filter(|&&token| token == 1).count(), 3);
}

#[test]
fn it_survives_a_checkpoint_in_bf16() {
    let Some(path) = present(&SMOLLM2) else {
        return;
    };
    let gguf = Gguf::open(&path).unwrap();
    let tokenizer = Tokenizer::from_gguf(&gguf).unwrap();
    let model = load_gguf(&gguf).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let target = directory.path().join("smollm2");
    save(&target, &model.view(), StoredType::Bf16, Some(&tokenizer)).unwrap();
    let again = load_directory(&target).unwrap();
    assert_eq!(again.fields.model_config(), model.fields.model_config());
    let tokenizer = Tokenizer::from_directory(&target).unwrap();
    let prompt = tokenizer.encode("The capital of France is").unwrap();
    let replies = replies(again, &tokenizer, &[prompt]);
    assert!(replies[0].contains("Paris"), "{}", replies[0]);
}

#[test]
fn all_problems_of_gsm8k_are_read_and_their_solutions_are_right() {
    let Some(path) = present(&GSM8K) else { return };
    let task = Gsm8k::open(Gsm8kConfig::new(path)).unwrap();
    assert_eq!(task.problem_count(Split::Train), Some(1_000));
    assert_eq!(task.problem_count(Split::HeldOut), Some(319));
    for (split, count) in [(Split::Train, 1_000), (Split::HeldOut, 319)] {
        for index in 0..count {
            let problem = task.problem(0, split, index);
            assert!(
                task.reward(&problem, &problem.solution).correct,
                "{problem:?}"
            );
            assert!(!problem.solution.contains("<<"), "{problem:?}");
        }
    }
}
