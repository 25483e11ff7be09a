"""ViT: patches through a strided convolution, pre-LN encoder without a mask."""

from __future__ import annotations

import torch
from torch import nn
from transformers import ViTConfig, ViTModel

from common import Export, Sample, randomize


class Encoder(nn.Module):
    def __init__(self, attention: str, width: int, heads: int) -> None:
        super().__init__()
        config = ViTConfig(
            image_size=32,
            patch_size=8,
            hidden_size=width,
            num_hidden_layers=2,
            num_attention_heads=heads,
            intermediate_size=2 * width,
            attn_implementation=attention,
        )
        self.vit = ViTModel(config, add_pooling_layer=False)
        randomize(self)

    def forward(self, pixel_values: torch.Tensor):
        return self.vit(pixel_values).last_hidden_state


def build(attention: str, width: int, heads: int, dynamic: bool):
    def make(dtype: torch.dtype) -> Export:
        axes = {"pixel_values": {0: "batch"}, "last_hidden_state": {0: "batch"}} if dynamic else {}
        pixels = torch.randn(2, 3, 32, 32, dtype=dtype)
        module = Encoder(attention, width, heads).to(dtype)
        return Export(module, {"pixel_values": pixels}, ("last_hidden_state",), axes)

    return make


SAMPLES = [
    Sample(
        family="vit", exporter="dynamo", opset=18, dtype="fp32", build=build("sdpa", 32, 2, False),
        attention=2, norms=5,
        what="ViT encoder, 17 tokens",
        interesting="all shapes constant, no mask, root of the scale on Q and on K, pre-LN",
    ),
    Sample(
        family="vit", exporter="ts", opset=14, dtype="fp16", build=build("eager", 64, 2, True), attention=2, norms=5,
        what="ViT encoder in half precision, heads of 32, dynamic batch",
        interesting="spelled-out LayerNorm in fp16, constant sequence length beside a dynamic batch",
        sizes=({"batch": 2}, {"batch": 3}),
    ),
]
