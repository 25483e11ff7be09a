"""Tiling of the `scale_mask_softmax` kernel and the bytes that it moves.

`plan` computes what the kernel's own `scale_mask_softmax_host.h.j2` computes on the host of the chip; `predict` counts
what the kernel then moves and holds, to the byte, as the twin counts it. Integers only, so that both sides agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from atcfuse.tiling import Platform, Prediction, ceil_div, round_up

SMALL_BYTES = 384
"""Statistics of a row and one of them spread over eight blocks."""
_LANES = 128
_MAX_ROWS = 64
_MAX_COUNT = (2**31 - 1) // 2
_BLOCK = 32
_FLOAT_PLANES = 2


@dataclass(frozen=True)
class Signature:
    """What a kernel is compiled for: element sizes, 0 for an absent bias, and whether sums are rounded to float16.

    `whole_blocks` holds for Ascend310P, whose copies move blocks of 32 bytes only.
    """

    x_bytes: int
    out_bytes: int
    bias_bytes: int = 0
    has_mask: bool = False
    rounds_half: bool = False
    whole_blocks: bool = False

    @property
    def bytes_per_element(self) -> int:
        """UB bytes of an element of a tile: scores and result double-buffered, two float planes, bias and mask."""
        buffers = 2 * (self.x_bytes + self.out_bytes) + 4 * _FLOAT_PLANES
        return buffers + self.bias_bytes + (1 if self.has_mask else 0)

    def tile_bytes(self, count: int) -> int:
        """UB bytes of a tile of so many elements."""
        bits = round_up(count // 8, _BLOCK) if self.has_mask or self.rounds_half else 0
        return count * self.bytes_per_element + bits + SMALL_BYTES


@dataclass(frozen=True)
class Problem:
    """Shape of the scores as [first, second, rows, keys], of bias and mask as far as they have axes."""

    of: Signature
    shape: tuple[int, int, int, int]
    bias: tuple[int, ...] = ()
    mask: tuple[int, ...] = ()

    @property
    def outer(self) -> int:
        """Blocks of rows that lie one after another."""
        return self.shape[0] * self.shape[1]


@dataclass(frozen=True)
class Plan:
    """Rows of a tile and columns of a row on chip; fewer than there are where a row is read twice."""

    problem: Problem
    rows_per_tile: int
    row_blocks: int
    columns: int
    pitch: int
    tasks: int
    blocks: int

    @property
    def passes(self) -> int:
        """How often scores, bias and mask are read."""
        return 1 if self.columns >= self.problem.shape[3] else 2


def problem_of(of: Signature, x: Sequence[int], bias: Sequence[int] = (), mask: Sequence[int] = ()) -> Problem:
    """The problem of a node by the shapes of its operands."""
    first, second, rows, keys = (1, 1, 1, *x)[-4:]
    return Problem(of, (first, second, rows, keys), tuple(bias), tuple(mask))


def refusal(problem: Problem, chip: Platform) -> str | None:
    """Why the kernel cannot take the problem, or None where it can."""
    of, (_, _, rows, keys) = problem.of, problem.shape
    given = [s for s in (problem.bias, problem.mask) if s]
    if any(s[-1] != keys for s in given):
        return "the last axis of bias and mask must be that of the scores"
    if not 1 <= keys <= _MAX_COUNT or problem.outer * rows > _MAX_COUNT:
        return "the last axis must not be empty, and there may be at most 2^30 rows and columns"
    sizes = (of.x_bytes, of.out_bytes, of.bias_bytes, 1 if of.has_mask else 0)
    if of.whole_blocks and any(keys * size % _BLOCK for size in sizes):
        return "on Ascend310P rows must fill blocks of 32 bytes"
    if of.tile_bytes(_LANES) > chip.ub:
        return "not even a part of a row fits the unified buffer"
    return None


def plan(problem: Problem, chip: Platform) -> Plan:
    """The tiling of a problem that is not refused: large tiles, and as many tasks as there are cores."""
    of, (_, _, rows, keys) = problem.of, problem.shape
    whole = pitch = round_up(keys, _LANES)
    tile = 1
    if of.tile_bytes(whole) > chip.ub:
        while of.tile_bytes(pitch) > chip.ub:
            pitch -= _LANES
    else:
        tile = min(_MAX_ROWS, max(rows, 1))
        while tile > 1 and (
            of.tile_bytes(tile * whole) > chip.ub or problem.outer * ceil_div(rows, tile) < chip.vector_cores
        ):
            tile = ceil_div(tile, 2)
    blocks = ceil_div(rows, tile)
    tasks = problem.outer * blocks
    return Plan(problem, tile, blocks, min(keys, pitch), pitch, tasks, max(1, min(chip.vector_cores, tasks)))


def predict(tiling: Plan) -> Prediction:
    """What one launch with this tiling moves and holds."""
    problem, of = tiling.problem, tiling.problem.of
    rows, keys = problem.shape[2:]
    scores = problem.outer * rows * keys
    reads = {"x": scores * of.x_bytes * tiling.passes}
    for name, shape, size in (("bias", problem.bias, of.bias_bytes), ("mask", problem.mask, 1)):
        if shape:
            loaded = tiling.row_blocks if len(shape) < 2 or shape[-2] == 1 else rows
            reads[name] = problem.outer * loaded * keys * size * tiling.passes
    tile = of.tile_bytes(tiling.rows_per_tile * tiling.pitch)
    return Prediction(
        form="whole rows" if tiling.passes == 1 else "two reads",
        blocks=tiling.blocks,
        parameters={"rows": tiling.rows_per_tile, "columns": tiling.columns, "tasks": tiling.tasks},
        reads=reads,
        writes={"probs": scores * of.out_bytes},
        workspace_read=0,
        workspace_written=0,
        workspace_footprint=0,
        workspace_bytes=0,
        messages=0,
        buffers={"tile": tile},
        peak={"ub": tile, "l1": 0, "l0a": 0, "l0b": 0, "l0c": 0},
    )
