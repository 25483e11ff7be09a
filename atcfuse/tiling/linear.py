"""Tiling of the `linear` and `layer_norm_linear` kernels and the bytes that they move.

`plan` computes what `kernels/linear/linear_host.h.j2` computes on the host of the chip; `predict` counts what a kernel
moves and holds then, to the byte, as the twin counts it. Integers only, so that both sides agree.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

from atcfuse.tiling import Platform, ceil_div, round_up
from atcfuse.tiling.cube import MAX_ROWS, Counts, CubeTiling, Prediction, cube_tiling, rows_and_groups, tasks_of
from atcfuse.tiling.linear_problem import Problem, too_large

_MAX_UNIT = 256
_FRACTAL = 16
_LANE = 64
_SLOT_ALIGNMENT = 512
_MAX_TILE_COLUMNS = 512
_LEAST_TILE, _MOST_TILE = 2_048, 8_192
_SMALL_BYTES = 320
_STATISTICS_BYTES = 64
_LOAD_BYTES = 32  # into L1, a cycle
_START_UP = 16  # cycles of a vector instruction beside its repeats


@dataclass(frozen=True)
class Plan:
    """The tiling: rows by columns of a task, what the cube's buffers hold, tiles, a vector core's workspace."""

    problem: Problem
    blocks: int
    rows_per_task: int
    groups: int
    unit_columns: int
    slot_pitch: int
    product_pitch: int
    chunk_columns: int
    tile_columns: int
    tile_elements: int
    product_offset: int
    slot_bytes: int
    cube: CubeTiling

    @property
    def tasks(self) -> int:
        """Blocks of rows times groups of columns."""
        return ceil_div(self.problem.rows, self.rows_per_task) * self.groups

    @property
    def row_fits(self) -> bool:
        """Whether a row to normalise is on chip whole; otherwise x is read twice."""
        return self.chunk_columns >= self.problem.hidden

    @property
    def workspace_bytes(self) -> int:
        """User workspace that the host asks for."""
        return 2 * self.blocks * self.slot_bytes

    @property
    def ub(self) -> int:
        """Bytes of UB in use."""
        problem = self.problem
        tiles = problem.tile_bytes * self.tile_elements + problem.temporary
        return tiles + 4 * len(problem.vectors) * self.tile_columns + _norm_bytes(self)

    def tasks_of(self, core: int) -> range:
        """The tasks of a vector core."""
        return tasks_of(core, self.blocks, self.tasks)

    def rows_of(self, task: int) -> int:
        """Rows of a task; the last block may be shorter."""
        first = task // self.groups * self.rows_per_task
        return min(self.rows_per_task, self.problem.rows - first)

    def columns_of(self, task: int) -> int:
        """Columns of a task's group."""
        group, units = task % self.groups, ceil_div(self.problem.columns, self.unit_columns)
        first = group * units // self.groups * self.unit_columns
        end = (group + 1) * units // self.groups * self.unit_columns
        return min(end, self.problem.columns) - first


def refusal(problem: Problem, chip: Platform) -> str | None:
    """Why the kernel cannot take the problem on a chip, or None where it can."""
    return too_large(problem) or no_room(plan(problem, chip))


def no_room(tiling: Plan) -> str | None:
    """Why a chip's UB is too small for a tiling, or None where it is not."""
    problem = tiling.problem
    if (problem.norm and not tiling.chunk_columns) or (problem.tiled and tiling.tile_elements < tiling.tile_columns):
        return "a unified buffer that holds a row of a tile"
    return None


def plan(problem: Problem, chip: Platform) -> Plan:
    """The tiling of a problem of possible sizes; without columns or tiles where the chip's UB has no room for them."""
    size = problem.element_bytes
    unit = min(_MAX_UNIT, round_up(problem.columns, 2 * _FRACTAL))
    units = ceil_div(problem.columns, unit)
    rows, groups = rows_and_groups(units, unit, chip.cube_cores, partial(_estimate, problem, chip))
    widest = min(ceil_div(units, groups) * unit, problem.columns)
    tile_columns = min(_MAX_TILE_COLUMNS, round_up(widest, _FRACTAL))
    fixed = problem.temporary + 4 * len(problem.vectors) * tile_columns
    least = problem.tile_bytes * _LEAST_TILE + fixed if problem.tiled else 0
    chunk = _chunk_columns(problem, chip.ub - least) if problem.norm else 0
    norm = _normalising_bytes(problem, chunk, rows)
    tile = max(0, chip.ub - fixed - norm) // problem.tile_bytes // _LANE * _LANE if problem.tiled else 0
    pitch = round_up(problem.hidden, _FRACTAL) if problem.norm else problem.hidden
    product_pitch = round_up(widest, _FRACTAL)
    product_offset = round_up(rows * pitch * size, _SLOT_ALIGNMENT) if problem.prepares else 0
    product_bytes = rows * product_pitch * size if problem.finishes else 0
    tasks = ceil_div(problem.rows, rows) * groups
    return Plan(
        problem=problem,
        blocks=max(1, min(chip.cube_cores, tasks)),
        rows_per_task=rows,
        groups=groups,
        unit_columns=unit,
        slot_pitch=pitch,
        product_pitch=product_pitch,
        chunk_columns=chunk,
        tile_columns=tile_columns,
        tile_elements=min(_MOST_TILE, tile),
        product_offset=product_offset,
        slot_bytes=product_offset + round_up(product_bytes, _SLOT_ALIGNMENT),
        cube=cube_tiling(rows, problem.hidden, unit, size, problem.cube_bias, chip),
    )


def predict(tiling: Plan) -> Prediction:
    """What one launch with this tiling moves and holds."""
    problem, size = tiling.problem, tiling.problem.element_bytes
    counts = _Counts()
    for core in range(2 * tiling.blocks):
        counts.add_core(tiling, core)
    outputs = problem.rows * (problem.columns + problem.hidden * problem.normalized) * size
    peaks = tiling.cube.peaks(size, size if problem.cube_bias else 0)
    return counts.prediction(_input_bytes(problem), outputs, tiling.ub, peaks)


class _Counts(Counts):
    """Those of the kernel, core by core."""

    def add_core(self, tiling: Plan, core: int) -> None:
        problem, size = tiling.problem, tiling.problem.element_bytes
        tasks = tiling.tasks_of(core)
        self.messages += 1 + len(tasks) + (len(tasks) > 0)  # End, products, shapes
        for count, task in enumerate(tasks):
            self._add_task(tiling, tiling.rows_of(task), tiling.columns_of(task), count == 0)
        blocks = {(tiling.rows_of(task), tiling.columns_of(task)) for task in tasks}
        if problem.prepares:
            self.footprint += max((rows for rows, _ in blocks), default=0) * problem.hidden * size
        if problem.finishes:
            self.footprint += _covered(blocks) * size

    def _add_task(self, tiling: Plan, rows: int, columns: int, first: bool) -> None:
        problem, size = tiling.problem, tiling.problem.element_bytes
        operand = rows * problem.hidden * size
        loaded = operand * tiling.cube.loads_of_a(columns)
        vectors = problem.row_vectors
        self.tensor_read += (problem.hidden + vectors + rows * problem.residuals) * columns * size
        if problem.prepares:
            self.workspace_written += operand
            self.workspace_read += loaded
            self.tensor_read += operand * (1 if not problem.norm or tiling.row_fits else 2)
        else:
            self.tensor_read += loaded
        if problem.norm and (first or not tiling.row_fits):
            self.tensor_read += problem.hidden * (problem.gamma_bytes + problem.beta_bytes)
        if problem.finishes:
            self.workspace_written += rows * columns * size
            self.workspace_read += rows * columns * size


def _covered(blocks: Iterable[tuple[int, int]]) -> int:
    """The area of blocks of rows by columns that share one corner."""
    area = reached = 0
    for rows, columns in sorted(blocks, reverse=True):
        area += rows * max(0, columns - reached)
        reached = max(reached, columns)
    return area


def _input_bytes(problem: Problem) -> int:
    vectors = problem.columns * problem.row_vectors
    residual = problem.rows * problem.columns * problem.residuals
    operands = problem.rows * problem.hidden + problem.hidden * problem.columns + vectors + residual
    return operands * problem.element_bytes + problem.hidden * (problem.gamma_bytes + problem.beta_bytes)


def _norm_bytes(tiling: Plan) -> int:
    return _normalising_bytes(tiling.problem, tiling.chunk_columns, tiling.rows_per_task)


def _normalising_bytes(problem: Problem, chunk: int, rows: int) -> int:
    """UB of normalising rows in chunks of so many columns."""
    if not problem.norm:
        return 0
    statistics = 0 if chunk >= problem.hidden else rows * _STATISTICS_BYTES
    return chunk * problem.column_bytes + _SMALL_BYTES + statistics


def _chunk_columns(problem: Problem, ub: int) -> int:
    whole = round_up(problem.hidden, _FRACTAL)
    if whole * problem.column_bytes + _SMALL_BYTES <= ub:
        return whole
    free = ub - _SMALL_BYTES - MAX_ROWS * _STATISTICS_BYTES
    most = free // problem.column_bytes // _LANE * _LANE
    if most < _LANE:
        return 0
    return round_up(ceil_div(problem.hidden, ceil_div(problem.hidden, most)), _LANE)


def _estimate(problem: Problem, chip: Platform, rows: int, groups: int, columns: int) -> tuple[int, int]:
    """Cycles on the busiest core, and bytes into L1 of all tasks together."""
    tasks = ceil_div(problem.rows, rows) * groups
    cube = rows * columns * problem.hidden // (4096 if problem.element_bytes == 2 else 1024)
    loaded = (rows + columns) * problem.hidden * problem.element_bytes
    before = problem.row_instructions * (ceil_div(problem.hidden, _LANE) + _START_UP)
    behind = problem.tile_instructions * ceil_div(columns, _LANE)
    busiest = ceil_div(tasks, chip.cube_cores) * max(cube, loaded // _LOAD_BYTES)
    vector = ceil_div(tasks, 2 * chip.cube_cores) * min(rows, problem.rows) * (before + behind)
    return busiest + vector, tasks * loaded
