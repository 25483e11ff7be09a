"""Slices that cut a value into parts along an axis, spelled as one Split: one launch instead of one for each part.

PyTorch's exporter makes Slices of `chunk` where a length is open: scales, shifts and gates of every block of a
diffusion transformer. Rules see them first, and views of operands go with their fusions; this is for what is left.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from atcfuse.graph.edit import Names, Replacement
from atcfuse.graph.index import Model, Node, Scope
from atcfuse.graph.schema import input_position, parameter
from atcfuse.graph.traffic import kinds
from atcfuse.keep_nodes import KeepNodes
from atcfuse.moves.respelling import respelled, split

Part = tuple[int, int]
"""Where a part begins and ends."""


def join(model: Model, keep: KeepNodes) -> bool:
    """Puts a Split in the place of Slices that take every element of a value once; False where there are none."""
    return respelled(model, lambda scope, names: _in_scope(scope, keep, names))


def _in_scope(scope: Scope, keep: KeepNodes, names: Names) -> Iterator[Replacement]:
    groups: dict[tuple[str, int], dict[Part, Node]] = {}
    for node in scope.by_op.get("Slice", ()):
        cut = None if keep.reason(node.name, node.op) else _cut(scope, node)
        if cut is not None:
            groups.setdefault((node.inputs[0], cut[0]), {}).setdefault(cut[1], node)
    groups = {key: parts for key, parts in groups.items() if len(parts) > 1}
    launches = kinds(scope) if groups else {}
    for (value, axis), parts in groups.items():
        shape = scope.fact(value).shape or ()
        ordered = sorted(parts)
        whole = _is_whole(ordered, shape[axis]) and all(launches[n.index] == "launch" for n in parts.values())
        if whole:
            nodes = [parts[part] for part in ordered]
            sizes, results = tuple(end - start for start, end in ordered), tuple(n.outputs[0] for n in nodes)
            name, first = names.fresh(f"{nodes[0].name}/Split"), nodes[0]
            made = split(scope.model.opset, name, first.inputs[0], axis, sizes, results, first.index)
            yield Replacement(scope, frozenset(n.index for n in nodes), (made,))


def _cut(scope: Scope, node: Node) -> tuple[int, Part] | None:
    """The axis of known length that a Slice cuts, every element of a range, and that range; None for other Slices."""
    shape, result = scope.fact(node.input(0)).shape, scope.fact(node.outputs[0]).shape
    starts, ends = _numbers(scope, node, "starts"), _numbers(scope, node, "ends")
    axes, steps = _numbers(scope, node, "axes", (0,)), _numbers(scope, node, "steps", (1,))
    if shape is None or result is None or starts is None or ends is None or axes is None:
        return None
    if not len(starts) == len(ends) == len(axes) == 1 or steps != (1,) or node.outputs[0] in scope.alias:
        return None
    axis = axes[0] + len(shape) if axes[0] < 0 else axes[0]
    if not 0 <= axis < len(shape):
        return None
    length = shape[axis]
    if not isinstance(length, int):
        return None
    start, end = (min(max(at + length if at < 0 else at, 0), length) for at in (starts[0], ends[0]))
    return (axis, (start, end)) if end > start and result[axis] == end - start else None


def _numbers(scope: Scope, node: Node, name: str, absent: tuple[int, ...] | None = None) -> tuple[int, ...] | None:
    """A parameter of Slice, or what it is where it is absent; None where it is not known."""
    position = input_position(scope, node, name)
    if name not in node.attributes and (position is None or not node.input(position)):
        return absent
    found = parameter(scope, node, name)
    numbers = tuple(n for n in found or () if isinstance(n, int))
    return numbers if found is not None and len(numbers) == len(found) else None


def _is_whole(parts: Iterable[Part], length: object) -> bool:
    """Whether parts in order follow each other from the first element to the last."""
    at = 0
    for start, end in parts:
        if start != at:
            return False
        at = end
    return at == length
