"""Common refinement of index spaces, and layouts as text read back."""

from __future__ import annotations

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from atcfuse.dims import divide, symbol
from atcfuse.layout import parse_layout
from atcfuse.match.factors import chain, grouped, layout_text, merged, merged_text, split_at, suffix_cuts

B, S = symbol("b"), symbol("s")


def test_cuts_form_a_chain_where_each_divides_the_one_before() -> None:
    assert chain([1, 6 * B, 6, 2]) == (6 * B, 6, 2, 1)
    assert chain([6, 4]) is None
    assert chain([B, S]) is None
    assert suffix_cuts([B, 3, 2]) == [1, 2, 6, 6 * B]


@given(st.lists(st.sampled_from([2, 3, 4, 5]), min_size=1, max_size=4), st.integers(0, 5))
def test_splitting_keeps_the_order_of_memory(sizes: list[int], seed: int) -> None:
    total = math.prod(sizes)
    cuts = tuple(suffix_cuts(sizes)[::-1])
    parts = split_at(((total, 7),), cuts)
    assert parts is not None
    assert [size for size, _ in parts] == sizes
    assert merged(parts) == (total, 7)


def test_what_is_not_split_along_the_cuts() -> None:
    assert split_at(((6, 1),), (6, 4, 1)) is None
    assert split_at(((6, 1),), (12, 6, 1)) is None


def test_factors_merge_where_they_run_with_one_stride() -> None:
    assert merged(((2, 12), (3, 4))) == (6, 4)
    assert merged(((2, 10), (3, 4))) is None
    assert merged(()) == (1, 0)
    assert merged(((4, 0), (2, 0))) == (8, 0)
    assert merged(((2, 0), (3, 4))) is None


def test_heads_that_repeat_in_groups() -> None:
    assert grouped(((2, 8), (3, 0))) == ((2, 8), 3)
    assert grouped(((6, 8),)) == ((6, 8), 1)
    assert grouped(((3, 0), (2, 8))) is None
    assert grouped(((6, 0),)) == ((1, 0), 6)


def test_layouts_of_packed_operands() -> None:
    letters = {"B": (B, S * 72), "S": (S, 72), "N": (3, 8), "D": (8, 1)}
    assert layout_text((B, S, 72), letters) == ("B S (3 N D)", frozenset("BSND"))
    assert layout_text((B, S, 3, 3, 8), letters) == ("B S 3 N D", frozenset("BSND"))
    assert layout_text((B * S, 72), letters) == ("(B S) (3 N D)", frozenset("ND"))
    assert layout_text((B, S, 73), {"B": (B, S * 73), "S": (S, 73), "N": (8, 8), "D": (8, 1)}) is None


def test_a_letter_never_exceeds_its_factor() -> None:
    """Four heads do not fit into an axis of two: they would run across it."""
    assert layout_text((2, 2, 2, 5, 8), {"B": (2, 160), "N": (4, 40), "S": (5, 8), "D": (8, 1)}) is None


def test_a_part_of_an_axis_is_taken_by_its_known_size_only() -> None:
    partly = {"B": (B, 56), "S": (5, 8), "D": (8, 1)}
    assert layout_text((B, 7, 8), partly) is None
    assert layout_text((B, S, 7, 8), {"B": (B, 56 * S), "S": (S, 56), "N": (5, 8), "D": (8, 1)}) == (
        "B S N:7 D", frozenset("BNSD"),
    )  # fmt: skip


@given(st.permutations("BNSD"), st.sets(st.integers(1, 3)), st.booleans())
@settings(max_examples=100)
def test_what_is_written_is_read_back(order: list[str], breaks: set[int], packed: bool) -> None:
    sizes = {"B": 2, "N": 3, "S": 5, "D": 4}
    words = [*order[:-1], "7", order[-1]] if packed else list(order)
    groups: list[list[str]] = [[]]
    for position, word in enumerate(words):
        if position in breaks:
            groups.append([])
        groups[-1].append(word)
    extents = [sizes.get(w, 7) for w in words]
    strides = dict(zip(words, suffix_cuts(extents)[-2::-1], strict=True))
    shape = [math.prod(sizes.get(w, 7) for w in g) for g in groups]
    found = layout_text(shape, {w: (sizes[w], strides[w]) for w in order})
    assert found is not None
    read = parse_layout(found[0], 0, {"N": 3, "D": 4})
    assert [(f.axis, f.letter) for f in read if f.letter] == [
        (i, w) for i, g in enumerate(groups) for w in g if not w.isdigit()
    ]


def test_results_in_a_memory_of_letters() -> None:
    letters = {"D": (8, 1), "S": (S, 8), "N": (3, 8 * S), "B": (B, 24 * S)}
    b, s, n, d = (letters[k] for k in "BSND")
    assert merged_text(((b,), (s,), (n, d)), letters) == "B S (N D)"
    assert merged_text(((b, n), (s,), (d,)), letters) == "(B N) S D"
    assert merged_text(((b,), (n,), ((S * 4, 8),), (d,)), letters) is None
    assert divide(S * 8, 8) == S
