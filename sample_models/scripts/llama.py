"""LLaMA-style decoders: RMSNorm, rotary positions, grouped-query heads, SwiGLU."""

from __future__ import annotations

import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.cache_utils import DynamicCache

from common import VOCAB, Export, Sample, randomize, tokens

LAYERS, HEADS, KV_HEADS = 2, 4, 2
HIDDEN = 64


def language_model(attention: str) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        intermediate_size=64,
        max_position_embeddings=64,
        attn_implementation=attention,
    )
    return LlamaForCausalLM(config)


class Prefill(nn.Module):
    """Token ids and padding mask to logits, no cache."""

    def __init__(self, attention: str) -> None:
        super().__init__()
        self.lm = language_model(attention)
        randomize(self)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor):
        return self.lm(input_ids, attention_mask=attention_mask, use_cache=False).logits


class WithPast(nn.Module):
    """One decoding step: the cache comes in as past keys and values and leaves as present ones."""

    def __init__(self, attention: str) -> None:
        super().__init__()
        self.lm = language_model(attention)
        randomize(self)

    def forward(self, input_ids, attention_mask, position_ids, *past):
        cache = DynamicCache.from_legacy_cache(tuple(zip(past[0::2], past[1::2], strict=True)))
        result = self.lm(input_ids, attention_mask=attention_mask, position_ids=position_ids, past_key_values=cache)
        present = result.past_key_values.to_legacy_cache()
        return result.logits, *(tensor for layer in present for tensor in layer)


def prefill(attention: str):
    def make(dtype: torch.dtype) -> Export:
        axes = {0: "batch", 1: "sequence"}
        return Export(
            Prefill(attention).to(dtype),
            {"input_ids": tokens(2, 9), "attention_mask": torch.ones(2, 9, dtype=torch.int64)},
            ("logits",),
            {"input_ids": axes, "attention_mask": axes, "logits": axes},
        )

    return make


def with_past(attention: str):
    def make(dtype: torch.dtype) -> Export:
        batch, new, old = 2, 3, 6
        names = [f"{layer}.{part}" for layer in range(LAYERS) for part in ("key", "value")]
        inputs = {
            "input_ids": tokens(batch, new),
            "attention_mask": torch.ones(batch, old + new, dtype=torch.int64),
            "position_ids": torch.arange(old, old + new).repeat(batch, 1),
        }
        shape = (batch, KV_HEADS, old, HIDDEN // HEADS)
        inputs |= {f"past_key_values.{name}": torch.randn(shape, dtype=dtype) for name in names}
        axes = {
            "input_ids": {0: "batch", 1: "sequence"},
            "attention_mask": {0: "batch", 1: "total_sequence"},
            "position_ids": {0: "batch", 1: "sequence"},
            "logits": {0: "batch", 1: "sequence"},
        }
        axes |= {f"past_key_values.{name}": {0: "batch", 2: "past_sequence"} for name in names}
        axes |= {f"present.{name}": {0: "batch", 2: "total_sequence"} for name in names}
        outputs = ("logits", *(f"present.{name}" for name in names))
        return Export(WithPast(attention).to(dtype), inputs, outputs, axes)

    return make


SIZES = ({"batch": 2, "sequence": 9}, {"batch": 1, "sequence": 16})
PAST_SIZES = (
    {"batch": 2, "sequence": 1, "past_sequence": 6, "total_sequence": 7},
    {"batch": 1, "sequence": 4, "past_sequence": 12, "total_sequence": 16},
)
RANGES = {"input_ids": (0, VOCAB - 1), "attention_mask": (0, 1)}

SAMPLES = [
    Sample(
        family="llama", exporter="dynamo", opset=18, dtype="fp32", build=prefill("eager"), attention=2, norms=5,
        what="LLaMA-style decoder, 4 query heads on 2 key/value heads, eager attention",
        interesting="grouped heads through Unsqueeze, Expand, Reshape; RMSNorm; rotary positions; mask from GatherND",
        sizes=SIZES, ranges=RANGES,
    ),
    Sample(
        family="llama_past", exporter="ts", opset=17, dtype="fp16", build=with_past("sdpa"), attention=2, norms=5,
        what="the same with a KV cache: past inputs, present outputs",
        interesting="keys and values are a Concat that is also a graph output; fp32 norms in fp16; IsNaN guard",
        sizes=PAST_SIZES, ranges=RANGES | {"position_ids": (0, 31)},
    ),
]
