"""GPT-2: pre-LN decoder whose linear layers are Conv1D modules, exported as Gemm."""

from __future__ import annotations

import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

from common import VOCAB, Export, Sample, randomize, tokens


class Decoder(nn.Module):
    def __init__(self, attention: str, width: int) -> None:
        super().__init__()
        config = GPT2Config(
            vocab_size=VOCAB,
            n_positions=40,
            n_embd=width,
            n_layer=2,
            n_head=width // 16,
            n_inner=2 * width,
            bos_token_id=1,
            eos_token_id=2,
            use_cache=False,
            attn_implementation=attention,
        )
        self.lm = GPT2LMHeadModel(config)
        randomize(self)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor):
        return self.lm(input_ids, attention_mask=attention_mask).logits


def build(attention: str, width: int):
    def make(dtype: torch.dtype) -> Export:
        axes = {0: "batch", 1: "sequence"}
        return Export(
            Decoder(attention, width).to(dtype),
            {"input_ids": tokens(2, 9), "attention_mask": torch.ones(2, 9, dtype=torch.int64)},
            ("logits",),
            dict.fromkeys(("input_ids", "attention_mask", "logits"), axes),
        )

    return make


SIZES = ({"batch": 2, "sequence": 9}, {"batch": 1, "sequence": 16})
RANGES = {"input_ids": (0, VOCAB - 1), "attention_mask": (0, 1)}

SAMPLES = [
    Sample(
        family="gpt2", exporter="ts", opset=14, dtype="fp32", build=build("eager", 32), attention=2, norms=5,
        what="GPT-2 decoder to logits, eager attention",
        interesting="packed QKV: Reshape, Gemm, Reshape, Split; run-time scalar as scale; causal buffer, padding mask",
        sizes=SIZES, ranges=RANGES,
    ),
    Sample(
        family="gpt2", exporter="dynamo", opset=18, dtype="fp16", build=build("sdpa", 64), attention=2, norms=5,
        what="GPT-2 decoder in half precision, scaled_dot_product_attention",
        interesting="Where with -inf and an IsNaN guard behind the softmax, tanh GELU, packed QKV",
        sizes=SIZES, ranges=RANGES,
    ),
]
