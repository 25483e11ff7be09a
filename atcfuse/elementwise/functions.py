"""ONNX's functions of one value as vector instructions: `FUNCTIONS[op](builder, x, *constants)`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from atcfuse.elementwise.builder import Builder
from atcfuse.elementwise.numbers import c_number, float32
from atcfuse.elementwise.registers import BUFFERED, Register


def _instruction(name: str) -> Callable[[Builder, Register], Register]:
    return lambda b, x: b.call(name, x)


def _activation(name: str) -> Callable[[Builder, Register], Register]:
    return lambda b, x: b.buffered(name, x)


def _neg(b: Builder, x: Register) -> Register:
    return b.scaled("Muls", x, "-1.0f")


def _reciprocal(b: Builder, x: Register) -> Register:
    return b.call("Div", b.as_plane(1.0), x)


def _softplus(b: Builder, x: Register) -> Register:
    """max(x, 0) + ln(1 + exp(-|x|)), which never overflows."""
    decay = b.call("Exp", b.scaled("Muls", b.call("Abs", x), "-1.0f"))
    return b.call("Add", b.call("Ln", b.scaled("Adds", decay, "1.0f")), b.call("Relu", x))


def _mish(b: Builder, x: Register) -> Register:
    return b.call("Mul", x, b.buffered("Tanh", _softplus(b, x)))


def _hard_sigmoid(b: Builder, x: Register, alpha: float, beta: float) -> Register:
    y = b.scaled("Adds", b.scaled("Muls", x, c_number(alpha)), c_number(beta))
    return b.scaled("Mins", b.scaled("Maxs", y, "0.0f"), "1.0f")


def _hard_swish(b: Builder, x: Register) -> Register:
    return b.call("Mul", x, _hard_sigmoid(b, x, float32(1 / 6), 0.5))


def _gelu(b: Builder, x: Register) -> Register:
    share = b.buffered("Erf", b.scaled("Muls", x, c_number(math.sqrt(0.5))))
    return b.call("Mul", b.scaled("Muls", x, "0.5f"), b.scaled("Adds", share, "1.0f"))


def _gelu_tanh(b: Builder, x: Register) -> Register:
    cube = b.scaled("Muls", b.call("Mul", b.call("Mul", x, x), x), c_number(0.044715))
    inner = b.scaled("Muls", b.call("Add", cube, x), c_number(math.sqrt(2 / math.pi)))
    share = b.scaled("Adds", b.buffered("Tanh", inner), "1.0f")
    return b.call("Mul", b.scaled("Muls", x, "0.5f"), share)


def _pow(b: Builder, x: Register, exponent: float) -> Register:
    if exponent < 0:
        return _reciprocal(b, _pow(b, x, -exponent))
    if exponent in (0.5, 1.5):
        return _half_power(b, x, exponent)
    if exponent == 1.0:
        return x
    square = b.call("Mul", x, x)
    return square if exponent == 2.0 else b.call("Mul", square, square if exponent == 4.0 else x)


def _half_power(b: Builder, x: Register, exponent: float) -> Register:
    """Of a root it differs at -0, whose power is 0, and at -inf, whose power is inf."""
    positive = b.scaled("Adds", x, "0.0f")
    root = b.call("Sqrt", positive)
    power = root if exponent == 0.5 else b.call("Mul", positive, root)
    return b.select(None, b.compare("NE", x, c_number(-math.inf)), power, c_number(math.inf))


def _leaky_relu(b: Builder, x: Register, alpha: float) -> Register:
    return b.scaled("LeakyRelu", x, c_number(alpha))


def _elu(b: Builder, x: Register, alpha: float) -> Register:
    low = b.scaled("Adds", b.call("Exp", b.scaled("Mins", x, "0.0f")), "-1.0f")
    return b.call("Add", b.scaled("Muls", low, c_number(alpha)), b.call("Relu", x))


def _clip(b: Builder, x: Register, low: float, high: float) -> Register:
    if math.isfinite(low):
        x = b.scaled("Maxs", x, c_number(low))
    return b.scaled("Mins", x, c_number(high)) if math.isfinite(high) else x


def _softsign(b: Builder, x: Register) -> Register:
    return b.call("Div", x, b.scaled("Adds", b.call("Abs", x), "1.0f"))


def _selu(b: Builder, x: Register, alpha: float, gamma: float) -> Register:
    return b.scaled("Muls", _elu(b, x, alpha), c_number(gamma))


def _celu(b: Builder, x: Register, alpha: float) -> Register:
    low = b.scaled("Muls", b.scaled("Mins", x, "0.0f"), c_number(1 / alpha))
    low = b.scaled("Muls", b.scaled("Adds", b.call("Exp", low), "-1.0f"), c_number(alpha))
    return b.call("Add", low, b.call("Relu", x))


def _thresholded_relu(b: Builder, x: Register, alpha: float) -> Register:
    return b.select(None, b.compare("GT", x, c_number(alpha)), x, "0.0f")


def _sign(b: Builder, x: Register) -> Register:
    above, below = b.ones(b.compare("GT", x, "0.0f")), b.ones(b.compare("LT", x, "0.0f"))
    sign = b.call("Sub", above, below)
    return b.select(None, b.compare("EQ", x, x), sign, x)  # NaN, which is neither, stays


def _rounding(mode: str) -> Callable[[Builder, Register], Register]:
    """To an integer, in float32: 910B alone has that as an instruction."""
    return lambda b, x: b.emit("Cast", f"Cast({{d}}, {{0}}, RoundMode::{mode}, {{n}})", x, apart=True)


ROUNDINGS = {"Floor": "CAST_FLOOR", "Ceil": "CAST_CEIL", "Round": "CAST_RINT"}
SELECTIVE = frozenset({*ROUNDINGS, "Sign", "ThresholdedRelu"})
"""Functions with jumps, whose results have no more digits than their operands."""
SENSITIVE = frozenset({*SELECTIVE, "Sin", "Cos"})
"""Functions that need what the model rounded, as comparisons do: with jumps, or of large angles."""
FUNCTIONS: Mapping[str, Callable[..., Register]] = {
    **{op: _instruction(name) for op, name in {"Log": "Ln"}.items()},
    **{op: _instruction(op) for op in ("Abs", "Sqrt", "Exp", "Relu")},
    **{op: _activation(op) for op in BUFFERED},
    "Neg": _neg,
    "Reciprocal": _reciprocal,
    "Softplus": _softplus,
    "Mish": _mish,
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": _hard_swish,
    "Gelu": _gelu,
    "GeluTanh": _gelu_tanh,
    "Pow": _pow,
    "LeakyRelu": _leaky_relu,
    "Elu": _elu,
    "Clip": _clip,
    "Softsign": _softsign,
    "Selu": _selu,
    "Celu": _celu,
    "ThresholdedRelu": _thresholded_relu,
    "Sign": _sign,
    **{op: _rounding(mode) for op, mode in ROUNDINGS.items()},
}
