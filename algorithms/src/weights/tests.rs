//! Tests of the file formats.

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
};

use proptest::prelude::*;

use super::*;
use crate::tokenizer::Tokenizer;

mod gpt2;
mod trackers;

/// Writes GGUF files, sound or not.
#[derive(Default)]
struct Writer {
    values: Vec<Vec<u8>>,
    tensors: Vec<Vec<u8>>,
    data: Vec<u8>,
}

fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
}

impl Writer {
    fn value(&mut self, key: &str, kind: u32, bytes: &[u8]) {
        self.values
            .push([&text(key), &kind.to_le_bytes()[..], bytes].concat());
    }

    fn integer(&mut self, key: &str, value: u32) {
        self.value(key, 4, &value.to_le_bytes());
    }

    fn tensor(&mut self, name: &str, extents: &[u64], kind: u32, data: &[u8]) {
        let mut entry = text(name);
        entry.extend((extents.len() as u32).to_le_bytes());
        entry.extend(extents.iter().flat_map(|extent| extent.to_le_bytes()));
        entry.extend(kind.to_le_bytes());
        entry.extend((self.data.len() as u64).to_le_bytes());
        self.tensors.push(entry);
        self.data.extend(data);
        self.data.resize(self.data.len().next_multiple_of(32), 0);
    }

    fn floats(&mut self, name: &str, extents: &[u64], values: impl IntoIterator<Item = f32>) {
        let data: Vec<u8> = values.into_iter().flat_map(f32::to_le_bytes).collect();
        self.tensor(name, extents, 0, &data);
    }

    fn bytes(&self) -> Vec<u8> {
        let mut file = b"GGUF\x03\0\0\0".to_vec();
        file.extend((self.tensors.len() as u64).to_le_bytes());
        file.extend((self.values.len() as u64).to_le_bytes());
        file.extend(self.values.concat());
        file.extend(self.tensors.concat());
        file.resize(file.len().next_multiple_of(32), 0);
        file.extend(&self.data);
        file
    }
}

fn open(bytes: &[u8]) -> Result<Gguf, LoadError> {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(bytes).unwrap();
    Gguf::open(file.path())
}

/// A llama of one layer: 2 heads of width 4 over 1 key head.
fn tiny() -> Writer {
    let mut writer = Writer::default();
    writer.value("general.architecture", 8, &text("llama"));
    for (key, value) in [
        ("llama.block_count", 1),
        ("llama.context_length", 16),
        ("llama.embedding_length", 8),
        ("llama.feed_forward_length", 12),
        ("llama.attention.head_count", 2),
        ("llama.attention.head_count_kv", 1),
        ("llama.rope.dimension_count", 4),
    ] {
        writer.integer(key, value);
    }
    writer.value("llama.rope.freq_base", 6, &1e5_f32.to_le_bytes());
    let ramp = |count: u64| (0..count).map(|i| i as f32);
    for (name, extents) in [
        ("token_embd", &[8, 5][..]),
        ("blk.0.attn_norm", &[8]),
        ("blk.0.attn_q", &[8, 8]),
        ("blk.0.attn_k", &[8, 4]),
        ("blk.0.attn_v", &[8, 4]),
        ("blk.0.attn_output", &[8, 8]),
        ("blk.0.ffn_norm", &[8]),
        ("blk.0.ffn_gate", &[8, 12]),
        ("blk.0.ffn_up", &[8, 12]),
        ("blk.0.ffn_down", &[12, 8]),
        ("output_norm", &[8]),
    ] {
        let count = extents.iter().product();
        writer.floats(&format!("{name}.weight"), extents, ramp(count));
    }
    writer
}

#[test]
fn a_llama_file_is_loaded_under_hugging_face_names() {
    let model = load_gguf(&open(&tiny().bytes()).unwrap()).unwrap();
    let fields = &model.fields;
    assert_eq!(
        (fields.vocabulary, fields.hidden, fields.head_width),
        (5, 8, 4)
    );
    assert!(fields.tied);
    assert_eq!(fields.rope_theta, 1e5);
    assert_eq!(model.tensors.len(), fields.tensor_shapes().len());
    assert_eq!(model.tensors["model.embed_tokens.weight"].shape, [5, 8]);
    assert_eq!(
        model.tensors["model.layers.0.mlp.down_proj.weight"].shape,
        [8, 12]
    );
    assert_eq!(
        model.parameters(),
        40 + 8 + 64 + 32 + 32 + 64 + 8 + 3 * 96 + 8
    );

    // The first element of a row of the ramp tells which row it was: pairs become halves.
    let first = |name: &str| -> Vec<f32> {
        let tensor = &model.tensors[&format!("model.layers.0.self_attn.{name}_proj.weight")];
        tensor
            .values
            .iter()
            .step_by(8)
            .map(|value| value / 8.0)
            .collect()
    };
    assert_eq!(first("q"), [0.0, 2.0, 1.0, 3.0, 4.0, 6.0, 5.0, 7.0]);
    assert_eq!(first("k"), [0.0, 2.0, 1.0, 3.0]);
    assert_eq!(first("v"), [0.0, 1.0, 2.0, 3.0]);
}

#[test]
fn encodings_decode_to_the_defined_values() {
    let half = |value: f32| half::f16::from_f32(value).to_le_bytes();
    let nibbles: Vec<u8> = (0..16).map(|i| i | ((15 - i) << 4)).collect();
    let low_then_high = || (0..16).chain((0..16).rev()).map(|q| q as f32);

    let q4_0 = [&half(0.5)[..], &nibbles].concat();
    let expected: Vec<f32> = low_then_high().map(|q| 0.5 * (q - 8.0)).collect();
    assert_eq!(Encoding::Q4_0.decode(&q4_0), expected);

    let q4_1 = [&half(0.5)[..], &half(-3.0), &nibbles].concat();
    let expected: Vec<f32> = low_then_high().map(|q| 0.5 * q - 3.0).collect();
    assert_eq!(Encoding::Q4_1.decode(&q4_1), expected);

    let signed: Vec<u8> = (-16..16_i8).map(i8::cast_unsigned).collect();
    let q8_0 = [&half(0.25)[..], &signed].concat();
    let expected: Vec<f32> = (-16..16).map(|q| 0.25 * q as f32).collect();
    assert_eq!(Encoding::Q8_0.decode(&q8_0), expected);

    assert_eq!(Encoding::F16.decode(&half(-1.5)), [-1.5]);
    assert_eq!(Encoding::Bf16.decode(&[0xc0, 0x3f]), [1.5]);
    assert_eq!(Encoding::F32.decode(&1.25_f32.to_le_bytes()), [1.25]);
}

/// Two blocks of each encoding, with random bits, as the package gguf 0.19 decodes them.
#[test]
fn blocks_decode_as_others_decode_them() {
    #[derive(serde::Deserialize)]
    struct Block {
        bytes: String,
        values: String,
    }
    let bytes = |hex: &str| -> Vec<u8> {
        let pairs = hex.as_bytes().as_chunks::<2>().0.iter();
        let byte = |pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
        pairs.map(|pair| byte(pair)).collect()
    };
    let text = include_str!("../../tests/golden/quants.json");
    let blocks: std::collections::BTreeMap<u32, Block> = serde_json::from_str(text).unwrap();
    assert_eq!(blocks.len(), 10);
    for (kind, block) in blocks {
        let encoding = Encoding::from_ggml(kind).unwrap();
        let decoded = encoding.decode(&bytes(&block.bytes));
        assert_eq!(decoded.len(), 2 * encoding.block_elements());
        let right = Encoding::F32.decode(&bytes(&block.values));
        let scale = right
            .iter()
            .fold(0.0_f32, |most, value| most.max(value.abs()));
        for (at, (found, right)) in decoded.iter().zip(&right).enumerate() {
            let off = (found - right).abs();
            assert!(off <= 1e-6 * scale, "{encoding:?} {at}: {found} {right}");
        }
    }
    for (kind, name) in [
        (15, "Q8_K"),
        (18, "IQ3_XXS"),
        (23, "IQ4_XS"),
        (99, "number 99"),
    ] {
        assert!(Encoding::from_ggml(kind).unwrap_err().contains(name));
    }
}

#[test]
fn metadata_of_every_kind_is_read() {
    let mut writer = Writer::default();
    writer.value("u8", 0, &[255]);
    writer.value("i8", 1, &[255]);
    writer.value("i64", 11, &(-5_i64).to_le_bytes());
    writer.value("u64", 10, &u64::MAX.to_le_bytes());
    writer.value("f64", 12, &0.1_f64.to_le_bytes());
    writer.value("bool", 7, &[1]);
    let array = [
        &8_u32.to_le_bytes()[..],
        &2_u64.to_le_bytes(),
        &text("a"),
        &text("b"),
    ]
    .concat();
    writer.value("texts", 9, &array);
    let gguf = open(&writer.bytes()).unwrap();
    assert_eq!(gguf.integer("u8"), Some(255));
    assert_eq!(gguf.integer("i8"), Some(-1));
    assert_eq!(gguf.integer("i64"), Some(-5));
    assert_eq!(gguf.metadata()["u64"], GgufValue::Integer(u64::MAX.into()));
    assert_eq!(gguf.float("f64"), Some(0.1));
    assert_eq!(gguf.metadata()["bool"], GgufValue::Bool(true));
    assert_eq!(gguf.strings("texts"), Some(vec!["a", "b"]));
    assert_eq!(gguf.strings("bool"), None);
}

#[test]
fn damaged_files_are_refused_with_a_reason() {
    let check = |writer: &Writer, expected: &str| {
        let error = open(&writer.bytes()).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    };
    let mut writer = Writer::default();
    let array = [&9_u32.to_le_bytes()[..], &1_u64.to_le_bytes()].concat();
    writer.value("deep", 9, &array.repeat(5));
    check(&writer, "value of kind 9");
    let mut writer = Writer::default();
    writer.value(
        "many",
        9,
        &[&0_u32.to_le_bytes()[..], &100_u64.to_le_bytes()].concat(),
    );
    check(&writer, "do not fit");
    let mut writer = Writer::default();
    writer.value("long", 8, &u64::MAX.to_le_bytes());
    check(&writer, "do not fit");
    let mut writer = Writer::default();
    writer.integer("twice", 1);
    writer.integer("twice", 2);
    check(&writer, "occurs twice");
    let mut writer = Writer::default();
    writer.tensor("huge", &[1 << 40, 1 << 40], 0, &[]);
    check(&writer, "too large");
    let mut writer = Writer::default();
    writer.tensor("cut", &[64], 0, &[0; 32]);
    check(&writer, "tensor `cut` reaches beyond the end");
    let mut writer = Writer::default();
    writer.tensor("odd", &[33], 3, &[0; 40]);
    check(&writer, "end inside a block");
    let mut writer = Writer::default();
    writer.tensor("new", &[32], 99, &[0; 40]);
    check(
        &writer,
        "encoding number 99 of ggml of tensor `new` is not supported",
    );
    assert!(
        open(b"")
            .unwrap_err()
            .to_string()
            .contains("fetch or copy it again")
    );
    assert!(
        open(b"GGUF\x01\0\0\0")
            .unwrap_err()
            .to_string()
            .contains("version 1")
    );

    let mut without = tiny();
    without.tensors.pop();
    let error = load_gguf(&open(&without.bytes()).unwrap()).unwrap_err();
    assert!(
        error.to_string().contains("`model.norm.weight` is missing"),
        "{error}"
    );
    let mut narrow = tiny();
    narrow
        .values
        .retain(|value| !value.starts_with(&text("llama.feed_forward_length")));
    narrow.integer("llama.feed_forward_length", 13);
    let error = load_gguf(&open(&narrow.bytes()).unwrap()).unwrap_err();
    assert!(matches!(error, LoadError::Shape { .. }), "{error}");
}

proptest! {
    #[test]
    fn a_cut_or_changed_file_never_panics(
        cut: prop::sample::Index, at: prop::sample::Index, byte: u8,
    ) {
        let bytes = tiny().bytes();
        let length = cut.index(bytes.len());
        prop_assert!(open(&bytes[..length]).is_err());
        let mut changed = bytes;
        let at = at.index(changed.len());
        changed[at] = byte;
        if let Ok(gguf) = open(&changed) {
            let _ = load_gguf(&gguf);
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic(tail in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = open(&[b"GGUF\x03\0\0\0", &tail[..]].concat());
    }

    #[test]
    fn a_checkpoint_comes_back_as_it_was(seed: u64) {
        let directory = tempfile::tempdir().unwrap();
        let target = directory.path().join("step-1");
        let mut model = load_gguf(&open(&tiny().bytes()).unwrap()).unwrap();
        for tensor in model.tensors.values_mut() {
            for value in &mut tensor.values {
                *value = (*value + seed as f32).sin();
            }
        }
        save(&target, &model.view(), StoredType::F32, None).unwrap();
        prop_assert_eq!(&architecture_of(load_directory(&target).unwrap()), &model);
    }
}

/// A model without the text of its configuration.
fn architecture_of(mut model: LoadedModel) -> LoadedModel {
    model.fields.config = None;
    model
}

fn saved(stored_type: StoredType) -> (tempfile::TempDir, PathBuf, LoadedModel) {
    let directory = tempfile::tempdir().unwrap();
    let target = directory.path().join("checkpoint");
    let model = load_gguf(&open(&tiny().bytes()).unwrap()).unwrap();
    save(
        &target,
        &model.view(),
        stored_type,
        Some(&Tokenizer::arithmetic()),
    )
    .unwrap();
    (directory, target, model)
}

#[test]
fn bf16_keeps_eight_bits_of_precision() {
    let (_directory, target, model) = saved(StoredType::Bf16);
    let loaded = load_directory(&target).unwrap();
    let loaded = architecture_of(loaded);
    assert_eq!(loaded.fields, model.fields);
    for (name, tensor) in &model.tensors {
        for (a, b) in tensor.values.iter().zip(&loaded.tensors[name].values) {
            assert!((a - b).abs() <= a.abs() / 256.0, "{name}: {a} {b}");
        }
    }
    let size = |target: &Path| {
        fs::metadata(target.join("model.safetensors"))
            .unwrap()
            .len()
    };
    let (_directory, exact, _) = saved(StoredType::F32);
    let saving = size(&exact) - size(&target);
    assert!(
        saving.abs_diff(2 * model.parameters() as u64) < 32,
        "{saving}"
    );
}

#[test]
fn a_checkpoint_holds_its_tokenizer_and_nothing_partial_remains() {
    let (directory, target, _) = saved(StoredType::F32);
    let tokenizer = Tokenizer::from_directory(&target).unwrap();
    assert_eq!(tokenizer.spec(), Tokenizer::arithmetic().spec());
    let names: Vec<_> = fs::read_dir(directory.path())
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    assert_eq!(names, ["checkpoint"]);
}

#[test]
fn a_checkpoint_is_never_overwritten() {
    let (directory, target, mut model) = saved(StoredType::F32);
    let error = save(&target, &model.view(), StoredType::F32, None).unwrap_err();
    assert!(matches!(error, SaveError::Exists { .. }), "{error}");
    model
        .tensors
        .get_mut("model.norm.weight")
        .unwrap()
        .values
        .pop();
    let error = save(
        &directory.path().join("other"),
        &model.view(),
        StoredType::F32,
        None,
    )
    .unwrap_err();
    assert!(matches!(error, SaveError::Shape { .. }), "{error}");
    assert!(load_directory(&target).is_ok());
}

/// SEMANTICS 35.
#[test]
fn damage_to_a_checkpoint_names_the_file() {
    let edit = |name: &str, change: fn(&Path)| {
        let (_directory, target, _) = saved(StoredType::F32);
        change(&target.join(name));
        load_directory(&target).unwrap_err().to_string()
    };
    let cut = |path: &Path| {
        let bytes = fs::read(path).unwrap();
        fs::write(path, &bytes[..bytes.len() - 1]).unwrap();
    };
    for name in ["model.safetensors", "config.json", "characters.txt"] {
        let error = edit(name, cut);
        assert!(
            error.contains(name) && error.contains("is recorded"),
            "{error}"
        );
    }
    assert!(edit("model.safetensors", |p| fs::remove_file(p).unwrap()).contains("cannot read"));

    // Without checksums, the format itself shows the damage.
    let (_directory, target, _) = saved(StoredType::F32);
    fs::remove_file(target.join("SHA256SUMS")).unwrap();
    assert!(load_directory(&target).is_ok());
    cut(&target.join("model.safetensors"));
    let error = load_directory(&target).unwrap_err();
    assert!(matches!(error, LoadError::Damaged { .. }), "{error}");
}

#[test]
fn shards_are_joined_and_may_not_lead_out_of_the_directory() {
    let (_directory, target, model) = saved(StoredType::F32);
    fs::remove_file(target.join("SHA256SUMS")).unwrap();
    fs::rename(
        target.join("model.safetensors"),
        target.join("a.safetensors"),
    )
    .unwrap();
    let index = |shard: &str| {
        let text = format!(r#"{{"weight_map": {{"model.norm.weight": "{shard}"}}}}"#);
        fs::write(target.join("model.safetensors.index.json"), text).unwrap();
        load_directory(&target)
    };
    assert_eq!(architecture_of(index("a.safetensors").unwrap()), model);
    assert!(matches!(
        index("../a.safetensors").unwrap_err(),
        LoadError::Damaged { .. }
    ));
    assert!(matches!(
        index("b.safetensors").unwrap_err(),
        LoadError::Read { .. }
    ));
}

#[test]
fn configurations_of_both_generations_are_read() {
    let base = r#""model_type": "qwen2", "vocab_size": 10, "hidden_size": 8,
        "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16,
        "num_key_value_heads": null, "max_position_embeddings": 32"#;
    let read = |extra: &str| {
        let json = serde_json::from_str(&format!("{{{base}{extra}}}")).unwrap();
        let fields = ModelFields::from_config(&json)?;
        Ok::<_, String>(ModelFields {
            config: None,
            ..fields
        })
    };
    let old = read(r#", "rope_theta": 1000000.0"#).unwrap();
    let new = read(r#", "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}"#).unwrap();
    assert_eq!(old, new);
    assert_eq!((old.kv_heads, old.head_width, old.tied), (2, 4, false));
    let names: Vec<String> = old
        .tensor_shapes()
        .into_iter()
        .map(|(name, _)| name)
        .collect();
    assert!(names.contains(&"model.layers.0.self_attn.k_proj.bias".into()));
    assert!(names.contains(&"lm_head.weight".into()));
    for refused in [
        r#", "rope_scaling": {"rope_type": "ntk"}"#,
        r#", "rope_scaling": {"rope_type": "linear"}"#,
        r#", "rope_scaling": {"rope_type": "linear", "factor": "4"}"#,
        r#", "rope_scaling": {"rope_type": "linear", "factor": 0}"#,
        r#", "rope_scaling": {"rope_type": "longrope", "short_factor": [1], "long_factor": [1]}"#,
        r#", "rope_scaling": {"rope_type": "default", "partial_rotary_factor": 0.5}"#,
        r#", "partial_rotary_factor": 0.5"#,
        r#", "mlp_bias": true, "model_type": "mistral""#,
        r#", "quantization_config": {"quant_method": "fp8"}"#,
        r#", "architectures": ["Qwen2ForTokenClassification"]"#,
        r#", "use_sliding_window": true, "sliding_window": "8""#,
        r#", "hidden_act": "gelu""#,
        r#", "num_key_value_heads": 3"#,
        r#", "head_dim": 7"#,
    ] {
        assert!(read(refused).is_err(), "{refused}");
    }
}

#[test]
fn layers_with_a_window_are_those_that_transformers_gives_one() {
    let read = |family: &str, extra: &str| {
        let text = format!(
            r#"{{"model_type": "{family}", "vocab_size": 10, "hidden_size": 8,
            "num_hidden_layers": 4, "num_attention_heads": 2, "num_key_value_heads": 2,
            "head_dim": 4, "intermediate_size": 16, "max_position_embeddings": 32,
            "rms_norm_eps": 1e-6, "rope_theta": 1e4, "num_local_experts": 2,
            "num_experts_per_tok": 1{extra}}}"#
        );
        let fields = ModelFields::from_config(&serde_json::from_str(&text).unwrap())?;
        let window = fields.window.map(|it| (it.tokens.get(), it.from_layer));
        let again = fields.to_config(Some("float32"), None);
        assert_eq!(
            ModelFields::from_config(&again).unwrap().window,
            fields.window
        );
        let fresh = ModelFields {
            config: None,
            ..fields
        };
        let again = ModelFields::from_config(&fresh.to_config(Some("float32"), None)).unwrap();
        assert_eq!(again.model_config(), fresh.model_config(), "{text}");
        Ok::<_, String>(window)
    };
    let used = r#", "use_sliding_window": true"#;
    for (family, extra, window) in [
        ("llama", r#", "sliding_window": 8"#.to_owned(), None),
        ("mistral", String::new(), Some((4_096, 0))),
        ("mistral", r#", "sliding_window": null"#.into(), None),
        ("mixtral", String::new(), None),
        ("mixtral", r#", "sliding_window": 16"#.into(), Some((16, 0))),
        ("qwen2", r#", "sliding_window": 8"#.into(), None),
        (
            "qwen2",
            format!(r#"{used}, "sliding_window": 8, "max_window_layers": 1"#),
            Some((8, 1)),
        ),
        ("qwen2", used.into(), None),
        (
            "qwen3",
            format!(r#"{used}, "sliding_window": 8, "max_window_layers": 0"#),
            Some((8, 0)),
        ),
        (
            "qwen3",
            format!(
                r#"{used}, "sliding_window": 8, "layer_types":
                ["full_attention", "full_attention", "sliding_attention", "sliding_attention"]"#
            ),
            Some((8, 2)),
        ),
    ] {
        assert_eq!(read(family, &extra), Ok(window), "{family}{extra}");
    }
    let error = read(
        "qwen2",
        &format!(
            r#"{used}, "sliding_window": 8, "layer_types":
            ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]"#
        ),
    );
    assert_eq!(error, Err("`layer_types` that go to and fro".to_owned()));
}

#[test]
fn a_mixture_is_read_and_what_it_cannot_do_is_refused_by_name() {
    use crate::model::{LayerBlock, Moe};

    let base = r#""model_type": "mixtral", "vocab_size": 10, "hidden_size": 8,
        "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16,
        "max_position_embeddings": 32, "num_local_experts": 4"#;
    let told = r#", "num_key_value_heads": 2, "rms_norm_eps": 1e-5, "rope_theta": 1e6"#;
    let read_whole = |text: &str| {
        let json = serde_json::from_str(&format!("{{{text}}}")).unwrap();
        ModelFields::from_config(&json)
    };
    let read = |extra: &str| read_whole(&format!("{base}{told}{extra}"));
    for key in ["num_key_value_heads", "rms_norm_eps", "rope_theta"] {
        let left_out = told.replace(key, "other");
        let error = read_whole(&format!("{base}{left_out}")).unwrap_err();
        assert_eq!(error, format!("configuration without `{key}`"));
    }
    // Sizes are bounded before any tensor is seen.
    let vast = format!("{base}{told}, \"num_experts_per_tok\": 2")
        .replace("\"num_hidden_layers\": 1", "\"num_hidden_layers\": 4096")
        .replace("\"num_local_experts\": 4", "\"num_local_experts\": 1024");
    let error = read_whole(&vast).unwrap_err();
    assert!(error.starts_with("4096 layers of "), "{error}");
    // Of training alone, and not used.
    let fields = read(
        r#", "num_experts_per_tok": 3, "sliding_window": null, "router_jitter_noise": 0.1,
            "output_router_logits": true, "router_aux_loss_coef": 0.02"#,
    )
    .unwrap();
    let experts = Moe {
        experts: 4,
        experts_per_token: 3,
    };
    assert_eq!(fields.block, LayerBlock::Moe(experts));
    assert_eq!(fields.family, Family::Llama);
    for (extra, why) in [
        ("", "configuration without `num_experts_per_tok`"),
        (
            r#", "num_experts_per_tok": "2""#,
            "`num_experts_per_tok` of \"2\"",
        ),
        (
            r#", "num_experts_per_tok": null"#,
            "configuration without `num_experts_per_tok`",
        ),
        (r#", "num_experts_per_tok": 0"#, "moe.experts_per_token"),
        (r#", "num_experts_per_tok": 5"#, "moe.experts_per_token"),
        (
            r#", "num_experts_per_tok": 2, "attention_bias": true"#,
            "`attention_bias`",
        ),
        (
            r#", "num_experts_per_tok": 2, "hidden_act": "gelu""#,
            "activation \"gelu\"",
        ),
        (
            r#", "num_experts_per_tok": 2, "num_key_value_heads": "2""#,
            "`num_key_value_heads` of \"2\"",
        ),
        (
            r#", "num_experts_per_tok": 2, "rope_theta": null"#,
            "`rope_theta` of null",
        ),
        (
            r#", "num_experts_per_tok": 2, "rms_norm_eps": "1e-5""#,
            "`rms_norm_eps` of \"1e-5\"",
        ),
        (
            r#", "num_experts_per_tok": 2, "tie_word_embeddings": "true""#,
            "`tie_word_embeddings` of \"true\"",
        ),
        (
            r#", "num_experts_per_tok": 2, "hidden_act": 7"#,
            "activation 7",
        ),
        (
            r#", "num_experts_per_tok": 2, "num_local_experts": 2000"#,
            "moe.experts: expected a whole number from 1 to 1024, found 2000",
        ),
    ] {
        let error = read(extra).unwrap_err();
        assert!(error.contains(why), "{extra}: {error}");
    }

    let mut gguf = tiny();
    gguf.integer("llama.expert_count", 8);
    let error = load_gguf(&open(&gguf.bytes()).unwrap()).unwrap_err();
    let why = "a mixture of 8 experts (`llama.expert_count`) in a GGUF file is not supported";
    assert!(error.to_string().contains(why), "{error}");
}

#[test]
fn a_model_survives_its_checkpoint() {
    use crate::model::{LayerBlock, Model, ModelConfig, Moe};
    use odeon_gpu::Cpu;

    let dense = LayerBlock::default();
    let experts = LayerBlock::Moe(Moe {
        experts: 3,
        experts_per_token: 2,
    });
    for (qkv_bias, tied_head, value_head, block) in [
        (false, true, true, dense),
        (true, false, false, dense),
        (false, false, true, experts),
    ] {
        let config = ModelConfig {
            vocab: 32,
            dim: 16,
            layers: 2,
            heads: 4,
            kv_heads: 2,
            head_dim: 4,
            ffn: 24,
            qkv_bias,
            tied_head,
            value_head,
            block,
            ..ModelConfig::default()
        };
        let model = Model::init(Cpu::new(1), config, 7).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let target = directory.path().join("step-1");
        save(
            &target,
            &ModelView::of(&model, model.flat(), ModelFields::of(model.config(), 64)),
            StoredType::F32,
            None,
        )
        .unwrap();
        let again = load_directory(&target)
            .unwrap()
            .into_model(Cpu::new(1))
            .unwrap();
        assert_eq!(again.config(), model.config());
        assert_eq!(again.flat(), model.flat());
    }
}

/// Saves models that differ in their numbers, each in its type.
fn variants(folder: &Path, types: &[StoredType], seed: u64) -> Vec<(PathBuf, LoadedModel)> {
    let variant = |(number, stored_type): (usize, &StoredType)| {
        let mut model = load_gguf(&open(&tiny().bytes()).unwrap()).unwrap();
        let mut at = seed as f32 + number as f32;
        for value in model.tensors.values_mut().flat_map(|it| &mut it.values) {
            at += 0.7;
            *value = at.sin();
        }
        let path = folder.join(format!("part-{number}"));
        let tokenizer = Tokenizer::arithmetic();
        save(&path, &model.view(), *stored_type, Some(&tokenizer)).unwrap();
        let stored = load_directory(&path).unwrap();
        (path, stored)
    };
    types.iter().enumerate().map(variant).collect()
}

fn parts(models: &[(PathBuf, LoadedModel)], weights: &[f64]) -> Vec<Part> {
    let pairs = models.iter().zip(weights);
    let part = |((directory, _), weight): (&(PathBuf, _), &f64)| Part {
        directory: directory.clone(),
        origin: directory.clone(),
        weight: *weight,
    };
    pairs.map(part).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// The weighted sum, to the bit, whatever the types of the parts and the number of threads.
    #[test]
    fn a_merged_model_is_the_weighted_sum_of_its_parts(
        types in prop::collection::vec(prop::sample::select(vec![StoredType::F32, StoredType::Bf16]), 2..5),
        shares in prop::collection::vec(-1.0f64..2.0, 4),
        threads in 1usize..5,
        seed in 0u64..1000,
    ) {
        let folder = tempfile::tempdir().unwrap();
        let models = variants(folder.path(), &types, seed);
        let mut weights = shares[..models.len()].to_vec();
        weights[0] = 1.0 - weights[1..].iter().sum::<f64>();
        let target = folder.path().join("merged");
        let merged = merge(&parts(&models, &weights), &target, Some(StoredType::F32), threads).unwrap();
        let found = load_directory(&target).unwrap();
        prop_assert_eq!(merged.parameters, found.parameters());
        for (name, tensor) in &found.tensors {
            for (at, value) in tensor.values.iter().enumerate() {
                let pairs = models.iter().zip(&weights);
                let sum = pairs.fold(0.0f32, |sum, ((_, model), weight)| {
                    sum + *weight as f32 * model.tensors[name].values[at]
                });
                prop_assert_eq!(value.to_bits(), sum.to_bits(), "{}[{}]", name, at);
            }
        }
    }
}

/// Balanced Actor Initialization in one pass is the merge of the fine-tuned models merged with the base.
#[test]
fn two_stages_are_one_sum() {
    let folder = tempfile::tempdir().unwrap();
    let models = variants(folder.path(), &[StoredType::F32; 3], 1);
    let at = |name: &str| folder.path().join(name);
    merge(&parts(&models[..2], &[0.5, 0.5]), &at("sft"), None, 2).unwrap();
    let sft = (at("sft"), load_directory(&at("sft")).unwrap());
    let staged = [sft, models[2].clone()];
    merge(&parts(&staged, &[0.9, 0.1]), &at("two"), None, 2).unwrap();
    merge(&parts(&models, &[0.45, 0.45, 0.1]), &at("one"), None, 2).unwrap();
    let [one, two] = ["one", "two"].map(|name| load_directory(&at(name)).unwrap());
    for (name, tensor) in &one.tensors {
        for (a, b) in tensor.values.iter().zip(&two.tensors[name].values) {
            assert!((a - b).abs() < 1e-6, "{name}: {a} {b}");
        }
    }
}

#[test]
fn a_merged_model_says_what_it_is_made_of_and_has_the_tokenizer_of_the_first() {
    let folder = tempfile::tempdir().unwrap();
    let models = variants(folder.path(), &[StoredType::Bf16, StoredType::F32], 2);
    let target = folder.path().join("merged");
    merge(&parts(&models, &[0.25, 0.75]), &target, None, 1).unwrap();
    let tokenizer = Tokenizer::from_directory(&target).unwrap();
    assert_eq!(tokenizer.spec(), Tokenizer::arithmetic().spec());
    let text = fs::read_to_string(target.join(PROVENANCE)).unwrap();
    let told: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(told["parts"][1]["weight"], 0.75);
    let sums = fs::read_to_string(models[1].0.join("SHA256SUMS")).unwrap();
    let own = told["parts"][1]["sha256"]["model.safetensors"]
        .as_str()
        .unwrap();
    assert!(sums.contains(own), "{sums} {own}");
    let config = fs::read_to_string(target.join("config.json")).unwrap();
    assert!(config.contains("bfloat16"), "stored as the first: {config}");
}

#[test]
fn what_cannot_be_merged_is_refused_and_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let models = variants(folder.path(), &[StoredType::F32; 2], 3);
    let target = folder.path().join("merged");
    let refused = |parts: &[Part]| {
        let error = merge(parts, &target, None, 1).unwrap_err();
        assert!(!target.exists(), "{error}");
        error.to_string()
    };
    assert!(refused(&parts(&models[..1], &[1.0])).contains("two models at least"));
    let error = refused(&parts(&models, &[0.5, 0.6]));
    assert!(error.contains("add up to 1.1, not to 1"), "{error}");
    assert!(refused(&parts(&models, &[f64::NAN, 0.5])).contains("not to 1"));
    // Another shape: one more row of the vocabulary.
    let mut grown = models[1].1.clone();
    grown.fields.vocabulary += 1;
    let width = grown.fields.hidden;
    for name in ["model.embed_tokens.weight", "lm_head.weight"] {
        if let Some(tensor) = grown.tensors.get_mut(name) {
            tensor.shape[0] += 1;
            tensor.values.extend(vec![0.0; width]);
        }
    }
    let path = folder.path().join("grown");
    save(&path, &grown.view(), StoredType::F32, None).unwrap();
    let with_grown = [models[0].clone(), (path.clone(), grown)];
    let error = refused(&parts(&with_grown, &[0.5, 0.5]));
    assert!(
        error.contains("grown") && error.contains("of shape"),
        "{error}"
    );
    // The same shapes, other arithmetic.
    let config = models[1].0.join("config.json");
    let text = fs::read_to_string(&config).unwrap();
    fs::write(
        &config,
        text.replace("\"rope_theta\": ", "\"rope_theta\": 9"),
    )
    .unwrap();
    assert!(refused(&parts(&models, &[0.5, 0.5])).contains("is recorded"));
    fs::remove_file(models[1].0.join("SHA256SUMS")).unwrap();
    let error = refused(&parts(&models, &[0.5, 0.5]));
    assert!(
        error.contains("config.json, in what the layers compute, differs"),
        "{error}"
    );
    fs::create_dir(&target).unwrap();
    let error = merge(&parts(&models, &[0.5, 0.5]), &target, None, 1).unwrap_err();
    assert!(
        matches!(error, MergeError::Save(SaveError::Exists { .. })),
        "{error}"
    );
}
