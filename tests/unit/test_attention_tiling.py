"""The closed form of an attention's bytes against walking its tiles, and the tiles that a level asks for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from attention_walk import agree
from hypothesis import given, settings
from hypothesis import strategies as st

from atcfuse.tiling import PLATFORM_310P, PLATFORM_910B, Platform, Prediction
from atcfuse.tiling.attention import predict
from atcfuse.tiling.attention_problem import Problem


def problem(**changes: Any) -> Problem:
    plain = Problem(
        heads=2,
        kv_heads=2,
        head_dim=64,
        value_dim=64,
        element_bytes=2,
        bias_bytes=0,
        has_mask=False,
        has_softcap=False,
        keys_transposed=False,
        skips=False,
        bottom_right=False,
        shared_core=False,
        batch=1,
        queries=64,
        keys=64,
    )
    return replace(plain, **changes)


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    shared = draw(st.booleans())
    queries, keys = draw(st.integers(1, 300)), draw(st.integers(1, 600))
    batch, heads = draw(st.integers(1, 2)), draw(st.integers(1, 3))

    def broadcast() -> tuple[int, ...]:
        full = (batch, heads, queries, keys)
        kept = draw(st.tuples(*[st.booleans()] * 3))
        last = 1 if not shared and draw(st.integers(0, 4)) == 0 else keys
        return (*(size if keep else 1 for size, keep in zip(full, kept, strict=False)), last)

    bias, mask = draw(st.booleans()), draw(st.booleans())
    skips = draw(st.booleans())
    return problem(
        heads=heads,
        batch=batch,
        queries=queries,
        keys=keys,
        value_dim=draw(st.sampled_from([16, 64, 80])),
        element_bytes=2 if shared else draw(st.sampled_from([2, 4])),
        shared_core=shared,
        skips=skips,
        bottom_right=skips and draw(st.booleans()),
        bias_bytes=2 if bias else 0,
        has_mask=mask,
        bias_shape=broadcast() if bias else (),
        mask_shape=broadcast() if mask else (),
    )


@given(problems(), st.sampled_from([0, 16, 32, 128]), st.sampled_from([1, 3, 24]))
@settings(max_examples=60, deadline=None)
def test_the_closed_form_is_what_walking_the_tiles_counts(asked: Problem, tile_rows: int, cores: int) -> None:
    chip = PLATFORM_310P if asked.shared_core else PLATFORM_910B
    found = predict(asked, replace(chip, cube_cores=cores, tile_rows=tile_rows))
    if not isinstance(found, str):
        agree(asked, found)


@pytest.mark.parametrize("chip", [PLATFORM_910B, PLATFORM_310P])
def test_a_long_sequence_is_added_up_and_not_walked(chip: Platform) -> None:
    """At 131,072 keys a head has a million tiles and more; one by one they would take minutes."""
    length = 131_072
    asked = problem(heads=1, queries=length, keys=length, shared_core=chip is PLATFORM_310P)
    found = predict(asked, chip)
    assert isinstance(found, Prediction)
    tiles, keys = found.parameters["query_tiles"], found.parameters["key_tiles"]
    assert tiles * keys > 10**6
    assert found.reads == {"q": length * keys * 64 * 2, "k": tiles * length * 64 * 2, "v": tiles * length * 64 * 2}
    causal = predict(replace(asked, skips=True), chip)
    assert isinstance(causal, Prediction)
    rows, columns = found.parameters["rows"], found.parameters["columns"]
    seen = sum(-(-(tile + 1) * rows // columns) * columns for tile in range(tiles))
    assert causal.reads["k"] == seen * 64 * 2
