"""The launches of an optimized model in order: fusions where they stand, what is left between them counted once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from onnx import parser

import atcfuse

SAMPLES = Path(__file__).parents[2] / "sample_models"

_IN_A_BRANCH = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[4,64] x, bool c) => (float[4,64] z) <float[64,64] w> {
  m = MatMul(x, w)
  y = If(c) <
    then_branch = yes () => (float[4,64] t) { s = Abs(x)  r = Relu(s)  u = Sigmoid(r)  t = Exp(u) },
    else_branch = no () => (float[4,64] e) { e = Softmax(m) }
  >
  z = MatMul(y, w)
}
"""


@pytest.mark.parametrize(
    "name", ["bert_ts17_fp32_dynamic", "llama_dynamo18_fp32_dynamic", "whisper_dynamo17_fp16_dynamic"]
)
def test_fusions_stand_in_the_order_of_the_model_and_nothing_left_is_lost(name: str) -> None:
    result = atcfuse.optimize(SAMPLES / f"{name}.onnx", dialect="portable")
    report = result.report
    # Launches that are taken away leave no launch that could stand anywhere.
    ours = [fusion["name"] for fusion in report["fusions"] if not fusion["rule"].startswith("no_op_")]
    assert ours == [node.name for node in result.model.graph.node if node.name in ours]
    between: Counter[str] = Counter(report["left_last"])
    for fusion in report["fusions"]:
        between.update(fusion["left_before"])
    assert between == {entry["op"]: entry["count"] for entry in report["left"]}
    assert len(ours) + between.total() == report["summary"]["launches_after"]


def test_what_stands_in_a_branch_is_met_where_the_branch_is() -> None:
    model = parser.parse_model(_IN_A_BRANCH)
    result = atcfuse.optimize(model, dialect="portable")
    (fusion,) = result.report["fusions"]
    assert fusion["rule"] == "elementwise"
    assert fusion["left_before"] == {"MatMul": 1}
    assert result.report["left_last"] == {"MatMul": 1, "Softmax": 1}


def test_an_optimized_model_tells_the_same_order_again() -> None:
    first = atcfuse.optimize(SAMPLES / "bert_ts17_fp32_dynamic.onnx", dialect="portable")
    again = atcfuse.optimize(first.model, dialect="portable").report
    for key in ("name", "left_before"):
        assert [f[key] for f in again["fusions"]] == [f[key] for f in first.report["fusions"]]
    assert again["left_last"] == first.report["left_last"]
