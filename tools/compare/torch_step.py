"""Times training steps of a model in PyTorch on this machine's CPU, for a comparison with bench/train_step.

The models are GPT-2 124M, Llama 110M and Qwen2.5 0.5B as bench/train_step has them: same shapes, tied head, random tokens,
and as many learned positions as a longer sequence needs. A step is forward and backward of each micro-batch, clipping by
the global norm, fused AdamW with decay on matrices only. bf16 is autocast over fp32 parameters, as is usual with PyTorch.
Prints one JSON object.
"""

import argparse
import dataclasses
import json
import resource
import statistics
import time

import torch
from torch import nn
from torch.nn import functional as F


@dataclasses.dataclass
class Shape:
    vocabulary: int
    hidden: int
    layers: int
    heads: int
    groups: int  # of queries that share a key
    ffn: int
    positions: int = 0  # learned ones; 0: rotary
    qkv_bias: bool = False
    epsilon: float = 1e-5
    rope_base: float = 10000.0

    @property
    def head_dim(self):
        return self.hidden // self.heads

    @property
    def widths(self):  # of queries, keys and values, as one product gives them
        return [self.heads * self.head_dim, *[self.groups * self.head_dim] * 2]


SHAPES = {
    "gpt2-124m": Shape(50257, 768, 12, 12, 12, 3072, positions=1024, qkv_bias=True),
    "llama-110m": Shape(32000, 768, 12, 12, 12, 2048),
    "qwen2.5-0.5b": Shape(151936, 896, 24, 14, 2, 4864, qkv_bias=True, epsilon=1e-6, rope_base=1e6),
}


class Gpt2Block(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.shape = shape
        self.norm1, self.norm2 = nn.LayerNorm(shape.hidden), nn.LayerNorm(shape.hidden)
        self.qkv, self.output = nn.Linear(shape.hidden, sum(shape.widths)), nn.Linear(shape.hidden, shape.hidden)
        self.up, self.down = nn.Linear(shape.hidden, shape.ffn), nn.Linear(shape.ffn, shape.hidden)

    def forward(self, x, _):
        x = x + self.output(attention(self.shape, self.qkv(self.norm1(x))))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class LlamaBlock(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.shape = shape
        self.norm1, self.norm2 = (nn.RMSNorm(shape.hidden, eps=shape.epsilon) for _ in range(2))
        self.qkv = nn.Linear(shape.hidden, sum(shape.widths), bias=shape.qkv_bias)
        self.output = nn.Linear(shape.widths[0], shape.hidden, bias=False)
        self.gate_up = nn.Linear(shape.hidden, 2 * shape.ffn, bias=False)
        self.down = nn.Linear(shape.ffn, shape.hidden, bias=False)

    def forward(self, x, angles):
        x = x + self.output(attention(self.shape, self.qkv(self.norm1(x)), angles))
        gate, up = self.gate_up(self.norm2(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


def attention(shape, qkv, angles=None):
    q, k, v = (t.unflatten(-1, (-1, shape.head_dim)).transpose(1, 2) for t in qkv.split(shape.widths, dim=-1))
    if angles is not None:
        q, k = rotate(q, *angles), rotate(k, *angles)
    shared = shape.groups < shape.heads
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=shared).transpose(1, 2).flatten(2)


def rotate(x, cos, sin):
    a, b = x.chunk(2, dim=-1)
    return x * cos.to(x.dtype) + torch.cat((-b, a), dim=-1) * sin.to(x.dtype)


class Model(nn.Module):
    def __init__(self, shape, sequence):
        super().__init__()
        gpt2 = shape.positions > 0
        self.embedding = nn.Embedding(shape.vocabulary, shape.hidden)
        self.positions = nn.Embedding(max(shape.positions, sequence), shape.hidden) if gpt2 else None
        self.blocks = nn.ModuleList((Gpt2Block if gpt2 else LlamaBlock)(shape) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.hidden) if gpt2 else nn.RMSNorm(shape.hidden, eps=shape.epsilon)
        inverse = shape.rope_base ** (-torch.arange(0, shape.head_dim, 2) / shape.head_dim)
        steps = torch.arange(sequence)[:, None] * inverse
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
    parser.add_argument("--model", required=True, choices=list(SHAPES))
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
    model = Model(SHAPES[a.model], a.sequence)
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
