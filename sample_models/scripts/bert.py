"""BERT: post-LN encoder with an additive padding mask."""

from __future__ import annotations

import torch
from torch import nn
from transformers import BertConfig, BertModel

from common import VOCAB, Export, Sample, randomize, tokens


class Encoder(nn.Module):
    def __init__(self, attention: str, hidden: int, heads: int) -> None:
        super().__init__()
        config = BertConfig(
            vocab_size=VOCAB,
            hidden_size=hidden,
            num_hidden_layers=2,
            num_attention_heads=heads,
            intermediate_size=2 * hidden,
            max_position_embeddings=40,
            attn_implementation=attention,
        )
        self.bert = BertModel(config)
        randomize(self)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, token_type_ids: torch.Tensor):
        result = self.bert(input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids)
        return result.last_hidden_state, result.pooler_output


def build(attention: str, hidden: int, heads: int):
    def make(dtype: torch.dtype) -> Export:
        axes = {0: "batch", 1: "sequence"}
        return Export(
            Encoder(attention, hidden, heads).to(dtype),
            {
                "input_ids": tokens(2, 9),
                "attention_mask": torch.ones(2, 9, dtype=torch.int64),
                "token_type_ids": torch.zeros(2, 9, dtype=torch.int64),
            },
            ("last_hidden_state", "pooler_output"),
            {
                "input_ids": axes,
                "attention_mask": axes,
                "token_type_ids": axes,
                "last_hidden_state": axes,
                "pooler_output": {0: "batch"},
            },
        )

    return make


SIZES = ({"batch": 2, "sequence": 9}, {"batch": 3, "sequence": 16})
RANGES = {"input_ids": (0, VOCAB - 1), "attention_mask": (0, 1), "token_type_ids": (0, 1)}

SAMPLES = [
    Sample(
        family="bert", exporter="ts", opset=17, dtype="fp32", build=build("eager", 64, 4), attention=2, norms=5,
        what="BERT encoder with pooler, eager attention",
        interesting="scale on the scores, mask `(1 - m) * min` shared by all layers, post-LN with the norm read again",
        sizes=SIZES, ranges=RANGES,
    ),
    Sample(
        family="bert", exporter="ts", opset=11, dtype="fp32", build=build("eager", 32, 2), attention=2, norms=5,
        what="the same at an old opset",
        interesting="LayerNorm spelled out as ReduceMean, Sub, Pow, Sqrt, Div; Unsqueeze axes as attributes",
        sizes=SIZES, ranges=RANGES,
    ),
    Sample(
        family="bert", exporter="dynamo", opset=18, dtype="fp16", build=build("sdpa", 64, 4), attention=2, norms=5,
        what="BERT encoder in half precision, scaled_dot_product_attention",
        interesting="root of the scale on Q and on K, mask as Where(1 - m, lowest, 1 - m): no constant 0 in it",
        sizes=SIZES, ranges=RANGES,
    ),
]
