"""Input values: what is fed to both models, reproducible from a seed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from atcfuse.dims import evaluate
from atcfuse.graph.feeds import BFLOAT16, FLOATS, InputSpec, Interface, numpy_dtype
from atcfuse.verify.sizes import Sizes, concrete_shape, dims_of

Array = np.ndarray[Any, np.dtype[Any]]
Value = Any
"""What onnxruntime takes for one input: an array, a list of arrays (sequence) or None (absent optional)."""
Masking = Literal["all ones", "right-padded", "left-padded", "scattered", "one row masked"]
BFLOAT16_LOWEST = 0xFF7F
UNKNOWN_INTEGERS = 8
"""Integers whose meaning is not known are below this."""


@dataclass(frozen=True)
class Feed:
    """One set of inputs. `name` describes it (sizes, masks) and is unique among the sets of a run."""

    name: str
    values: Mapping[str, Value]


@dataclass(frozen=True)
class Recipe:
    """How to fill inputs whose shapes are known: the kind of mask, its polarity, the flags, the integers' range."""

    masking: Masking = "all ones"
    inverted: bool = False
    flag: bool = True
    integers: int = UNKNOWN_INTEGERS

    def describe(self, interface: Interface) -> str:
        """The recipe in words, only those that matter for this interface."""
        roles = {spec.role for spec in interface.inputs}
        words = [f"mask {self.masking}"] if roles & {"mask", "bias"} else []
        words += ["True = masked"] if self.inverted else []
        words += [f"flags {self.flag}"] if "flag" in roles else []
        return ", ".join(words)


def fill(interface: Interface, sizes: Sizes, recipe: Recipe, rng: np.random.Generator) -> dict[str, Value] | None:
    """Values for every required input, or None where the sizes do not fit or a type cannot be made up."""
    out: dict[str, Value] = {}
    start = past_length(interface, sizes)
    for spec in interface.inputs:
        shape = concrete_shape(spec, sizes)
        if shape is None or spec.kind == "other" or numpy_dtype(spec.dtype) is None:
            return None
        values = [_tensor(spec, shape, start, recipe, rng) for _ in range(2 if spec.kind == "sequence" else 1)]
        out[spec.name] = values if spec.kind == "sequence" else values[0]
    return out


def _tensor(spec: InputSpec, shape: tuple[int, ...], start: int, recipe: Recipe, rng: np.random.Generator) -> Array:
    dtype = numpy_dtype(spec.dtype)
    assert dtype is not None  # fill() has checked
    if spec.role in ("mask", "bias"):
        keep = keep_mask(shape, recipe.masking, rng)
        if spec.role == "bias":
            return _bias(keep, recipe.masking, spec.dtype, rng)
        return _to_float(keep, spec.dtype) if spec.dtype in FLOATS else (keep ^ recipe.inverted).astype(dtype)
    if spec.role == "flag":
        return np.full(shape, recipe.flag, dtype)
    if spec.dtype in FLOATS:
        return _to_float(np.asarray(rng.standard_normal(shape)), spec.dtype)
    if spec.role == "positions":
        return _positions(spec, shape, start).astype(dtype)
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(dtype)
    if dtype.kind == "O":
        return np.array([f"text {i}" for i in rng.integers(0, 100, shape).ravel()], dtype).reshape(shape)
    return rng.integers(0, spec.bound or recipe.integers, shape).astype(dtype)


def keep_mask(shape: tuple[int, ...], masking: Masking, rng: np.random.Generator) -> Array:
    """A boolean mask over the last axis, True = real token.

    Every row keeps at least one token, except the first one of "one row masked". The first row of the padded kinds is
    shorter than the axis whenever the axis allows it.
    """
    keep = np.ones(shape, np.bool_)
    if not keep.size or not shape:
        return keep
    length, rows = shape[-1], keep.reshape(-1, shape[-1])
    for index, row in enumerate(rows):
        if masking == "all ones" or (masking == "one row masked" and index % 2):
            continue
        if masking == "one row masked" and index == 0:
            row[:] = False
            continue
        kept = int(rng.integers(1, max(2, length)))
        if masking == "left-padded":
            row[: length - kept] = False
        elif masking == "scattered":
            row[rng.permutation(length)[kept:]] = False
        else:
            row[kept:] = False
    return keep


def _bias(keep: Array, masking: Masking, dtype: int, rng: np.random.Generator) -> Array:
    # Random where nothing is masked, else the lowest finite number; -inf only where every row keeps a token.
    if masking == "all ones":
        return _to_float(np.asarray(rng.standard_normal(keep.shape)), dtype)
    zero = _to_float(np.zeros(keep.shape), dtype)
    if masking == "scattered":
        return np.where(keep, zero, _to_float(np.full(keep.shape, -np.inf), dtype))
    lowest = BFLOAT16_LOWEST if dtype == BFLOAT16 else np.finfo(zero.dtype).min
    return np.where(keep, zero, np.full(keep.shape, lowest, zero.dtype))


def _to_float(values: Array, dtype: int) -> Array:
    if dtype == BFLOAT16:
        return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    out: Array = values.astype(numpy_dtype(dtype))
    return out


def _positions(spec: InputSpec, shape: tuple[int, ...], start: int) -> Array:
    length = shape[-1] if shape else 1
    values = np.arange(start, start + length)
    if spec.bound is not None:
        values = values % spec.bound
    out: Array = np.broadcast_to(values, shape or (1,)).reshape(shape).copy()
    return out


def past_length(interface: Interface, sizes: Sizes) -> int:
    """The length of the key/value cache under sizes, 0 without one."""
    for spec in interface.inputs:
        if spec.dtype in FLOATS and re.search(r"past|cache", spec.name):
            dims = dims_of(spec)
            if len(dims) > 2:
                return evaluate(dims[-2], sizes)
    return 0
