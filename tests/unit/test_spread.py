"""What is known of layers that were cut out: what the evaluator finds there itself, or nothing."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from long_models import is_fused_by_layers, transformer
from onnx import TensorProto, helper, numpy_helper
from test_reroll import Layer

from atcfuse.graph import reroll
from atcfuse.graph.index import Model, Scope
from atcfuse.graph.infer import infer
from atcfuse.graph.layers import NotAlike, known
from atcfuse.graph.parameters import content, plain_parameters
from atcfuse.graph.reroll import layers_of, shorten
from atcfuse.graph.spread import spread

LAYERS, ODD = 16, 9
"""So many layers, and one in the middle of those that are cut out."""


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(reroll, "MANY", 0)
    monkeypatch.setattr(reroll, "LEAST_NODES", 1)


def told(proto: onnx.ModelProto) -> Scope:
    """The graph of a model with what is known of a short one."""
    model = Model(onnx.ModelProto.FromString(proto.SerializeToString()))
    cut = shorten(model, layers_of(model.main))
    assert cut is not None
    short = Model(model.proto)
    infer(short)
    spread(cut, short.main)
    return model.main


def inferred(proto: onnx.ModelProto) -> Scope:
    model = Model(proto)
    infer(model)
    return model.main


@pytest.mark.parametrize("proto", [transformer(LAYERS), *(Layer(seed, 7).repeated(LAYERS) for seed in range(8))])
def test_it_is_what_the_evaluator_finds(proto):
    found, expected = told(proto), inferred(proto)
    assert {name: known(fact) for name, fact in found.facts.items()} == {
        name: known(fact) for name, fact in expected.facts.items()
    }
    assert found.alias == expected.alias
    assert found.extents == expected.extents


def chain(layer: Callable[[int, str], list[onnx.NodeProto]]) -> onnx.ModelProto:
    """Layers [2, 8] to [2, 8] one behind the other; a layer's nodes by its number and what it reads, the last one last."""
    nodes, value = [], "x"
    for at in range(LAYERS):
        made = layer(at, value)
        nodes += made
        value = made[-1].output[0]
    shape = [2, 8]
    graph = helper.make_graph(
        nodes,
        "chain",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(value, TensorProto.FLOAT, shape)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("other", 1)])


def tanh(at: int, value: str, count: int = 4) -> list[onnx.NodeProto]:
    nodes = []
    for step in range(count):
        nodes.append(helper.make_node("Tanh", [value], [f"t{at}.{step}"], f"tanh{at}.{step}"))
        value = nodes[-1].output[0]
    return nodes


USUAL = np.linspace(-0.9, 0.7, 24, dtype=np.float32)


def of_weights(odd: np.ndarray) -> onnx.ModelProto:
    """Layers that multiply with a vector that is computed from a weight, which is the same in all layers but one."""

    def layer(at: int, value: str) -> list[onnx.NodeProto]:
        *nodes, last = tanh(at, value, 6)
        scale = helper.make_node("Cast", [f"w{at}"], [f"s{at}"], f"scale{at}", to=TensorProto.FLOAT)
        return [*nodes, scale, helper.make_node("Mul", [nodes[-1].output[0], f"s{at}"], list(last.output), f"mul{at}")]

    proto = chain(layer)
    usual = np.array([0.5, 0.25, 0.75, 0.125, 0.1, 0.2, 0.3, 0.4], np.float16)
    for at in range(LAYERS):
        proto.graph.initializer.append(numpy_helper.from_array(odd if at == ODD else usual, f"w{at}"))
    return proto


def of_means(odd: np.ndarray) -> onnx.ModelProto:
    """Layers that scale by the mean of a weight, which no fact tells; the weight is the same in all layers but one."""

    def layer(at: int, value: str) -> list[onnx.NodeProto]:
        *nodes, last = tanh(at, value, 6)
        mean = helper.make_node("ReduceMean", [f"w{at}"], [f"s{at}"], f"mean{at}", keepdims=0)
        return [*nodes, mean, helper.make_node("Mul", [nodes[-1].output[0], f"s{at}"], list(last.output), f"mul{at}")]

    proto = chain(layer)
    for at in range(LAYERS):
        proto.graph.initializer.append(numpy_helper.from_array(odd if at == ODD else USUAL, f"w{at}"))
    return proto


def of_inputs(odd: list[int | str]) -> onnx.ModelProto:
    """Layers that each read an input of their own, all of the same declared shape but one."""

    def layer(at: int, value: str) -> list[onnx.NodeProto]:
        *nodes, last = tanh(at, value, 6)
        total = helper.make_node("ReduceSum", [f"past{at}"], [f"s{at}"], f"sum{at}", keepdims=0)
        return [*nodes, total, helper.make_node("Add", [nodes[-1].output[0], f"s{at}"], list(last.output), f"add{at}")]

    proto = chain(layer)
    for at in range(LAYERS):
        shape = odd if at == ODD else ["batch", 4]
        proto.graph.input.append(helper.make_tensor_value_info(f"past{at}", TensorProto.FLOAT, shape))
    return proto


def of_hints(odd: list[int]) -> onnx.ModelProto:
    """Layers with an operator that nobody knows; its result is annotated, in one layer in another way."""

    def layer(at: int, value: str) -> list[onnx.NodeProto]:
        *nodes, last = tanh(at, value, 6)
        other = helper.make_node("Unheard", [nodes[-1].output[0]], [f"u{at}"], f"other{at}", domain="other")
        return [*nodes, other, helper.make_node("Tanh", [f"u{at}"], list(last.output), f"last{at}")]

    proto = chain(layer)
    for at in range(LAYERS):
        shape = odd if at == ODD else [2, 8]
        proto.graph.value_info.append(helper.make_tensor_value_info(f"u{at}", TensorProto.FLOAT, shape))
    return proto


SAME = [
    pytest.param(of_means(USUAL), id="means"),
    pytest.param(of_weights(np.array([0.5, 0.25, 0.75, 0.125, 0.1, 0.2, 0.3, 0.4], np.float16)), id="weights"),
    pytest.param(of_inputs(["batch", 4]), id="inputs"),
    pytest.param(of_hints([2, 8]), id="annotations"),
]
OTHER = [
    pytest.param(of_means(USUAL + np.float32(0.01)), id="means"),
    pytest.param(of_weights(np.array([0.5, 0.25, 0.75, 0.125, 0.1, 0.2, 0.3, 0.6], np.float16)), id="weights"),
    pytest.param(of_hints([8]), id="annotations"),
]


@pytest.mark.parametrize("proto", SAME)
def test_layers_of_which_the_same_is_given_know_the_same(proto):
    expected = inferred(proto)
    assert {name: known(fact) for name, fact in told(proto).facts.items()} == {
        name: known(fact) for name, fact in expected.facts.items()
    }


@pytest.mark.parametrize("proto", OTHER)
def test_a_layer_that_was_cut_out_of_which_something_else_is_given_is_found(proto, monkeypatch):
    with pytest.raises(NotAlike):
        told(proto)
    assert not is_fused_by_layers(proto, monkeypatch)


@pytest.mark.parametrize("odd", [["batch", 5], ["other", 4]])
def test_inputs_of_another_shape_end_the_layers(odd):
    model = Model(of_inputs(odd))
    assert all(layers.count <= ODD for layers in layers_of(model.main))


def test_inputs_of_which_nothing_is_known_are_each_another(monkeypatch):
    proto = of_inputs(["batch", 4])
    for given_input in list(proto.graph.input)[1:]:
        given_input.type.tensor_type.shape.dim[0].ClearField("value")
    with pytest.raises(NotAlike):
        told(proto)
    assert not is_fused_by_layers(proto, monkeypatch)


NUMBERS = st.one_of(
    st.floats(-2, 2, width=16),
    st.sampled_from([0.0, -0.0, 1.0, 0.5, 999.5, 1000.0, -1000.0, float("inf"), float("nan")]),
)


@pytest.mark.filterwarnings("error::RuntimeWarning")
@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        arrays.arrays(
            st.sampled_from([np.float16, np.float32, np.float64]),
            arrays.array_shapes(min_dims=0, max_dims=3, max_side=4),
            elements=NUMBERS,
        ),
        max_size=5,
    )
)
def test_parameters_looked_at_together_are_what_each_is_by_itself(given_arrays):
    tensors = [numpy_helper.from_array(array, f"t{at}") for at, array in enumerate(given_arrays)]
    together = dict(plain_parameters(tensors))
    for tensor, array in zip(tensors, given_arrays, strict=True):
        if tensor.name in together:
            assert together[tensor.name] == (tensor.data_type, array.shape, 0, content(array))


def test_most_parameters_are_looked_at_together():
    source = np.random.default_rng(0)
    weights = [source.normal(size=shape).astype(np.float32) for shape in ((8,), (8, 4), (3, 8, 4)) for _ in range(20)]
    tensors = [numpy_helper.from_array(array, f"t{at}") for at, array in enumerate(weights)]
    assert len(dict(plain_parameters(tensors))) > 50
