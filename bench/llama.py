"""A decoder of LLaMA's shape, as TorchScript writes one: RMSNorm spelled out in float32, rotary positions, SwiGLU.

Its weights may be an empty file of the real one's length: it takes no room on the disk.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import models
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 17
ALIGNMENT = 4096


@dataclass(frozen=True)
class Shape:
    """The widths of a decoder."""

    hidden: int
    heads: int
    inner: int
    vocabulary: int

    @property
    def dim(self) -> int:
        """The width of a head."""
        return self.hidden // self.heads


SEVEN_B = Shape(hidden=4096, heads=32, inner=11008, vocabulary=32000)
TINY = Shape(hidden=16, heads=2, inner=32, vocabulary=64)


@dataclass
class Decoder(models.Builder):
    """A builder in float16 whose weights, where `sparse`, are places in a file that is never written to."""

    sparse: bool = False
    size: int = 0
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def weight(self, name: str, *shape: int) -> str:
        """A float16 initializer: random numbers, or the next place in the file."""
        if not self.sparse:
            values = self.random.standard_normal(shape, dtype=np.float32) * np.float32(shape[0] ** -0.5)
            self.tensors.append(numpy_helper.from_array(values.astype(np.float16), name))
            return name
        tensor = TensorProto(name=name, data_type=TensorProto.FLOAT16, dims=shape)
        tensor.data_location = TensorProto.EXTERNAL
        length = 2 * int(np.prod(shape))
        for key, value in (("location", "weights.bin"), ("offset", self.size), ("length", length)):
            tensor.external_data.add(key=key, value=str(value))
        self.size += -(-length // ALIGNMENT) * ALIGNMENT
        self.tensors.append(tensor)
        return name


def llama(layers: int, shape: Shape, sparse: bool = False) -> tuple[onnx.ModelProto, int]:
    """The model and the bytes of its weight file (0 where the weights are inside)."""
    b = Decoder(np.random.default_rng(0), sparse=sparse)
    x = b.node("Gather", [b.weight("model.embed_tokens.weight", shape.vocabulary, shape.hidden), "ids"], "/model")
    cos, sin = _positions(b, shape)
    for layer in range(layers):
        x = _layer(b, x, (cos, sin), shape, f"/model/layers.{layer}")
    x = _rms_norm(b, x, shape.hidden, "/model/norm")
    b.nodes.append(
        helper.make_node("MatMul", [x, b.weight("lm_head.weight", shape.hidden, shape.vocabulary)], ["logits"])
    )
    half, dims = TensorProto.FLOAT16, ["batch", "sequence"]
    inputs = [
        helper.make_tensor_value_info("ids", TensorProto.INT64, dims),
        helper.make_tensor_value_info("position_ids", TensorProto.INT64, dims),
        helper.make_tensor_value_info("mask", half, ["batch", 1, "sequence", "sequence"]),
    ]
    output = helper.make_tensor_value_info("logits", half, [*dims, shape.vocabulary])
    graph = helper.make_graph(b.nodes, "main_graph", inputs, [output], b.tensors)
    imports = [helper.make_opsetid("", OPSET)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8, producer_name="atcfuse bench"), b.size


def save_sparse(layers: int, path: Path, shape: Shape = SEVEN_B) -> int:
    """Writes the model with a weight file of real size that takes no room; the number of its nodes."""
    model, size = llama(layers, shape, sparse=True)
    with open(path.parent / "weights.bin", "wb") as file:
        file.truncate(size)
    onnx.save(model, path)
    return len(model.graph.node)


def _positions(b: Decoder, shape: Shape) -> tuple[str, str]:
    scope = "/model/rotary_emb"
    steps = (10000.0 ** -(np.arange(0, shape.dim, 2) / shape.dim)).astype(np.float32)
    rows = b.node("Cast", [b.node("Unsqueeze", ["position_ids", b.constant([1], scope, np.int64)], scope)], scope, to=1)
    angles = b.node("MatMul", [b.constant(steps.reshape(1, -1, 1), scope), rows], scope)
    turned = b.node("Transpose", [angles], scope, perm=[0, 2, 1])
    whole = b.node("Concat", [turned, turned], scope, axis=-1)
    axis = b.constant([1], scope, np.int64)
    parts = (b.node("Cast", [b.node(op, [whole], scope)], scope, to=10) for op in ("Cos", "Sin"))
    cos, sin = (b.node("Unsqueeze", [part, axis], scope) for part in parts)
    return cos, sin


def _layer(b: Decoder, x: str, turns: tuple[str, str], shape: Shape, scope: str) -> str:
    attended = _attention(
        b, _rms_norm(b, x, shape.hidden, f"{scope}/input_layernorm"), turns, shape, f"{scope}/self_attn"
    )
    x = b.node("Add", [x, attended], scope)
    normal = _rms_norm(b, x, shape.hidden, f"{scope}/post_attention_layernorm")
    gate = _linear(b, normal, shape.hidden, shape.inner, f"{scope}/mlp/gate_proj")
    active = b.node("Mul", [gate, b.node("Sigmoid", [gate], f"{scope}/mlp/act_fn")], f"{scope}/mlp/act_fn")
    inner = b.node(
        "Mul", [active, _linear(b, normal, shape.hidden, shape.inner, f"{scope}/mlp/up_proj")], f"{scope}/mlp"
    )
    return b.node("Add", [x, _linear(b, inner, shape.inner, shape.hidden, f"{scope}/mlp/down_proj")], scope)


def _attention(b: Decoder, x: str, turns: tuple[str, str], shape: Shape, scope: str) -> str:
    q, k, v = (
        _split(b, _linear(b, x, shape.hidden, shape.hidden, f"{scope}/{name}_proj"), shape, scope) for name in "qkv"
    )
    q, k = (_rotated(b, heads, turns, shape, scope) for heads in (q, k))
    raw = b.node("MatMul", [q, b.node("Transpose", [k], scope, perm=[0, 1, 3, 2])], scope)
    scaled = b.node("Div", [raw, b.constant(shape.dim**0.5, scope, np.float16)], scope)
    exact = b.node("Cast", [b.node("Add", [scaled, "mask"], scope)], scope, to=1)
    probs = b.node("Cast", [b.node("Softmax", [exact], scope, axis=-1)], scope, to=10)
    out = b.node("Transpose", [b.node("MatMul", [probs, v], scope)], scope, perm=[0, 2, 1, 3])
    merged = b.node("Reshape", [out, b.constant([0, 0, shape.hidden], scope, np.int64)], scope)
    return _linear(b, merged, shape.hidden, shape.hidden, f"{scope}/o_proj")


def _split(b: Decoder, x: str, shape: Shape, scope: str) -> str:
    heads = b.node("Reshape", [x, b.constant([0, 0, shape.heads, shape.dim], scope, np.int64)], scope)
    return b.node("Transpose", [heads], scope, perm=[0, 2, 1, 3])


def _rotated(b: Decoder, x: str, turns: Sequence[str], shape: Shape, scope: str) -> str:
    half, end = shape.dim // 2, np.iinfo(np.int64).max
    first, second = (_slice(b, x, *ends, scope) for ends in ((0, half), (half, end)))
    turned = b.node("Concat", [b.node("Neg", [second], scope), first], scope, axis=-1)
    return b.node("Add", [b.node("Mul", [x, turns[0]], scope), b.node("Mul", [turned, turns[1]], scope)], scope)


def _slice(b: Decoder, x: str, start: int, end: int, scope: str) -> str:
    return b.node("Slice", [x, *(b.constant([v], scope, np.int64) for v in (start, end, 3, 1))], scope)


def _linear(b: Decoder, x: str, width_in: int, width_out: int, scope: str) -> str:
    return b.node("MatMul", [x, b.weight(f"{scope[1:].replace('/', '.')}.weight", width_in, width_out)], scope)


def _rms_norm(b: Decoder, x: str, width: int, scope: str) -> str:
    exact = b.node("Cast", [x], scope, to=1)
    mean = b.node("ReduceMean", [b.node("Pow", [exact, b.constant(2.0, scope)], scope)], scope, axes=[-1])
    root = b.node("Sqrt", [b.node("Add", [mean, b.constant(1e-6, scope)], scope)], scope)
    normal = b.node("Mul", [exact, b.node("Div", [b.constant(1.0, scope), root], scope)], scope)
    half = b.node("Cast", [normal], scope, to=10)
    return b.node("Mul", [b.weight(f"{scope[1:].replace('/', '.')}.weight", width), half], scope)
