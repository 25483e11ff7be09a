"""Operators that only change a tensor's shape: Reshape, Flatten, Squeeze, Unsqueeze, Transpose, Expand, Tile."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from atcfuse.dims import (
    Dim,
    as_symbol,
    broadcast,
    divide,
    floor_divide,
    is_positive,
    product,
)
from atcfuse.graph.facts import Fact
from atcfuse.graph.infer.call import MAX_RANK, Call, MalformedNodeError, Shape, normalized_axes, static
from atcfuse.graph.infer.create import extents
from atcfuse.graph.infer.data import is_static, moved, same_elements


def _identity(call: Call) -> Fact:
    return call.input(0)


def _reshape(call: Call) -> Fact:
    source, target = call.input(0), call.input(1)
    elements = call.parameter("shape", 1)
    if elements is None:
        return same_elements(source, extents(call, None, target))
    return same_elements(source, _reshaped(call, source.shape, elements))


def _reshaped(call: Call, shape: Shape | None, target: Shape) -> Shape:
    """The shape after Reshape: 0 copies the input's extent, -1 is what remains of its size."""
    copies = not call.attribute("allowzero", 0)
    size = None if shape is None else product(shape)
    own = [shape[i] if shape is not None and i < len(shape) else None for i in range(len(target))]
    read = [
        o if t == 0 and copies else None if isinstance(t, int) and t < 0 else t
        for t, o in zip(target, own, strict=True)
    ]
    known = [d for d in read if d is not None]
    if len(known) == len(target) and size != 0 and product(known) == size:
        return tuple(known)
    inferred = -1 in target
    out = [
        None if d is None or _is_ambiguous(d, o, size, inferred or call.is_extent(d), copies) else d
        for d, o in zip(read, own, strict=True)
    ]
    if out.count(None) == 1:
        out[out.index(None)] = _remaining(size, out)
    elif size is not None and None not in out:
        out = _uncut([d for d in out if d is not None], size)
    return tuple(call.fresh(i) if d is None else d for i, d in enumerate(out))


def _uncut(target: Sequence[Dim], size: Dim) -> list[Dim | None]:
    """The target extents, one that may be cut off told as the whole one where only that gives the input's size.

    Of `[B, S, 64]` a target `[B, min(99, S), 64]` holds all elements only while nothing is cut off.
    """
    for axis, extent in enumerate(target):
        atom = as_symbol(extent)
        if atom is None or atom.op not in ("min", "last"):
            continue
        whole = divide(size, product([*target[:axis], *target[axis + 1 :]]))
        if whole in atom.args:
            return [*target[:axis], whole, *target[axis + 1 :]]
    return list(target)


def _is_ambiguous(extent: Dim, own: Dim | None, size: Dim | None, counts: bool, copies: bool) -> bool:
    """Whether a computed target extent may be -1, or a 0 that copies the input's `own` extent.

    It `counts` where it cannot be -1: there is at most one -1, so none beside an inferred extent. A 0 is harmless where
    the own extent is 0 then too, and where the extent divides the input's size, because the tensor is empty then.
    """
    if isinstance(extent, int) or is_positive(extent):
        return False
    if not counts:
        return True
    if not copies or own == extent or (size is not None and divide(size, extent) is not None):
        return False
    atom = as_symbol(own) if own is not None else None
    return not (atom is not None and atom.op == "broadcast" and extent in atom.args)


def _remaining(size: Dim | None, others: Sequence[Dim | None]) -> Dim | None:
    """The extent that completes a size, given the others; the division is exact in a valid model."""
    rest = product(d for d in others if d is not None)
    return None if size is None or rest == 0 else floor_divide(size, rest)


def _flatten(call: Call) -> Fact:
    source = call.input(0)
    shape = source.shape
    if shape is None:
        return same_elements(source, call.fresh_shape(2))
    axis = call.attribute("axis", 1)
    axis += len(shape) if axis < 0 else 0
    return same_elements(source, (product(shape[:axis]), product(shape[axis:])))


def _unsqueeze(call: Call) -> Fact:
    source = call.input(0)
    given = call.parameter("axes", 1)
    if source.shape is None or given is None:
        return Fact(source.dtype, _rank_changed(call, 1), splat=source.splat)
    axes = normalized_axes(given, len(source.shape) + len(given))
    if axes is None:
        return Fact(source.dtype)
    left = iter(source.shape)
    shape = tuple(1 if i in axes else next(left) for i in range(len(source.shape) + len(axes)))
    return same_elements(source, shape)


def _rank_changed(call: Call, sign: int) -> Shape | None:
    """Unknown extents of known rank: how many axes come or go is known where their numbers are not."""
    rank, axes = call.input(0).rank, call.input(1).shape
    if rank is None or not axes or not isinstance(axes[0], int):
        return None
    return call.fresh_shape(max(rank + sign * axes[0], 0))


def _squeeze(call: Call) -> Fact:
    source = call.input(0)
    shape = source.shape
    if shape is None:
        return Fact(source.dtype, splat=source.splat)
    if not call.has("axes", 1):
        # Without axes every extent of 1 goes, so symbolic extents leave the rank open.
        known = is_static(shape)
        return same_elements(source, tuple(d for d in shape if d != 1)) if known else Fact(source.dtype)
    axes = normalized_axes(call.parameter("axes", 1), len(shape))
    if axes is None:
        return Fact(source.dtype, _rank_changed(call, -1), splat=source.splat)
    return same_elements(source, tuple(d for i, d in enumerate(shape) if i not in axes))


def _transpose(call: Call) -> Fact:
    source = call.input(0)
    shape = source.shape
    given = call.attribute("perm")
    if shape is None:
        rank = len(given) if given is not None else 0
        return Fact(source.dtype, call.fresh_shape(rank) if given is not None else None, splat=source.splat)
    perm = normalized_axes(given if given is not None else tuple(reversed(range(len(shape)))), len(shape))
    if perm is None or len(perm) != len(shape):
        return Fact(source.dtype)
    return moved([source], tuple(shape[p] for p in perm), lambda a: a.transpose(perm))


def _expand(call: Call) -> Fact:
    source, target = call.input(0), call.input(1)
    shape, elements = source.shape, target.elements
    if elements is None or shape is None:
        return Fact(source.dtype, _expanded_rank(call, source, target), splat=source.splat)
    rank = max(len(shape), len(elements))
    old: Shape = (1,) * (rank - len(shape)) + shape
    new: Shape = (1,) * (rank - len(elements)) + elements
    out = tuple(_expanded(call, i, a, b) for i, (a, b) in enumerate(zip(old, new, strict=True)))
    numbers = static(out)
    if numbers is None:
        return Fact(source.dtype, out, splat=source.splat)
    return moved([source], out, lambda a: np.broadcast_to(a, numbers))


def _expanded_rank(call: Call, source: Fact, target: Fact) -> Shape | None:
    length = target.shape[0] if target.shape else None
    if source.shape is None or not isinstance(length, int):
        return None
    rank = max(len(source.shape), length)
    if rank > MAX_RANK:
        raise MalformedNodeError(call.node.op)
    own: Shape = (1,) * (rank - len(source.shape)) + source.shape
    return tuple(d if isinstance(d, int) and d > 1 else call.fresh(i) for i, d in enumerate(own))


def _expanded(call: Call, axis: int, old: Dim, new: Dim) -> Dim:
    if call.is_extent(new) or (isinstance(old, int) and old > 1):
        return broadcast(old, new)
    return call.fresh(axis)


def _tile(call: Call) -> Fact:
    source, repeats = call.input(0), call.input(1).elements
    shape = source.shape
    if shape is None or repeats is None or len(repeats) != len(shape):
        return Fact(source.dtype, None if shape is None else call.fresh_shape(len(shape)), splat=source.splat)
    out = tuple(
        d * r if call.is_extent(r) else call.fresh(i) for i, (d, r) in enumerate(zip(shape, repeats, strict=True))
    )
    times = static(repeats)
    if times is None:
        return Fact(source.dtype, out, splat=source.splat)
    return moved([source], out, lambda a: np.tile(a, times))


def _depth_to_space(call: Call) -> Fact:
    shape, block = call.input(0).shape, call.attribute("blocksize", 1)
    if shape is None or len(shape) != 4:
        return Fact(call.input(0).dtype)
    channels = divide(shape[1], block * block)
    depth = channels if channels is not None else call.fresh(1)
    return Fact(call.input(0).dtype, (shape[0], depth, shape[2] * block, shape[3] * block))


def _space_to_depth(call: Call) -> Fact:
    shape, block = call.input(0).shape, call.attribute("blocksize", 1)
    if shape is None or len(shape) != 4:
        return Fact(call.input(0).dtype)
    sides = [divide(d, block) for d in shape[2:]]
    height, width = (call.fresh(i + 2) if d is None else d for i, d in enumerate(sides))
    return Fact(call.input(0).dtype, (shape[0], shape[1] * (block * block), height, width))


OPERATORS: dict[str, Callable[[Call], Fact]] = {
    "Identity": _identity,
    "Reshape": _reshape,
    "Flatten": _flatten,
    "Unsqueeze": _unsqueeze,
    "Squeeze": _squeeze,
    "Transpose": _transpose,
    "Expand": _expand,
    "Tile": _tile,
    "DepthToSpace": _depth_to_space,
    "SpaceToDepth": _space_to_depth,
}
