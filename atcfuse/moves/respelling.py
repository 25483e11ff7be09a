"""What moves of one node have in common."""

from __future__ import annotations

from dataclasses import dataclass

from atcfuse.graph.index import Node, Scope


@dataclass(frozen=True)
class Respelling:
    """A move that replaces one node."""

    scope: Scope
    node: Node

    @property
    def members(self) -> frozenset[int]:
        """The node that is replaced."""
        return frozenset((self.node.index,))

    @property
    def name(self) -> str:
        """What the move is remembered by."""
        return self.node.name
