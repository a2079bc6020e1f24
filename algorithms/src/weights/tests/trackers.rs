//! Model files that went wrong for users of other libraries, each with the address where that was told.

use std::fs;
use std::path::Path;

use super::*;
use crate::weights::ModelFolder;

const POINTER: &str = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n";

/// The tensors of a file again under other names.
fn renamed(file: &Path, change: impl Fn(&str) -> String) {
    let bytes = fs::read(file).unwrap();
    let parsed = ::safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let all = parsed.tensors().into_iter();
    let all: Vec<_> = all.map(|(name, view)| (change(&name), view)).collect();
    let written = ::safetensors::serialize(all, None).unwrap();
    fs::write(file, written).unwrap();
    fs::remove_file(file.with_file_name("SHA256SUMS")).unwrap();
}

/// <https://github.com/deepseek-ai/DeepSeek-V3/issues/557>,
/// <https://github.com/huggingface/transformers/issues/27923>
#[test]
fn a_pointer_of_git_lfs_is_told_as_such() {
    for name in ["model.safetensors", "config.json"] {
        let (_directory, target, _) = saved(StoredType::F32);
        fs::remove_file(target.join("SHA256SUMS")).unwrap();
        fs::write(target.join(name), POINTER).unwrap();
        let error = ModelFolder::open(&target).err().unwrap().to_string();
        assert!(
            error.contains("git lfs pull") && error.contains(name),
            "{error}"
        );
    }
    let error = open(POINTER.as_bytes()).unwrap_err().to_string();
    assert!(error.contains("git lfs pull"), "{error}");
}

/// <https://github.com/karpathy/nanoGPT/issues/325>, <https://github.com/jingyaogong/minimind/pull/594>
#[test]
fn names_that_a_wrapper_of_training_wrote_are_read_and_told() {
    for wrapper in [
        "_orig_mod.",
        "module.",
        "module._orig_mod.",
        "base_model.model.",
        "_fsdp_wrapped_module.",
    ] {
        let (_directory, target, model) = saved(StoredType::F32);
        renamed(&target.join("model.safetensors"), |name| {
            format!("{wrapper}{name}")
        });
        let folder = ModelFolder::open(&target).unwrap();
        assert!(
            folder.notes()[0].contains("wrapper of training"),
            "{:?}",
            folder.notes()
        );
        assert_eq!(folder.load().unwrap().tensors, model.tensors, "{wrapper}");
    }
}

/// <https://github.com/huggingface/peft/issues/1381>
#[test]
fn an_adapter_beside_weights_is_told() {
    let (_directory, target, _) = saved(StoredType::F32);
    fs::write(target.join("adapter_config.json"), "{}").unwrap();
    let folder = ModelFolder::open(&target).unwrap();
    assert!(
        folder.notes()[0].contains("the adapter is not applied"),
        "{:?}",
        folder.notes()
    );
}

/// <https://github.com/shuaijiang/Ke-Omni-R/issues/4>
#[test]
fn shards_without_their_index_are_taken_by_their_numbers() {
    let (_directory, target, model) = saved(StoredType::F32);
    fs::remove_file(target.join("SHA256SUMS")).unwrap();
    let one = target.join("model-00001-of-00001.safetensors");
    fs::rename(target.join("model.safetensors"), &one).unwrap();
    let folder = ModelFolder::open(&target).unwrap();
    assert!(folder.notes()[0].contains("shards are taken by their numbers"));
    assert_eq!(folder.load().unwrap().tensors, model.tensors);
    fs::rename(&one, target.join("model-00001-of-00002.safetensors")).unwrap();
    let error = ModelFolder::open(&target).err().unwrap().to_string();
    assert!(
        error.contains("model-00002-of-00002.safetensors"),
        "{error}"
    );
}

/// <https://github.com/ai-dynamo/dynamo/pull/3043>,
/// <https://github.com/huggingface/transformers/pull/42959>
#[test]
fn numbers_that_are_none_in_a_configuration_are_passed_over() {
    let (_directory, target, model) = saved(StoredType::F32);
    fs::remove_file(target.join("SHA256SUMS")).unwrap();
    let path = target.join("config.json");
    let config = fs::read_to_string(&path).unwrap();
    let config = config.replacen('{', "{\"longest\": Infinity, \"rate\": NaN,", 1);
    fs::write(&path, config).unwrap();
    let loaded = load_directory(&target).unwrap();
    assert_eq!(loaded.tensors, model.tensors);
}

/// <https://github.com/huggingface/transformers/pull/45953>
#[test]
fn a_model_with_more_than_text_is_named_as_such() {
    let (_directory, target, _) = saved(StoredType::F32);
    fs::remove_file(target.join("SHA256SUMS")).unwrap();
    let path = target.join("config.json");
    let config = fs::read_to_string(&path).unwrap();
    let config = config.replacen('{', "{\"text_config\": {\"hidden_size\": 8},", 1);
    fs::write(&path, config).unwrap();
    let error = load_directory(&target).unwrap_err().to_string();
    assert!(error.contains("a model with more than text"), "{error}");
}

/// <https://github.com/ggml-org/llama.cpp/pull/13943>, <https://github.com/paiml/aprender/issues/310>,
/// <https://github.com/containers/ramalama/issues/1663>, <https://github.com/ggml-org/llama.cpp/issues/3917>
#[test]
fn gguf_files_of_other_kinds_say_of_which() {
    let whole = tiny().bytes();
    let versioned = |version: [u8; 4]| {
        let mut bytes = whole.clone();
        bytes[4..8].copy_from_slice(&version);
        bytes
    };
    let read = |bytes: &[u8]| {
        load_gguf(&open(bytes).map_err(|error| error.to_string())?)
            .map_err(|error| error.to_string())
    };
    let third = read(&whole).unwrap();
    assert_eq!(
        read(&versioned(2_u32.to_le_bytes())).unwrap().tensors,
        third.tensors
    );
    for (bytes, why) in [
        (versioned(3_u32.to_be_bytes()), "gguf-convert-endian"),
        (versioned(1_u32.to_le_bytes()), "GGUF version 1"),
    ] {
        let error = read(&bytes).err().unwrap();
        assert!(error.contains(why), "{error}");
    }
    let mut adapter = tiny();
    adapter.value("general.type", 8, &text("adapter"));
    let error = read(&adapter.bytes()).err().unwrap();
    assert!(error.contains("kind `adapter`"), "{error}");
    let mut vocabulary = tiny();
    vocabulary.tensors.clear();
    let error = read(&vocabulary.bytes()).err().unwrap();
    assert!(error.contains("a vocabulary without weights"), "{error}");
}
