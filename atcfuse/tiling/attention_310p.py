"""The attention kernel's tiling and bytes on Ascend310P, whose cores hold cube and vector unit together.

Scores and probabilities stay in UB, so there is no workspace. Bias and mask rows come in whole blocks of 32 bytes: what
is read beyond a tile's columns counts, except at the end of the tensor, where the last elements come one by one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from atcfuse.tiling import Platform, Prediction, ceil_div, round_up
from atcfuse.tiling.attention_problem import Problem, Task, broadcast_rows, tasks_of, tile_sizes

_BLOCK = 32
_SOFTCAP_SCRATCH = 8192


@dataclass(frozen=True)
class Tiling:
    """A task is `rows` queries of one head, visited in tiles of `columns` keys."""

    rows: int
    columns: int


def predict(problem: Problem, platform: Platform) -> Prediction | str:
    """What one launch moves and holds, or why the kernel's tiling refuses these sizes."""
    for name, shape in (("bias", problem.bias_shape), ("mask", problem.mask_shape)):
        if shape and shape[-1] == 1 and problem.keys != 1:
            return f"{name} is one value for all keys"
    tiling = choose_tiling(problem, platform)
    if tiling is None:
        return "no tile fits the unified buffer"
    query_tiles, key_tiles = ceil_div(problem.queries, tiling.rows), ceil_div(problem.keys, tiling.columns)
    tasks = problem.batch * problem.heads * query_tiles
    visited = tasks_of(problem, tiling.rows, tiling.columns)
    tiles = {"rows": tiling.rows, "columns": tiling.columns, "query_tiles": query_tiles, "key_tiles": key_tiles}
    return Prediction(
        form="shared_core",
        blocks=min(platform.cube_cores, tasks),
        parameters={**tiles, "tasks": tasks},
        reads=_reads(problem, visited),
        writes={"out": problem.batch * problem.heads * problem.queries * problem.value_dim * 2},
        workspace_read=0,
        workspace_written=0,
        workspace_footprint=0,
        workspace_bytes=0,
        messages=0,
        buffers=buffers(problem, tiling),
        peak=_peak(problem, tiling),
    )


def choose_tiling(problem: Problem, platform: Platform) -> Tiling | None:
    """The tiling that moves the least bytes on the busiest core, the smaller one where that makes no difference.

    Where the platform asks for tile rows, it is the widest tile up to those that fits.
    """
    best: tuple[int, Tiling] | None = None
    for candidate in (Tiling(rows, columns) for rows, columns in tile_sizes(platform.tile_rows)):
        cost = _estimate(problem, candidate, platform.cube_cores)
        wider = platform.tile_rows and best is not None and candidate.rows > best[1].rows
        if sum(buffers(problem, candidate).values()) <= platform.ub and (best is None or wider or cost < best[0]):
            best = cost, candidate
    return best[1] if best else None


def buffers(problem: Problem, tiling: Tiling) -> dict[str, int]:
    """The on-chip buffers of a core in bytes, as InitBuffer rounds them; unused ones left out."""
    tile, result = tiling.rows * tiling.columns, tiling.rows * problem.value_dim
    bias_tile = broadcast_rows(problem.bias_shape, tiling.rows) * tiling.columns if problem.bias_bytes else 0
    mask_tile = broadcast_rows(problem.mask_shape, tiling.rows) * tiling.columns if problem.has_mask else 0
    scratch = [_SOFTCAP_SCRATCH if problem.has_softcap else 0]
    scratch += [tile * 2] if problem.has_mask else []
    scratch += [bias_tile * 4, tile * 2] if problem.bias_bytes else []
    sizes = {
        "scores": tile * 4,
        "probabilities": tile * 2,
        "partial": result * 4,
        "accumulator": result * 4,
        "store": result * 2,
        "convert": 2 * max(_transfer(product) for product in _products(problem, tiling)),
        "columns": 4 * tiling.rows * 64,
        "fold": tiling.rows * 64,
        "row": tiling.rows * 4,
        "bias": bias_tile * 2,
        "mask": mask_tile,
        "scratch": max(scratch),
        "bits": tile // 8 if problem.has_mask or problem.bias_bytes else 0,
    }
    return {name: round_up(size, _BLOCK) for name, size in sizes.items() if size}


def _estimate(problem: Problem, tiling: Tiling, cores: int) -> int:
    p, rows = problem, min(tiling.rows, problem.queries)
    rounds = ceil_div(p.batch * p.heads * ceil_div(p.queries, tiling.rows), cores)
    moved = p.keys * (p.head_dim + p.value_dim) + rows * p.value_dim
    return rounds * (moved + ceil_div(p.keys, tiling.columns) * rows * p.head_dim)


def _products(problem: Problem, tiling: Tiling) -> Iterator[tuple[int, int, int]]:
    """Base blocks (m, n, k) of both products."""
    yield tiling.rows, tiling.columns, min(problem.head_dim, 64)
    yield tiling.rows, round_up(problem.value_dim, 16), min(tiling.columns, 64)


def _transfer(product: tuple[int, int, int]) -> int:
    """Bytes of the largest base block that passes through UB on its way to the cube's layout."""
    m, n, k = product
    return max(m, n) * k * 2


def _reads(problem: Problem, visited: Sequence[Task]) -> dict[str, int]:
    heads = problem.batch * problem.heads
    rows = sum(task.rows * task.tiles for task in visited)
    columns = sum(task.covered for task in visited)
    reads = {
        "q": heads * rows * problem.head_dim * 2,
        "k": heads * columns * problem.head_dim * 2,
        "v": heads * columns * problem.value_dim * 2,
        "bias": _blocked(problem, visited, problem.bias_shape, 2) if problem.bias_bytes else 0,
        "mask": _blocked(problem, visited, problem.mask_shape, 1) if problem.has_mask else 0,
    }
    return {name: count for name, count in reads.items() if count}


def _blocked(problem: Problem, visited: Sequence[Task], shape: tuple[int, ...], size: int) -> int:
    """Bytes read of a bias or mask of `size`-byte elements."""
    whole = sum(
        times * broadcast_rows(shape, task.rows) * task.units(size, _BLOCK) * _BLOCK
        for task, times in Counter(visited).items()
    )
    return problem.batch * problem.heads * whole - _never_read(problem, visited, shape, size)


def _never_read(problem: Problem, visited: Sequence[Task], shape: tuple[int, ...], size: int) -> int:
    """What `_blocked` would read beyond the end of the tensor: only last tiles of a row, which are not full."""
    batches, heads, rows, keys = (1,) * (4 - len(shape)) + shape
    flat = batches * heads * rows
    end = flat * keys
    times = (problem.batch // batches) * (problem.heads // heads)
    alike = Counter(visited).items()
    saved = 0
    for row in reversed(range(flat)):
        if (row + 1) * keys + _BLOCK <= end:
            break
        tasks = alike if rows == 1 else [(visited[row % rows // visited[0].rows], 1)]
        for task, count in tasks:
            start = row * keys + task.covered - task.last
            covered = ceil_div(task.last * size, _BLOCK) * _BLOCK
            if start + covered // size > end:
                saved += count * times * (covered - task.last * size)
    return saved


def _peak(problem: Problem, tiling: Tiling) -> dict[str, int]:
    peak = {"ub": sum(buffers(problem, tiling).values()), "l1": 0, "l0a": 0, "l0b": 0, "l0c": 0}
    for m, n, k in _products(problem, tiling):
        a, b = 2 * m * k * 2, 2 * n * k * 2  # double buffered in L1 and L0 alike
        peak["l1"] += a + b
        peak["l0a"] = max(peak["l0a"], a)
        peak["l0b"] = max(peak["l0b"], b)
        peak["l0c"] = max(peak["l0c"], m * n * 4)
    return peak
