"""Dialects convert into each other without loss, and the ATC dialects repair what ATC misreads."""

from __future__ import annotations

import copy

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper, parser

from atcfuse.check import check
from atcfuse.graph.dialect import DIALECTS, Dialect, normalise, require_overload_ir, to_dialect
from atcfuse.graph.walk import blocks

FUSED = """
<ir_version: 10, opset_import: ["" : 17, "local" : 1, "atcfuse" : 1], producer_name: "torch">
g (float[N, 4] x, bool c) => (float[N, 4] y, float[N, 4] z) {
  [n_double] d = local.Double (x)
  [n_fused] f = atcfuse.FusedScale:by2 <scale = 2.0> (d)
  [n_if] y = If (c) <
    then_branch = then_g () => (float[N, 4] t) { [n_then] t = atcfuse.FusedScale:by2 <scale = 2.0> (f) },
    else_branch = else_g () => (float[N, 4] e) { [n_else] e = Neg (f) }
  >
  [n_relu] z = Relu (f)
}
<opset_import: ["" : 17], domain: "local"> Double (a) => (b) { b = Add (a, a) }
<opset_import: ["" : 17], domain: "atcfuse", overload: "by2"> FusedScale <scale> (a) => (b) {
  s = Constant <value_float: float = @scale> ()
  b = Mul (a, s)
}
"""

BARE = '<ir_version: 8, opset_import: ["" : 17]> g (float[2] x) => (float[2] y) {{ {} }}'


def without_empty_domains(model: ModelProto) -> ModelProto:
    """A domain field that is written out but empty means what a missing one means."""
    out = copy.deepcopy(model)
    for block in blocks(out):
        for holder in (*block.nodes, *out.opset_import):
            if not holder.domain:
                holder.ClearField("domain")
    return out


def fused_model() -> ModelProto:
    return without_empty_domains(parser.parse_model(FUSED))


def as_dialect(model: ModelProto, dialect: Dialect) -> ModelProto:
    out = copy.deepcopy(model)
    to_dialect(out, dialect)
    return out


def all_nodes(model: ModelProto) -> list[NodeProto]:
    return [node for block in blocks(model) if block.owner == "main" for node in block.nodes]


def domains(model: ModelProto) -> dict[str, str]:
    return {node.name: node.domain for node in all_nodes(model)}


def imports(model: ModelProto) -> list[tuple[str, int]]:
    return [(i.domain, i.version) for i in model.opset_import]


def codes(model: ModelProto, dialect: Dialect = "atc") -> list[str]:
    return [d.code for d in to_dialect(copy.deepcopy(model), dialect)]


def named(name: str, op: str = "Relu") -> NodeProto:
    return helper.make_node(op, ["x"], [""], name=name)


def test_atc_spells_the_standard_domain_in_every_body() -> None:
    model = as_dialect(fused_model(), "atc")
    assert imports(model) == [("ai.onnx", 17), ("local", 1), ("atcfuse", 1)]
    assert domains(model) == {
        "n_double": "local",
        "n_fused": "atcfuse",
        "n_if": "ai.onnx",
        "n_relu": "ai.onnx",
        "n_then": "atcfuse",
        "n_else": "ai.onnx",
    }


def test_atc_flat_empties_all_domains_but_foreign_ones() -> None:
    model = as_dialect(fused_model(), "atc-flat")
    assert imports(model) == [("", 17), ("local", 1)]
    assert {name for name, domain in domains(model).items() if domain} == {"n_double"}
    assert [f.name for f in model.functions] == ["Double", "FusedScale"]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_functions_stay_byte_for_byte(dialect: Dialect) -> None:
    before = fused_model()
    assert list(as_dialect(before, dialect).functions) == list(before.functions)


@pytest.mark.parametrize("first", DIALECTS)
@pytest.mark.parametrize("second", DIALECTS)
def test_any_dialect_to_any_other_and_back_is_exact(first: Dialect, second: Dialect) -> None:
    start = as_dialect(fused_model(), first)
    there = as_dialect(start, second)
    assert as_dialect(there, first) == start
    assert as_dialect(there, second).SerializeToString() == there.SerializeToString()


def test_only_domains_and_imports_change() -> None:
    before, after = fused_model(), as_dialect(fused_model(), "atc")
    for model in (before, after):
        del model.opset_import[:]
        for node in all_nodes(model):
            node.ClearField("domain")
    assert before == after


def test_portable_leaves_a_portable_model_alone() -> None:
    model = parser.parse_model(BARE.format("y = Relu (x)"))
    model.graph.node[0].domain = ""  # written out though empty, as some exporters do
    before = model.SerializeToString()
    assert to_dialect(model, "portable") == []
    assert model.SerializeToString() == before


@pytest.mark.parametrize("dialect", DIALECTS)
def test_normalise_gives_the_model_that_onnxruntime_runs(dialect: Dialect) -> None:
    model = as_dialect(fused_model(), dialect)
    before = model.SerializeToString()
    session = onnxruntime.InferenceSession(normalise(model).SerializeToString(), providers=["CPUExecutionProvider"])
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    y, z = session.run(None, {"x": x, "c": np.array(True)})
    np.testing.assert_array_equal(y, 8 * x)
    np.testing.assert_array_equal(z, 4 * x)
    assert model.SerializeToString() == before


def test_normalise_shares_nothing() -> None:
    model = fused_model()
    before = model.SerializeToString()
    normalise(model).graph.node[0].name = "changed"
    assert model.SerializeToString() == before


def test_a_user_operator_of_the_same_name_is_not_taken_for_ours() -> None:
    model = fused_model()
    model.graph.node.append(helper.make_node("FusedScale", ["x"], ["u"], name="no_overload"))
    model.graph.node.append(helper.make_node("FusedScale", ["x"], ["v"], name="theirs", domain="local", overload="by2"))
    found = domains(as_dialect(model, "atc"))
    assert found["no_overload"] == "ai.onnx"
    assert found["theirs"] == "local"


def test_training_graphs_follow_but_are_not_repaired() -> None:
    model = parser.parse_model(BARE.format("[r] y = Relu (x)"))
    model.training_info.add().algorithm.node.extend([named(""), named("r")])
    assert to_dialect(model, "atc") == []
    assert [(n.domain, n.name) for n in model.training_info[0].algorithm.node] == [("ai.onnx", ""), ("ai.onnx", "r")]


def test_import_spelled_twice_becomes_one() -> None:
    model = parser.parse_model(BARE.format("[r] y = Relu (x)"))
    model.opset_import.add(domain="ai.onnx", version=17)
    assert to_dialect(model, "atc") == []
    assert imports(model) == [("ai.onnx", 17)]
    model.opset_import.add(domain="", version=18)
    assert [d.code for d in to_dialect(model, "portable")] == ["ATF604"]
    assert imports(model) == [("", 18)]


def test_ir_version_rises_only_for_an_overload() -> None:
    model = fused_model()
    for before, after in [(8, 10), (10, 10), (12, 12)]:
        model.ir_version = before
        require_overload_ir(model)
        assert model.ir_version == after
    for function in model.functions:
        function.ClearField("overload")
    model.ir_version = 8
    require_overload_ir(model)
    assert model.ir_version == 8


def test_unnamed_nodes_get_free_names_in_order() -> None:
    model = parser.parse_model(BARE.format("a = Relu (x) [Relu_0] b = Relu (a) c = Relu (b) y = Neg (c)"))
    model.graph.input[0].name = "Relu_2"
    (diagnostic,) = to_dialect(model, "atc")
    assert [n.name for n in model.graph.node] == ["Relu_1", "Relu_0", "Relu_3", "Neg_0"]
    assert (diagnostic.code, diagnostic.severity) == ("ATF600", "info")
    assert diagnostic.message.startswith("3 nodes")


def test_double_names_keep_the_first() -> None:
    model = parser.parse_model(BARE.format("[n] a = Relu (x) [n] b = Relu (a) [n_0] c = Relu (b) [n] y = Neg (c)"))
    assert codes(model) == ["ATF601"]
    assert [n.name for n in as_dialect(model, "atc-flat").graph.node] == ["n", "n_1", "n_0", "n_2"]


def test_a_node_named_like_an_input_is_renamed_unless_that_is_a_constant() -> None:
    model = parser.parse_model(BARE.format("[x] y = Relu (x)"))
    assert codes(model) == ["ATF602"]
    assert [n.name for n in as_dialect(model, "atc").graph.node] == ["x_0"]
    model.graph.initializer.append(helper.make_tensor("x", TensorProto.FLOAT, [2], [1, 2]))
    assert codes(model) == []


def test_names_are_unique_over_bodies() -> None:
    model = fused_model()
    for node in all_nodes(model):
        node.name = "same"
    found = [n.name for n in all_nodes(as_dialect(model, "atc"))]
    assert len(set(found)) == len(found) == 6


def left_out(first: list[str], second: list[str], inputs: list[str]) -> onnx.ModelProto:
    """Two splits with these outputs, and a Clip with these inputs."""
    nodes = [
        onnx.helper.make_node("Split", ["x"], first, name="drop", num_outputs=3),
        onnx.helper.make_node("Split", ["x"], second, name="other", num_outputs=3),
        onnx.helper.make_node("Clip", ["a", *inputs], ["y"], name="clip"),
    ]
    values = [onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, s) for n, s in (("x", [6]), ("m", []))]
    made = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [2])
    graph = onnx.helper.make_graph(nodes, "g", values, [made])
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=8)


def test_outputs_left_out_beside_inputs_left_out_get_names_that_nothing_has() -> None:
    model = left_out(["a", "", "drop_unread_0"], ["", "b", ""], ["", "m"])
    assert [d.code for d in check(model) if d.severity == "error"] == ["ATF432"]
    assert [d.code for d in to_dialect(model, "atc")] == ["ATF606"]
    onnx.checker.check_model(normalise(model))
    assert [list(node.output) for node in model.graph.node] == [
        ["a", "drop_unread_1", "drop_unread_0"],
        ["other_unread_0", "b"],
        ["y"],
    ]
    assert not [d for d in check(model) if d.severity == "error"]
    assert codes(model) == []


def test_outputs_left_out_stay_where_all_inputs_are_there() -> None:
    model = left_out(["a", "", "c"], ["", "b", ""], ["m"])
    assert codes(model) == []
    assert [list(node.output) for node in model.graph.node] == [["a", "", "c"], ["", "b", ""], ["y"]]


def test_portable_repairs_nothing() -> None:
    model = parser.parse_model(BARE.format("c = Constant <value_float = 1.0> () y = Add (x, c)"))
    assert as_dialect(model, "portable") == model


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("value_float", 0.1, np.array(0.1, np.float32)),
        ("value_floats", [0.5, -1.5], np.array([0.5, -1.5], np.float32)),
        ("value_int", -(2**40), np.array(-(2**40), np.int64)),
        ("value_ints", [3, -1], np.array([3, -1], np.int64)),
        ("value_string", "é", np.array("é", object)),
        ("value_strings", ["a", "b"], np.array(["a", "b"], object)),
    ],
)
def test_constants_are_given_value(name: str, value: object, expected: np.ndarray) -> None:
    node = helper.make_node("Constant", [], ["y"], name="c", **{name: value})
    node.attribute[0].doc_string = "kept"
    model = helper.make_model(helper.make_graph([node], "g", [], []), opset_imports=[helper.make_opsetid("", 17)])
    assert codes(model) == ["ATF603"]
    (attribute,) = as_dialect(model, "atc").graph.node[0].attribute
    assert (attribute.name, attribute.type, attribute.doc_string) == ("value", onnx.AttributeProto.TENSOR, "kept")
    result = numpy_helper.to_array(attribute.t)
    assert result.shape == expected.shape
    assert result.dtype == expected.dtype
    assert [x.decode() if isinstance(x, bytes) else x for x in result.flat] == list(expected.flat)
    assert not attribute.floats
    assert not attribute.ints
    assert not attribute.HasField("f")


def test_constants_with_no_elements() -> None:
    node = helper.make_node("Constant", [], ["y"], name="c")
    node.attribute.add(name="value_ints", type=onnx.AttributeProto.INTS)
    model = helper.make_model(helper.make_graph([node], "g", [], []))
    array = numpy_helper.to_array(as_dialect(model, "atc").graph.node[0].attribute[0].t)
    assert array.shape == (0,)
    assert array.dtype == np.int64


def test_other_constants_and_their_namesakes_stay() -> None:
    dense = helper.make_node(
        "Constant", [], ["a"], name="a", value=helper.make_tensor("", TensorProto.FLOAT, [1], [1.0])
    )
    foreign = helper.make_node("Constant", [], ["b"], name="b", domain="local", value_float=1.0)
    model = helper.make_model(helper.make_graph([dense, foreign], "g", [], []))
    assert codes(model) == []


NAMES = st.sampled_from(["", "x", "n", "n_0", "Relu", "Relu_0", "Relu_1", "x_0"])


@given(st.lists(NAMES, max_size=8), st.lists(NAMES, max_size=4))
def test_names_end_unique_non_empty_and_apart_from_inputs(outer: list[str], inner: list[str]) -> None:
    body = helper.make_graph([named(n) for n in inner], "body", [], [])
    condition = helper.make_node("If", ["c"], [""], name="if", then_branch=body, else_branch=body)
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])]
    graph = helper.make_graph([*(named(n) for n in outer), condition], "g", inputs, [])
    model = helper.make_model(graph)
    before = [n.name for n in all_nodes(model)]
    to_dialect(model, "atc")
    after = [n.name for n in all_nodes(model)]
    assert len(set(after)) == len(after)
    assert not {"", "x"} & set(after)
    kept = [new for old, new in zip(before, after, strict=True) if old == new]
    assert set(kept) == {n for n in before if n not in ("", "x")}
    assert to_dialect(model, "atc") == []
    assert [n.name for n in all_nodes(model)] == after
