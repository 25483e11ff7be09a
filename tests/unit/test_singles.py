"""Single norm operators: fused when nothing else takes them, by what ATC may make of them, and told of when kept."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import plain
import pytest

import atcfuse

HEAD = '<ir_version: 8, opset_import: ["" : 17]> g'
NORM = "(float[2,S,8] x, float[8] g, float[8] b) => (float[2,S,8] y) { a = Softmax(x) y = LayerNormalization(a, g, b) }"
NO_SHIFT = "(float[2,S,8] x, float[8] g) => (float[2,8,S] y) { n = LayerNormalization(x, g) y = Transpose<perm = [0, 2, 1]>(n) }"
TWO = "(float[2,S,8] x, float[8] g, float[8] b) => (float[2,S,8] y) { n = LayerNormalization(x, g, b) y = LayerNormalization(n, b, g) }"
BRANCH = """(float[2,S,8] x, float[8] g, float[8] b, bool c) => (float[2,S,8] y) {
    y = If(c) <then_branch = yes () => (float[2,S,8] n) { n = LayerNormalization(x, g, b) },
              else_branch = no () => (float[2,S,8] m) { m = Softmax(x) }> }"""
PROJECTED = """(float[2,S,8] x, float[8] g, float[8] b, float[8,4] p, float[8,4] q, float[8,4] r)
    => (float[2,S,4] u, float[2,S,4] v, float[2,S,4] w, float[2,S,8] n) {
    n = LayerNormalization(x, g, b) u = MatMul(n, p) v = MatMul(n, q) w = MatMul(n, r) }"""


def optimized(body: str, **options: Any) -> tuple[onnx.ModelProto, Any]:
    proto = plain.parsed(HEAD + body)
    return proto, atcfuse.optimize(deepcopy(proto), dialect="portable", **options)


def ops(model: onnx.ModelProto) -> list[str]:
    bodies = [a.g for n in model.graph.node for a in n.attribute if a.HasField("g")]
    return [n.op_type for graph in (model.graph, *bodies) for n in graph.node]


def feeds(proto: onnx.ModelProto) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    sizes = {i.name: [d.dim_value or 5 for d in i.type.tensor_type.shape.dim] for i in proto.graph.input}
    return {n: np.array(True) if n == "c" else rng.normal(size=s).astype(np.float32) for n, s in sizes.items()}


@pytest.mark.parametrize(
    ("body", "fused"), [(NORM, 1), (NO_SHIFT, 1), (TWO, 2), (BRANCH, 1)], ids=["last", "no shift", "two", "branch"]
)
def test_a_norm_that_nothing_takes_becomes_a_fused_one(body: str, fused: int) -> None:
    proto, result = optimized(body)
    assert ops(result.model).count("FusedLayerNorm") == fused
    assert "LayerNormalization" not in ops(result.model)
    given = feeds(proto)
    for got, expected in zip(plain.run_plain(result.model, given), plain.run_plain(proto, given), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)
    again = atcfuse.optimize(deepcopy(result.model), dialect="portable").model
    assert again.SerializeToString(deterministic=True) == result.model.SerializeToString(deterministic=True)


@pytest.mark.parametrize(
    ("opset", "body"),
    [
        (17, "(float[2,3,8] x, float[3,8] g, float[8] b) => (float[2,3,8] n) { n = LayerNormalization(x, g, b) }"),
        (23, "(float[2,3,8] x, float[3,8] g) => (float[2,3,8] n) { n = RMSNormalization(x, g) }"),
    ],
)
def test_a_scale_of_several_rows_keeps_a_norm(opset: int, body: str) -> None:
    """No examples of the rules, since not every onnxruntime that is supported runs these models."""
    proto = plain.parsed(f'<ir_version: 8, opset_import: ["" : {opset}]> g {body}')
    result = atcfuse.optimize(deepcopy(proto), dialect="portable")
    assert [node.op_type for node in result.model.graph.node] == [node.op_type for node in proto.graph.node]
    assert "ATF314" in {kept["code"] for kept in result.report["kept"]}


def test_it_claims_nothing_and_says_what_atc_would_do() -> None:
    _, result = optimized(NORM)
    (fusion,) = result.report["fusions"]
    assert fusion["launches_saved"] == 0
    assert fusion["remarks"] == ["ATC makes up to 2 launches more of a LayerNormalization, which no figure counts"]
    summary = result.report["summary"]
    assert summary["launches_before"] == summary["launches_after"]


def test_larger_fusions_go_before() -> None:
    _, result = optimized(PROJECTED, min_saving_us=0.0)
    assert ops(result.model) == ["FusedLayerNormQKV"]


@pytest.mark.parametrize(("saving", "kept"), [(30.0, False), (31.0, True)])
def test_what_atc_may_make_more_is_held_against_the_threshold(saving: float, kept: bool) -> None:
    """Two launches of 15 µs at the high end; the kernel itself gains next to nothing."""
    _, result = optimized(NORM, min_saving_us=saving)
    assert ("LayerNormalization" in ops(result.model)) == kept
    assert [k["code"] for k in result.report["kept"] if k["rule"] == "layer_norm_operator"] == ["ATF330"] * kept


def test_switched_off_it_stays_and_says_so(tmp_path: Path) -> None:
    file = tmp_path / "switch.json"
    file.write_text('{"Switch": {"GraphFusion": {"FusedLayerNormOperatorFusionPass": "off"}}}')
    _, result = optimized(NORM, switch_file=file)
    assert "LayerNormalization" in ops(result.model)
    assert [(k["rule"], k["code"]) for k in result.report["kept"] if k["rule"] != "attention"] == [
        ("layer_norm_operator", "ATF321")
    ]


def test_an_operator_without_any_plugin_is_replaced() -> None:
    body = "(float[2,S,8] x, float[8] g) => (float[2,S,8] y) { a = Softmax(x) y = RMSNormalization<axis = -1>(a, g) }"
    proto = plain.parsed(HEAD.replace("17", "23") + body)
    result = atcfuse.optimize(proto, dialect="portable")
    assert ops(result.model) == ["Softmax", "FusedRMSNorm"]
