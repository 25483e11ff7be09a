"""Which nodes can be steps of an element-wise kernel, and what they read and compute."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

from atcfuse.autofuse.broadcasts import Shape, Split, common_splits, kind_of, narrowed, splits_of
from atcfuse.autofuse.grouping import Space
from atcfuse.dims import broadcast
from atcfuse.elementwise import (
    BOOL,
    CLIP_TO,
    COLUMN,
    INTEGERS,
    OPERATORS,
    REDUCTIONS,
    SOFTMAXES,
    Operand,
    Step,
    takes_integers,
)
from atcfuse.elementwise.functions import ROUNDINGS
from atcfuse.graph.index import Node, Scope
from atcfuse.graph.schema import parameter

FLOAT, FLOAT16, BFLOAT16, INT32, INT64 = 1, 10, 16, 6, 7
FLOATS = frozenset({FLOAT, FLOAT16, BFLOAT16})
MOST_AXES = 8
_SOFTMAX_OF_ONE_AXIS_SINCE = 13
_DEFAULTS = {
    "LeakyRelu": {"alpha": 0.01},
    "Elu": {"alpha": 1.0},
    "Celu": {"alpha": 1.0},
    "ThresholdedRelu": {"alpha": 1.0},
    "HardSigmoid": {"alpha": 0.2, "beta": 0.5},
    "Selu": {"alpha": 1.67326319217681884765625, "gamma": 1.05070102214813232421875},
}
_EXPONENTS = (0.5, 1.0, 1.5, 2.0, 3.0, 4.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0)
_HIGHEST = {FLOAT: 3.4028234663852886e38, FLOAT16: 65504.0, BFLOAT16: 3.3895313892515355e38}
"""The largest finite numbers: where Clip has no bound, that of the type holds, so that infinities become finite."""


@dataclass(frozen=True)
class Candidate:
    """A node as a step: `arguments` are values by name (no-ops looked through) and constants, in the step's order.

    `space` is what it works on: the shape of its result, or of what it reduces. `types` are the values' element types.
    """

    node: Node
    op: str
    arguments: tuple[str | float, ...]
    dtype: int
    shape: Shape
    space: Space
    types: Mapping[str, int]

    @property
    def rows(self) -> bool:
        """Whether it needs rows whole."""
        return OPERATORS[self.op].rows

    @property
    def values(self) -> list[str]:
        """The values that it reads."""
        return [a for a in self.arguments if isinstance(a, str)]


class Reader:
    """Reads candidates from a scope. `types` are the element types that the chip computes with.

    `whole_blocks` is for a chip that copies no parts of blocks: columns must be known to be a multiple of it. Rows
    of at most `longest` columns are reduced; `refused` says of other reductions and of integers why not, as code and
    reason.
    """

    def __init__(self, scope: Scope, types: frozenset[int], whole_blocks: int = 1, longest: int = 0) -> None:
        self._scope, self._types, self._blocks, self._longest = scope, types, whole_blocks, longest
        self._integers = self._blocks == 1
        self.refused: dict[int, tuple[str, str]] = {}

    def dtype(self, value: str) -> int:
        """The element type of a value."""
        return self._scope.fact(value).dtype

    def candidate(self, node: Node) -> Candidate | None:
        """The node as a step, None where it is none."""
        if node.op not in _READERS or len(node.outputs) != 1 or not node.outputs[0]:
            return None
        fact = self._scope.fact(node.outputs[0])
        if fact.shape is None or len(fact.shape) > MOST_AXES:
            return None
        if fact.dtype not in self._types:
            self._refuse_integers(node, fact.dtype)
            return None
        found = _READERS[node.op](self, node)
        if found is None:
            return None
        op, arguments = found
        if self._blocks > 1 and op in ROUNDINGS:
            return None
        if not OPERATORS[op].takes(len(arguments)):
            return None
        space = self._rows(node, op, arguments) if OPERATORS[op].rows else self._space(arguments, fact.shape)
        if space is None or not self._typed(op, arguments, fact.dtype):
            self._refuse_integers(node, *(self._scope.fact(a).dtype for a in arguments if isinstance(a, str)))
            return None
        types = {a: self._scope.fact(a).dtype for a in arguments if isinstance(a, str)}
        return Candidate(node, op, tuple(arguments), fact.dtype, fact.shape, space, types)

    def squeezed(self, node: Node) -> int:
        """How many last axes a reduction drops that would be a step if it kept them as 1; 0 for any other node."""
        if node.op not in REDUCTIONS or node.attributes.get("keepdims", 1) != 0 or len(node.outputs) != 1:
            return 0
        fact, made = self._scope.fact(node.input(0)), self._scope.fact(node.outputs[0])
        if fact.shape is None or len(fact.shape) > MOST_AXES or fact.dtype not in self._types & FLOATS:
            return 0
        count = self._columns_reduced(node, len(fact.shape))
        if not count or count == len(fact.shape) or self._unreduced(node, fact.shape[-count:]) is not None:
            return 0
        return count if made.shape == fact.shape[:-count] and made.dtype == fact.dtype else 0

    def number(self, value: str) -> float | None:
        """The one number of a constant value, None where it has none."""
        found = self._scope.fact(value).splat
        if not isinstance(found, (int, float)) or math.isnan(found):
            return None
        return float(found)

    def argument(self, value: str) -> str | float:
        """A constant as a number, any other value by the name of what it repeats."""
        number = self.number(value)
        return self._scope.source(value) if number is None else number

    def parameter(self, node: Node, name: str) -> Any:
        """A parameter of the node by name."""
        return parameter(self._scope, node, name)

    def _refuse_integers(self, node: Node, *types: int) -> None:
        """Notes that a node is no step for its integers, where it has some and the chip reads any."""
        if INT64 in types and self._integers:
            reason = f"{node.op} of int64, which is no type of the vector unit"
            self.refused[node.index] = "ATF340", reason
        elif INT32 in types and self._integers:
            reason = f"{node.op} of int32, of which float32 holds 24 bits and the vector unit promises no overflow"
            self.refused[node.index] = "ATF340", reason

    def _typed(self, op: str, arguments: Sequence[str | float], dtype: int) -> bool:
        """Whether the element types are those that the step takes."""
        operator = OPERATORS[op]
        values = arguments[: operator.values_of(len(arguments))]
        if not any(isinstance(v, str) for v in values) or any(isinstance(v, str) for v in arguments[len(values) :]):
            return False
        kinds = [self._scope.fact(v).dtype if isinstance(v, str) else 0 for v in values]
        if any(isinstance(v, str) and not k for v, k in zip(values, kinds, strict=True)):
            return False  # an element type that is not known
        masks = [
            position < len(operator.takes_bool) and operator.takes_bool[position] for position in range(len(values))
        ]
        if any(m and not isinstance(v, str) for m, v in zip(masks, values, strict=True)):
            return False
        numbers = {k for k, m in zip(kinds, masks, strict=True) if k and not m}
        if numbers & INTEGERS:
            step = Step(op, tuple(Operand("x", 0) if isinstance(a, str) else a for a in arguments), dtype)
            return self._integers and len(numbers) == 1 and takes_integers(step)
        if any(k != BOOL for k, m in zip(kinds, masks, strict=True) if k and m) or not numbers <= self._types:
            return False
        if op == "Cast":
            return True
        if operator.result == "bool":
            return dtype == BOOL and len(numbers) == 1 and numbers <= FLOATS
        return numbers <= {dtype} and (op == "Where" or dtype in FLOATS or not numbers)

    def _space(self, arguments: Sequence[str | float], shape: Shape) -> Space | None:
        """The result's shape with every split that all values allow; None where the node cannot be a step."""
        values = {a: self._scope.fact(a).shape for a in arguments if isinstance(a, str)}
        shapes = [s for s in values.values() if s is not None]
        # A constant stands for one number: the result must have its shape without it.
        if not shapes or len(shapes) != len(values) or _together(shapes) != shape:
            return None
        found = common_splits(shapes, shape)
        if self._blocks > 1:
            found = frozenset(split for split in found if self._fits(shape, split, shapes))
        return Space(shape, found, Split(0) in found) if found else None

    def _rows(self, node: Node, op: str, arguments: Sequence[str | float]) -> Space | None:
        """What a function of rows works on, whose columns must be the last axes, few enough and known."""
        (value,) = arguments
        shape = self._scope.fact(value).shape if isinstance(value, str) else None
        if shape is None or node.attributes.get("keepdims", 1) != 1:
            return None
        count = self._columns_reduced(node, len(shape)) if op in REDUCTIONS else self._axes_from(node, len(shape))
        if not count or count == len(shape):
            return None
        why_not = self._unreduced(node, shape[-count:])
        if why_not is not None:
            self.refused[node.index] = why_not
            return None
        made = self._scope.fact(node.outputs[0]).shape
        expected = narrowed(shape, count) if op in REDUCTIONS else shape
        splits = frozenset(split for split in splits_of(len(shape)) if split.columns == count)
        return Space(shape, splits) if made == expected else None

    def _columns_reduced(self, node: Node, rank: int) -> int:
        """How many last axes a reduction takes, 0 where it takes others."""
        axes = self.parameter(node, "axes")
        if not isinstance(axes, (tuple, list)) or not axes or not all(isinstance(a, int) for a in axes):
            return 0
        last = list(range(rank - len(axes), rank))
        return len(axes) if sorted(a % rank for a in axes) == last else 0

    def _axes_from(self, node: Node, rank: int) -> int:
        """How many last axes a softmax takes, 0 where it takes others."""
        axis = self.parameter(node, "axis")
        if not isinstance(axis, int) or not -rank <= axis < rank:
            return 0
        count = rank - axis % rank
        return count if count == 1 or self._scope.model.opset < _SOFTMAX_OF_ONE_AXIS_SINCE else 0

    def _unreduced(self, node: Node, columns: Shape) -> tuple[str, str] | None:
        """Why rows of these columns are not reduced."""
        if not self._longest:
            return "ATF324", f"{node.op} of rows has no kernel for this chip or opset"
        known = [d for d in columns if isinstance(d, int)]
        if len(known) != len(columns):
            return "ATF334", f"{node.op} of rows whose length is dynamic: only a known one surely fits on chip"
        count = math.prod(known)
        if count > self._longest:
            return "ATF338", f"{node.op} of rows of {count:,} columns, of which at most {self._longest:,} fit on chip"
        # Of rows of one column the results look like rows themselves, and a next step could not tell which they are.
        return None if count > 1 else ("ATF338", f"{node.op} of rows with fewer than two columns")

    def _fits(self, shape: Shape, split: Split, operands: Sequence[Shape]) -> bool:
        """Whether a chip that copies whole blocks only can work on a shape split so."""
        columns = split.columns
        if split.rows:
            return False
        if not columns:  # whatever the dynamic dims are, there is a whole block, or nothing
            return math.prod(d for d in shape if isinstance(d, int)) >= self._blocks
        sizes = shape[len(shape) - columns :]
        known = [d for d in sizes if isinstance(d, int)]
        whole = len(known) == len(sizes) and math.prod(known) % self._blocks == 0
        return whole and all(kind_of(operand, shape, split) != COLUMN for operand in operands)


def _together(shapes: Sequence[Shape]) -> Shape:
    rank = max(len(s) for s in shapes)
    padded = [(1,) * (rank - len(s)) + tuple(s) for s in shapes]
    return tuple(reduce(broadcast, dims) for dims in zip(*padded, strict=True))


_Read = tuple[str, Sequence["str | float"]]


def _plain(reader: Reader, node: Node) -> _Read | None:
    return node.op, [reader.argument(i) for i in node.inputs]


def _pow(reader: Reader, node: Node) -> _Read | None:
    exponent = reader.number(node.input(1))
    return ("Pow", [reader.argument(node.input(0)), exponent]) if exponent in _EXPONENTS else None


def _clip(reader: Reader, node: Node) -> _Read | None:
    bounds: list[float | None] = []
    highest = _HIGHEST.get(reader.dtype(node.input(0)))
    if highest is None:
        return None
    for position, (name, default) in enumerate((("min", -highest), ("max", highest)), 1):
        if isinstance(node.attributes.get(name), float):
            bounds.append(float(node.attributes[name]))
        elif node.input(position):
            bounds.append(reader.number(node.input(position)))
        else:
            bounds.append(default)
    low, high = bounds
    x = reader.argument(node.input(0))
    if low is None or high is None:  # Clip's own attributes and defaults are numbers
        given = (b if b is not None else reader.argument(node.input(i)) for i, b in enumerate(bounds, 1))
        return CLIP_TO, [x, *given]
    return ("Clip", [x, low, high]) if low <= high else None


def _with_attributes(reader: Reader, node: Node) -> _Read | None:
    values = [float(node.attributes.get(name, default)) for name, default in _DEFAULTS[node.op].items()]
    if not all(map(math.isfinite, values)):
        return None
    if node.op == "Celu" and not values[0]:
        return None
    return node.op, [reader.argument(node.input(0)), *values]


def _gelu(reader: Reader, node: Node) -> _Read | None:
    op = {"none": "Gelu", "tanh": "GeluTanh"}.get(str(node.attributes.get("approximate", "none")))
    return (op, [reader.argument(node.input(0))]) if op else None


def _sum(reader: Reader, node: Node) -> _Read | None:
    return "Add" if len(node.inputs) == 2 else "Sum", [reader.argument(i) for i in node.inputs]


def _of_rows(reader: Reader, node: Node) -> _Read | None:
    return node.op, [reader.argument(node.input(0))]


def _is_inf(reader: Reader, node: Node) -> _Read | None:
    signs = [float(node.attributes.get(f"detect_{name}", 1) != 0) for name in ("negative", "positive")]
    return ("IsInf", [reader.argument(node.input(0)), *signs]) if any(signs) else None


_BY_ATTRIBUTE = {
    **dict.fromkeys((*REDUCTIONS, *SOFTMAXES), _of_rows),
    **dict.fromkeys(_DEFAULTS, _with_attributes),
    "Pow": _pow,
    "Clip": _clip,
    "Gelu": _gelu,
    "Sum": _sum,
    "IsInf": _is_inf,
}
_READERS: Mapping[str, Callable[[Reader, Node], _Read | None]] = {
    op: _BY_ATTRIBUTE.get(op, _plain) for op in OPERATORS if op not in ("GeluTanh", CLIP_TO)
}
NAMES = frozenset(_READERS)
"""The ONNX operators that can be steps."""
