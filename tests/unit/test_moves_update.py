"""Updates of caches along an inner axis are written in place; others stay."""

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
from atcfuse.keep_nodes import NO_NODES
from atcfuse.moves.update import Updates

END = "int64[1] end = {-1}"
AT = "at = Unsqueeze(place, end)"
FRONT = "cf = Transpose<perm = [2, 0, 1, 3]>(c) nf = Transpose<perm = [2, 0, 1, 3]>(n)"
BACK = "y = Transpose<perm = [1, 2, 0, 3]>(u)"
WHOLE = f"{AT} {FRONT} u = ScatterND(cf, at, nf) {BACK}"
HEADS = "(float[2,3,9,4] c, float[2,3,S,4] n, int64[S] place) => (float[2,3,9,4] y"
POSITIONS = "(float[2,3,9,4] c, float[2,S,3,4] n, int64[S] place) => (float[2,3,9,4] y"
WRITTEN = {
    "new heads": (f"{HEADS})", WHOLE, 0),
    "new rows, turned in one step": (
        f"{POSITIONS})",
        f"{AT} cf = Transpose<perm = [2, 0, 1, 3]>(c) nf = Transpose<perm = [1, 0, 2, 3]>(n) u = ScatterND(cf, at, nf) {BACK}",
        1,
    ),
    "the second axis": (
        "(float[2,9,4] c, float[2,S,4] n, int64[S] place) => (float[2,9,4] y)",
        f"""{AT} cf = Transpose<perm = [1, 0, 2]>(c) nf = Transpose<perm = [1, 0, 2]>(n) u = ScatterND(cf, at, nf)
        y = Transpose<perm = [1, 0, 2]>(u)""",
        0,
    ),
    "what is new is read turned, too": (f"{HEADS}, float[S,2,3,4] nf)", WHOLE, 1),
}
STAYS = {
    "read before it is turned back": (f"{HEADS}, float[9,2,3,4] u)", WHOLE),
    "turned back otherwise": (
        "(float[2,2,9,4] c, float[2,2,S,4] n, int64[S] place) => (float[2,2,9,4] y)",
        f"{AT} {FRONT} u = ScatterND(cf, at, nf) y = Transpose<perm = [2, 1, 0, 3]>(u)",
    ),
    "added": (f"{HEADS})", WHOLE.replace("ScatterND(", 'ScatterND<reduction = "add">(')),
    "batches of an open number": (
        "(float[B,3,9,4] c, float[B,3,S,4] n, int64[S] place) => (float[B,3,9,4] y)",
        WHOLE,
    ),
    "an axis in front": (
        "(float[9,3,2,4] c, float[S,3,2,4] n, int64[S] place) => (float[9,3,2,4] y)",
        f"""{AT} cf = Transpose<perm = [0, 2, 1, 3]>(c) nf = Transpose<perm = [0, 2, 1, 3]>(n) u = ScatterND(cf, at, nf)
        y = Transpose<perm = [0, 2, 1, 3]>(u)""",
    ),
}


def parsed(head: str, body: str) -> onnx.ModelProto:
    return plain.parsed(f"""<ir_version: 8, opset_import: ["" : 17]> g {head} <{END}> {{ {body} }}""")


def run(model: onnx.ModelProto, sizes: int = 3) -> list[np.ndarray]:
    rng = np.random.default_rng(4)
    feed: dict[str, np.ndarray] = {"place": np.array([7, 0, -2][:sizes])}
    for value in model.graph.input:
        if value.name != "place":
            shape = [d.dim_value or sizes for d in value.type.tensor_type.shape.dim]
            feed[value.name] = rng.normal(size=shape).astype(np.float32)
    return plain.run_plain(model, feed)


def ops(model: onnx.ModelProto) -> Counter[str]:
    return Counter(n.op_type for n in model.graph.node)


@pytest.mark.parametrize(("head", "body", "turns"), WRITTEN.values(), ids=WRITTEN)
@pytest.mark.parametrize("count", [1, 3])
def test_a_cache_is_written_in_place(head: str, body: str, turns: int, count: int) -> None:
    original = parsed(head, body)
    result = atcfuse.optimize(deepcopy(original), dialect="portable")
    assert ops(result.model)["Transpose"] == turns
    assert ops(result.model)["ScatterND"] == 1
    for got, wanted in zip(run(result.model, count), run(original, count), strict=True):
        np.testing.assert_array_equal(got, wanted)
    assert result.report["summary"]["launches_after"] <= result.report["summary"]["launches_before"]


def test_one_update_that_would_cost_launches_stays() -> None:
    """What is new lies in front already: two Transposes are less than indices and a Transpose."""
    head = "(float[2,3,9,4] c, float[S,2,3,4] n, int64[S] place) => (float[2,3,9,4] y)"
    original = parsed(head, f"{AT} cf = Transpose<perm = [2, 0, 1, 3]>(c) u = ScatterND(cf, at, n) {BACK}")
    result = atcfuse.optimize(deepcopy(original), dialect="portable")
    assert ops(result.model) == ops(original)


def test_updates_at_the_same_positions_share_their_indices() -> None:
    head = (
        "(float[2,3,9,4] c, float[2,3,9,4] d, float[2,3,S,4] n, int64[S] place) => (float[2,3,9,4] y, float[2,3,9,4] z)"
    )
    other = WHOLE.removeprefix(AT).replace("cf", "df").replace("(c)", "(d)").replace("u", "v").replace("y =", "z =")
    original = parsed(head, WHOLE + other.replace("nf", "mf"))
    result = atcfuse.optimize(deepcopy(original), dialect="portable")
    assert ops(result.model) == Counter(Unsqueeze=1, Mul=1, Add=1, ScatterND=2)
    for got, wanted in zip(run(result.model), run(original), strict=True):
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize(("head", "body"), STAYS.values(), ids=STAYS)
def test_others_stay(head: str, body: str) -> None:
    begun = moves.find(inferred(parsed(head, body)), NO_NODES)
    assert not [b for b in begun if isinstance(b.move, Updates)]
