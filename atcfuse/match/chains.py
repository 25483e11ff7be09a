"""Chains of views: from a value down to every root it can be read from, and forward to what it is merged into."""

from __future__ import annotations

from collections.abc import Sequence

from atcfuse.dims import Dim
from atcfuse.graph import views
from atcfuse.graph.constants import scalar
from atcfuse.graph.index import Node, Scope
from atcfuse.graph.schema import RESHAPES
from atcfuse.graph.views import View
from atcfuse.match.values import Link, Value

MAX_LINKS = 24


def roots(scope: Scope, value: str, scaling: bool) -> tuple[Link, ...]:
    """Every root that `value` is a view of, itself first, the deepest last.

    With `scaling`, multiplication and division by a constant number on the way are folded into the factor.
    """
    root = scope.source(value)
    shape = scope.fact(root).shape
    if shape is None:
        return ()
    path: list[tuple[Node, str]] = []
    links = [Link(Value(root), views.identity(root, shape), 1.0, frozenset(), shape)]
    while len(links) < MAX_LINKS:
        below = _below(scope, links[-1], path, scaling)
        if below is None:
            break
        links.append(below)
    return tuple(links)


def _below(scope: Scope, link: Link, path: list[tuple[Node, str]], scaling: bool) -> Link | None:
    node = scope.producers.get(str(link.value))
    if node is None or not node.inputs:
        return None
    factor, source = link.factor, node.inputs[0]
    if views.is_view(node):
        path.append((node, str(link.value)))
    else:
        scaled = _scaled(scope, node) if scaling else None
        if scaled is None:
            return None
        source, by = scaled
        factor *= by
    root = scope.source(source)
    shape = scope.fact(root).shape
    view = None if shape is None else compose(scope, root, shape, path)
    if view is None or shape is None:
        return None
    return Link(Value(root), view, factor, link.members | {node.index} | passed_noops(scope, source), shape)


def compose(scope: Scope, root: str, shape: Sequence[Dim], path: Sequence[tuple[Node, str]]) -> View | None:
    """The view at the top of a path of view nodes (top first) onto the root below it."""
    view: View | None = views.identity(root, shape)
    for node, output in reversed(path):
        if view is None:
            return None
        view = views.step(scope, node, view, output)
    return view


def _scaled(scope: Scope, node: Node) -> tuple[str, float] | None:
    """The data operand and the factor of a multiplication or division by a constant that keeps the shape."""
    if node.op not in ("Mul", "Div") or len(node.inputs) != 2:
        return None
    for data, other in ((0, 1), (1, 0)) if node.op == "Mul" else ((0, 1),):
        by = scalar(scope, node.inputs[other])
        shape = scope.fact(node.outputs[0]).shape
        if by is None or not by or shape is None or scope.fact(node.inputs[data]).shape != shape:
            continue
        return node.inputs[data], by if node.op == "Mul" else 1.0 / by
    return None


def passed_noops(scope: Scope, value: str) -> frozenset[int]:
    """The no-op nodes between a value and the one it repeats."""
    root, here, passed = scope.source(value), value, set()
    while here != root:
        node = scope.producers.get(here)
        if node is None:
            break
        passed.add(node.index)
        # A widening and narrowing pair of Casts repeats its operand although the value between does not.
        here = next((i for i in node.inputs if i and scope.source(i) == root), node.inputs[0])
    return frozenset(passed)


def merges(scope: Scope, value: str) -> tuple[Link, ...]:
    """What `value` is rearranged into, itself first: each next value is the only use of the one before it.

    The views are of the later value in the memory of `value`. Readers of the shape alone do not count as uses here.
    Where the chain ends with Reshapes of the leading axes alone, those are left out: rows are flattened for a product
    behind, which reads them either way, and such a node costs nothing where it is.
    """
    shape = scope.fact(value).shape
    if shape is None:
        return ()
    links = [Link(Value(value), views.identity(value, shape), 1.0, frozenset(), shape)]
    while len(links) < MAX_LINKS:
        above = _above(scope, links[-1])
        if above is None:
            break
        links.append(above)
    while len(links) > 1 and _only_regroups_rows(scope, links[-2], links[-1]):
        links.pop()
    return tuple(links)


def _only_regroups_rows(scope: Scope, before: Link, after: Link) -> bool:
    node = scope.producers.get(str(after.value))
    reshapes = node is not None and node.op in RESHAPES
    return reshapes and before.shape[-1:] == after.shape[-1:]


def _above(scope: Scope, link: Link) -> Link | None:
    name = str(link.value)
    if scope.escapes(name):
        return None
    readers = scope.value_readers(name)
    if len(readers) != 1 or not readers[0].outputs or readers[0].inputs[0] != name:
        return None
    node = readers[0]
    if node.inputs.count(name) != 1:
        return None
    output = node.outputs[0]
    if output in scope.alias and scope.source(output) == scope.source(name):
        return Link(Value(output), link.view, 1.0, link.members | {node.index}, link.shape)
    if not views.is_view(node) or node.op == "Split":
        return None
    view = views.step(scope, node, link.view, output)
    return None if view is None else Link(Value(output), view, 1.0, link.members | {node.index}, view.shape)
