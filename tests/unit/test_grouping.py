"""Stages and cuts on random graphs: groups that can all be carried out at once, pieces within their bounds."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atcfuse.autofuse.broadcasts import Split, narrowed
from atcfuse.autofuse.grouping import Bounds, Load, Space, Vertex, cut, grow, together

SHAPE = (4, 5, 6)


def splits(*columns: int) -> frozenset[Split]:
    return frozenset(map(Split, columns))


SPLITS = (splits(0, 1, 2), splits(1), splits(2), splits(1, 2), splits(1) | {Split(1, 1)}, frozenset({Split(1, 1)}))


def space(splits: frozenset[Split]) -> Space:
    return Space(SHAPE, splits, Split(0) in splits)


def random_graph(seed: int, size: int = 60) -> list[Vertex]:
    source = random.Random(seed)
    vertices: list[Vertex] = []
    for at in range(size):
        reads = sorted({source.randrange(max(0, at - 12), at) for _ in range(source.randrange(0, 4))} if at else set())
        if source.random() < 0.2:
            vertices.append(Vertex(tuple(reads)))
            continue
        fusible = {r for r in reads if vertices[r].space is not None and source.random() < 0.8}
        own = space(source.choice(SPLITS))
        if source.random() < 0.3:  # one value a row, which a wider group may take in
            own = Space(narrowed(SHAPE, source.choice((1, 2))), splits(0, 1, 2), source.random() < 0.8)
        vertices.append(Vertex(tuple(reads), own, frozenset(fusible)))
    return vertices


def pieces_of(vertices: list[Vertex], bounds: Bounds) -> list[list[int]]:
    pieces = []
    for group in grow(vertices):
        members = set(group)
        load = {
            at: Load(
                operands=tuple(f"v{r}" for r in vertices[at].reads if r not in members),
                inside=tuple(r for r in vertices[at].reads if r in members),
                outside=sum(at in v.reads for i, v in enumerate(vertices) if i not in members) + (at % 7 == 0),
                calls=4,
            )
            for at in group
        }
        pieces += list(cut(group, load, bounds))
    return pieces


def is_acyclic(vertices: list[Vertex], pieces: list[list[int]]) -> bool:
    """Whether the graph in which every piece is one vertex has a topological order."""
    owner = {at: -1 - k for k, piece in enumerate(pieces) for at in piece}
    edges = {(owner.get(r, r), owner.get(at, at)) for at, v in enumerate(vertices) for r in v.reads}
    edges = {(a, b) for a, b in edges if a != b}
    left = {owner.get(at, at) for at in range(len(vertices))}
    while left:
        free = left - {b for a, b in edges if a in left}
        if not free:
            return False
        left -= free
    return True


@settings(max_examples=400, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), outputs=st.integers(1, 4), inputs=st.integers(2, 8))
def test_all_pieces_at_once_close_no_cycle(seed: int, outputs: int, inputs: int) -> None:
    vertices = random_graph(seed)
    pieces = pieces_of(vertices, Bounds(inputs, outputs, 40, 6))
    assert is_acyclic(vertices, [p for p in pieces if len(p) > 1])
    assert sorted(at for piece in pieces for at in piece) == [i for i, v in enumerate(vertices) if v.space is not None]


@settings(max_examples=400, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_members_share_a_split_and_pieces_keep_within_bounds(seed: int) -> None:
    vertices = random_graph(seed)
    for piece in pieces_of(vertices, Bounds(5, 2, 40, 6)):
        common = vertices[piece[0]].space
        for at in piece[1:]:
            common = common and together(common, vertices[at].space)  # type: ignore[arg-type]
        assert common is not None
        if len(piece) == 1:
            continue
        assert len({r for at in piece for r in vertices[at].reads if r not in piece}) <= 5
        assert 4 * len(piece) <= 40
        read = [sum(at in v.reads for i, v in enumerate(vertices) if i not in piece) + (at % 7 == 0) for at in piece]
        dead = [not any(at in v.reads for v in vertices) for at in piece]
        assert sum(1 for r, d in zip(read, dead, strict=True) if r and not d) <= 2


def test_an_edge_that_is_not_read_element_by_element_ends_a_group() -> None:
    whole = space(splits(0))
    vertices = [
        Vertex((), whole),
        Vertex((0,), whole, frozenset({0})),
        Vertex((1,)),
        Vertex((0, 2), whole, frozenset({0})),
    ]
    assert grow(vertices) == [[0, 1], [3]]


def test_operands_of_one_stage_are_taken_together_or_not_at_all() -> None:
    a, b, both = space(splits(1)), space(splits(2)), space(splits(1, 2))
    vertices = [Vertex((), a), Vertex((), b), Vertex((0, 1), both, frozenset({0, 1})), Vertex((2,), a, frozenset({2}))]
    assert grow(vertices) == [[0], [1], [2, 3]]


@pytest.mark.parametrize("length", [1, 9, 10, 11, 100])
def test_a_chain_is_cut_into_as_few_pieces_as_hold_it(length: int) -> None:
    group = list(range(length))
    load = {at: Load((), (at - 1,) if at else (), int(at == length - 1), 4) for at in group}
    pieces = list(cut(group, load, Bounds(8, 4, 40, 6)))
    assert [at for piece in pieces for at in piece] == group
    assert len(pieces) == -(-length // 10)


def test_a_reduction_and_what_follows_share_the_space_of_its_rows() -> None:
    rows, one = Space(SHAPE, splits(1)), Space((4, 5, 1), splits(0, 1, 2), True)
    whole = Space(SHAPE, splits(0, 1, 2), True)
    vertices = [
        Vertex((), whole),
        Vertex((0,), rows, frozenset({0})),
        Vertex((1,), one, frozenset({1})),
        Vertex((0, 2), whole, frozenset({0, 2})),
    ]
    assert grow(vertices) == [[0, 1, 2, 3]]
    assert together(one, whole) == Space(SHAPE, splits(1))
    assert together(Space((4, 5, 1), splits(0)), whole) is None
    assert together(Space((4, 1, 1), splits(0), True), rows) is None
