"""Fused nodes back to standard operators: names, order, scopes, and everything else untouched."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx.parser
import pytest

import atcfuse
from atcfuse.diagnostics import AtcfuseError
from atcfuse.graph.inline import inline_fused
from atcfuse.restore import restore, restore_file
from atcfuse.verify import verify

SAMPLES = Path(__file__).parents[2] / "sample_models"
HEADER = '<ir_version: 10, opset_import: ["" : 17, "atcfuse" : 1]>'


def _function(body: str, opset: int = 17, signature: str = "(a, b) => (c)", attributes: str = "") -> onnx.FunctionProto:
    head = f'<domain: "atcfuse", overload: "v", opset_import: ["" : {opset}]>'
    return onnx.parser.parse_function(f"{head} FusedThing {attributes}{signature} {{{body}}}")


def _model(graph: str, function: onnx.FunctionProto) -> onnx.ModelProto:
    model = onnx.parser.parse_model(f"{HEADER} g {graph}")
    for at, node in enumerate(model.graph.node):
        node.name = node.name or f"n{at}"
        if node.domain == "atcfuse":
            node.overload = "v"
    model.functions.append(function)
    return model


def _lines(model: onnx.ModelProto) -> list[str]:
    return [f"{n.name}: {n.op_type}({', '.join(n.input)}) -> {', '.join(n.output)}" for n in model.graph.node]


@pytest.mark.parametrize("dialect", ["atc", "atc-flat", "portable"])
@pytest.mark.parametrize(
    "name", ["bert_ts17_fp32_dynamic", "t5_ts14_fp32_dynamic", "llama_dynamo18_fp32_dynamic", "gpt2_ts14_fp32_dynamic"]
)
def test_real_models_agree_with_the_original(name, dialect):
    original = onnx.load(SAMPLES / f"{name}.onnx")
    fused = atcfuse.optimize(original, dialect=dialect).model
    before = fused.SerializeToString()
    restored = restore(fused)
    assert fused.SerializeToString() == before
    assert not restored.functions
    assert [entry.domain for entry in restored.opset_import] == [""]
    assert {node.domain for node in restored.graph.node} == {""}
    onnx.checker.check_model(restored, full_check=True)
    here = Path()
    assert verify(original, restored, base_dir_original=here, base_dir_optimized=here).ok


def test_the_functions_nodes_take_the_place_of_the_call():
    function = _function("h = Mul(a, b) c = Relu(h)")
    graph = "(float[2] x, float[2] w) => (float[2] z) { p = Neg(x) q = atcfuse.FusedThing(p, w) z = Abs(q) }"
    model = _model(graph, function)
    untouched = [n.SerializeToString() for n in model.graph.node if not n.domain]
    assert inline_fused(model) == ["n1"]
    assert _lines(model) == [
        "n0: Neg(x) -> p",
        "n1/Mul: Mul(p, w) -> n1/h",
        "n1/Relu: Relu(n1/h) -> q",
        "n2: Abs(q) -> z",
    ]
    assert [model.graph.node[0].SerializeToString(), model.graph.node[3].SerializeToString()] == untouched
    assert not model.functions
    assert [entry.domain for entry in model.opset_import] == [""]


def test_two_calls_and_names_that_are_taken_stay_apart():
    function = _function("h = Mul(a, b) c = Relu(h)")
    graph = "(float[2] x) => (float[2] z) { p = atcfuse.FusedThing(x, x) z = atcfuse.FusedThing(p, x) }"
    model = _model(graph, function)
    model.graph.node[0].output[0] = model.graph.node[1].input[0] = "n1/h"
    inline_fused(model)
    made = [name for node in model.graph.node for name in (node.name, *node.output)]
    assert len(made) == len(set(made)) == 8
    onnx.checker.check_model(model, full_check=True)


def test_an_absent_input_and_an_unused_output():
    function = _function("c = Relu(a) d = Neg(c)", signature="(a, b) => (c, d)")
    model = _model("(float[2] x) => (float[2] z) { , z = atcfuse.FusedThing(x) }", function)
    assert list(model.graph.node[0].output) == ["", "z"]
    inline_fused(model)
    assert _lines(model) == ["n0/Relu: Relu(x) -> n0/c", "n0/Neg: Neg(n0/c) -> z"]
    onnx.checker.check_model(model, full_check=True)


def test_attributes_are_passed_on():
    function = _function("c = LeakyRelu<alpha: float = @slope>(a)", attributes="<slope>", signature="(a, b) => (c)")
    calls = "y = atcfuse.FusedThing<slope = 0.5>(x, x) z = atcfuse.FusedThing(x, x)"
    graph = f"(float[2] x) => (float[2] y, float[2] z) {{ {calls} }}"
    model = _model(graph, function)
    inline_fused(model)
    first, second = model.graph.node
    assert [(a.name, a.f, a.ref_attr_name) for a in first.attribute] == [("alpha", 0.5, "")]
    assert not second.attribute


def test_bodies_of_control_flow_are_restored_and_captured_values_renamed():
    body = """
      h = Mul(a, b)
      t = Constant<value = bool {1}>()
      c = If(t) <then_branch = g1 () => (float[2] u) { u = Neg(h) }, else_branch = g2 () => (float[2] v) { v = Abs(a) }>
    """
    graph = """(bool k, float[2] x) => (float[2] z) {
      z = If(k) <then_branch = g3 () => (float[2] p) { p = atcfuse.FusedThing(x, x) },
                 else_branch = g4 () => (float[2] q) { q = Neg(x) }>
    }"""
    model = _model(graph, _function(body))
    inner = model.graph.node[0].attribute[0].g
    inner.node[0].name, inner.node[0].overload = "call", "v"
    assert inline_fused(model) == ["call"]
    assert [node.op_type for node in inner.node] == ["Mul", "Constant", "If"]
    then_branch, else_branch = (a.g for a in inner.node[2].attribute)
    assert list(then_branch.node[0].input) == ["call/h"]
    assert list(else_branch.node[0].input) == ["x"]
    onnx.checker.check_model(model, full_check=True)


def test_a_call_without_its_function_has_a_code():
    graph = "(float[2] x) => (float[2] z) { z = atcfuse.FusedOther(x) }"
    with pytest.raises(AtcfuseError, match=r"ATF140.*n0.*FusedOther"):
        inline_fused(_model(graph, _function("c = Relu(a)")))


@pytest.mark.parametrize(
    ("function", "what"),
    [(_function("c = Relu(a)", opset=15), "opset 15"), (_function("c = atcfuse.FusedThing(a, b)"), "FusedThing")],
)
def test_a_function_that_cannot_be_inlined_has_a_code(function, what):
    with pytest.raises(AtcfuseError, match=rf"ATF141.*{what}"):
        inline_fused(_model("(float[2] x) => (float[2] z) { z = atcfuse.FusedThing(x, x) }", function))


def test_functions_of_the_user_stay(tmp_path):
    model = _model("(float[2] x) => (float[2] z) { z = atcfuse.FusedThing(x, x) }", _function("c = Mul(a, b)"))
    model.functions.append(
        onnx.parser.parse_function('<domain: "own", opset_import: ["" : 17]> Own (a) => (b) {b = Abs(a)}')
    )
    onnx.save(model, tmp_path / "m.onnx")
    done = restore_file(tmp_path / "m.onnx", tmp_path / "out.onnx")
    assert done.nodes == ("n0",)
    assert [f.name for f in onnx.load(tmp_path / "out.onnx").functions] == ["Own"]
