"""Makes the golden files beside it with PyTorch and Hugging Face transformers: small models with
weights drawn at random, what they say of some text, the gradient of the mean cross-entropy, and the
losses of a few steps of AdamW.

usage: python make.py [name]...   (needs torch, transformers and safetensors; all without a name)
"""

import copy
import json
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

HERE = Path(__file__).parent
SHAPE = dict(
    vocab_size=61,
    hidden_size=32,
    intermediate_size=40,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=64,
    rms_norm_eps=1e-5,
    attn_implementation="eager",
)
MODELS = {
    "llama": (
        LlamaForCausalLM,
        LlamaConfig(
            **SHAPE,
            tie_word_embeddings=True,
            rope_parameters={"rope_type": "default", "rope_theta": 500.0},
        ),
    ),
    # Biases on both sides of attention and in the feed-forward part, and positions that are stretched.
    "llama-biased": (
        LlamaForCausalLM,
        LlamaConfig(
            **SHAPE,
            attention_bias=True,
            mlp_bias=True,
            rope_parameters={
                "rope_type": "yarn",
                "rope_theta": 500.0,
                "factor": 4.0,
                "original_max_position_embeddings": 16,
            },
        ),
    ),
    # All layers see six tokens.
    "mistral": (MistralForCausalLM, MistralConfig(**SHAPE, sliding_window=6)),
    # Heads of another width than is left for each, and a window in the second layer.
    "qwen3": (
        Qwen3ForCausalLM,
        Qwen3Config(
            **SHAPE,
            head_dim=12,
            use_sliding_window=True,
            sliding_window=5,
            max_window_layers=1,
        ),
    ),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config(**SHAPE, tie_word_embeddings=False)),
    # Layer norms, learned positions, GELU, biases everywhere.
    "gpt2": (
        GPT2LMHeadModel,
        GPT2Config(
            vocab_size=SHAPE["vocab_size"],
            n_embd=SHAPE["hidden_size"],
            n_inner=SHAPE["intermediate_size"],
            n_layer=SHAPE["num_hidden_layers"],
            n_head=SHAPE["num_attention_heads"],
            n_positions=SHAPE["max_position_embeddings"],
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            attn_implementation="eager",
        ),
    ),
    "mixtral": (
        MixtralForCausalLM,
        MixtralConfig(
            **{**SHAPE, "intermediate_size": 12},
            num_local_experts=4,
            num_experts_per_tok=2,
            sliding_window=None,
            tie_word_embeddings=True,
        ),
    ),
}
ADAMW = dict(lr=1e-2, betas=(0.9, 0.95), eps=1e-8)
STEPS = 8


def save(folder, model, tensors):
    folder.mkdir(parents=True, exist_ok=True)
    if isinstance(model, MixtralForCausalLM):
        # In memory its experts are one tensor; transformers itself knows how they are stored.
        stored = copy.deepcopy(model)
        stored.load_state_dict(tensors, strict=False)
        stored.save_pretrained(folder)
        (folder / "generation_config.json").unlink(missing_ok=True)
        return
    model.config.save_pretrained(folder)
    tied = model.config.tie_word_embeddings
    kept = {
        name: tensor.detach().clone().contiguous()
        for name, tensor in tensors.items()
        if not (tied and name == "lm_head.weight")
    }
    save_file(kept, folder / "model.safetensors")


def loss_of(model, text):
    logits = model(text[:, :-1]).logits
    logprobs = F.log_softmax(logits.float(), dim=-1)
    told = logprobs.gather(-1, text[:, 1:, None]).squeeze(-1)
    return -told.mean(), told


for name in sys.argv[1:] or MODELS:
    kind, config = MODELS[name]
    torch.manual_seed(1)
    model = kind(config)
    for parameter in model.parameters():
        # Norms near 1 and biases that are not zero, so that nothing hides.
        torch.nn.init.normal_(parameter, std=0.1)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if key.endswith("weight") and ("norm" in key or ".ln_" in key):
                parameter.add_(1.0)
    text = torch.randint(0, SHAPE["vocab_size"], (3, 18))
    save(HERE / name, model, model.state_dict())
    loss, told = loss_of(model, text)
    loss.backward()
    gradients = {key: parameter.grad for key, parameter in model.named_parameters()}
    norm = torch.cat([g.flatten() for g in gradients.values()]).norm().item()
    save(HERE / f"{name}-gradient", model, gradients)
    decayed = [p for p in model.parameters() if p.dim() > 1]
    plain = [p for p in model.parameters() if p.dim() == 1]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, **ADAMW)
    losses = []
    for _ in range(STEPS):
        loss, _ = loss_of(model, text)
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    golden = {
        "text": text.tolist(),
        "logprobs": told.tolist(),
        "gradient_norm": norm,
        "losses": losses,
    }
    (HERE / f"{name}.json").write_text(json.dumps(golden) + "\n")
