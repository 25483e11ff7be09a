"""The view algebra against numpy: random chains of rearrangements, run in onnxruntime."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from atcfuse.dims import divide, symbol
from atcfuse.graph.index import Model
from atcfuse.graph.infer import infer
from atcfuse.graph.views import View, identity, regroup
from atcfuse.match.chains import merges, roots

Array = np.ndarray[Any, np.dtype[Any]]


class _Chain:
    """A model of one chain of rearrangements over `x`, and the shape at its end."""

    def __init__(self, shape: list[int]) -> None:
        self.start, self.shape, self.value = list(shape), list(shape), "x"
        self.nodes: list[onnx.NodeProto] = []
        self.tensors: list[onnx.TensorProto] = []

    def ints(self, values: list[int]) -> str:
        name = f"c{len(self.tensors)}"
        self.tensors.append(numpy_helper.from_array(np.array(values, np.int64), name))
        return name

    def op(self, kind: str, *inputs: str, outputs: int = 1, take: int = 0, **attributes: Any) -> None:
        names = [f"v{len(self.nodes)}_{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(kind, [self.value, *inputs], names, f"n{len(self.nodes)}", **attributes))
        self.value = names[take]

    def model(self) -> onnx.ModelProto:
        made = [
            helper.make_tensor_value_info("x", 1, self.start),
            helper.make_tensor_value_info(self.value, 1, self.shape),
        ]
        graph = helper.make_graph(self.nodes, "g", made[:1], made[1:], self.tensors)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _reshape(draw: st.DrawFn, chain: _Chain) -> None:
    factors = [f for n in chain.shape for f in _primes(n)]
    target: list[int] = []
    while factors:
        count = draw(st.integers(1, len(factors)))
        target.append(math.prod(factors[:count]))
        factors = factors[count:]
        if draw(st.booleans()) and len(target) < 5:
            target.append(1)
    target = target or [1]
    chain.op("Reshape", chain.ints(target))
    chain.shape = target


def _primes(n: int) -> list[int]:
    out, p = [], 2
    while n > 1:
        while n % p == 0:
            out.append(p)
            n //= p
        p += 1
    return out


def _transpose(draw: st.DrawFn, chain: _Chain) -> None:
    perm = draw(st.permutations(range(len(chain.shape))))
    chain.op("Transpose", perm=list(perm))
    chain.shape = [chain.shape[p] for p in perm]


def _slice(draw: st.DrawFn, chain: _Chain) -> None:
    axis = draw(st.integers(0, len(chain.shape) - 1))
    n = chain.shape[axis]
    start, end = draw(st.integers(-n - 1, n)), draw(st.integers(-n - 1, n + 2))
    step = draw(st.sampled_from([1, 1, 1, 2, -1]))
    kept = len(range(n)[start:end:step]) if step > 0 else 0
    if kept == 0:
        return
    chain.op("Slice", chain.ints([start]), chain.ints([end]), chain.ints([axis]), chain.ints([step]))
    chain.shape[axis] = kept


def _split(draw: st.DrawFn, chain: _Chain) -> None:
    axis = draw(st.integers(0, len(chain.shape) - 1))
    first = draw(st.integers(0, chain.shape[axis]))
    sizes = [first, chain.shape[axis] - first]
    if 0 in sizes:
        return
    take = draw(st.integers(0, 1))
    chain.op("Split", chain.ints(sizes), outputs=2, take=take, axis=axis)
    chain.shape[axis] = sizes[take]


def _gather(draw: st.DrawFn, chain: _Chain) -> None:
    axis = draw(st.integers(0, len(chain.shape) - 1))
    at = draw(st.integers(-chain.shape[axis], chain.shape[axis] - 1))
    if draw(st.booleans()):
        chain.op("Gather", chain.ints([at]), axis=axis)
        chain.shape[axis] = 1
    elif len(chain.shape) > 1:
        name = f"c{len(chain.tensors)}"
        chain.tensors.append(numpy_helper.from_array(np.array(at, np.int64), name))
        chain.op("Gather", name, axis=axis)
        del chain.shape[axis]


def _gather_nd(draw: st.DrawFn, chain: _Chain) -> None:
    at = draw(st.integers(-chain.shape[0], chain.shape[0] - 1))
    keeps = len(chain.shape) == 1 or draw(st.booleans())
    name = f"c{len(chain.tensors)}"
    chain.tensors.append(numpy_helper.from_array(np.array([[at]] if keeps else [at], np.int64), name))
    chain.op("GatherND", name)
    chain.shape = [*([1] if keeps else []), *chain.shape[1:]]


def _expand(draw: st.DrawFn, chain: _Chain) -> None:
    shape = [draw(st.integers(1, 3)) if n == 1 else n for n in chain.shape]
    shape = [*([draw(st.integers(1, 2))] if draw(st.booleans()) else []), *shape]
    if math.prod(shape) > 2000:
        return
    chain.op("Expand", chain.ints(shape))
    chain.shape = shape


def _tile(draw: st.DrawFn, chain: _Chain) -> None:
    repeats = [draw(st.sampled_from([1, 1, 2])) for _ in chain.shape]
    if math.prod(repeats) * math.prod(chain.shape) > 2000:
        return
    chain.op("Tile", chain.ints(repeats))
    chain.shape = [n * r for n, r in zip(chain.shape, repeats, strict=True)]


def _squeeze(draw: st.DrawFn, chain: _Chain) -> None:
    ones = [i for i, n in enumerate(chain.shape) if n == 1]
    if ones and len(chain.shape) > 1 and draw(st.booleans()):
        axis = draw(st.sampled_from(ones))
        chain.op("Squeeze", chain.ints([axis]))
        del chain.shape[axis]
    else:
        axis = draw(st.integers(0, len(chain.shape)))
        chain.op("Unsqueeze", chain.ints([axis]))
        chain.shape.insert(axis, 1)


STEPS = [_reshape, _transpose, _slice, _split, _gather, _gather_nd, _expand, _tile, _squeeze]


@st.composite
def chains(draw: st.DrawFn) -> _Chain:
    chain = _Chain(draw(st.lists(st.sampled_from([1, 2, 3, 4, 6]), min_size=1, max_size=4)))
    for _ in range(draw(st.integers(1, 6))):
        draw(st.sampled_from(STEPS))(draw, chain)
    return chain


def _run(model: onnx.ModelProto, x: Array) -> Array:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"x": x})[0])


def _read(view: View, memory: Array) -> Array:
    """What the view reads of a root's memory, element by element."""
    at = np.array(view.offset)
    for axis in view.axes:
        index = np.array([0])
        for size, stride in axis:
            index = (index[:, None] + np.arange(size)[None, :] * stride).reshape(-1)
        at = at[..., None] + index
    return memory.reshape(-1)[at]


@given(chains())
@settings(max_examples=250, deadline=None)
def test_every_root_of_a_chain_reads_the_chain(chain: _Chain) -> None:
    if not chain.nodes:
        return
    proto = chain.model()
    x = np.arange(math.prod(chain.start), dtype=np.float32).reshape(chain.start)
    want = _run(proto, x)
    model = Model(proto)
    infer(model)
    (scope,) = model.scopes()
    for link in roots(scope, chain.value, scaling=False):
        if link.value != "x":
            continue
        assert link.view.shape == want.shape
        np.testing.assert_array_equal(_read(link.view, x), want)
        if link.view.is_linear():
            np.testing.assert_array_equal(want.reshape(-1), x.reshape(-1)[: want.size])


@given(st.lists(st.sampled_from([1, 2, 3, 4, 6]), min_size=1, max_size=4), st.data())
@settings(max_examples=150, deadline=None)
def test_merging_is_the_chain_forward(shape: list[int], data: st.DataObject) -> None:
    chain = _Chain(shape)
    for _ in range(data.draw(st.integers(1, 4))):
        data.draw(st.sampled_from([_reshape, _transpose, _squeeze]))(data.draw, chain)
    proto = chain.model()
    x = np.arange(math.prod(shape), dtype=np.float32).reshape(shape)
    model = Model(proto)
    infer(model)
    (scope,) = model.scopes()
    last = merges(scope, "x")[-1]
    if last.value == chain.value:
        np.testing.assert_array_equal(_read(last.view, x), _run(proto, x))


def test_several_indices_or_batches_are_no_view() -> None:
    for indices, batch in (([[0], [1]], 0), ([[0, 1]], 0), ([[1], [0]], 1)):
        chain = _Chain([2, 3, 4])
        chain.tensors.append(numpy_helper.from_array(np.array(indices, np.int64), "at"))
        chain.op("GatherND", "at", batch_dims=batch)
        model = Model(chain.model())
        infer(model)
        (scope,) = model.scopes()
        assert [str(link.value) for link in roots(scope, chain.value, scaling=False)] == [chain.value]


def test_symbolic_extents_regroup_where_they_divide() -> None:
    b, s = symbol("b"), symbol("s")
    (_, _, packed) = identity("x", (b, s, 72)).axes
    assert regroup(packed, (3, 3, 8)) == (((3, 24),), ((3, 8),), ((8, 1),))
    assert regroup(((b * 3, 8),), (b, 3)) == (((b, 24),), ((3, 8),))
    assert regroup(((b, 8),), (3, s)) is None
    assert divide(b * 3, 3) == b
