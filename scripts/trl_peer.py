"""Steps of GRPO in TRL on sums of three digits, for `scripts/trl-step`; pip: trl, torch, transformers, datasets.

    trl_peer.py make FOLDER SHAPE                         a new model with its tokenizer, as `transformers` writes one
    trl_peer.py step FOLDER SAMPLES STEPS PRECISION THREADS

The second prints a line of JSON for each step: its seconds, its seconds of processor time, and the mean length of its
replies. What TRL prints itself goes to standard error.
"""

import contextlib
import json
import random
import sys
import tempfile
import time
import warnings

import torch
from datasets import Dataset
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM
from transformers import PreTrainedTokenizerFast, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

CONTEXT = 32
SPECIAL = ["<pad>", "<bos>", "<eos>"]
CHARACTERS = "0123456789+-*/=() "
# The model of recipes/rl-sums.toml, and SmolLM2's sizes.
SHAPES = {
    "small": dict(
        hidden_size=128, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=4, intermediate_size=344,
    ),
    "smollm2": dict(
        vocab_size=49152, hidden_size=576, num_hidden_layers=30, num_attention_heads=9, num_key_value_heads=3,
        intermediate_size=1536,
    ),
}


def make(folder, shape):
    words = SPECIAL + list(CHARACTERS)
    sizes = {"vocab_size": len(words), **SHAPES[shape]}
    # Entries that no prompt has and replies do.
    words += [f"<{nth}>" for nth in range(len(words), sizes["vocab_size"])]
    tokenizer = Tokenizer(models.WordLevel({word: nth for nth, word in enumerate(words)}, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    special = {"pad_token": "<pad>", "bos_token": "<bos>", "eos_token": "<eos>"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, padding_side="left", **special).save_pretrained(folder)
    torch.manual_seed(7)
    ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    config = LlamaConfig(max_position_embeddings=CONTEXT, tie_word_embeddings=True, **ids, **sizes)
    model = LlamaForCausalLM(config)
    model.save_pretrained(folder)
    print(f"{sum(one.numel() for one in model.parameters()):,} parameters")


def reward(prompts, completions, **_):
    def right(prompt, completion):
        return completion.strip() == str(sum(map(int, prompt.rstrip("=").split("+"))))

    return [float(right(*both)) for both in zip(prompts, completions)]


class Steps(TrainerCallback):
    def __init__(self):
        self.at, self.told, self.lengths = [], [], []

    def now(self):
        return time.perf_counter(), time.process_time()

    def on_train_begin(self, *_, **__):
        self.at.append(self.now())

    def on_step_end(self, *_, **__):
        self.at.append(self.now())

    def on_log(self, _args, _state, _control, logs, **__):
        if "completions/mean_length" in logs:
            self.lengths.append(logs["completions/mean_length"])


def step(folder, samples, steps, precision, threads):
    warnings.filterwarnings("ignore")
    torch.set_num_threads(threads)
    draw = random.Random(7)
    problem = lambda: "+".join(str(draw.randint(0, 9)) for _ in range(3)) + "="
    told = Steps()
    settings = GRPOConfig(
        output_dir=tempfile.mkdtemp(), per_device_train_batch_size=samples, num_generations=16, max_completion_length=4,
        max_steps=steps, learning_rate=6e-4, beta=0.0, logging_steps=1, save_strategy="no", report_to=[], use_cpu=True,
        bf16=precision == "bf16", dataloader_num_workers=0, temperature=1.0, disable_tqdm=True,
    )
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32),
        processing_class=AutoTokenizer.from_pretrained(folder, padding_side="left"), reward_funcs=reward, args=settings,
        train_dataset=Dataset.from_dict({"prompt": [problem() for _ in range(4096)]}), callbacks=[told],
    )
    with contextlib.redirect_stdout(sys.stderr):
        trainer.train()
    for (before, after), length in zip(zip(told.at, told.at[1:]), told.lengths):
        took = [end - begin for begin, end in zip(before, after)]
        print(json.dumps({"seconds": took[0], "cpu_seconds": took[1], "length": length}))


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["make", folder, shape]:
            make(folder, shape)
        case ["step", folder, samples, steps, precision, threads]:
            step(folder, int(samples), int(steps), precision, int(threads))
        case _:
            sys.exit(__doc__)
