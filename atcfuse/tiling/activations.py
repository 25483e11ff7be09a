"""Activations that kernels compute on float32 tiles (`kernels/common/activations.inc`): what they need and cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Activation:
    """`scratch` planes of the tile's size in float32 and `temporary` bytes on chip, whatever the tile's size; `passes`
    are vector instructions an element, counted like those of unfused operators.

    The toolkit computes Erf in pieces of temporary / 12 floats and Tanh and Sigmoid in pieces of about as many, so the
    buffer trades room for fewer, larger instructions.
    """

    scratch: int
    temporary: int
    passes: int


ACTIVATIONS: Mapping[str, Activation] = {
    "gelu_erf": Activation(1, 12_288, 27),
    "gelu_tanh": Activation(1, 8_192, 9),
    "gelu_quick": Activation(1, 8_192, 6),
    "silu": Activation(1, 8_192, 5),
    "relu": Activation(0, 0, 1),
    "relu_squared": Activation(0, 0, 2),
    "hard_swish": Activation(1, 0, 5),
    "tanh": Activation(0, 8_192, 6),
    "sigmoid": Activation(0, 8_192, 4),
}
"""By the name that fused operators' attributes use."""

NONE = Activation(0, 0, 0)


def activation(name: str) -> Activation:
    """What an activation needs; nothing for "none"."""
    return ACTIVATIONS.get(name, NONE)
