"""From groups of nodes to fusions: operands, outputs, and the expression that the fused node carries."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from atcfuse.autofuse.candidates import BFLOAT16, FLOATS, NAMES, Candidate, Reader
from atcfuse.autofuse.grouping import Bounds, Load, Vertex, cut, grow
from atcfuse.autofuse.rule import RULE
from atcfuse.elementwise import BOOL, MAX_INPUTS, MAX_OUTPUTS, Argument, Expression, Input, Operand, Step
from atcfuse.graph.index import Node, Scope
from atcfuse.graph.traffic import KindsOf
from atcfuse.keep_nodes import NO_NODES, KeepNodes
from atcfuse.kernel import KernelSpec
from atcfuse.match.find import Match
from atcfuse.match.values import Value
from atcfuse.meaning import signature_of
from atcfuse.rewrite import Fusion
from atcfuse.safety import Extent

_FRAME_CALLS = 40
"""Calls of a kernel beside its steps: copies, queues, waits."""
_CALLS = {
    **dict.fromkeys(("Softplus", "HardSwish", "HardSigmoid"), 12),
    **dict.fromkeys(("Mish", "GeluTanh"), 18),
    **dict.fromkeys(("Gelu", "Elu", "LeakyRelu"), 10),
    **dict.fromkeys(("Where", "Cast", "Not", "Clip", "Reciprocal"), 6),
}
_CALLS_OTHERWISE = 4
"""Calls of a step with its waits, and what it takes to load and store a value."""


@dataclass(frozen=True)
class Limits:
    """What a kernel of the chip at hand can hold: calls in its code, values at once, element types.

    Rows must be multiples of `whole_blocks` elements, 1 where the chip copies parts of 32-byte blocks.
    """

    calls: int = 256
    live: int = 12
    types: frozenset[int] = FLOATS | {BOOL}
    whole_blocks: int = 1

    @staticmethod
    def of(family: str | None, calls: int) -> Limits:
        """The limits of a chip family with room for so many calls."""
        if family == "310P":
            return Limits(calls, types=(FLOATS | {BOOL}) - {BFLOAT16}, whole_blocks=32)
        return Limits(calls)


def find_fusions(
    scope: Scope, spec: KernelSpec, limits: Limits, kinds_of: KindsOf, keep: KeepNodes = NO_NODES
) -> list[Fusion]:
    """The groups of two and more element-wise launches of a scope, as fusions that are safe all at once."""
    return _Grouping(scope, spec, limits, kinds_of, keep).fusions()


def too_short(
    scope: Scope,
    spec: KernelSpec,
    limits: Limits,
    kinds_of: KindsOf,
    found: Sequence[Fusion],
    keep: KeepNodes = NO_NODES,
) -> Iterator[Match]:
    """The groups that only the limit of whole blocks leaves out of those found."""
    if limits.whole_blocks == 1:
        return
    taken = {member for fusion in found for member in fusion.match.members}
    for fusion in find_fusions(scope, spec, replace(limits, whole_blocks=1), kinds_of, keep):
        if taken.isdisjoint(fusion.match.members):
            yield fusion.match


class _Grouping:
    """One scope. Positions are those of the topological order."""

    def __init__(self, scope: Scope, spec: KernelSpec, limits: Limits, kinds_of: KindsOf, keep: KeepNodes) -> None:
        self.scope, self.spec, self.limits = scope, spec, limits
        kinds = kinds_of(scope)
        reader = Reader(scope, limits.types, limits.whole_blocks)
        self.steps: dict[int, Candidate] = {}
        for position, index in enumerate(scope.order):
            node = scope.nodes[index]
            if node.op not in NAMES or kinds[index] != "launch" or self._left_out(node, keep):
                continue
            found = reader.candidate(node)
            if found is not None:
                self.steps[position] = found
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

    def _left_out(self, node: Node, keep: KeepNodes) -> bool:
        """No-ops are looked through, dead nodes stay dead, and the user's word counts."""
        made = node.outputs[0]
        dead = not self.scope.readers(made) and not self.scope.is_output(made)
        return dead or made in self.scope.alias or bool(keep.reason(node.name, node.op))

    def fusions(self) -> list[Fusion]:
        """All fusions in the order of the graph."""
        bounds = Bounds(MAX_INPUTS, MAX_OUTPUTS, max(self.limits.calls - _FRAME_CALLS, 1), self.limits.live)
        found: list[Fusion] = []
        for group in grow(self._vertices()):
            if len(group) > 1:
                load = self._loads(group)
                pieces = [self._fusion(piece) for piece in cut(group, load, bounds) if len(piece) > 1]
                found += [fusion for fusion in pieces if fusion is not None]
        return found

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
            alike = frozenset(s for s in sources if s in self.steps and self.steps[s].shape == step.shape)
            vertices.append(Vertex(tuple(sources), frozenset(step.kinds), alike))
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
        readers: list[Node | None] = [None] if scope.is_output(value) or value in scope.captured else []
        for reader in (*scope.consumers.get(value, ()), *self._remote.get(value, ())):
            position = scope.positions[reader.index]
            if position not in members and not (members_of_piece and self._looked_through(reader, members)):
                readers.append(reader)
        return readers

    def _looked_through(self, reader: Node, members: set[int]) -> bool:
        """Whether a reader is a no-op that nobody but the set needs, so that it dies with it."""
        made = reader.outputs[0] if len(reader.outputs) == 1 else ""
        if made not in self.scope.alias or self.scope.is_output(made) or made in self.scope.captured:
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
        expression = _expression(steps, inputs, outputs)
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

    def _extents(self, step: Candidate, inputs: Sequence[str]) -> tuple[Extent, ...] | None:
        places = {d: (v, i) for v in reversed(inputs) for i, d in enumerate(self.scope.fact(v).shape or ())}
        found = [size if isinstance(size, int) else places.get(size) for size in step.shape]
        return None if any(f is None for f in found) else tuple(f for f in found if f is not None)


def _expression(steps: Sequence[Candidate], inputs: Sequence[str], outputs: Sequence[int]) -> Expression:
    common = set.intersection(*(set(s.kinds) for s in steps))
    columns = min(common)
    kinds = {value: kind for s in steps for value, kind in s.kinds[columns].items()}
    made = {s.node.outputs[0]: at for at, s in enumerate(steps)}
    names = {value: at for at, value in enumerate(inputs)}
    types = {value: dtype for s in steps for value, dtype in s.types.items()}

    def argument(given: str | float) -> Argument:
        if not isinstance(given, str):
            return given
        return Operand("t", made[given]) if given in made else Operand("x", names[given])

    return Expression(
        columns=columns,
        inputs=tuple(Input(types[v], kinds[v]) for v in inputs),
        steps=tuple(Step(s.op, tuple(map(argument, s.arguments)), s.dtype) for s in steps),
        outputs=tuple(outputs),
    )


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


__all__ = ["Limits", "find_fusions", "kept_by_user", "too_short"]
