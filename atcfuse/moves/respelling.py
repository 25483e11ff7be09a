"""What moves have in common, and those of one node."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np

from atcfuse.graph.edit import Names, NewNode, Replacement, apply
from atcfuse.graph.index import Model, Node, Scope
from atcfuse.graph.schema import signature

FLOATS: Mapping[int, np.dtype[Any]] = {1: np.dtype(np.float32), 10: np.dtype(np.float16)}
"""The element types of floats for which moves write constants, by the number that ONNX has for them."""


SeveralT = TypeVar("SeveralT", bound="Several")


class Several(ABC):
    """A move of the nodes that are `replaced`; the first of them gives it its name."""

    @property
    @abstractmethod
    def replaced(self) -> tuple[Node, ...]:
        """The nodes that the move replaces."""

    @property
    def members(self) -> frozenset[int]:
        """The same by index."""
        return frozenset(node.index for node in self.replaced)

    @property
    def name(self) -> str:
        """What the move is remembered by."""
        return self.replaced[0].name

    def beside(self: SeveralT, kept: Callable[[Node], bool]) -> SeveralT | None:
        """What of the move is left where some nodes are kept; None where that is nothing."""
        return None if any(map(kept, self.replaced)) else self


@dataclass(frozen=True)
class Respelling(Several):
    """A move that replaces one node."""

    scope: Scope
    node: Node

    @property
    def replaced(self) -> tuple[Node, ...]:
        """The node that is replaced."""
        return (self.node,)


@dataclass
class Steps:
    """The nodes that an operator is spelled out in, one after the other; `idle` are those that do nothing."""

    node: Node
    names: Names
    made: list[NewNode] = field(default_factory=list)
    idle: bool = False

    def add(self, op: str, *inputs: str | tuple[int, ...], **attributes: Any) -> str:
        """One more node; the value that it makes."""
        output = self.names.fresh(f"{self.node.outputs[0]}/{op}")
        name = self.names.fresh(f"{self.node.name}/{op}")
        self.made.append(
            NewNode(op, name, inputs, (output,), tuple(attributes.items()), like=self.node.index, idle=self.idle)
        )
        return output

    def number(self, value: float, dtype: np.dtype[Any]) -> str:
        """A constant."""
        return self.add("Constant", value=np.array(value, dtype))

    def end(self, output: str, op: str, *inputs: str | tuple[int, ...], **attributes: Any) -> None:
        """The node that makes an output of the operator."""
        self.add(op, *inputs, **attributes)
        self.ends_in(output)

    def ends_in(self, output: str) -> None:
        """The last node makes an output of the operator."""
        self.made[-1] = replace(self.made[-1], outputs=(output,))
        if output == self.node.outputs[0]:
            self.made[-1] = replace(self.made[-1], name=self.node.proto.name)


def respelled(model: Model, found: Callable[[Scope, Names], Iterable[Replacement]]) -> bool:
    """Carries out, in place, what is found in each scope of a model; False where there is nothing."""
    names = Names(model)
    replacements = [replacement for scope in model.scopes() for replacement in found(scope, names)]
    if replacements:
        apply(model, replacements, (), names)
    return bool(replacements)


def split(
    opset: int, name: str, value: str, axis: int, sizes: tuple[int, ...], results: tuple[str, ...], like: int
) -> NewNode:
    """A Split as the opset has it: the sizes are an attribute or an input."""
    known = signature("Split", opset)
    if known is not None and "split" in known.inputs:
        return NewNode("Split", name, (value, sizes), results, (("axis", axis),), like=like)
    return NewNode("Split", name, (value,), results, (("axis", axis), ("split", sizes)), like=like)


def with_axes(op: str, opset: int, name: str, value: str, axes: tuple[int, ...], result: str, like: int) -> NewNode:
    """A Squeeze or Unsqueeze as the opset has it: the axes are an attribute or an input."""
    known = signature(op, opset)
    if known is not None and "axes" in known.inputs:
        return NewNode(op, name, (value, axes), (result,), like=like)
    return NewNode(op, name, (value,), (result,), (("axes", axes),), like=like)
