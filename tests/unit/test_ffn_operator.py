"""The fused feed-forward operators apart from their kernels: shapes, meanings against the oracle, activations that are
none."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import parser

from atcfuse.codegen import Signature
from atcfuse.compiler import optimize_proto, toolbox
from atcfuse.graph.index import Model
from atcfuse.graph.infer import infer
from atcfuse.kernel import load_kernels
from atcfuse.options import Options
from atcfuse.reference import evaluate
from atcfuse.resources import data_folder
from atcfuse.vectors import INNER, decode, encode, signature_model

FLOAT, FLOAT16 = 1, 10
SPECS = load_kernels(data_folder("kernels"))
TOOLS = toolbox(Options(dialect="portable"))


def signature(activation: str, gating: str, norm: str, dtype: int, added: str) -> tuple[Signature, dict[str, Any]]:
    attributes: dict[str, Any] = {"activation": activation, "gating": gating, "transposed": (0, 0, 1)}
    attributes["scale"] = 0.5 if added == "residual" else 1.0
    names = ["x", "w_up", "w_down", "b_up", "b_down", "y"]
    names += ["w_gate", "b_gate"] if gating == "separate" else []
    names += ["residual"] if added.startswith("residual") else []
    names += ["residual2"] if added == "residuals" else []
    names += ["gain", "gain2", "shift"] if added == "residuals" or norm == "layer_norm" else []
    if norm:
        attributes |= {"norm": norm, "epsilon": 1e-5, "add_normalized": int(added == "normalized")}
        names += ["gamma", "normalized"]
    spec = SPECS["layer_norm_ffn" if norm else "ffn"]
    return Signature.of(spec, attributes, dict.fromkeys(names, dtype), "910B"), attributes


def shapes_of(of: Signature, hidden: int = 8, columns: int = 8) -> dict[str, tuple[int, ...]]:
    up = INNER if of.text("gating") in ("none", "separate") else 2 * INNER
    rows = {
        "x": (2, 3, hidden),
        **dict.fromkeys(("residual", "residual2"), (2, 3, columns)),
        **dict.fromkeys(("gain", "gain2", "shift"), (columns,)),
        "gamma": (hidden,),
        "w_up": (hidden, up),
        "b_up": (up,),
    }
    return {**rows, "w_gate": (hidden, INNER), "b_gate": (INNER,), "w_down": (columns, INNER), "b_down": (columns,)}


@pytest.mark.parametrize("opset", [9, 13, 18])
@pytest.mark.parametrize(
    ("activation", "gating", "norm", "dtype", "added"),
    [
        ("gelu_erf", "none", "", FLOAT, "residual"),
        ("gelu_tanh", "none", "layer_norm", FLOAT, "normalized"),
        ("gelu_quick", "separate", "layer_norm", FLOAT16, "residual"),
        ("relu_squared", "none", "rms_norm", FLOAT, "residuals"),
        ("relu", "none", "", FLOAT16, "residuals"),
        ("silu", "gate_up", "rms_norm", FLOAT, ""),
        ("relu", "up_gate", "", FLOAT16, ""),
    ],
)
def test_the_meaning_is_what_the_oracle_says(
    activation: str, gating: str, norm: str, dtype: int, added: str, opset: int
) -> None:
    of, attributes = signature(activation, gating, norm, dtype, added)
    rng = np.random.default_rng(5)
    shapes = shapes_of(of)
    present = [o.name for o in of.spec.inputs if of.has(o.name)]
    feeds = {n: encode(rng.standard_normal(shapes[n]) / (4 if n.startswith("w") else 1), dtype) for n in present}
    model = signature_model(of, attributes, opset, None)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    got = dict(zip([o.name for o in session.get_outputs()], session.run(None, feeds), strict=True))
    want = evaluate(of, {n: decode(a, dtype) for n, a in feeds.items()}, 0, 0, 0)
    assert set(got) == set(want)
    for name, values in want.items():
        limit = (1e-5 if dtype == FLOAT else 4e-3) * max(1.0, np.abs(values).max())
        assert np.abs(got[name].astype(np.float64) - values).max() <= limit, name


@pytest.mark.parametrize("norm", ["", "layer_norm"])
def test_shapes_follow_from_rows_and_the_down_weight(norm: str) -> None:
    of, attributes = signature("relu", "none", norm, FLOAT, "")
    shapes = {**shapes_of(of, 8, 5), "y": (2, 3, 5), "normalized": (2, 3, 8)}
    made = signature_model(of, attributes, 17, shapes)
    for output in made.graph.output:
        output.type.tensor_type.ClearField("shape")
    made.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    model = Model(made)
    infer(model)
    (scope,) = model.scopes()
    found = [[str(d) for d in scope.fact(o.name).shape or ()] for o in made.graph.output]
    assert found == [["batch", "3", "5"], ["batch", "3", "8"]][: len(found)]
    assert len(found) == (2 if norm else 1)


TANH = """ m = Mul(r, c) n = Add(u, m) a = Mul(n, k) t = Tanh(a) f = Add(t, one) g = Mul(u, half) h = Mul(g, f)"""
NEAR_MISSES = {
    "erf of x / 1.41": ("s = Div(u, c) e = Erf(s) f = Add(e, one) g = Mul(u, f) h = Mul(g, half)", 1.41),
    "two plus erf": ("s = Div(u, root) e = Erf(s) f = Add(e, c) g = Mul(u, f) h = Mul(g, half)", 2.0),
    "a third of GELU": ("s = Div(u, root) e = Erf(s) f = Add(e, one) g = Mul(u, f) h = Mul(g, c)", 0.3333),
    "tanh with 0.0447": ("q = Mul(u, u) r = Mul(q, u)" + TANH, 0.0447),
    "tanh of the fourth power": ("q = Mul(u, u) r = Mul(q, q)" + TANH, 0.044715),
    "tanh of x plus a square": ("r = Mul(u, u)" + TANH, 0.044715),
    "a gate of another value": ("s = Sigmoid(z) h = Mul(u, s)", 1.0),
    "sigmoid of 1.5 x": ("v = Mul(u, c) s = Sigmoid(v) h = Mul(u, s)", 1.5),
    "the larger of x and 0.1": ("h = Max(u, c)", 0.1),
}


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_what_is_nearly_an_activation_is_kept(name: str) -> None:
    body, constant = NEAR_MISSES[name]
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
    g (float[2,3,8] x, float[8,12] w1, float[12,8] w2, float[2,3,12] z) => (float[2,3,8] y)
    <float c = {{{constant}}}, float root = {{1.4142135}}, float k = {{0.7978846}}, float one = {{1.0}},
     float half = {{0.5}}> {{
      u = MatMul(x, w1)
      {body}
      y = MatMul(h, w2)
    }}"""
    model: onnx.ModelProto = parser.parse_model(text)
    report = optimize_proto(model, TOOLS).report
    assert [f["op"] for f in report["fusions"] if "FFN" in f["op"]] == []
