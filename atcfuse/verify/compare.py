"""Holding two results against each other: exactly for integers, by the largest deviation for floats."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from atcfuse.verify.values import Array, Value

Status = Literal["ok", "wrong", "shape", "nan", "missing"]


@dataclass(frozen=True)
class OutputError:
    """How far one output of the optimized model is from the original on one set of inputs.

    `max_abs` is max|Δ| over the elements that are finite in both, `max_rel` is max|Δ| / max|reference|, and `limit`
    the largest max_rel that passes (0 for integers, booleans and text, which must be equal). `finite` tells whether
    the reference has a finite number other than 0 in it, without which the comparison says little.
    """

    name: str
    size_set: str
    max_abs: float
    max_rel: float
    status: Status
    message: str = ""
    limit: float = 0.0
    finite: bool = True


@dataclass(frozen=True)
class Tolerance:
    """What passes: max|Δ| <= absolute + relative · max|reference|."""

    relative: float
    absolute: float = 0.0


def compare_value(name: str, size_set: str, reference: Value, got: Value, tolerance: Tolerance) -> list[OutputError]:
    """Compare one output; the members of sequences and maps one by one, as `name[i]`."""
    members, others = dict(_flatten(name, reference)), dict(_flatten(name, got))
    if members.keys() != others.keys():
        message = f"{len(others)} members instead of {len(members)}"
        return [OutputError(name, size_set, np.inf, np.inf, "shape", message)]
    return [compare_arrays(n, size_set, a, others[n], tolerance) for n, a in members.items()]


def missing(name: str, size_set: str) -> OutputError:
    """The result for an output that the optimized model does not have."""
    return OutputError(name, size_set, np.inf, np.inf, "missing", "the optimized model has no such output")


def _flatten(name: str, value: Value) -> Iterator[tuple[str, Array]]:
    if isinstance(value, Mapping):
        for key in sorted(value, key=str):
            yield from _flatten(f"{name}[{key}]", value[key])
    elif isinstance(value, list | tuple):
        for i, member in enumerate(value):
            yield from _flatten(f"{name}[{i}]", member)
    else:
        yield name, np.asarray(value)


def compare_arrays(name: str, size_set: str, reference: Array, got: Array, tolerance: Tolerance) -> OutputError:
    """Compare two arrays: type and shape, NaN pattern, infinities, then the largest deviation."""
    result = OutputError(name, size_set, np.inf, np.inf, "shape")
    if reference.shape != got.shape:
        return replace(result, message=f"shape {list(got.shape)} instead of {list(reference.shape)}")
    if reference.dtype != got.dtype:
        return replace(result, message=f"type {got.dtype} instead of {reference.dtype}")
    if reference.dtype.kind not in "fiub":
        return _compare_exactly(result, reference, got)
    if reference.dtype.kind != "f":
        return _compare_integers(result, reference, got)
    return _compare_floats(result, reference.astype(np.float64), got.astype(np.float64), tolerance)


def _compare_exactly(result: OutputError, reference: Array, got: Array) -> OutputError:
    differ = int((reference != got).sum())
    if differ:
        return replace(result, status="wrong", message=_count(differ, reference.size, "differ"))
    return replace(result, status="ok", max_abs=0.0, max_rel=0.0)


def _compare_integers(result: OutputError, reference: Array, got: Array) -> OutputError:
    differ = int((reference != got).sum())
    delta = _largest(np.abs(reference.astype(np.float64) - got.astype(np.float64)))
    scale = _largest(np.abs(reference.astype(np.float64)))
    result = replace(result, max_abs=delta, max_rel=_ratio(delta, scale), status="wrong" if differ else "ok")
    return replace(result, message=_count(differ, reference.size, "differ") if differ else "")


def _compare_floats(result: OutputError, reference: Array, got: Array, tolerance: Tolerance) -> OutputError:
    finite = np.isfinite(reference)
    scale = _largest(np.abs(reference[finite]))
    both = finite & np.isfinite(got)
    delta = _largest(np.abs(reference[both] - got[both]))
    limit = tolerance.relative + (tolerance.absolute / scale if scale else 0.0)
    result = replace(result, max_abs=delta, max_rel=_ratio(delta, scale), limit=limit, finite=scale > 0)
    odd = np.isnan(reference) != np.isnan(got)
    if odd.any():
        return replace(result, status="nan", message=_count(int(odd.sum()), odd.size, "are NaN in only one of the two"))
    infinite = (np.isinf(reference) | np.isinf(got)) & (reference != got)
    if infinite.any():
        text = _count(int(infinite.sum()), infinite.size, "differ in being infinite")
        return replace(result, status="wrong", message=text)
    allowed = tolerance.absolute + tolerance.relative * scale
    return replace(result, status="ok" if delta <= allowed else "wrong")


def _largest(values: Array) -> float:
    return float(values.max()) if values.size else 0.0


def _ratio(delta: float, scale: float) -> float:
    if not delta:
        return 0.0
    return delta / scale if scale else float("inf")


def _count(some: int, all_of_them: int, what: str) -> str:
    return f"{some} of {all_of_them} elements {what}"
