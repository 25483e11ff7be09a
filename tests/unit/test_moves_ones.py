"""Transposes that move nothing but axes of one element become views; others stay."""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import onnx
import plain
import pytest

import atcfuse
from atcfuse.options import Options

VIEWS = {
    "heads of one token": ("float[B,1,4,8] x", "float[B,4,1,8] y", [0, 2, 1, 3]),
    "one head": ("float[B,S,1,8] x", "float[B,1,S,8] y", [0, 2, 1, 3]),
    "all extents known": ("float[2,1,4,8] x", "float[2,4,1,8] y", [0, 2, 1, 3]),
    "none left out": ("float[1,1] x", "float[1,1] y", [1, 0]),
    "no elements": ("float[0,1,4] x", "float[1,0,4] y", [1, 0, 2]),
    "two axes of one element": ("float[1,S,1,T] x", "float[S,T,1,1] y", [1, 3, 2, 0]),
}
STAYS = {
    "heads of several tokens": ("float[B,2,4,8] x", "float[B,4,2,8] y", [0, 2, 1, 3]),
    "an open number of tokens": ("float[B,S,4,8] x", "float[B,4,S,8] y", [0, 2, 1, 3]),
    "two axes that change places around one": ("float[4,1,8] x", "float[8,1,4] y", [2, 1, 0]),
}


def parsed(given: str, made: str, perm: list[int], opset: int) -> onnx.ModelProto:
    text = f"""<ir_version: 8, opset_import: ["" : {opset}]> g ({given}) => ({made})
        {{ t = Transpose<perm = {perm}>(x) y = Identity(t) }}"""
    return plain.parsed(text)


def run(model: onnx.ModelProto) -> np.ndarray:
    shape = [d.dim_value if d.HasField("dim_value") else 3 for d in model.graph.input[0].type.tensor_type.shape.dim]
    x = np.random.default_rng(1).normal(size=shape).astype(np.float32)
    return plain.run_plain(model, {"x": x})[0]


@pytest.mark.parametrize("opset", [11, 17])
@pytest.mark.parametrize(("given", "made", "perm"), VIEWS.values(), ids=VIEWS)
def test_axes_of_one_element_move_without_a_launch(given: str, made: str, perm: list[int], opset: int) -> None:
    original = parsed(given, made, perm, opset)
    result = atcfuse.optimize(deepcopy(original), dialect="portable")
    assert result.report["summary"]["launches_after"] == 0
    assert not [n for n in result.model.graph.node if n.op_type == "Transpose"]
    onnx.checker.check_model(result.model, full_check=True)
    got, wanted = run(result.model), run(original)
    assert got.shape == wanted.shape
    np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize(("given", "made", "perm"), STAYS.values(), ids=STAYS)
def test_other_transposes_stay(given: str, made: str, perm: list[int]) -> None:
    result = atcfuse.optimize(parsed(given, made, perm, 17), dialect="portable")
    assert [n.op_type for n in result.model.graph.node].count("Transpose") == 1


def test_nodes_to_keep_stay() -> None:
    original = parsed(*VIEWS["one head"], 17)
    result = atcfuse.optimize(original, Options(dialect="portable", keep_nodes=("n0",)))
    assert [n.op_type for n in result.model.graph.node].count("Transpose") == 1
