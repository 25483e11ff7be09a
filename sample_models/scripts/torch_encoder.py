"""torch.nn.TransformerEncoder: the graph of torch's own nn.MultiheadAttention."""

from __future__ import annotations

import torch
from torch import nn

from common import Export, Sample, randomize


class Encoder(nn.Module):
    def __init__(self, width: int, norm_first: bool) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(
            d_model=width,
            nhead=width // 16,
            dim_feedforward=2 * width,
            activation="gelu",
            batch_first=True,
            norm_first=norm_first,
        )
        self.encoder = nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False)
        randomize(self)

    def forward(self, src: torch.Tensor, padding: torch.Tensor):
        return self.encoder(src, src_key_padding_mask=padding)


def build(width: int, norm_first: bool, dynamic: bool):
    def make(dtype: torch.dtype) -> Export:
        torch.backends.mha.set_fastpath_enabled(False)  # the fused operator of the fast path has no ONNX form
        axes = {0: "batch", 1: "sequence"}
        return Export(
            Encoder(width, norm_first).to(dtype),
            {"src": torch.randn(2, 12, width, dtype=dtype), "padding": torch.arange(12).repeat(2, 1) < 3},
            ("memory",),
            dict.fromkeys(("src", "padding", "memory"), axes) if dynamic else {},
        )

    return make


SAMPLES = [
    Sample(
        family="torch_encoder", exporter="ts", opset=17, dtype="fp32", build=build(64, True, False), attention=2,
        norms=4,
        what="nn.TransformerEncoder, pre-LN, boolean key padding mask",
        interesting="packed QKV taken apart by Reshape, Transpose, Squeeze, Gather; static shapes",
    ),
    Sample(
        family="torch_encoder", exporter="dynamo", opset=18, dtype="fp32", build=build(32, False, True), attention=2,
        norms=4,
        what="nn.TransformerEncoder, post-LN, boolean key padding mask",
        interesting="the same module through the dynamo exporter with dynamic axes",
        sizes=({"batch": 2, "sequence": 12}, {"batch": 3, "sequence": 16}),
    ),
]
