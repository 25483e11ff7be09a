"""What a graph costs as it stands: device launches and bytes that cross memory, from shapes alone.

A launch is a node that runs on the device. Views move nothing, host-side shape arithmetic and what is constant when the
model is built are counted apart. An operator reads each input once and writes each output once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from atcfuse.dims import Dim, Poly, Symbol, evaluate, symbols
from atcfuse.graph.facts import Fact
from atcfuse.graph.fixed import fixed, is_given
from atcfuse.graph.index import Node, Scope
from atcfuse.graph.schema import RESHAPES

Kind = Literal["launch", "view", "host", "idle"]

VIEWS = RESHAPES | {"Identity"}
_HOST_SOURCES = frozenset({"Shape", "Size", "Constant"})
_BITS = {1: 32, 2: 8, 3: 8, 4: 16, 5: 16, 6: 32, 7: 64, 9: 8, 10: 16, 11: 64, 12: 32, 13: 64, 14: 64, 15: 128, 16: 16}
_HOST_ELEMENTS = 64
LARGEST_EXTENT = 2**63 - 1
"""What a dim can be in a model."""
BEYOND_COUNTING = 2**200
"""More elements than that are not told apart: what is derived from them still has to be a float."""


@dataclass
class Traffic:
    """Counts of one graph. `unsized` are values whose size could not be computed and that count no bytes."""

    launches: int = 0
    views: int = 0
    host: int = 0
    ddr_bytes: int = 0
    unsized: set[str] = field(default_factory=set)


class Sizes:
    """Extents for symbolic dims: what the user assumes, else 1 for batch-like names and 128 for lengths.

    What a shape comes to is remembered by fact: values of layers that are alike have theirs in common.
    """

    BATCH, LENGTH = 1, 128

    def __init__(self, assumed: Mapping[str, int]) -> None:
        self._assumed = dict(assumed)
        self._known: dict[Dim, int] = {}
        self._shapes: dict[Fact, tuple[int, ...] | None] = {}
        self._bytes: dict[Fact, int | None] = {}
        self.used: dict[str, int] = {}

    def number(self, dim: Dim) -> int:
        """The extent as a number; remembers which symbols it stood for."""
        if not isinstance(dim, Poly):
            return dim
        known = self._known.get(dim)
        if known is None:
            sizes = {s.name: self._size(s) for s in symbols(dim) if not s.op}
            known = self._known[dim] = min(max(evaluate(dim, sizes), 0), LARGEST_EXTENT)
        return known

    def shape(self, scope: Scope, name: str) -> tuple[int, ...] | None:
        """The shape of a value in numbers, None where its rank is not known."""
        return self._shape(scope.fact(name))

    def _shape(self, fact: Fact) -> tuple[int, ...] | None:
        if fact not in self._shapes:
            shape = fact.shape
            known = None if shape is None else tuple([d if type(d) is int else self.number(d) for d in shape])
            self._shapes[fact] = known
        return self._shapes[fact]

    def bytes(self, scope: Scope, name: str) -> int | None:
        """The bytes of a value, None where its type or rank is not known."""
        return self.bytes_of(scope.fact(name))

    def bytes_of(self, fact: Fact) -> int | None:
        """The bytes of a value of which a fact is known, None where it does not tell type or rank."""
        if fact not in self._bytes:
            bits, shape = _BITS.get(fact.dtype), self._shape(fact)
            known = None if bits is None or shape is None else min(math.prod(shape), BEYOND_COUNTING) * bits // 8
            self._bytes[fact] = known
            return known
        return self._bytes[fact]

    def _size(self, s: Symbol) -> int:
        size = self._assumed.get(s.name)
        if size is None:
            name = s.name.lower()
            size = self.BATCH if "batch" in name or name in ("b", "n") or name.endswith(".dim0") else self.LENGTH
        self.used[s.name] = size
        return size


def kinds(scope: Scope) -> dict[int, Kind]:
    """What every node of a scope is: a launch, a view, or work for the host or the converter."""
    host_values: set[str] = set()
    found: dict[int, Kind] = {}
    built = fixed(scope)
    for index in scope.order:
        node = scope.nodes[index]
        at_build = next(filter(None, node.outputs), "") in built  # of a node all that it makes is, or nothing
        kind: Kind = "host" if at_build else _kind(scope, node, host_values)
        found[index] = kind
        if kind == "host":
            host_values.update(node.outputs)
    return found


class Remembered:
    """`kinds`, worked out once a scope. Facts must be known before the first question.

    `idle` are names of nodes that a move made and that do nothing: no launches, and nothing is credited for them.
    """

    def __init__(self) -> None:
        self.idle: frozenset[str] = frozenset()
        self._found: dict[int, tuple[Scope, dict[int, Kind]]] = {}

    def __call__(self, scope: Scope) -> dict[int, Kind]:
        """What every node of a scope is."""
        if id(scope) not in self._found:
            found = kinds(scope)
            if self.idle:
                found |= {n.index: "idle" for n in scope.nodes if n.name in self.idle and found[n.index] == "launch"}
            self._found[id(scope)] = scope, found
        return self._found[id(scope)][1]

    def adopt(self, scope: Scope, other: Scope, likes: Sequence[int]) -> None:
        """Notes what nodes of a scope are: what those of another one are that they are alike."""
        known = self(other)
        self._found[id(scope)] = scope, {index: known[likes[index]] for index in scope.order}


KindsOf = Callable[[Scope], dict[int, Kind]]


def _kind(scope: Scope, node: Node, host_values: set[str]) -> Kind:
    if node.op in _HOST_SOURCES:
        return "host"
    data = [i for i in node.inputs if i]
    if data and all(i in host_values or is_given(scope, i) for i in data) and not scope_bodies(scope, node):
        small = all(_is_small(scope.fact(o)) for o in node.outputs if o)
        if small or all(is_given(scope, i) for i in data):
            return "host"
    if node.op in VIEWS:
        return "view"
    return "launch"


def scope_bodies(scope: Scope, node: Node) -> list[Scope]:
    """The bodies of a control-flow node."""
    return [body for owner, body in scope.bodies if owner is node]


def _is_small(fact: Fact) -> bool:
    size = fact.size
    return isinstance(size, int) and size <= _HOST_ELEMENTS


def measure(scope: Scope, sizes: Sizes, kinds_of: KindsOf = kinds) -> Traffic:
    """Counts a scope and the bodies in it; of the branches of an `If` the costlier one counts."""
    total = Traffic()
    found = kinds_of(scope)
    for index, kind in found.items():
        node = scope.nodes[index]
        bodies = [measure(body, sizes, kinds_of) for body in scope_bodies(scope, node)] if scope.bodies else []
        for body in _counted(node, bodies):
            _add(total, body)
        if kind == "host":
            total.host += 1
        elif kind == "view":
            total.views += 1
        elif not bodies:
            total.launches += 1
            total.ddr_bytes += node_bytes(scope, [*node.inputs, *node.outputs], sizes, total.unsized)
    return total


def _counted(node: Node, bodies: list[Traffic]) -> Iterable[Traffic]:
    if node.op == "If" and bodies:
        return [max(bodies, key=lambda t: (t.launches, t.ddr_bytes))]
    return bodies


def _add(total: Traffic, part: Traffic) -> None:
    total.launches += part.launches
    total.views += part.views
    total.host += part.host
    total.ddr_bytes += part.ddr_bytes
    total.unsized |= part.unsized


def node_bytes(scope: Scope, names: Iterable[str], sizes: Sizes, unsized: set[str]) -> int:
    """Bytes of the values, each named value once a mention."""
    total, fact, bytes_of = 0, scope.fact, sizes.bytes_of
    for name in names:
        size = bytes_of(fact(name)) if name else 0
        if size is None:
            unsized.add(name)
        else:
            total += size
    return total


def element_bits(dtype: int) -> int:
    """Bits of one element of an ONNX type; 0 for text and unknown types."""
    return _BITS.get(dtype, 0)


def value_bytes(scope: Scope, name: str, sizes: Sizes, unsized: set[str]) -> int:
    """Bytes of one value, 0 (and a note in `unsized`) where its type or rank is not known."""
    return node_bytes(scope, (name,), sizes, unsized)
