"""What the `linear` and `layer_norm_linear` kernels are given, and which sizes they refuse on any chip."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from atcfuse.rule.types import ELEMENT_TYPES
from atcfuse.tiling.activations import activation

VECTORS = ("bias", "gain", "gain2", "shift")
"""Operands of an element for each column of the result, in the order in which they are applied."""
_TILES = 2  # buffers of a vector queue
_MAX_STRIDE = 65535
_MAX_COUNT = (2**31 - 1) // 2
_MAX_ELEMENTS = 2**36
_FRACTAL = 16
_NORM_INSTRUCTIONS = 25
_CASTS = 2  # to float32 and back
_BYTES = {ELEMENT_TYPES[name]: size for name, size in (("float32", 4), ("float16", 2), ("bfloat16", 2))}


@dataclass(frozen=True)
class Problem:
    """One node: x is [rows, hidden] once its leading dims are folded, y [rows, columns].

    `element_bytes` is of all but gamma and beta, whose `gamma_bytes` and `beta_bytes` are 0 where there are none.
    `brain` holds for bfloat16, whose biases the cube does not take. `prologue` is an activation of x or "none", `norm`
    "layer_norm", "rms_norm" or "" for none; only one of the two.
    """

    rows: int
    hidden: int
    columns: int
    transposed: bool = False
    element_bytes: int = 2
    brain: bool = False
    bias: bool = False
    scaled: bool = False
    activation: str = "none"
    gain: bool = False
    residual: bool = False
    residual2: bool = False
    gain2: bool = False
    shift: bool = False
    prologue: str = "none"
    norm: str = ""
    gamma_bytes: int = 0
    beta_bytes: int = 0
    normalized: bool = False

    @property
    def cube_bias(self) -> bool:
        """Whether the cube adds the bias."""
        return self.bias and not self.brain

    @property
    def vectors(self) -> tuple[str, ...]:
        """The row vectors that vector cores apply to the product."""
        by_cube = ("bias",) if self.cube_bias else ()
        return tuple(name for name in VECTORS if getattr(self, name) and name not in by_cube)

    @property
    def row_vectors(self) -> int:
        """How many operands have an element for each column, whoever applies them."""
        return sum(getattr(self, name) for name in VECTORS)

    @property
    def residuals(self) -> int:
        """How many values of the result's shape are added to it."""
        return self.residual + self.residual2

    @property
    def finishes(self) -> bool:
        """Whether the product goes through the workspace to a vector core."""
        return bool(self.vectors) or self.scaled or self.activation != "none" or self.residuals > 0

    @property
    def prepares(self) -> bool:
        """Whether rows go through the workspace to the cube."""
        return bool(self.norm) or self.prologue != "none"

    @property
    def tiled(self) -> bool:
        """Whether vector cores work on tiles beside whole rows."""
        return self.finishes or self.prologue != "none"

    @property
    def scratch(self) -> int:
        """Float planes beside a tile."""
        narrow = self.residuals and self.element_bytes < 4
        return max(activation(self.prologue).scratch, activation(self.activation).scratch, int(bool(narrow)))

    @property
    def temporary(self) -> int:
        """Bytes that activations ask for whatever the tile."""
        return max(activation(self.prologue).temporary, activation(self.activation).temporary)

    @property
    def tile_bytes(self) -> int:
        """UB bytes of a tile's element: loaded tiles and results double-buffered, float planes."""
        if not self.tiled:
            return 0
        return _TILES * self.element_bytes * (2 + self.residuals) + 4 * (1 + self.scratch)

    @property
    def row_instructions(self) -> int:
        """Vector instructions that an element of x passes before the product."""
        if self.norm:
            return _NORM_INSTRUCTIONS
        return _CASTS + activation(self.prologue).passes if self.prologue != "none" else 0

    @property
    def tile_instructions(self) -> int:
        """Vector instructions that an element of the product passes."""
        if not self.finishes:
            return 0
        residual = self.residuals * (2 if self.element_bytes < 4 else 1)
        return _CASTS + len(self.vectors) + self.scaled + activation(self.activation).passes + residual

    @property
    def column_bytes(self) -> int:
        """UB bytes of a column while rows are normalised."""
        return 2 * _TILES * self.element_bytes + 4 * (2 + bool(self.gamma_bytes) + bool(self.beta_bytes))


def problem_of(
    attributes: Mapping[str, Any], dtypes: Mapping[str, int], shapes: Mapping[str, Sequence[int]]
) -> Problem:
    """The problem of a fused node: its attributes, and element types and static shapes of its operands by name."""
    *leading, hidden = shapes["x"]
    transposed = bool(attributes["transposed"])
    return Problem(
        rows=prod(leading),
        hidden=hidden,
        columns=shapes["w"][0 if transposed else 1],
        transposed=transposed,
        **features(attributes, dtypes),
    )


def features(attributes: Mapping[str, Any], dtypes: Mapping[str, int]) -> dict[str, Any]:
    """The fields of a problem that do not depend on shapes."""
    return {
        "element_bytes": _BYTES[dtypes["x"]],
        "brain": dtypes["x"] == ELEMENT_TYPES["bfloat16"],
        **{name: name in dtypes for name in (*VECTORS, "residual", "residual2", "normalized")},
        "scaled": float(attributes["scale"]) != 1.0,
        "activation": str(attributes["activation"]),
        "prologue": str(attributes.get("prologue", "none")),
        "norm": str(attributes.get("norm", "")),
        **{f"{name}_bytes": _BYTES[dtypes[name]] if name in dtypes else 0 for name in ("gamma", "beta")},
    }


def too_large(problem: Problem) -> str | None:
    """Why the kernel cannot take sizes on any chip, or None where it can."""
    if not 1 <= problem.hidden <= _MAX_STRIDE - _FRACTAL:
        return "hidden size from 1 to 65519: a row stride of the cube has 16 bits"
    if not 1 <= problem.columns <= (_MAX_COUNT if problem.transposed else _MAX_STRIDE):
        return "projections of 1 to 65535 columns: a row stride of the cube has 16 bits"
    widest = max(problem.hidden, problem.columns)
    if problem.rows > _MAX_COUNT or problem.rows * widest > _MAX_ELEMENTS:
        return "fewer than 2^30 rows and at most 2^36 elements"
    return None
