"""Bytes of an attention counted tile by tile, as the kernels' loops go: the slow form of `atcfuse.tiling`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import lcm

from atcfuse.tiling import Prediction, ceil_div, round_up
from atcfuse.tiling.attention_problem import Problem


@dataclass(frozen=True)
class Visit:
    """One tile of a task: its rows, its first key, its columns, and its slot in a ring of two."""

    rows: int
    start: int
    columns: int
    slot: int


def visits(problem: Problem, rows: int, columns: int) -> list[list[Visit]]:
    """The tiles that each task of one head visits."""
    return [list(_of_task(problem, rows, columns, tile)) for tile in range(ceil_div(problem.queries, rows))]


def _of_task(problem: Problem, rows: int, columns: int, tile: int) -> Iterator[Visit]:
    first = tile * rows
    here = min(rows, problem.queries - first)
    offset = problem.keys - problem.queries if problem.bottom_right else 0
    for number, start in enumerate(range(0, problem.keys, columns)):
        hidden = start > first + here - 1 + offset
        if not (problem.skips and hidden and start > 0):
            yield Visit(here, start, min(columns, problem.keys - start), number % 2)


def _index_rows(shape: tuple[int, ...], rows: int) -> int:
    return 1 if len(shape) < 2 or shape[-2] == 1 else rows


def reads(problem: Problem, form: str, rows: int, columns: int) -> dict[str, int]:
    """Bytes by operand on cores apart, over all heads."""
    p, size, found = problem, problem.element_bytes, dict.fromkeys(("q", "k", "v", "bias", "mask"), 0)
    for task in visits(p, rows, columns):
        found["q"] += p.head_dim * size * (task[0].rows if form == "decode" else sum(v.rows for v in task))
        for v in task:
            found["k"] += v.columns * p.head_dim * size
            found["v"] += v.columns * p.value_dim * size
            for name, shape, each in (("bias", p.bias_shape, p.bias_bytes), ("mask", p.mask_shape, int(p.has_mask))):
                keys = 1 if not shape or shape[-1] == 1 else v.columns
                found[name] += keys * _index_rows(shape, v.rows) * each
    return {name: p.batch * p.heads * count for name, count in found.items() if count}


def ring(problem: Problem, form: str, rows: int, columns: int) -> int:
    """Bytes written to the workspace, over all heads."""
    p = problem
    flat = [v for task in visits(p, rows, columns) for v in task]
    partial = 0 if form == "one_tile" else sum(v.rows for v in flat) * p.value_dim * 4
    return p.batch * p.heads * (sum(v.rows * v.columns for v in flat) * (4 + p.element_bytes) + partial)


def footprint(problem: Problem, form: str, rows: int, columns: int, cores: int) -> int:
    """Distinct bytes of the workspace: every element of every slot that some task of a core writes."""
    p, tiles = problem, visits(problem, rows, columns)
    total = 0
    for core in range(cores):
        tasks = range(core, min(p.batch * p.heads * len(tiles), lcm(len(tiles), cores)), cores)
        for slot in (0, 1):
            here = {v for task in tasks for v in tiles[task % len(tiles)] if v.slot == slot}
            scores = {(row, column) for v in here for row in range(v.rows) for column in range(v.columns)}
            partial = 0 if form == "one_tile" else max((v.rows for v in here), default=0) * p.value_dim * 4
            total += len(scores) * (4 + p.element_bytes) + partial
    return total


def blocked(problem: Problem, shape: tuple[int, ...], size: int, rows: int, columns: int) -> int:
    """Bytes read of a bias or mask on shared cores: whole blocks of 32, but nothing beyond the tensor's end."""
    p, whole = problem, (1,) * (4 - len(shape)) + shape
    end = whole[0] * whole[1] * whole[2] * whole[3] * size
    total = 0
    for batch in range(p.batch):
        for head in range(p.heads):
            plane = (batch % whole[0]) * whole[1] + head % whole[1]
            for number, task in enumerate(visits(p, rows, columns)):
                for v in task:
                    for row in range(_index_rows(shape, v.rows)):
                        line = plane * whole[2] + (number * rows + row) % whole[2]
                        start = (line * whole[3] + v.start) * size
                        stop = start + round_up(v.columns * size, 32)
                        total += stop - start if stop <= end else v.columns * size
    return total


def shared_reads(problem: Problem, rows: int, columns: int) -> dict[str, int]:
    """Bytes by operand on shared cores, over all heads."""
    p = problem
    flat = [v for task in visits(p, rows, columns) for v in task]
    keys = sum(v.columns for v in flat)
    heads = p.batch * p.heads * 2
    found = {
        "q": heads * sum(v.rows for v in flat) * p.head_dim,
        "k": heads * keys * p.head_dim,
        "v": heads * keys * p.value_dim,
        "bias": blocked(p, p.bias_shape, 2, rows, columns) if p.bias_bytes else 0,
        "mask": blocked(p, p.mask_shape, 1, rows, columns) if p.has_mask else 0,
    }
    return {name: count for name, count in found.items() if count}


def agree(problem: Problem, predicted: Prediction) -> None:
    """Asserts that a prediction is what walking gives."""
    rows, columns = predicted.parameters["rows"], predicted.parameters["columns"]
    if problem.shared_core:
        assert dict(predicted.reads) == shared_reads(problem, rows, columns)
        return
    form = predicted.form
    assert dict(predicted.reads) == reads(problem, form, rows, columns)
    if form != "decode":
        assert predicted.workspace_written == predicted.workspace_read == ring(problem, form, rows, columns)
        assert predicted.workspace_footprint == footprint(problem, form, rows, columns, 2 * predicted.blocks)
        flat = [v for task in visits(problem, rows, columns) for v in task]
        assert predicted.messages == 2 * problem.batch * problem.heads * len(flat) + 8 * predicted.blocks
