"""Tiling of the kernels that normalise rows, or sums of rows, on vector cores alone, and the bytes that they move.

`plan` computes what `kernels/row_norm/host.h.inc` computes on the host of the chip; `predict` counts what the kernel
then moves and holds, to the byte, as the twin counts it. Integers only, so that both sides agree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from math import lcm, prod

from atcfuse.rule.types import ELEMENT_TYPES
from atcfuse.tiling import Platform, VectorPrediction, ceil_div, round_up

SUMMANDS = ("x", "x1", "x2", "x3")
"""Operands that are added up, in order; a kernel has `x` alone or the others."""

BFLOAT16 = ELEMENT_TYPES["bfloat16"]

_BUFFERS = 2  # of a vector queue
_BLOCK_BYTES = 32
_BLOCK_FLOATS = 8
_LANE = 64
_MAX_HIDDEN = 2**20
_MAX_TILE_ROWS = 512
_LONG_ROWS = 16
_SMALL_BYTES = 320
_STATISTICS_BYTES = 64
_BYTES = {ELEMENT_TYPES[name]: size for name, size in (("float32", 4), ("float16", 2), ("bfloat16", 2))}


@dataclass(frozen=True)
class Problem:
    """One node: the sum is [rows, hidden] once its leading dims are folded.

    `periods` are the rows of each summand, which begins anew after so many, or None where they do not repeat evenly.
    `span` is how many rows have a row of gamma and beta in common, 0 for all, None where these are dealt out otherwise.
    `gated` holds where the second summand has a factor, with the rows of gamma.
    `residual` holds where a value of the sum's shape is added to the normalised rows. `element_bytes` is of
    summands and results; `gamma_bytes` and `beta_bytes` are 0 where there are none.
    `copies_blocks` holds for chips that move whole 32-byte blocks only.
    """

    rows: int
    hidden: int
    periods: tuple[int | None, ...] = (1,)
    element_bytes: int = 2
    gamma_bytes: int = 2
    beta_bytes: int = 2
    keeps_sum: bool = False
    residual: bool = False
    copies_blocks: bool = False
    span: int | None = 0
    gated: bool = False

    @property
    def made(self) -> int:
        """Results: the normalised rows, and the sum where it is kept."""
        return 2 if self.keeps_sum else 1


@dataclass(frozen=True)
class Plan:
    """The tiling: rows of a tile, elements between rows on chip (or of a chunk), summands loaded with every tile."""

    problem: Problem
    blocks: int
    rows_per_tile: int
    pitch: int
    loaded: int
    work_floats: int

    @property
    def tiles(self) -> int:
        """Tiles, dealt out to the cores in turn."""
        return ceil_div(self.problem.rows, self.rows_per_tile)

    @property
    def row_fits(self) -> bool:
        """Whether a row is on chip whole; otherwise it is read twice, in chunks."""
        return self.pitch >= self.problem.hidden

    def stays(self, summand: int) -> bool:
        """Whether a summand is one row that stays on chip."""
        return self.row_fits and summand > self.problem.gated and self.problem.periods[summand] == 1


def problem_of(
    dtypes: Mapping[str, int], shapes: Mapping[str, Sequence[int]], family: str, modulated: bool = False
) -> Problem:
    """The problem of a fused node, from element types and static shapes of its operands by name.

    `modulated` holds where gamma and beta may have several rows.
    """
    summands = [tuple(shapes[name]) for name in SUMMANDS if name in dtypes]
    whole = sum_shape(summands)
    return Problem(
        rows=prod(whole[:-1]),
        hidden=whole[-1],
        periods=tuple(period_of(shape, whole) for shape in summands),
        element_bytes=_BYTES[next(dtypes[name] for name in SUMMANDS if name in dtypes)],
        gamma_bytes=_BYTES[dtypes["gamma"]] if "gamma" in dtypes else 0,
        beta_bytes=_BYTES[dtypes["beta"]] if "beta" in dtypes else 0,
        keeps_sum="sum" in dtypes,
        residual="residual" in dtypes,
        copies_blocks=family != "910B",
        span=_common_span(shapes, whole) if modulated else 0,
        gated="gate" in dtypes,
    )


def refusal(problem: Problem, chip: Platform) -> str | None:
    """Why the kernel cannot take the problem on a chip, or None where it can."""
    if problem.copies_blocks and problem.hidden % 16:
        return "rows of a multiple of 16 columns: the chip moves whole blocks of 32 bytes"
    if not 1 <= problem.hidden <= _MAX_HIDDEN:
        return "rows of 1 to 2^20 columns"
    if problem.rows > (2**31 - 1) // 2 or problem.rows * problem.hidden > 2**36:
        return "fewer than 2^30 rows and at most 2^36 elements"
    if problem.rows and not all(problem.periods):
        return "summands with the rows of the sum, or fewer that repeat in order"
    if problem.rows and problem.span is None:
        return "a scale and a shift for each of the first axes of the sum"
    if _whole_rows(problem, chip) is None and _widest_chunk(problem, chip) < _LANE:
        return "rows of which 64 columns fit in UB"
    return None


def plan(problem: Problem, chip: Platform) -> Plan:
    """The tiling of a problem that is not refused."""
    rows, pitch, loaded, work = _whole_rows(problem, chip) or _chunks(problem, chip)
    blocks = max(1, min(chip.vector_cores, ceil_div(problem.rows, rows)))
    return Plan(problem, blocks, rows, pitch, loaded, work)


def predict(tiling: Plan) -> VectorPrediction:
    """What one launch with this tiling moves and holds."""
    problem, size = tiling.problem, tiling.problem.element_bytes
    row = problem.hidden * size
    affine = problem.hidden * (problem.gamma_bytes + problem.beta_bytes)
    active = min(tiling.blocks, tiling.tiles)
    loads = _affine_loads(tiling, active)
    gate = row if problem.gated else 0
    read = affine * loads + gate * (loads if tiling.row_fits else loads + problem.rows)
    for summand in range(len(problem.periods)):
        passes = 1 if tiling.row_fits else 2
        read += row * (active if tiling.stays(summand) else problem.rows * passes)
    added = problem.rows * row if problem.residual else 0
    read += added
    inputs = row * sum(period or 0 for period in problem.periods) + (affine + gate) * affine_rows(problem) + added
    written = problem.rows * row * problem.made
    return VectorPrediction(inputs + written, read, written, _ub_bytes(tiling))


def affine_rows(problem: Problem) -> int:
    """How many rows gamma and beta have."""
    return max(1, problem.rows // problem.span) if problem.span else 1


def _affine_loads(tiling: Plan, active: int) -> int:
    """How often a row of gamma and beta comes on chip: once a core, or where rows have their own, once a tile and
    wherever the next row's is another one within a tile.
    """
    problem = tiling.problem
    if not problem.span or problem.span >= problem.rows:
        return active if tiling.row_fits else tiling.tiles
    changes = (problem.rows - 1) // problem.span
    return tiling.tiles + changes - (problem.rows - 1) // lcm(problem.span, tiling.rows_per_tile)


def _common_span(shapes: Mapping[str, Sequence[int]], whole: tuple[int, ...]) -> int | None:
    """How many rows have a row of gamma and beta in common, None where these are not dealt out in order."""
    spans = {_span(tuple(shapes[name]), whole) for name in ("gamma", "beta", "gate") if name in shapes}
    return spans.pop() if len(spans) == 1 else None


def _span(shape: tuple[int, ...], whole: tuple[int, ...]) -> int | None:
    columns = list(zip_longest(reversed(shape), reversed(whole), fillvalue=1))
    if columns[0][0] != columns[0][1]:
        return None
    span, apart = 1, False
    for size, rows in columns[1:]:
        apart = apart or size != 1
        if apart and size != rows:
            return None
        span *= 1 if apart else rows
    return max(span, 1)


def sum_shape(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """The shape that summands broadcast to."""
    columns = zip_longest(*(reversed(shape) for shape in shapes), fillvalue=1)
    return tuple(reversed([next((size for size in sizes if size != 1), 1) for sizes in columns]))


def period_of(shape: tuple[int, ...], whole: tuple[int, ...]) -> int | None:
    """How many rows a summand has, None where they do not repeat evenly in the sum's."""
    padded = (1,) * (len(whole) - len(shape)) + shape
    if padded[-1] != whole[-1]:
        return None
    inside = True
    for size, full in zip(reversed(padded[:-1]), reversed(whole[:-1]), strict=True):
        inside = inside and size == full
        if not inside and size != 1:
            return None
    return prod(padded[:-1])


def _whole_rows(problem: Problem, chip: Platform) -> tuple[int, int, int, int] | None:
    size = problem.element_bytes
    pitch = round_up(problem.hidden, _BLOCK_BYTES // size)
    summands = len(problem.periods)
    loaded = 1 + sum(period != 1 or (problem.gated and not at) for at, period in enumerate(problem.periods[1:]))
    widens_tile = size < 4 and loaded > 1
    work = round_up(ceil_div(pitch, _LANE), _BLOCK_FLOATS)
    of_row = pitch * (_BUFFERS * (loaded + problem.made) * size + (8 if widens_tile else 4))
    once = pitch * 4 * (_vectors(problem) + summands - loaded + (not widens_tile)) + _SMALL_BYTES + 4 * work
    most = min((chip.ub - once) // of_row, _MAX_TILE_ROWS)
    if most < 1:
        return None
    waves = max(1, ceil_div(problem.rows, chip.vector_cores * most))
    return max(1, ceil_div(problem.rows, chip.vector_cores * waves)), pitch, loaded, work


def _chunks(problem: Problem, chip: Platform) -> tuple[int, int, int, int]:
    most = _widest_chunk(problem, chip)
    pitch = round_up(ceil_div(problem.hidden, ceil_div(problem.hidden, most)), _LANE)
    rows = max(1, min(_LONG_ROWS, ceil_div(problem.rows, chip.vector_cores)))
    return rows, pitch, len(problem.periods), _work_of_chunk(problem, chip)


def _widest_chunk(problem: Problem, chip: Platform) -> int:
    work = 4 * _work_of_chunk(problem, chip)
    free = chip.ub - _SMALL_BYTES - _LONG_ROWS * _STATISTICS_BYTES - work
    return max(0, free) // _of_column(problem) // _LANE * _LANE


def _work_of_chunk(problem: Problem, chip: Platform) -> int:
    return round_up(ceil_div(chip.ub // _of_column(problem), _LANE), _BLOCK_FLOATS)


def _of_column(problem: Problem) -> int:
    loaded = len(problem.periods)
    return _BUFFERS * (loaded + problem.made) * problem.element_bytes + 4 * (2 + _vectors(problem))


def _vectors(problem: Problem) -> int:
    return bool(problem.gamma_bytes) + bool(problem.beta_bytes) + problem.gated


def _ub_bytes(tiling: Plan) -> int:
    problem, size = tiling.problem, tiling.problem.element_bytes
    tile = tiling.pitch * (tiling.rows_per_tile if tiling.row_fits else 1)
    scratch = tile if size < 4 and tiling.loaded > 1 else tiling.pitch
    stays = len(problem.periods) - tiling.loaded
    planes = tile + scratch + tiling.pitch * (_vectors(problem) + stays)
    statistics = 0 if tiling.row_fits else tiling.rows_per_tile * _STATISTICS_BYTES
    queues = _BUFFERS * (tiling.loaded + problem.made) * tile * size
    return queues + 4 * planes + _SMALL_BYTES + 4 * tiling.work_floats + statistics
