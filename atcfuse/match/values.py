"""What names are bound to while a rule is matched."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

from atcfuse.dims import Dim
from atcfuse.graph.views import View

Env = Mapping[str, Any]
"""Bindings by name: `Value`, number, `Dim`, label, `Operand`, `Built`, or None for what is absent."""


class Value(str):
    """The name of a value of the model, as opposed to a label or text."""

    __slots__ = ()


@dataclass(frozen=True)
class Refusal:
    """Why a subgraph was kept: data, never an exception. `where` names the node or value, `depth` how far it got."""

    code: str
    reason: str
    where: str = ""
    depth: int = 0


@dataclass(frozen=True)
class Link:
    """One possible root of a strided operand: the value and its shape, the view of the operand in it, factor, nodes."""

    value: Value
    view: View
    factor: float
    members: frozenset[int]
    shape: tuple[Dim, ...]


@dataclass(frozen=True)
class Operand:
    """A strided operand: candidate roots, shallowest first, and the names of the operand's own axes."""

    name: str
    axes: tuple[str, ...]
    links: tuple[Link, ...]


@dataclass(frozen=True)
class Built:
    """A value that the rewrite makes with standard operators outside the fused node, such as the sum of two masks."""

    op: str
    inputs: tuple[Any, ...]
    attributes: tuple[tuple[str, Any], ...] = ()


class State(NamedTuple):
    """A partial match: bindings, the nodes taken, the labels of the alternatives chosen.

    A tuple, since matching makes many: it costs a third of a frozen dataclass.
    """

    env: Env = MappingProxyType({})
    members: frozenset[int] = frozenset()
    labels: tuple[str, ...] = ()

    def bind(self, **values: Any) -> State:
        """The state with more bindings."""
        return State({**self.env, **values}, self.members, self.labels)

    def named(self, name: str, value: Any) -> State:
        """The state with one more binding."""
        return State({**self.env, name: value}, self.members, self.labels)

    def take(self, *nodes: int) -> State:
        """The state with more nodes taken."""
        return State(self.env, self.members.union(nodes), self.labels) if nodes else self


@dataclass(frozen=True)
class Found:
    """One way a fragment matches a value."""

    params: Mapping[str, Any]
    exports: Mapping[str, Any]
    members: frozenset[int]
    label: str
