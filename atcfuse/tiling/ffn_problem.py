"""What the `ffn` and `layer_norm_ffn` kernels are given, and what they refuse of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from atcfuse.rule.types import ELEMENT_TYPES

VECTORS = ("gain", "gain2", "shift")
"""Operands of an element for each column of the result, in the order in which they are applied."""
GATINGS = ("none", "separate", "gate_up", "up_gate")
_PACKED = ("gate_up", "up_gate")
_MAX_STRIDE = 65535
_FRACTAL = 16
_BYTES = {ELEMENT_TYPES[name]: size for name, size in (("float32", 4), ("float16", 2), ("bfloat16", 2))}


@dataclass(frozen=True)
class Norm:
    """What comes before the up projection; `gamma_bytes` and `beta_bytes` of an element are 0 where there are none.

    `added` says that the normalised rows are added to the result, `kept` that they are an output.
    """

    gamma_bytes: int = 2
    beta_bytes: int = 2
    added: bool = False
    kept: bool = False


@dataclass(frozen=True)
class Problem:
    """One node: x is [rows, hidden] once its leading dims are folded, `inner` are the hidden columns, `columns` those
    of the result, to which so many `vectors` are applied behind the down projection. `element_bytes` is of all
    operands but gamma and beta; biases are those of up, gate and down.
    """

    rows: int
    hidden: int
    inner: int
    columns: int
    activation: str
    gating: str = "none"
    biases: tuple[bool, bool, bool] = (False, False, False)
    residual: bool = False
    residual2: bool = False
    vectors: int = 0
    norm: Norm | None = None
    element_bytes: int = 2
    widens_bias: bool = False

    @property
    def residuals(self) -> int:
        """How many values of the result's shape are added to it."""
        return self.residual + self.residual2

    @property
    def factors(self) -> int:
        """Projections of a row: up, and the gate's."""
        return 1 if self.gating == "none" else 2

    @property
    def up_columns(self) -> int:
        """Columns of the up weight, which may hold the gate's too."""
        return 2 * self.inner if self.gating in _PACKED else self.inner

    @property
    def bias_sizes(self) -> tuple[int, int, int]:
        """Elements of the biases of up, gate and down, 0 for none."""
        sizes = (self.up_columns, self.inner, self.columns)
        up, gate, down = (size if present else 0 for size, present in zip(sizes, self.biases, strict=True))
        return up, gate, down

    @property
    def weights(self) -> int:
        """Elements of all weights."""
        return self.inner * (self.factors * self.hidden + self.columns)


def problem_of(
    attributes: Mapping[str, Any], dtypes: Mapping[str, int], shapes: Mapping[str, Sequence[int]]
) -> Problem:
    """The problem of a fused node: its attributes, and element types and static shapes of its operands by name."""
    *leading, hidden = shapes["x"]
    up_transposed, _, down_transposed = attributes["transposed"]
    gating = attributes["gating"]
    up_columns = shapes["w_up"][0 if up_transposed else 1]
    return Problem(
        rows=prod(leading),
        hidden=hidden,
        inner=up_columns // 2 if gating in _PACKED else up_columns,
        columns=shapes["w_down"][0 if down_transposed else 1],
        activation=attributes["activation"],
        gating=gating,
        biases=("b_up" in dtypes, "b_gate" in dtypes, "b_down" in dtypes),
        residual="residual" in dtypes,
        residual2="residual2" in dtypes,
        vectors=sum(name in dtypes for name in VECTORS),
        norm=_norm_of(attributes, dtypes) if "norm" in attributes else None,
        element_bytes=_BYTES[dtypes["x"]],
        widens_bias=dtypes["x"] == ELEMENT_TYPES["bfloat16"],
    )


def _norm_of(attributes: Mapping[str, Any], dtypes: Mapping[str, int]) -> Norm:
    return Norm(
        gamma_bytes=_BYTES[dtypes["gamma"]] if "gamma" in dtypes else 0,
        beta_bytes=_BYTES[dtypes["beta"]] if "beta" in dtypes else 0,
        added=bool(attributes["add_normalized"]),
        kept="normalized" in dtypes,
    )


def refusal(problem: Problem) -> str | None:
    """Why the kernel cannot take the problem, or None where it can."""
    if not 1 <= problem.hidden <= _MAX_STRIDE - _FRACTAL:
        return "inputs of 1 to 65519 columns: a row stride of the cube has 16 bits"
    if problem.rows > (2**31 - 1) // 2 or problem.rows * problem.hidden > 2**36:
        return "fewer than 2^30 rows and at most 2^36 elements"
    if problem.inner < 1 or problem.up_columns > _MAX_STRIDE:
        return "up projections of 1 to 65535 columns: a row stride of the cube has 16 bits"
    if not 1 <= problem.columns <= _MAX_STRIDE:
        return "results of 1 to 65535 columns: a row stride of the cube has 16 bits"
    return None
