"""How generated kernels cut their work, and the bytes that follow: the host tiling in Python, equal to the C++ one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

FAMILIES = {"Ascend910B": "910B", "Ascend910_93": "910B", "Ascend310P": "310P"}
"""Chip families that have generated kernels, by the start of ATC's `--soc_version`."""


@dataclass(frozen=True)
class Platform:
    """A chip as the toolkit's PlatformAscendC describes it to a tiling function; sizes in bytes.

    `ub` is what a kernel may ask of InitBuffer: the unified buffer less 256 B of the framework and 8 KB of API scratch.
    `tile_rows` is no property of the chip: the query rows that an attention's tiles were asked to have at most (the
    widest that fit are taken), 0 where the tiling chooses.
    """

    cube_cores: int
    vector_cores: int
    ub: int
    l1: int
    l0a: int
    l0b: int
    l0c: int
    tile_rows: int = 0


PLATFORM_910B = Platform(24, 48, 188_160, 524_032, 65_536, 65_536, 131_072)
PLATFORM_310P = Platform(8, 8, 253_952, 1_048_576, 65_536, 65_536, 262_144)


def family_of(soc: str) -> str | None:
    """The family of a chip that has generated kernels ("910B", "310P"), None for other chips."""
    return next((family for prefix, family in FAMILIES.items() if soc.startswith(prefix)), None)


def platform_of(family: str) -> Platform:
    """The usual chip of a family, where the SoC at hand is not described more precisely."""
    return {"910B": PLATFORM_910B, "310P": PLATFORM_310P}[family]


DEFAULT_OCCUPANCY = 0.8
"""The share of L1 and UB that generated kernels fill unless told otherwise."""

_WHOLE = {"910B": (196_608, 524_288), "310P": (262_144, 1_048_576)}


def planned_platform(family: str, occupancy: float = DEFAULT_OCCUPANCY, tile_rows: int = 0) -> Platform:
    """The usual chip of a family as generated kernels plan for it: kept to a share of all UB and L1, tiles as asked."""
    chip, (ub, l1) = platform_of(family), _WHOLE[family]
    bounded = {"ub": min(chip.ub, int(ub * occupancy)), "l1": min(chip.l1, int(l1 * occupancy))}
    return replace(chip, **bounded, tile_rows=tile_rows)


def capacity_of(family: str) -> Platform:
    """The usual chip of a family with all of its UB and L1, of which kernels may ask for a little less."""
    ub, l1 = _WHOLE[family]
    return replace(platform_of(family), ub=ub, l1=l1)


def ceil_div(a: int, b: int) -> int:
    """a / b rounded up, for a >= 0 and b > 0."""
    return -(-a // b)


def round_up(a: int, unit: int) -> int:
    """The least multiple of `unit` that is at least `a`."""
    return ceil_div(a, unit) * unit


@dataclass(frozen=True)
class Prediction:
    """What one launch of a generated kernel moves and holds, in bytes; the twin counts exactly the same.

    `reads` and `writes` are global-memory traffic by operand. The workspace is where cube and vector cores meet:
    its traffic stays in L2 as long as `workspace_footprint` (distinct bytes written) does. `buffers` are the on-chip
    buffers of one vector core, `peak` the high-water mark of each on-chip memory.
    """

    form: str
    blocks: int
    parameters: Mapping[str, int]
    reads: Mapping[str, int]
    writes: Mapping[str, int]
    workspace_read: int
    workspace_written: int
    workspace_footprint: int
    workspace_bytes: int
    messages: int
    buffers: Mapping[str, int]
    peak: Mapping[str, int]

    @property
    def tensor_bytes(self) -> int:
        """Traffic of inputs and outputs."""
        return sum(self.reads.values()) + sum(self.writes.values())

    def figures(self) -> dict[str, int]:
        """The bytes and messages, named as in the twin's report."""
        return {
            "tensor_bytes_read": sum(self.reads.values()),
            "tensor_bytes_written": sum(self.writes.values()),
            "workspace_bytes_read": self.workspace_read,
            "workspace_bytes_written": self.workspace_written,
            "workspace_footprint": self.workspace_footprint,
            "messages": self.messages,
            **self.peak,
        }


@dataclass(frozen=True)
class VectorPrediction:
    """Bytes that a launch on vector cores moves and holds, named as in the twin's report; no workspace, no cube."""

    compulsory_bytes: int
    tensor_bytes_read: int
    tensor_bytes_written: int
    ub: int
    workspace_bytes_read: int = 0
    workspace_bytes_written: int = 0
    workspace_footprint: int = 0
    messages: int = 0
    l1: int = 0
    l0a: int = 0
    l0b: int = 0
    l0c: int = 0
