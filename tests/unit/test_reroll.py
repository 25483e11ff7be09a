"""Rerolling: whatever a model of many layers looks like, it is fused by way of a few of them as if all were searched."""

from __future__ import annotations

import json
import random

import numpy as np
import onnx
import pytest
from long_models import GREEDY, PLAIN, TOOLS, is_fused_by_layers, optimized, transformer
from onnx import TensorProto, helper, numpy_helper

from atcfuse.compiler import toolbox
from atcfuse.graph import reroll
from atcfuse.options import Options

LAYERS = 12


def renamed(proto: onnx.ModelProto, number: bool) -> onnx.ModelProto:
    """A model whose names tell no layer: nodes have numbers or no names, values numbers."""
    own = {o: f"v{i}" for i, o in enumerate(o for n in proto.graph.node for o in n.output)}
    for at, node in enumerate(proto.graph.node):
        node.name = f"n_{at}" if number else ""
        for field in (node.input, node.output):
            field[:] = [own.get(name, name) for name in field]
    for value in proto.graph.output:
        value.name = own[value.name]
    return proto


def described(proto: onnx.ModelProto) -> onnx.ModelProto:
    """A model whose nodes carry metadata and doc strings, some of their own and some that a module has in common; in
    all layers the same nodes do.
    """
    for at, node in enumerate(proto.graph.node):
        node.doc_string = f"the node {at}"
        node.metadata_props.add(key="namespace", value=node.name.rpartition("/")[0])
        if len(node.op_type) % 3:
            node.metadata_props.add(key="place", value=str(at))
    return proto


def with_outputs(proto: onnx.ModelProto, op: str) -> onnx.ModelProto:
    """A model that also gives what all nodes of an operator make, as keys and values of every layer."""
    for node in proto.graph.node:
        if node.op_type == op:
            proto.graph.output.append(helper.make_tensor_value_info(node.output[0], TensorProto.FLOAT, None))
    return proto


def annotated(proto: onnx.ModelProto, *, wrong: bool) -> onnx.ModelProto:
    """A model with annotations on all values, right ones or such that contradict what is proved."""
    inferred = onnx.shape_inference.infer_shapes(proto)
    for info in inferred.graph.value_info:
        if wrong and len(info.type.tensor_type.shape.dim) == 3:
            info.type.tensor_type.shape.dim[2].dim_value = 7
    proto.graph.value_info.extend(inferred.graph.value_info)
    return proto


def of_old(proto: onnx.ModelProto) -> onnx.ModelProto:
    """A model of IR version 3, where initializers are inputs as well."""
    proto.ir_version = 3
    for tensor in proto.graph.initializer:
        proto.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    return proto


@pytest.mark.parametrize(
    "proto",
    [
        pytest.param(described(transformer(LAYERS)), id="metadata"),
        pytest.param(with_outputs(transformer(LAYERS), "Softmax"), id="outputs of every layer"),
        pytest.param(with_outputs(transformer(LAYERS + 1), "Transpose"), id="outputs that fusions make"),
        pytest.param(annotated(transformer(LAYERS), wrong=False), id="annotations"),
        pytest.param(annotated(transformer(LAYERS), wrong=True), id="wrong annotations"),
        pytest.param(of_old(transformer(LAYERS)), id="initializers that are inputs"),
    ],
)
def test_it_comes_out_as_if_every_layer_were_searched(proto, monkeypatch):
    assert is_fused_by_layers(proto, monkeypatch, PLAIN)


@pytest.mark.parametrize("key", ["place", "atcfuse.nodes", "atcfuse.other"])
@pytest.mark.parametrize("value", ["x", "5", "[1]", '["a"]', "[" * 100_000], ids=lambda value: value[:9])
@pytest.mark.parametrize("layers", [(6,), range(LAYERS)], ids=["one layer", "all"])
def test_metadata_that_anybody_has_written(key, value, layers, monkeypatch):
    """What one layer alone carries stays there; what stands where ours would ends no run."""
    proto = transformer(LAYERS)
    for node in proto.graph.node:
        if any(f"/layer.{layer}/" in node.name for layer in layers) and node.op_type in ("Add", "Softmax", "Transpose"):
            node.metadata_props.add(key=key, value=value)
    assert is_fused_by_layers(proto, monkeypatch, PLAIN) == (len(layers) > 1)


@pytest.mark.parametrize("tools", [TOOLS, GREEDY], ids=["as it pays", "everything"])
def test_costs_are_those_of_every_layer(tools, monkeypatch):
    assert is_fused_by_layers(with_outputs(described(transformer(LAYERS + 1)), "Transpose"), monkeypatch, tools)


def test_numbers_as_names_do_not_matter(monkeypatch):
    assert is_fused_by_layers(renamed(transformer(LAYERS), number=True), monkeypatch)


def test_nodes_without_names_get_names_that_are_free(monkeypatch):
    proto = renamed(transformer(LAYERS), number=False)
    monkeypatch.setattr(reroll, "LEAST_NODES", 1)
    found, report = optimized(proto, TOOLS, monkeypatch, layers=True)
    whole, other = optimized(proto, TOOLS, monkeypatch, layers=False)
    first, second = onnx.load_from_string(found).graph.node, onnx.load_from_string(whole).graph.node
    names = [node.name for node in first if node.name]
    assert len(names) == len(set(names)) == len([node for node in second if node.name])
    for node in (*first, *second):
        node.name = ""
        del node.metadata_props[:]
    assert [n.SerializeToString() for n in first] == [n.SerializeToString() for n in second]
    rules = [[fusion["rule"] for fusion in json.loads(text)["fusions"]] for text in (report, other)]
    assert rules[0] == rules[1]


def crossed(layers: int, projections: int) -> onnx.ModelProto:
    """Layers of which each projects the same states, so that projections of several layers can be one operator."""
    nodes, tensors, rows = [], [], "x"
    for layer in range(layers):
        made = []
        for at in range(projections):
            weight = np.linspace(-0.9, 0.7 + layer + at, 32 * 32, dtype=np.float32).reshape(32, 32)
            tensors.append(numpy_helper.from_array(weight, f"w{layer}.{at}"))
            made.append(f"/{layer}/p{at}")
            nodes.append(
                helper.make_node("MatMul", ["states", f"w{layer}.{at}"], [made[-1]], f"/{layer}/of_states_{at}")
            )
        weight = np.linspace(-0.8, 0.3 + layer, 32 * 32, dtype=np.float32).reshape(32, 32)
        tensors.append(numpy_helper.from_array(weight, f"w{layer}"))
        for at, (op, other) in enumerate([("MatMul", f"w{layer}"), *[("Sub", name) for name in made]]):
            result = f"/{layer}/r{at}"
            inputs = [rows] if other is None else [rows, other]
            nodes.append(helper.make_node(op, inputs, [result], f"/{layer}/{op}_{at}"))
            rows = result
    given = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 8, 32]) for name in ("x", "states")]
    graph = helper.make_graph(nodes, "g", given, [helper.make_tensor_value_info(rows, 1, None)], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("projections", [1, 2, 3, 4])
def test_layers_that_come_out_in_pairs(projections, monkeypatch):
    assert is_fused_by_layers(crossed(18, projections), monkeypatch, GREEDY) == (projections in (2, 4))


def test_several_stretches_of_layers(monkeypatch):
    both = transformer(LAYERS)
    other = crossed(16, 2)
    both.graph.node.extend(other.graph.node)
    both.graph.initializer.extend(other.graph.initializer)
    both.graph.input.extend(other.graph.input)
    both.graph.output.extend(other.graph.output)
    assert is_fused_by_layers(both, monkeypatch, GREEDY)


@pytest.mark.parametrize("entry", ["*layer.6*", "*layer.?/*"])
def test_a_layer_whose_nodes_the_user_keeps_is_another_one(entry, monkeypatch):
    assert not is_fused_by_layers(transformer(LAYERS), monkeypatch, toolbox(Options(keep_nodes=(entry,))))


@pytest.mark.parametrize("entry", ["MatMul", "Erf", "Cast", "*attention*", "*Softmax*", "/embeddings*", "*/nothing"])
def test_what_the_user_keeps_in_every_layer_stays_there(entry, monkeypatch, tmp_path):
    listed = tmp_path / "keep.ini"
    listed.write_text(f"[{'ByNodeType' if entry.isalpha() else 'ByNodeName'}]\n{entry}\n")
    tools = toolbox(Options(keep_nodes=(str(listed),)))
    assert is_fused_by_layers(transformer(LAYERS), monkeypatch, tools)


def test_a_name_that_a_layer_in_the_middle_has_taken(monkeypatch):
    found, _ = optimized(transformer(LAYERS), PLAIN, monkeypatch, layers=False)
    made = [n.name for n in onnx.load_from_string(found).graph.node if n.op_type == "FusedAttention"]
    for at in (2, 6):
        proto = transformer(LAYERS)
        node = proto.graph.node[len(proto.graph.node) // 2]
        node.name = made[at]
        is_fused_by_layers(proto, monkeypatch)


@pytest.mark.parametrize(
    ("layer", "op", "of"), [(7, "Concat", 4), (4, "MatMul", 0), (3, "MatMul", 10), (8, "Shape", 0)]
)
def test_names_that_other_layers_have_taken(layer, op, of, monkeypatch):
    """Wherever a name that fused nodes get is another node's already, nothing is told of the wrong layer."""
    found, _ = optimized(transformer(LAYERS), PLAIN, monkeypatch, layers=False)
    made = [n.name for n in onnx.load_from_string(found).graph.node if f"/layer.{of}/" in n.name and "Fused" in n.name]
    for wanted in (made[0], made[-1]):
        proto = transformer(LAYERS)
        next(n for n in proto.graph.node if n.op_type == op and f"/layer.{layer}/" in n.name).name = wanted
        is_fused_by_layers(proto, monkeypatch)


def test_names_that_do_not_tell_nodes_apart(monkeypatch):
    proto = transformer(LAYERS)
    proto.graph.node[400].name = proto.graph.node[700].name
    assert not is_fused_by_layers(proto, monkeypatch)


class Layer:
    """Layers of random operators over tensors [2, 8, 32], the same ones in each; weights are others in each."""

    OPS = ("norm", "project", "bias", "gelu", "relu", "softmax", "residual", "gate", "mask", "turn", "merge", "half")

    def __init__(self, seed: int, length: int) -> None:
        source = random.Random(seed)
        self.steps = [(source.choice(self.OPS), source.random()) for _ in range(length)]
        self.named = source.random() < 0.7
        self.nodes: list[onnx.NodeProto] = []
        self.tensors: list[onnx.TensorProto] = []

    def node(self, op: str, *inputs: str, **attributes: object) -> str:
        made = f"v{len(self.nodes)}"
        name = f"/layer.{self.layer}/{op}_{len(self.nodes)}" if self.named else f"{op}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [made], name, **attributes))
        return made

    def weight(self, *shape: int) -> str:
        array = np.random.default_rng(len(self.tensors)).uniform(-0.9, 0.9, shape).astype(np.float32)
        self.tensors.append(numpy_helper.from_array(array, f"w{len(self.tensors)}"))
        return self.tensors[-1].name

    def step(self, what: str, choice: float, values: list[str]) -> str:
        x, other = values[-1], values[int(choice * len(values))]
        match what:
            case "norm":
                return self.node("LayerNormalization", x, self.weight(32), self.weight(32), axis=-1)
            case "project":
                return self.node("MatMul", other, self.weight(32, 32))
            case "bias":
                return self.node("Add", x, self.weight(32))
            case "gelu":
                return self.node("Mul", x, self.node("Sigmoid", x))
            case "softmax":
                return self.node("Softmax", x, axis=-1)
            case "residual":
                return self.node("Add", other, x)
            case "gate":
                return self.node("Mul", x, other)
            case "mask":
                return self.node("Add", x, "mask")
            case "turn":
                turned = self.node("Transpose", x, perm=[0, 2, 1])
                return self.node("Transpose", self.node("Tanh", turned), perm=[0, 2, 1])
            case "merge":
                return self.node("Reshape", self.node("Exp", self.node("Reshape", x, "rows")), "whole")
            case "half":
                return self.node("Cast", self.node("Cast", x, to=TensorProto.FLOAT16), to=TensorProto.FLOAT)
        return self.node("Relu", x)

    def repeated(self, times: int) -> onnx.ModelProto:
        """A model of so many layers; a mask of [8, 1] is the same in all of them."""
        values = ["x"]
        for layer in range(times):
            self.layer, values = layer, values[-1:]
            for what, choice in self.steps:
                values.append(self.step(what, choice, values))
        targets = {"rows": [16, 32], "whole": [2, 8, 32]}
        tensors = [numpy_helper.from_array(np.array(v, np.int64), n) for n, v in targets.items()]
        given = [
            helper.make_tensor_value_info(n, TensorProto.FLOAT, d) for n, d in (("x", [2, 8, 32]), ("mask", [8, 1]))
        ]
        result = helper.make_tensor_value_info(values[-1], TensorProto.FLOAT, None)
        graph = helper.make_graph(self.nodes, "g", given, [result], [*self.tensors, *tensors])
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("seed", range(40))
def test_layers_of_random_operators(seed, monkeypatch):
    proto = Layer(seed, 6 + seed % 9).repeated(12 + seed % 7)
    is_fused_by_layers(proto, monkeypatch, GREEDY if seed % 2 else PLAIN, numbered=False)
