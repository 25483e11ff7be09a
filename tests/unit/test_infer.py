"""What the evaluator proves, operator by operator, and what it must not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from infer_oracle import inferred, session, values
from onnx import TensorProto, helper, numpy_helper, parser

from atcfuse.dims import Dim, evaluate, symbol
from atcfuse.graph.constants import constant, scalar
from atcfuse.graph.facts import UNKNOWN, Fact
from atcfuse.graph.index import Model, Scope
from atcfuse.graph.infer import infer

HEADER = '<ir_version: 8, opset_import: ["" : 17]>'


def scope_of(graph: str, opset: int = 17, ir: int = 8) -> Scope:
    """The evaluated main scope of a graph in ONNX's text notation."""
    text = f'<ir_version: {ir}, opset_import: ["" : {opset}]> g {graph}'
    return inferred(parser.parse_model(text)).main


def shape_of(scope: Scope, name: str) -> str:
    """A shape as text, "?" for an unknown rank."""
    shape = scope.fact(name).shape
    return "?" if shape is None else ", ".join(map(str, shape))


def elements_of(scope: Scope, name: str) -> str:
    """Known elements as text."""
    elements = scope.fact(name).elements
    return "?" if elements is None else ", ".join(map(str, elements))


def test_head_split_with_a_computed_target_is_exact() -> None:
    scope = scope_of("""
        (float[batch, seq, 768] x) => (float[A, B, C, D] y) <int64 zero = {0}, int64 one = {1}, int64[1] ax = {0},
            int64[2] tail = {12, 64}> {
          s = Shape(x)
          b = Gather(s, zero)
          l = Gather(s, one)
          bu = Unsqueeze(b, ax)
          lu = Unsqueeze(l, ax)
          t = Concat<axis=0>(bu, lu, tail)
          y = Reshape(x, t)
        }""")
    assert elements_of(scope, "t") == "batch, seq, 12, 64"
    assert shape_of(scope, "y") == "batch, seq, 12, 64"


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("0, 0, 12, -1", "batch, seq, 12, 64"),
        ("0, -1, 768", "batch, seq, 768"),
        ("-1, 768", "batch*seq, 768"),
        ("0, -1", "batch, 768*seq"),
        ("-1, 1536", "floordiv(batch*seq, 2), 1536"),
    ],
)
def test_reshape_copies_zeros_and_solves_minus_one(target: str, expected: str) -> None:
    rank = target.count(",") + 1
    scope = scope_of(f"""(float[batch, seq, 768] x) => (float y) <int64[{rank}] t = {{{target}}}> {{
        y = Reshape(x, t) }}""")
    if "floordiv" in expected:
        expected = "floordiv(768*batch*seq, 1536), 1536"
    assert shape_of(scope, "y") == expected


def test_allowzero_makes_zero_an_extent() -> None:
    scope = scope_of("(float[3, n] x) => (float y) <int64[2] t = {0, 5}> { y = Reshape<allowzero=1>(x, t) }")
    assert shape_of(scope, "y") == "0, 5"


def test_a_cut_off_extent_that_all_elements_fit_in_is_the_whole_one() -> None:
    """As GPT-Neo's exports have it, with the length of a slice of the causal mask."""
    scope = scope_of("""(float[batch, seq, 4, 16] x, float[batch, seq] z, float[99] table) => (float y, float w, float v)
        <int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}, int64[1] width = {64}, int64[1] less = {32}> {
          s = Shape(x)
          b = Slice(s, zero, one)
          n = Slice(s, one, two)
          t = Slice(table, zero, n)
          m = Shape(t)
          target = Concat<axis=0>(b, m, width)
          y = Reshape<allowzero=1>(x, target)
          half = Concat<axis=0>(b, m, less)
          w = Reshape<allowzero=1>(x, half)
          other = Concat<axis=0>(m, b, width)
          v = Reshape<allowzero=1>(z, other) }""")
    assert shape_of(scope, "y") == "batch, seq, 64"
    assert shape_of(scope, "w") == "batch, min(99, seq), 32", "which is no division of what there is"
    assert shape_of(scope, "v") == "min(99, seq), batch, 64"


def test_a_computed_extent_that_may_be_zero_or_minus_one_is_not_taken_at_its_word() -> None:
    scope = scope_of("""(float[4] x, int64[1] n, float[m] other) => (float y, float z) {
        y = Reshape(x, n)
        s = Shape(other)
        z = Reshape(x, s) }""")
    assert shape_of(scope, "y") == "4"  # the only extent, whatever n says
    assert shape_of(scope, "z") == "4"


def test_torchscript_expand_idiom_is_exact() -> None:
    scope = scope_of("""(float[batch, 1, 1, seq] m, float[batch, heads, seq, d] x) => (float y)
        <int64[4] keep = {-1, -1, -1, -1}, int64 minus = {-1}, int64[1] two = {2}, int64[1] three = {3},
         int64[1] one = {1}> {
          s = Shape(x)
          l = Slice(s, two, three)
          t0 = Concat<axis=0>(minus_, one, l, minus_)
          minus_ = Constant<value_ints=[-1]>()
          flat = Constant<value_ints=[-1]>()
          t = Reshape(t0, flat)
          ts = Shape(t)
          ones = ConstantOfShape<value=int64[1]{1}>(ts)
          neg = Mul(ones, minus)
          eq = Equal(t, neg)
          w = Where(eq, ones, t)
          y = Expand(m, w) }""")
    assert elements_of(scope, "w") == "1, 1, seq, 1"
    assert shape_of(scope, "y") == "batch, 1, seq, seq"


def test_an_extent_is_no_minus_one_even_where_its_formula_could_be() -> None:
    scope = scope_of("""(float[1,1,n] x, float[1,1,10] w) => (bool same, bool open, float[m] z)
        <int64 minus = {-1}, int64 two = {2}, int64[1] none = {-1}, int64[1] row = {0}, int64[1] i1 = {1}> {
        c = Conv<strides = [5]>(x, w)
        s = Shape(c)
        d = Gather(s, two)
        same = Equal(d, minus)
        less = Sub(d, two)
        open = Equal(less, minus)
        flat = Reshape(c, none)
        up = Slice(flat, i1, none, row)
        again = Shape(up)
        more = Add(again, i1)
        z = Slice(flat, row, more, row) }""")
    assert elements_of(scope, "d") == "floordiv(n, 5) - 1"
    assert elements_of(scope, "same") == "0"
    assert elements_of(scope, "open") == "open[0]?"


def test_a_slice_to_an_extent_of_less_is_no_minimum() -> None:
    scope = scope_of("""(float[1,1,n] x, float[1,1,10] w) => (float y, float z)
        <int64[1] two = {2}, int64[1] i1 = {1}, int64[1] i0 = {0}, int64[6] pads = {0, 0, 1, 0, 0, 1}> {
        c = Conv<strides = [5]>(x, w)
        wide = Pad(c, pads)
        s = Shape(c)
        d = Gather(s, two)
        more = Add(d, i1)
        y = Slice(wide, i0, d, two)
        z = Slice(wide, i1, more, two) }""")
    assert shape_of(scope, "wide") == "1, 1, floordiv(n, 5) + 1"
    assert shape_of(scope, "y") == "1, 1, floordiv(n, 5) - 1"
    assert shape_of(scope, "z") == "1, 1, floordiv(n, 5) - 1"


def test_symbols_of_one_name_in_two_models_do_not_mix() -> None:
    unsigned = scope_of("(float[n] x, float[m] z) => (bool v, int64 w) { s = Size(x)\n t = Size(z)\n v = Equal(s, t) }")
    signed = scope_of("(int64 v) => (bool y) <int64 minus = {-1}> { y = Equal(v, minus) }")
    assert elements_of(unsigned, "v") == "v[0]?"
    assert elements_of(signed, "y") == "y[0]?"


def test_comparisons_do_not_assume_that_an_extent_is_positive() -> None:
    scope = scope_of("""(float[n] x) => (bool e, bool m, bool l, bool g) <int64 zero = {0}, int64 minus = {-1}> {
        s = Size(x)
        e = Equal(s, zero)
        m = Equal(s, minus)
        l = Less(s, zero)
        g = Greater(s, zero) }""")
    assert elements_of(scope, "e") == "e[0]?"
    assert elements_of(scope, "m") == "0"
    assert elements_of(scope, "l") == "0"
    assert elements_of(scope, "g") == "g[0]?"


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (0, 2**63 - 1, "seq + past"),
        (0, 2**31 - 1, "seq + past"),
        (-1, 2**63 - 1, "min(1, seq + past)"),
        (5, 5, "0"),
        (0, 9, "min(9, seq + past)"),
    ],
)
def test_slice_with_constant_bounds(start: int, end: int, expected: str) -> None:
    scope = scope_of(f"""(float[past, k] a, float[seq, k] b) => (float y)
        <int64[1] s = {{{start}}}, int64[1] e = {{{end}}}, int64[1] ax = {{0}}> {{
          x = Concat<axis=0>(a, b)
          y = Slice(x, s, e, ax) }}""")
    assert shape_of(scope, "y") == f"{expected}, k"


def test_slice_with_computed_bounds() -> None:
    scope = scope_of("""(float[past, k] a, float[seq, k] b, float[9, k] table) => (float y, float z, float w)
        <int64[1] zero = {0}, int64[1] one = {1}, int64[1] big = {9223372036854775807}, int64[1] ax = {0}> {
          x = Concat<axis=0>(a, b)
          sx = Shape<start=0, end=1>(x)
          sa = Shape<start=0, end=1>(a)
          sb = Shape<start=0, end=1>(b)
          y = Slice(x, sa, sx, ax)
          n = Neg(sb)
          z = Slice(x, n, big, ax)
          w = Slice(table, zero, sb, ax) }""")
    assert shape_of(scope, "y") == "seq, k"
    assert shape_of(scope, "z") == "last(seq + past, seq), k"
    assert shape_of(scope, "w") == "min(9, seq), k"


def test_a_clamped_slice_gives_way_in_a_broadcast_only_where_it_cannot_be_empty() -> None:
    scope = scope_of("""(float[seq] x, float[9] table, float[other] free) => (float y, float z)
        <int64[1] zero = {0}> {
          n = Shape(x)
          t = Slice(table, zero, n)
          y = Add(x, t)
          f = Slice(free, zero, n)
          z = Add(x, f) }""")
    assert shape_of(scope, "y") == "seq"
    assert shape_of(scope, "z") == "broadcast(min(other, seq), seq)"


def test_extents_that_are_no_one_are_equal_where_they_broadcast() -> None:
    scope = scope_of("""(float[B,S] x, float[T,S] y) => (float a, float b, float c) {
          r = Concat<axis = 0>(x, x)
          s = Concat<axis = 0>(y, y)
          a = Add(r, s)
          t = Concat<axis = 0>(s, y)
          b = Add(r, t)
          c = Add(x, y) }""")
    assert shape_of(scope, "a") == "2*B, S"
    assert shape_of(scope, "b") == "2*B, S"
    assert shape_of(scope, "c") == "broadcast(B, T), S"


def test_division_rounds_toward_zero() -> None:
    scope = scope_of("""(float[n] x) => (int64 y) <int64[2] a = {-7, 7}, int64 two = {2}, int64 minus = {-1}> {
        q = Div(a, two)
        s = Size(x)
        half = Div(s, two)
        m = Mul(s, minus)
        y = Div(m, two) }""")
    assert elements_of(scope, "q") == "-3, 3"
    assert elements_of(scope, "half") == "floordiv(n, 2)"
    assert elements_of(scope, "y") == "y[0]"


def test_places_of_a_constant_that_are_not_zero_are_known() -> None:
    """`repeat_interleave` by TorchScript counts its places with a mask of as many columns as the largest repeat."""
    scope = scope_of("""(float[n] x) => (int64 at) <int64[1] three = {3}, int64[1] one = {1}, int64 z = {0}, int64 o = {1}> {
        repeats = ConstantOfShape<value = int64[1] {2}>(three) most = ReduceMax<keepdims = 0>(repeats)
        count = Range(z, most, o) column = Unsqueeze(repeats, one) mask = Less(count, column) at = NonZero(mask) }""")
    assert scope.fact("at").shape == (2, 6)
    assert scope.fact("at").elements == (0, 0, 1, 1, 2, 2, 0, 1, 0, 1, 0, 1)


def test_unknown_extents_are_never_shared() -> None:
    scope = scope_of("(float[n] x) => (int64 a, int64 b) { a = NonZero(x)\n b = NonZero(x) }")
    assert shape_of(scope, "a") == "1, a.dim1"
    assert shape_of(scope, "b") == "1, b.dim1"


def test_input_extents_without_a_name_are_symbols_of_their_own() -> None:
    proto = parser.parse_model(f"{HEADER} g (float[1, 2] x) => (float y) {{ y = Relu(x) }}")
    dims = proto.graph.input[0].type.tensor_type.shape.dim
    dims[0].Clear()
    dims[1].dim_param = "?"
    scope = inferred(proto).main
    assert shape_of(scope, "y") == "x.dim0, x.dim1"


def test_shape_parameters_may_be_attributes_or_inputs() -> None:
    old = scope_of("(float[a, 1, c] x) => (float y) { y = Squeeze<axes=[1]>(x) }", opset=11)
    new = scope_of("(float[a, 1, c] x) => (float y) <int64[1] t = {1}> { y = Squeeze(x, t) }", opset=13)
    assert shape_of(old, "y") == shape_of(new, "y") == "a, c"
    old = scope_of("(float[a, b, c] x) => (float y) { y = ReduceMean<axes=[-1], keepdims=0>(x) }", opset=17)
    new = scope_of("(float[a, b, c] x) => (float y) <int64[1] t = {-1}> { y = ReduceMean<keepdims=0>(x, t) }", opset=18)
    assert shape_of(old, "y") == shape_of(new, "y") == "a, b"
    old = scope_of("(float[a, 6] x) => (float y, float z) { y, z = Split<axis=1, split=[2, 4]>(x) }", opset=11)
    new = scope_of("(float[a, 6] x) => (float y, float z) <int64[2] t = {2, 4}> { y, z = Split<axis=1>(x, t) }")
    assert shape_of(old, "z") == shape_of(new, "z") == "a, 4"


def test_uneven_split_leaves_the_rest_to_the_last() -> None:
    scope = scope_of("(float[a, 7] x) => (float y, float z) { y, z = Split<axis=1, num_outputs=2>(x) }", opset=18)
    assert (shape_of(scope, "y"), shape_of(scope, "z")) == ("a, 4", "a, 3")


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        ("MatMul(x, k)", "b, h, s, t"),
        ("MatMul(x, vector)", "b, h, s"),
        ('Einsum<equation="bhsd,bhdt->bhst">(x, k)', "b, h, s, t"),
        ('Einsum<equation="...sd,...dt">(x, k)', "b, h, s, t"),
        ("Transpose<perm=[0, 2, 1, 3]>(x)", "b, s, h, 64"),
        ("Transpose(x)", "64, s, h, b"),
        ("Flatten<axis=2>(x)", "b*h, 64*s"),
        ("Softmax<axis=-1>(x)", "b, h, s, 64"),
        ("ReduceSum<keepdims=1>(x)", "1, 1, 1, 1"),
        ("ArgMax<axis=-1, keepdims=0>(x)", "b, h, s"),
        ("Tile(x, rep)", "b, h, 3*s, 64"),
        ("Pad(x, pads)", "b, h, s + 3, 64"),
        ("Conv<strides=[2, 2], pads=[1, 1, 1, 1]>(x, w)", "b, 5, floordiv(s + 1, 2), 32"),
        ("MaxPool<kernel_shape=[2, 2], strides=[2, 2]>(x)", "b, h, floordiv(s, 2), 32"),
        ("GlobalAveragePool(x)", "b, h, 1, 1"),
        ("Unsqueeze(x, axes)", "1, b, h, s, 64, 1"),
        ("Gather<axis=2>(x, pick)", "b, h, 2, 3, 64"),
        ("ConvTranspose<strides=[2, 2]>(x, tw)", "b, 7, 2*s + 1, 129"),
    ],
)
def test_result_shapes(node: str, expected: str) -> None:
    scope = scope_of(f"""(float[b, h, s, 64] x, float[b, h, 64, t] k, float[64] vector, float[5, h, 3, 3] w,
        float[h, 7, 3, 3] tw, int64[2, 3] pick) => (float y)
        <int64[4] rep = {{1, 1, 3, 1}}, int64[8] pads = {{0, 0, 1, 0, 0, 0, 2, 0}}, int64[2] axes = {{0, -1}}>
        {{ y = {node} }}""")
    assert shape_of(scope, "y") == expected


def test_broadcasting_prefers_what_is_known() -> None:
    scope = scope_of("""(float[n, 1] a, float[4, m] b, float[k, 1] c) => (float y, float z) {
        y = Add(a, b)
        z = Add(a, c) }""")
    assert shape_of(scope, "y") == "4, m"
    assert shape_of(scope, "z") == "broadcast(k, n), 1"


def test_scalars_derived_from_a_known_extent_fold_in_their_own_precision() -> None:
    scope = scope_of("""(float16[b, s, 64] x) => (float16 y, float z)
        <int64[1] minus = {-1}, int64[1] big = {9223372036854775807}> {
          unit = Constant<value_float=1.0>()
          one = Cast<to=10>(unit)
          sh = Shape(x)
          d = Slice(sh, minus, big)
          f = Cast<to=10>(d)
          r = Sqrt(f)
          y = Div(one, r)
          n = Size(x)
          z = Cast<to=1>(n) }""")
    assert scalar(scope, "y") == 0.125
    assert scalar(scope, "z") is None
    root = scope_of("(float[b, 48] x) => (float y) { s = Shape<start=1>(x)\n f = Cast<to=1>(s)\n y = Sqrt(f) }")
    assert scalar(root, "y") == float(np.sqrt(np.float32(48)))


def test_splat_values_keep_their_number_whatever_their_extent() -> None:
    scope = scope_of("""(float[b, s] x) => (float y) <float two = {2.0}> {
        sh = Shape(x)
        ones = ConstantOfShape<value=float[1]{1.0}>(sh)
        e = Expand(two, sh)
        y = Add(ones, e) }""")
    assert scalar(scope, "y") == 3.0
    assert shape_of(scope, "y") == "b, s"


def test_reductions_of_extents() -> None:
    scope = scope_of("""(float[b, s, 4] x) => (int64 p, int64 q) {
        sh = Shape(x)
        p = ReduceProd<keepdims=0>(sh)
        q = ReduceMax<keepdims=0>(sh) }""")
    assert elements_of(scope, "p") == "4*b*s"
    assert shape_of(scope, "p") == ""


def test_range_of_positions() -> None:
    scope = scope_of("""(float[past] a, float[seq] b) => (int64 y) <int64 zero = {0}, int64 one = {1}> {
        p = Size(a)
        s = Size(b)
        t = Add(p, s)
        y = Range(p, t, one)
        c = Range(zero, three, one)
        three = Constant<value_int=3>() }""")
    assert shape_of(scope, "y") == "seq"
    assert elements_of(scope, "c") == "0, 1, 2"


def test_every_value_has_a_fact_and_unknown_operators_take_the_models_word() -> None:
    proto = parser.parse_model("""<ir_version: 8, opset_import: ["" : 17, "acme" : 1]>
        g (float[b, 3] x) => (float[b, 5] y) { y = acme.Custom(x)
          v, w = acme.Other(x) }""")
    proto.graph.value_info.append(helper.make_tensor_value_info("w", 1, ["b", "unheard_of", 2]))
    scope = inferred(proto).main
    assert shape_of(scope, "y") == "b, 5"
    assert shape_of(scope, "w") == "b, w.dim1, 2"
    assert scope.facts["v"] is UNKNOWN


def test_an_operator_that_the_model_defines_itself_is_not_onnxs() -> None:
    proto = parser.parse_model(f"{HEADER} g (float[b, 3] x) => (float y) {{ y = Shape(x)\n z = Relu(x) }}")
    body = [helper.make_node("Identity", ["i"], ["o"])]
    proto.functions.append(helper.make_function("", "Shape", ["i"], ["o"], body, proto.opset_import))
    scope = inferred(proto).main
    assert scope.facts["y"].elements is None
    assert shape_of(scope, "z") == "b, 3"


def test_own_inference_beats_the_models_annotations() -> None:
    proto = parser.parse_model(f"{HEADER} g (float[b, 3] x) => (float y) {{ y = Relu(x) }}")
    proto.graph.value_info.append(helper.make_tensor_value_info("y", 10, [9, 9, 9]))
    assert repr(inferred(proto).main.facts["y"]) == "Fact(1, [b, 3])"


ALIASES = """(float[b, s, 8] x, float16[b, s] half, bool[b] flag, float[b, 1] column, float other)
    => (float y) <float one = {1.0}, float zero = {0.0}, float ones = {1.0}, int64 unit = {1},
        int64[3] target = {0, 0, 8}, int64[1] begin = {0}, int64[1] end = {9223372036854775807},
        float[8] vector = {1, 1, 1, 1, 1, 1, 1, 1}, float[1, 1, 1, 1] deep = {1.0}> { NODES }"""


@pytest.mark.parametrize(
    ("nodes", "root"),
    [
        ("y = Identity(x)", "x"),
        ("a = Identity(x)\n b = Identity(a)\n y = Identity(b)", "x"),
        ("y = Dropout(x)", "x"),
        ("y = Cast<to=1>(x)", "x"),
        ("a = Cast<to=1>(half)\n y = Cast<to=10>(a)", "half"),
        ("y = Mul(x, one)", "x"),
        ("y = Mul(one, x)", "x"),
        ("y = Div(x, one)", "x"),
        ("y = Add(zero, x)", "x"),
        ("y = Sub(x, zero)", "x"),
        ("y = Reshape(x, target)", "x"),
        ("f = Flatten<axis=2>(x)\n s = Shape(x)\n y = Reshape(f, s)", "x"),
        ("f = Flatten<axis=1>(x)\n t = Constant<value_ints=[0, -1, 8]>()\n y = Reshape(f, t)", "x"),
        ("f = Flatten<axis=2>(x)\n s = Shape(x)\n g = Identity(f)\n y = Reshape(g, s)", "x"),
        ("a = Constant<value_ints=[1]>()\n u = Unsqueeze(x, a)\n y = Squeeze(u, a)", "x"),
        ("s = Shape(x)\n y = Expand(x, s)", "x"),
        ("y = Slice(x, begin, end)", "x"),
        ("y = Transpose<perm=[0, 1, 2]>(x)", "x"),
        ("y = Concat<axis=0>(x)", "x"),
        ("s = Shape(x)\n o = ConstantOfShape<value=float[1]{1.0}>(s)\n y = Mul(x, o)", "x"),
        ("s = Shape(x)\n f = ConstantOfShape<value=bool[1]{1}>(s)\n y = Where(f, x, other)", "x"),
    ],
)
def test_no_ops_repeat_their_input(nodes: str, root: str) -> None:
    assert scope_of(ALIASES.replace("NODES", nodes)).source("y") == root


@pytest.mark.parametrize(
    "nodes",
    [
        "a = Cast<to=10>(x)\n y = Cast<to=1>(a)",  # loses digits
        "y = Mul(x, other)",
        "y = Mul(x, zero)",
        "y = Sub(zero, x)",
        "y = Div(one, x)",
        "y = Mul(x, deep)",  # adds an axis
        "y = Mul(x, vector)",  # a parameter of the model, even if all its elements are 1
        "y = Mul(column, x)",
        "y = Transpose<perm=[1, 0, 2]>(x)",
        "t = Constant<value_ints=[4, -1, 8]>()\n f = Flatten<axis=2>(x)\n y = Reshape(f, t)",
        "f = Transpose<perm=[1, 0, 2]>(x)\n s = Shape(x)\n y = Reshape(f, s)",
        "m = Constant<value_ints=[-1]>()\n y = Slice(x, m, end, begin)",
        "r = Constant<value=bool {1}>()\n q = Constant<value_float=0.5>()\n y = Dropout(x, q, r)",
        "s = Constant<value_ints=[-1]>()\n e = Constant<value_ints=[-99999]>()\n y = Slice(x, s, e, begin, s)",
    ],
)
def test_what_changes_anything_is_no_alias(nodes: str) -> None:
    assert scope_of(ALIASES.replace("NODES", nodes)).source("y") == "y"


def test_a_used_dropout_mask_keeps_the_dropout() -> None:
    scope = scope_of("(float[n] x) => (float y, bool m) { y, m = Dropout(x) }")
    assert scope.source("y") == "y"


OVERRIDABLE = """(float[2, 3] x, float[1] c) => (float y) <float[1] c = {1.0}> {
    d = Identity(c)
    y = Mul(x, d) }"""


def test_an_overridable_initializer_is_no_constant() -> None:
    scope = scope_of(OVERRIDABLE)
    assert scope.source("y") == "y"
    assert constant(scope, "c") is None
    assert scalar(scope, "d") is None


def test_before_ir_4_initializers_cannot_be_overridden() -> None:
    scope = scope_of(OVERRIDABLE, ir=3)
    assert scope.source("y") == "x"
    assert scalar(scope, "d") == 1.0


BRANCHES = """(float[b, s] x, float[b, t] z, bool c) => (float y) <bool yes = {1}> {
    y = If(COND) <then_branch = then () => (float u) { u = Identity(x) },
                  else_branch = other () => (float v) { v = Identity(z) }> }"""


def test_an_undecided_branch_keeps_what_both_agree_on() -> None:
    scope = scope_of(BRANCHES.replace("COND", "c"))
    assert shape_of(scope, "y") == "b, y.dim1"
    assert scope.source("y") == "y"


def test_a_decided_branch_is_taken() -> None:
    scope = scope_of(BRANCHES.replace("COND", "yes"))
    assert shape_of(scope, "y") == "b, s"
    assert scope.source("y") == "x"


def test_symbols_of_two_bodies_are_not_the_same() -> None:
    scope = scope_of("""(float[n] x, bool c) => (int64 y) {
        y = If(c) <then_branch = then () => (int64 u) { u = NonZero(x) },
                   else_branch = other () => (int64 u) { u = NonZero(x) }> }""")
    bodies = [body.fact("u").shape for _, body in scope.bodies]
    assert bodies[0] != bodies[1]
    assert shape_of(scope, "y") == "1, y.dim1"


def test_a_loop_carried_value_may_change_in_every_iteration() -> None:
    scope = scope_of("""(int64 n, bool c, float[k] start, float[k, 2] same) => (float y) {
        y, z, w = Loop(n, c, start, same) <body = step (int64 i, bool go, float[k] a, float[k, 2] b)
          => (bool on, float[m] grown, float[k, 2] kept, float[2] out)
          <float[2] out0 = {1.0, 2.0}> {
            on = Identity(go)
            grown = Concat<axis=0>(a, a)
            kept = Relu(b)
            out = Identity(out0) }> }""")
    assert shape_of(scope, "y") == "?"
    assert shape_of(scope, "w") == "w.dim0, 2"
    body = scope.bodies[0][1]
    assert body.fact("a").shape is None


def test_a_constant_of_an_enclosing_scope_is_known_in_a_body() -> None:
    scope = scope_of("""(bool c) => (float y) <float two = {2.0}> {
        y = If(c) <then_branch = then () => (float u) { u = Mul(two, two) },
                   else_branch = other () => (float v) { v = Identity(two) }> }""")
    then, other = (body for _, body in scope.bodies)
    assert scalar(then, "u") == 4.0
    assert scalar(other, "v") == 2.0
    assert other.source("v") == "two"


def _with_tensor(tensor: TensorProto) -> Model:
    node = helper.make_node("Identity", [tensor.name], ["y"])
    graph = helper.make_graph([node], "g", [], [onnx.ValueInfoProto(name="y")], [tensor])
    return inferred(helper.make_model(graph, ir_version=8))


@pytest.mark.parametrize(
    "kind", ["BFLOAT16", "FLOAT8E4M3FN", "FLOAT8E5M2", "INT4", "UINT4", "FLOAT16", "DOUBLE", "INT8", "BOOL"]
)
def test_constants_of_every_numeric_type_are_read(kind: str) -> None:
    tensor = helper.make_tensor("w", getattr(TensorProto, kind), [3], [1, 0, 1])
    known = constant(_with_tensor(tensor).main, "y")
    if known is None and kind.startswith("FLOAT8"):
        pytest.skip("this onnx does not decode float8, so nothing is known")
    assert known is not None
    assert known.astype(np.float64).tolist() == [1, 0, 1]


def test_constants_of_any_size_are_read_on_demand() -> None:
    array = np.arange(20000, dtype=np.float32)
    model = _with_tensor(numpy_helper.from_array(array, "w"))
    assert model.main.facts["w"].array is None
    known = constant(model.main, "y")
    assert known is not None
    assert np.array_equal(known, array)


def test_a_malformed_tensor_has_no_known_value() -> None:
    tensor = numpy_helper.from_array(np.arange(6, dtype=np.int64), "w")
    tensor.raw_data = tensor.raw_data[:-1]
    assert constant(_with_tensor(tensor).main, "y") is None
    assert _with_tensor(tensor).main.facts["w"].elements is None


def _external(folder: Path, location: str, **keys: str) -> np.ndarray | None:
    tensor = TensorProto(name="w", data_type=TensorProto.INT64, dims=[2], data_location=TensorProto.EXTERNAL)
    for key, value in {"location": location, **keys}.items():
        tensor.external_data.add(key=key, value=value)
    graph = helper.make_graph([], "g", [], [], [tensor])
    model = Model(helper.make_model(graph, ir_version=8), folder / "model.onnx")
    infer(model)
    return constant(model.main, "w")


def test_tiny_external_tensors_are_read_from_inside_the_models_folder_only(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    data = np.array([7, 8], np.int64).tobytes()
    (folder / "w.bin").write_bytes(b"skip" + data)
    (tmp_path / "secret.bin").write_bytes(data)
    (folder / "link.bin").symlink_to(tmp_path / "secret.bin")
    known = _external(folder, "w.bin", offset="4", length="16")
    assert known is not None
    assert known.tolist() == [7, 8]
    for outside in ("../secret.bin", str(tmp_path / "secret.bin"), "link.bin", "", "missing.bin", "..\\secret.bin"):
        assert _external(folder, outside) is None
    assert _external(folder, "w.bin", offset="4", length="15") is None
    assert _external(folder, "w.bin", offset="-4") is None


def test_large_external_tensors_stay_on_disk(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(bytes(8 * 1024))
    tensor = TensorProto(name="w", data_type=TensorProto.INT64, dims=[1024], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="w.bin")
    graph = helper.make_graph([], "g", [], [], [tensor])
    model = Model(helper.make_model(graph, ir_version=8), tmp_path / "model.onnx")
    infer(model)
    assert constant(model.main, "w") is None


@pytest.mark.parametrize(
    "node",
    [
        helper.make_node("Concat", ["x", "x"], ["y"], axis="one"),
        helper.make_node("Add", ["x"], ["y"]),
        helper.make_node("Add", [], ["y"]),
        helper.make_node("Transpose", ["x"], ["y"], perm=[0, 0]),
        helper.make_node("Reshape", ["x"], ["y"]),
        helper.make_node("Gather", ["x", "x"], ["y"], axis=7),
        helper.make_node("Split", ["x"], ["y", "z"], axis=2.5),
        helper.make_node("Conv", ["x", "x"], ["y"], strides=[0]),
        helper.make_node("Constant", [], ["y"], value_int="text"),
        helper.make_node("Cast", ["x"], ["y"], to=999),
        helper.make_node("Squeeze", ["x", "missing"], ["y"]),
    ],
    ids=lambda node: str(node.op_type),
)
def test_a_node_that_cannot_run_gives_no_facts_and_no_crash(node: onnx.NodeProto) -> None:
    declared = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])
    model = inferred(helper.make_model(helper.make_graph([node], "g", [declared], [])))
    assert set(node.output) <= set(model.main.facts)
    assert model.main.facts["y"].elements is None


def test_long_chains_of_arithmetic_stay_small() -> None:
    nodes = [helper.make_node("Size", ["x"], ["v0"]), helper.make_node("Size", ["z"], ["w"])]
    for i in range(200):
        nodes.append(helper.make_node("Mul" if i % 2 else "Div", [f"v{i}", f"v{max(i - 3, 0)}"], [f"u{i}"]))
        nodes.append(helper.make_node("Add" if i % 3 else "Max", [f"u{i}", "w"], [f"v{i + 1}"]))
    inputs = [helper.make_tensor_value_info(n, 1, [n]) for n in "xz"]
    model = inferred(helper.make_model(helper.make_graph(nodes, "g", inputs, [])))
    (last,) = model.main.facts["v200"].elements or (None,)
    assert last is not None
    assert len(str(last)) < 5000


def test_evaluation_does_not_recurse_over_nodes() -> None:
    nodes = [helper.make_node("Relu", [f"v{i}"], [f"v{i + 1}"]) for i in range(5000)]
    model = inferred(
        helper.make_model(helper.make_graph(nodes, "g", [helper.make_tensor_value_info("v0", 1, ["n"])], []))
    )
    assert shape_of(model.main, "v5000") == "n"


def test_an_empty_tensor_of_symbolic_shape_has_no_array() -> None:
    fact = Fact(TensorProto.INT64, (0, symbol("n")), elements=())
    assert fact.array is None


def test_facts_of_small_integer_tensors_name_their_unknown_elements() -> None:
    scope = scope_of("(int64[2] p) => (float y) { y = ConstantOfShape(p) }")
    elements: tuple[Dim, ...] | None = scope.fact("p").elements
    assert str(elements) == "(p[0], p[1])"
    assert shape_of(scope, "y") == "y.dim0, y.dim1"  # they may be negative


def test_a_value_nobody_makes_is_unknown() -> None:
    assert scope_of("(float[n] x) => (float y) { y = Relu(x) }").fact("nothing") is UNKNOWN
    assert isinstance(UNKNOWN, Fact)


def test_an_extent_that_another_value_has_is_no_negative_number() -> None:
    """The length of what a Conv gives may be negative on paper; a model in which it is does not run."""
    graph = """
        (float[batch, 1, n] x) => (float[A, B] y, float[C, D] z)
        <float[1,1,3] w = {1, 2, 3}, int64[1] last = {2}, int64 one = {1}, float[1,1] nothing = {0}, int64[1] two = {2}> {
          s = Shape(x)
          n = Gather(s, last)
          l = Sub(n, two)
          t = Concat<axis=0>(last, l)
          HERE
        }"""
    convolved = scope_of(graph.replace("HERE", "c = Conv(x, w) z = Identity(nothing) y = Expand(nothing, t)"))
    assert shape_of(convolved, "c") == "batch, 1, n - 2"
    assert shape_of(convolved, "y") == "2, n - 2"
    alone = scope_of(graph.replace("HERE", "z = Identity(nothing) y = Expand(nothing, t)"))
    assert shape_of(alone, "y") == "2, y.dim1"
    reshaped = "z = Identity(nothing) y = Reshape<allowzero = 1>(v, t)"
    sized = graph.replace("float[batch, 1, n] x)", "float[batch, 1, n] x, float[K] v)")
    assert shape_of(scope_of(sized.replace("HERE", f"c = Conv(x, w) {reshaped}")), "y") == "2, n - 2"
    assert shape_of(scope_of(sized.replace("HERE", reshaped)), "y") != "2, n - 2"
    counted = "z = Identity(nothing) i = Constant<value = int64 {0}>() e = Squeeze(l) y = Range(i, e, one)"
    assert shape_of(scope_of(graph.replace("HERE", f"c = Conv(x, w) {counted}")), "y") == "n - 2"
    assert shape_of(scope_of(graph.replace("HERE", counted)), "y") == "max(0, n - 2)"


def test_what_is_joined_has_the_simplest_extent_off_the_axis() -> None:
    scope = scope_of("""
        (float[batch, n, 8] x) => (float[A, B, C] y)
        <int64[1] one = {1}, int64[1] end = {9223372036854775807}, int64[6] pads = {0, 0, 0, 0, 1, 0}> {
          later = Slice(x, one, end, one)
          p = Pad(later, pads)
          y = Concat<axis = 2>(p, x)
        }""")
    assert shape_of(scope, "y") == "batch, n, 16"


@pytest.mark.parametrize(("index", "shape"), [(1, "(B, S, 4)"), (-1, "(B, 1, 4*S)"), (5, "(B, 1, 4)")])
def test_repeats_of_one_axis_that_one_hot_tells(index: int, shape: str) -> None:
    """As the exporter writes repeat_interleave with a count from a shape; an index out of range is hot nowhere."""
    text = f"""<ir_version: 8, opset_import: ["" : 17]> g (float[B,1,4] x, float[S] z) => (float[n,m,k] y)
    <int64[1] axis = {{{index}}}, int64 rank = {{3}}, int64[1] one = {{1}}, int64[1] flat = {{-1}}> {{
      n = Shape(z) values = Concat<axis = 0>(one, n) hot = OneHot(axis, rank, values) repeats = Reshape(hot, flat)
      y = Tile(x, repeats) }}"""
    model = inferred(parser.parse_model(text))
    assert str(model.main.fact("y").shape) == shape
    given = {"x": np.ones((2, 1, 4), np.float32), "z": np.ones(3, np.float32)}
    found = values(session(model.proto), given)["y"].shape
    assert found == tuple(evaluate(d, {"B": 2, "S": 3}) for d in model.main.fact("y").shape or ())


UNTYPED = [
    "Transpose<perm = [0, 2, 1]>(x)", "ReduceMean<axes = [-1]>(x)", "Concat<axis = 1>(x, x)",
    "Cast<to = 10>(x)", "Flatten<axis = 2>(x)", "Squeeze<axes = [0]>(x)", "Unsqueeze<axes = [0]>(x)",
    "ArgMax<axis = 1, keepdims = 0>(x)", "DepthToSpace<blocksize = 2>(x)",
    "Split<axis = 1>(x)", "Gemm<transA = 1>(x, x, x)", "MaxPool<kernel_shape = [2]>(x)",
]  # fmt: skip


@pytest.mark.parametrize("call", UNTYPED)
def test_an_attribute_whose_type_is_not_told_tells_nothing(call: str) -> None:
    proto = onnx.parser.parse_model(
        f'<ir_version: 7, opset_import: ["" : 11]> g (float[1,3,4] x) => (float[n,m] y) {{ y = {call} }}'
    )
    for attribute in proto.graph.node[0].attribute:
        attribute.type = onnx.AttributeProto.UNDEFINED
    model = Model(proto)
    infer(model)
    assert len(model.main.fact("y").shape or ("as", "declared")) == 2
