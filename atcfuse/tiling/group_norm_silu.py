"""Tiling of the group_norm_silu kernel and the bytes that it moves.

`plan` computes what `kernels/group_norm_silu/group_norm_silu_host.h.j2` computes on the host of the chip; `predict`
counts what the kernel then moves and holds, to the byte, as the twin counts it. Integers only, so that both agree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from atcfuse.rule.types import ELEMENT_TYPES
from atcfuse.tiling import Platform, VectorPrediction, ceil_div, round_up
from atcfuse.tiling.activations import activation

_BYTES = {ELEMENT_TYPES[name]: size for name, size in (("float32", 4), ("float16", 2), ("bfloat16", 2))}
_LANE = 64
_BLOCK_FLOATS = 8
_UNIT = 16
_SMALL_BYTES = 32
_MOST = 2**30
_MOST_ELEMENTS = 2**36


@dataclass(frozen=True)
class Problem:
    """One node: `rows` groups of all batches, each `per_group` channels of `spatial` elements.

    `gamma_bytes` and `beta_bytes` are those of an element, 0 where there is none. `copies_blocks` holds for chips that
    move whole 32-byte blocks only. `activation` follows, or "none".
    """

    rows: int
    channels: int
    per_group: int
    spatial: int
    element_bytes: int = 2
    gamma_bytes: int = 2
    beta_bytes: int = 2
    copies_blocks: bool = False
    activation: str = "silu"

    @property
    def row(self) -> int:
        """Elements of a group."""
        return self.per_group * self.spatial


@dataclass(frozen=True)
class Plan:
    """The tiling: elements on chip, whether a group is there whole, floats of a sum's scratch."""

    problem: Problem
    blocks: int
    pitch: int
    whole: bool
    work_floats: int


def problem_of(
    attributes: Mapping[str, Any], dtypes: Mapping[str, int], shapes: Mapping[str, Sequence[int]], family: str
) -> Problem:
    """The problem of a fused node, from attributes, element types and static shapes of its operands by name."""
    batch, _, *spatial = shapes["x"]
    groups, channels = int(attributes["num_groups"]), int(attributes["num_channels"])
    return Problem(
        rows=batch * groups,
        channels=channels,
        per_group=channels // groups,
        spatial=prod(spatial),
        element_bytes=_BYTES[dtypes["x"]],
        gamma_bytes=_BYTES[dtypes["gamma"]] if "gamma" in dtypes else 0,
        beta_bytes=_BYTES[dtypes["beta"]] if "beta" in dtypes else 0,
        copies_blocks=family != "910B",
        activation=str(attributes["activation"]),
    )


def temporary_bytes(kind: str) -> int:
    """On chip, for an activation of the result; SiLU is spelled out in what is there."""
    return 0 if kind == "silu" else activation(kind).temporary


def refusal(problem: Problem, chip: Platform) -> str | None:
    """Why the kernel cannot take the problem on a chip, or None where it can."""
    if problem.spatial < 1 or max(problem.row, problem.rows) > _MOST or problem.rows * problem.row > _MOST_ELEMENTS:
        return "groups of 1 to 2^30 elements, all at most 2^36"
    if problem.copies_blocks and (problem.spatial % _UNIT or problem.channels % _UNIT):
        return "channels and elements of a channel in multiples of 16: the chip moves whole blocks of 32 bytes"
    if _whole(problem, chip) is None and _chunk(problem, chip) < _LANE:
        return "groups of which 64 elements fit in UB beside gamma and beta"
    return None


def plan(problem: Problem, chip: Platform) -> Plan:
    """The tiling of a problem that is not refused."""
    blocks = max(1, min(chip.vector_cores, problem.rows))
    pitch = _whole(problem, chip)
    if pitch is not None:
        return Plan(problem, blocks, pitch, True, _work(pitch))
    pitch = min(_chunk(problem, chip), round_up(problem.row, _LANE))
    return Plan(problem, blocks, pitch, False, _work(chip.ub // _of_element(problem)))


def predict(tiling: Plan) -> VectorPrediction:
    """What one launch with this tiling moves and holds."""
    problem = tiling.problem
    elements = problem.rows * problem.row * problem.element_bytes
    affine = problem.channels * (problem.gamma_bytes + problem.beta_bytes)
    active = min(tiling.blocks, problem.rows)
    read = elements * (1 if tiling.whole else 2) + affine * active
    ub = _once(problem) + tiling.pitch * _of_element(problem) + 4 * tiling.work_floats
    return VectorPrediction(2 * elements + affine, read, elements, ub)


def _work(count: int) -> int:
    return round_up(ceil_div(count, _LANE), _BLOCK_FLOATS)


def _of_element(problem: Problem) -> int:
    return 4 * problem.element_bytes + 8


def _once(problem: Problem) -> int:
    vectors = bool(problem.gamma_bytes) + bool(problem.beta_bytes)
    return vectors * 4 * round_up(problem.channels, _UNIT) + _SMALL_BYTES + temporary_bytes(problem.activation)


def _whole(problem: Problem, chip: Platform) -> int | None:
    """The elements of a whole group on chip, None where it does not fit or its channels are not whole blocks."""
    pitch = round_up(problem.row, _UNIT)
    splits = problem.per_group == 1 or problem.spatial % _BLOCK_FLOATS == 0
    fits = _once(problem) + pitch * _of_element(problem) + 4 * _work(pitch) <= chip.ub
    return pitch if splits and fits else None


def _chunk(problem: Problem, chip: Platform) -> int:
    free = chip.ub - _once(problem) - 4 * _work(chip.ub // _of_element(problem))
    return max(0, free) // _of_element(problem) // _LANE * _LANE
