"""Tiling of the `linear` and `layer_norm_linear` kernels and the bytes that they move.

`plan` computes what `kernels/linear/linear_host.h.j2` computes on the host of the chip; `predict` counts what a kernel
moves and holds then, to the byte, as the twin counts it. Integers only, so that both sides agree.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from atcfuse.rule.types import ELEMENT_TYPES
from atcfuse.tiling import Platform, ceil_div, round_up
from atcfuse.tiling.activations import activation
from atcfuse.tiling.cube import CubeTiling, cube_tiling

_TILES = 2  # buffers of a vector queue
_MAX_ROWS = 128
_MAX_UNIT = 256
_MAX_STRIDE = 65535
_MAX_COUNT = (2**31 - 1) // 2
_MAX_ELEMENTS = 2**36
_FRACTAL = 16
_LANE = 64
_SLOT_ALIGNMENT = 512
_MAX_TILE_COLUMNS = 512
_LEAST_TILE, _MOST_TILE = 2_048, 8_192
_SMALL_BYTES = 320
_STATISTICS_BYTES = 64
_MESSAGE_BYTES = 128
_LOAD_BYTES = 32  # into L1, a cycle
_START_UP = 16  # cycles of a vector instruction beside its repeats
_NORM_INSTRUCTIONS = 25
_CASTS = 2  # to float32 and back
_BYTES = {ELEMENT_TYPES[name]: size for name, size in (("float32", 4), ("float16", 2), ("bfloat16", 2))}


@dataclass(frozen=True)
class Problem:
    """One node: x is [rows, hidden] once its leading dims are folded, y [rows, columns].

    `element_bytes` is of all but gamma and beta, whose `gamma_bytes` and `beta_bytes` are 0 where there are none.
    `brain` holds for bfloat16, whose biases the cube does not take. `prologue` is an activation of x or "none", `norm`
    "layer_norm", "rms_norm" or "" for none; only one of the two.
    """

    rows: int
    hidden: int
    columns: int
    transposed: bool = False
    element_bytes: int = 2
    brain: bool = False
    bias: bool = False
    scaled: bool = False
    activation: str = "none"
    gain: bool = False
    residual: bool = False
    residual2: bool = False
    prologue: str = "none"
    norm: str = ""
    gamma_bytes: int = 0
    beta_bytes: int = 0
    normalized: bool = False

    @property
    def cube_bias(self) -> bool:
        """Whether the cube adds the bias."""
        return self.bias and not self.brain

    @property
    def vectors(self) -> tuple[str, ...]:
        """The row vectors that vector cores apply to the product."""
        return ("bias",) * (self.bias and self.brain) + ("gain",) * self.gain

    @property
    def residuals(self) -> int:
        """How many values of the result's shape are added to it."""
        return self.residual + self.residual2

    @property
    def finishes(self) -> bool:
        """Whether the product goes through the workspace to a vector core."""
        return bool(self.vectors) or self.scaled or self.activation != "none" or self.residuals > 0

    @property
    def prepares(self) -> bool:
        """Whether rows go through the workspace to the cube."""
        return bool(self.norm) or self.prologue != "none"

    @property
    def tiled(self) -> bool:
        """Whether vector cores work on tiles beside whole rows."""
        return self.finishes or self.prologue != "none"

    @property
    def scratch(self) -> int:
        """Float planes beside a tile."""
        narrow = self.residuals and self.element_bytes < 4
        return max(activation(self.prologue).scratch, activation(self.activation).scratch, int(bool(narrow)))

    @property
    def temporary(self) -> int:
        """Bytes that activations ask for whatever the tile."""
        return max(activation(self.prologue).temporary, activation(self.activation).temporary)

    @property
    def tile_bytes(self) -> int:
        """UB bytes of a tile's element: loaded tiles and results double-buffered, float planes."""
        if not self.tiled:
            return 0
        return _TILES * self.element_bytes * (2 + self.residuals) + 4 * (1 + self.scratch)

    @property
    def row_instructions(self) -> int:
        """Vector instructions that an element of x passes before the product."""
        if self.norm:
            return _NORM_INSTRUCTIONS
        return _CASTS + activation(self.prologue).passes if self.prologue != "none" else 0

    @property
    def tile_instructions(self) -> int:
        """Vector instructions that an element of the product passes."""
        if not self.finishes:
            return 0
        residual = self.residuals * (2 if self.element_bytes < 4 else 1)
        return _CASTS + len(self.vectors) + self.scaled + activation(self.activation).passes + residual

    @property
    def column_bytes(self) -> int:
        """UB bytes of a column while rows are normalised."""
        return 2 * _TILES * self.element_bytes + 4 * (2 + bool(self.gamma_bytes) + bool(self.beta_bytes))


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
        """The tasks of a vector core. The second core of each cube core comes after all first ones."""
        return range(core % 2 * self.blocks + core // 2, self.tasks, 2 * self.blocks)

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


@dataclass(frozen=True)
class Prediction:
    """Bytes a launch moves and holds, named as in the twin's report."""

    compulsory_bytes: int
    tensor_bytes_read: int
    tensor_bytes_written: int
    workspace_bytes_read: int
    workspace_bytes_written: int
    workspace_footprint: int
    messages: int
    message_bytes: int
    ub: int
    l1: int
    l0a: int
    l0b: int
    l0c: int


def problem_of(
    attributes: Mapping[str, Any], dtypes: Mapping[str, int], shapes: Mapping[str, Sequence[int]]
) -> Problem:
    """The problem of a fused node: its attributes, and element types and static shapes of its operands by name."""
    *leading, hidden = shapes["x"]
    transposed = bool(attributes["transposed"])
    return Problem(
        rows=prod(leading),
        hidden=hidden,
        columns=shapes["w"][0 if transposed else 1],
        transposed=transposed,
        **features(attributes, dtypes),
    )


def features(attributes: Mapping[str, Any], dtypes: Mapping[str, int]) -> dict[str, Any]:
    """The fields of a problem that do not depend on shapes."""
    return {
        "element_bytes": _BYTES[dtypes["x"]],
        "brain": dtypes["x"] == ELEMENT_TYPES["bfloat16"],
        **{name: name in dtypes for name in ("bias", "gain", "residual", "residual2", "normalized")},
        "scaled": float(attributes["scale"]) != 1.0,
        "activation": str(attributes["activation"]),
        "prologue": str(attributes.get("prologue", "none")),
        "norm": str(attributes.get("norm", "")),
        **{f"{name}_bytes": _BYTES[dtypes[name]] if name in dtypes else 0 for name in ("gamma", "beta")},
    }


def refusal(problem: Problem, chip: Platform) -> str | None:
    """Why the kernel cannot take the problem on a chip, or None where it can."""
    return too_large(problem) or no_room(plan(problem, chip))


def no_room(tiling: Plan) -> str | None:
    """Why a chip's UB is too small for a tiling, or None where it is not."""
    problem = tiling.problem
    if (problem.norm and not tiling.chunk_columns) or (problem.tiled and tiling.tile_elements < tiling.tile_columns):
        return "a unified buffer that holds a row of a tile"
    return None


def too_large(problem: Problem) -> str | None:
    """Why the kernel cannot take sizes on any chip, or None where it can."""
    if not 1 <= problem.hidden <= _MAX_STRIDE - _FRACTAL:
        return "hidden size from 1 to 65519: a row stride of the cube has 16 bits"
    if not 1 <= problem.columns <= (_MAX_COUNT if problem.transposed else _MAX_STRIDE):
        return "projections of 1 to 65535 columns: a row stride of the cube has 16 bits"
    widest = max(problem.hidden, problem.columns)
    if problem.rows > _MAX_COUNT or problem.rows * widest > _MAX_ELEMENTS:
        return "fewer than 2^30 rows and at most 2^36 elements"
    return None


def plan(problem: Problem, chip: Platform) -> Plan:
    """The tiling of a problem of possible sizes; without columns or tiles where the chip's UB has no room for them."""
    size = problem.element_bytes
    unit = min(_MAX_UNIT, round_up(problem.columns, 2 * _FRACTAL))
    units = ceil_div(problem.columns, unit)
    rows, groups = _split(problem, chip, units, unit)
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
    return Prediction(
        compulsory_bytes=_input_bytes(problem) + outputs,
        tensor_bytes_read=counts.tensor_read,
        tensor_bytes_written=outputs,
        workspace_bytes_read=counts.workspace_read,
        workspace_bytes_written=counts.workspace_written,
        workspace_footprint=counts.footprint,
        messages=counts.messages,
        message_bytes=counts.messages * _MESSAGE_BYTES,
        ub=tiling.ub,
        **tiling.cube.peaks(size, size if problem.cube_bias else 0),
    )


@dataclass
class _Counts:
    """Sums over the vector cores."""

    tensor_read: int = 0
    workspace_read: int = 0
    workspace_written: int = 0
    footprint: int = 0
    messages: int = 0

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
        vectors = problem.bias + problem.gain
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
    vectors = problem.columns * (problem.bias + problem.gain)
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
    free = ub - _SMALL_BYTES - _MAX_ROWS * _STATISTICS_BYTES
    most = free // problem.column_bytes // _LANE * _LANE
    if most < _LANE:
        return 0
    return round_up(ceil_div(problem.hidden, ceil_div(problem.hidden, most)), _LANE)


def _split(problem: Problem, chip: Platform, units: int, unit: int) -> tuple[int, int]:
    """Rows of a task and groups of columns: the fewest bytes among what is at most a quarter slower than possible."""
    candidates = [
        (rows, groups, *_estimate(problem, chip, rows, groups, ceil_div(units, groups) * unit))
        for rows in range(_MAX_ROWS, 0, -_FRACTAL)
        for groups in range(1, min(units, 2 * chip.cube_cores) + 1)
    ]
    fastest = min(cycles for _, _, cycles, _ in candidates)
    affordable = [c for c in candidates if c[2] <= fastest + fastest // 4]
    rows, groups, _, _ = min(affordable, key=lambda c: c[3])
    return rows, groups


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
