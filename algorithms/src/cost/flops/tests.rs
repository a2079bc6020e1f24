//! The published values of VeOmni, and the counts of steps beside them.

use odeon_gpu::Cpu;
use odeon_skip::{Need, skip};
use proptest::prelude::*;

use super::*;
use crate::model::{Batch, Gelu, LayerBlock, Model, ModelConfig, Moe, Sequence};

// Of ByteDance-Seed/VeOmni, Apache-2.0: `tests/toy_config/*/config.json`, the fields that count, and the values of
// `tests/utils/test_count_flops.py`.
const QWEN3_5: &str = r#"{ "model_type": "qwen3_5",
    "text_config": { "attn_output_gate": true, "full_attention_interval": 4, "head_dim": 256, "hidden_size": 5120,
        "intermediate_size": 17408, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128,
        "linear_num_key_heads": 16, "linear_num_value_heads": 48, "linear_value_head_dim": 128,
        "num_attention_heads": 24, "num_hidden_layers": 8, "num_key_value_heads": 4, "vocab_size": 248320 },
    "vision_config": { "deepstack_visual_indexes": [], "depth": 27, "hidden_size": 1152, "in_channels": 3,
        "intermediate_size": 4304, "num_heads": 16, "out_hidden_size": 5120, "patch_size": 16,
        "spatial_merge_size": 2, "temporal_patch_size": 2 } }"#;
const GPT_OSS: &str = r#"{ "model_type": "gpt_oss", "head_dim": 4, "hidden_size": 16, "intermediate_size": 16,
    "layer_types": ["sliding_attention", "full_attention"], "num_attention_heads": 4, "num_experts_per_tok": 2,
    "num_hidden_layers": 2, "num_key_value_heads": 2, "num_local_experts": 4, "sliding_window": 8,
    "vocab_size": 200000 }"#;
const DEEPSEEK_V4: &str = r#"{ "model_type": "deepseek_v4", "vocab_size": 1024, "hidden_size": 256,
    "moe_intermediate_size": 128, "num_hidden_layers": 4, "num_attention_heads": 8, "head_dim": 64,
    "q_lora_rank": 64, "num_experts_per_tok": 2, "n_routed_experts": 8, "n_shared_experts": 1,
    "compress_rates": { "compressed_sparse_attention": 4, "heavily_compressed_attention": 32 }, "hc_mult": 4,
    "sliding_window": 32, "o_groups": 2, "o_lora_rank": 64, "index_n_heads": 8, "index_head_dim": 128,
    "index_topk": 32 }"#;

#[track_caller]
fn counts(config: &str, lengths: &[u64], patches: &[u64], teraflops: f64, tolerance: f64) {
    let counted = ModelFlops::from_config(config).unwrap();
    let ours = counted.training(lengths, patches) / 1e12;
    assert!(
        (ours / teraflops - 1.0).abs() <= tolerance,
        "{ours} {teraflops}"
    );
}

#[test]
fn published_counts_are_met_to_nine_digits() {
    counts(QWEN3_5, &[1_024; 4], &[], 106.965220982784, 1e-9);
    counts(QWEN3_5, &[1_024; 4], &[256, 512], 109.196454395904, 1e-9);
    counts(GPT_OSS, &[12, 5], &[], 0.000326931456, 1e-9);
    counts(DEEPSEEK_V4, &[12, 5], &[], 0.000264658944, 1e-9);
}

#[test]
fn the_published_files_are_met_where_they_are_found() {
    let root = std::env::var("ODEON_ORACLES");
    let root = root.unwrap_or_else(|_| {
        concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/oracles").to_owned()
    });
    let folder = std::path::Path::new(&root).join("veomni");
    let golden = match std::fs::read_to_string(folder.join("flops_golden.csv")) {
        Ok(golden) => golden,
        Err(error) => return skip(Need::Oracles, error),
    };
    let numbers = |text: &str| -> Vec<u64> {
        text.split_whitespace()
            .map(|it| it.parse().unwrap())
            .collect()
    };
    for row in golden.lines().skip(1) {
        let cells: Vec<&str> = row.split(',').collect();
        let [config, lengths, patches, seconds, teraflops, tolerance] = cells[..] else {
            panic!("{row}");
        };
        let config = folder.join("toy_config").join(config).join("config.json");
        let config = std::fs::read_to_string(config).unwrap();
        let teraflops = teraflops.parse::<f64>().unwrap() * seconds.parse::<f64>().unwrap();
        counts(
            &config,
            &numbers(lengths),
            &numbers(patches),
            teraflops,
            tolerance.parse().unwrap(),
        );
    }
}

/// Steps of this project count the same weights; pairs as the mask leaves them, and the head for predicted tokens.
#[test]
fn steps_count_the_same_weights_and_the_pairs_that_the_mask_leaves() {
    let llama = ModelConfig {
        vocab: 10,
        dim: 8,
        layers: 2,
        heads: 2,
        kv_heads: 1,
        head_dim: 4,
        ffn: 6,
        ..ModelConfig::default()
    };
    let experts = Moe {
        experts: 5,
        experts_per_token: 2,
    };
    let mixtral = ModelConfig {
        block: LayerBlock::Moe(experts),
        ..llama.clone()
    };
    let gpt2 = ModelConfig {
        kv_heads: 2,
        ffn: 32,
        block: LayerBlock::Gelu(Gelu::default()),
        learned_positions: Some(16),
        layer_norms: true,
        qkv_bias: true,
        out_bias: true,
        mlp_bias: true,
        ..llama.clone()
    };
    let widths = r#""vocab_size": 10, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2,
        "num_key_value_heads": 1, "intermediate_size": 6"#;
    let configs = [
        format!(r#"{{ "model_type": "llama", {widths} }}"#),
        format!(
            r#"{{ "model_type": "mixtral", {widths}, "num_local_experts": 5, "num_experts_per_tok": 2 }}"#
        ),
        r#"{ "model_type": "gpt2", "vocab_size": 10, "n_embd": 8, "n_layer": 2, "n_head": 2 }"#
            .to_owned(),
    ];
    let sequence = |tokens, prompt| Sequence { tokens, prompt };
    let rows = [sequence(&[1, 2, 3, 4, 5][..], 1), sequence(&[1, 2, 3], 1)];
    let batch = Batch::pack(&rows).unwrap();
    // The last token of each is read by no pass.
    let (read, pairs) = (4.0 + 2.0, 10.0 + 3.0);
    for (config, json) in [llama, mixtral, gpt2].into_iter().zip(configs) {
        let counted = ModelFlops::from_config(&json).unwrap();
        let elements: f64 = counted.attention.iter().map(|it| it.elements).sum();
        let expected = 6.0 * (counted.weights + counted.head) * read + 12.0 * elements * pairs;
        let model = Model::init(Cpu::new(1), config, 1).unwrap();
        assert_eq!(model.training_flops(&batch), expected, "{json}");
    }
}

#[test]
fn a_configuration_that_cannot_be_counted_is_refused_by_name() {
    let told = |config: &str| ModelFlops::from_config(config).unwrap_err().to_string();
    assert!(told("[]").contains("no JSON object"), "{}", told("[]"));
    assert!(told("{").contains("no JSON object"), "{}", told("{"));
    let unknown = told(r#"{ "model_type": "mamba" }"#);
    assert!(
        unknown.contains("\"mamba\"") && unknown.contains("llama"),
        "{unknown}"
    );
    let without = GPT_OSS.replace("\"sliding_window\": 8,", "");
    assert_eq!(
        told(&without),
        "`sliding_window` of a gpt_oss model must be a number of tokens"
    );
    let wrong = GPT_OSS.replace("\"hidden_size\": 16", "\"hidden_size\": -1");
    assert_eq!(
        told(&wrong),
        "`hidden_size` of a gpt_oss model must be a whole number from 1 to 2^40"
    );
    let few = GPT_OSS.replace("\"sliding_attention\", ", "");
    assert_eq!(
        told(&few),
        "`layer_types` names 1 layers, and `num_hidden_layers` is 2: name each once"
    );
    let odd = GPT_OSS.replace("sliding_attention", "mamba");
    assert_eq!(
        told(&odd),
        "`layer_types` has \"mamba\", which is not counted in a gpt_oss model"
    );
}

proptest! {
    #[test]
    fn pairs_are_those_counted_one_by_one(length in 0u64..200, window in 1u64..64, block in 1u64..40, most in 1u64..9) {
        let sum = |of: &dyn Fn(u64) -> u64| (0..length).map(of).sum::<u64>() as f64;
        prop_assert_eq!(Pairs::All.of(length), (length * length) as f64);
        prop_assert_eq!(Pairs::Window(window).of(length), sum(&|it| (it + 1).min(window)));
        let blocks = Pairs::Blocks { block, most };
        prop_assert_eq!(blocks.of(length), sum(&|it| ((it + 1) / block).min(most)));
    }
}
