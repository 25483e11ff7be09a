"""Launches that are no nodes: changes of layout around 310P's products, casts at a model's boundary."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import onnx.parser
import pytest
from cost_cases import attention, elementwise, product

from atcfuse.compiler import optimize_proto, toolbox
from atcfuse.cost import fusion_cost, unfused_cost
from atcfuse.cost.conversions import with_layout_changes
from atcfuse.device import load_device
from atcfuse.graph.store import load
from atcfuse.graph.text import parse_graph
from atcfuse.graph.work import OpWork, transdata_work
from atcfuse.options import Options
from atcfuse.planner import KernelWork

SAMPLES = Path(__file__).parents[2] / "sample_models"
B1, P3 = load_device("Ascend910B1"), load_device("Ascend310P3")
SIZES = (1, 64, 64, 64)


def ops(works: list[OpWork]) -> list[str]:
    return [work.op for work in works]


def test_a_product_between_vector_operators_has_changes_on_both_sides() -> None:
    works = [
        elementwise("Relu", ["x"], "r", 4096),
        product("m", "r", "w", "y", SIZES),
        elementwise("Exp", ["y"], "z", 9),
    ]
    works[1] = works[1]._replace(constants=frozenset({"w"}))
    found = with_layout_changes(works)
    assert ops(found) == ["Relu", "TransData", "MatMul", "TransData", "Exp"]
    assert [work.added for work in found] == [False, True, False, True, False]
    relu, there, matmul, back, exp = found
    assert there.reads.keys() == relu.writes.keys()
    assert set(there.writes) <= set(matmul.reads)
    assert matmul.writes.keys() == back.reads.keys()
    assert back.writes.keys() == exp.reads.keys() == {"y"}
    assert matmul.product is not None
    assert {matmul.product.a, matmul.product.b} == set(matmul.reads)


def test_what_a_product_hands_to_a_product_stays_as_it_lies() -> None:
    pair = [product("m", "x", "w", "y", SIZES), product("n", "y", "v", "z", SIZES)]
    pair = [work._replace(constants=frozenset({"w", "v"})) for work in pair]
    assert ops(with_layout_changes(pair)) == ["TransData", "MatMul", "MatMul", "TransData"]
    assert ops(with_layout_changes(pair, ["y"])) == ["TransData", "MatMul", "TransData", "MatMul", "TransData"]
    assert ops(with_layout_changes(pair, fractal=["x"])) == ["MatMul", "MatMul", "TransData"]


def test_a_value_is_changed_once_for_all_its_readers() -> None:
    twice = [product("m", "x", "w", "y", SIZES), product("n", "x", "v", "z", SIZES)]
    twice = [work._replace(constants=frozenset({"w", "v"})) for work in twice]
    assert ops(with_layout_changes(twice)) == ["TransData", "MatMul", "TransData", "MatMul", "TransData"]


def test_a_product_that_nothing_reads_changes_no_result() -> None:
    unread = product("m", "x", "w", "y", SIZES)._replace(writes={}, constants=frozenset({"w"}))
    assert ops(with_layout_changes([unread])) == ["TransData", "MatMul"]


def test_a_product_with_bias_that_nothing_reads_is_counted() -> None:
    graph = "(float[16,32] x, float[32,32] w, float[32] b) => (float[16,32] y) { m = MatMul(x, w) d = Add(m, b) y = Relu(x) }"
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> g {graph}')
    report = optimize_proto(model, toolbox(Options(soc="Ascend310P3"))).report
    assert report["fusions"] == []


def test_chips_whose_products_take_nd_have_none() -> None:
    works = attention(1, 2, 64, 64)
    assert unfused_cost(works, B1).conversions == 0
    assert unfused_cost(works, P3).conversions == 6
    assert unfused_cost(works, P3).launches == unfused_cost(works, B1).launches == len(works)


def test_changes_are_in_traffic_and_time_but_no_launches_of_the_graph() -> None:
    works = attention(1, 2, 64, 64)
    fractal, plain = unfused_cost(works, P3), unfused_cost(works, replace(P3, cube_layout="nd"))
    assert fractal.tensor_bytes == plain.tensor_bytes
    operand, scores = 2 * 64 * 64 * 2, 2 * 64 * 64 * 2
    assert fractal.gm_bytes - plain.gm_bytes == 2 * (4 * operand + 2 * scores)
    assert fractal.overhead_us.low >= plain.overhead_us.low + 6 * P3.launch_us.low


def test_an_input_that_a_product_made_is_changed_before_the_kernel_only() -> None:
    works = [
        product("m", "x", "w", "y", SIZES)._replace(constants=frozenset({"w"})),
        elementwise("Relu", ["y"], "z", 9),
    ]
    kernel = KernelWork("k", {"x": 8192}, {"z": 18}, around=(transdata_work("x", 8192),))
    cost = fusion_cost(works, kernel, P3)
    assert (cost.before.conversions, cost.after.conversions) == (1, 1)
    bare = fusion_cost(works, replace(kernel, around=()), P3)
    assert (bare.before.conversions, bare.after.conversions) == (2, 0)


# ---------------------------------------------------------------- whole models


def summary(model: onnx.ModelProto, **options: Any) -> dict[str, Any]:
    found: dict[str, Any] = optimize_proto(model, toolbox(Options(dialect="portable", **options))).report["summary"]
    return found


def conversions(model: onnx.ModelProto, **options: Any) -> tuple[int, int]:
    found = summary(model, **options)
    return found["conversions_before"], found["conversions_after"]


MODEL = """(float[2,8] x, float16[8] h, int64[1] i) => (float[2,8] y, float16[8] z, int64[1] j) {
  y = Relu(x)
  z = Relu(h)
  j = Neg(i)
}"""


def test_float32_ends_of_a_model_are_cast_where_it_runs_in_float16() -> None:
    assert conversions(parse_graph(MODEL, 17)) == (2, 2)
    kept = summary(parse_graph(MODEL, 17), precision_mode="must_keep_origin_dtype")
    assert (kept["conversions_before"], kept["launches_before"]) == (0, 3)
    cast = summary(parse_graph(MODEL, 17))
    assert cast["launches_before"] == 3
    assert cast["gm_bytes_before"] == kept["gm_bytes_before"] - 2 * 32 + 2 * (64 + 32)


@pytest.mark.parametrize("soc", ["Ascend910B1", "Ascend310P3"])
def test_a_fused_attention_needs_none_of_the_changes_of_its_nodes(soc: str) -> None:
    name = "bert_ts17_fp32_dynamic.onnx"
    tools = toolbox(Options(dialect="portable", soc=soc))
    report = optimize_proto(load(SAMPLES / name), tools, SAMPLES / name, name).report
    saved = [f["conversions_saved"] for f in report["fusions"] if f["op"] == "FusedAttention"]
    assert saved == ([6, 6] if soc == "Ascend310P3" else [0, 0])
    found = report["summary"]
    assert found["conversions_before"] - found["conversions_after"] == sum(saved)
    assert "casts at the model's float32 inputs" in report["basis"]["conversions"]
    assert ("changes of layout" in report["basis"]["conversions"]) == (soc == "Ascend310P3")


def test_a_product_right_before_a_fused_node_is_told_apart() -> None:
    """As it stands the scores' product reads the queries as their product left them; the kernel takes ND."""
    text = """(float[1,2,64,64] a, float[64,64] w, float[1,2,64,64] k, float[1,2,64,64] v) => (float[1,2,64,64] y)
      <float s = {8.0}> {
        q = MatMul(a, w)
        t = Transpose<perm=[0,1,3,2]>(k)
        raw = MatMul(q, t)
        scaled = Div(raw, s)
        p = Softmax<axis=-1>(scaled)
        y = MatMul(p, v)
      }"""
    tools = toolbox(Options(dialect="portable", soc="Ascend310P3"))
    report = optimize_proto(parse_graph(text, 17), tools).report
    (fusion,) = report["fusions"]
    found = report["summary"]
    assert fusion["conversions_saved"] == found["conversions_before"] - found["conversions_after"] == 4
