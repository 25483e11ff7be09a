"""T5: no scale, a relative position bias on the scores, RMSNorm, encoder and decoder with cross attention."""

from __future__ import annotations

import torch
from torch import nn
from transformers import T5Config, T5EncoderModel, T5ForConditionalGeneration

from common import VOCAB, Export, Sample, randomize, tokens

# Scores are not scaled: smaller query and key weights keep the softmax away from one-hot.
GAINS = {"SelfAttention.q": 0.7, "SelfAttention.k": 0.7, "EncDecAttention.q": 0.7, "EncDecAttention.k": 0.7}


def config() -> T5Config:
    return T5Config(
        vocab_size=VOCAB,
        d_model=32,
        d_kv=16,
        num_heads=4,
        d_ff=64,
        num_layers=2,
        num_decoder_layers=2,
        relative_attention_num_buckets=8,
        relative_attention_max_distance=20,
        use_cache=False,
    )


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.t5 = T5EncoderModel(config())
        randomize(self, overrides=GAINS)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor):
        return self.t5(input_ids, attention_mask=attention_mask).last_hidden_state


class EncoderDecoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.t5 = T5ForConditionalGeneration(config())
        randomize(self, overrides=GAINS)

    def forward(self, input_ids, attention_mask, decoder_input_ids):
        return self.t5(input_ids, attention_mask=attention_mask, decoder_input_ids=decoder_input_ids).logits


def build_encoder(dtype: torch.dtype) -> Export:
    axes = {0: "batch", 1: "sequence"}
    return Export(
        Encoder().to(dtype),
        {"input_ids": tokens(2, 9), "attention_mask": torch.ones(2, 9, dtype=torch.int64)},
        ("last_hidden_state",),
        dict.fromkeys(("input_ids", "attention_mask", "last_hidden_state"), axes),
    )


def build_encoder_decoder(dtype: torch.dtype) -> Export:
    source, target = {0: "batch", 1: "sequence"}, {0: "batch", 1: "decoder_sequence"}
    return Export(
        EncoderDecoder().to(dtype),
        {
            "input_ids": tokens(2, 9),
            "attention_mask": torch.ones(2, 9, dtype=torch.int64),
            "decoder_input_ids": tokens(2, 5),
        },
        ("logits",),
        {"input_ids": source, "attention_mask": source, "decoder_input_ids": target, "logits": target},
    )


RANGES = {"input_ids": (0, VOCAB - 1), "attention_mask": (0, 1), "decoder_input_ids": (0, VOCAB - 1)}

SAMPLES = [
    Sample(
        family="t5_encoder", exporter="dynamo", opset=18, dtype="fp32", build=build_encoder, attention=2, norms=5,
        what="T5 encoder",
        interesting="position bias from buckets, added in every layer together with the mask; no scale",
        sizes=({"batch": 2, "sequence": 9}, {"batch": 3, "sequence": 16}),
        ranges={"input_ids": (0, VOCAB - 1), "attention_mask": (0, 1)},
    ),
    Sample(
        family="t5", exporter="ts", opset=14, dtype="fp32", build=build_encoder_decoder, attention=6, norms=12,
        what="T5 encoder and decoder to logits",
        interesting="self, causal and cross attention in one graph; query, key and value lengths differ",
        sizes=(
            {"batch": 2, "sequence": 9, "decoder_sequence": 5},
            {"batch": 3, "sequence": 12, "decoder_sequence": 8},
        ),
        ranges=RANGES,
    ),
]
