"""Masks of scores: what provably broadcasts is accepted, and brought to [batch, heads, queries, keys]."""

from __future__ import annotations

import numpy as np
import pytest

from atcfuse.dims import Dim, last, minimum
from atcfuse.graph.index import Model, Scope
from atcfuse.graph.infer import infer
from atcfuse.graph.text import parse_graph
from atcfuse.match.functions import Aligned, functions_for
from atcfuse.match.layouts import Layouts
from atcfuse.match.masks import Agreement, combined
from atcfuse.match.values import Built, Refusal, Value

HEADS = 3
FREE = Agreement(keys=False)


def scope_with(mask: str) -> Scope:
    model = Model(parse_graph(f"(float{mask} m, float[B,{HEADS},S,L] s) => (float y) {{ y = Add(s, m) }}", 17))
    infer(model)
    return next(iter(model.scopes()))


def outcome(mask: str, scores: str, agree: Agreement = FREE) -> Value | Built | Refusal | None:
    """What becomes of a mask of a shape against scores of a shape, both over the model's own symbols."""
    scope = scope_with(mask)
    table: dict[str, Dim] = dict(zip("BHSL", scope.fact("s").shape or (), strict=True))

    def dims(text: str) -> tuple[Dim, ...]:
        return tuple(int(d) if d.isdigit() else _product(d, table) for d in text.strip("[]").split(",") if d)

    layouts = Layouts({}, table["B"], HEADS, table["S"], table["L"])
    item = Aligned("m", dims(scores), scope.fact("m").shape or ())
    raw = (table["B"], HEADS, table["S"], table["L"])
    return combined(scope, [item], "Add", layouts, raw, agree)


def _product(text: str, table: dict[str, Dim]) -> Dim:
    out: Dim = 1
    for part in text.split("*"):
        out = out * (int(part) if part.isdigit() else table[part])
    return out


@pytest.mark.parametrize("mask", ["[B,3,S,L]", "[B,1,S,L]", "[1,1,S,L]", "[B,1,1,L]", "[3,S,L]", "[S,L]", "[L]", "[1]"])
def test_masks_that_broadcast_are_taken_as_they_are(mask: str) -> None:
    assert outcome(mask, "[B,3,S,L]") == Value("m")


@pytest.mark.parametrize("mask", ["[B,3,S,7]", "[B,2,S,L]", "[2,3,S,L]", "[1,B,3,S,L]", "[B,3,L,S]", "[T,1,S,L]"])
def test_masks_that_may_enlarge_the_scores_refuse(mask: str) -> None:
    found = outcome(mask, "[B,3,S,L]")
    assert isinstance(found, Refusal)
    assert found.code == "ATF313"


def test_a_cut_off_extent_and_the_whole_one_broadcast_only_where_they_are_equal() -> None:
    scope = scope_with("[B,1,S,L]")
    batch, _, whole, keys = scope.fact("m").shape or ()
    layouts = Layouts({}, batch, HEADS, minimum(whole, 64), keys)
    scores = (batch, HEADS, minimum(whole, 64), keys)
    item = Aligned("m", scores, scope.fact("m").shape or ())
    assert combined(scope, [item], "Add", layouts, scores, Agreement(keys=True)) == Value("m")
    one = Aligned("m", (batch, HEADS, minimum(whole, 1), keys), scope.fact("m").shape or ())
    assert isinstance(combined(scope, [one], "Add", layouts, one.shape, Agreement(keys=True)), Refusal)


def test_keys_that_agree_with_the_values_cannot_grow() -> None:
    assert outcome("[B,1,S,T]", "[B,3,S,L]", Agreement(keys=True)) == Value("m")
    assert isinstance(outcome("[B,1,T,L]", "[B,3,S,L]", Agreement(keys=True)), Refusal)


def test_batches_cannot_grow_where_values_have_one_axis_for_batch_and_heads() -> None:
    """Neither 3·B nor 3·T is one, so probabilities of another batch would not meet the values."""
    whole = Agreement(keys=False, batches=True)
    assert outcome("[T,1,S,L]", "[B,3,S,L]", whole) == Value("m")
    assert outcome("[T,3,S,L]", "[B,3,S,L]", whole) == Value("m")
    assert isinstance(outcome("[T,1,S,L]", "[B,3,S,L]"), Refusal)
    assert isinstance(outcome("[T,1,L,L]", "[B,3,S,L]", whole), Refusal)
    assert isinstance(outcome("[B,1,T,L]", "[B,3,S,L]", whole), Refusal)
    assert isinstance(outcome("[T,1,S,L]", "[B,1,S,L]", whole), Refusal)


def test_batch_and_heads_in_one_axis_are_told_apart() -> None:
    whole = Built("Unsqueeze", (Value("m"),), (("axes", (0,)),))
    assert outcome("[6,S,L]", "[6,S,L]") == Built("Reshape", (whole,), (("shape", (-1, HEADS, 0, 0)),))
    assert outcome("[1,S,L]", "[6,S,L]") == Value("m")


def test_leading_ones_are_squeezed() -> None:
    assert outcome("[1,1,1,S,L]", "[1,B,3,S,L]") == Built("Squeeze", (Value("m"),), (("axes", (0,)),))


def test_other_groupings_refuse() -> None:
    found = outcome("[B,4,S,L]", "[B,4,S,L]")
    assert isinstance(found, Refusal)
    assert found.code == "ATF315"


def test_several_masks_are_combined_in_order() -> None:
    scope = scope_with("[S,L]")
    layouts = Layouts({}, 1, HEADS, 1, 1)
    shape = scope.fact("m").shape or ()
    two = [Aligned("m", (1, HEADS, *shape), shape)] * 2
    assert combined(scope, two, "And", layouts, two[0].shape, FREE) == Built("And", (Value("m"), Value("m")))
    assert combined(scope, [], "And", layouts, (), FREE) is None


def test_regrouping_is_what_the_scores_see() -> None:
    """The reshape that is built spreads [B*H, S, L] over [B, H, S, L] in the order of memory."""
    mask = np.arange(2 * HEADS * 4).reshape(2 * HEADS, 2, 2)
    np.testing.assert_array_equal(mask[None].reshape(-1, HEADS, 2, 2)[1, 2], mask[1 * HEADS + 2])


def test_a_mask_across_regrouped_queries_refuses() -> None:
    found = outcome("[1,L]", "[3,B*S,L]")
    assert isinstance(found, Refusal)
    assert found.code == "ATF315"


BROADCASTS = {
    "expanded": ("b = Expand(m, wide)", "m"),
    "expanded, flattened and dealt out again": (
        "e = Expand(m, wide)\n f = Reshape(e, flat)\n b = Reshape(f, wide)",
        "m",
    ),
    "expanded twice": ("e = Expand(m, half)\n b = Expand(e, wide)", "m"),
    "added to zeros": ("z = ConstantOfShape(wide)\n b = Add(z, m)", "m"),
    "zeros added to it when expanded": ("z = ConstantOfShape(wide)\n e = Expand(m, half)\n b = Add(e, z)", "m"),
    "added to ones": ("z = ConstantOfShape<value = float[1] {1.0}>(wide)\n b = Add(z, m)", "b"),
    "dealt out over other axes": ("e = Expand(m, wide)\n b = Reshape(e, other)", "b"),
    "expanded in a new axis behind": ("u = Unsqueeze(m, last)\n e = Expand(u, five)\n b = Reshape(e, wider)", "b"),
    "cut where it was expanded": ("e = Expand(m, wide)\n b = Slice(e, one, two, one)", "m"),
    "cut where it was not": ("e = Expand(m, wide)\n b = Slice(e, one, two, two)", "b"),
}


@pytest.mark.parametrize(("steps", "root"), BROADCASTS.values(), ids=BROADCASTS)
def test_a_broadcast_mask_is_read_before_it_is_broadcast(steps: str, root: str) -> None:
    text = f"""(float[2,1,1,6] m) => (float y) <int64[4] wide = {{2, 3, 4, 6}}, int64[3] flat = {{6, 4, 6}},
      int64[4] half = {{2, 1, 4, 6}}, int64[4] other = {{2, 4, 3, 6}}, int64[1] last = {{4}}, int64[1] one = {{1}},
      int64[5] five = {{2, 1, 1, 6, 4}}, int64[4] wider = {{2, 1, 4, 6}}, int64[1] two = {{3}}> {{
        {steps}
        y = Identity(b) }}"""
    model = Model(parse_graph(text, 17))
    infer(model)
    scope = next(iter(model.scopes()))
    assert functions_for(scope)["aligned"](Value("b"), Value("b")).value == root


def test_the_last_of_a_table_and_as_many_scores_broadcast_only_where_they_are_equal() -> None:
    scope = scope_with("[B,1,S,L]")
    batch, _, queries, keys = scope.fact("s").shape or ()
    layouts = Layouts({}, batch, HEADS, queries, keys)
    item = Aligned("m", (batch, HEADS, queries, keys), (1, HEADS, last(11, queries), last(11, keys)))
    assert combined(scope, [item], "Add", layouts, item.shape, FREE) == Value("m")
    other = Aligned("m", item.shape, (1, HEADS, last(11, batch), keys))
    assert isinstance(combined(scope, [other], "Add", layouts, item.shape, FREE), Refusal)
