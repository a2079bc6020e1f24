"""The model of `gpu/benches/cards.rs` in PyTorch, on the same card: tokens a second and MFU."""

import sys
import time

import torch
import torch.nn.functional as F

# As in gpu/benches/cards.rs.
DIM, LAYERS, HEADS, KV_HEADS, FFN, VOCAB, SEQUENCES, LENGTH = 1024, 8, 16, 8, 2816, 32_000, 8, 1024
STEPS = 10


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        head = DIM // HEADS
        self.norm1, self.norm2 = torch.nn.RMSNorm(DIM), torch.nn.RMSNorm(DIM)
        self.qkv = torch.nn.Linear(DIM, (HEADS + 2 * KV_HEADS) * head, bias=False)
        self.out = torch.nn.Linear(DIM, DIM, bias=False)
        self.gate_up = torch.nn.Linear(DIM, 2 * FFN, bias=False)
        self.down = torch.nn.Linear(FFN, DIM, bias=False)

    def forward(self, x, cos, sin):
        batch, length, _ = x.shape
        head = DIM // HEADS
        qkv = self.qkv(self.norm1(x)).view(batch, length, HEADS + 2 * KV_HEADS, head).transpose(1, 2)
        q, k, v = qkv.split([HEADS, KV_HEADS, KV_HEADS], dim=1)

        def turn(t):
            low, high = t.chunk(2, dim=-1)
            return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1).to(t.dtype)

        y = F.scaled_dot_product_attention(turn(q), turn(k), v, is_causal=True, enable_gqa=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, DIM))
        gate, up = self.gate_up(self.norm2(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(VOCAB, DIM)
        self.blocks = torch.nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = torch.nn.RMSNorm(DIM)

    def forward(self, tokens):
        head = DIM // HEADS
        frequency = 10_000.0 ** (-torch.arange(0, head, 2, device=tokens.device) / head)
        angle = torch.arange(tokens.shape[1], device=tokens.device)[:, None] * frequency
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x, angle.cos(), angle.sin())
        return self.norm(x) @ self.embed.weight.T


def main():
    torch.manual_seed(1)
    device = torch.device("cuda")
    net = Net().to(device)
    step = torch.compile(net) if "--eager" not in sys.argv else net
    optimiser = torch.optim.AdamW(net.parameters(), lr=3e-4, fused=True)
    tokens = torch.randint(0, VOCAB, (SEQUENCES, LENGTH), device=device)

    def train():
        with torch.autocast("cuda", dtype=torch.bfloat16):
            logits = step(tokens)
            loss = F.cross_entropy(logits.flatten(0, 1).float(), tokens.flatten())
        loss.backward()
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)

    for _ in range(3):
        train()
    torch.cuda.synchronize()
    begun = time.perf_counter()
    for _ in range(STEPS):
        train()
    torch.cuda.synchronize()
    took = (time.perf_counter() - begun) / STEPS
    count = sum(p.numel() for p in net.parameters())
    work = 6 * count + 6 * LAYERS * DIM * LENGTH
    rate = SEQUENCES * LENGTH / took
    print(f"PyTorch {torch.__version__}: {rate:,.0f} tokens/s, {work * rate / 1e12:.1f} TFLOP/s")


main()
