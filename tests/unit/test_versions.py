"""Opsets, IR versions, byte orders and element types: what fuses, what is left alone, and that numbers stay."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from plain import run_plain as run

import atcfuse
from atcfuse.check import check
from atcfuse.options import Options

ROOT = Path(__file__).resolve().parents[2]
NEWEST = onnx.defs.onnx_opset_version()
OPSETS = range(8, min(23, NEWEST) + 1)
IR_VERSIONS = range(4, 13)


def attention(opset: int, ir: int = 8) -> onnx.ModelProto:
    """Scaled attention and a projection in operators that no opset from 8 on changed for such inputs."""
    nodes = [
        helper.make_node("Transpose", ["k"], ["kt"], perm=[0, 1, 3, 2]),
        helper.make_node("MatMul", ["q", "kt"], ["scores"]),
        helper.make_node("Mul", ["scores", "scale"], ["scaled"]),
        helper.make_node("Softmax", ["scaled"], ["probabilities"], axis=3),
        helper.make_node("MatMul", ["probabilities", "v"], ["y"]),
    ]
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2, 3, 4, 8]) for n in "qkvy"]
    scale = numpy_helper.from_array(np.array(0.35, np.float32), "scale")
    # Before IR version 4 every initializer is an input too.
    graph = helper.make_graph(nodes, "g", values[:3], values[3:], [scale])
    for number, node in enumerate(graph.node):
        node.name = f"n{number}"
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir)


def fused(model: onnx.ModelProto, **more: Any) -> onnx.ModelProto:
    """The optimized model, with whatever fuses."""
    return atcfuse.optimize(model, Options(**{"dialect": "portable", "kernels": False, **more})).model


def ops(model: onnx.ModelProto) -> list[str]:
    """The operators of the main graph; those of ours without hashes."""
    return [n.op_type if n.domain != "atcfuse" else n.op_type[:16] for n in model.graph.node]


def feed() -> dict[str, Any]:
    source = np.random.default_rng(0)
    return {n: source.normal(size=(2, 3, 4, 8)).astype(np.float32) for n in "qkv"}


@pytest.mark.parametrize("opset", OPSETS)
def test_every_opset_fuses_or_says_why(opset: int) -> None:
    model = attention(opset)
    result = atcfuse.optimize(model, Options(dialect="portable", kernels=False))
    got = ops(result.model)
    assert got == ["FusedAttention"], [k["reason"] for k in result.report["kept"]]
    np.testing.assert_allclose(run(result.model, feed())[0], run(model, feed())[0], rtol=2e-5, atol=2e-6)
    assert result.model.opset_import[0].version == opset


@pytest.mark.parametrize("opset", OPSETS)
def test_check_says_where_atc_stops(opset: int) -> None:
    codes = {d.code for d in check(attention(opset), ROOT, 1000)}
    assert bool(codes) is (opset > 18), codes


@pytest.mark.parametrize("ir", IR_VERSIONS)
def test_every_ir_version_is_read_and_only_raised_for_functions(ir: int) -> None:
    model = attention(17, ir)
    got = fused(model)
    assert got.ir_version == max(ir, 10)
    plain = helper.make_model(
        helper.make_graph([helper.make_node("Neg", ["x"], ["y"], name="n")], "g", model.graph.input[:1], model.graph.output),
        opset_imports=[helper.make_opsetid("", 17)], ir_version=ir,
    )  # fmt: skip
    plain.graph.input[0].name = "x"
    assert fused(plain) == plain


FOREIGN = [
    TensorProto.BFLOAT16, TensorProto.DOUBLE, TensorProto.INT4, TensorProto.UINT4, TensorProto.FLOAT8E4M3FN,
    TensorProto.FLOAT8E5M2, TensorProto.FLOAT8E4M3FNUZ, TensorProto.FLOAT8E5M2FNUZ, TensorProto.STRING,
    *([TensorProto.FLOAT4E2M1] if hasattr(TensorProto, "FLOAT4E2M1") else []),
]  # fmt: skip


@pytest.mark.parametrize("element", FOREIGN, ids=TensorProto.DataType.Name)
def test_tensors_of_other_types_stay_byte_for_byte(element: int) -> None:
    tensor = TensorProto(name="w", data_type=element, dims=[8, 2])
    if element == TensorProto.STRING:
        tensor.string_data.extend([b"s"] * 16)
    else:
        tensor.raw_data = bytes(range(16)) * (
            8 if element == TensorProto.DOUBLE else 2 if element == TensorProto.BFLOAT16 else 1
        )
    model = attention(21 if NEWEST >= 21 else 19)
    model.graph.initializer.append(tensor)
    model.graph.node.append(helper.make_node("Identity", ["w"], ["z"], name="kept"))
    model.graph.output.append(helper.make_tensor_value_info("z", element, [8, 2]))
    got = fused(model)
    assert got.graph.initializer[-1].SerializeToString() == tensor.SerializeToString()
    assert ops(got) == ["FusedAttention", "Identity"]


@pytest.mark.skipif(NEWEST < 21, reason="onnx without opset 21")
@pytest.mark.parametrize(
    "element", [TensorProto.INT4, TensorProto.UINT4, TensorProto.FLOAT8E4M3FN], ids=TensorProto.DataType.Name
)
def test_weights_of_few_bits_give_the_same_numbers(element: int) -> None:
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s"], ["wd"], name="d"),
        helper.make_node("MatMul", ["x", "wd"], ["p"], name="m"),
        helper.make_node("Relu", ["p"], ["y"], name="r"),
    ]
    size = 8 if element == TensorProto.FLOAT8E4M3FN else 4
    raw = (
        np.random.default_rng(0).integers(0, 120 if size == 8 else 256, 16 * 16 * size // 8).astype(np.uint8).tobytes()
    )
    tensors = [TensorProto(name="w", data_type=element, dims=[16, 16], raw_data=raw)]
    tensors.append(numpy_helper.from_array(np.float32(0.1), "s"))
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [4, 16]) for n in "xy"]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    inputs = {"x": np.random.default_rng(1).normal(size=(4, 16)).astype(np.float32)}
    got = fused(model, kernels=True, min_saving_us=0.0)
    np.testing.assert_allclose(run(got, inputs)[0], run(model, inputs)[0], rtol=2e-5, atol=2e-5)
    assert got.graph.initializer[0] == model.graph.initializer[0]


def test_raw_data_is_little_endian_wherever_it_is_read() -> None:
    """ONNX stores raw data little-endian; nothing here may depend on the byte order of the machine."""
    reads = re.compile(r"(?:frombuffer|fromfile|tobytes|struct\.(?:un)?pack)\(([^)]*)\)")
    for path in sorted((ROOT / "atcfuse").rglob("*.py")):
        for found in reads.finditer(path.read_text("utf-8")):
            if "struct" in found[0]:
                assert "<" in found[0], f"{path}: {found[0]}"
    model = attention(17)
    before = model.graph.initializer[0].raw_data
    assert np.frombuffer(before, "<f4")[0] == np.float32(0.35)
    result = atcfuse.optimize(model, Options(dialect="portable", kernels=False))
    assert result.report["fusions"][0]["attributes"]["scale"] == pytest.approx(0.35)


def quantized(kind: str) -> tuple[onnx.ModelProto, dict[str, Any]]:
    """A projection with what follows it, quantized in one of ONNX's two ways."""
    source = np.random.default_rng(1)
    weight = source.integers(-100, 100, (16, 16)).astype(np.int8)
    constants = {
        "w": weight, "sx": np.float32(0.02), "sw": np.float32(0.01), "sy": np.float32(0.05),
        "zx": np.uint8(120), "zw": np.int8(0), "zy": np.uint8(110), "b": source.normal(size=16).astype(np.float32),
    }  # fmt: skip
    node = helper.make_node
    if kind == "QDQ":
        nodes = [
            node("QuantizeLinear", ["x", "sx", "zx"], ["xq"]), node("DequantizeLinear", ["xq", "sx", "zx"], ["xd"]),
            node("DequantizeLinear", ["w", "sw", "zw"], ["wd"]), node("MatMul", ["xd", "wd"], ["p"]),
            node("Add", ["p", "b"], ["a"]), node("Relu", ["a"], ["r"]),
            node("QuantizeLinear", ["r", "sy", "zy"], ["q"]), node("DequantizeLinear", ["q", "sy", "zy"], ["y"]),
        ]  # fmt: skip
    elif kind == "QOperator":
        nodes = [
            node("QuantizeLinear", ["x", "sx", "zx"], ["xq"]),
            node("QLinearMatMul", ["xq", "sx", "zx", "w", "sw", "zw", "sy", "zy"], ["q"]),
            node("DequantizeLinear", ["q", "sy", "zy"], ["d"]), node("Add", ["d", "b"], ["a"]), node("Relu", ["a"], ["y"]),
        ]  # fmt: skip
    else:
        nodes = [
            node("DynamicQuantizeLinear", ["x"], ["xq", "s", "z"]),
            node("MatMulInteger", ["xq", "w", "z"], ["i"]), node("Cast", ["i"], ["f"], to=1),
            node("Mul", ["s", "sw"], ["ss"]), node("Mul", ["f", "ss"], ["m"]), node("Add", ["m", "b"], ["a"]),
            node("Relu", ["a"], ["y"]),
        ]  # fmt: skip
    for number, one in enumerate(nodes):
        one.name = f"n{number}"
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["batch", 4, 16]) for n in "xy"]
    tensors = [numpy_helper.from_array(np.asarray(a), n) for n, a in constants.items()]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return model, {"x": source.normal(size=(2, 4, 16)).astype(np.float32)}


@pytest.mark.parametrize("kernels", [True, False])
@pytest.mark.parametrize("kind", ["QDQ", "QOperator", "dynamic"])
def test_quantized_models_give_the_same_numbers(kind: str, kernels: bool) -> None:
    model, inputs = quantized(kind)
    got = fused(model, kernels=kernels, min_saving_us=0.0)
    wanted, found = run(model, inputs)[0], run(got, inputs)[0]
    np.testing.assert_allclose(found, wanted, rtol=2e-6, atol=2e-6)
    before = [
        n.op_type
        for n in model.graph.node
        if "Quantize" in n.op_type or "Integer" in n.op_type or "QLinear" in n.op_type
    ]
    after = [
        n.op_type for n in got.graph.node if "Quantize" in n.op_type or "Integer" in n.op_type or "QLinear" in n.op_type
    ]
    assert after == before
