"""From groups of nodes to fusions: operands, outputs, and the expression that the fused node carries."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from atcfuse.autofuse.broadcasts import Shape, Split, kind_of, narrowed, preferred
from atcfuse.autofuse.candidates import BFLOAT16, FLOATS, NAMES, Candidate, Reader
from atcfuse.autofuse.grouping import Bounds, Load, Vertex, cut, grow, space_of
from atcfuse.autofuse.rule import RULE
from atcfuse.elementwise import (
    BOOL,
    CLIP_TO,
    COLUMN,
    COMPARISONS,
    MAX_INPUTS,
    MAX_OUTPUTS,
    MOST_ELEMENTS,
    REDUCTIONS,
    SOFTMAXES,
    Argument,
    Expression,
    Input,
    Operand,
    Step,
    parse_expression,
    row_bytes,
)
from atcfuse.graph.index import Node, Scope
from atcfuse.graph.traffic import KindsOf
from atcfuse.keep_nodes import NO_NODES, KeepNodes
from atcfuse.kernel import KernelSpec
from atcfuse.match.find import Match
from atcfuse.match.values import Value
from atcfuse.meaning import signature_of
from atcfuse.rewrite import Fusion
from atcfuse.safety import Extent

_NEGATIVE_AXES_SINCE = 11
_FRAME_CALLS = 40
"""Calls of a kernel beside its steps: copies, queues, waits."""
_CALLS = {
    **dict.fromkeys(("Softplus", "HardSwish", "HardSigmoid"), 12),
    **dict.fromkeys(("Mish", "GeluTanh"), 18),
    **dict.fromkeys(("Gelu", "Elu", "LeakyRelu"), 10),
    **dict.fromkeys(("Where", "Cast", "Not", "Clip", "Reciprocal"), 6),
    **dict.fromkeys(REDUCTIONS, 8),
    **dict.fromkeys(SOFTMAXES, 24),
}
_CHEAP = (
    frozenset(
        {"Add", "Sub", "Mul", "Min", "Max", "Sum", CLIP_TO, "Neg", "Abs", "Cast", "Where", "Not", "And", "Or", "Xor"}
    )
    | COMPARISONS
)
"""Steps that may be computed again for every row or column that their result is broadcast along."""
_CALLS_OTHERWISE = 4
"""Calls of a step with its waits, and what it takes to load and store a value."""


@dataclass(frozen=True)
class Limits:
    """What a kernel of the chip at hand can hold: calls in its code, values at once, element types.

    Rows must be multiples of `whole_blocks` elements, 1 where the chip copies parts of 32-byte blocks. Rows that are
    reduced have at most `longest` columns, and with all that is held beside them `ub` bytes.
    """

    calls: int = 256
    live: int = 12
    types: frozenset[int] = FLOATS | {BOOL}
    whole_blocks: int = 1
    longest: int = MOST_ELEMENTS
    ub: int = 150_000

    @staticmethod
    def of(family: str | None, calls: int, ub: int) -> Limits:
        """The limits of a chip family with room for so many calls and bytes of its unified buffer."""
        if family == "310P":
            return Limits(calls, types=(FLOATS | {BOOL}) - {BFLOAT16}, whole_blocks=32, longest=0, ub=ub)
        return Limits(calls, ub=ub)


@dataclass(frozen=True)
class LeftOut:
    """Nodes that could be steps but for a limit of the kernel: why not, as code and reason."""

    anchor: Node
    members: frozenset[int]
    code: str
    reason: str


@dataclass(frozen=True)
class Found:
    """The groups of a scope as fusions, and what only a limit kept out of them."""

    fusions: list[Fusion]
    left_out: list[LeftOut]


def find_fusions(
    scope: Scope, spec: KernelSpec, limits: Limits, kinds_of: KindsOf, keep: KeepNodes = NO_NODES
) -> list[Fusion]:
    """The groups of two and more element-wise launches of a scope, as fusions that are safe all at once."""
    return search(scope, spec, limits, kinds_of, keep).fusions


def search(scope: Scope, spec: KernelSpec, limits: Limits, kinds_of: KindsOf, keep: KeepNodes = NO_NODES) -> Found:
    """The same, with what limits of the chip at hand leave out."""
    grouping = _Grouping(scope, spec, limits, kinds_of, keep)
    fusions = grouping.fusions()
    taken = {member for fusion in fusions for member in fusion.match.members}
    left_out = [entry for entry in grouping.left_out() if taken.isdisjoint(entry.members)]
    if limits.whole_blocks > 1:
        for fusion in find_fusions(scope, spec, replace(limits, whole_blocks=1, longest=0), kinds_of, keep):
            match = fusion.match
            if taken.isdisjoint(match.members):
                reason = f"it moves whole blocks of 32 elements, and {match.anchor.name!r} may give less than one"
                left_out.append(LeftOut(match.anchor, match.members, "ATF336", reason))
    return Found(fusions, left_out)


def steps_of(
    scope: Scope, limits: Limits, kinds_of: KindsOf, keep: KeepNodes = NO_NODES
) -> tuple[Reader, dict[int, Candidate]]:
    """The nodes of a scope that can be steps by their positions in the topological order, and who read them."""
    kinds = kinds_of(scope)
    for name in [n for n in scope.alias if keep.entries and n in scope.producers]:
        if keep.reason(scope.producers[name].name, scope.producers[name].op):
            del scope.alias[name]  # a no-op that is to stay is not looked through
    longest = limits.longest if scope.model.opset >= _NEGATIVE_AXES_SINCE else 0
    reader = Reader(scope, limits.types, limits.whole_blocks, longest)
    steps: dict[int, Candidate] = {}
    for position, index in enumerate(scope.order):
        node = scope.nodes[index]
        if node.op not in NAMES or kinds[index] != "launch" or _left_out(scope, node, keep):
            continue
        found = reader.candidate(node)
        if found is not None:
            steps[position] = found
    return reader, steps


def _left_out(scope: Scope, node: Node, keep: KeepNodes) -> bool:
    """No-ops are looked through, dead nodes stay dead, and the user's word counts."""
    made = node.outputs[0]
    dead = not made or (not scope.readers(made) and not scope.is_output(made))
    return dead or made in scope.alias or bool(keep.reason(node.name, node.op))


class _Grouping:
    """One scope. Positions are those of the topological order."""

    def __init__(self, scope: Scope, spec: KernelSpec, limits: Limits, kinds_of: KindsOf, keep: KeepNodes) -> None:
        self.scope, self.spec, self.limits = scope, spec, limits
        self._too_long: list[LeftOut] = []
        self._reader, self.steps = steps_of(scope, limits, kinds_of, keep)
        for position, step in self.steps.items():
            if step.op in _CHEAP and self._read_by_one(step):
                self.steps[position] = replace(step, space=replace(step.space, lone=True))
        self._remote = self._remote_readers()

    def _remote_readers(self) -> dict[str, list[Node]]:
        """Steps that read a value through no-ops of which the last does not read it itself, such as two casts."""
        scope, found = self.scope, {}  # type: Scope, dict[str, list[Node]]
        for name, origin in scope.alias.items():
            maker = scope.producers.get(name)
            if maker is not None and origin not in maker.inputs:
                steps = [r for r in scope.consumers.get(name, ()) if scope.positions[r.index] in self.steps]
                found.setdefault(origin, []).extend(steps)
        return found

    def _read_by_one(self, step: Candidate) -> bool:
        """Whether one step reads the result, through no-ops or not, and nobody else."""
        scope, value = self.scope, step.node.outputs[0]
        while not scope.escapes(value):
            readers = {reader.index: reader for reader in scope.consumers.get(value, ())}
            if len(readers) != 1:
                return False
            (reader,) = readers.values()
            if scope.positions[reader.index] in self.steps:
                return True
            if len(reader.outputs) != 1 or reader.outputs[0] not in scope.alias:
                return False
            value = reader.outputs[0]
        return False

    def fusions(self) -> list[Fusion]:
        """All fusions in the order of the graph."""
        found = self._grouped()
        for last in (False, True):
            long = [piece for piece, fusion in found if not self._fits(piece, fusion)]
            if not long:
                break
            # Such reductions are no steps; what is left of their groups is grouped anew.
            positions = list(self.steps) if last else [position for piece in long for position in piece]
            for position in positions:
                if self.steps[position].rows:
                    self._too_long.append(_long(self.steps.pop(position)))
            found = self._grouped()
        return [fusion for _, fusion in found]

    def left_out(self) -> Iterator[LeftOut]:
        """Reductions and integers beside steps, or beside each other, that are none themselves."""
        yield from self._too_long
        refused = self._reader.refused
        for index, (code, reason) in refused.items():
            node = self.scope.nodes[index]
            beside = [self._position(self.scope.source(value)) for value in node.inputs if value]
            beside += [self.scope.positions[r.index] for r in self.scope.consumers.get(node.outputs[0], ())]
            if any(p in self.steps or self.scope.order[p] in refused for p in beside if p is not None):
                yield LeftOut(node, frozenset({index}), code, reason)

    def _grouped(self) -> list[tuple[list[int], Fusion]]:
        bounds = Bounds(MAX_INPUTS, MAX_OUTPUTS, max(self.limits.calls - _FRAME_CALLS, 1), self.limits.live)
        found: list[tuple[list[int], Fusion]] = []
        for group in grow(self._vertices()):
            if len(group) > 1:
                load = self._loads(group)
                pieces = [piece for piece in cut(group, load, bounds) if len(piece) > 1]
                made = ((piece, self._fusion(piece)) for piece in pieces)
                found += [(piece, fusion) for piece, fusion in made if fusion is not None]
        return found

    def _fits(self, piece: Sequence[int], fusion: Fusion) -> bool:
        """Whether rows that are reduced fit on chip whole, with all that is held beside them."""
        reduced = [self.steps[p] for p in piece if self.steps[p].rows]
        if not reduced:
            return True
        columns = preferred(reduced[0].space.splits).columns
        count = math.prod(d for d in reduced[0].space.shape[-columns:] if isinstance(d, int))
        return row_bytes(parse_expression(str(fusion.attributes["expression"])), count) <= self.limits.ub

    # ------------------------------------------------------------ the graph

    def _vertices(self) -> list[Vertex]:
        captured = self._captured()
        vertices: list[Vertex] = []
        for position, index in enumerate(self.scope.order):
            step = self.steps.get(position)
            node = self.scope.nodes[index]
            names = step.values if step else [*node.inputs, *captured.get(index, ())]
            sources = {p for p in map(self._position, names) if p is not None}
            if step is None:
                vertices.append(Vertex(tuple(sources)))
                continue
            alike = frozenset(s for s in sources if s in self.steps and _fusible(self.steps[s], step))
            vertices.append(Vertex(tuple(sources), step.space, alike))
        return vertices

    def _captured(self) -> dict[int, set[str]]:
        found: dict[int, set[str]] = {}
        for node, body in self.scope.bodies:
            found.setdefault(node.index, set()).update(body.free_names())
        return found

    def _position(self, value: str) -> int | None:
        node = self.scope.producers.get(value)
        return None if node is None else self.scope.positions[node.index]

    def _loads(self, group: Sequence[int]) -> dict[int, Load]:
        members = set(group)
        found: dict[int, Load] = {}
        for position in group:
            step = self.steps[position]
            sources = [(value, self._position(value)) for value in step.values]
            inside = tuple(p for _, p in sources if p in members and p is not None)
            operands = tuple(value for value, p in sources if p not in members)
            calls = _CALLS.get(step.op, _CALLS_OTHERWISE)
            # A no-op may be read by another piece, which nobody knows yet: here it counts as a reader.
            outside = self._readers_outside(step, members, members_of_piece=False)
            found[position] = Load(operands, inside, len(outside), calls)
        return found

    def _readers_outside(self, step: Candidate, members: set[int], members_of_piece: bool = True) -> list[Node | None]:
        """Who reads a step's result outside a set; None stands for the graph's outputs and nested bodies."""
        scope, value = self.scope, step.node.outputs[0]
        readers: list[Node | None] = [None] if scope.escapes(value) else []
        for reader in (*scope.consumers.get(value, ()), *self._remote.get(value, ())):
            position = scope.positions[reader.index]
            if position not in members and not (members_of_piece and self._looked_through(reader, members)):
                readers.append(reader)
        return readers

    def _looked_through(self, reader: Node, members: set[int]) -> bool:
        """Whether a reader is a no-op that nobody but the set needs, so that it dies with it."""
        made = reader.outputs[0] if len(reader.outputs) == 1 else ""
        if made not in self.scope.alias or self.scope.escapes(made):
            return False
        readers = self.scope.consumers.get(made, ())
        return bool(readers) and all(self.scope.positions[r.index] in members for r in readers)

    # ------------------------------------------------------------ fusions

    def _fusion(self, piece: Sequence[int]) -> Fusion | None:
        """The fusion of a piece; None where only shapes are read of it."""
        members = set(piece)
        steps = [self.steps[p] for p in piece]
        inputs = list(dict.fromkeys(v for s in steps for v in s.values if self._position(v) not in members))
        outputs: list[int] = []
        shapes: dict[int, tuple[Extent, ...]] = {}
        for at, step in enumerate(steps):
            rewritten = self._shapes(step, members, inputs)
            if rewritten is None:
                outputs.append(at)
            else:
                shapes.update(rewritten)
        if not outputs:
            return None
        expression = self._expression(steps, inputs, outputs)
        if expression is None:
            return None
        match = Match(
            rule=RULE,
            scope=self.scope,
            anchor=steps[-1].node,
            members=frozenset(s.node.index for s in steps),
            outputs=tuple(steps[at].node.outputs[0] for at in outputs),
            env={},
            labels=(),
            shapes=shapes,
        )
        return _as_fusion(match, self.spec, expression, inputs)

    def _shapes(
        self, step: Candidate, members: set[int], inputs: Sequence[str]
    ) -> Mapping[int, tuple[Extent, ...]] | None:
        """The `Shape` nodes that read a vanishing result and where they find its extents; None for an output."""
        found: dict[int, tuple[Extent, ...]] = {}
        for reader in self._readers_outside(step, members):
            extents = self._extents(step, inputs) if reader is not None and reader.op == "Shape" else None
            if reader is None or extents is None:
                return None
            found[reader.index] = extents
        return found

    def _expression(
        self, steps: Sequence[Candidate], inputs: Sequence[str], outputs: Sequence[int]
    ) -> Expression | None:
        """What a kernel of the steps computes; None where inputs are broadcast as none can."""
        space = space_of(step.space for step in steps)
        if space is None:
            return None
        split, shape = preferred(space.splits), space.shape
        kinds = {value: kind_of(self.scope.fact(value).shape or (), shape, split) for value in inputs}
        made = {s.node.outputs[0]: at for at, s in enumerate(steps)}
        names = {value: at for at, value in enumerate(inputs)}
        types = {value: dtype for s in steps for value, dtype in s.types.items()}

        def argument(given: str | float) -> Argument:
            if not isinstance(given, str):
                return given
            return Operand("t", made[given]) if given in made else Operand("x", names[given])

        expression = Expression(
            columns=split.columns,
            rows=split.rows,
            inputs=tuple(Input(types[v], kind) for v, kind in kinds.items() if kind is not None),
            steps=tuple(Step(s.op, tuple(map(argument, s.arguments)), s.dtype) for s in steps),
            outputs=tuple(outputs),
        )
        return expression if None not in kinds.values() and _is_shaped(expression, steps, shape, split) else None

    def _extents(self, step: Candidate, inputs: Sequence[str]) -> tuple[Extent, ...] | None:
        places = {d: (v, i) for v in reversed(inputs) for i, d in enumerate(self.scope.fact(v).shape or ())}
        found = [size if isinstance(size, int) else places.get(size) for size in step.shape]
        return None if any(f is None for f in found) else tuple(f for f in found if f is not None)


def _long(step: Candidate) -> LeftOut:
    columns = preferred(step.space.splits).columns
    count = math.prod(d for d in step.space.shape[-columns:] if isinstance(d, int))
    reason = (
        f"rows of {count:,} columns do not fit on chip whole, with what is computed of them beside {step.node.name!r}"
    )
    return LeftOut(step.node, frozenset({step.node.index}), "ATF338", reason)


def _is_shaped(expression: Expression, steps: Sequence[Candidate], shape: Shape, split: Split) -> bool:
    """Whether the results have the shapes that the kernel gives them, or are broadcast to these inside of it."""
    narrow = narrowed(shape, expression.columns)
    for at, step in enumerate(steps):
        exact = step.shape == (narrow if expression.kind_of(Operand("t", at)) == COLUMN else shape)
        if not exact and (at in expression.outputs or kind_of(step.shape, shape, split) is None):
            return False
        value = expression.steps[at].arguments[0]
        if step.rows and not (isinstance(value, Operand) and expression.is_whole(value)):
            return False
    return True


def _fusible(source: Candidate, step: Candidate) -> bool:
    """Whether a step may be in the group of one that it reads: it reads whole rows, or one value of each."""
    if step.rows or source.shape == step.shape:
        return source.shape == step.space.shape
    if source.space.lone and any(kind_of(source.shape, step.shape, split) for split in step.space.splits):
        return True
    wide = {split.columns for split in step.space.splits if split.columns}
    return any(narrowed(step.shape, columns) == source.shape for columns in wide)


def _as_fusion(match: Match, spec: KernelSpec, expression: Expression, inputs: Sequence[str]) -> Fusion:
    attributes = {"expression": str(expression)}
    types = {f"x{i + 1}": given.dtype for i, given in enumerate(expression.inputs)}
    outputs = [f"y{i + 1}" for i in range(len(expression.outputs))]
    signature = signature_of(spec, attributes, types, outputs, match.scope.model.opset)
    values = tuple(Value(v) for v in inputs)
    return Fusion(match, spec, values, attributes, signature, expression.output_types)


def kept_by_user(scope: Scope, keep: KeepNodes, kinds_of: KindsOf) -> Iterator[Node]:
    """Nodes that could be steps and that the user wants left alone."""
    kinds = kinds_of(scope)
    for node in scope.nodes:
        if node.op in NAMES and kinds[node.index] == "launch" and bool(keep.reason(node.name, node.op)):
            yield node


__all__ = ["Found", "LeftOut", "Limits", "find_fusions", "kept_by_user", "search", "steps_of"]
