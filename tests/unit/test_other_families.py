"""Models that are no transformers: what is grouped in them helps, and nothing else changes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto
from test_autofuse import assert_same, fused_ops, optimized, parsed, tools
from test_codegen_elementwise import needs_compiler

from atcfuse.verify.kernels import run_kernels

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


RESNET = """resnet (float[batch,8,8,8] x, float[8,8,3,3] w1, float[8,8,3,3] w2, float[8] s, float[8] b, float[8] m, float[8] v,
float[8,5] head) => (float[batch,5] y) <float[5] bias = {0.1, 0.2, 0.3, 0.4, 0.5}> {
  va = Abs(v)
  c1 = Conv<pads = [1,1,1,1]>(x, w1)
  n1 = BatchNormalization(c1, s, b, m, va)
  r1 = Relu(n1)
  c2 = Conv<pads = [1,1,1,1]>(r1, w2)
  n2 = BatchNormalization(c2, s, b, m, va)
  a = Add(n2, x)
  r2 = Relu(a)
  g = ReduceMean<axes = [2,3], keepdims = 0>(r2)
  l = MatMul(g, head)
  z = Add(l, bias)
  y = Softmax<axis = 1>(z)
}"""
"""A residual block, and global pooling that drops its axes."""

UNET = """unet (float[batch,4,8,8] x, float[4,4,3,3] down, float[4,4,3,3] inner, float[4,4,2,2] up, float[4,8,3,3] out,
float[4,1,1] scale) => (float[batch,4,8,8] y) <float eps = {1e-5}, int64[3] groups = {0, 2, -1}, float half = {0.5}> {
  d = Conv<pads = [1,1,1,1]>(x, down)
  g = Reshape(d, groups)
  m = ReduceMean<axes = [2], keepdims = 1>(g)
  c = Sub(g, m)
  q = Mul(c, c)
  v = ReduceMean<axes = [2], keepdims = 1>(q)
  e = Add(v, eps)
  t = Sqrt(e)
  n = Div(c, t)
  shape = Shape(d)
  w = Reshape(n, shape)
  k = Mul(w, scale)
  s1 = Sigmoid(k)
  a1 = Mul(k, s1)
  p = MaxPool<kernel_shape = [2,2], strides = [2,2]>(a1)
  i = Conv<pads = [1,1,1,1]>(p, inner)
  s2 = Sigmoid(i)
  a2 = Mul(i, s2)
  u = ConvTranspose<strides = [2,2]>(a2, up)
  cat = Concat<axis = 1>(a1, u)
  o = Conv<pads = [1,1,1,1]>(cat, out)
  th = Tanh(o)
  sc = Mul(th, half)
  y = Add(sc, x)
}"""
"""A U-Net: normalisation of groups spelled out, SiLU, a skip connection."""

MIXER = """mixer (float[batch,6,16] x, float[6,12] t1, float[12,6] t2, float[16,32] c1, float[32,16] c2, float[16] g)
=> (float[batch,16] y) <float eps = {1e-6}, float two = {2.0}> {
  m = ReduceMean<axes = [-1], keepdims = 1>(x)
  c = Sub(x, m)
  q = Pow(c, two)
  v = ReduceMean<axes = [-1], keepdims = 1>(q)
  e = Add(v, eps)
  s = Sqrt(e)
  n = Div(c, s)
  ng = Mul(n, g)
  tr = Transpose<perm = [0,2,1]>(ng)
  h = MatMul(tr, t1)
  a = HardSwish(h)
  h2 = MatMul(a, t2)
  back = Transpose<perm = [0,2,1]>(h2)
  r = Add(x, back)
  f = MatMul(r, c1)
  fa = Softplus(f)
  f2 = MatMul(fa, c2)
  z = Add(f2, r)
  y = ReduceMax<axes = [1], keepdims = 0>(z)
}"""
"""A mixer: a norm spelled out, products over tokens and over channels."""

GRU = """gru (float[frames,batch,8] x, float[1,96,8] wi, float[1,96,32] wr, float[64] b, float[32] o, float[1,batch,32] h)
=> (float[frames,batch] y, float[1,batch,32] hn) <int64[1] one = {1}, float low = {0.02}> {
  ax = Abs(x)
  lx = Max(ax, low)
  lg = Log(lx)
  mean = ReduceMean<axes = [2], keepdims = 0>(lg)
  last = Constant<value = int64[1] {2}>()
  mu = Unsqueeze(mean, last)
  nx = Sub(lg, mu)
  g, hn = GRU<hidden_size = 32>(nx, wi, wr, , , h)
  s = Squeeze(g, one)
  t = Tanh(s)
  d = MatMul(t, o)
  p = Sigmoid(d)
  y = Clip(p, low)
}"""
"""Voice activity with a recurrent layer: features less their mean, which a reduction without its axis makes."""

GAT = """gat (float[nodes,8] x, int64[edges] src, int64[edges] dst, int64[edges,1] into, float[8,8] w, float[8] al, float[8] ar)
=> (float[nodes,8] y) <float zero = {0.0}, float small = {1e-9}, int64[1] last = {1}> {
  h = MatMul(x, w)
  l0 = Mul(h, al)
  l = ReduceSum<keepdims = 0>(l0, last)
  r0 = Mul(h, ar)
  r = ReduceSum<keepdims = 0>(r0, last)
  ls = Gather<axis = 0>(l, src)
  rd = Gather<axis = 0>(r, dst)
  a = Add(ls, rd)
  e = LeakyRelu<alpha = 0.2>(a)
  ex = Exp(e)
  node = ReduceSum<keepdims = 1>(x, last)
  z0 = Mul(node, zero)
  z = Squeeze(z0, last)
  total = ScatterElements<axis = 0, reduction = "add">(z, dst, ex)
  safe = Max(total, small)
  per = Gather<axis = 0>(safe, dst)
  weight = Div(ex, per)
  wc = Unsqueeze(weight, last)
  hs = Gather<axis = 0>(h, src)
  m = Mul(hs, wc)
  base = Mul(h, zero)
  sum = ScatterND<reduction = "add">(base, into, m)
  y = Elu(sum)
}"""
"""Attention over the edges of a graph: softmax of what meets in a node, sums scattered into nodes."""

DETECTOR = (
    """detector (float[batch,3,16,16] x, float[3,1,1] mean, float[3,1,1] std, float[8,3,3,3] w, float[8,8,2,2] up, float[1,8,2,2] out,
float[1,8,3,3] other) => (float[batch,1,16,16] y, bool[batch,1,16,16] text) <float k = {-50.0}, float one = {1.0}, float t = {0.3}> {
  c = Sub(x, mean)
  n = Div(c, std)
  f = Conv<pads = [1,1,1,1], strides = [2,2]>(n, w)
  hs = HardSigmoid<alpha = 0.2>(f)
  a = Mul(f, hs)
  p0 = Conv<kernel_shape = [2,2], strides = [2,2]>(a, up)
  p1 = Relu(p0)
  p2 = Resize<mode = "nearest">(p1, , scales)
  s = Add(a, p2)
  shrink0 = ConvTranspose<strides = [2,2]>(s, head)
  shrink = Sigmoid(shrink0)
  thr0 = Conv<pads = [1,1,1,1]>(s, other)
  thr1 = Resize<mode = "nearest">(thr0, , scales)
  thr = Sigmoid(thr1)
  d = Sub(shrink, thr)
  kd = Mul(d, k)
  ek = Exp(kd)
  dn = Add(ek, one)
  y = Reciprocal(dn)
  text = Greater(y, t)
}""".replace("(s, head)", "(s, headed)")
    .replace("<float k", "<float[4] scales = {1.0, 1.0, 2.0, 2.0}, float k")
    .replace("shrink0 =", "headed = Transpose<perm = [1,0,2,3]>(out)\n  shrink0 =")
)
"""A text detector: pixels normalised by channel, a feature pyramid, the differentiable step of its last maps."""


def inputs_of(model: ModelProto, seed: int = 0) -> dict[str, np.ndarray]:
    source, sizes = np.random.default_rng(seed), {"batch": 2, "nodes": 5, "edges": 7, "frames": 4}
    found = {}
    for given in model.graph.input:
        kind = given.type.tensor_type
        shape = [sizes.get(d.dim_param, d.dim_value) for d in kind.shape.dim]
        drawn = source.normal(size=shape) if kind.elem_type == 1 else source.integers(0, 5, shape)
        found[given.name] = drawn.astype(np.float32 if kind.elem_type == 1 else np.int64)
    return found


MODELS = {
    "cnn": CNN,
    "ocr": OCR,
    "vad": VAD,
    "gnn": GNN,
    "resnet": RESNET,
    "unet": UNET,
    "mixer": MIXER,
    "gru": GRU,
    "gat": GAT,
    "detector": DETECTOR,
}


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


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_the_kernels_compute_what_the_operators_did(name: str, tmp_path: Path) -> None:
    using = tools(kernels=True, forced=frozenset({"elementwise"}), min_saving_us=0.0)
    model = optimized(parsed(MODELS[name]), using).model
    inputs = inputs_of(model)
    found = run_kernels(model, tmp_path / "m.onnx", using.kernels, soc="Ascend910B1", inputs=inputs, cache=tmp_path)
    assert found.runs
    assert not found.diagnostics
