"""Dims of a region as letters, and a small size for each, so that the example of a rule is small.

An extent becomes a letter, the same wherever it occurs; where an operator's parameters are tied to extents (Slice,
Conv, …) the numbers stay. What Reshape splits or merges and Concat adds up is worked out from the parts.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence

from atcfuse.dims import Dim, Poly, as_symbol, evaluate, product
from atcfuse.graph.index import Node, Scope
from atcfuse.skeleton.region import Region

FREE = frozenset({
    "Abs", "Add", "And", "BatchNormalization", "Cast", "Ceil", "Clip", "Concat", "Cos", "Div", "Elu", "Equal", "Erf",
    "Exp", "Expand", "Floor", "Gelu", "Gemm", "Greater", "GreaterOrEqual", "HardSigmoid", "HardSwish",
    "InstanceNormalization", "IsInf", "IsNaN", "LayerNormalization", "LeakyRelu", "Less", "LessOrEqual", "Log",
    "LogSoftmax", "MatMul", "Max", "Min", "Mish", "Mod", "Mul", "Neg", "Not", "Or", "PRelu", "Pow", "RMSNormalization",
    "Reciprocal", "ReduceL1", "ReduceL2", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum",
    "ReduceSumSquare", "Relu", "Reshape", "Round", "Selu", "Sigmoid", "Sign", "Sin", "Softmax", "Softplus", "Softsign",
    "Sqrt", "Squeeze", "Sub", "Sum", "Tanh", "ThresholdedRelu", "Transpose", "Unsqueeze", "Where", "Xor",
})  # fmt: skip
"""Operators whose meaning does not change with the size of an axis; those of others keep their numbers."""

_LETTERS = "BSKMNHDLEFGPQRUVWXYZACIJO"
_SMALL = (2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12)


class Sizes:
    """Letters and example sizes of the extents of a region; with `generalised` false only symbolic ones get letters."""

    def __init__(self, region: Region, generalised: bool) -> None:
        self._scope = region.scope
        self._parts: dict[Dim, tuple[str, tuple[Dim, ...]]] = {}
        pinned = set() if generalised else {d for n in region.nodes for d in _extents(region.scope, n)}
        for node in region.nodes:
            if node.op not in FREE:
                pinned.update(_extents(region.scope, node))
            elif generalised:
                self._parts.update(_derived(region.scope, node))
        self._pinned = _spread(pinned, self._parts)
        self._names: dict[Dim, str] = {}
        self._sizes: dict[Dim, int] = {}
        self._symbols: dict[str, int] = {}
        for value in (*region.inputs, *(o for n in region.nodes for o in n.outputs)):
            for dim in region.scope.fact(value).shape or () if value else ():
                self._name(dim)

    def _name(self, dim: Dim) -> None:
        if dim in self._names or (isinstance(dim, int) and (dim <= 1 or dim in self._pinned)):
            return
        self._names[dim] = self._letter(dim)
        if dim in self._parts:
            for part in self._parts[dim][1]:
                self._name(part)
        elif isinstance(dim, int) or _is_plain(dim):
            self._sizes[dim] = next((s for s in _SMALL if s not in self._sizes.values()), len(self._sizes) + 2)
            if isinstance(dim, Poly):
                self._symbols[str(dim)] = self._sizes[dim]

    def _letter(self, dim: Dim) -> str:
        wanted = re.sub(r"[^A-Za-z]", "", str(dim))[:1].upper() if isinstance(dim, Poly) else ""
        free = [c for c in (wanted, *_LETTERS) if c and c != "T" and c not in self._names.values()]
        return free[0] if free else f"D{len(self._names)}"

    def text(self, dim: Dim) -> str:
        """An extent as a rule writes it: a letter, or the number that it must be."""
        return self._names.get(dim, str(dim))

    def size(self, dim: Dim) -> int:
        """The extent in the example."""
        if dim in self._parts and dim not in self._pinned:
            op, parts = self._parts[dim]
            sizes = [self.size(p) for p in parts]
            return math.prod(sizes) if op == "*" else sum(sizes)
        if dim in self._sizes:
            return self._sizes[dim]
        if isinstance(dim, int):
            return dim
        return evaluate(dim, _Known(self._symbols))

    def letters(self) -> Mapping[str, Dim]:
        """The number behind every letter that stands for one."""
        return {name: dim for dim, name in self._names.items()}


class _Known(dict[str, int]):
    """Sizes of symbols; of those that no value of the region has, the least that is not one."""

    def __missing__(self, name: str) -> int:
        return _SMALL[0]


def _is_plain(dim: Dim) -> bool:
    """Whether an extent is one symbol that nothing computes."""
    found = as_symbol(dim)
    return found is not None and not found.op


def _extents(scope: Scope, node: Node) -> set[Dim]:
    values = (*node.inputs, *node.outputs)
    return {d for v in values if v for d in scope.fact(v).shape or () if isinstance(d, int)}


def _derived(scope: Scope, node: Node) -> Iterator[tuple[Dim, tuple[str, tuple[Dim, ...]]]]:
    """Extents that are products (Reshape) or sums (Concat) of others."""
    before, after = scope.fact(node.input(0)).shape, scope.fact(node.outputs[0]).shape
    if before is None or after is None:
        return
    if node.op == "Reshape":
        yield from _factors(before, after)
    elif node.op == "Concat":
        axis = node.attributes.get("axis", 0)
        shapes = [scope.fact(i).shape for i in node.inputs]
        parts = tuple(s[axis] for s in shapes if s is not None)
        if len(parts) == len(node.inputs) > 1:
            yield after[axis], ("+", parts)


def _factors(before: Sequence[Dim], after: Sequence[Dim]) -> Iterator[tuple[Dim, tuple[str, tuple[Dim, ...]]]]:
    """The groups of axes that a Reshape maps to each other, where one side of a group is a single axis."""
    left, right = list(before), list(after)
    while left and right:
        group = next(
            (
                (i, j)
                for total in range(2, len(left) + len(right) + 1)
                for i in range(1, min(total, len(left) + 1))
                if 1 <= (j := total - i) <= len(right) and product(left[:i]) == product(right[:j])
            ),
            None,
        )
        if group is None:
            return
        one, many = (left[: group[0]], right[: group[1]])
        left, right = left[group[0] :], right[group[1] :]
        if len(one) != 1:
            one, many = many, one
        parts = tuple(d for d in many if d != 1)
        if len(one) == 1 and len(parts) > 1 and one[0] not in parts and 0 not in parts:
            yield one[0], ("*", parts)


def _spread(pinned: set[Dim], parts: Mapping[Dim, tuple[str, tuple[Dim, ...]]]) -> frozenset[Dim]:
    """What is pinned, and all that is computed from or makes up something pinned."""
    while True:
        more = {d for whole, (_, some) in parts.items() if {whole, *some} & pinned for d in (whole, *some)} - pinned
        if not more:
            return frozenset(pinned)
        pinned |= more
