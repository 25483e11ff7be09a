"""How generated kernels cut their work, and the bytes that follow: the host tiling in Python, equal to the C++ one."""

from __future__ import annotations

from dataclasses import dataclass

FAMILIES = {"Ascend910B": "910B", "Ascend910_93": "910B", "Ascend310P": "310P"}
"""Chip families that have generated kernels, by the start of ATC's `--soc_version`."""


@dataclass(frozen=True)
class Platform:
    """A chip as the toolkit's PlatformAscendC describes it to a tiling function; sizes in bytes.

    `ub` is what a kernel may ask of InitBuffer: the unified buffer less 256 B of the framework and 8 KB of API scratch.
    """

    cube_cores: int
    vector_cores: int
    ub: int
    l1: int
    l0a: int
    l0b: int
    l0c: int


PLATFORM_910B = Platform(24, 48, 188_160, 524_032, 65_536, 65_536, 131_072)
PLATFORM_310P = Platform(8, 8, 253_952, 1_048_576, 65_536, 65_536, 262_144)


def family_of(soc: str) -> str | None:
    """The family of a chip that has generated kernels ("910B", "310P"), None for other chips."""
    return next((family for prefix, family in FAMILIES.items() if soc.startswith(prefix)), None)


def platform_of(family: str) -> Platform:
    """The usual chip of a family, where the SoC at hand is not described more precisely."""
    return {"910B": PLATFORM_910B, "310P": PLATFORM_310P}[family]


def ceil_div(a: int, b: int) -> int:
    """a / b rounded up, for a >= 0 and b > 0."""
    return -(-a // b)


def round_up(a: int, unit: int) -> int:
    """The least multiple of `unit` that is at least `a`."""
    return ceil_div(a, unit) * unit
