"""What `atcfuse check` says, on small models that break one rule of ATC each."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import (
    AttributeProto,
    FunctionProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    ValueInfoProto,
    helper,
    parser,
)

from atcfuse.check import check, check_json, check_text
from atcfuse.diagnostics import Diagnostic, code_page
from atcfuse.graph import atc_ops, atc_rules, atc_scopes, atc_tensors
from atcfuse.graph.atc_rules import Finding, atc_findings

FLOAT = TensorProto.FLOAT
PLAIN = {"": 17}


def value(name: str, element: int = FLOAT, shape: list[int | str | None] | None = None) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, element, [2, 3] if shape is None else shape)


def node(op: str, inputs: list[str], outputs: list[str], name: str | None = None, **more: object) -> NodeProto:
    return helper.make_node(op, inputs, outputs, name=f"n_{outputs[0]}" if name is None else name, **more)


def tensor(name: str, element: int = FLOAT, dims: tuple[int, ...] = (2, 3), data: bytes | None = None) -> TensorProto:
    made = TensorProto(name=name, data_type=element, dims=dims)
    made.raw_data = bytes(24) if data is None else data
    return made


def external(name: str, dims: tuple[int, ...] = (2, 3), **entries: str) -> TensorProto:
    made = TensorProto(name=name, data_type=FLOAT, dims=dims, data_location=TensorProto.EXTERNAL)
    for key, text in entries.items():
        made.external_data.add(key=key, value=text)
    return made


def graph(nodes: list[NodeProto], inputs: list[ValueInfoProto] | None = None, **more: object) -> GraphProto:
    return helper.make_graph(nodes, "g", [value("x")] if inputs is None else inputs, [value("y")], **more)


def model(
    nodes: list[NodeProto],
    inputs: list[ValueInfoProto] | None = None,
    opsets: dict[str, int] = PLAIN,
    functions: list[FunctionProto] | None = None,
    **more: object,
) -> ModelProto:
    imports = [helper.make_opsetid(domain, version) for domain, version in opsets.items()]
    return helper.make_model(graph(nodes, inputs, **more), opset_imports=imports, functions=functions or [])


def relu(**more: object) -> ModelProto:
    return model([node("Relu", ["x"], ["y"])], **more)  # type: ignore[arg-type]


def branch(nodes: list[NodeProto], **more: object) -> GraphProto:
    return helper.make_graph(nodes, "b", [], [value(nodes[-1].output[0])], **more)


def if_model(then: GraphProto, otherwise: GraphProto | None = None, **more: object) -> ModelProto:
    otherwise = branch([node("Relu", ["x"], ["e"])]) if otherwise is None else otherwise
    choose = node("If", ["c"], ["y"], then_branch=then, else_branch=otherwise, **more)
    return model([choose], [value("x"), value("c", TensorProto.BOOL, [1])])


def codes(found: list[Finding] | list[Diagnostic]) -> list[str]:
    return sorted({one.code for one in found})


def only(checked: ModelProto, code: str, severity: str = "error", **more: object) -> Finding:
    """The one finding of a model that breaks one rule in one place."""
    found = atc_findings(checked, **more)  # type: ignore[arg-type]
    assert [(one.code, one.severity) for one in found] == [(code, severity)]
    return found[0]


# A model without problems


def test_an_ordinary_transformer_block_is_clean_but_for_its_dynamic_inputs() -> None:
    block = parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        block (float[batch, seq, 8] x, float[batch, 1, 1, seq] mask, float[8] g, float[8,8] w)
        => (float[batch, seq, 8] y)
        <int64[4] heads = {0, 0, 2, 4}, float s = {2.0}> {
          n = LayerNormalization(x, g, g)
          h = MatMul(n, w)
          r = Reshape(h, heads)
          t = Transpose<perm=[0,2,1,3]>(r)
          k = Transpose<perm=[0,2,3,1]>(r)
          a = MatMul(t, k)
          d = Div(a, s)
          m = Add(d, mask)
          p = Softmax<axis=-1>(m)
          e = Erf(h)
          y = Mul(e, x)
        }""")
    for number, one in enumerate(block.graph.node):
        one.name = f"node{number}"
    found = check(block)
    assert [(one.code, one.severity) for one in found] == [("ATF435", "info")]
    assert '--input_shape="x:-1,-1,8;mask:-1,1,1,-1;g:8;w:8,8"' in found[0].hint


def test_a_static_model_yields_nothing() -> None:
    assert atc_findings(relu()) == []
    assert check_text([]) == "nothing found that ATC would refuse\n"


# Domains, opsets and operators


def test_two_imports_refuse_nodes_without_domain_and_point_to_the_dialect() -> None:
    nodes = [node("Relu", ["x"], ["h"]), node("FusedGelu", ["h"], ["y"], domain="atcfuse")]
    found = atc_findings(model(nodes, opsets={"": 17, "atcfuse": 1}))
    assert [(one.code, one.node, one.atc_error) for one in found] == [
        ("ATF401", "n_h", "E16005"),
        ("ATF411", "n_y", ""),
    ]
    assert "atcfuse optimize" in found[0].hint
    assert "atcfuse::1::FusedGelu" in found[1].message


def test_an_import_that_nobody_uses_is_to_be_removed() -> None:
    assert (
        'remove the unused opset_import of "ai.onnx.ml"' in only(relu(opsets={"": 17, "ai.onnx.ml": 3}), "ATF401").hint
    )


def test_no_import_at_all() -> None:
    bare = relu()
    del bare.opset_import[:]
    assert "opset_import" in only(bare, "ATF401").hint


def test_operators_are_checked_behind_a_domain_error_too() -> None:
    nodes = [node("Relu", ["x"], ["h"]), node("Gelu", ["h"], ["y"])]
    assert codes(atc_findings(model(nodes, opsets={"": 17, "x": 1}))) == ["ATF401", "ATF404"]


def test_the_atc_dialect_is_accepted() -> None:
    nodes = [node("Relu", ["x"], ["h"], domain="ai.onnx"), node("FusedGelu", ["h"], ["y"], domain="atcfuse")]
    only(model(nodes, opsets={"ai.onnx": 17, "atcfuse": 1}), "ATF411", "info")


def test_the_flat_dialect_is_recognised_by_its_functions() -> None:
    body = helper.make_function("atcfuse", "FusedGelu", ["a"], ["b"], [node("Relu", ["a"], ["b"])], [])
    flat = model([node("FusedGelu", ["x"], ["y"])], functions=[body])
    assert "ai.onnx::17::FusedGelu" in only(flat, "ATF411", "info").message


def test_standard_operators_may_be_imported_as_ai_onnx_alone() -> None:
    assert atc_findings(relu(opsets={"ai.onnx": 17})) == []


def test_empty_and_written_out_domain_are_two_to_atc() -> None:
    found = only(model([node("Relu", ["x"], ["y"], domain="ai.onnx")]), "ATF402")
    assert found.atc_error == "E19999"
    assert '"ai.onnx"' in found.hint


def test_a_domain_that_is_not_imported() -> None:
    only(model([node("Foo", ["x"], ["y"], domain="com.x")]), "ATF402")


def test_the_only_import_serves_all_nodes_without_domain() -> None:
    assert "com.x" in only(relu(opsets={"com.x": 1}), "ATF407").message
    assert atc_findings(model([node("NPURmsNorm", ["x"], ["y"])], opsets={"npu": 1})) == []


def test_domain_imported_twice() -> None:
    twice = relu()
    twice.opset_import.add(domain="", version=16)
    only(twice, "ATF409", "warning")
    twice.opset_import[1].version = 17
    assert atc_findings(twice) == []


@pytest.mark.parametrize(("opset", "fits"), [(16, False), (17, True), (18, True)])
def test_layer_normalization_is_registered_for_two_opsets(opset: int, fits: bool) -> None:
    checked = model([node("LayerNormalization", ["x", "x", "x"], ["y"])], opsets={"": opset})
    if fits:
        assert atc_findings(checked) == []
    else:
        found = only(checked, "ATF403")
        assert "ai.onnx::16::LayerNormalization" in found.message
        assert "17-18" in found.message


@pytest.mark.parametrize("op", ["QuantizeLinear", "DequantizeLinear", "GroupNormalization", "Gelu", "RMSNormalization"])
def test_operators_without_a_plugin_have_advice_of_their_own(op: str) -> None:
    found = only(model([node(op, ["x"], ["y"])], opsets={"": 18}), "ATF404")
    assert found.atc_error == "E13010"
    assert found.hint != atc_ops.advice("STFT")


@pytest.mark.parametrize("opset", [7, 19, 23])
def test_opset_out_of_range_is_told_once_for_all_operators(opset: int) -> None:
    nodes = [node("Relu", ["x"], ["h"]), node("Tanh", ["h"], ["y"])]
    found = check(model(nodes, opsets={"": opset}))
    assert codes(found) == ["ATF410"]
    assert found[0].notes == ('2 times: "n_h", "n_y"',)


def test_operators_that_a_lower_opset_does_not_save_are_told_beside_the_opset() -> None:
    nodes = [node("Relu", ["x"], ["h"]), node("QuantizeLinear", ["h"], ["y"])]
    assert codes(atc_findings(model(nodes, opsets={"": 21}))) == ["ATF404", "ATF410"]


def test_ascend_quantization_is_registered_beyond_18() -> None:
    assert atc_findings(model([node("AscendQuant", ["x"], ["y"])], opsets={"": 22})) == []


@pytest.mark.parametrize(
    ("inputs", "opset", "expected"),
    [
        (["x", "g"], 17, ["ATF440"]),
        (["x", "g", ""], 18, ["ATF433", "ATF440"]),
        (["x", "g", "b"], 17, []),
        (["x", "g"], 20, ["ATF410"]),
    ],
)
def test_a_norm_without_shift_is_told_where_there_is_a_plugin(
    inputs: list[str], opset: int, expected: list[str]
) -> None:
    found = codes(atc_findings(model([node("LayerNormalization", inputs, ["y"])], opsets={"": opset})))
    assert [code for code in found if code != "ATF439"] == expected  # nothing makes scale and shift here


def test_operators_of_onnxruntime() -> None:
    nodes = [node("SkipLayerNormalization", ["x"], ["h"], domain="com.microsoft"), node("Relu", ["h"], ["y"])]
    found = atc_findings(model(nodes, opsets={"": 17, "com.microsoft": 1}))
    assert codes(found) == ["ATF401", "ATF405"]
    only(model([node("SimplifiedLayerNormalization", ["x"], ["y"])]), "ATF405")


@pytest.mark.parametrize("domain", ["", "com.x"])
def test_custom_operators_may_have_a_plugin_that_nobody_sees_here(domain: str) -> None:
    imports = {domain: 17} if not domain else {"ai.onnx": 17, domain: 1}
    found = only(model([node("MyOp", ["x"], ["y"], domain=domain)], opsets=imports), "ATF406", "warning")
    assert "::MyOp" in found.message


def test_functions_are_dropped() -> None:
    body = helper.make_function("com.x", "Twice", ["a"], ["b"], [node("Add", ["a", "a"], ["b"])], [])
    call = node("Twice", ["x"], ["y"], domain="com.x")
    assert "inline" in only(model([call], opsets={"com.x": 1}, functions=[body]), "ATF413").hint
    assert atc_findings(relu(functions=[body])) == []


@pytest.mark.parametrize("op", ["Input", "FileConstant"])
def test_types_that_atc_keeps_for_itself(op: str) -> None:
    only(model([node(op, ["x"], ["y"], domain="com.x")], opsets={"com.x": 1}), "ATF408")


def test_tensor_attribute_on_a_fused_node() -> None:
    imports = {"ai.onnx": 17, "atcfuse": 1}
    fused = node("FusedGelu", ["x"], ["y"], domain="atcfuse", table=tensor("t"), scale=1.0, names=["a", "b"])
    found = atc_findings(model([fused], opsets=imports))
    assert codes(found) == ["ATF411", "ATF412"]
    assert [one.message.count("`table`") for one in found if one.code == "ATF412"] == [1]


# Control flow


def test_if_is_accepted_and_its_branches_are_checked() -> None:
    assert atc_findings(if_model(branch([node("Relu", ["x"], ["t"])]))) == []
    assert only(if_model(branch([node("Gelu", ["x"], ["t"])])), "ATF404").node == "n_t"


def test_if_with_a_third_attribute() -> None:
    only(if_model(branch([node("Relu", ["x"], ["t"])]), extra=1), "ATF415")


@pytest.mark.parametrize("op", ["Loop", "Scan"])
def test_loops_are_refused_and_their_bodies_not_looked_at(op: str) -> None:
    body = branch([node("Gelu", ["x"], ["t"])])
    assert "unroll" in only(model([node(op, ["x"], ["y"], body=body)]), "ATF414").hint


def nested_if(names: list[str], outer_first: list[NodeProto]) -> ModelProto:
    inner = branch([node("Relu", names, ["i"])])
    other = branch([node("Relu", ["c"], ["o"])])
    nested = node("If", ["c"], ["t"], then_branch=inner, else_branch=other)
    return if_model(branch([*outer_first, nested]))


def test_capture_through_two_branches_is_lost() -> None:
    reads_z = node("Relu", ["z"], ["unused"])
    for first, expected in (([], ["ATF439"]), ([reads_z], [])):
        nested = nested_if(["z"], first)
        nested.graph.input.append(value("z"))
        assert codes(atc_findings(nested)) == expected


def test_deep_nesting_is_no_recursion() -> None:
    deep = branch([node("Relu", ["x"], ["leaf"])])
    for level in range(20):
        other = branch([node("Relu", ["x"], [f"e{level}"])])
        reads = node("Relu", ["x"], [f"r{level}"])
        deep = branch([reads, node("If", ["c"], [f"t{level}"], then_branch=deep, else_branch=other)])
    assert atc_findings(if_model(deep)) == []


# Names


def test_unnamed_nodes_are_one_warning() -> None:
    nodes = [node("Relu", ["x"], ["h"], ""), node("Relu", ["h"], ["y"], "")]
    found = check(model(nodes))
    assert [(one.code, one.severity) for one in found] == [("ATF416", "warning")]
    assert found[0].notes == ('2 times: "Relu -> h", "Relu -> y"',)


@pytest.mark.parametrize(("taken", "collides"), [("Tanh_1", True), ("Tanh_0", False)])
def test_names_that_atc_gives_may_be_taken(taken: str, collides: bool) -> None:
    nodes = [node("Relu", ["x"], ["a"], ""), node("Relu", ["a"], ["b"], taken), node("Tanh", ["b"], ["y"], "")]
    assert ("ATF419" in codes(atc_findings(model(nodes)))) == collides


def test_unnamed_nodes_of_branches_count_on() -> None:
    then = branch([node("Relu", ["x"], ["t1"], "Tanh_1"), node("Tanh", ["t1"], ["t"], "")])
    assert codes(atc_findings(if_model(then))) == ["ATF416"]
    unnamed_if = if_model(then)
    unnamed_if.graph.node[0].name = ""
    assert codes(atc_findings(unnamed_if)) == ["ATF416", "ATF419"]


def test_names_are_unique_within_a_graph_only() -> None:
    nodes = [node("Relu", ["x"], ["h"], "same"), node("Relu", ["h"], ["y"], "same")]
    assert only(model(nodes), "ATF417").atc_error == "E13009"
    assert atc_findings(if_model(branch([node("Relu", ["x"], ["t"], "n_y")]))) == []


def test_inputs_are_nodes_too() -> None:
    assert only(model([node("Relu", ["x"], ["y"], "x")]), "ATF418").atc_error == "E13009"
    only(if_model(branch([node("Relu", ["x"], ["t"], "x")])), "ATF418")
    overridable = model([node("Add", ["x", "w"], ["y"], "w")], [value("x"), value("w")], initializer=[tensor("w")])
    assert atc_findings(overridable) == []


# Constants and external data


@pytest.mark.parametrize("sugar", [{"value_float": 1.0}, {"value_ints": [1, 2]}, {"value_string": "a"}])
def test_constants_that_atc_reads_as_empty(sugar: dict[str, object]) -> None:
    nodes = [node("Constant", [], ["c"], **sugar), node("Add", ["x", "c"], ["y"])]
    assert only(model(nodes), "ATF420").node == "n_c"


def test_constants_with_value_are_fine() -> None:
    nodes = [node("Constant", [], ["c"], value=tensor("v")), node("Add", ["x", "c"], ["y"])]
    assert atc_findings(model(nodes)) == []


def test_sparse_initializer() -> None:
    sparse = relu()
    sparse.graph.sparse_initializer.add().values.name = "w"
    sparse.graph.node[0].input[0] = "w"
    assert only(sparse, "ATF421").node == "w"


@pytest.mark.parametrize("element", [TensorProto.INT4, TensorProto.FLOAT8E4M3FNUZ, TensorProto.FLOAT8E5M2, 99])
def test_element_types_of_constants(element: int) -> None:
    found = only(relu(initializer=[tensor("w", element)]), "ATF422")
    assert (found.node, found.atc_error) == ("w", "E19999")


def test_float8_is_read_from_external_files_and_when_empty() -> None:
    outside = external("w", location="w.bin")
    outside.data_type = TensorProto.FLOAT8E4M3FN
    empty = tensor("e", TensorProto.FLOAT8E5M2, (0, 4), b"")
    assert atc_findings(relu(initializer=[outside, empty])) == []


def test_element_type_of_an_input() -> None:
    only(relu(inputs=[value("x", TensorProto.UINT4)]), "ATF422")


@pytest.mark.parametrize(("text", "number"), [("sha1:12", ""), ("12ab", "number")])
def test_other_keys_become_the_length(text: str, number: str) -> None:
    found = only(relu(initializer=[external("w", location="w.bin", checksum=text)]), "ATF424")
    assert (found.atc_error == "") == bool(number)
    assert "checksum" in found.message


@pytest.mark.parametrize(
    ("location", "code", "severity"),
    [
        ("/data/w.bin", "ATF425", "error"),
        ("C:\\data\\w.bin", "ATF425", "error"),
        ("../w.bin", "ATF426", "warning"),
        ("sub/../../w.bin", "ATF426", "warning"),
    ],
)
def test_places_outside_of_the_folder(location: str, code: str, severity: str) -> None:
    only(relu(initializer=[external("w", location=location)]), code, severity)


def test_external_data_in_a_branch() -> None:
    then = branch([node("Add", ["x", "w"], ["t"])], initializer=[external("w", location="w.bin")])
    assert only(if_model(then), "ATF427").node == "w"


@pytest.mark.parametrize("entries", [{}, {"location": "w.bin", "offset": "x"}, {"location": "w.bin", "length": ""}])
def test_external_data_without_a_place(entries: dict[str, str]) -> None:
    only(relu(initializer=[external("w", **entries)]), "ATF429")


def test_external_files_are_looked_up_beside_the_model(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(bytes(40))
    fits = relu(initializer=[external("w", location="w.bin", offset="16", length="24")])
    short = relu(initializer=[external("w", location="w.bin", offset="20")])
    missing = relu(initializer=[external("w", location="other.bin")])
    assert atc_findings(fits, model_dir=tmp_path) == []
    assert "40 bytes" in only(short, "ATF428", model_dir=tmp_path).message
    assert "other.bin" in only(missing, "ATF428", model_dir=tmp_path).message
    assert atc_findings(short) == atc_findings(missing) == []


def test_external_constant_node_is_looked_up_too(tmp_path: Path) -> None:
    nodes = [node("Constant", [], ["c"], value=external("v", location="w.bin")), node("Add", ["x", "c"], ["y"])]
    assert only(model(nodes), "ATF428", model_dir=tmp_path).node == "n_c"


# Files, boundaries, inputs


def test_file_size() -> None:
    assert atc_findings(relu(), file_bytes=2**31 - 1) == []
    assert only(relu(), "ATF434", file_bytes=2**31).atc_error == "E13015"


def test_boundaries() -> None:
    assert only(ModelProto(), "ATF430").atc_error == "E16004"
    constant = [node("Constant", [], ["y"], value=tensor("v"))]
    assert only(model(constant, inputs=[]), "ATF430").atc_error == "E16001"
    silent = relu()
    del silent.graph.output[:]
    assert only(silent, "ATF430").atc_error == "E16001"


def test_outputs_must_be_made() -> None:
    lost = relu()
    lost.graph.output[0].name = "z"
    assert only(lost, "ATF431").node == "z"
    for name in ("x", "w"):
        passed = relu(initializer=[tensor("w")])
        passed.graph.output.append(value(name))
        assert atc_findings(passed) == []


def test_a_value_that_nothing_makes() -> None:
    assert only(model([node("Add", ["x", "ghost"], ["y"])]), "ATF439").node == "n_y"


def test_absent_values() -> None:
    clip = node("Clip", ["x", "", "x"], ["y"])
    lstm = node("LSTM", ["x", "x", "x"], ["h", "", "s"])
    assert atc_findings(model([clip])) == []
    assert atc_findings(model([node("Relu", ["x"], ["y"]), lstm])) == []
    assert only(model([lstm, clip]), "ATF432").node == "n_y"
    only(if_model(branch([node("Clip", ["x", "", "x"], ["t"])])), "ATF432")
    only(model([node("Clip", ["x", "", ""], ["y"])]), "ATF433", "info")


def test_input_shape_is_ready_to_copy() -> None:
    inputs = [value("x", shape=["batch", None, 8]), value("k", shape=[4]), value("s", shape=[])]
    found = check(relu(inputs=inputs))
    assert codes(found) == ["ATF435"]
    assert '--input_shape="x:-1,-1,8;k:4;s:"' in found[0].hint
    assert found[0].notes == ('"x"',)


def test_initializers_among_the_inputs_need_no_shape() -> None:
    assert atc_findings(relu(inputs=[value("x"), value("w", shape=["n"])], initializer=[tensor("w")])) == []


def test_input_types() -> None:
    sequence = helper.make_tensor_sequence_value_info("x", FLOAT, None)
    assert "sequence" in only(relu(inputs=[sequence]), "ATF437").message
    only(relu(inputs=[ValueInfoProto(name="x")]), "ATF437")
    only(relu(inputs=[value("x", TensorProto.STRING)]), "ATF438", "warning")
    only(relu(inputs=[helper.make_tensor_value_info("x", FLOAT, None)]), "ATF436", "warning")


# Grouping, order, rendering


def test_equal_findings_are_one_diagnostic_with_the_first_places() -> None:
    chain = [node("Gelu", [f"v{i}"], [f"v{i + 1}"], f"gelu{i}") for i in range(300)]
    chain[0].input[0], chain[-1].output[0] = "x", "y"
    found = check(model(chain))
    assert [one.notes for one in found] == [('300 times: "gelu0", "gelu1", "gelu2", ...',)]
    assert "(ATC: E13010)" in found[0].message


def test_errors_come_first_then_codes_then_places() -> None:
    nodes = [
        node("STFT", ["x"], ["a"], ""),
        node("Gelu", ["a"], ["b"]),
        node("Clip", ["b", ""], ["c"]),
        node("LayerNormalization", ["c", "c"], ["y"]),
    ]
    found = check(model(nodes, opsets={"": 16}))
    assert [one.code for one in found] == ["ATF403", "ATF404", "ATF404", "ATF416", "ATF433"]
    assert ["STFT" in found[1].message, "Gelu" in found[2].message] == [True, True]
    assert check_text(found).endswith("ATC would refuse or misread this model (3 errors, 1 warning, 1 note)\n")


def test_json_is_sorted_and_complete() -> None:
    text = check_json("m.onnx", check(model([node("Gelu", ["x"], ["y"])])))
    document = json.loads(text)
    assert list(document) == sorted(document)
    assert (document["schema"], document["model"]) == ("atcfuse.check/1", "m.onnx")
    assert document["summary"] == {"errors": 1, "warnings": 0, "infos": 0}
    assert document["diagnostics"][0]["code"] == "ATF404"
    assert document["diagnostics"][0]["notes"] == ['"n_y"']


def test_the_model_is_left_as_it_was() -> None:
    checked = if_model(branch([node("Relu", ["x"], ["t"], "")]))
    before = checked.SerializeToString(deterministic=True)
    check(checked)
    assert checked.SerializeToString(deterministic=True) == before


def test_time_is_linear_in_nodes() -> None:
    def seconds(count: int) -> float:
        chain = [node("Gelu", [f"v{i}"], [f"v{i + 1}"], "") for i in range(count)]
        big = model(chain, [value("v0")])
        big.graph.output[0].name = f"v{count}"
        taken = []
        for _ in range(3):  # the least of them: other programs on the machine cost CPU time, too
            start = time.process_time()
            check(big)
            taken.append(time.process_time() - start)
        return min(taken)

    assert seconds(16_000) < 30 * max(seconds(2_000), 0.01)


def test_importing_check_does_not_import_onnx() -> None:
    code = "import sys, atcfuse.check; sys.exit('onnx' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# The table and the pages


def test_every_code_has_a_page_and_every_page_a_rule() -> None:
    sources = [Path(str(module.__file__)).read_text() for module in (atc_rules, atc_tensors, atc_scopes)]
    used = set(re.findall(r"ATF4\d\d", "".join(sources)))
    pages = {f"ATF{n}" for n in range(400, 450) if code_page(f"ATF{n}")}
    assert used == pages
    for code in used:
        page = code_page(code) or ""
        assert page.startswith(f"# {code}: ")
        assert all(part in page for part in ("**Found**", "**Expected**", "**What to do**"))


def test_the_table_knows_gaps_and_both_domains() -> None:
    assert atc_ops.registered_opsets("", "GridSample") == {11, 16, 17, 18}
    assert atc_ops.registered_opsets("ai.onnx", "Softmax") == set(range(8, 19))
    assert atc_ops.registered_opsets("npu", "NPURmsNorm") == {1}
    assert atc_ops.registered_opsets("", "NoSuchOperator") == frozenset()


@given(st.frozensets(st.integers(1, 40), min_size=1))
def test_ranges_are_read_back_as_written(versions: frozenset[int]) -> None:
    assert frozenset(atc_ops._versions(atc_ops.ranges(versions))) == versions


@given(st.lists(st.sampled_from(["", "a", "b", "Relu_0", "Relu_1", "x"]), min_size=1, max_size=6))
def test_names_are_refused_exactly_when_two_nodes_end_up_with_one_name(names: list[str]) -> None:
    chain = [node("Relu", ["x"], [f"v{i}"], name) for i, name in enumerate(names)]
    checked = model(chain)
    checked.graph.output[0].name = "v0"
    unnamed = iter(range(len(names)))
    given_names = ["x", *(name or f"Relu_{next(unnamed)}" for name in names)]
    refused = any(one.atc_error == "E13009" for one in atc_findings(checked))
    assert refused == (len(set(given_names)) < len(given_names))


def test_attribute_kinds_of_fused_nodes_are_complete() -> None:
    refused = {"TENSOR", "GRAPH", "SPARSE_TENSOR", "TYPE_PROTO", "TENSORS", "GRAPHS", "SPARSE_TENSORS", "TYPE_PROTOS"}
    for kind in set(AttributeProto.AttributeType.keys()) - {"UNDEFINED"}:
        fused = node("FusedGelu", ["x"], ["y"], domain="atcfuse")
        fused.attribute.add(name="a", type=AttributeProto.AttributeType.Value(kind))
        found = codes(atc_findings(model([fused], opsets={"atcfuse": 1})))
        assert ("ATF412" in found) == (kind in refused)
