"""What is shown of a move that lets queries, keys and values fuse with the norm before them."""

from __future__ import annotations

from collections import Counter
from copy import deepcopy

import numpy as np
import onnx
import plain
from infer_oracle import inferred

import atcfuse
from atcfuse import moves
from atcfuse.keep_nodes import NO_NODES

SHAPES = {"x": (2, 5, 8), "wq": (8, 6), "wk": (8, 6), "wv": (8, 6), "w": (8, 6), "g": (8,), "b": (8,)}


def run(model: onnx.ModelProto) -> list[np.ndarray]:
    """What onnxruntime computes of the same rows every time."""
    rng = np.random.default_rng(3)
    return plain.run_plain(model, {n: rng.normal(size=s).astype(np.float32) for n, s in SHAPES.items()})


def assert_moved_and_fused(proto: onnx.ModelProto) -> None:
    """Three moves change no number, and with them all projections fuse with their norm."""
    original, model = deepcopy(proto), inferred(proto)
    begun = moves.find(model, NO_NODES)
    assert len(begun) == 3
    moves.carry_out(model, begun)
    onnx.checker.check_model(proto, full_check=True)
    for got, expected in zip(run(proto), run(original), strict=True):
        np.testing.assert_array_equal(got, expected)
    result = atcfuse.optimize(original, dialect="portable", min_saving_us=0.0)
    assert Counter(f["op"] for f in result.report["fusions"]) == {"FusedLayerNormQKV": 1}
    for got, expected in zip(run(result.model), run(original), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)
