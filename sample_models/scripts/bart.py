"""BART: post-LN encoder and decoder with cross attention."""

from __future__ import annotations

import torch
from torch import nn
from transformers import BartConfig, BartModel

from common import VOCAB, Export, Sample, randomize, tokens


class EncoderDecoder(nn.Module):
    def __init__(self, attention: str) -> None:
        super().__init__()
        config = BartConfig(
            vocab_size=VOCAB,
            max_position_embeddings=40,
            d_model=32,
            encoder_layers=2,
            decoder_layers=2,
            encoder_attention_heads=2,
            decoder_attention_heads=2,
            encoder_ffn_dim=64,
            decoder_ffn_dim=64,
            use_cache=False,
            attn_implementation=attention,
        )
        self.bart = BartModel(config)
        randomize(self)

    def forward(self, input_ids, attention_mask, decoder_input_ids):
        result = self.bart(input_ids, attention_mask=attention_mask, decoder_input_ids=decoder_input_ids)
        return result.last_hidden_state


def build(attention: str):
    def make(dtype: torch.dtype) -> Export:
        source, target = {0: "batch", 1: "sequence"}, {0: "batch", 1: "decoder_sequence"}
        return Export(
            EncoderDecoder(attention).to(dtype),
            {
                "input_ids": tokens(2, 9),
                "attention_mask": torch.ones(2, 9, dtype=torch.int64),
                "decoder_input_ids": tokens(2, 5),
            },
            ("last_hidden_state",),
            {"input_ids": source, "attention_mask": source, "decoder_input_ids": target, "last_hidden_state": target},
        )

    return make


SAMPLES = [
    Sample(
        family="bart", exporter="ts", opset=15, dtype="fp32", build=build("sdpa"), attention=6, norms=12,
        what="BART encoder and decoder, scaled_dot_product_attention",
        interesting="cross attention; root of the scale computed from Shape at run time; spelled-out LayerNorm",
        sizes=(
            {"batch": 2, "sequence": 9, "decoder_sequence": 5},
            {"batch": 3, "sequence": 12, "decoder_sequence": 8},
        ),
        ranges={"input_ids": (0, VOCAB - 1), "attention_mask": (0, 1), "decoder_input_ids": (0, VOCAB - 1)},
    ),
]
