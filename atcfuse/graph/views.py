"""Views: how one value lies in the memory of another, as an exact index map.

A `View` says that a value's element at some index is the root's element at `offset` plus the sum, over the factors of
every axis, of digit times stride; an axis is a sequence of (size, stride) factors, major first, in elements of the
root's row-major memory. Reshape, Transpose, Squeeze, Unsqueeze, Flatten, Split, Slice, Gather and GatherND at a known
index, Expand and Tile all map views to views; where the composite is not such a map, the answer is None.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from atcfuse.dims import Dim, divide, product
from atcfuse.graph.index import Node, Scope

Factor = tuple[Dim, Dim]
Axis = tuple[Factor, ...]


@dataclass(frozen=True)
class View:
    """A strided reading of `root`; sizes and strides are in elements, stride 0 repeats."""

    root: str
    offset: Dim
    axes: tuple[Axis, ...]

    @property
    def shape(self) -> tuple[Dim, ...]:
        """The extents of the value that the view describes."""
        return tuple(product(size for size, _ in axis) for axis in self.axes)

    def is_linear(self) -> bool:
        """Whether the view is the root's own memory in order: a pure reshape."""
        return self.offset == 0 and self.axes_merged() == _merge(_contiguous(self.shape))

    def axes_merged(self) -> Axis:
        """All factors of all axes as one sequence, adjacent ones merged."""
        return _merge(tuple(f for axis in self.axes for f in axis))


def identity(root: str, shape: Sequence[Dim]) -> View:
    """The view of a value of the given shape onto itself."""
    strides, axes = 1, []  # type: Dim, list[Axis]
    for size in reversed(shape):
        axes.append(((size, strides),) if size != 1 else ())
        strides = strides * size
    return View(root, 0, tuple(reversed(axes)))


def _contiguous(shape: Sequence[Dim]) -> Axis:
    return tuple(f for axis in identity("", shape).axes for f in axis)


def _merge(factors: Axis) -> Axis:
    out: list[Factor] = []
    for size, stride in factors:
        if size == 1:
            continue
        if out and out[-1][1] == size * stride:
            out[-1] = (out[-1][0] * size, stride)
        else:
            out.append((size, stride))
    return tuple(out)


def regroup(factors: Axis, sizes: Sequence[Dim]) -> tuple[Axis, ...] | None:
    """The factors dealt out, in order, to axes of the given sizes, split where a size divides exactly; else None."""
    rest = [f for f in reversed(factors) if f[0] != 1]
    axes: list[Axis] = []
    for size in sizes:
        axis: list[Factor] = []
        need = size
        while need != 1:
            if not rest:
                return None
            have, stride = rest.pop()
            left = divide(need, have)
            if left is not None:
                axis.append((have, stride))
                need = left
                continue
            inner = divide(have, need)
            if inner is None:
                return None
            axis.append((need, stride * inner))
            rest.append((inner, stride))
            need = 1
        axes.append(_merge(tuple(axis)))
    return None if rest else tuple(axes)


def step(scope: Scope, node: Node, view: View, output: str) -> View | None:
    """The view of a node's output, given the view of its data input; None where the node is not a view."""
    handler = OPERATORS.get(node.op)
    return handler(scope, node, view, output) if handler else None


def is_view(node: Node) -> bool:
    """Whether the operator can be a view at all."""
    return node.op in OPERATORS


def _reshape(scope: Scope, node: Node, view: View, output: str) -> View | None:
    shape = scope.fact(output).shape
    if shape is None:
        return None
    axes = regroup(tuple(f for axis in view.axes for f in axis), shape)
    return None if axes is None else View(view.root, view.offset, axes)


def _transpose(scope: Scope, node: Node, view: View, output: str) -> View | None:
    perm = _int_list(node, "perm") if node.attributes.get("perm") else tuple(range(len(view.axes)))[::-1]
    if perm is None or sorted(perm) != list(range(len(view.axes))):
        return None
    return View(view.root, view.offset, tuple(view.axes[p] for p in perm))


def _cut(view: View, axis: int, start: Dim, size: Dim, stride_step: int = 1) -> View | None:
    """`size` entries of an axis from `start` on, every `stride_step`-th one."""
    factors = view.axes[axis]
    extent = product(f for f, _ in factors)
    if start == 0 and size == extent and stride_step == 1:
        return view
    if len(factors) != 1:
        return _cut_major(view, axis, start, size) if stride_step == 1 else None
    _, stride = factors[0]
    cut: Axis = ((size, stride * stride_step),) if size != 1 else ()
    return View(view.root, view.offset + start * stride, (*view.axes[:axis], cut, *view.axes[axis + 1 :]))


def _cut_major(view: View, axis: int, start: Dim, size: Dim) -> View | None:
    if not view.axes[axis]:
        return None
    (_, stride), minor = view.axes[axis][0], view.axes[axis][1:]
    inner = product(f for f, _ in minor)
    first, count = divide(start, inner), divide(size, inner)
    if first is None or count is None:
        return None
    cut: Axis = ((count, stride), *minor) if count != 1 else minor
    return View(view.root, view.offset + first * stride, (*view.axes[:axis], cut, *view.axes[axis + 1 :]))


def _split(scope: Scope, node: Node, view: View, output: str) -> View | None:
    axis = _axis(node.attributes.get("axis", 0), len(view.axes))
    start: Dim = 0
    for name in node.outputs:
        shape = scope.fact(name).shape
        if axis is None or shape is None:
            return None
        if name == output:
            return _cut(view, axis, start, shape[axis])
        start = start + shape[axis]
    return None


def _axis(axis: object, rank: int) -> int | None:
    if not isinstance(axis, int):
        return None
    axis = axis + rank if axis < 0 else axis
    return axis if 0 <= axis < rank else None


def _int_list(node: Node, attribute: str) -> tuple[int, ...] | None:
    """An attribute that should be a list of integers; None where a malformed model has something else there."""
    found = node.attributes.get(attribute)
    whole = isinstance(found, tuple) and all(isinstance(v, int) for v in found)
    return found if whole else None


def _ints(scope: Scope, node: Node, position: int, attribute: str) -> tuple[Dim, ...] | None:
    if attribute in node.attributes:
        return _int_list(node, attribute)
    name = node.input(position)
    return scope.fact(name).elements if name else None


def _slice(scope: Scope, node: Node, view: View, output: str) -> View | None:
    starts = _ints(scope, node, 1, "starts")
    shape = scope.fact(output).shape
    if starts is None or shape is None or len(shape) != len(view.axes):
        return None
    axes = _ints(scope, node, 3, "axes") or tuple(range(len(starts)))
    steps = _ints(scope, node, 4, "steps") or (1,) * len(starts)
    out: View | None = view
    for start, axis, stride_step in zip(starts, axes, steps, strict=False):
        at = _axis(axis, len(view.axes))
        if out is None or at is None or not isinstance(stride_step, int) or stride_step <= 0:
            return None
        begin = _start(start, product(f for f, _ in view.axes[at]), shape[at])
        out = None if begin is None else _cut(out, at, begin, shape[at], stride_step)
    return out


def _start(start: Dim, extent: Dim, size: Dim) -> Dim | None:
    """Where a Slice really begins: negative starts count from the end; clamping must be ruled out."""
    if isinstance(start, int) and start < 0:
        start = extent + start
        if isinstance(start, int) and start < 0:
            return 0
    if start == 0:
        return 0
    if isinstance(start, int) and isinstance(extent, int):
        return min(start, extent)
    return start if isinstance(size, int) and size > 0 else None


def _from_start(index: Dim, axis: Axis) -> Dim:
    """An index into an axis, counted from its start."""
    return product(size for size, _ in axis) + index if isinstance(index, int) and index < 0 else index


def _gather(scope: Scope, node: Node, view: View, output: str) -> View | None:
    axis = _axis(node.attributes.get("axis", 0), len(view.axes))
    index = scope.fact(node.input(1))
    if axis is None or index.elements is None or len(index.elements) != 1 or index.rank is None or index.rank > 1:
        return None
    cut = _cut(view, axis, _from_start(index.elements[0], view.axes[axis]), 1)
    if cut is None or index.rank == 1:
        return cut
    return View(cut.root, cut.offset, cut.axes[:axis] + cut.axes[axis + 1 :])


def _gather_nd(scope: Scope, node: Node, view: View, output: str) -> View | None:
    """One index into the first axis, of which torch makes `x[..., [i], :]`: [[i]] keeps the axis, [i] drops it."""
    index = scope.fact(node.input(1))
    if node.attributes.get("batch_dims", 0) != 0 or index.shape not in ((1, 1), (1,)) or not view.axes:
        return None
    cut = None if index.elements is None else _cut(view, 0, _from_start(index.elements[0], view.axes[0]), 1)
    return cut if cut is None or index.rank == 2 else View(cut.root, cut.offset, cut.axes[1:])


def _expand(scope: Scope, node: Node, view: View, output: str) -> View | None:
    shape = scope.fact(output).shape
    if shape is None or len(shape) < len(view.axes):
        return None
    axes: list[Axis] = [()] * (len(shape) - len(view.axes)) + list(view.axes)
    for i, size in enumerate(shape):
        have = product(f for f, _ in axes[i])
        if have == 1 and size != 1:
            axes[i] = ((size, 0),)
        elif have != size:
            return None
    return View(view.root, view.offset, tuple(axes))


def _tile(scope: Scope, node: Node, view: View, output: str) -> View | None:
    repeats = _ints(scope, node, 1, "repeats")
    if repeats is None or len(repeats) != len(view.axes):
        return None
    axes = tuple(((n, 0), *axis) if n != 1 else axis for n, axis in zip(repeats, view.axes, strict=True))
    return View(view.root, view.offset, axes)


OPERATORS: dict[str, Callable[[Scope, Node, View, str], View | None]] = {
    "Reshape": _reshape,
    "Flatten": _reshape,
    "Squeeze": _reshape,
    "Unsqueeze": _reshape,
    "Transpose": _transpose,
    "Split": _split,
    "Slice": _slice,
    "Gather": _gather,
    "GatherND": _gather_nd,
    "Expand": _expand,
    "Tile": _tile,
}
