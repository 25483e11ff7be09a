"""Operators of onnxruntime's optimizer of transformers are spelled out and fuse; numbers are onnxruntime's."""

from __future__ import annotations

from collections import Counter
from copy import deepcopy

import numpy as np
import onnx
import plain
import pytest
from infer_oracle import inferred
from onnx import TensorProto, helper, numpy_helper

import atcfuse
from atcfuse import moves
from atcfuse.keep_nodes import NO_NODES

FLOAT, INT32 = TensorProto.FLOAT, TensorProto.INT32
B, S, D, H = 2, 5, 16, 4
LENGTHS, KEPT = np.array([3, 5], np.int32), np.array([[1, 0, 2, 1, -1], [0, 1, 1, 1, 1]], np.int32)
NONE = np.array([[0, 0, 0, 0, 0], [1, 1, 1, 1, 1]], np.int32)


def own(op: str, inputs: str, outputs: str, **attributes: object) -> onnx.NodeProto:
    return helper.make_node(op, inputs.split(","), outputs.split(","), domain="com.microsoft", **attributes)


def std(op: str, inputs: str, outputs: str, **attributes: object) -> onnx.NodeProto:
    return helper.make_node(op, inputs.split(","), outputs.split(","), **attributes)


def weights() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    sizes = {
        "w": (D, 3 * D), "b": (3 * D,), "u": (D, 64), "ub": (64,), "d": (64, D), "db": (D,), "g": (D,), "h": (D,),
        "s": (1, S, D), "n": (D, 3 * D - 8), "nb": (3 * D - 8,),
    }  # fmt: skip
    return {name: rng.normal(size=size, scale=0.3).astype(np.float32) for name, size in sizes.items()}


def model(
    nodes: list[onnx.NodeProto], mask: np.ndarray | None = None, outputs: tuple[str, ...] = ("y",), opset: int = 17
) -> onnx.ModelProto:
    batch: list[list[str | int]] = [["B", "S"], ["B"]]
    table = any("s" in node.input for node in nodes)
    inputs = [helper.make_tensor_value_info("x", FLOAT, ["B", S if table else "S", D])]
    if mask is not None:
        inputs.append(helper.make_tensor_value_info("m", INT32, batch[0] if mask.ndim == 2 else batch[1]))
    for number, node in enumerate(nodes):
        node.name = f"n{number}"
    read = {i for node in nodes for i in node.input}
    given = [numpy_helper.from_array(a, n) for n, a in weights().items() if n in read]
    graph = helper.make_graph(
        nodes, "g", inputs, [helper.make_tensor_value_info(o, FLOAT, None) for o in outputs], given
    )
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


def run(proto: onnx.ModelProto, mask: np.ndarray | None) -> list[np.ndarray]:
    x = np.random.default_rng(2).normal(size=(B, S, D)).astype(np.float32)
    return plain.run_plain(proto, {"x": x, "m": mask} if mask is not None else {"x": x})


def fused(proto: onnx.ModelProto, mask: np.ndarray | None = None) -> Counter[str]:
    """The operators of the optimized model, whose results are those of the original."""
    result = atcfuse.optimize(deepcopy(proto), dialect="portable", min_saving_us=0.0)
    for got, wanted in zip(run(result.model, mask), run(proto, mask), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=2e-5)
    return Counter(f"{n.domain}::{n.op_type}".removeprefix("::") for n in result.model.graph.node)


ACTIVATIONS = {
    "BiasGelu": [std("MatMul", "x,u", "a"), own("BiasGelu", "a,ub", "f")],
    "Gelu": [std("MatMul", "x,u", "a"), std("Add", "a,ub", "p"), own("Gelu", "p", "f")],
    "FastGelu with a bias": [std("MatMul", "x,u", "a"), own("FastGelu", "a,ub", "f")],
    "FastGelu": [std("MatMul", "x,u", "a"), std("Add", "a,ub", "p"), own("FastGelu", "p", "f")],
    "QuickGelu": [std("MatMul", "x,u", "a"), own("QuickGelu", "a", "f")],
    "QuickGelu as SiLU": [std("MatMul", "x,u", "a"), own("QuickGelu", "a", "f", alpha=1.0)],
}


@pytest.mark.parametrize("opset", [13, 17])
@pytest.mark.parametrize("nodes", ACTIVATIONS.values(), ids=ACTIVATIONS)
def test_activations_go_with_their_products(nodes: list[onnx.NodeProto], opset: int) -> None:
    behind = [std("MatMul", "f,d", "z"), std("Add", "z,db", "y")]
    assert fused(model([*deepcopy(nodes), *behind], opset=opset)) == Counter({"atcfuse::FusedFFN": 1})


def test_an_activation_of_another_factor_is_one_group() -> None:
    found = fused(model([own("QuickGelu", "x", "f", alpha=0.7), std("Tanh", "f", "y")]))
    assert not [op for op in found if not op.startswith("atcfuse::FusedElementwise")]


NORMS = {
    "with a shift and a bias": (own("SkipLayerNormalization", "a,x,g,h,db", "o", epsilon=1e-5), ("y",)),
    "the product second": (own("SkipLayerNormalization", "x,a,g,h,db", "o", epsilon=1e-5), ("y",)),
    "a wide epsilon": (own("SkipLayerNormalization", "a,x,g,h", "o", epsilon=0.5), ("y",)),
    "epsilon left out": (own("SkipLayerNormalization", "a,x,g", "o"), ("y",)),
    "the sum is read": (own("SkipLayerNormalization", "a,x,g,h,db", "o,,,t", epsilon=1e-5), ("y", "t")),
    "one batch for all": (own("SkipLayerNormalization", "a,s,g,h", "o", epsilon=1e-5), ("y",)),
    "without a mean": (own("SkipSimplifiedLayerNormalization", "a,x,g,db", "o,,,t", epsilon=1e-6), ("y", "t")),
}


@pytest.mark.parametrize("opset", [13, 17, 18])
@pytest.mark.parametrize(("norm", "outputs"), NORMS.values(), ids=NORMS)
def test_norms_of_sums_go_with_what_is_around_them(norm: onnx.NodeProto, outputs: tuple[str, ...], opset: int) -> None:
    nodes = [std("MatMul", "x,u", "k"), std("MatMul", "k,d", "a"), deepcopy(norm), std("MatMul", "o,w", "y")]
    found = fused(model(nodes, outputs=outputs, opset=opset))
    assert not [op for op in found if op.startswith("com.microsoft")]
    assert [op for op in found if "Norm" in op and op.startswith("atcfuse::")]


def test_statistics_that_are_read_keep_a_norm() -> None:
    nodes = [own("SkipLayerNormalization", "x,x,g,h", "o,mean", epsilon=1e-5), std("Add", "o,mean", "y")]
    begun = moves.find(inferred(model(nodes)), NO_NODES)
    assert not begun


ATTENTIONS = {
    "no mask": (own("Attention", "x,w,b", "y", num_heads=H), None),
    "no bias": (own("Attention", "x,w,", "y", num_heads=H), None),
    "a factor": (own("Attention", "x,w,b", "y", num_heads=H, scale=0.3), None),
    "no later keys": (own("Attention", "x,w,b", "y", num_heads=H, unidirectional=1), None),
    "numbers of keys": (own("Attention", "x,w,b,m", "y", num_heads=H), LENGTHS),
    "more keys than there are": (own("Attention", "x,w,b,m", "y", num_heads=H), LENGTHS + 3),
    "a mask of keys": (own("Attention", "x,w,b,m", "y", num_heads=H), KEPT),
    "no key at all": (own("Attention", "x,w,b,m", "y", num_heads=H, mask_filter_value=-3.4028234663852886e38), NONE),
    "a weak mask": (own("Attention", "x,w,b,m", "y", num_heads=H, mask_filter_value=-1.5), KEPT),
    "values of another width": (
        own("Attention", "x,n,nb", "y", num_heads=H, qkv_hidden_sizes=[D, D, D - 8]),
        None,
    ),
}


@pytest.mark.parametrize("opset", [12, 17])
@pytest.mark.parametrize(("node", "mask"), ATTENTIONS.values(), ids=ATTENTIONS)
def test_attention_fuses_with_its_projection_before(node: onnx.NodeProto, mask: np.ndarray | None, opset: int) -> None:
    norm = std("LayerNormalization", "x,g,h", "r") if opset >= 17 else std("Relu", "x", "r")
    inner = deepcopy(node)
    inner.input[0] = "r"
    found = fused(model([norm, inner], mask, opset=opset), mask)
    assert found["atcfuse::FusedAttention"] == 1
    assert not {"Softmax", "Transpose", "com.microsoft::Attention"} & set(found)


def test_keys_and_values_are_handed_on() -> None:
    attention = own("Attention", "x,w,b", "y,kv", num_heads=H, unidirectional=1)
    assert fused(model([attention], outputs=("y", "kv")))["atcfuse::FusedAttention"] == 1
    zero, one = (helper.make_tensor(n, TensorProto.INT64, [], [v]) for n, v in (("zero", 0), ("one", 1)))
    proto = model([attention, std("Gather", "kv,zero", "k"), std("Gather", "kv,one", "v")], outputs=("y", "k", "v"))
    proto.graph.initializer.extend((zero, one))
    found = fused(proto)
    assert found["atcfuse::FusedAttention"] == 1
    assert not {"Gather", "Concat"} & set(found)


STAYS = {
    "a mask and no later keys": (own("Attention", "x,w,b,m", "y", num_heads=H, unidirectional=1), LENGTHS),
    "rotated": (own("Attention", "x,w,b", "y", num_heads=H, do_rotary=1), None),
    "keys of the past": (own("Attention", "x,w,b,,past", "y,kv", num_heads=H), None),
    "heads that do not fit": (own("Attention", "x,w,b", "y", num_heads=5), None),
}


@pytest.mark.parametrize(("node", "mask"), STAYS.values(), ids=STAYS)
def test_other_attention_stays_with_a_reason(node: onnx.NodeProto, mask: np.ndarray | None) -> None:
    proto = model([deepcopy(node)], mask)
    if "past" in node.input:
        proto.graph.input.append(helper.make_tensor_value_info("past", FLOAT, [2, "B", H, "P", D // H]))
    result = atcfuse.optimize(proto, dialect="portable")
    assert [n.op_type for n in result.model.graph.node] == ["Attention"]
    assert [k["code"] for k in result.report["kept"] if k["anchor"] == "n0"] == ["ATF314"]
