"""Layers that are alike: which are proved to be, and that a model fused by way of a few of them is as one fused whole."""

from __future__ import annotations

import random

import numpy as np
import onnx
import pytest
from long_models import GREEDY, TOOLS, is_fused_by_layers, side_by_side, transformer
from onnx import numpy_helper

from atcfuse.graph import reroll
from atcfuse.graph.index import Model, Scope
from atcfuse.graph.infer import infer
from atcfuse.graph.layers import NotAlike, alike_layers
from atcfuse.graph.text import parse_graph
from atcfuse.match.alike import rules_are_told_alike
from atcfuse.match.find import Lookup, RuleFinder

BOOK = TOOLS.book
LOOKUP = Lookup.of(BOOK)
RULES = [rule for rule in BOOK.rules if rule.steps]
COPIES, NODES = 12, 70
"""So many copies of an example are layers, and so many nodes."""


def scope_of(proto: onnx.ModelProto) -> Scope:
    model = Model(proto, None)
    infer(model)
    return model.main


@pytest.mark.parametrize("rule", [r for r in RULES if r.fuses], ids=lambda r: r.name)
def test_what_a_rule_does_in_many_layers_is_done_in_each(rule, monkeypatch):
    for example in (*rule.fuses[:2], *rule.keeps[:1]):
        proto = parse_graph(example.graph, example.opset)
        copies = max(COPIES, NODES // len(proto.graph.node) + 1)
        is_fused_by_layers(side_by_side(proto, copies), monkeypatch)


def test_a_transformer_is_its_layers(monkeypatch):
    proto = transformer(14)
    scope = scope_of(proto)
    (layers,) = alike_layers(scope)
    assert layers.count >= 13
    assert (layers.stop - layers.start) / len(scope.order) > 0.9
    assert is_fused_by_layers(proto, monkeypatch, TOOLS)
    assert is_fused_by_layers(proto, monkeypatch, GREEDY)


def test_layers_that_are_not_enough_are_not_looked_at(monkeypatch):
    scope = scope_of(transformer(12))
    (layers,) = alike_layers(scope)
    assert alike_layers(scope, lambda period: layers.count)
    monkeypatch.setattr("atcfuse.graph.layers.Wiring.read_parameters", None)  # would be called for nothing
    assert not alike_layers(scope, lambda period: layers.count + 2)
    monkeypatch.setattr(reroll, "MANY", 0)
    monkeypatch.setattr(reroll, "LEAST_NODES", layers.period * (layers.count - 2 * reroll.SIDE + 2))
    assert not reroll.layers_of(scope)


def test_values_and_nodes_are_found_in_other_layers():
    scope = scope_of(transformer(12))
    (layers,) = alike_layers(scope)
    starts = [layers.start + layer * layers.period for layer in (2, 7)]
    here, there = (scope.order[start : start + layers.period] for start in starts)
    for a, b in zip(here, there, strict=True):
        first, second = scope.nodes[a], scope.nodes[b]
        assert layers.node(a, 5) == b
        assert [layers.value(v, 5) for v in first.outputs] == list(second.outputs)
        assert [layers.value(v, 5) for v in first.inputs] == list(second.inputs)
    with pytest.raises(NotAlike):
        layers.node(here[0], -3)


def spoil(proto: onnx.ModelProto, source: random.Random) -> str:
    """Changes one thing somewhere; what it was."""
    graph = proto.graph
    node = source.choice(graph.node)
    match source.randrange(5):
        case 0:
            graph.output.append(onnx.helper.make_tensor_value_info(node.output[0], 1, None))
            return f"{node.output[0]} is an output"
        case 1:
            graph.node.add(op_type="Neg", input=[node.output[0]], output=["extra"])
            graph.output.append(onnx.helper.make_tensor_value_info("extra", 1, None))
            return f"{node.output[0]} is read once more"
        case 2:
            tensor = source.choice([t for t in graph.initializer if t.data_type == 1])
            array = np.full(tuple(tensor.dims), 0.5, np.float32)
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
            return f"{tensor.name} is one number"
        case 3:
            swapped = source.choice([n for n in graph.node if n.op_type in ("Add", "Mul")])
            swapped.op_type = "Sub"
            return f"{swapped.output[0]} is a difference"
        case _:
            transposes = [n for n in graph.node if n.op_type == "Transpose"]
            other = source.choice(transposes)
            other.attribute[0].ints[:] = list(reversed(other.attribute[0].ints))
            return f"{other.output[0]} is transposed differently"


@pytest.mark.parametrize("seed", range(6))
def test_a_layer_that_differs_is_fused_as_it_is(seed, monkeypatch):
    source = random.Random(seed)
    proto = transformer(18)
    changes = [spoil(proto, source) for _ in range(source.randrange(1, 3))]
    try:
        is_fused_by_layers(proto, monkeypatch)
    except Exception as problem:
        raise AssertionError(changes) from problem


NORM = """(float[2,8] x, float[8] g) => (float[2,8] y) <float eps = {1e-6}> {
  squares = Mul(x, x)
  mean = ReduceMean<axes=[-1]>(squares)
  shifted = Add(mean, eps)
  root = Sqrt(shifted)
  unit = Div(x, root)
  y = Mul(unit, g)
}"""


def test_small_constants_are_compared_and_weights_are_not():
    def longest(name: str, value: np.ndarray) -> int:
        proto = side_by_side(parse_graph(NORM, 17), 30)
        gammas = [np.linspace(0.1, 0.9 + i, 8, dtype=np.float32) for i in range(30)]
        proto.graph.initializer.extend(numpy_helper.from_array(g, f"g.{i}") for i, g in enumerate(gammas))
        kept = [t for t in proto.graph.initializer if t.name != name]
        del proto.graph.initializer[:], proto.graph.input[1::2]
        proto.graph.initializer.extend([*kept, numpy_helper.from_array(value, name)])
        return max(s.count for s in alike_layers(scope_of(proto)))

    assert longest("eps.15", np.array(1e-6, np.float32)) == 30
    assert longest("g.15", np.linspace(0.3, 0.7, 8, dtype=np.float32)) == 30
    assert longest("eps.15", np.array(1e-3, np.float32)) < 16
    assert longest("g.15", np.ones(8, np.float32)) < 16
    assert longest("g.15", np.array([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, -1e9], np.float32)) < 16


def weakened(factor: float, mask: np.ndarray | None, layers: int = 12) -> onnx.ModelProto:
    """Attentions of which each multiplies the mask before it by a factor; of a boolean input where none is given."""
    size = 70
    nodes, constants = [], {"heads": np.array([1, size, 2, 4]), "rows": np.array([1, size, 8]), "f": np.float32(factor)}

    def node(op: str, *inputs: str, **attributes: object) -> str:
        nodes.append(onnx.helper.make_node(op, inputs, [f"v{len(nodes)}"], f"n{len(nodes)}", **attributes))
        return nodes[-1].output[0]

    def weight() -> str:
        constants[f"w{len(constants)}"] = np.linspace(-0.9, 0.7 + len(constants), 64, dtype=np.float32).reshape(8, 8)
        return f"w{len(constants) - 1}"

    rows, before = "x", "mask"
    if mask is None:
        constants |= {"zero": np.float32(0), "low": np.float32(-3e38)}
        before = node("Where", "pad", "zero", "low")
    else:
        constants["mask"] = mask
    for layer in range(layers):
        before = node("Mul", before, f"f{layer}")
        constants[f"f{layer}"] = constants["f"]
        products = [node("Reshape", node("MatMul", rows, weight()), "heads") for _ in range(3)]
        q, k, v = (
            node("Transpose", p, perm=[0, 2, *axes]) for p, axes in zip(products, ((1, 3), (3, 1), (1, 3)), strict=True)
        )
        scores = node("Add", node("MatMul", q, k), "bias") if mask is None else node("MatMul", q, k)
        read = node("MatMul", node("Softmax", node("Add", scores, before), axis=-1), v)
        joined = node("Reshape", node("Transpose", read, perm=[0, 2, 1, 3]), "rows")
        rows = node("Add", rows, node("MatMul", joined, weight()))
    given = [onnx.helper.make_tensor_value_info("x", 1, [1, size, 8])]
    given += [onnx.helper.make_tensor_value_info("bias", 1, [1, 2, size, size])]
    given += [onnx.helper.make_tensor_value_info("pad", 9, [1, 1, 1, size])]
    made = [onnx.helper.make_tensor_value_info(rows, 1, None)]
    tensors = [numpy_helper.from_array(np.asarray(a), n) for n, a in constants.items()]
    graph = onnx.helper.make_graph(nodes, "g", given, made, tensors)
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)])


CAUSAL = np.where(np.tril(np.ones((1, 1, 70, 70))) > 0, 0, -1e38).astype(np.float32)


@pytest.mark.parametrize(
    ("factor", "mask", "layers"),
    [(0.1, CAUSAL, 14), (2.0, None, 30)],
    ids=["causal for some layers", "absorbs, as far as is seen"],
)
def test_a_mask_that_layers_hand_on_is_told_of_in_each_of_them(factor, mask, layers, monkeypatch):
    proto = weakened(factor, mask, layers)
    scope = scope_of(proto)
    assert alike_layers(scope), "the layers are alike but for the mask"
    assert not is_fused_by_layers(proto, monkeypatch)
    found = RuleFinder(scope, LOOKUP).matches(BOOK.rule("attention"))
    told = {(str(m.env.get("causal")), str(m.env.get("bias"))[:5]) for m in found}
    assert len(told) > 1 or mask is None


def test_rules_are_told_the_same_of_layers_that_hand_on_what_nothing_is_known_of():
    scope = scope_of(transformer(12))
    (layers,) = alike_layers(scope)
    assert rules_are_told_alike(scope, layers)


def test_a_constant_that_is_read_in_the_layer_before_too_is_compared():
    def longest(odd: float) -> int:
        nodes, tensors = (
            [],
            [numpy_helper.from_array(np.float32(odd if i == 15 else 1e-6), f"eps{i}") for i in range(31)],
        )
        for i in range(30):
            chain = [
                ("Add", (f"x{i}", f"eps{i}")),
                ("Sqrt", ("",)),
                ("Exp", ("",)),
                ("Tanh", ("",)),
                ("Mul", ("", f"eps{i + 1}")),
            ]
            value = ""
            for at, (op, inputs) in enumerate(chain):
                made = f"x{i + 1}" if at == len(chain) - 1 else f"v{i}.{at}"
                nodes.append(onnx.helper.make_node(op, [n or value for n in inputs], [made], f"n{i}.{at}"))
                value = made
        given, made = (onnx.helper.make_tensor_value_info(name, 1, [2, 8]) for name in ("x0", "x30"))
        graph = onnx.helper.make_graph(nodes, "g", [given], [made], tensors)
        proto = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)])
        return max((s.count for s in alike_layers(scope_of(proto))), default=0)

    assert longest(1e-6) > 25
    assert longest(1e-3) < 20
