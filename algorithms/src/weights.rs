//! Model files: GGUF, and Hugging Face directories with safetensors.
//!
//! Both are read into the same [`LoadedModel`]: fields of the architecture, and tensors in `f32`
//! under Hugging Face's names for the Llama family (`model.embed_tokens.weight`,
//! `model.layers.N.self_attn.q_proj.weight`, ..., `model.norm.weight`, and `lm_head.weight` unless
//! tied), and of Mixtral (`model.layers.N.block_sparse_moe.gate.weight`,
//! `model.layers.N.block_sparse_moe.experts.E.w1.weight`, ...: transformers 5 joins them in memory,
//! and still stores them so). Files of GPT-2 have other names and the transposes of its matrices
//! ([`file_tensors`]). Matrices are `[out, in]`, row by row. Rotary embeddings are in the
//! half-split order: the interleaved rows of GGUF files are put back in order on loading.
//!
//! [`save`] writes a directory that both this module and Hugging Face's libraries read, all or
//! nothing, with a checksum for every file.

mod error;
mod fields;
mod folder;
pub(crate) mod gguf;
mod gguf_model;
mod gpt2;
mod loaded;
mod merge;
mod model;
mod names;
mod quantised;
mod safetensors;

pub use self::{
    error::{LoadError, SaveError},
    fields::{Family, ModelFields},
    folder::{ModelFolder, directory_fields, load_directory},
    gguf::{Gguf, GgufTensor, GgufValue},
    gguf_model::{gguf_fields, gguf_tensor, load_gguf},
    loaded::{LoadedModel, LoadedTensor, ModelView, TensorView},
    merge::{MergeError, Merged, PROVENANCE, Part, merge},
    model::{BuildError, FlatModel},
    names::{FileTensor, file_tensors},
    quantised::Encoding,
    safetensors::{StoredType, save, texts, verify},
};

pub(crate) use self::safetensors::sha256;

#[cfg(test)]
mod tests;
