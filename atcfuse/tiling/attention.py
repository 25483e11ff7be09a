"""The attention kernel's tiling and bytes on Ascend910B, and the way to those of Ascend310P.

What `attention_host.h` computes beside the device, in Python: figures without a compiler. The tests hold them against
what the twin counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import lcm
from typing import Literal

from atcfuse.tiling import Platform, Prediction, attention_310p, ceil_div, round_up
from atcfuse.tiling.attention_problem import Problem, Task, broadcast_rows, tasks_of, tile_sizes

Form = Literal["flash", "one_tile", "decode"]

_SOFTCAP_SCRATCH = 8192
_MESSAGE_FREE: tuple[Form, ...] = ("decode",)


@dataclass(frozen=True)
class Tiling:
    """How the work is cut: a task is `rows` queries of one head, visited in tiles of `columns` keys.

    `chunk` (decode form) is how many keys are loaded at once. `load_buffers` is 2 where loads are double buffered.
    """

    form: Form
    rows: int
    columns: int
    load_buffers: int
    chunk: int = 0


def predict(problem: Problem, platform: Platform) -> Prediction | str:
    """What one launch moves and holds, or why the kernel's tiling refuses these sizes."""
    if problem.shared_core:
        return attention_310p.predict(problem, platform)
    tiling = choose_tiling(problem, platform)
    if tiling is None:
        return "no tile fits the unified buffer"
    query_tiles = ceil_div(problem.queries, tiling.rows)
    tasks = problem.batch * problem.heads * query_tiles
    blocks = min(platform.cube_cores, ceil_div(tasks, 2))
    visited = tasks_of(problem, tiling.rows, tiling.columns)
    reads, writes, ring_read, ring_written = _traffic(problem, tiling, visited)
    uses_cube = tiling.form not in _MESSAGE_FREE
    all_visits = problem.batch * problem.heads * sum(task.tiles for task in visited)
    return Prediction(
        form=tiling.form,
        blocks=blocks,
        parameters=_parameters(tiling, query_tiles, ceil_div(problem.keys, tiling.columns), tasks),
        reads=reads,
        writes=writes,
        workspace_read=ring_read if uses_cube else 0,
        workspace_written=ring_written if uses_cube else 0,
        workspace_footprint=_footprint(problem, tiling, visited, tasks, 2 * blocks) if uses_cube else 0,
        workspace_bytes=_core_bytes(problem, tiling) * 2 * blocks if uses_cube else 0,
        messages=2 * all_visits + 4 * 2 * blocks if uses_cube else 0,  # products; two SetOrgShape and End a core
        buffers=buffers(problem, tiling),
        peak=_peak(problem, tiling),
    )


def choose_tiling(problem: Problem, platform: Platform) -> Tiling | None:
    """The tiling that moves the least bytes on the busiest core, the smaller one where that makes no difference.

    Where the platform asks for tile rows, it is the widest tile up to those that fits.
    """
    if problem.queries == 1 and not problem.keys_transposed:
        tiling = _decode_tiling(problem)
        return tiling if _on_chip(problem, tiling) <= platform.ub else None
    best: tuple[int, Tiling] | None = None
    for candidate in _candidates(problem, platform.tile_rows):
        cost = _estimate(problem, candidate, 2 * platform.cube_cores)
        wider = platform.tile_rows and best is not None and candidate.rows > best[1].rows
        if _on_chip(problem, candidate) <= platform.ub and (best is None or wider or cost < best[0]):
            best = cost, candidate
    return best[1] if best else None


def buffers(problem: Problem, tiling: Tiling) -> dict[str, int]:
    """The on-chip buffers of one vector core in bytes, as InitBuffer rounds them; unused ones left out."""
    sizes = {**_score_buffers(problem, tiling), **_form_buffers(problem, tiling)}
    return {name: round_up(size, 32) for name, size in sizes.items() if size}


def _candidates(problem: Problem, tile_rows: int) -> Iterator[Tiling]:
    for rows, columns in tile_sizes(tile_rows):
        form: Form = "one_tile" if problem.keys <= columns else "flash"
        yield from (Tiling(form, rows, columns, load_buffers) for load_buffers in (2, 1))


def _decode_tiling(problem: Problem) -> Tiling:
    pitch = round_up(max(problem.head_dim, problem.value_dim), 16)
    return Tiling("decode", 1, min(512, round_up(problem.keys, 128)), 2, 128 if pitch <= 128 else 64)


def _estimate(problem: Problem, tiling: Tiling, cores: int) -> int:
    p, size = problem, problem.element_bytes
    rows = min(tiling.rows, p.queries)
    rounds = ceil_div(p.batch * p.heads * ceil_div(p.queries, tiling.rows), cores)
    operands = p.keys * (p.head_dim + p.value_dim) * size
    scores = rows * p.keys * (8 + 2 * size)
    per_tile = p.head_dim * size + p.value_dim * (size if tiling.form == "one_tile" else 8)
    moved = operands + scores + ceil_div(p.keys, tiling.columns) * rows * per_tile
    return rounds * moved * (4 if tiling.load_buffers == 2 else 5)


def _broadcast_size(shape: tuple[int, ...], task: Task) -> int:
    """Elements of a bias or mask that are loaded over a task's tiles."""
    columns = task.tiles if not shape or shape[-1] == 1 else task.covered
    return broadcast_rows(shape, task.rows) * columns


def _score_buffers(problem: Problem, tiling: Tiling) -> dict[str, int]:
    tile = tiling.rows * tiling.columns
    bias_tile = broadcast_rows(problem.bias_shape, tiling.rows) * tiling.columns
    scratch = _SOFTCAP_SCRATCH if problem.has_softcap else 0
    if problem.has_mask:
        scratch = max(scratch, tile * 2)
    if problem.bias_bytes == 2:
        scratch = max(scratch, bias_tile * 4, tile * 2)
    narrow_bias = problem.bias_bytes == 2
    return {
        "columns": round_up(tiling.rows, 8) * 32 * (2 if tiling.form == "one_tile" else 5),
        "fold": tiling.rows * 256,
        "row": round_up(tiling.rows, 8) * 4,
        "bias": bias_tile * problem.bias_bytes,
        "mask": broadcast_rows(problem.mask_shape, tiling.rows) * tiling.columns if problem.has_mask else 0,
        "scratch": scratch,
        "bits": tile // 8 if problem.has_mask or narrow_bias else 0,
    }


def _form_buffers(problem: Problem, tiling: Tiling) -> dict[str, int]:
    size, value_pitch = problem.element_bytes, round_up(problem.value_dim, 16)
    if tiling.form == "decode":
        head_pitch = round_up(problem.head_dim, 16)
        chunk = tiling.chunk * max(head_pitch, value_pitch)
        return {
            "load": 2 * round_up(chunk * size, 32),
            "store": value_pitch * size,
            "accumulator": value_pitch * 4,
            "tile": chunk * 4 if size == 2 else 0,
            "scores": tiling.columns * 4,
            "query": head_pitch * 4,
            "spread": tiling.chunk * 32,
        }
    result = 0 if tiling.form == "one_tile" else tiling.rows * value_pitch
    tile = max(tiling.rows * tiling.columns, result)
    return {"load": tiling.load_buffers * round_up(tile * 4, 32), "store": tile * size, "accumulator": result * 4}


def _on_chip(problem: Problem, tiling: Tiling) -> int:
    return sum(buffers(problem, tiling).values())


def _traffic(
    problem: Problem, tiling: Tiling, visited: Iterable[Task]
) -> tuple[dict[str, int], dict[str, int], int, int]:
    """Reads and writes by operand, and the ring's, over all heads."""
    p, size = problem, problem.element_bytes
    decode, one_tile = tiling.form == "decode", tiling.form == "one_tile"
    reads = dict.fromkeys(("q", "k", "v", "bias", "mask"), 0)
    ring = results = 0
    for task, times in Counter(visited).items():
        results += times * task.rows * p.value_dim * size
        reads["q"] += times * task.rows * p.head_dim * size * (1 if decode else task.tiles)
        reads["k"] += times * task.covered * p.head_dim * size
        reads["v"] += times * task.covered * p.value_dim * size
        reads["bias"] += times * _broadcast_size(p.bias_shape, task) * p.bias_bytes
        reads["mask"] += times * _broadcast_size(p.mask_shape, task) if p.has_mask else 0
        partial = 0 if one_tile else task.tiles * task.rows * p.value_dim * 4
        ring += times * (task.rows * task.covered * (4 + size) + partial)
    heads = p.batch * p.heads
    operands = {name: count * heads for name, count in reads.items() if count}
    return operands, {"out": results * heads}, ring * heads, ring * heads


def _core_bytes(problem: Problem, tiling: Tiling) -> int:
    tile, slots = tiling.rows * tiling.columns, 1 if tiling.form == "one_tile" else 2
    partial = 0 if tiling.form == "one_tile" else round_up(tiling.rows * problem.value_dim * 4, 512)
    return slots * (round_up(tile * 4, 512) + round_up(tile * problem.element_bytes, 512) + partial)


def _footprint(problem: Problem, tiling: Tiling, visited: Sequence[Task], tasks: int, cores: int) -> int:
    """Distinct ring bytes written. Query tiles come round in a fixed rhythm, so one period of tasks tells all."""
    period = min(tasks, lcm(len(visited), cores))
    written: dict[frozenset[Task], int] = {}
    total = 0
    for core in range(cores):
        here = frozenset(visited[task % len(visited)] for task in range(core, period, cores))
        if here not in written:
            written[here] = sum(_slot_bytes(problem, tiling, here, slot) for slot in (0, 1))
        total += written[here]
    return total


def _slot_bytes(problem: Problem, tiling: Tiling, tasks: Iterable[Task], slot: int) -> int:
    """The union of tiles that all start in the slot's corner, rows `columns` elements apart."""
    widths: dict[int, int] = {}
    for task in tasks:
        columns = _widest(task, slot)
        if columns:
            widths[task.rows] = max(columns, widths.get(task.rows, 0))
    if not widths:
        return 0
    area = below = 0
    for rows in sorted(widths, reverse=True):
        area += rows * max(widths[rows] - below, 0)
        below = max(below, widths[rows])
    partial = 0 if tiling.form == "one_tile" else max(widths) * problem.value_dim * 4
    return area * (4 + problem.element_bytes) + partial


def _widest(task: Task, slot: int) -> int:
    """Columns of the widest tile of a task in a slot of its ring of two: tiles go to both in turn."""
    if task.tiles <= slot:
        return 0
    return task.last if slot == task.tiles - 1 else task.columns


def _peak(problem: Problem, tiling: Tiling) -> dict[str, int]:
    peak = {"ub": _on_chip(problem, tiling), "l1": 0, "l0a": 0, "l0b": 0, "l0c": 0}
    if tiling.form == "decode":
        return peak
    size = problem.element_bytes
    products = (
        (tiling.rows, tiling.columns, problem.head_dim),
        (tiling.rows, problem.value_dim, tiling.columns),
    )
    for m, n, k in products:
        base_m, base_n, base_k = round_up(m, 16), round_up(n, 16), min(round_up(k, 16), 128 // size)
        a, b = 2 * base_m * base_k * size, 2 * base_n * base_k * size  # double buffered in L1 and L0 alike
        peak["l1"] += a + b
        peak["l0a"] = max(peak["l0a"], a)
        peak["l0b"] = max(peak["l0b"], b)
        peak["l0c"] = max(peak["l0c"], base_m * base_n * 4)
    return peak


def _parameters(tiling: Tiling, query_tiles: int, key_tiles: int, tasks: int) -> Mapping[str, int]:
    parameters = {
        "rows": tiling.rows,
        "columns": tiling.columns,
        "load_buffers": tiling.load_buffers,
        "query_tiles": query_tiles,
        "key_tiles": key_tiles,
        "tasks": tasks,
    }
    return {**parameters, "chunk": tiling.chunk} if tiling.form == "decode" else parameters
