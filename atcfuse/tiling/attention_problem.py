"""One attention as a tiling sees it, and the tiles that its tasks visit; the same on every chip."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from atcfuse.tiling import ceil_div


@dataclass(frozen=True)
class Problem:
    """One attention: what the kernel is generated from and, from `batch` on, the sizes of one run.

    `bias_bytes` is the bias's element size, 0 without one. `skips` tells that tiles right of the causal diagonal are
    left out, `shared_core` that cube and vector unit share cores and UB (Ascend310P). Bias and mask shapes broadcast
    from the right to [batch, heads, queries, keys].
    """

    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    element_bytes: int
    bias_bytes: int
    has_mask: bool
    has_softcap: bool
    keys_transposed: bool
    skips: bool
    bottom_right: bool
    shared_core: bool

    batch: int
    queries: int
    keys: int
    bias_shape: tuple[int, ...] = ()
    mask_shape: tuple[int, ...] = ()


@dataclass(frozen=True)
class Visit:
    """One tile of a task: its rows, columns, and slot in a ring of two."""

    rows: int
    columns: int
    slot: int


def visits_of(problem: Problem, rows: int, columns: int, query_tile: int) -> Iterator[Visit]:
    """The tiles of `columns` keys that the task of `rows` queries number `query_tile` visits, in order."""
    first = query_tile * rows
    here = min(rows, problem.queries - first)
    tiles = ceil_div(problem.keys, columns)
    if problem.skips:
        offset = problem.keys - problem.queries if problem.bottom_right else 0
        visible = first + here + offset
        tiles = min(max(ceil_div(visible, columns) if visible > 0 else 0, 1), tiles)
    for j in range(tiles):
        yield Visit(here, min(columns, problem.keys - j * columns), j % 2)


def broadcast_rows(shape: tuple[int, ...], rows: int) -> int:
    """Rows of a bias or mask that are loaded for a tile: one where it has one row for all queries."""
    return 1 if len(shape) < 2 or shape[-2] == 1 else rows
