"""Operators that onnxruntime's own optimizer writes: what rules read of them is what onnxruntime computes."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

import atcfuse


def normed(axis: int, epsilon: float | None) -> onnx.ModelProto:
    """Three projections of a norm in the form in which onnxruntime saves an RMSNorm it has found."""
    source = np.random.default_rng(5)
    settings = {} if epsilon is None else {"epsilon": epsilon}
    norm = helper.make_node("SimplifiedLayerNormalization", ["x", "g"], ["n"], axis=axis, stash_type=1, **settings)
    shape = [6, 8] if axis == 1 else [8]
    weights = {"g": shape, "wq": [8, 16], "wk": [8, 4], "wv": [8, 4]}
    graph = helper.make_graph(
        [norm, *(helper.make_node("MatMul", ["n", f"w{p}"], [p]) for p in "qkv")],
        "normed",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["B", 6, 8])],
        [helper.make_tensor_value_info(p, TensorProto.FLOAT, None) for p in "qkv"],
        [numpy_helper.from_array(source.normal(size=s).astype(np.float32), n) for n, s in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def run(model: onnx.ModelProto, x: np.ndarray) -> list[np.ndarray]:
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})


@pytest.mark.parametrize("epsilon", [1e-6, 0.5, None])
def test_an_rms_norm_of_onnxruntime_goes_with_its_projections(epsilon: float | None) -> None:
    model = normed(-1, epsilon)
    result = atcfuse.optimize(model, dialect="portable")
    assert [f["op"] for f in result.report["fusions"]] == ["FusedLayerNormQKV"]
    for batch in (1, 3):
        x = np.random.default_rng(batch).normal(size=(batch, 6, 8)).astype(np.float32)
        for mine, theirs in zip(run(result.model, x), run(model, x), strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=2e-5, atol=2e-6)


def test_one_over_two_axes_is_kept() -> None:
    result = atcfuse.optimize(normed(1, 1e-6))
    assert [f["op"] for f in result.report["fusions"]] == ["FusedQKV"], "its projections fuse without it"
    assert "SimplifiedLayerNormalization" in {n.op_type for n in result.model.graph.node}


@pytest.mark.parametrize(
    ("rows", "scale"), [(TensorProto.FLOAT16, TensorProto.FLOAT), (TensorProto.FLOAT, TensorProto.FLOAT16)]
)
@pytest.mark.parametrize("behind", ["Add", "MatMul"])
def test_a_norm_that_converts_is_kept(rows: int, scale: int, behind: str) -> None:
    """The scale's element type is that of the result; no fused norm converts."""
    shape = ["B", 6, 8]
    graph = helper.make_graph(
        [
            helper.make_node("SimplifiedLayerNormalization", ["x", "g"], ["n"], axis=-1, epsilon=1e-6),
            helper.make_node(behind, ["n", "r"], ["y"]),
        ],
        "converting",
        [
            helper.make_tensor_value_info("x", rows, shape),
            helper.make_tensor_value_info("g", scale, [8]),
            helper.make_tensor_value_info("r", scale, shape if behind == "Add" else [8, 8]),
        ],
        [helper.make_tensor_value_info("y", scale, shape)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    result = atcfuse.optimize(model, dialect="portable", min_saving_us=0.0, forced=frozenset({"all"}))
    assert result.model.graph.node[0].op_type == "SimplifiedLayerNormalization"
    ort.InferenceSession(result.model.SerializeToString(), providers=["CPUExecutionProvider"])
