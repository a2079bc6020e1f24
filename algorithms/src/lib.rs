//! Models, objectives and tasks: pure numerics and decisions.
//!
//! # Files
//!
//! | file | holds |
//! | --- | --- |
//! | `model`, `model/*` | decoder-only transformers over the fused operations; `model/block` is the feed-forward part of a layer, dense or of experts, each in a file (`block/*`); `model/vision` encodes pictures as a pass of its own, `model/arithmetic` counts what a batch costs; shards come to a pass (`model/sharded`) by moves in one order (`model/shard_moves`), and parts are made tensor by tensor (`model/first`) |
//! | `train`, `train/*` | gradients over packed batches, applied with an optimiser, each in a file (`optimizer/*`); learning rates over time (`schedule`); a step as a list of operations, and what carries them out (`step`); a trainer as bytes, for checkpoints (`state`) |
//! | `generate`, `generate/*` | sampling with continuous batching; `blocks` of keys and values that sequences share, and `slots`: who gets rows and who waits for blocks, both pure |
//! | `objective`, `objective/*` | losses with their gradients: of the `policy`, by one of the surrogates (`surrogate/*`, each in a file), of the critic (`value`), over pairs of replies (`preference`), and their sum over a step (`reduction`); advantages (`advantage`), rewards as training sees them (`shaping`), the distance from a reference (`divergence`). Pure |
//! | `setting` | how recipes choose an optimiser or a surrogate, and the values that settings may have |
//! | `task`, `task/*` | problems with exact checkers: a `task/source` gives each `task/problem` and its `task/verdict`; `task/maths` compares mathematics by normal forms, `task/code` has programs run against tests |
//! | `json`, `json/ordered` | JSON as programs write it that do not keep to it; JSON whose objects keep the order of their fields. Pure |
//! | `lfs` | pointers of Git LFS in place of files. Pure |
//! | `environment` | turns in which a reply calls a tool. Pure |
//! | `tokenizer`, `tokenizer/*` | text to token ids and back: by byte (`bytes`), by character (`chars`), by subwords (`subword`; what a folder's files say together in `subword/folder`, a GGUF file as such files in `subword/from_gguf`; `subword/words` looks up words that were met before); a conversation as one text (`chat`) |
//! | `weights`, `weights/*` | model files: GGUF (`gguf`, with the models in it in `gguf_model` and the encodings of tensors in `quantised`) and Hugging Face directories (`folder`, with their `config.json` in `fields`; written by `safetensors`; names of tensors in `names`, those of GPT-2 in `gpt2`), both read as parameters by name (`loaded`), of which models are made (`model`); the weighted sum of several models (`merge`) |
//! | `fetch` | published models and data sets, pinned by checksum |
//! | `parallel`, `parallel/*` | how a model is cut over ranks, and the copies from one layout to another. Tensors and how each may be cut (`spec`, `llama`), ranks (`layout`, `grouping`), the parts that a rank has (`shard`) as boxes (`region`) in a buffer (`window`); from training to generation (`reshard`), from anything to anything (`between`), copy by copy (`transfer`). Pure |
//! | `balance`, `balance/*` | items of known cost into bins, so that the largest is small: the longest first (`greedy`), or by differences (`differencing`). Pure |
//! | `cost`, `cost/*` | how long engines take on cards that are not here: a `card`, the shape of a model (`model_size`) and the part of it on one card (`shard`); what generates (`replica`), trains (`trainer`) and carries weights (`transfer`). Operations of a `config.json` by family (`flops`, with its `fields` and `families`). Steps at the size of papers (`training`): the `layer` of a `model` on a `machine` by a system's `techniques`, a `plan`, its `step` by the replay of a pipeline or layer by layer (`sharded`), groups at the start (`start_up`), and what papers tell (`published`). Pure |
//! | `workload`, `workload/*` | how long the work of engines is, for simulation, from one distribution (`heavy_tail`). Pure |

pub mod balance;
pub mod cost;
pub mod environment;
pub mod fetch;
pub mod generate;
pub mod json;
mod lfs;
pub mod model;
pub mod objective;
pub mod parallel;
pub mod setting;
pub mod task;
pub mod tokenizer;
pub mod train;
pub mod weights;
pub mod workload;
