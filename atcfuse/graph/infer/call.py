"""One operator's call as its evaluation function sees it, and the arithmetic of shapes that these functions share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from atcfuse.dims import Dim, Poly, broadcast, is_nonnegative, split_constant, symbol
from atcfuse.graph.facts import UNKNOWN, Fact
from atcfuse.graph.validity import implied

if TYPE_CHECKING:
    from atcfuse.graph.index import Node, Scope

Shape = tuple[Dim, ...]

MAX_RANK = 64

TUPLES = frozenset(
    (
        *("axes", "dilations", "ends", "kernel_shape", "output_padding", "output_shape", "pads", "perm"),
        *("qkv_hidden_sizes", "scan_input_axes", "scan_output_axes", "shape", "split", "starts", "steps", "strides"),
    )
)
TEXTS = frozenset(
    ("auto_pad", "coordinate_transformation_mode", "direction", "equation", "keep_aspect_ratio_policy", "mode")
)
"""The attributes that hold integers and text; the others that are asked for hold one integer."""


class MalformedNodeError(Exception):
    """A node that no runtime can run, so that nothing can be said of its outputs."""


class Call:
    """A node with the facts of its inputs.

    `run` evaluates a nested body given the facts of its inputs; only control flow needs it.
    """

    __slots__ = ("bodies", "inputs", "name_symbol", "node", "opset", "run", "scope")

    def __init__(
        self,
        scope: Scope,
        node: Node,
        inputs: Sequence[Fact],
        opset: int,
        name_symbol: Callable[[str], str],
        bodies: Mapping[str, Scope],
        run: Callable[[Scope, Sequence[Fact]], None],
    ) -> None:
        self.scope, self.node, self.inputs, self.opset = scope, node, inputs, opset
        self.name_symbol, self.bodies, self.run = name_symbol, bodies, run

    def expect(self, count: int) -> None:
        """Raises MalformedNodeError unless the node has that many inputs."""
        if len(self.inputs) != count:
            raise MalformedNodeError(self.node.op)

    def input(self, position: int) -> Fact:
        """The fact of an input, UNKNOWN where it is absent."""
        return self.inputs[position] if position < len(self.inputs) else UNKNOWN

    def has_input(self, position: int) -> bool:
        """Whether an input is present."""
        return bool(self.node.input(position))

    def attribute(self, name: str, default: Any = None) -> Any:
        """The integer, integers or text of an attribute, or the default. Raises MalformedNodeError for other types."""
        if name not in self.node.attributes:
            return default
        value = self.node.attributes[name]  # None where its type is not told
        if not isinstance(value, tuple if name in TUPLES else str if name in TEXTS else int):
            raise MalformedNodeError(name)
        if isinstance(value, tuple) and not all(isinstance(v, int) for v in value):
            raise MalformedNodeError(name)
        return value

    def has(self, name: str, position: int) -> bool:
        """Whether a parameter is given, as an attribute or as an input (which of both depends on the opset)."""
        return name in self.node.attributes or self.has_input(position)

    def parameter(self, name: str, position: int) -> Shape | None:
        """The integers of a parameter given as an attribute or an input, or None where they are not known."""
        if name in self.node.attributes:
            value = self.attribute(name)
            return value if isinstance(value, tuple) else (value,)
        return self.input(position).elements

    def static_parameter(self, name: str, position: int) -> tuple[int, ...] | None:
        """As `parameter`, but None as well where an integer is symbolic."""
        return static(self.parameter(name, position))

    def fresh(self, axis: int, output: int = 0) -> Dim:
        """A new symbol for an unknown extent of an output."""
        return symbol(self.name_symbol(f"{self.node.outputs[output]}.dim{axis}"))

    def fresh_shape(self, rank: int, output: int = 0) -> Shape:
        """A shape of known rank and unknown extents. Raises MalformedNodeError for a rank that no runtime has."""
        if rank > MAX_RANK:
            raise MalformedNodeError(self.node.outputs[output])
        return tuple(self.fresh(i, output) for i in range(rank))

    def is_extent(self, dim: Dim) -> bool:
        """Whether a number is at least 0: by itself, or since a value made before this node has that extent or less."""
        if is_nonnegative(dim):
            return True
        rest, constant = split_constant(dim)
        scope: Scope | None = self.scope
        while scope is not None:
            if rest in scope.extents and scope.extents[rest] <= constant:
                return True
            scope = scope.parent
        return False

    def fresh_value(self, index: int, signed: bool) -> Dim:
        """A new symbol for an unknown integer element of the first output."""
        return value_symbol(self.node.outputs[0], index, signed, self.name_symbol)


def value_symbol(name: str, index: int, signed: bool, named: Callable[[str], str]) -> Dim:
    """A symbol for an unknown element; its name tells whether it may be negative."""
    return symbol(named(f"{name}[{index}]" if signed else f"{name}[{index}]?"), signed)


def static(dims: Iterable[Dim] | None) -> tuple[int, ...] | None:
    """The dims as numbers, or None where one is symbolic or nothing is known."""
    if dims is None:
        return None
    out = tuple(d for d in dims if not isinstance(d, Poly))
    return out if len(out) == len(dims) else None  # type: ignore[arg-type]


def normalized_axis(axis: Dim, rank: int) -> int | None:
    """An axis as a non-negative number, or None where it is not known or out of range."""
    if isinstance(axis, Poly) or not -rank <= axis < rank:
        return None
    return axis + rank if axis < 0 else axis


def normalized_axes(axes: Iterable[Dim] | None, rank: int) -> tuple[int, ...] | None:
    """Distinct axes as non-negative numbers, or None where one is not known, repeated or out of range."""
    if axes is None:
        return None
    out: list[int] = []
    for axis in axes:
        number = normalized_axis(axis, rank)
        if number is None or number in out:
            return None
        out.append(number)
    return tuple(out)


def broadcast_shapes(shapes: Sequence[Shape | None]) -> Shape | None:
    """The shape that broadcasting gives in a valid model, or None where a rank is not known."""
    out = shapes[0]
    for shape in shapes[1:]:
        if out is None or shape is None:
            return None
        if shape == out or not shape:
            continue
        if not out:
            out = shape
            continue
        short, long = (out, shape) if len(out) < len(shape) else (shape, out)
        lead = len(long) - len(short)
        out = long[:lead] + tuple(map(broadcast, long[lead:], short))
        if any(isinstance(d, Poly) for d in out):
            # A table of masks that was cut off on one axis would not broadcast: neither was the other one.
            out = implied(implied(out, short, long), long, short)
    return out


def replaced(shape: Shape, axis: int, dim: Dim) -> Shape:
    """The shape with one extent replaced."""
    return (*shape[:axis], dim, *shape[axis + 1 :])
