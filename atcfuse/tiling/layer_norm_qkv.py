"""Tiling of the `layer_norm_qkv`, `add_layer_norm_qkv` and `qkv` kernels and the bytes that they move.

`plan` computes what the kernels' own `layer_norm_qkv_host.h.j2` computes on the host of the chip; `predict` counts what
a kernel then moves and holds, to the byte, as the twin counts it. Integers only, so that both sides agree.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from math import prod
from typing import Any

from atcfuse.rule.types import ELEMENT_TYPES
from atcfuse.tiling import Platform, ceil_div, round_up
from atcfuse.tiling.cube import MAX_ROWS, Counts, CubeTiling, Prediction, cube_tiling, rows_and_groups, tasks_of
from atcfuse.tiling.row_norm import SUMMANDS, period_of, sum_shape

MAX_PROJECTIONS = 4
_TILES = 2  # buffers of a vector queue
_MAX_UNIT = 256
_MAX_STRIDE = 65535
_FRACTAL = 16
_LANE = 64
_BLOCK_FLOATS = 8
_SMALL_BYTES = 320
_STATISTICS_BYTES = 64
_SLOT_ALIGNMENT = 512
_LOAD_BYTES = 32  # into L1, a cycle
_ROW_INSTRUCTIONS = 25
_SUMMAND_INSTRUCTIONS = 5  # of a row, for each further summand
_START_UP = 16  # cycles of a vector instruction beside its repeats
_BYTES = {ELEMENT_TYPES[name]: size for name, size in (("float32", 4), ("float16", 2), ("bfloat16", 2))}


@dataclass(frozen=True)
class Projection:
    """A weight of `columns` outputs, [K, columns] or, transposed, [columns, K]."""

    columns: int
    transposed: bool = False
    bias: bool = False


@dataclass(frozen=True)
class Problem:
    """One node: x, or the sum, is [rows, hidden] once its leading dims are folded.

    `element_bytes` is of x, weights, biases and outputs; `gamma_bytes` and `beta_bytes` are 0 where there are none.
    `widens_bias` holds for bfloat16, whose biases the cube takes as float only. Without `norm` the cube reads x itself.
    `periods` are the rows of each summand where rows are a sum, which begins anew after so many, or None where they do
    not repeat evenly.
    """

    rows: int
    hidden: int
    projections: tuple[Projection, ...]
    element_bytes: int = 2
    gamma_bytes: int = 2
    beta_bytes: int = 2
    widens_bias: bool = False
    normalized: bool = False
    norm: bool = True
    periods: tuple[int | None, ...] = ()
    keeps_sum: bool = False

    @property
    def is_sum(self) -> bool:
        """Whether rows are added up before they are normalised."""
        return len(self.periods) > 1

    @property
    def widest(self) -> int:
        """Columns of the widest projection."""
        return max(p.columns for p in self.projections)

    @property
    def any_bias(self) -> bool:
        """Whether a projection has a bias."""
        return any(p.bias for p in self.projections)


@dataclass(frozen=True)
class Piece:
    """The columns of one projection that belong to one group; `slot_offset` is where a widened bias lies, in floats."""

    projection: int
    first: int
    columns: int
    slot_offset: int


@dataclass(frozen=True)
class Plan:
    """The tiling: rows by columns of a task, what the cube's buffers hold, and the workspace of a vector core."""

    problem: Problem
    blocks: int
    rows_per_task: int
    groups: int
    unit_columns: int
    chunk_columns: int
    slot_pitch: int
    bias_offset: int
    slot_bytes: int
    cube: CubeTiling

    @property
    def tasks(self) -> int:
        """Blocks of rows times groups of columns."""
        return ceil_div(self.problem.rows, self.rows_per_task) * self.groups

    @property
    def row_fits(self) -> bool:
        """Whether a row that is normalised is on chip whole; otherwise x is read twice."""
        return self.chunk_columns >= self.problem.hidden

    @property
    def workspace_bytes(self) -> int:
        """User workspace that the host asks for."""
        return 2 * self.blocks * self.slot_bytes

    @cached_property
    def pieces(self) -> tuple[tuple[Piece, ...], ...]:
        """The pieces of every group, in the order in which the cube gets them."""
        return tuple(tuple(self._pieces_of(group)) for group in range(self.groups))

    def _pieces_of(self, group: int) -> Iterator[Piece]:
        units = [ceil_div(p.columns, self.unit_columns) for p in self.problem.projections]
        begin = group * sum(units) // self.groups
        end = (group + 1) * sum(units) // self.groups
        start = offset = 0
        for index, projection in enumerate(self.problem.projections):
            first = max(begin - start, 0) * self.unit_columns
            last = min((end - start) * self.unit_columns, projection.columns)
            start += units[index]
            if last <= first:
                continue
            yield Piece(index, first, last - first, offset)
            offset += round_up(last - first, _BLOCK_FLOATS)

    def tasks_of(self, core: int) -> range:
        """The tasks of a vector core."""
        return tasks_of(core, self.blocks, self.tasks)

    def rows_of(self, task: int) -> int:
        """Rows of a task; the last block may be shorter."""
        first = task // self.groups * self.rows_per_task
        return min(self.rows_per_task, self.problem.rows - first)


def problem_of(
    attributes: Mapping[str, Any], dtypes: Mapping[str, int], shapes: Mapping[str, Sequence[int]]
) -> Problem:
    """The problem of a fused node: its attributes, and element types and static shapes of its operands by name."""
    summands = [name for name in SUMMANDS if name in dtypes]
    whole = sum_shape([tuple(shapes[name]) for name in summands])
    element, projections = dtypes[summands[0]], []
    for index in range(attributes["num_projections"]):
        transposed = bool(attributes["transposed"][index])
        columns = shapes[f"w{index + 1}"][0 if transposed else 1]
        projections.append(Projection(columns, transposed, f"b{index + 1}" in dtypes))
    return Problem(
        rows=prod(whole[:-1]),
        hidden=whole[-1],
        projections=tuple(projections),
        element_bytes=_BYTES[element],
        gamma_bytes=_BYTES[dtypes["gamma"]] if "gamma" in dtypes else 0,
        beta_bytes=_BYTES[dtypes["beta"]] if "beta" in dtypes else 0,
        widens_bias=element == ELEMENT_TYPES["bfloat16"] and ("norm" in attributes or any(p.bias for p in projections)),
        normalized="normalized" in dtypes,
        norm="norm" in attributes,
        periods=tuple(period_of(tuple(shapes[name]), whole) for name in summands) if len(summands) > 1 else (),
        keeps_sum="sum" in dtypes,
    )


def refusal(problem: Problem) -> str | None:
    """Why the kernel cannot take the problem, or None where it can."""
    if not 1 <= len(problem.projections) <= MAX_PROJECTIONS:
        return "one to four projections"
    if not 1 <= problem.hidden <= _MAX_STRIDE - _FRACTAL:
        return "hidden size from 1 to 65519: a row stride of the cube has 16 bits"
    if problem.rows > (2**31 - 1) // 2 or problem.rows * problem.hidden > 2**36:
        return "fewer than 2^30 rows and at most 2^36 elements"
    if problem.rows and not all(problem.periods):
        return "summands with the rows of the sum, or fewer that repeat in order"
    for p in problem.projections:
        if p.columns < 1 or p.columns > (2**31 - 1) // 2 or (not p.transposed and p.columns > _MAX_STRIDE):
            return "projections of 1 to 65535 columns: a row stride of the cube has 16 bits"
    return None


def plan(problem: Problem, chip: Platform) -> Plan:
    """The tiling of a problem that is not refused."""
    size = problem.element_bytes
    unit = min(_MAX_UNIT, round_up(problem.widest, 2 * _FRACTAL))
    units = sum(ceil_div(p.columns, unit) for p in problem.projections)
    rows, groups = rows_and_groups(units, unit, chip.cube_cores, partial(_estimate, problem, chip))
    pitch = round_up(problem.hidden, _FRACTAL) if problem.norm else problem.hidden
    bias_offset = rows * pitch * size if problem.norm else 0
    bias_columns = ceil_div(units, groups) * unit if problem.widens_bias else 0
    tasks = ceil_div(problem.rows, rows) * groups
    return Plan(
        problem=problem,
        blocks=max(1, min(chip.cube_cores, tasks)),
        rows_per_task=rows,
        groups=groups,
        unit_columns=unit,
        chunk_columns=_chunk_columns(problem, chip) if problem.norm else unit * problem.widens_bias,
        slot_pitch=pitch,
        bias_offset=bias_offset,
        slot_bytes=round_up(bias_offset + 4 * bias_columns, _SLOT_ALIGNMENT),
        cube=cube_tiling(rows, problem.hidden, unit, size, problem.any_bias, chip),
    )


def predict(tiling: Plan) -> Prediction:
    """What one launch with this tiling moves and holds."""
    problem = tiling.problem
    counts = _Counts()
    for core in range(2 * tiling.blocks):
        counts.add_core(tiling, core)
    outputs = problem.rows * sum(p.columns for p in problem.projections) * problem.element_bytes
    kept = (problem.normalized + problem.keeps_sum) * problem.rows * problem.hidden * problem.element_bytes
    bias_bytes = 2 if problem.element_bytes == 2 and not problem.widens_bias else 4
    peaks = tiling.cube.peaks(problem.element_bytes, bias_bytes if problem.any_bias else 0)
    return counts.prediction(_input_bytes(problem), outputs + kept, _ub_bytes(tiling), peaks)


class _Counts(Counts):
    """Those of the kernel, core by core."""

    def add_core(self, tiling: Plan, core: int) -> None:
        problem, size = tiling.problem, tiling.problem.element_bytes
        shaped_for = most_rows = 0
        widened: set[tuple[int, int]] = set()
        self.messages += 1  # End
        for count, task in enumerate(tiling.tasks_of(core)):
            rows, pieces = tiling.rows_of(task), tiling.pieces[task % tiling.groups]
            row_bytes = rows * problem.hidden * size
            most_rows = max(most_rows, rows)
            if problem.norm:
                self._add_norm(tiling, row_bytes, count == 0)
            for piece in pieces:
                columns = problem.projections[piece.projection].columns
                self.messages += 1 + (columns != shaped_for)
                shaped_for = columns
                self.tensor_read += problem.hidden * piece.columns * size
                loads_of_a = tiling.cube.loads_of_a(piece.columns)
                if problem.norm:
                    self.workspace_read += row_bytes * loads_of_a
                else:
                    self.tensor_read += row_bytes * loads_of_a
                if problem.projections[piece.projection].bias:
                    self._add_bias(piece, size, widened if problem.widens_bias else None)
        self.footprint += (most_rows * problem.hidden * size if problem.norm else 0) + 4 * _union(widened)

    def _add_norm(self, tiling: Plan, row_bytes: int, first: bool) -> None:
        """Rows of a task are normalised into the slot; gamma and beta stay on chip where a row is there whole."""
        problem = tiling.problem
        affine = problem.hidden * (problem.gamma_bytes + problem.beta_bytes)
        self.tensor_read += row_bytes * max(1, len(problem.periods)) * (1 if tiling.row_fits else 2)
        self.tensor_read += affine if first or not tiling.row_fits else 0
        self.workspace_written += row_bytes

    def _add_bias(self, piece: Piece, size: int, widened: set[tuple[int, int]] | None) -> None:
        """A bias is read by the cube; a bfloat16 one by a vector core first, which leaves floats in the slot."""
        self.tensor_read += piece.columns * size
        if widened is not None:
            self.workspace_written += piece.columns * 4
            self.workspace_read += piece.columns * 4
            widened.add((piece.slot_offset, piece.slot_offset + piece.columns))


def _union(intervals: set[tuple[int, int]]) -> int:
    """How many integers lie in some interval [begin, end)."""
    total = reached = 0
    for begin, end in sorted(intervals):
        total += max(0, end - max(begin, reached))
        reached = max(reached, end)
    return total


def _input_bytes(problem: Problem) -> int:
    affine = problem.hidden * (problem.gamma_bytes + problem.beta_bytes)
    weights = sum(p.columns * (problem.hidden + p.bias) for p in problem.projections)
    rows = sum(period or 0 for period in problem.periods) if problem.is_sum else problem.rows
    return (rows * problem.hidden + weights) * problem.element_bytes + affine


def _ub_bytes(tiling: Plan) -> int:
    if not tiling.problem.norm:
        return tiling.chunk_columns * (_TILES * tiling.problem.element_bytes + 4)
    statistics = 0 if tiling.row_fits else tiling.rows_per_task * _STATISTICS_BYTES
    return tiling.chunk_columns * _bytes_per_column(tiling.problem) + _SMALL_BYTES + statistics


def _bytes_per_column(problem: Problem) -> int:
    return 2 * _TILES * problem.element_bytes + 4 * (2 + bool(problem.gamma_bytes) + bool(problem.beta_bytes))


def _chunk_columns(problem: Problem, chip: Platform) -> int:
    whole = round_up(problem.hidden, _FRACTAL)
    if whole * _bytes_per_column(problem) + _SMALL_BYTES <= chip.ub:
        return whole
    free = chip.ub - _SMALL_BYTES - MAX_ROWS * _STATISTICS_BYTES
    most = free // _bytes_per_column(problem) // _LANE * _LANE
    return round_up(ceil_div(problem.hidden, ceil_div(problem.hidden, most)), _LANE)


def _estimate(problem: Problem, chip: Platform, rows: int, groups: int, columns: int) -> tuple[int, int]:
    """Cycles on the busiest core, and bytes into L1 of all tasks together."""
    tasks = ceil_div(problem.rows, rows) * groups
    cube = rows * columns * problem.hidden // (4096 if problem.element_bytes == 2 else 1024)
    loaded = (rows + columns) * problem.hidden * problem.element_bytes
    instructions = _ROW_INSTRUCTIONS + _SUMMAND_INSTRUCTIONS * max(0, len(problem.periods) - 1)
    row_cycles = problem.norm * instructions * (ceil_div(problem.hidden, _LANE) + _START_UP)
    busiest = ceil_div(tasks, chip.cube_cores) * max(cube, loaded // _LOAD_BYTES)
    vector = ceil_div(tasks, 2 * chip.cube_cores) * min(rows, problem.rows) * row_cycles
    return busiest + vector, tasks * loaded
