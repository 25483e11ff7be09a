"""Whisper: audio encoder behind convolutions, pre-LN decoder with cross attention."""

from __future__ import annotations

import torch
from torch import nn
from transformers import WhisperConfig, WhisperModel

from common import VOCAB, Export, Sample, randomize, tokens

FRAMES, MELS = 32, 16


class Transcriber(nn.Module):
    def __init__(self, attention: str) -> None:
        super().__init__()
        config = WhisperConfig(
            vocab_size=VOCAB,
            num_mel_bins=MELS,
            max_source_positions=FRAMES // 2,
            max_target_positions=24,
            d_model=32,
            encoder_layers=2,
            decoder_layers=2,
            encoder_attention_heads=2,
            decoder_attention_heads=2,
            encoder_ffn_dim=64,
            decoder_ffn_dim=64,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
            decoder_start_token_id=1,
            use_cache=False,
            attn_implementation=attention,
        )
        self.whisper = WhisperModel(config)
        randomize(self)

    def forward(self, input_features: torch.Tensor, decoder_input_ids: torch.Tensor):
        return self.whisper(input_features, decoder_input_ids=decoder_input_ids).last_hidden_state


def build(attention: str):
    def make(dtype: torch.dtype) -> Export:
        target = {0: "batch", 1: "decoder_sequence"}
        return Export(
            Transcriber(attention).to(dtype),
            {"input_features": torch.randn(2, MELS, FRAMES, dtype=dtype), "decoder_input_ids": tokens(2, 5)},
            ("last_hidden_state",),
            {"input_features": {0: "batch"}, "decoder_input_ids": target, "last_hidden_state": target},
        )

    return make


SAMPLES = [
    Sample(
        family="whisper", exporter="dynamo", opset=17, dtype="fp16", build=build("eager"), attention=6, norms=12,
        what="Whisper encoder and decoder in half precision, eager attention",
        interesting="queries scaled before the head split, keys without a bias, cross attention to 16 positions",
        sizes=({"batch": 2, "decoder_sequence": 5}, {"batch": 3, "decoder_sequence": 8}),
        ranges={"decoder_input_ids": (0, VOCAB - 1)},
    ),
]
