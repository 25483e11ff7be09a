"""What the validity of a model says of extents: a table of masks that broadcasts was cut off nowhere."""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import onnx
import plain
import pytest
from infer_oracle import OnnxruntimeFail, inferred

import atcfuse

STEP = """<ir_version: 8, opset_import: ["" : 17]> g (float[B,3,{queries},8] q, float[B,3,P,8] pk, float[B,3,P,8] pv)
    => (float[B,3,{queries},8] y) <int64[1] i0 = {{0}}, int64[1] i1 = {{1}}, int64[1] rows = {{2}}, int64[1] columns = {{3}},
    float low = {{-1e9}}, bool[1,1,{table}] seen = {{{ones}}}> {{
    k = Concat<axis = 2>(pk, q) v = Concat<axis = 2>(pv, q)
    all = Shape<start = 2, end = 3>(k) mine = Shape<start = 2, end = 3>(q) before = Sub(all, mine)
    some = Slice(seen, before, all, rows, i1) mask = Slice(some, i0, all, columns, i1)
    t = Transpose<perm = [0, 1, 3, 2]>(k) a = MatMul(q, t) s = Where(mask, a, low)
    p = Softmax<axis = -1>(s) y = MatMul(p, v) }}"""
"""Attention behind a cache, of whose table of masks the last rows are read."""


def step(queries: object, table: tuple[int, int]) -> onnx.ModelProto:
    ones = ", ".join(str(int(n)) for n in np.tri(*table, k=table[1] - table[0]).ravel())
    return plain.parsed(STEP.format(queries=queries, table=f"{table[0]},{table[1]}", ones=ones))


def feed(queries: int, past: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(past)
    sizes = {"q": queries, "pk": past, "pv": past}
    return {name: rng.normal(size=(2, 3, n, 8)).astype(np.float32) for name, n in sizes.items()}


@pytest.mark.parametrize("queries", [1, 2, "S"])
def test_a_row_of_a_table_of_masks_is_there_for_every_query(queries: int | str) -> None:
    proto = step(queries, (6, 6))
    assert inferred(deepcopy(proto)).main.fact("y").shape == inferred(deepcopy(proto)).main.fact("q").shape
    result = atcfuse.optimize(deepcopy(proto), dialect="portable", min_saving_us=0.0)
    assert [f["op"] for f in result.report["fusions"]] == ["FusedAttention"]
    count = queries if isinstance(queries, int) else 3
    for past in range(7 - count):
        given = feed(count, past)
        np.testing.assert_allclose(
            plain.run_plain(result.model, given)[0], plain.run_plain(proto, given)[0], rtol=1e-5, atol=1e-6
        )
    with pytest.raises(OnnxruntimeFail):  # more keys than the table has columns
        plain.run_plain(proto, feed(count, 7 - count))


@pytest.mark.parametrize("table", [(4, 6), (6, 1), (6, 4)])
def test_nothing_follows_from_another_axis_that_was_cut_off_earlier(table: tuple[int, int]) -> None:
    """With fewer rows than columns, queries may be without a row; one column broadcasts to any number of keys."""
    shape = inferred(step(1, table)).main.fact("s").shape
    assert shape is not None
    assert (shape[2] == 1) == (table == (6, 4))


OTHER_NAMES = """<ir_version: 8, opset_import: ["" : 17]> g (float[B,S,24] x, bool[T,1,1,U] keep) => (float[B,S,24] y)
    <int64[4] heads = {0, 0, 3, 8}, int64[3] rows = {0, 0, 24}, int64[1] i3 = {3}, int64[1] i8 = {8},
    int64[1] last = {-1}, float low = {-1e9}, bool yes = {1}> {
    h = Reshape(x, heads) q = Transpose<perm = [0, 2, 1, 3]>(h)
    shape = Shape(q) z0 = Constant<value = int64[1] {0}>() u0 = Gather(shape, z0) s = Constant<value = int64[1] {2}>() length = Gather(shape, s)
    flat = Concat<axis = 0>(last, length, i8) one = Reshape(q, flat) t = Transpose<perm = [0, 2, 1]>(one)
    a = MatMul(one, t)
    four = Concat<axis = 0>(u0, i3, length, length) b = Reshape(a, four) ones = Expand(yes, four) mask = And(ones, keep)
    c = Where(mask, b, low) p = Softmax<axis = -1>(c) ps = Shape<start = 2>(p)
    three = Concat<axis = 0>(last, ps) pf = Reshape(p, three)
    v = MatMul(pf, one) back = Concat<axis = 0>(u0, i3, length, i8) vf = Reshape(v, back)
    vt = Transpose<perm = [0, 2, 1, 3]>(vf) y = Reshape(vt, rows) }"""
"""Attention as Keras has it by way of tf2onnx: batch and heads are one axis of the products, and a mask has dims of its own."""


@pytest.mark.parametrize(("batch", "masks"), [(2, 2), (2, 1), (1, 1), (3, 1)])
def test_a_mask_with_dims_of_its_own_has_those_of_the_scores_or_one(batch: int, masks: int) -> None:
    proto = plain.parsed(OTHER_NAMES)
    result = atcfuse.optimize(deepcopy(proto), dialect="portable", min_saving_us=0.0)
    assert "FusedAttention" in [f["op"] for f in result.report["fusions"]]
    rng = np.random.default_rng(batch)
    keep = rng.random((masks, 1, 1, 5)) < 0.7
    given = {"x": rng.normal(size=(batch, 5, 24)).astype(np.float32), "keep": keep}
    np.testing.assert_allclose(
        plain.run_plain(result.model, given)[0], plain.run_plain(proto, given)[0], rtol=1e-5, atol=1e-6
    )


def test_such_a_mask_may_make_scores_larger_where_batch_and_heads_are_axes_of_the_products() -> None:
    """One sequence and several masks give several results."""
    proto = plain.parsed("""<ir_version: 8, opset_import: ["" : 17]> g (float[B,3,S,8] q, bool[T,1,1,U] keep) => (float y)
        <float low = {-1e9}> {
        t = Transpose<perm = [0, 1, 3, 2]>(q) a = MatMul(q, t) c = Where(keep, a, low) p = Softmax<axis = -1>(c)
        y = MatMul(p, q) }""")
    result = atcfuse.optimize(deepcopy(proto), dialect="portable", min_saving_us=0.0)
    assert "FusedAttention" not in [f["op"] for f in result.report["fusions"]]
    rng = np.random.default_rng(0)
    given = {"q": rng.normal(size=(1, 3, 5, 8)).astype(np.float32), "keep": rng.random((4, 1, 1, 5)) < 0.7}
    assert plain.run_plain(result.model, given)[0].shape == (4, 3, 5, 8)
