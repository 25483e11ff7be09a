"""Models that are no transformers: what is grouped in them helps, and nothing else changes."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto
from test_autofuse import assert_same, fused_ops, optimized, parsed, tools

CNN = """cnn (float[batch,3,16,16] x, float[8,3,3,3] w, float[8,8,1,1] squeeze, float[8,8,1,1] excite, float[8,4] head)
=> (float[batch,4] y) <float one = {1.0}> {
  c = Conv<pads = [1,1,1,1]>(x, w)
  s = HardSwish(c)
  p = GlobalAveragePool(s)
  q = Conv(p, squeeze)
  r = Relu(q)
  e = Conv(r, excite)
  g = HardSigmoid<alpha = 0.2>(e)
  m = Mul(s, g)
  k = Add(m, c)
  t = Clip(k, one)
  mp = MaxPool<kernel_shape = [2,2], strides = [2,2]>(t)
  v = GlobalAveragePool(mp)
  f = Flatten(v)
  l = MatMul(f, head)
  y = Sigmoid(l)
}"""
"""A stage of a mobile classifier: activations, squeeze and excite, residual."""

OCR = """ocr (float[batch,1,8,64] x, float[16,1,3,3] w, float[16] mean, float[16] scale, float[128,10] head)
=> (float[batch,64,10] y, int64[batch,64] best) <int64[1] last = {-1}, int64[3] shape = {-1, 64, 128}> {
  c = Conv<pads = [1,1,1,1]>(x, w)
  a = Sigmoid(c)
  s = Mul(a, c)
  t = Transpose<perm = [0,3,1,2]>(s)
  f = Reshape(t, shape)
  l = MatMul(f, head)
  m = ReduceMax<axes = [-1], keepdims = 1>(l)
  d = Sub(l, m)
  e = Exp(d)
  n = ReduceSum(e, last)
  g = Log(n)
  y = Sub(d, g)
  best = ArgMax<axis = 2, keepdims = 0>(y)
}"""
"""A text recogniser: features by columns, and the log of a softmax spelled out."""

VAD = """vad (float[batch,320] x, float[32,1,16] w, float[1,128,32] wi, float[1,128,32] wr, float[32] o)
=> (float[batch,39] y) <int64[1] one = {1}, int64[1] zero = {0}, float half = {0.5}, float tiny = {1e-6}> {
  q = Mul(x, x)
  p = ReduceMean<axes = [-1], keepdims = 1>(q)
  b = Add(p, tiny)
  r = Sqrt(b)
  n = Div(x, r)
  u = Unsqueeze(n, one)
  c = Conv<strides = [8]>(u, w)
  a = Relu(c)
  g = Log(b)
  h = Tanh(g)
  k = Unsqueeze(h, one)
  z = Mul(a, k)
  t = Transpose<perm = [2,0,1]>(z)
  l, lh, lc = LSTM<hidden_size = 32>(t, wi, wr)
  m = Squeeze(l, one)
  d = MatMul(m, o)
  tr = Transpose<perm = [1,0]>(d)
  y1 = Sigmoid(tr)
  y = Max(y1, half)
}"""
"""Voice activity: frames scaled to their loudness, a convolution, an LSTM."""

GNN = """gnn (float[nodes,16] x, int64[edges] src, int64[edges,16] dst, float[16,16] w, float[16] b, int64[nodes,16] kind)
=> (float[nodes,16] y) <int64 two = {2}, float nothing = {0.0}, float small = {0.001}> {
  h = MatMul(x, w)
  a = Add(h, b)
  r = LeakyRelu<alpha = 0.2>(a)
  m = Gather<axis = 0>(r, src)
  z = Mul(x, nothing)
  s = ScatterElements<axis = 0, reduction = "add">(z, dst, m)
  k = Equal(kind, two)
  o = Where(k, r, s)
  n = ReduceL2<axes = [1], keepdims = 1>(o)
  c = Clip(n, small)
  d = Div(o, c)
  y = Elu(d)
}"""
"""Message passing over edges, normalised rows."""


def inputs_of(model: ModelProto, seed: int = 0) -> dict[str, np.ndarray]:
    source, sizes = np.random.default_rng(seed), {"batch": 2, "nodes": 5, "edges": 7}
    found = {}
    for given in model.graph.input:
        kind = given.type.tensor_type
        shape = [sizes.get(d.dim_param, d.dim_value) for d in kind.shape.dim]
        drawn = source.normal(size=shape) if kind.elem_type == 1 else source.integers(0, 5, shape)
        found[given.name] = drawn.astype(np.float32 if kind.elem_type == 1 else np.int64)
    return found


MODELS = {"cnn": CNN, "ocr": OCR, "vad": VAD, "gnn": GNN}


@pytest.mark.parametrize("name", MODELS)
def test_the_model_computes_the_same(name: str) -> None:
    model = parsed(MODELS[name])
    result = optimized(model, tools(disabled=frozenset({"conv_batch_norm"})))
    assert fused_ops(result.model)
    assert_same(model, result.model, inputs_of(model))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("soc", ["Ascend910B1", "Ascend310P3"])
def test_launches_and_bytes_do_not_grow(name: str, soc: str) -> None:
    report = optimized(parsed(MODELS[name]), tools(kernels=True, soc=soc)).report
    summary = report["summary"]
    assert summary["launches_after_both"] <= summary["launches_after_atc"]
    assert summary["ddr_bytes_after_both"] <= summary["ddr_bytes_after_atc"]


@pytest.mark.parametrize(("name", "most"), [("ocr", 1), ("vad", 2), ("gnn", 2)])
def test_rows_that_are_reduced_are_one_kernel_with_what_is_around_them(name: str, most: int) -> None:
    result = optimized(parsed(MODELS[name]), tools(kernels=True, forced=frozenset({"elementwise"})))
    assert not [n for n in result.model.graph.node if n.op_type.startswith("Reduce")]
    groups = [f for f in result.report["fusions"] if f["rule"] == "elementwise"]
    assert len([g for g in groups if "Reduce" in str(g["attributes"]["expression"])]) <= most
