"""The models of `gpu/benches/cards.rs` in PyTorch, on the same card: tokens a second."""

import time
from dataclasses import dataclass

import torch
import torch.nn.functional as F

# Dense bf16 operations a second, as there.
PEAKS = {"H100": 989e12, "H200": 989e12, "A100": 312e12, "L40S": 362e12}
SEQUENCES, LENGTH = 8, 1024
STEPS = 10


@dataclass
class Model:
    name: str
    dim: int
    layers: int
    heads: int
    kv_heads: int
    head: int
    ffn: int
    vocab: int


# As in gpu/benches/cards.rs.
MODELS = [
    Model("127M", 1024, 8, 16, 8, 64, 2816, 32_000),
    Model("0.6B", 1024, 28, 16, 8, 128, 3072, 151_936),
]


class Block(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model
        dim, head = model.dim, model.head
        self.norm1, self.norm2 = torch.nn.RMSNorm(dim), torch.nn.RMSNorm(dim)
        self.qkv = torch.nn.Linear(dim, (model.heads + 2 * model.kv_heads) * head, bias=False)
        self.out = torch.nn.Linear(model.heads * head, dim, bias=False)
        self.gate_up = torch.nn.Linear(dim, 2 * model.ffn, bias=False)
        self.down = torch.nn.Linear(model.ffn, dim, bias=False)

    def forward(self, x, cos, sin):
        batch, length, _ = x.shape
        heads, kv_heads, head = self.model.heads, self.model.kv_heads, self.model.head
        qkv = self.qkv(self.norm1(x)).view(batch, length, heads + 2 * kv_heads, head).transpose(1, 2)
        q, k, v = qkv.split([heads, kv_heads, kv_heads], dim=1)

        def turn(t):
            low, high = t.chunk(2, dim=-1)
            return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1).to(t.dtype)

        y = F.scaled_dot_product_attention(turn(q), turn(k), v, is_causal=True, enable_gqa=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, heads * head))
        gate, up = self.gate_up(self.norm2(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


class Net(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.head = model.head
        self.embed = torch.nn.Embedding(model.vocab, model.dim)
        self.blocks = torch.nn.ModuleList(Block(model) for _ in range(model.layers))
        self.norm = torch.nn.RMSNorm(model.dim)

    def forward(self, tokens):
        frequency = 10_000.0 ** (-torch.arange(0, self.head, 2, device=tokens.device) / self.head)
        angle = torch.arange(tokens.shape[1], device=tokens.device)[:, None] * frequency
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x, angle.cos(), angle.sin())
        return self.norm(x) @ self.embed.weight.T


def train(model, eager):
    torch.manual_seed(1)
    device = torch.device("cuda")
    net = Net(model).to(device)
    step = net if eager else torch.compile(net)
    optimiser = torch.optim.AdamW(net.parameters(), lr=3e-4, fused=True)
    tokens = torch.randint(0, model.vocab, (SEQUENCES, LENGTH), device=device)

    def once():
        with torch.autocast("cuda", dtype=torch.bfloat16):
            logits = step(tokens)
            loss = F.cross_entropy(logits.flatten(0, 1).float(), tokens.flatten())
        loss.backward()
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)

    for _ in range(3):
        once()
    torch.cuda.synchronize()
    begun = time.perf_counter()
    for _ in range(STEPS):
        once()
    torch.cuda.synchronize()
    took = (time.perf_counter() - begun) / STEPS
    count = sum(p.numel() for p in net.parameters())
    work = 6 * count + 6 * model.layers * model.heads * model.head * LENGTH
    rate = SEQUENCES * LENGTH / took
    name = torch.cuda.get_device_name()
    peak = next((peak for card, peak in PEAKS.items() if card in name), None)
    share = f"MFU {100 * work * rate / peak:.1f} %" if peak else "peak unknown"
    how = "eager" if eager else "compiled"
    print(
        f"PyTorch {torch.__version__}, {how}, {model.name}: {rate:.0f} tokens/s, "
        f"{work * rate / 1e12:.1f} TFLOP/s, {share}",
        flush=True,
    )


def main():
    for model in MODELS:
        for eager in [True, False]:
            train(model, eager)
            torch.compiler.reset()
            torch.cuda.empty_cache()


main()
