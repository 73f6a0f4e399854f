"""Times training steps of a model in PyTorch on this machine's CPU, for a comparison with bench/train_step.

The models are GPT-2 124M and Llama 110M as bench/train_step has them: same shapes, tied head, random tokens. A step is
forward and backward of each micro-batch, clipping by the global norm, fused AdamW with decay on matrices only. bf16 is
autocast over fp32 parameters, as is usual with PyTorch. Prints one JSON object.
"""

import argparse
import json
import resource
import statistics
import time

import torch
from torch import nn
from torch.nn import functional as F

HIDDEN, LAYERS, HEADS, HEAD_DIM = 768, 12, 12, 64


class Gpt2Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(HIDDEN), nn.LayerNorm(HIDDEN)
        self.qkv, self.output = nn.Linear(HIDDEN, 3 * HIDDEN), nn.Linear(HIDDEN, HIDDEN)
        self.up, self.down = nn.Linear(HIDDEN, 4 * HIDDEN), nn.Linear(4 * HIDDEN, HIDDEN)

    def forward(self, x, _):
        x = x + self.output(attention(*self.qkv(self.norm1(x)).chunk(3, dim=-1)))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class LlamaBlock(nn.Module):
    FFN = 2048

    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(HIDDEN, eps=1e-5), nn.RMSNorm(HIDDEN, eps=1e-5)
        self.qkv, self.output = (nn.Linear(HIDDEN, n * HIDDEN, bias=False) for n in (3, 1))
        self.gate_up = nn.Linear(HIDDEN, 2 * self.FFN, bias=False)
        self.down = nn.Linear(self.FFN, HIDDEN, bias=False)

    def forward(self, x, angles):
        q, k, v = self.qkv(self.norm1(x)).chunk(3, dim=-1)
        x = x + self.output(attention(q, k, v, angles))
        gate, up = self.gate_up(self.norm2(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


def attention(q, k, v, angles=None):
    q, k, v = (t.unflatten(-1, (HEADS, HEAD_DIM)).transpose(1, 2) for t in (q, k, v))
    if angles is not None:
        q, k = rotate(q, *angles), rotate(k, *angles)
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)


def rotate(x, cos, sin):
    a, b = x.chunk(2, dim=-1)
    return x * cos.to(x.dtype) + torch.cat((-b, a), dim=-1) * sin.to(x.dtype)


class Model(nn.Module):
    def __init__(self, name, sequence):
        super().__init__()
        gpt2 = name == "gpt2-124m"
        self.embedding = nn.Embedding(50257 if gpt2 else 32000, HIDDEN)
        self.positions = nn.Embedding(1024, HIDDEN) if gpt2 else None
        self.blocks = nn.ModuleList((Gpt2Block if gpt2 else LlamaBlock)() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(HIDDEN) if gpt2 else nn.RMSNorm(HIDDEN, eps=1e-5)
        steps = torch.arange(sequence)[:, None] * 10000.0 ** (-torch.arange(0, HEAD_DIM, 2) / HEAD_DIM)
        steps = torch.cat((steps, steps), dim=-1)
        self.register_buffer("cos", steps.cos(), persistent=False)
        self.register_buffer("sin", steps.sin(), persistent=False)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)

    def forward(self, tokens, labels):
        x = self.embedding(tokens)
        if self.positions is not None:
            x = x + self.positions.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x, (self.cos, self.sin))
        logits = F.linear(self.norm(x), self.embedding.weight)
        return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), reduction="sum")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, choices=["gpt2-124m", "llama-110m"])
    parser.add_argument("--precision", default="bf16", choices=["bf16", "fp32"])
    parser.add_argument("--sequence", type=int, default=1024)
    parser.add_argument("--sequences-per-step", type=int, default=8)
    parser.add_argument("--micro-batch", type=int, default=1)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--steps", type=int, default=3, help="timed; one more comes before them")
    parser.add_argument("--compile", action="store_true")
    a = parser.parse_args()

    torch.set_num_threads(a.threads)
    torch.manual_seed(1)
    model = Model(a.model, a.sequence)
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() <= 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=6e-4, betas=(0.9, 0.95), fused=True)
    tokens = torch.randint(model.embedding.num_embeddings, (a.sequences_per_step, a.sequence + 1))
    forward = torch.compile(model) if a.compile else model

    def step():
        optimizer.zero_grad(set_to_none=False)
        for batch in tokens.split(a.micro_batch):
            with torch.autocast("cpu", torch.bfloat16, enabled=a.precision == "bf16"):
                loss = forward(batch[:, :-1].contiguous(), batch[:, 1:].contiguous())
            (loss / (a.sequences_per_step * a.sequence)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.item()

    step()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    seconds = []
    for _ in range(a.steps):
        begin = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - begin)
    print(json.dumps({
        "tokens_per_second": a.sequences_per_step * a.sequence / statistics.median(seconds),
        "all_step_seconds": seconds,
        "peak_memory_bytes": peak,
        "parameters": sum(p.numel() for p in model.parameters()),
        "version": torch.__version__,
    }))


if __name__ == "__main__":
    main()
