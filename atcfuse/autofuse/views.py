"""Views between element-wise operators, moved behind them, so that both sides can be one group.

A view (Reshape, Squeeze, Unsqueeze, Flatten) keeps the order of elements. An element-wise operator behind it computes
the same in front of it where its other operands are one element, are broadcast along last axes that the view leaves
alone, or come through a view from the same shape. A reduction that drops its axes is one that keeps them as 1, and a
Squeeze. All of this is said in standard operators, before anything is grouped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from atcfuse.autofuse.broadcasts import Shape
from atcfuse.autofuse.candidates import Reader
from atcfuse.autofuse.fusions import Limits, steps_of
from atcfuse.elementwise import OPERATORS, REDUCTIONS
from atcfuse.graph.edit import Names, NewNode, Replacement, apply
from atcfuse.graph.index import Model, Node, Scope
from atcfuse.graph.schema import signature
from atcfuse.graph.traffic import KindsOf
from atcfuse.keep_nodes import NO_NODES, KeepNodes


@dataclass(frozen=True)
class _Frame:
    """What a value is a view of: another value of that shape, by a view like that node or a Squeeze of axes."""

    value: str
    shape: Shape
    like: Node | None = None
    axes: tuple[int, ...] = ()


@dataclass
class _Edit:
    """A node that works on another shape: its new inputs, and the value that it makes then."""

    node: Node
    inputs: list[str]
    made: str
    attributes: dict[str, object]


@dataclass(frozen=True)
class Moves:
    """Views to be moved: the replacements, and the names of the operators that will work on other shapes."""

    replacements: tuple[Replacement, ...]
    operators: frozenset[str]
    names: Names

    def carry_out(self, model: Model) -> None:
        """Moves them, in place."""
        apply(model, self.replacements, (), self.names)


def find_moves(model: Model, limits: Limits, kinds_of: KindsOf, keep: KeepNodes = NO_NODES) -> Moves | None:
    """The views that stand between operators which can be steps, None where there are none."""
    names = Names(model)
    replacements: list[Replacement] = []
    operators: set[str] = set()
    for scope in model.scopes():
        found = _Scope(scope, limits, kinds_of, keep, names)
        found.walk()
        replacements += found.replacements()
        operators.update(edit.node.name for edit in found.edits.values())
    return Moves(tuple(replacements), frozenset(operators), names) if replacements else None


@dataclass
class _Scope:
    scope: Scope
    limits: Limits
    kinds_of: KindsOf
    keep: KeepNodes
    names: Names
    edits: dict[str, _Edit] = field(default_factory=dict)
    frames: dict[str, _Frame] = field(default_factory=dict)
    read: dict[str, set[int]] = field(default_factory=dict)
    restored: dict[str, tuple[str, Node]] = field(default_factory=dict)

    def walk(self) -> None:
        """Looks at every node once, in topological order."""
        scope, kinds = self.scope, self.kinds_of(self.scope)
        reader, steps = steps_of(scope, self.limits, self.kinds_of, self.keep)
        makers = {step.node.outputs[0] for step in steps.values()}
        for position, index in enumerate(scope.order):
            node = scope.nodes[index]
            if kinds[index] == "view":
                self._view(node, makers)
            elif position in steps and not OPERATORS[steps[position].op].rows:
                self._step(node)
            elif kinds[index] == "launch" and not self.keep.reason(node.name, node.op):
                self._reduction(node, reader, makers)
        for value, edit in list(self.edits.items()):
            source = edit.node.input(0)
            if (
                edit.node.op in REDUCTIONS
                and value not in self.read
                and source not in makers
                and source not in self.edits
            ):
                del self.edits[value]  # nothing on either side that it could be grouped with

    def _view(self, node: Node, makers: set[str]) -> None:
        source, made = node.input(0), node.outputs[0]
        shape, own = self.scope.fact(source).shape, self.scope.fact(made).shape
        if shape is None or own is None or self.keep.reason(node.name, node.op):
            return
        frame = self.frames.get(source)
        if frame is None:
            if source in makers and made not in self.scope.alias:
                self.frames[made] = _Frame(source, shape, like=node)
        elif frame.shape == own and source in self.edits and source not in self.restored:
            self.restored[source] = made, node
            self._note(source, node)

    def _step(self, node: Node) -> None:
        shape = self.scope.fact(node.outputs[0]).shape
        framed = [i for i in dict.fromkeys(node.inputs) if i in self.frames]
        if not framed or shape is None:
            return
        framed = [i for i in framed if self.scope.fact(i).shape == shape]
        for first in dict.fromkeys(self.frames[i].shape for i in framed):
            alike = [i for i in framed if self.frames[i].shape == first]
            kept = _common_tail(first, shape)
            if all(self._goes_along(i, len(first), kept) for i in node.inputs if i and i not in alike):
                self._move(node, alike)
                return

    def _move(self, node: Node, framed: Sequence[str]) -> None:
        """Notes that a node works on what these operands are views of."""
        for value in framed:
            self._note(value, node)
        inputs = [self.frames[i].value if i in framed else i for i in node.inputs]
        self._edit(node, inputs, self.frames[framed[0]], dict(node.attributes))

    def _goes_along(self, value: str, rank: int, kept: int) -> bool:
        """Whether an operand is broadcast to the other shape as it is to this one."""
        shape = self.scope.fact(value).shape
        if shape is None:
            return False
        return len(shape) <= kept or (len(shape) <= rank and all(size == 1 for size in shape))

    def _reduction(self, node: Node, reader: Reader, makers: set[str]) -> None:
        count = reader.squeezed(node)
        shape = self.scope.fact(node.input(0)).shape
        if not count or shape is None:
            return
        axes = tuple(range(len(shape) - count, len(shape)))
        frame = _Frame("", (*shape[:-count], *(1,) * count), axes=axes)
        self._edit(node, list(node.inputs), frame, {**node.attributes, "keepdims": 1})

    def _edit(self, node: Node, inputs: list[str], frame: _Frame, attributes: dict[str, object]) -> None:
        made = self.names.fresh(f"{node.outputs[0]}/kept")
        self.edits[node.outputs[0]] = _Edit(node, inputs, made, attributes)
        self.frames[node.outputs[0]] = _Frame(made, frame.shape, frame.like, frame.axes)

    def _note(self, value: str, node: Node) -> None:
        """That a node reads what the value is a view of."""
        self.read.setdefault(value, set()).add(node.index)

    def _wanted(self, value: str) -> bool:
        """Whether anybody still reads the value in its own shape."""
        scope = self.scope
        if scope.escapes(value):
            return True
        others = self.read.get(value, set())
        return any(reader.index not in others for reader in scope.consumers.get(value, ()))

    # ------------------------------------------------------------ the edit

    def replacements(self) -> list[Replacement]:
        """One for every node that works on another shape now, with the view behind it where its result needs one."""
        renamed = {self.edits[v].made: made for v, (made, _) in self.restored.items() if v in self.edits}
        found = []
        for value, edit in self.edits.items():
            members = {edit.node.index}
            inputs = tuple(renamed.get(i, i) for i in edit.inputs)
            output = renamed.get(edit.made, edit.made)
            node, attributes = edit.node, tuple(edit.attributes.items())
            new = [NewNode(node.op, node.proto.name, inputs, (output,), attributes, like=node.index)]
            if value in self.restored:
                members.add(self.restored[value][1].index)
            if self._wanted(value):
                new.append(self._restoring(value, output))
            found.append(Replacement(self.scope, frozenset(members), tuple(new)))
        return found

    def _restoring(self, value: str, made: str) -> NewNode:
        """The view that gives a value its own shape again."""
        frame, name = self.frames[value], self.names.fresh(f"{value}/view")
        if frame.like is not None:
            node = frame.like
            inputs = (made, *node.inputs[1:])
            return NewNode(node.op, name, inputs, (value,), tuple(node.attributes.items()), like=node.index)
        known = signature("Squeeze", self.scope.model.opset)
        if known is not None and "axes" in known.inputs:
            return NewNode("Squeeze", name, (made, frame.axes), (value,))
        return NewNode("Squeeze", name, (made,), (value,), (("axes", frame.axes),))


def _common_tail(a: Sequence[object], b: Sequence[object]) -> int:
    """How many last axes two shapes have in common."""
    count = 0
    while count < min(len(a), len(b)) and a[-1 - count] == b[-1 - count]:
        count += 1
    return count
