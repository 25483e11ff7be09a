"""What rules can learn of a layer's constants: of trained parameters little, of masks, tables, numbers everything."""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np
from onnx import TensorProto

from atcfuse.graph.constants import NUMPY_TYPES

SAMPLE = 16
"""So many elements of a constant show whether it is a trained parameter."""
ORDINARY = 1e3
"""Parameters have numbers below this."""
SMALL = 1 << 14
"""Tensors of more elements are looked at one by one."""
MANY = 1 << 22
"""So many elements are looked at together at most."""


def content(array: np.ndarray) -> object:
    """What rules can learn of a constant: of parameters, along which axes they repeat; of others everything."""
    if _is_learned(array):
        return tuple(_repeats_along(array, axis) for axis in range(array.ndim))
    return hashlib.blake2b(array.tobytes(), digest_size=16).digest()


def _is_learned(array: np.ndarray) -> bool:
    """Whether there are three different numbers, one of them broken, and none that might mask: no mask, no table, no
    range has that.
    """
    if array.dtype.kind != "f" or not array.size:
        return False
    some = set(array.ravel()[:SAMPLE].tolist())
    if len(some) < 3 or not any(abs(x) < ORDINARY and x != int(x) for x in some):
        return False
    return bool(-ORDINARY < array.min() <= array.max() < ORDINARY)


def _repeats_along(array: np.ndarray, axis: int) -> bool:
    if array.shape[axis] < 2:
        return True
    if array.item(0) != array.item(math.prod(array.shape[axis + 1 :])):  # most parameters differ there already
        return False
    first = array.take([0], axis=axis)
    return bool((first == array.take([1], axis=axis)).all()) and bool((first == array).all())


def plain_parameters(tensors: Sequence[TensorProto]) -> Iterator[tuple[str, object]]:
    """The small tensors among some that are parameters and repeat along no axis, by name; with element type, dims,
    where the data lies and `content`.

    Layers have thousands of them; those of one shape are looked at together.
    """
    groups: dict[tuple[int, tuple[int, ...]], list[tuple[str, bytes]]] = defaultdict(list)
    for tensor in tensors:
        dims, dtype = tuple(tensor.dims), NUMPY_TYPES.get(tensor.data_type)
        if dtype is None or dtype.kind != "f" or tensor.data_location != TensorProto.DEFAULT:
            continue
        if tensor.HasField("raw_data") and 0 < math.prod(dims) <= SMALL and min(dims, default=1) > 0:
            raw = tensor.raw_data
            if len(raw) == math.prod(dims) * dtype.itemsize:
                groups[tensor.data_type, dims].append((tensor.name, raw))
    for (kind, dims), found in groups.items():
        told = kind, dims, int(TensorProto.DEFAULT), tuple([extent < 2 for extent in dims])
        count = MANY // math.prod(dims)
        for first in range(0, len(found), count):
            some = found[first : first + count]
            rows = np.frombuffer(b"".join([raw for _, raw in some]), NUMPY_TYPES[kind]).reshape(len(some), -1)
            yield from ((name, told) for (name, _), plain in zip(some, _are_plain(rows, dims), strict=True) if plain)


@np.errstate(invalid="ignore")  # what a NaN is not, it is not without a warning
def _are_plain(rows: np.ndarray, dims: Sequence[int]) -> list[bool]:
    """For each row, a tensor of these dims, whether it is learned and, from its second element along each axis, repeats
    along none.
    """
    head = np.sort(rows[:, :SAMPLE], axis=1)
    plain = (head[:, 1:] != head[:, :-1]).sum(axis=1) >= 2
    plain &= ((np.abs(head) < ORDINARY) & (head != np.trunc(head))).any(axis=1)
    plain &= (rows.min(axis=1) > -ORDINARY) & (rows.max(axis=1) < ORDINARY)
    for axis, extent in enumerate(dims):
        if extent > 1:
            plain &= rows[:, 0] != rows[:, math.prod(dims[axis + 1 :])]
    return list(map(bool, plain))
