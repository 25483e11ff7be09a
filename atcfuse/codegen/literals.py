"""Numbers as C++ literals."""

from __future__ import annotations

from atcfuse.codegen.signature import float32


def c_float(value: float) -> str:
    """A number as a C++ float literal that gives exactly its float32 value."""
    single = float32(value)
    if single != single:
        return '__builtin_nanf("")'
    if single in (float("inf"), float("-inf")):
        return "__builtin_inff()" if single > 0 else "-__builtin_inff()"
    if single == int(single) and abs(single) < 1e7:
        return f"{int(single)}.0f"
    return f"{single:.9g}f" if "e" in f"{single:.9g}" or "." in f"{single:.9g}" else f"{single:.9g}.0f"
