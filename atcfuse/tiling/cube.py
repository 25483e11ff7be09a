"""The cube's tiling of one base block of rows whose columns are swept along N: `kernels/common/cube_tiling.inc`."""

from __future__ import annotations

from dataclasses import dataclass

from atcfuse.tiling import Platform, ceil_div, round_up

_BASE_K_BYTES = 128
_FRACTAL = 16
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
        step_kb=_divisor_up_to(step_ka, free // (2 * unit * base_k * element_bytes)),
        keeps_a=keeps_a,
        db_l0c=2 if base_m * unit * 8 <= chip.l0c else 1,
    )


def _divisor_up_to(number: int, limit: int) -> int:
    divisor = max(1, min(number, limit))
    while number % divisor:
        divisor -= 1
    return divisor
