"""A decoder as people write it by hand: packed QKV, a causal buffer, masked_fill."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

from common import VOCAB, Export, Sample, randomize, tokens

LONGEST, HEAD = 32, 16


class CausalAttention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.width, self.heads = width, width // HEAD
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.register_buffer("visible", torch.ones(LONGEST, LONGEST).tril()[None, None], persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        query, key, value = (self.split(part) for part in self.qkv(x).split(self.width, dim=2))
        scores = query @ key.transpose(-2, -1) / math.sqrt(HEAD)
        scores = scores.masked_fill(self.visible[:, :, :length, :length] == 0, float("-inf"))
        mixed = scores.softmax(-1) @ value
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))

    def split(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(x.shape[0], x.shape[1], self.heads, HEAD).transpose(1, 2)


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = CausalAttention(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.before_attention(x))
        return x + self.down(functional.gelu(self.up(self.before_mlp(x))))


class NanoGPT(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.embed, self.position = nn.Embedding(VOCAB, width), nn.Embedding(LONGEST, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(2))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCAB, bias=False)
        randomize(self)

    def forward(self, idx: torch.Tensor) -> torch.Tensor:
        x = self.embed(idx) + self.position(torch.arange(idx.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def build(width: int, dynamic: bool):
    def make(dtype: torch.dtype) -> Export:
        axes = {0: "batch", 1: "sequence"}
        return Export(
            NanoGPT(width).to(dtype),
            {"idx": tokens(2, 16)},
            ("logits",),
            {"idx": axes, "logits": axes} if dynamic else {},
        )

    return make


SAMPLES = [
    Sample(
        family="nanogpt", exporter="ts", opset=16, dtype="fp32", build=build(32, True), attention=2, norms=5,
        what="hand-written GPT",
        interesting="Split of packed QKV, causal buffer sliced to the length, Where with -inf, spelled-out LayerNorm",
        sizes=({"batch": 2, "sequence": 16}, {"batch": 1, "sequence": 9}),
        ranges={"idx": (0, VOCAB - 1)},
    ),
    Sample(
        family="nanogpt", exporter="ts", opset=17, dtype="fp16", build=build(64, False), attention=2, norms=5,
        what="the same in half precision with static shapes",
        interesting="causal mask folded to a constant, one LayerNormalization feeding one packed projection",
        ranges={"idx": (0, VOCAB - 1)},
    ),
]
