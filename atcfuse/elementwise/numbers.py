"""Numbers of expressions as the kernel holds them: float32, as exact C++ literals."""

from __future__ import annotations

import math
import struct


def float32(value: float) -> float:
    """The nearest float32 value; beyond its range an infinity."""
    try:
        return float(struct.unpack("<f", struct.pack("<f", value))[0])
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def c_number(value: float) -> str:
    """A number as a C++ float literal with exactly its float32 value."""
    single = float32(value)
    if math.isinf(single):
        return "__builtin_inff()" if single > 0 else "-__builtin_inff()"
    if single == int(single) and abs(single) < 1e7:
        return f"{'-' if math.copysign(1, single) < 0 else ''}{abs(int(single))}.0f"
    text = f"{single:.9g}"
    return f"{text}f" if "e" in text or "." in text else f"{text}.0f"


def is_power_of_two(value: float) -> bool:
    """Whether dividing by a number is multiplying by its reciprocal, exactly."""
    return value != 0 and math.isfinite(value) and abs(math.frexp(value)[0]) == 0.5 and 2**-100 < abs(value) < 2**100
