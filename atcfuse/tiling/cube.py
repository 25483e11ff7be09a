"""The cube's tiling of one base block of rows whose columns are swept along N: `kernels/common/cube_tiling.inc`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from atcfuse.tiling import Platform, ceil_div, round_up

MAX_ROWS = 128
"""The most rows of a task."""
_BASE_K_BYTES = 128
_FRACTAL = 16
_MESSAGE_BYTES = 128
_L1_RESERVE = 2_048
_STREAMED_STEP = 4  # base blocks along K in L1 where A does not stay there
_BIAS_COLUMN = 4


@dataclass(frozen=True)
class Prediction:
    """Bytes that a launch of a kernel around the cube moves and holds, named as in the twin's report."""

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


@dataclass
class Counts:
    """What the vector cores of a launch move, in bytes, and the messages that they send; sums over the cores."""

    tensor_read: int = 0
    workspace_read: int = 0
    workspace_written: int = 0
    footprint: int = 0
    messages: int = 0

    def prediction(self, inputs: int, outputs: int, ub: int, peaks: Mapping[str, int]) -> Prediction:
        """All of a launch: bytes of what it takes and makes, and what its memories hold at most."""
        return Prediction(
            compulsory_bytes=inputs + outputs,
            tensor_bytes_read=self.tensor_read,
            tensor_bytes_written=outputs,
            workspace_bytes_read=self.workspace_read,
            workspace_bytes_written=self.workspace_written,
            workspace_footprint=self.footprint,
            messages=self.messages,
            message_bytes=self.messages * _MESSAGE_BYTES,
            ub=ub,
            **peaks,
        )


@dataclass(frozen=True)
class CubeTiling:
    """Base block and depths of the L1 buffers; `keeps_a` where the rows of A stay in L1 over the whole K."""

    base_m: int
    base_n: int
    base_k: int
    step_ka: int
    depth_a: int
    step_kb: int
    keeps_a: bool
    db_l0c: int

    def loads_of_a(self, columns: int) -> int:
        """How often A is read for a product of so many columns."""
        return 1 if self.keeps_a else ceil_div(columns, self.base_n)

    def peaks(self, element_bytes: int, bias_bytes: int) -> dict[str, int]:
        """Bytes of L1, L0A, L0B and L0C in use; `bias_bytes` are those of a bias element, 0 for none."""
        tile_a, tile_b = (n * self.base_k * element_bytes for n in (self.base_m, self.base_n))
        return {
            "l1": self.depth_a * tile_a + 2 * self.step_kb * tile_b + self.base_n * bias_bytes,
            "l0a": 2 * tile_a,
            "l0b": 2 * tile_b,
            "l0c": self.base_m * self.base_n * 4 * self.db_l0c,
        }


def cube_tiling(rows: int, hidden: int, unit: int, element_bytes: int, bias: bool, chip: Platform) -> CubeTiling:
    """The tiling for tasks of `rows` rows and base blocks of `unit` columns."""
    base_m = round_up(rows, _FRACTAL)
    base_k = min(_BASE_K_BYTES // element_bytes, round_up(hidden, _FRACTAL))
    steps = ceil_div(hidden, base_k)
    tile_a = base_m * base_k * element_bytes
    l1 = chip.l1 - _L1_RESERVE
    keeps_a = steps * tile_a <= l1 * 2 // 3
    step_ka = steps if keeps_a else min(_STREAMED_STEP, steps)
    depth_a = step_ka if keeps_a else 2 * step_ka
    free = l1 - depth_a * tile_a - (unit * _BIAS_COLUMN if bias else 0)
    return CubeTiling(
        base_m=base_m,
        base_n=unit,
        base_k=base_k,
        step_ka=step_ka,
        depth_a=depth_a,
        step_kb=divisor_up_to(step_ka, free // (2 * unit * base_k * element_bytes)),
        keeps_a=keeps_a,
        db_l0c=2 if base_m * unit * 8 <= chip.l0c else 1,
    )


def tasks_of(core: int, blocks: int, tasks: int) -> range:
    """The tasks of a vector core. The second core of each cube core comes after all first ones."""
    return range(core % 2 * blocks + core // 2, tasks, 2 * blocks)


def rows_and_groups(
    units: int, unit: int, cores: int, estimate: Callable[[int, int, int], tuple[int, int]]
) -> tuple[int, int]:
    """Rows of a task and groups of columns: the fewest bytes among what is at most a quarter slower than possible.

    `units` of `unit` columns are dealt out to the groups; `estimate` gives cycles and bytes for rows, groups and the
    columns of a group.
    """
    candidates = [
        (rows, groups, *estimate(rows, groups, ceil_div(units, groups) * unit))
        for rows in range(MAX_ROWS, 0, -_FRACTAL)
        for groups in range(1, min(units, 2 * cores) + 1)
    ]
    fastest = min(cycles for _, _, cycles, _ in candidates)
    affordable = [c for c in candidates if c[2] <= fastest + fastest // 4]
    rows, groups, _, _ = min(affordable, key=lambda c: c[3])
    return rows, groups


def divisor_up_to(number: int, limit: int) -> int:
    """The largest divisor of a number that is no larger than the limit, 1 at least."""
    divisor = max(1, min(number, limit))
    while number % divisor:
        divisor -= 1
    return divisor
