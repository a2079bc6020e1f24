"""Trains and samples the models of train.rs in PyTorch: scaled dot-product attention, fused AdamW,
preallocated key-value cache. For each line of standard input, such as `tiny train eager` or
`tiny train compiled`, it runs that for a while and prints the median of its tokens per second, or why
it cannot. `eager` and `compiled` are in f32; `compiled` trains through `torch.compile`. `bf16` is eager,
trains under autocast and samples from a model and a cache in bf16. Sampling is eager in all: each step
has another number of tokens before it, and would be compiled for each of them.

usage: pytorch_peer.py THREADS SECONDS [wall|processor]

By `processor` a second is one of processor time of all threads of this process.
"""

import copy
import sys
import time

import torch
import torch.nn.functional as F

CASES = [
    ("tiny", dict(vocab=96, dim=128, layers=4, heads=4, ffn=352), 128, 16),
    ("small", dict(vocab=256, dim=384, layers=6, heads=6, ffn=1040), 256, 8),
    (
        "smollm2",
        dict(vocab=49152, dim=576, layers=30, heads=9, ffn=1536, kv_heads=3, tied=True),
        128,
        8,
    ),
]
SLOTS = 32


class Block(torch.nn.Module):
    def __init__(self, dim, heads, ffn, kv_heads):
        super().__init__()
        self.heads, self.kv_heads = heads, kv_heads
        self.norm1 = torch.nn.RMSNorm(dim, eps=1e-5)
        self.qkv = torch.nn.Linear(dim, dim + 2 * kv_heads * (dim // heads), bias=False)
        self.out = torch.nn.Linear(dim, dim, bias=False)
        self.norm2 = torch.nn.RMSNorm(dim, eps=1e-5)
        self.gate_up = torch.nn.Linear(dim, 2 * ffn, bias=False)
        self.down = torch.nn.Linear(ffn, dim, bias=False)

    def forward(self, x, cos, sin, cache=None, at=0):
        b, t, d = x.shape
        qkv = self.qkv(self.norm1(x)).view(b, t, self.heads + 2 * self.kv_heads, -1).transpose(1, 2)
        q, k, v = qkv.split((self.heads, self.kv_heads, self.kv_heads), dim=1)
        grouped = self.heads != self.kv_heads
        q, k = turn(q, cos, sin), turn(k, cos, sin)
        if cache is None:
            a = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)
        else:
            keys, values = cache
            keys[:, :, at] = k[:, :, 0]
            values[:, :, at] = v[:, :, 0]
            keys, values = keys[:, :, : at + 1], values[:, :, : at + 1]
            a = F.scaled_dot_product_attention(q, keys, values, enable_gqa=grouped)
        x = x + self.out(a.transpose(1, 2).reshape(b, t, d))
        gate, up = self.gate_up(self.norm2(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


def turn(x, cos, sin):
    low, high = x.chunk(2, dim=-1)
    return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1)


class Model(torch.nn.Module):
    def __init__(self, vocab, dim, layers, heads, ffn, tokens, kv_heads=None, tied=False):
        super().__init__()
        self.embed = torch.nn.Embedding(vocab, dim)
        self.blocks = torch.nn.ModuleList(Block(dim, heads, ffn, kv_heads or heads) for _ in range(layers))
        self.norm = torch.nn.RMSNorm(dim, eps=1e-5)
        self.head = torch.nn.Linear(dim, vocab, bias=False)
        if tied:
            self.head.weight = self.embed.weight
        half = dim // heads // 2
        angles = torch.outer(torch.arange(tokens), 10000.0 ** (-torch.arange(half) / half))
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())
        for p in self.parameters():
            if p.dim() > 1:
                torch.nn.init.normal_(p, std=0.02)

    def forward(self, tokens, caches=None, at=0):
        x = self.embed(tokens)
        span = slice(at, at + tokens.shape[1])
        for i, block in enumerate(self.blocks):
            cache = None if caches is None else caches[i]
            x = block(x, self.cos[span], self.sin[span], cache, at)
        return self.head(self.norm(x))


def rate(now, seconds, run):
    start, rates = now(), []
    while not rates or now() - start < seconds:
        step = now()
        tokens = run()
        rates.append(tokens / (now() - step))
    return sorted(rates)[len(rates) // 2]


def prepare(shape, tokens, batch, how):
    model = Model(**shape, tokens=tokens)
    run = torch.compile(model) if how == "compiled" else model
    number = torch.bfloat16 if how == "bf16" else torch.float32
    vocab, heads = shape["vocab"], shape["heads"]
    decay = [p for p in model.parameters() if p.dim() > 1]
    plain = [p for p in model.parameters() if p.dim() == 1]
    groups = [{"params": decay, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95), fused=True)
    rows = torch.arange(batch)[:, None]
    columns = torch.arange(tokens + 1)[None, :]
    text = (columns * columns + rows * 31) % vocab
    cache_shape = (SLOTS, shape.get("kv_heads", heads), tokens, shape["dim"] // heads)
    caches = [[torch.zeros(cache_shape, dtype=number) for _ in range(2)] for _ in model.blocks]
    sampled = []

    def train():
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=how == "bf16"):
            logits = run(text[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1).float(), text[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return batch * tokens

    @torch.inference_mode()
    def sample():
        if not sampled:
            sampled.append(copy.deepcopy(model).to(number))
        last = torch.ones((SLOTS, 1), dtype=torch.long)
        for at in range(tokens - 1):
            logprobs = F.log_softmax(sampled[0](last, caches, at)[:, -1].float(), dim=-1)
            last = torch.multinomial(logprobs.exp(), 1)
            logprobs.gather(1, last)
        return SLOTS * (tokens - 1)

    return {"train": train, "sample": sample}


def main():
    threads, seconds = int(sys.argv[1]), float(sys.argv[2])
    now = time.process_time if sys.argv[3:] == ["processor"] else time.perf_counter
    torch.set_num_threads(threads)
    torch.manual_seed(1)
    shapes = {name: shape for name, *shape in CASES}
    prepared = {}
    for line in sys.stdin:
        name, what, how = line.split()
        try:
            if (name, how) not in prepared:
                prepared[name, how] = prepare(*shapes[name], how)
            print(rate(now, seconds, prepared[name, how][what]), flush=True)
        except Exception as failure:
            print(str(failure).splitlines()[0], flush=True)


main()
