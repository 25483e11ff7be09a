"""Rules of level `constant`: folded weights give the same numbers, in onnxruntime, and are only made where they can be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper
from plain import run_plain as run

from atcfuse.api import optimize, optimize_file
from atcfuse.options import Options
from atcfuse.report.contract import validate

TYPES = {"float16": TensorProto.FLOAT16, "float32": TensorProto.FLOAT, "float64": TensorProto.DOUBLE}
OFF = {"float16": 4e-3, "float32": 2e-6, "float64": 1e-12}


def network(
    rng: np.random.Generator,
    *,
    op: str = "Conv",
    spatial: int = 2,
    group: int = 1,
    bias: bool = False,
    kind: str = "float32",
    opset: int = 17,
    ir: int = 8,
    statistics: str | None = None,
    **attributes: Any,
) -> onnx.ModelProto:
    """A (transposed) convolution and a normalisation at inference."""
    channels, outputs = 2 * group, 3 * group
    shape = (outputs, channels // group) if op == "Conv" else (channels, outputs // group)
    other = statistics or kind
    tensors = {
        "w": rng.normal(size=(*shape, *(3,) * spatial)).astype(kind),
        "g": rng.uniform(0.5, 2.0, outputs).astype(other),
        "b": rng.normal(size=outputs).astype(other),
        "m": rng.normal(size=outputs).astype(other),
        "v": rng.uniform(0.1, 3.0, outputs).astype(other),
    }
    if bias:
        tensors["b0"] = rng.normal(size=outputs).astype(kind)
    inputs = ["x", "w", *(["b0"] if bias else [])]
    extra = {"momentum": 0.7} if opset < 14 else {"training_mode": 0, "momentum": 0.7}
    nodes = [
        helper.make_node(op, inputs, ["c"], name="conv", group=group, **attributes),
        helper.make_node("BatchNormalization", ["c", "g", "b", "m", "v"], ["n"], name="norm", epsilon=1e-3, **extra),
        helper.make_node("Relu", ["n"], ["y"], name="relu"),
    ]
    return model_of(nodes, tensors, {"x": (2, channels, *(7,) * spatial)}, kind, opset, ir)


def model_of(
    nodes: list[onnx.NodeProto],
    tensors: dict[str, np.ndarray],
    inputs: dict[str, tuple[int, ...]],
    kind: str = "float32",
    opset: int = 17,
    ir: int = 8,
    outputs: tuple[str, ...] = ("y",),
) -> onnx.ModelProto:
    given = [helper.make_tensor_value_info(name, TYPES[kind], shape) for name, shape in inputs.items()]
    if ir < 4:
        given += [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
            for n, a in tensors.items()
        ]
    made = [helper.make_tensor_value_info(name, TYPES[kind], None) for name in outputs]
    graph = helper.make_graph(nodes, "g", given, made, [numpy_helper.from_array(a, n) for n, a in tensors.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir)


def feeds(model: onnx.ModelProto, rng: np.random.Generator) -> dict[str, np.ndarray]:
    constants = {t.name for t in model.graph.initializer}
    found = {}
    for value in model.graph.input:
        if value.name not in constants:
            shape = [d.dim_value for d in value.type.tensor_type.shape.dim]
            dtype = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
            found[value.name] = rng.normal(size=shape).astype(dtype)
    return found


def agree(before: onnx.ModelProto, after: onnx.ModelProto, rng: np.random.Generator, off: float) -> None:
    given = feeds(before, rng)
    for a, b in zip(run(before, given), run(after, given), strict=True):
        scale = max(1.0, float(np.abs(a.astype(np.float64)).max()))
        assert a.dtype == b.dtype
        assert np.abs(a.astype(np.float64) - b.astype(np.float64)).max() <= off * scale


def folded(model: onnx.ModelProto, **options: Any) -> Any:
    return optimize(model, dialect="portable", **options)


def kept(result: Any) -> list[tuple[str, str]]:
    """Codes and places of what folding left; other rules have something to say of the nodes around."""
    return [(k["code"], k["anchor"]) for k in result.report["kept"] if k["rule"] == "conv_batch_norm"]


def ops(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


@pytest.mark.parametrize("kind", sorted(TYPES))
@pytest.mark.parametrize("op", ["Conv", "ConvTranspose"])
@pytest.mark.parametrize("spatial", [1, 2, 3])
@pytest.mark.parametrize(("group", "bias"), [(1, False), (1, True), (3, False), (2, True)])
def test_folded_weights_give_the_same_numbers(kind: str, op: str, spatial: int, group: int, bias: bool) -> None:
    rng = np.random.default_rng([spatial, group, bias, *op.encode()])
    extra: dict[str, Any] = {"strides": [2] * spatial, "pads": [1, *[0] * (spatial - 1)] * 2}
    if op == "ConvTranspose":
        extra["output_padding"] = [1] * spatial
    else:
        extra["dilations"] = [2] * spatial
    model = network(rng, op=op, spatial=spatial, group=group, bias=bias, kind=kind, **extra)
    result = folded(model)
    assert ops(result.model) == [op, "Relu"]
    assert {t.data_type for t in result.model.graph.initializer} == {TYPES[kind]}
    conv = result.model.graph.node[0]
    assert [t.name for t in result.model.graph.initializer] == list(conv.input)[1:]
    given = {a.name: helper.get_attribute_value(a) for a in model.graph.node[0].attribute}
    assert {a.name: helper.get_attribute_value(a) for a in conv.attribute} == given
    if kind == "float64" and spatial == 3 and op == "ConvTranspose":
        return
    try:
        agree(model, result.model, rng, OFF[kind])
    except ort.capi.onnxruntime_pybind11_state.NotImplemented:
        pytest.skip(f"onnxruntime has no {op} in {kind}")


@pytest.mark.parametrize("opset", [7, 8, 9, 11, 13, 14, 15, 18, 22])
def test_every_opset(opset: int) -> None:
    rng = np.random.default_rng(opset)
    model = network(rng, opset=opset, bias=opset % 2 == 0)
    if opset < 9:
        model.graph.node[1].attribute.append(helper.make_attribute("spatial", 1))
    result = folded(model)
    assert ops(result.model) == ["Conv", "Relu"]
    assert result.model.opset_import[0].version == opset
    agree(model, result.model, rng, OFF["float32"])


def test_statistics_of_another_type() -> None:
    rng = np.random.default_rng(1)
    model = network(rng, kind="float16", statistics="float32", opset=15)
    result = folded(model)
    assert ops(result.model) == ["Conv", "Relu"]
    assert {t.data_type for t in result.model.graph.initializer} == {TensorProto.FLOAT16}


def test_a_weight_that_two_read_is_not_changed_in_place() -> None:
    rng = np.random.default_rng(2)
    model = network(rng)
    norm = helper.make_node("BatchNormalization", ["c2", "b", "g", "m", "v"], ["n2"], name="norm2")
    model.graph.node.insert(0, helper.make_node("Conv", ["x", "w"], ["c2"], name="conv2"))
    model.graph.node.insert(1, norm)
    model.graph.node.append(helper.make_node("Conv", ["x", "w"], ["z"], name="plain"))
    model.graph.output.extend(helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in ("n2", "z"))
    old = numpy_helper.to_array(model.graph.initializer[0]).copy()
    result = folded(model)
    assert sorted(ops(result.model)) == ["Conv", "Conv", "Conv", "Relu"]
    (weight,) = [numpy_helper.to_array(t) for t in result.model.graph.initializer if t.name == "w"]
    assert (weight == old).all()
    agree(model, result.model, rng, OFF["float32"])


def test_initializers_that_old_models_list_as_inputs() -> None:
    rng = np.random.default_rng(3)
    model = network(rng, ir=3, opset=8)
    result = folded(model)
    assert result.model.ir_version == 3
    constants = {t.name for t in result.model.graph.initializer}
    assert {i.name for i in result.model.graph.input} == {"x", *constants}
    assert len(constants) == 2
    agree(model, result.model, rng, OFF["float32"])


def test_a_constant_that_a_caller_may_override_is_none() -> None:
    model = network(np.random.default_rng(4))
    model.graph.input.append(helper.make_tensor_value_info("g", TensorProto.FLOAT, [3]))
    result = folded(model)
    assert ops(result.model) == ops(model)
    assert kept(result) == [("ATF312", "norm")]


def test_external_weights_are_read_alone(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    model = network(rng, bias=True)
    big = rng.normal(size=(64, 64)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(big, "big"))
    model.graph.initializer.append(numpy_helper.from_array(np.arange(3000, dtype=np.float32).reshape(1000, 3), "row"))
    model.graph.node.append(helper.make_node("MatMul", ["other", "big"], ["z"], name="mm"))
    model.graph.input.append(helper.make_tensor_value_info("other", TensorProto.FLOAT, [2, 64]))
    model.graph.output.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, None))
    path = tmp_path / "m.onnx"
    onnx.save(onnx.ModelProto.FromString(model.SerializeToString()), path, save_as_external_data=True, size_threshold=0)
    result = optimize_file(path, options=Options(dialect="portable"), verify=True)
    assert not result.failed, result.diagnostics
    after = onnx.load(tmp_path / "m.fused.onnx")
    assert ops(after) == ["Conv", "Relu", "MatMul"]
    agree(model, after, rng, OFF["float32"])


def test_two_normalisations_and_one_in_a_body() -> None:
    rng = np.random.default_rng(6)
    model = network(rng)
    relu = model.graph.node.pop()
    second = helper.make_node("BatchNormalization", ["n", "v", "m", "b", "v"], ["k"], name="norm2")
    body = helper.make_graph(
        [
            helper.make_node("Conv", ["x", "w"], ["ci"], name="convi"),
            helper.make_node("BatchNormalization", ["ci", "g", "b", "m", "v"], ["yi"], name="normi"),
        ],
        "body",
        [],
        [helper.make_tensor_value_info("yi", TensorProto.FLOAT, None)],
    )
    relu.input[0] = "k"
    relu.output[0] = "r"
    branch = helper.make_node("If", ["flag"], ["s"], name="if", then_branch=body, else_branch=body)
    model.graph.node.extend([second, relu, branch, helper.make_node("Add", ["r", "s"], ["y"], name="add")])
    model.graph.input.append(helper.make_tensor_value_info("flag", TensorProto.BOOL, []))
    result = folded(model, disabled=frozenset({"elementwise"}))
    assert ops(result.model) == ["Conv", "Relu", "If", "Add"]
    branches = [a.g for a in result.model.graph.node[2].attribute]
    assert [[n.op_type for n in b.node] for b in branches] == [["Conv"], ["Conv"]]
    given = {"x": rng.normal(size=(2, 2, 7, 7)).astype(np.float32), "flag": np.array(True)}
    (a,), (b,) = run(model, given), run(result.model, given)
    assert np.abs(a - b).max() <= 4e-6 * np.abs(a).max()


def test_weights_in_constant_nodes() -> None:
    """As Paddle writes them."""
    rng = np.random.default_rng(11)
    tensors = {"w": rng.normal(size=(64, 64, 1)).astype(np.float32)}
    tensors |= {n: rng.uniform(0.5, 1.0, 64).astype(np.float32) for n in "gbmv"}
    nodes = [helper.make_node("Constant", [], [n], value=numpy_helper.from_array(a)) for n, a in tensors.items()]
    nodes.append(helper.make_node("Conv", ["x", "w"], ["c"], name="conv"))
    nodes.append(helper.make_node("BatchNormalization", ["c", "g", "b", "m", "v"], ["y"], name="norm"))
    model = model_of(nodes, {}, {"x": (2, 64, 5)})
    result = folded(model)
    assert ops(result.model) == ["Conv"]
    agree(model, result.model, rng, OFF["float32"])


def _statistics_asked_for(model: onnx.ModelProto) -> None:
    model.graph.node[1].output.extend(["rm", "rv", "sm", "sv"])


def _variance_negative(model: onnx.ModelProto) -> None:
    model.graph.initializer[4].CopyFrom(numpy_helper.from_array(np.array([1, -2, 1], np.float32), "v"))


def _too_small(model: onnx.ModelProto) -> None:
    model.graph.initializer[1].CopyFrom(numpy_helper.from_array(np.array([1, 1e-7, 1], np.float16), "g"))


def _too_large(model: onnx.ModelProto) -> None:
    model.graph.initializer[1].CopyFrom(numpy_helper.from_array(np.full(3, 6e4, np.float16), "g"))
    model.graph.initializer[4].CopyFrom(numpy_helper.from_array(np.full(3, 1e-3, np.float16), "v"))


def _not_spatial(model: onnx.ModelProto) -> None:
    model.graph.node[1].attribute.append(helper.make_attribute("spatial", 0))


@pytest.mark.parametrize(
    ("change", "settings", "code"),
    [
        (_statistics_asked_for, {"opset": 11}, "ATF314"),
        (_variance_negative, {}, "ATF346"),
        (_too_small, {"kind": "float16"}, "ATF346"),
        (_too_large, {"kind": "float16"}, "ATF346"),
        (_not_spatial, {"opset": 8}, "ATF311"),
    ],
)
def test_what_cannot_be_folded_stays_with_a_reason(change: Any, settings: dict[str, Any], code: str) -> None:
    model = network(np.random.default_rng(7), **settings)
    change(model)
    result = folded(model)
    assert ops(result.model) == ["Conv", "BatchNormalization", "Relu"]
    assert kept(result) == [(code, "norm")]


def test_a_normalisation_without_a_convolution_says_so() -> None:
    tensors = {n: np.ones(3, np.float32) for n in "gbmv"}
    node = helper.make_node("BatchNormalization", ["x", "g", "b", "m", "v"], ["y"], name="norm")
    result = folded(model_of([node], tensors, {"x": (2, 3, 4)}))
    assert [k["anchor"] for k in result.report["kept"]] == ["norm"]


def test_the_report_counts_what_was_saved(tmp_path: Path) -> None:
    model = network(np.random.default_rng(8), bias=True)
    result = folded(model)
    assert validate({**result.report, "files": {"model": None, "report": None, "kernels": None}}) == []
    (fusion,) = result.report["fusions"]
    assert (fusion["rule"], fusion["op"], fusion["nodes"]) == ("conv_batch_norm", "Conv", ["conv", "norm"])
    assert (fusion["name"], fusion["launches_saved"]) == ("conv", 1)
    summary = result.report["summary"]
    assert summary["launches_before"] - summary["launches_after"] == 1
    assert fusion["ddr_bytes_saved"] == summary["ddr_bytes_before"] - summary["ddr_bytes_after"]
    assert fusion["time_us_saved"][0] > 0
    rule = result.report["rules"]["conv_batch_norm"]
    assert (rule["match_times"], rule["effect_times"]) == (1, 1)


def test_a_second_run_changes_nothing() -> None:
    once = folded(network(np.random.default_rng(9)))
    first = once.model.SerializeToString(deterministic=True)
    again = folded(once.model)
    assert again.report["fusions"] == []
    assert again.model.SerializeToString(deterministic=True) == first


@pytest.mark.parametrize("way", ["switch", "keep"])
def test_it_can_be_turned_off(tmp_path: Path, way: str) -> None:
    switches = tmp_path / "sw.json"
    switches.write_text('{"Switch": {"GraphFusion": {"ConvBatchNormFoldingPass": "off"}}}')
    given = {"switch_file": switches} if way == "switch" else {"keep_nodes": ("norm",)}
    result = folded(network(np.random.default_rng(10)), **given)
    assert ops(result.model) == ["Conv", "BatchNormalization", "Relu"]
    assert kept(result) == [({"switch": "ATF321", "keep": "ATF325"}[way], "norm")]
    assert [k["anchor"] for k in result.report["kept"]].count("norm") == 1


def layer_scale(kind: str = "float32") -> onnx.ModelProto:
    """A projection with bias, scaled by a factor a column, and a residual sum."""
    rng = np.random.default_rng(3)
    tensors = {"w": rng.normal(size=(16, 8)), "b": rng.normal(size=8), "g": rng.normal(size=(1, 1, 8))}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"], "product"),
        helper.make_node("Add", ["b", "p"], ["a"], "sum"),
        helper.make_node("Mul", ["g", "a"], ["s"], "scale"),
        helper.make_node("Sin", ["s"], ["y"], "end"),
    ]
    x = helper.make_tensor_value_info("x", TYPES[kind], ["B", "S", 16])
    y = helper.make_tensor_value_info("y", TYPES[kind], ["B", "S", 8])
    stored = [numpy_helper.from_array(v.astype(kind), k) for k, v in tensors.items()]
    graph = helper.make_graph(nodes, "g", [x], [y], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("kind", ["float16", "float32"])
def test_layer_scale_goes_into_weight_and_bias(kind: str) -> None:
    proto = layer_scale(kind)
    result = optimize(proto, dialect="portable", kernels=False, disabled=frozenset({"linear_epilogue", "elementwise"}))
    assert [n.op_type for n in result.model.graph.node] == ["MatMul", "Add", "Sin"]
    assert [n.name for n in result.model.graph.node] == ["product", "sum", "end"]
    (folding,) = result.report["fusions"]
    assert (folding["rule"], folding["launches_saved"], folding["nodes"]) == (
        "linear_gain",
        1,
        ["product", "sum", "scale"],
    )
    validate(result.report)
    feeds = {"x": np.random.default_rng(4).normal(size=(2, 3, 16)).astype(kind)}
    (want,), (have,) = (
        ort.InferenceSession(m.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, feeds)
        for m in (proto, result.model)
    )
    np.testing.assert_allclose(have, want, atol=OFF[kind] * 8)


def test_weights_in_files_of_their_own_are_not_copied(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(layer_scale(), path, save_as_external_data=True, location="m.data", size_threshold=0)
    result = optimize(path, dialect="portable", kernels=False)
    assert "linear_gain" not in [f["rule"] for f in result.report["fusions"]]


@pytest.mark.parametrize("op", ["MatMul", "Conv"])
def test_the_shape_of_what_vanishes_is_read_elsewhere(op: str) -> None:
    if op == "MatMul":
        proto = layer_scale()
        proto.graph.node.insert(2, helper.make_node("Shape", ["a"], ["extents"], "shape"))
        x = np.random.default_rng(4).normal(size=(2, 3, 16)).astype(np.float32)
    else:
        text = """<ir_version: 8, opset_import: ["" : 17]> g (float[2,1,4] x) => (float[2,2,3] y) <float[2,1,2] w = {1,2,3,4},
            float[2] g = {0.5,-1.5}, float[2] b = {0.1,0.2}, float[2] m = {1.0,-2.0}, float[2] v = {4.0,0.25}> {
            c = Conv(x, w) extents = Shape(c) y = BatchNormalization(c, g, b, m, v) }"""
        proto = onnx.parser.parse_model(text)
        x = np.random.default_rng(4).normal(size=(2, 1, 4)).astype(np.float32)
    proto.graph.output.append(helper.make_tensor_value_info("extents", TensorProto.INT64, [3]))
    result = optimize(proto, dialect="portable", kernels=False)
    assert {"linear_gain", "conv_batch_norm"} & {f["rule"] for f in result.report["fusions"]}
    want, have = (
        ort.InferenceSession(m.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, {"x": x})
        for m in (proto, result.model)
    )
    assert want[1].tolist() == have[1].tolist()
    np.testing.assert_allclose(have[0], want[0], atol=1e-5)
