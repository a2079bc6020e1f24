//! GPT-2's files: names, transposes, settings that are refused.

use std::borrow::Cow;

use ::safetensors::SafeTensors;
use serde_json::{Value, json};

use super::*;

/// What `transformers` wrote: see `tests/golden/make.py`.
fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/gpt2")
}

fn config() -> Value {
    let text = fs::read_to_string(golden().join("config.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// Names, shapes and bytes of a file.
fn stored(file: &Path) -> Vec<(String, Vec<usize>, Vec<u8>)> {
    let bytes = fs::read(file).unwrap();
    let parsed = SafeTensors::deserialize(&bytes).unwrap();
    let tensors = parsed.tensors().into_iter();
    let mut all: Vec<_> = tensors
        .map(|(name, view)| (name, view.shape().to_vec(), view.data().to_vec()))
        .collect();
    all.sort();
    all
}

#[test]
fn a_folder_that_is_loaded_and_saved_is_what_transformers_wrote() {
    let place = tempfile::tempdir().unwrap();
    let model = load_directory(&golden()).unwrap();
    let target = place.path().join("saved");
    save(&target, &model.view(), StoredType::F32, None).unwrap();
    let file = "model.safetensors";
    assert_eq!(stored(&target.join(file)), stored(&golden().join(file)));
    let saved: Value =
        serde_json::from_str(&fs::read_to_string(target.join("config.json")).unwrap()).unwrap();
    for (key, value) in config().as_object().unwrap() {
        assert_eq!(&saved[key], value, "{key}");
    }
    // Without the configuration that it came with, it is described anew.
    let fields = ModelFields {
        config: None,
        ..model.fields.clone()
    };
    let anew = LoadedModel { fields, ..model };
    let target = place.path().join("anew");
    save(&target, &anew.view(), StoredType::F32, None).unwrap();
    let read = load_directory(&target).unwrap();
    assert_eq!(read.tensors, anew.tensors);
    let fields = ModelFields {
        config: None,
        ..read.fields
    };
    assert_eq!(fields, anew.fields);
}

/// The files that everybody has are those of the bare model, with the masks of attention.
#[test]
fn names_of_the_bare_model_and_masks_are_read() {
    let place = tempfile::tempdir().unwrap();
    fs::copy(
        golden().join("config.json"),
        place.path().join("config.json"),
    )
    .unwrap();
    let mut all = stored(&golden().join("model.safetensors"));
    for (name, ..) in &mut all {
        *name = name.trim_start_matches("transformer.").to_owned();
    }
    all.push(("h.0.attn.bias".into(), vec![1, 1, 2, 2], vec![0; 16]));
    all.push(("h.1.attn.masked_bias".into(), vec![], vec![0; 4]));
    let views = all.iter().map(|(name, shape, bytes)| {
        let view =
            ::safetensors::tensor::TensorView::new(::safetensors::Dtype::F32, shape.clone(), bytes);
        (name.clone(), view.unwrap())
    });
    let file = place.path().join("model.safetensors");
    ::safetensors::serialize_to_file(views, None, &file).unwrap();
    let folder = ModelFolder::open(place.path()).unwrap();
    assert_eq!(folder.notes(), Vec::<String>::new());
    let read = folder.load().unwrap();
    assert_eq!(read.tensors, load_directory(&golden()).unwrap().tensors);
}

#[test]
fn what_would_be_computed_otherwise_is_refused_by_name() {
    let read = |key: &str, value: Value| {
        let mut config = config();
        config[key] = value;
        ModelFields::from_config(&config)
    };
    for (key, value) in [
        ("activation_function", json!("gelu")),
        ("activation_function", json!("relu")),
        ("scale_attn_weights", json!(false)),
        ("scale_attn_by_inverse_layer_idx", json!(true)),
        ("add_cross_attention", json!(true)),
        ("n_embd", json!(33)),
        ("n_head", json!("4")),
        ("layer_norm_epsilon", json!(0)),
        ("tie_word_embeddings", json!("yes")),
    ] {
        let error = read(key, value.clone()).unwrap_err();
        assert!(
            error.contains(key) || error.contains("activation") || error.contains("heads"),
            "{key}: {error}"
        );
    }
    // Four times the width, where it is left out.
    assert_eq!(read("n_inner", Value::Null).unwrap().feed_forward, 128);
    let other = read("n_positions", Value::Null).unwrap();
    assert_eq!((other.context, other.longest()), (1_024, 1_024));
}

proptest! {
    #[test]
    fn parts_of_a_tensor_are_joined_and_taken_apart_again(
        rows in prop::collection::vec(1usize..6, 1..4),
        cols in 1usize..6,
        transposed: bool,
        width in prop::sample::select(vec![2usize, 4, 8]),
    ) {
        let parts: Vec<(String, Vec<usize>)> = rows
            .iter()
            .enumerate()
            .map(|(at, rows)| (format!("{at}"), vec![*rows, cols]))
            .collect();
        let file = FileTensor { name: "all".into(), parts, transposed };
        let all: usize = rows.iter().sum();
        let shape = if transposed { vec![cols, all] } else { vec![all, cols] };
        prop_assert_eq!(file.shape(), shape);
        let bytes: Vec<u8> = (0..all * cols * width).map(|at| at as u8).collect();
        let own: Vec<Cow<'_, [u8]>> = (0..rows.len()).map(|at| file.part(at, &bytes, width)).collect();
        prop_assert_eq!(file.joined(own.clone(), width), &bytes[..]);
        // Row `r` of part `p` is a column of the file where it lies transposed.
        let last = rows.len() - 1;
        let first: usize = rows[..last].iter().sum();
        let element = if transposed { first } else { first * cols };
        prop_assert_eq!(&own[last][..width], &bytes[element * width..][..width]);
    }
}

#[test]
fn other_models_are_stored_as_they_are() {
    let shapes = vec![("model.norm.weight".to_owned(), vec![4])];
    let own = file_tensors("llama", shapes.clone());
    assert_eq!(own[0].name, "model.norm.weight");
    assert_eq!(own[0].parts, shapes);
    assert!(!own[0].transposed);
}

/// A network's numbers have 32 bits, and those of its files stay what they were.
#[test]
fn a_model_that_was_trained_is_described_as_the_one_that_it_was_made_from() {
    for name in ["gpt2", "llama", "qwen3", "mixtral"] {
        let place = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("tests/golden")
            .join(name);
        let fields = load_directory(&place).unwrap().fields;
        let network = fields.model_config();
        let own = ModelFields::of(&network, 7).made_from(&fields);
        assert_eq!(own, fields, "{name}");
        let text = fs::read_to_string(place.join("config.json")).unwrap();
        let before: Value = serde_json::from_str(&text).unwrap();
        let written = own.to_config(None, None);
        for (key, value) in before.as_object().unwrap() {
            assert_eq!(&written[key], value, "{name}: {key}");
        }
    }
}
