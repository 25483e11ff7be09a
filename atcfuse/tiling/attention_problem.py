"""One attention as a tiling sees it, the tiles it chooses among, and what its tasks visit; the same on every chip."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from atcfuse.tiling import ceil_div

ROWS, COLUMNS = (16, 32, 64, 128), (128, 256)
"""Queries and keys of a tile."""


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
class Task:
    """What one query tile of one head visits: `rows` queries, the first `covered` keys in `tiles` tiles.

    All tiles have `columns` keys but the last, which has what is left of `covered`.
    """

    rows: int
    tiles: int
    covered: int
    columns: int

    @property
    def last(self) -> int:
        """Keys of the last tile."""
        return self.covered - (self.tiles - 1) * self.columns

    def units(self, size: int, unit: int) -> int:
        """Units of `unit` bytes that a row takes over all tiles, each tile rounded up; `size` bytes an element."""
        return (self.tiles - 1) * ceil_div(self.columns * size, unit) + ceil_div(self.last * size, unit)


def tasks_of(problem: Problem, rows: int, columns: int) -> list[Task]:
    """What each query tile of one head visits where a task is `rows` queries and a tile `columns` keys, in order."""
    if problem.queries == 0:
        return []
    keys, count = problem.keys, ceil_div(problem.queries, rows)
    tiles = ceil_div(keys, columns)
    left = problem.queries - (count - 1) * rows
    if not problem.skips:
        return [*[Task(rows, tiles, keys, columns)] * (count - 1), Task(left, tiles, keys, columns)]
    offset = keys - problem.queries if problem.bottom_right else 0
    found = []
    for tile in range(count):
        here = rows if tile < count - 1 else left
        visible = tile * rows + here + offset
        seen = min(max(ceil_div(max(visible, 0), columns), 1), tiles)
        found.append(Task(here, seen, min(seen * columns, keys), columns))
    return found


def tile_sizes(tile_rows: int) -> Iterator[tuple[int, int]]:
    """Rows and columns that a tile may have, in the order in which they are tried; 0 leaves the rows open."""
    for rows in ROWS:
        if not tile_rows or rows <= tile_rows:
            yield from ((rows, columns) for columns in COLUMNS)


def broadcast_rows(shape: tuple[int, ...], rows: int) -> int:
    """Rows of a bias or mask that are loaded for a tile: one where it has one row for all queries."""
    return 1 if len(shape) < 2 or shape[-2] == 1 else rows
