"""Tiling of the `elementwise` kernel and the bytes that it moves, equal to `elementwise_host.h.j2`.

The result is [batches, rows, columns]: its trailing axes are columns where an input is a row or a column, otherwise all
elements are columns of one row; there is one batch where no input tells batches apart. A tile is some whole rows of one
batch, or a chunk of one row; never a chunk where rows are reduced.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from atcfuse.elementwise.footprint import BITS_UNIT, COLUMN_ROWS, Needs
from atcfuse.tiling import Platform, VectorPrediction, ceil_div, round_up

LANES = 64
"""Rows begin at multiples of so many elements in UB, and comparisons take as many at once."""
RAGGED = 32
"""On 310P copies move so many elements at once, whatever their type."""
_LEAST_ELEMENTS = 2048
_MOST_ROWS = 4095
MOST_COUNT = 2**31 - 1


@dataclass(frozen=True)
class Problem:
    """One node: `spread` means that a value is a row or a column. Element bytes of inputs by kind, and of outputs, with
    those that are columns apart. `rows` are those of a batch.
    """

    rows: int
    columns: int
    spread: bool
    full: tuple[int, ...]
    row: tuple[int, ...]
    column: tuple[int, ...]
    scalar: tuple[int, ...]
    outputs: tuple[int, ...]
    needs: Needs
    column_outputs: tuple[int, ...] = ()
    pads: bool = True
    batches: int = 1
    matrix: tuple[int, ...] = ()
    batch_row: tuple[int, ...] = ()
    shared_column: tuple[int, ...] = ()
    batch_scalar: tuple[int, ...] = ()

    @property
    def empty(self) -> bool:
        """Whether there is nothing to compute: an empty cache is a size."""
        return self.batches < 1 or self.rows < 1 or self.columns < 1

    @property
    def all_rows(self) -> int:
        """The rows of all batches."""
        return self.batches * self.rows


@dataclass(frozen=True)
class Plan:
    """Tiles of `tile_rows` rows by `chunk` columns, every row `pitch` elements in UB; tasks dealt out in ranges."""

    problem: Problem
    chunk: int
    pitch: int
    tile_rows: int
    row_blocks: int
    chunks: int
    per_core: int
    blocks: int

    @property
    def tasks(self) -> int:
        """Tiles in all."""
        return self.row_blocks * self.problem.batches * self.chunks

    @property
    def tile(self) -> int:
        """Elements of a tile in UB."""
        return self.tile_rows * self.pitch

    def tasks_of(self, core: int) -> range:
        """The tiles of a core; the last core takes what is left."""
        last = self.tasks if core == self.blocks - 1 else (core + 1) * self.per_core
        return range(core * self.per_core, last)


def refusal(problem: Problem, chip: Platform) -> str | None:
    """Why the kernel cannot take the problem, or None where it can."""
    if problem.empty:
        return None
    if problem.all_rows > MOST_COUNT or problem.columns > MOST_COUNT:
        return "fewer than 2^31 rows and columns"
    if problem.needs.most_elements(chip.ub) < BITS_UNIT:
        return "operands and temporaries that fit on chip together"
    most = problem.needs.most_elements(chip.ub)
    if problem.needs.reduces and round_up(problem.columns, LANES) > most:
        return (
            f"rows of at most {most} columns, which must be whole on chip to be reduced: these have {problem.columns}"
        )
    if not problem.pads and problem.spread and problem.columns % RAGGED:
        return "columns in multiples of 32 where a row is broadcast: this chip copies no parts of blocks"
    if not problem.pads and problem.columns < RAGGED:
        return "at least 32 elements: this chip copies no parts of blocks"
    return None


def plan(problem: Problem, chip: Platform) -> Plan:
    """The tiling of a problem that is not refused."""
    if problem.empty:
        return Plan(problem, LANES, LANES, 1, 0, 0, 0, 1)
    most, cores = problem.needs.most_elements(chip.ub), chip.vector_cores
    rows, columns = problem.rows, problem.columns
    if not problem.spread:
        even = round_up(ceil_div(columns, cores), BITS_UNIT)
        chunk = min(max(even, _LEAST_ELEMENTS), most)
        chunk, tile_rows = min(chunk, round_up(columns, LANES)), 1
    elif round_up(columns, LANES) <= most:
        chunk = round_up(columns, LANES)
        fitting = min(most // chunk, COLUMN_ROWS if problem.needs.by_rows else _MOST_ROWS)
        tile_rows = min(max(ceil_div(problem.all_rows, cores), ceil_div(_LEAST_ELEMENTS, chunk)), fitting, rows)
    else:
        parts = ceil_div(columns, most)
        chunk, tile_rows = round_up(ceil_div(columns, parts), LANES), 1
    row_blocks, chunks = ceil_div(rows, tile_rows), ceil_div(columns, chunk)
    tasks = row_blocks * problem.batches * chunks
    per_core = ceil_div(tasks, cores)
    blocks = ceil_div(tasks, per_core)
    alone = tasks - (blocks - 1) * per_core == 1
    if not problem.pads and not problem.spread and columns % RAGGED and blocks > 1 and alone:
        blocks -= 1  # the last tile writes into the one before, so both belong to one core
    return Plan(problem, chunk, chunk, tile_rows, row_blocks, chunks, per_core, blocks)


def predict(tiling: Plan) -> VectorPrediction:
    """What one launch with this tiling moves and holds."""
    p = tiling.problem
    elements = p.all_rows * p.columns
    ragged = not p.pads and not p.spread and p.columns % RAGGED != 0
    copied = elements - p.columns % RAGGED + RAGGED if ragged else elements
    row_reads = sum(_row_columns(tiling, core) for core in range(tiling.blocks)) if p.row else 0
    read = (
        copied * (sum(p.full) + sum(p.matrix))
        + row_reads * sum(p.row)
        + p.all_rows * tiling.chunks * (sum(p.column) + sum(p.shared_column))
        + tiling.blocks * sum(p.scalar)
    )
    if p.batch_row or p.batch_scalar:
        visits = [_visits(tiling, core) for core in range(tiling.blocks)]
        read += sum(columns for _, columns in visits) * sum(p.batch_row)
        read += sum(count for count, _ in visits) * sum(p.batch_scalar)
    columns = p.all_rows * sum(p.column_outputs)
    once = _operand_bytes(p)
    written = elements * sum(p.outputs) + columns
    return VectorPrediction(once + written, read, copied * sum(p.outputs) + columns, _ub_bytes(tiling))


def _operand_bytes(p: Problem) -> int:
    rows = p.all_rows * sum(p.column) + p.rows * sum(p.shared_column) + p.batches * sum(p.batch_scalar)
    row = p.columns * (sum(p.row) + p.batches * sum(p.batch_row) + p.rows * sum(p.matrix))
    return p.all_rows * p.columns * sum(p.full) + rows + row + sum(p.scalar)


def _visits(tiling: Plan, core: int) -> tuple[int, int]:
    """How often a core comes to another batch or chunk, and the columns of the chunks where it does."""
    tasks = tiling.tasks_of(core)
    if not tasks:
        return 0, 0
    last = (tiling.chunks - 1) * tiling.problem.batches
    begin, end = tasks[0] // tiling.row_blocks, tasks[-1] // tiling.row_blocks + 1
    ragged = max(0, end - max(begin, last))
    return end - begin, (end - begin) * tiling.chunk - ragged * (tiling.chunks * tiling.chunk - tiling.problem.columns)


def _row_columns(tiling: Plan, core: int) -> int:
    """Columns of a row input that a core loads: every chunk that it works on, once."""
    tasks, blocks = tiling.tasks_of(core), tiling.row_blocks * tiling.problem.batches
    if not tasks:
        return 0
    first, last = tasks[0] // blocks, tasks[-1] // blocks
    return min((last + 1) * tiling.chunk, tiling.problem.columns) - first * tiling.chunk


def _ub_bytes(tiling: Plan) -> int:
    needs, tile = tiling.problem.needs, tiling.tile
    bits = needs.bits * round_up(ceil_div(tile, 8), 32)
    queues = 2 * tile * (needs.in_bytes + needs.out_bytes)
    return queues + tile * 4 * needs.planes + bits + needs.fixed_bytes


def fold(shape: Sequence[int], columns: int, rows: int) -> tuple[int, int, int]:
    """A result's batches, rows and columns; with 0 trailing axes all elements are columns of one row."""
    if columns == 0:
        return 1, 1, prod(shape)
    split = max(len(shape) - columns, 0)
    first = max(split - rows, 0) if rows else 0
    return prod(shape[:first]), prod(shape[first:split]), prod(shape[split:])


def broadcast(shapes: Mapping[str, Sequence[int]]) -> tuple[int, ...]:
    """The result's shape: that of all inputs together."""
    rank = max(len(s) for s in shapes.values())
    padded = [(1,) * (rank - len(s)) + tuple(s) for s in shapes.values()]
    return tuple(0 if 0 in extents else max(extents) for extents in zip(*padded, strict=True))
