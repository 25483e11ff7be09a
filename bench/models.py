"""The models that the benchmarks run on, built here: nothing is downloaded and the same call gives the same bytes.

`transformer` spells a post-LN encoder as `torch.onnx.export` (TorchScript, opset 14) does, head splits with computed
Reshape targets, decomposed LayerNorm and a Constant node for every literal included. `chain` is the opposite: one deep
path with nothing to fuse.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 14
LOWEST = float(np.finfo(np.float32).min)


@dataclass(frozen=True)
class Size:
    """The widths of an encoder."""

    hidden: int
    heads: int
    inner: int
    vocabulary: int
    positions: int


TINY = Size(hidden=16, heads=2, inner=32, vocabulary=64, positions=32)
BERT_BASE = Size(hidden=768, heads=12, inner=3072, vocabulary=30522, positions=512)


@dataclass
class Builder:
    """A graph in the making; names follow the exporter's scheme of module paths."""

    random: np.random.Generator
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    tensors: list[TensorProto] = field(default_factory=list)
    used: dict[str, int] = field(default_factory=dict)

    def node(self, op: str, inputs: Sequence[str], scope: str, **attributes: Any) -> str:
        """Adds a node with one output and gives the output's name."""
        base = f"{scope}/{op}"
        count = self.used.get(base, 0)
        self.used[base] = count + 1
        name = f"{base}_{count}" if count else base
        output = f"{name}_output_0"
        self.nodes.append(helper.make_node(op, inputs, [output], name, **attributes))
        return output

    def constant(self, value: Any, scope: str, dtype: type = np.float32) -> str:
        """A Constant node, as TorchScript writes every literal."""
        return self.node("Constant", [], scope, value=numpy_helper.from_array(np.array(value, dtype)))

    def weight(self, name: str, *shape: int) -> str:
        """An initializer with random values that keep activations in range."""
        values = self.random.standard_normal(shape, dtype=np.float32) * np.float32(shape[0] ** -0.5)
        self.tensors.append(numpy_helper.from_array(values, name))
        return name


def transformer(layers: int, size: Size = TINY, seed: int = 0) -> onnx.ModelProto:
    """An encoder of `layers` layers with dynamic batch and sequence length."""
    b = Builder(np.random.default_rng(seed))
    hidden = _embed(b, size)
    mask = _mask(b)
    for layer in range(layers):
        hidden = _layer(b, hidden, mask, size, f"/encoder/layer.{layer}")
    b.nodes[-1].output[0] = "last_hidden_state"
    dims = ["batch", "sequence"]
    ids = [helper.make_tensor_value_info(name, TensorProto.INT64, dims) for name in ("ids", "attention_mask")]
    out = helper.make_tensor_value_info("last_hidden_state", TensorProto.FLOAT, [*dims, size.hidden])
    return _model(b, ids, out)


def transformer_of(nodes: int, size: Size = TINY) -> onnx.ModelProto:
    """The deepest encoder with at most `nodes` nodes."""
    one, two = (len(transformer(n, size).graph.node) for n in (1, 2))
    return transformer(max(1, (nodes - one) // (two - one) + 1), size)


def chain(nodes: int) -> onnx.ModelProto:
    """One path of `nodes` nodes: Mul, Tanh and Add with a Transpose after each, so that no two are neighbours."""
    b = Builder(np.random.default_rng(0))
    scale, shift = b.weight("scale", 8), b.weight("shift", 8)
    value = "x"
    for i in range(nodes):
        op = ("Mul", "Transpose", "Tanh", "Transpose", "Add", "Transpose")[i % 6]
        second = {"Mul": [scale], "Add": [shift]}.get(op, [])
        attributes = {"perm": [1, 0]} if op == "Transpose" else {}
        value = b.node(op, [value, *second], "", **attributes)
    b.nodes[-1].output[0] = "y"
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [8, 8]) for n in ("x", "y"))
    return _model(b, [x], y)


def elementwise_chain(nodes: int) -> onnx.ModelProto:
    """One path of `nodes` element-wise nodes: as few kernels as hold them."""
    b = Builder(np.random.default_rng(0))
    shift = b.weight("shift", 64)
    value = "x"
    for i in range(nodes):
        value = b.node(("Add", "Tanh", "Neg", "Sigmoid")[i % 4], [value, shift] if i % 4 == 0 else [value], "")
    b.nodes[-1].output[0] = "y"
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [64, 64]) for n in ("x", "y"))
    return _model(b, [x], y)


def elementwise_dag(nodes: int) -> onnx.ModelProto:
    """Blocks of 250 nodes, all alike: each reads one or two of the last twenty values, every ninth multiplies."""
    b = Builder(np.random.default_rng(0))
    weight, values = b.weight("weight", 64, 64), ["x"]
    picks = [(b.random.integers(0, 20, 2).tolist(), int(b.random.integers(0, 6))) for _ in range(250)]
    for i in range(nodes):
        if i % len(picks) == 0:
            values = values[-1:]
        back, op = picks[i % len(picks)]
        one, other = (values[-1 - k % len(values)] for k in back)
        name = ("Add", "Mul", "Max", "Tanh", "Sigmoid", "Neg")[op]
        if i % len(picks) % 9 == 8:
            values.append(b.node("MatMul", [one, weight], ""))
        else:
            values.append(b.node(name, [one, other] if op < 3 else [one], ""))
    b.nodes[-1].output[0] = "y"
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [64, 64]) for n in ("x", "y"))
    return _model(b, [x], y)


def elementwise_rows(nodes: int) -> onnx.ModelProto:
    """One path of rows that are reduced and read again, eight nodes a step."""
    b = Builder(np.random.default_rng(0))
    value = "x"
    while len(b.nodes) < nodes:
        a = b.node("Abs", [value], "")
        d = b.node("Div", [a, b.node("ReduceMax", [a], "", axes=[-1])], "")
        e = b.node("Exp", [d], "")
        total = b.node("Log", [b.node("ReduceL1", [e], "", axes=[-1])], "")
        value = b.node("Tanh", [b.node("Sub", [d, total], "")], "")
    b.nodes[-1].output[0] = "y"
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [64, 64]) for n in ("x", "y"))
    return _model(b, [x], y)


def save_external(model: onnx.ModelProto, path: Path) -> None:
    """Writes the model with its weights in one file beside it. Empties the weights of `model` itself."""
    onnx.save(model, path, save_as_external_data=True, location=f"{path.name}.data", size_threshold=1024)


def _model(b: Builder, inputs: Sequence[onnx.ValueInfoProto], output: onnx.ValueInfoProto) -> onnx.ModelProto:
    graph = helper.make_graph(b.nodes, "main_graph", inputs, [output], b.tensors)
    imports = [helper.make_opsetid("", OPSET)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8, producer_name="atcfuse bench")


def _embed(b: Builder, size: Size) -> str:
    scope = "/embeddings"
    shape = b.node("Shape", ["ids"], scope)
    length = b.node("Gather", [shape, b.constant(1, scope, np.int64)], scope, axis=0)
    end = b.node("Unsqueeze", [length, b.constant([0], scope, np.int64)], scope)
    table = b.constant(np.arange(size.positions)[None], scope, np.int64)
    start, axis, step = (b.constant([v], scope, np.int64) for v in (0, 1, 1))
    positions = b.node("Slice", [table, start, end, axis, step], scope)
    words = b.node("Gather", [b.weight("embeddings.word.weight", size.vocabulary, size.hidden), "ids"], scope)
    places = b.node("Gather", [b.weight("embeddings.position.weight", size.positions, size.hidden), positions], scope)
    return _layer_norm(b, b.node("Add", [words, places], scope), size, f"{scope}/LayerNorm")


def _mask(b: Builder) -> str:
    """(1 - mask) times the lowest float, as [batch, 1, 1, sequence]."""
    rows = b.node("Unsqueeze", ["attention_mask", b.constant([1], "", np.int64)], "")
    grid = b.node("Unsqueeze", [rows, b.constant([2], "", np.int64)], "")
    inverse = b.node("Sub", [b.constant(1.0, ""), b.node("Cast", [grid], "", to=TensorProto.FLOAT)], "")
    return b.node("Mul", [inverse, b.constant(LOWEST, "")], "")


def _layer(b: Builder, x: str, mask: str, size: Size, scope: str) -> str:
    attended = _attention(b, x, mask, size, f"{scope}/attention/self")
    projected = _linear(b, attended, size.hidden, size.hidden, f"{scope}/attention/output/dense")
    first_sum = b.node("Add", [projected, x], f"{scope}/attention/output")
    middle = _layer_norm(b, first_sum, size, f"{scope}/attention/output/LayerNorm")
    expanded = _linear(b, middle, size.hidden, size.inner, f"{scope}/intermediate/dense")
    inner = _gelu(b, expanded, f"{scope}/intermediate/intermediate_act_fn")
    outer = _linear(b, inner, size.inner, size.hidden, f"{scope}/output/dense")
    return _layer_norm(b, b.node("Add", [outer, middle], f"{scope}/output"), size, f"{scope}/output/LayerNorm")


def _attention(b: Builder, x: str, mask: str, size: Size, scope: str) -> str:
    dim = size.hidden // size.heads
    batch = _extent(b, x, 0, scope)
    query = _linear(b, x, size.hidden, size.hidden, f"{scope}/query")
    targets = [_target(b, [batch], [-1, size.heads, dim], scope) for _ in range(3)]
    q = b.node("Transpose", [b.node("Reshape", [query, targets[0]], scope)], scope, perm=[0, 2, 1, 3])
    key = _linear(b, x, size.hidden, size.hidden, f"{scope}/key")
    k = b.node("Reshape", [key, targets[1]], scope)
    value = _linear(b, x, size.hidden, size.hidden, f"{scope}/value")
    v = b.node("Transpose", [b.node("Reshape", [value, targets[2]], scope)], scope, perm=[0, 2, 1, 3])
    raw = b.node("MatMul", [q, b.node("Transpose", [k], scope, perm=[0, 2, 3, 1])], scope)
    scaled = b.node("Div", [raw, b.constant(dim**0.5, scope)], scope)
    probs = b.node("Softmax", [b.node("Add", [scaled, mask], scope)], scope, axis=-1)
    out = b.node("Transpose", [b.node("MatMul", [probs, v], scope)], scope, perm=[0, 2, 1, 3])
    target = _target(b, [_extent(b, out, 0, scope), _extent(b, out, 1, scope)], [size.hidden], scope)
    return b.node("Reshape", [out, target], scope)


def _extent(b: Builder, x: str, axis: int, scope: str) -> str:
    return b.node("Gather", [b.node("Shape", [x], scope), b.constant(axis, scope, np.int64)], scope, axis=0)


def _target(b: Builder, extents: Sequence[str], numbers: Sequence[int], scope: str) -> str:
    """A Reshape target computed at run time: extents first, then numbers."""
    parts = [b.node("Unsqueeze", [e, b.constant([0], scope, np.int64)], scope) for e in extents]
    parts += [b.constant([n], scope, np.int64) for n in numbers]
    return b.node("Concat", parts, scope, axis=0)


def _linear(b: Builder, x: str, width_in: int, width_out: int, scope: str) -> str:
    module = scope[1:].replace("/", ".")
    product = b.node("MatMul", [x, b.weight(f"{module}.weight", width_in, width_out)], scope)
    return b.node("Add", [b.weight(f"{module}.bias", width_out), product], scope)


def _layer_norm(b: Builder, x: str, size: Size, scope: str) -> str:
    module = scope[1:].replace("/", ".")
    centred = b.node("Sub", [x, b.node("ReduceMean", [x], scope, axes=[-1])], scope)
    squared = b.node("Pow", [centred, b.constant(2.0, scope)], scope)
    variance = b.node("ReduceMean", [squared], scope, axes=[-1])
    deviation = b.node("Sqrt", [b.node("Add", [variance, b.constant(1e-12, scope)], scope)], scope)
    normal = b.node("Div", [centred, deviation], scope)
    scaled = b.node("Mul", [normal, b.weight(f"{module}.weight", size.hidden)], scope)
    return b.node("Add", [scaled, b.weight(f"{module}.bias", size.hidden)], scope)


def _gelu(b: Builder, x: str, scope: str) -> str:
    erf = b.node("Erf", [b.node("Div", [x, b.constant(2**0.5, scope)], scope)], scope)
    gate = b.node("Mul", [x, b.node("Add", [erf, b.constant(1.0, scope)], scope)], scope)
    return b.node("Mul", [gate, b.constant(0.5, scope)], scope)


MAKERS: dict[str, Callable[[int], onnx.ModelProto]] = {
    "transformer": transformer_of,
    "chain": chain,
    "elementwise-chain": elementwise_chain,
    "elementwise-dag": elementwise_dag,
    "elementwise-rows": elementwise_rows,
    "bert": lambda layers: transformer(layers, BERT_BASE),
}
"""Models by kind; the number is one of nodes, for `bert` (and `llama`) one of layers."""


def main() -> None:
    """`python bench/models.py KIND NUMBER OUT.onnx [--external]`: writes a model and prints its node count."""
    parser = argparse.ArgumentParser(description="Writes one of the models of the benchmarks.")
    parser.add_argument("kind", choices=[*sorted(MAKERS), "llama"])
    parser.add_argument("number", type=int)
    parser.add_argument("out", type=Path)
    parser.add_argument("--external", action="store_true", help="put the weights into a file of their own")
    options = parser.parse_args()
    if options.kind == "llama":
        import llama  # it builds on this module

        print(llama.save_sparse(options.number, options.out))
        return
    model = MAKERS[options.kind](options.number)
    if options.external:
        save_external(model, options.out)
    else:
        onnx.save(model, options.out)
    print(len(model.graph.node))


if __name__ == "__main__":
    main()
