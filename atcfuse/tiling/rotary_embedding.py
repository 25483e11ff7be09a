"""Tiling of the `rotary_embedding` kernel and the bytes that it moves.

`plan` computes what the kernel's own `rotary_embedding_host.h.j2` computes on the host of the chip; `predict` counts
what the kernel then moves and holds, to the byte, as the twin counts it. Integers only, so that both sides agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from atcfuse.tiling import Platform, Prediction, ceil_div, round_up

MAX_PITCH = 2040
"""Floats of a row of a plane: a repeat stride of 8 bits, in blocks of 8."""
_MAX_REPEAT = 255
_MIN_ROWS = 16
_MAX_COUNT = (2**31 - 1) // 2
_BLOCK = 32
_MAX_GAP = 65535
_EIGHT = 8
_ROOT_BYTES = 4 * (1 + _EIGHT)
"""The root of a row's mean square as float, and once more for each float of a block."""


@dataclass(frozen=True)
class Signature:
    """What a kernel is compiled for: elements of a vector, how many are rotated, which make pairs, element sizes.

    `whole_blocks` holds for Ascend310P, whose copies move blocks of 32 bytes only. `normed` operands are normalised
    first, by scales whose elements have `gamma_bytes`; `shifts` holds where there is a shift beside each, `by_head`
    where every head has its own, `centred` where means are taken away.
    """

    head_dim: int
    rotary_dim: int
    interleaved: bool
    element_bytes: int
    angle_bytes: int
    whole_blocks: bool = False
    normed: int = 0
    gamma_bytes: int = 0
    shifts: bool = False
    by_head: bool = False
    centred: bool = False

    @property
    def planes(self) -> int:
        """Planes of a result, and of cosines or sines: both halves of a rotation apart, neighbours together."""
        return 1 if self.interleaved else 2

    @property
    def loaded(self) -> int:
        """Planes of an operand as loaded: neighbours come with both their shifted copies."""
        return 3 if self.interleaved else 2

    @property
    def width(self) -> int:
        """Columns of a plane."""
        return self.rotary_dim // self.planes

    @property
    def pitch(self) -> int:
        """Elements from a row of a plane to the next: whole blocks of every element type."""
        return round_up(self.width, 16)

    @property
    def rest_pitch(self) -> int:
        """The same for the elements that are not rotated, 0 where there are none."""
        return round_up(self.head_dim - self.rotary_dim, 16 if self.normed else _BLOCK // self.element_bytes)

    @property
    def float_planes(self) -> int:
        """Planes of floats: neighbours that are normalised take one more for their squares."""
        return 5 if self.normed and self.interleaved else 4

    @property
    def vectors(self) -> int:
        """Scales and shifts of an operand."""
        return 1 + self.shifts

    @property
    def scale_row(self) -> int:
        """Elements of a scale on chip: planes as an operand is loaded, and what is not rotated."""
        return self.loaded * self.pitch + self.rest_pitch

    @property
    def bytes_per_row(self) -> int:
        """UB bytes of a row: operand and result double-buffered, float planes, what is not rotated, its root."""
        buffers = 2 * (self.loaded + self.planes) * self.element_bytes + 4 * self.float_planes
        rest = 4 * self.element_bytes + 4 if self.normed else 2 * self.element_bytes
        return buffers * self.pitch + self.rest_pitch * rest + (_ROOT_BYTES if self.normed else 0)

    @property
    def bytes_per_angles(self) -> int:
        """UB bytes of a row of cosines and sines, as loaded and as float."""
        return 2 * self.planes * self.pitch * (self.angle_bytes + 4)

    @property
    def gammas_bytes(self) -> int:
        """UB bytes of the scales and shifts of all normalised operands as float, and of one as loaded."""
        return self.scale_row * (4 * self.normed * self.vectors + self.gamma_bytes) if self.normed else 0

    @property
    def bytes_of_norm(self) -> int:
        """UB bytes of scales, and of roots of rows that fill up the last eight of a tile."""
        return self.gammas_bytes + (_EIGHT - 1) * _ROOT_BYTES if self.normed else 0

    @property
    def scales(self) -> list[tuple[str, int]]:
        """Scales and shifts by name, each with the operand that it belongs to."""
        kinds = ("gamma", "beta")[: self.vectors]
        return [(f"{name}_{kind}", k) for kind in kinds for k, name in enumerate("qk"[: self.normed])]

    @property
    def read_elements(self) -> int:
        """Elements of a vector that are read, shifted copies included."""
        rotated = 3 * self.rotary_dim - 2 if self.interleaved else self.rotary_dim
        return rotated + self.head_dim - self.rotary_dim


@dataclass(frozen=True)
class Problem:
    """Shapes of the results of q and k (k may be missing) and of cos, all as [batch, second, third, width].

    `transposed` tells which operands lie as [batch, third, second, width] in memory. `packed` has for each operand the
    elements of a row in memory and from one head to the next where rows hold more than its heads, else None.
    """

    of: Signature
    results: tuple[tuple[int, int, int], ...]
    angles: tuple[int, int, int]
    transposed: tuple[bool, ...]
    packed: tuple[tuple[int, int] | None, ...] = (None, None)

    @property
    def row_axis(self) -> int:
        """The axis of rows, counted from the last one: where the angles change, equally long in q and k; 0 for none."""
        _, second, third = self.angles
        same1 = len({r[2] for r in self.results}) == 1
        same2 = len({r[1] for r in self.results}) == 1
        if same1 and (third != 1 or second == 1 or not same2):
            return 1
        return 2 if same2 else 0

    @property
    def batches(self) -> int:
        """Extent of the first axis."""
        return self.results[0][0]

    @property
    def rows(self) -> int:
        """Extent of the axis of rows."""
        return self.results[0][3 - self.row_axis]

    @property
    def heads(self) -> int:
        """Extents of the other axis, q's and k's together."""
        return sum(r[self.row_axis] for r in self.results)

    @property
    def own_angles(self) -> bool:
        """Whether rows have angles of their own."""
        return self.angles[3 - self.row_axis] != 1

    @property
    def angles_by_head(self) -> bool:
        """Whether heads have angles of their own."""
        return self.angles[self.row_axis] != 1


@dataclass(frozen=True)
class Plan:
    """Rows of a tile, groups of heads and tasks over cores."""

    problem: Problem
    rows_per_tile: int
    row_blocks: int
    groups: int
    tasks: int
    blocks: int

    @property
    def angle_rows(self) -> int:
        """Rows of cosines and sines on chip."""
        return self.rows_per_tile if self.problem.own_angles else 1


def problem_of(
    of: Signature,
    layouts: Sequence[str],
    heads: Sequence[int],
    steps: Sequence[int],
    shapes: Sequence[Sequence[int]],
) -> Problem:
    """The problem of a node: shapes of q, k where there is one, and cos."""
    *operands, cos = shapes
    results = []
    for shape, layout, count in zip(operands, layouts, heads, strict=True):
        if layout == "BSH":
            results.append((shape[0], count, shape[1]))
        elif layout == "BSND":
            results.append((shape[0], shape[2], shape[1]))
        else:
            results.append(_padded(shape))
    packed = tuple((shape[-1], step) if step else None for shape, step in zip(operands, steps, strict=True))
    return Problem(of, tuple(results), _padded(cos), tuple(layout != "as_is" for layout in layouts), packed)


def _padded(shape: Sequence[int]) -> tuple[int, int, int]:
    first, second, third = ((1, 1, 1, *shape[:-1]))[-3:]
    return first, second, third


def refusal(problem: Problem, chip: Platform) -> str | None:
    """Why the kernel cannot take the problem, or None where it can."""
    if not problem.row_axis or len({r[0] for r in problem.results}) > 1:
        return "q and k need the same batch and the same number of positions"
    vectors = problem.batches * problem.rows
    if max(vectors, problem.heads, vectors * problem.heads) > _MAX_COUNT:
        return "there are more than 2^30 vectors"
    if problem.of.whole_blocks and _largest_step(problem) > _MAX_GAP:
        return "rows lie more than 2 MB apart"
    if problem.of.whole_blocks and any(
        row * problem.of.element_bytes % _BLOCK for row, _ in filter(None, problem.packed)
    ):
        return "rows do not lie whole blocks of 32 bytes apart"
    if problem.of.by_head and problem.row_axis != 1:
        return "where heads have scales of their own, angles must change along the axis behind them"
    return "a vector does not fit the unified buffer" if _most_rows(problem, chip) < 1 else None


def _largest_step(problem: Problem) -> int:
    """Blocks of 32 bytes from one row to the next, at most."""
    of, steps = problem.of, [0]
    places = zip(problem.results, problem.transposed, problem.packed, strict=False)
    for (_, second, third), transposed, packed in places:
        plain = (1, third)[problem.row_axis - 1] * of.head_dim
        given = (second, 1)[problem.row_axis - 1] * of.head_dim if transposed else plain
        given = packed[problem.row_axis - 1] if packed else given
        steps += [plain * of.element_bytes // _BLOCK, given * of.element_bytes // _BLOCK]
    if problem.own_angles:
        step = (1, problem.angles[2])[problem.row_axis - 1] * of.rotary_dim
        steps.append(step * of.angle_bytes // _BLOCK)
    return max(steps)


def _most_rows(problem: Problem, chip: Platform) -> int:
    of = problem.of
    room = max(0, chip.ub - of.bytes_of_norm)
    if problem.own_angles:
        return min(_MAX_REPEAT, room // (of.bytes_per_row + of.bytes_per_angles))
    return min(_MAX_REPEAT, max(0, room - of.bytes_per_angles) // of.bytes_per_row)


def plan(problem: Problem, chip: Platform) -> Plan:
    """The tiling of a problem that is not refused: large tiles, and as many tasks as there are cores."""
    batches, heads = problem.batches, problem.heads
    rows = max(1, min(_most_rows(problem, chip), problem.rows))
    while rows > _MIN_ROWS and batches * ceil_div(problem.rows, rows) * heads < chip.vector_cores:
        rows = ceil_div(rows, 2)
    row_blocks = ceil_div(problem.rows, rows)
    groups = max(1, min(heads, ceil_div(chip.vector_cores, max(1, batches * row_blocks))))
    tasks = batches * row_blocks * groups if heads else 0
    return Plan(problem, rows, row_blocks, groups, tasks, max(1, min(chip.vector_cores, tasks)))


def _scale_loads(tiling: Plan, operand: int) -> int:
    """How often an operand's scale is read: once by each core, or once for every head of a task."""
    problem = tiling.problem
    if not problem.of.by_head:
        return tiling.blocks * min(1, tiling.tasks)
    return problem.batches * tiling.row_blocks * problem.results[operand][1]


def predict(tiling: Plan) -> Prediction:
    """What one launch with this tiling moves and holds."""
    problem, of = tiling.problem, tiling.problem.of
    reads, writes = {}, {}
    for name, result in zip("qk", problem.results, strict=False):
        vectors = result[0] * result[1] * result[2]
        reads[name] = vectors * of.read_elements * of.element_bytes
        writes[f"{name}_rotated"] = vectors * of.head_dim * of.element_bytes
    loads = problem.heads if problem.angles_by_head else min(tiling.groups, problem.heads)
    rows = problem.rows if problem.own_angles else tiling.row_blocks
    angles = problem.batches * loads * rows * of.rotary_dim * of.angle_bytes
    gammas = {name: _scale_loads(tiling, k) * of.read_elements * of.gamma_bytes for name, k in of.scales}
    filling = round_up(tiling.rows_per_tile, _EIGHT) - tiling.rows_per_tile
    norm = {"norm": of.gammas_bytes + filling * _ROOT_BYTES} if of.normed else {}
    buffers = {
        "rows": tiling.rows_per_tile * of.bytes_per_row,
        "angles": tiling.angle_rows * of.bytes_per_angles,
        **norm,
    }
    return Prediction(
        form="neighbours" if of.interleaved else "halves",
        blocks=tiling.blocks,
        parameters={"rows": tiling.rows_per_tile, "groups": tiling.groups, "tasks": tiling.tasks},
        reads={**reads, "cos": angles, "sin": angles, **gammas},
        writes=writes,
        workspace_read=0,
        workspace_written=0,
        workspace_footprint=0,
        workspace_bytes=0,
        messages=0,
        buffers=buffers,
        peak={"ub": sum(buffers.values()), "l1": 0, "l0a": 0, "l0b": 0, "l0c": 0},
    )
