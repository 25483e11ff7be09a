"""Causal masks: recognised in every spelling, at every size what onnxruntime computes, and kept where not exact."""

from __future__ import annotations

from copy import deepcopy
from functools import lru_cache
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from bands_oracle import contradictions
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from infer_oracle import OnnxruntimeFail, inferred, is_meaningful, runs_random_programs, session, values
from infer_programs import feeds, grow
from onnx import helper, numpy_helper, parser

from atcfuse.compiler import optimize_proto, toolbox
from atcfuse.options import Options
from atcfuse.run import Toolbox

Arrays = dict[str, np.ndarray]

INPUTS = {
    "self": "float[b,2,s,4] q, float[b,2,s,4] k, float[b,2,s,4] v",
    "cross": "float[b,2,s,4] q, float[b,2,t,4] k, float[b,2,t,4] v",
    "past": "float[b,2,s,4] q, float[b,2,p,4] kp, float[b,2,s,4] kn, float[b,2,p,4] vp, float[b,2,s,4] vn",
}
SIZES = {
    "self": [{"b": 2, "s": 5}, {"b": 1, "s": 1}],
    "cross": [{"b": 1, "s": 3, "t": 5}, {"b": 2, "s": 5, "t": 3}, {"b": 1, "s": 1, "t": 4}],
    "past": [{"b": 2, "s": 3, "p": 4}, {"b": 1, "s": 4, "p": 0}, {"b": 1, "s": 1, "p": 6}],
}
COMMON = """
  kt = Transpose<perm=[0,1,3,2]>(KEYS)
  raw = MatMul(q, kt)
  shape = Shape(raw)
  rows = Slice(shape, two, three)
  columns = Slice(shape, three, four)
  square = Slice(shape, two, four)
  row = Reshape(rows, none)
  column = Reshape(columns, none)
  past = Sub(column, row)
  i = Range(zero, row, one)
  j = Range(zero, column, one)
  ic = Reshape(i, upright)
  positions = Range(past, column, one)
  pc = Reshape(positions, upright)
"""
TENSORS: dict[str, Any] = {
    "zero": np.int64(0), "one": np.int64(1), "three0": np.int64(3), "first": np.array([0]), "two": np.array([2]),
    "three": np.array([3]), "four": np.array([4]), "none": np.zeros(0, np.int64), "upright": np.array([-1, 1]),
    "inf": np.float32(-np.inf), "low": np.float32(np.finfo(np.float32).min), "zf": np.float32(0), "of": np.float32(1),
    "ten4": np.float32(-1e4), "buffer": np.tril(np.ones((1, 1, 9, 9), bool)), "one32": np.int32(1),
    "table": np.triu(np.full((9, 9), -np.inf, np.float32), 1), "last": np.int64(-1), "below": np.int64(-2),
    "half": np.float16(-65504), "zh": np.float16(0), "leading": np.array([0, 1]),
}  # fmt: skip

TOP_LEFT = {
    "ranges compared": "m = LessOrEqual(j, ic) \n sc = Where(m, raw, inf)",
    "the other way round": "m = Less(ic, j) \n sc = Where(m, inf, raw)",
    "added": "m = GreaterOrEqual(ic, j) \n a = Where(m, zf, low) \n sc = Add(a, raw)",
    "filled with the lowest": "m = Less(ic, j) \n sc = Where(m, low, raw)",
    "one more": "n = Add(i, one) \n nc = Reshape(n, upright) \n m = Less(j, nc) \n sc = Where(m, raw, inf)",
    "ones from Trilu, added": """o = Expand(of, square) \n l = Trilu<upper=0>(o) \n e = Equal(l, zf)
        a = Where(e, inf, l) \n sc = Add(raw, a)""",
    "upper triangle of fills": "f = Expand(low, square) \n a = Trilu(f, one) \n sc = Add(raw, a)",
    "upper triangle, masked again": """f = Expand(low, square) \n u = Trilu(f, one) \n g = Greater(j, pc)
        gf = Cast<to=1>(g) \n a = Mul(u, gf) \n sc = Add(raw, a)""",
    "one less the mask": """m = LessOrEqual(j, ic) \n mf = Cast<to=1>(m) \n d = Sub(of, mf) \n a = Mul(d, low)
        sc = Add(raw, a)""",
    "with what is always true": """m = LessOrEqual(j, ic) \n t = GreaterOrEqual(i, zero) \n tc = Reshape(t, upright)
        both = And(m, tc) \n sc = Where(both, raw, inf)""",
    "sliced buffer": """c = Slice(buffer, first, rows, two) \n m = Slice(c, first, columns, three)
        sc = Where(m, raw, inf)""",
    "sliced table, added": """c = Slice(table, first, rows, first) \n t = Transpose<perm=[1,0]>(c)
        cc = Slice(t, first, columns, first) \n a = Transpose<perm=[1,0]>(cc) \n sc = Add(raw, a)""",
    "counted by CumSum": """o = Expand(one32, square) \n r = CumSum(o, below) \n c = CumSum(o, last)
        m = GreaterOrEqual(r, c) \n sc = Where(m, raw, inf)""",
    "gathered by position": """g = Gather(j, i) \n gc = Reshape(g, upright) \n m = Less(gc, j)
        sc = Where(m, inf, raw)""",
    "expanded": """m = LessOrEqual(j, ic) \n m4 = Unsqueeze(m, leading) \n e = Expand(m4, shape)
        sc = Where(e, raw, inf)""",
}  # fmt: skip
BOTTOM_RIGHT = {
    "positions compared": "m = LessOrEqual(j, pc) \n sc = Where(m, raw, inf)",
    "filled with the lowest": "m = Greater(j, pc) \n sc = Where(m, low, raw)",
    "triangle by offset": """o = Expand(of, square) \n l = Trilu<upper=0>(o, past) \n m = Cast<to=9>(l)
        sc = Where(m, raw, inf)""",
    "buffer sliced from past to all": """pv = Sub(columns, rows) \n c = Slice(buffer, pv, columns, two)
        m = Slice(c, first, columns, three) \n sc = Where(m, raw, inf)""",
}
KEPT = {
    "a fill that scores may reach": ("self", "m = LessOrEqual(j, ic) \n sc = Where(m, raw, ten4)"),
    "keys before the query only": ("self", "m = Less(j, ic) \n sc = Where(m, raw, inf)"),
    "keys after the query": ("self", "m = LessOrEqual(ic, j) \n sc = Where(m, raw, inf)"),
    "a window": ("self", """m = LessOrEqual(j, ic) \n d = Sub(ic, three0) \n w = Less(d, j) \n both = And(m, w)
        sc = Where(both, raw, inf)"""),
    "two steps": ("self", "i2 = Add(ic, ic) \n m = LessOrEqual(j, i2) \n sc = Where(m, raw, inf)"),
    "rows without keys and a finite fill": ("cross", "m = LessOrEqual(j, pc) \n sc = Where(m, raw, low)"),
    "padding in the same mask": ("self", """m = LessOrEqual(j, ic) \n g = Greater(pad, of) \n both = And(m, g)
        sc = Where(both, raw, inf)"""),
    "one row for all": ("self", "m = LessOrEqual(j, row) \n sc = Where(m, raw, inf)"),
    "padding under a finite fill": ("self", """m = LessOrEqual(j, ic) \n c = Where(m, raw, low) \n n = Neg(pad)
        sc = Add(c, n)"""),
    "padding with a finite fill over it": ("self", """m = LessOrEqual(j, ic) \n a = Where(m, zf, inf) \n c = Add(raw, a)
        g = Greater(pad, zf) \n sc = Where(g, c, ten4)"""),
    "shifted by more than softmax forgives": ("self", """m = LessOrEqual(j, ic) \n h = Mul(ten4, ten4)
        a = Where(m, h, inf) \n sc = Add(raw, a)"""),
    "shifted before a floor": ("self", """m = LessOrEqual(j, ic) \n a = Where(m, of, inf) \n c = Add(raw, a)
        sc = Max(c, zf)"""),
}  # fmt: skip


def attention(kind: str, masked: str, tail: str = "p = Softmax<axis=-1>(sc)", opset: int = 17) -> onnx.ModelProto:
    """Attention whose scores `raw` become `sc` and then `p`."""
    joined = "k = Concat<axis=2>(kp, kn) \n v = Concat<axis=2>(vp, vn)" if kind == "past" else ""
    inputs = INPUTS[kind] + (", float[b,1,1,s] pad" if "pad" in masked else "")
    nodes = f"{joined}{COMMON}{masked}\n{tail}\n y = MatMul(p, v)".replace("KEYS", "k")
    model = parser.parse_model(
        f'<ir_version: 8, opset_import: ["": {opset}]> g ({inputs}) => (float[b,2,s,4] y) {{ {nodes} }}'
    )
    model.graph.initializer.extend(numpy_helper.from_array(np.asarray(a), name) for name, a in TENSORS.items())
    return model


def feed(model: onnx.ModelProto, sizes: dict[str, int], seed: int = 0) -> Arrays:
    """Random inputs of a model at given sizes."""
    rng = np.random.default_rng(seed)
    out = {}
    for value in model.graph.input:
        tensor = value.type.tensor_type
        shape = [d.dim_value or sizes[d.dim_param] for d in tensor.shape.dim]
        out[value.name] = rng.standard_normal(shape).astype(helper.tensor_dtype_to_np_dtype(tensor.elem_type)) * 3
    if "pad" in out:
        out["pad"] = np.abs(out["pad"])
    return out


@lru_cache(maxsize=1)
def tools() -> Toolbox:
    return toolbox(Options(dialect="portable", disabled=frozenset({"elementwise"})))


def optimized(model: onnx.ModelProto) -> tuple[onnx.ModelProto, dict[str, Any], tuple[str, ...]]:
    """The optimized model with the attributes and the inputs of its one fused attention."""
    out = deepcopy(model)
    optimize_proto(out, tools())
    (node,) = [n for n in out.graph.node if n.op_type == "FusedAttention"]
    return out, {a.name: helper.get_attribute_value(a) for a in node.attribute}, tuple(node.input)


def run(model: onnx.ModelProto, inputs: Arrays) -> np.ndarray:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    made = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return np.asarray(made.run(None, inputs)[0])


def assert_agrees(model: onnx.ModelProto, fused: onnx.ModelProto, sizes: dict[str, int], atol: float = 2e-6) -> None:
    inputs = feed(model, sizes)
    np.testing.assert_allclose(run(fused, inputs), run(model, inputs), rtol=2e-5, atol=atol)


@pytest.mark.parametrize("spelling", TOP_LEFT)
def test_top_left_masks_need_no_operand(spelling: str) -> None:
    model = attention("self", TOP_LEFT[spelling])
    fused, attributes, inputs = optimized(model)
    assert attributes["causal"] == b"top_left"
    assert inputs == ("q", "k", "v")
    made = {line.partition("=")[0].strip() for line in TOP_LEFT[spelling].split("\n")}
    assert not made & {o for n in fused.graph.node for o in n.output}  # what made the mask is gone
    for sizes in SIZES["self"]:
        assert_agrees(model, fused, sizes)


@pytest.mark.parametrize("spelling", BOTTOM_RIGHT)
def test_bottom_right_masks_need_no_operand(spelling: str) -> None:
    model = attention("past", BOTTOM_RIGHT[spelling])
    fused, attributes, inputs = optimized(model)
    assert attributes["causal"] == b"bottom_right"
    assert len(inputs) == 3
    for sizes in SIZES["past"]:
        assert_agrees(model, fused, sizes)


@pytest.mark.parametrize("spelling", KEPT)
def test_what_is_not_exactly_causal_stays_an_operand(spelling: str) -> None:
    kind, masked = KEPT[spelling]
    model = attention(kind, masked)
    fused, attributes, inputs = optimized(model)
    assert attributes["causal"] == b"none"
    assert len(inputs) > 3
    for sizes in SIZES[kind]:
        assert_agrees(model, fused, sizes)


@pytest.mark.parametrize("masked", [TOP_LEFT["ranges compared"], TOP_LEFT["filled with the lowest"]])
def test_top_left_keeps_a_key_in_every_row_of_any_lengths(masked: str) -> None:
    model = attention("cross", masked)
    fused, attributes, _ = optimized(model)
    assert attributes["causal"] == b"top_left"
    for sizes in SIZES["cross"]:
        assert_agrees(model, fused, sizes)


@pytest.mark.parametrize(
    ("tail", "rows"),
    [
        ("p = Softmax<axis=-1>(sc)", b"softmax"),
        ("w = Softmax<axis=-1>(sc) \n n = IsNaN(w) \n p = Where(n, zf, w)", b"zero"),
    ],
)
def test_rows_that_see_no_key_give_what_the_model_gives(tail: str, rows: bytes) -> None:
    model = attention("cross", BOTTOM_RIGHT["positions compared"], tail)
    fused, attributes, _ = optimized(model)
    assert (attributes["causal"], attributes["masked_rows"]) == (b"bottom_right", rows)
    result = run(fused, feed(model, {"b": 1, "s": 5, "t": 3}))
    assert np.isnan(result[:, :, :2]).all() if rows == b"softmax" else not result[:, :, :2].any()
    for sizes in SIZES["cross"]:
        assert_agrees(model, fused, sizes)


@pytest.mark.parametrize(
    "masked",
    [
        "n = Neg(pad) \n c = Add(raw, n) \n m = LessOrEqual(j, ic) \n sc = Where(m, c, inf)",
        "n = Neg(pad) \n m = LessOrEqual(j, ic) \n c = Where(m, raw, inf) \n sc = Add(c, n)",
        """g = Greater(pad, of) \n c = Where(g, raw, ten4) \n m = LessOrEqual(j, ic) \n a = Where(m, zf, inf)
        sc = Add(c, a)""",
    ],
)
def test_padding_stays_beside_a_mask_of_minus_infinity(masked: str) -> None:
    model = attention("self", masked)
    fused, attributes, inputs = optimized(model)
    assert attributes["causal"] == b"top_left"
    assert len([i for i in inputs if i]) == 4
    for sizes in SIZES["self"]:
        assert_agrees(model, fused, sizes)


def test_a_floor_lifts_what_is_masked() -> None:
    model = attention("self", "m = LessOrEqual(j, ic) \n c = Where(m, raw, low) \n sc = Max(c, ten4)")
    fused, attributes, _ = optimized(model)
    assert (attributes["causal"], attributes["floor"]) == (b"top_left", -1e4)
    assert_agrees(model, fused, {"b": 2, "s": 5})


@pytest.mark.parametrize(("fill", "causal"), [("where", b"top_left"), ("added", b"none")])
def test_a_rounded_sum_with_the_lowest_half_is_not_taken_for_masked(fill: str, causal: bytes) -> None:
    masked = {
        "where": "m = LessOrEqual(j, ic) \n sc = Where(m, raw, half)",
        "added": "m = LessOrEqual(j, ic) \n a = Where(m, zh, half) \n sc = Add(raw, a)",
    }
    model = attention("self", masked[fill])
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    fused, attributes, _ = optimized(model)
    assert attributes["causal"] == causal
    assert_agrees(model, fused, {"b": 2, "s": 5}, atol=1e-2)


@pytest.mark.parametrize(("opset", "causal"), [(10, b"none"), (11, b"top_left"), (13, b"top_left"), (18, b"top_left")])
def test_the_meaning_runs_at_every_opset_that_has_range(opset: int, causal: bytes) -> None:
    model = parser.parse_model(f"""<ir_version: 8, opset_import: ["": {opset}]>
        g (float[1,2,5,4] q, float[1,2,5,4] k, float[1,2,5,4] v) => (float[1,2,5,4] y) {{
          kt = Transpose<perm=[0,1,3,2]>(k)
          raw = MatMul(q, kt)
          sc = Add(raw, mask)
          p = Softmax<axis=3>(sc)
          y = MatMul(p, v)
        }}""")
    model.graph.initializer.append(numpy_helper.from_array(TENSORS["table"][:5, :5], "mask"))
    fused, attributes, _ = optimized(model)
    assert attributes["causal"] == causal
    assert_agrees(model, fused, {})


@pytest.mark.parametrize("kind", INPUTS)
def test_no_claim_about_a_mask_is_refuted(kind: str) -> None:
    spelled = {**TOP_LEFT, **BOTTOM_RIGHT, **{f"kept: {n}": masked for n, (_, masked) in KEPT.items()}}
    for name, masked in spelled.items():
        model = attention(kind, masked)
        known, made = inferred(model), session(model)
        for sizes in SIZES[kind]:
            try:
                everything = values(made, feed(model, sizes))
            except OnnxruntimeFail:  # padding of self attention does not fit other lengths
                continue
            assert contradictions(known, everything) == [], name


@runs_random_programs
@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 2**32 - 1))
def test_no_claim_about_a_random_program_is_refuted(seed: int) -> None:
    proto = grow(seed, 20, feeds(2, 3, 1))
    known = inferred(proto)
    try:
        made = session(proto)
    except OnnxruntimeFail:  # its own shape inference refuses the combination
        return
    for a, b, n in [(2, 3, 1), (0, 3, 1), (1, 1, 0), (5, 7, -2)]:
        try:
            everything = values(made, feeds(a, b, n))
        except OnnxruntimeFail:  # the model does not run at this size, so nothing is claimed
            continue
        if is_meaningful(proto, everything):
            assert contradictions(known, everything, {"a": a, "b": b}) == []
