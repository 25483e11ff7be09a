"""Slices that cut a value into parts are one Split, and nothing else is."""

from __future__ import annotations

from collections import Counter
from copy import deepcopy

import numpy as np
import onnx
import plain
import pytest
from infer_oracle import inferred

import atcfuse
from atcfuse import moves
from atcfuse.keep_nodes import NO_NODES, parse_keep_nodes
from atcfuse.moves import parts
from atcfuse.options import Options

NUMBERS = """int64[1] i0 = {0}, int64[1] i1 = {1}, int64[1] i2 = {2}, int64[1] i3 = {3}, int64[1] i5 = {5}, int64[1] i6 = {6},
    int64[1] last = {-1}, int64[1] before = {-2}, int64[1] far = {99}, int64[2] two = {0, 1}"""
JOINED = {
    "three parts, out of order": (
        "c = Slice(x, i5, far, i1) a = Slice(x, i0, i2, i1) b = Slice(x, i2, i5, i1)",
        [2, 3, 1],
    ),
    "counted from the end": (
        "a = Slice(x, i0, before, before) b = Slice(x, before, last, i1) c = Slice(x, last, i6, i1)",
        [4, 1, 1],
    ),
    "computed bounds": (
        "e = Add(i2, i3) a = Slice(x, i0, i2, i1) b = Slice(x, i2, e, i1) c = Slice(x, e, far, i1)",
        [2, 3, 1],
    ),
}
STAYS = {
    "a gap": "a = Slice(x, i0, i2, i1) b = Slice(x, i3, i5, i1) c = Slice(x, i5, i6, i1)",
    "an overlap": "a = Slice(x, i0, i3, i1) b = Slice(x, i2, i5, i1) c = Slice(x, i5, i6, i1)",
    "not to the end": "a = Slice(x, i0, i2, i1) b = Slice(x, i2, i3, i1) c = Slice(x, i3, i5, i1)",
    "an open axis": "a = Slice(x, i0, i1, i0) b = Slice(x, i1, i2, i0) c = Slice(x, i2, far, i0)",
    "a step": "a = Slice(x, i0, i2, i1, i2) b = Slice(x, i2, i5, i1) c = Slice(x, i5, i6, i1)",
    "other axes": "a = Slice(x, i0, i2, i1) b = Slice(x, i2, i5, i2) c = Slice(x, i5, i6, i1)",
    "other values": "z = Neg(x) a = Slice(x, i0, i2, i1) b = Slice(z, i2, i5, i1) c = Slice(x, i5, i6, i1)",
    "a part that is given": "a = Slice(x, i0, n, i1) b = Slice(x, n, i5, i1) c = Slice(x, i5, i6, i1)",
    "an axis that is given": "a = Slice(x, i0, i2, n) b = Slice(x, i2, i5, i1) c = Slice(x, i5, i6, i1)",
    "a step that is given": "a = Slice(x, i0, i2, i1, n) b = Slice(x, i2, i5, i1) c = Slice(x, i5, i6, i1)",
    "several axes": "a = Slice(x, two, far2, two) b = Slice(x, i2, i5, i1) c = Slice(x, i5, i6, i1)",
}


def parsed(body: str, opset: int = 17) -> onnx.ModelProto:
    text = f"""<ir_version: 8, opset_import: ["" : {opset}]> g (float[B,6,6] x, int64[1] n) => (float[B,p,6] a, float[B,q,6] b, float[B,r,6] c)
        <{NUMBERS}, int64[2] far2 = {{99, 2}}> {{ {body} }}"""
    return plain.parsed(text)


def run(model: onnx.ModelProto) -> list[np.ndarray]:
    x = np.random.default_rng(2).normal(size=(2, 6, 6)).astype(np.float32)
    return plain.run_plain(model, {"x": x, "n": np.array([1])})


@pytest.mark.parametrize("opset", [12, 17, 18])
@pytest.mark.parametrize(("body", "sizes"), JOINED.values(), ids=JOINED)
def test_parts_that_make_up_a_value_are_one_split(body: str, sizes: list[int], opset: int) -> None:
    proto = parsed(body, opset)
    original = deepcopy(proto)
    result = atcfuse.optimize(proto, dialect="portable", min_saving_us=0.0)
    assert Counter(n.op_type for n in result.model.graph.node if n.op_type not in ("Add", "Constant")) == {"Split": 1}
    (split,) = [n for n in result.model.graph.node if n.op_type == "Split"]
    assert list(split.output) == ["a", "b", "c"]
    onnx.checker.check_model(result.model, full_check=True)
    for got, expected, size in zip(run(result.model), run(original), sizes, strict=True):
        np.testing.assert_array_equal(got, expected)
        assert got.shape[1] == size
    assert result.report["summary"]["launches_after"] == 1


@pytest.mark.parametrize("body", STAYS.values(), ids=STAYS)
def test_what_leaves_out_or_repeats_an_element_stays(body: str) -> None:
    model = inferred(parsed(body))
    assert not parts.join(model, NO_NODES)
    assert not moves.find(model, NO_NODES)


def test_a_slice_that_is_to_stay_stays() -> None:
    model = inferred(parsed(JOINED["computed bounds"][0]))
    assert not parts.join(model, parse_keep_nodes(("n1",)))
    assert parts.join(model, parse_keep_nodes(("n9",)))


def test_nothing_is_joined_where_every_operator_is_kept() -> None:
    proto = parsed(JOINED["computed bounds"][0])
    for options in (Options(keep_all=True), Options(disabled=frozenset({"elementwise"}))):
        result = atcfuse.optimize(deepcopy(proto), options)
        assert [n.op_type for n in result.model.graph.node].count("Slice") == 3
