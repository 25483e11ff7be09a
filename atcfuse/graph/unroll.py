"""Unrolling: what was made of a short model's layers is made of those that were cut out of the long one.

The nodes of an optimized stretch come again and again, a layer further on each time; where the layers around the cut
came out alike but for names, so would those that were cut out. Nothing is taken for granted: nodes are compared one by
one, and where anything but names differs there is no unrolled model.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence, Set
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import onnx

from atcfuse.graph.dialect import FUSED_DOMAIN
from atcfuse.graph.edit import INT64_PREFIX, OWN, Names, drop_initializers, keep_annotations
from atcfuse.graph.index import Model, Node, Scope
from atcfuse.graph.layers import NotAlike
from atcfuse.graph.reroll import FIRST, SIDE, Short, Stretch
from atcfuse.graph.wording import as_much, scopes, spans

NODE_LIST = f"{OWN}nodes"
"""The one of them that lists names of nodes, as JSON."""
NEAR = 2
"""So many layers from a node what is told of it speaks of values at most, and its name of modules."""
_NUMBER = re.compile(r"_\d+$")
COPIED = SIDE - 1
"""The layer with which those start that are made again: there are neighbours on both sides that were compared."""
STRIDES = (1, 2)
"""So many layers may come out as one: the same for each, or in pairs."""


class _Part(NamedTuple):
    """A node of the optimized short model. `is_own` where it is one of the long model's own but for what it reads,
    `lists` are the names of nodes that metadata of a new one list.
    """

    node: onnx.NodeProto
    inputs: Sequence[str]
    outputs: Sequence[str]
    is_own: bool
    lists: Sequence[Sequence[str]]


class Unrolling:
    """The names that a short model's stretch has in the long model, those that were made anew included.

    `sequence` are the nodes of the optimized short model, `known` the names of the long model as it came but for those
    `clashing` with what was made anew. A segment is the nodes from one of a layer up to the same one `stride` layers
    behind; `renewed` are the values that nodes read or make which were made again. Raises NotAlike where segments
    differ.
    """

    def __init__(
        self,
        stretch: Stretch,
        sequence: Sequence[onnx.NodeProto],
        known: frozenset[str],
        clashing: frozenset[str],
        names: Names,
    ) -> None:
        self.stretch, self._sequence, self._names = stretch, sequence, names
        self._known, self._clashing = known, clashing
        self._places = {name: at for at, node in enumerate(sequence) for name in (node.name, *node.output) if name}
        self.renewed: set[str] = set()
        self._fixed: set[str] = set()
        self._next: dict[str, str] = {}
        self._unique: dict[tuple[str, int], str] = {}
        self._parts: dict[str, tuple[str, str, str, str] | None] = {}
        self._like: dict[int, Set[int]] = {}
        self.stride, self._starts = self._found_starts()
        self._copied = (COPIED - FIRST) // self.stride
        for segment in range(len(self._starts) - 2):
            self._compare(segment)
        names.take(name for name in self._places if not self._is_known(name) and self._stays(name))

    def _found_starts(self) -> tuple[int, list[int]]:
        """The stride, where the segments start in the sequence, and where the last one ends."""
        pivots = (o for node in self._sequence for o in node.output if self._is_known(o))
        for pivot in (o for o in pivots if self.stretch.layer_of(o) == FIRST):
            names = [pivot]
            while len(names) < 2 * SIDE - FIRST:
                names.append(self.stretch.ahead(names[-1]))
            starts = [self._places[name] for name in names if name in self._places]
            if len(starts) < len(names):
                continue
            for stride in STRIDES:
                every = starts[::stride]
                widths = {after - before for before, after in pairwise(every)}
                if len(widths) == 1 and min(widths) > 0:
                    return stride, every
        raise NotAlike

    def _compare(self, segment: int) -> None:
        """Raises NotAlike unless the nodes of a segment and the next one differ in names alone."""
        first, second = self._starts[segment : segment + 2]
        pairs = [(self._sequence[at], self._sequence[at + second - first]) for at in range(first, second)]
        for at, (node, after) in enumerate(pairs):
            if _apart_from_names(node) != _apart_from_names(after):
                raise NotAlike
            self._follow(node.output, after.output)
            if self._original(node) is None:
                self._follow([node.name], [after.name])
                self._note_likes(at, segment, node)
        for node, after in pairs:
            for name, behind in zip(node.input, after.input, strict=True):
                if name == behind and self._segment(name) < 0:
                    self._fixed.add(name)
                elif self._following(name) != behind:
                    raise NotAlike

    def _follow(self, names: Iterable[str], following: Iterable[str]) -> None:
        """Notes what new names are one segment further on; raises NotAlike where others are not what they were."""
        for name, after in zip(names, following, strict=True):
            if name and not self._is_known(name):
                self._next[name] = after
            elif self.stretch.ahead(name, self.stride) != after:
                raise NotAlike

    def _following(self, name: str) -> str:
        if self._is_known(name):
            return self.stretch.ahead(name, self.stride)
        return self._next.get(name, name)

    def _is_known(self, name: str) -> bool:
        return name in self._known

    def _original(self, node: onnx.NodeProto) -> Node | None:
        """The node of the long model that a node still is, but for what it reads."""
        found = self.stretch.scope.producers.get(next(iter(node.output), ""))
        if found is None or (found.proto.name, list(found.outputs)) != (node.name, list(node.output)):
            return None
        return found if _apart_from_names(found.proto) == _apart_from_names(node) else None

    def layer_of(self, name: str) -> int | None:
        """The layer of the short model that a name is of; None for what no layer has for itself."""
        if self._is_known(name):
            return self.stretch.layer_of(name)
        parts = self._in_parts(name)
        return None if parts is None else self.stretch.layer_of(parts[3])

    def name(self, name: str, by: int) -> str:
        """What a name is so many layers behind, as `Stretch` counts them. Raises NotAlike."""
        if name in self._fixed:
            return name
        if self._is_known(name):
            return self.stretch.placed(name, by)
        if name not in self._places:  # it was made and then taken up
            return self._worded(name, by)
        segment = self._segment(name)
        if segment < 0:
            return name
        if segment > len(self._starts) - 2:
            return self._anew(name, self.stretch.cut, copied=False)
        return self._in_segment(name, segment, segment + by // self.stride)

    def told(self, name: str, by: int) -> str:
        """What a name in a report is so many layers behind; one that is of no layer is the same."""
        try:
            return self.name(name, by)
        except NotAlike:
            return name

    def _stays(self, name: str) -> bool:
        """Whether a new name of the short model is one of the long model too."""
        return self._worded(name, 0 if self._segment(name) <= self._copied else self.stretch.cut) == name

    def _segment(self, name: str) -> int:
        """The segment that makes a value or has a node; negative for one in front of them all."""
        first, second = self._starts[:2]
        return (self._places.get(name, -1) - first) // (second - first)

    def _in_segment(self, name: str, segment: int, wanted: int) -> str:
        """What a name that is made in a segment of the short model is in one of the long model."""
        here = wanted if wanted <= self._copied else max(self._copied, wanted - self.stretch.cut // self.stride)
        while segment < here:
            name, segment = self._next[name], segment + 1
        while segment > here:
            name, segment = self._before[name], segment - 1
        return self._anew(name, (wanted - here) * self.stride, copied=here == self._copied < wanted)

    @cached_property
    def _before(self) -> dict[str, str]:
        return {after: name for name, after in self._next.items()}

    def _anew(self, name: str, by: int, *, copied: bool) -> str:
        """A new name as it is so many layers behind; `copied` where the short model has it as well."""
        key = name, by
        if key not in self._unique:
            worded = self._worded(name, by)
            is_kept = worded == name and not copied and name not in self._clashing
            self._unique[key] = name if is_kept else self._names.fresh(worded)
        return self._unique[key]

    def _worded(self, name: str, by: int) -> str:
        """A new name, with what it has of a layer's names replaced by what that is so many layers behind."""
        parts = self._in_parts(name)
        if parts is None:
            return name
        before, part, behind, known = parts
        return before + as_much(self.stretch.placed(known, by), part, known) + behind

    def _in_parts(self, name: str) -> tuple[str, str, str, str] | None:
        """What stands before and behind the longest part of a new name that is of one layer; last, a name with it."""
        if name not in self._parts:
            names = self._of_layers
            longest = next(((i, j) for i, j in spans(name) if name[i:j] in names or name[i:j] in self._known), (0, 0))
            start, stop = longest
            part = name[start:stop]
            self._parts[name] = (name[:start], part, name[stop:], names[part]) if part in names else None
        return self._parts[name]

    @cached_property
    def _of_layers(self) -> dict[str, str]:
        """Names of the layers, and name scopes that only names of one layer or two are in, each with such a name.

        A layer as it comes again may begin in the middle of a module.
        """
        layers: dict[str, set[int | None]] = {}
        found: dict[str, str] = {}
        for node in self.stretch.kept():
            for name in filter(None, (node.proto.name, *node.outputs)):
                layer = self.stretch.layer_of(name)
                for part in (name, *scopes(name)):
                    layers.setdefault(part, set()).add(layer)
                    found.setdefault(part, name)
        return {part: name for part, name in found.items() if len(layers[part]) < 3 and None not in layers[part]}

    def unrolled(self) -> list[onnx.NodeProto]:
        """The nodes of the long model in order. Raises NotAlike."""
        start, stop = self._starts[self._copied : self._copied + 2]
        cut, stride, parts = self.stretch.cut, self.stride, [self._part(node) for node in self._sequence]
        copied = parts[start:stop]
        return [
            *[self._moved(part, 0) for part in parts[:stop]],
            *[self._moved(part, by) for by in range(stride, cut + 1, stride) for part in copied],
            *[self._moved(part, cut) for part in parts[stop:]],
        ]

    def _part(self, node: onnx.NodeProto) -> _Part:
        own = self._original(node) is not None
        lists = () if own else _lists(node)
        if not own and self._is_misnamed(node):
            raise NotAlike
        return _Part(node, list(node.input), list(node.output), own, lists)

    def _is_misnamed(self, node: onnx.NodeProto) -> bool:
        """Whether a new node of a layer is called as if it were in one far away, where reports would tell of it."""
        its, made = self.layer_of(node.name), self.stretch.scope.producers.get(node.output[0])
        if its is None or made is None or not self.stretch.has(made.index):
            return False
        return abs(its - self.stretch.layer_at(made.index)) > NEAR

    def _moved(self, part: _Part, by: int) -> onnx.NodeProto:
        """A node as it is so many layers behind: one of the long model's own where it is one of them."""
        node, name = part.node, self.name
        inputs, outputs = [name(i, by) for i in part.inputs], [name(o, by) for o in part.outputs]
        if part.is_own:
            found = self.stretch.scope.producers[outputs[0]]
            if list(found.outputs) != outputs:
                raise NotAlike
            is_same = list(found.inputs) == inputs
            return found.proto if is_same else _with_names(found.proto, inputs, outputs, found.proto.name)
        made, lists = name(node.name, by), [[name(n, by) for n in names] for names in part.lists]
        if (made, inputs, outputs, lists) == (node.name, part.inputs, part.outputs, part.lists):
            return node
        moved = _with_names(node, inputs, outputs, made)
        self.renewed.update(inputs, outputs)
        self._describe(moved, node, lists, by)
        return moved

    def _describe(self, made: onnx.NodeProto, node: onnx.NodeProto, lists: Sequence[Sequence[str]], by: int) -> None:
        """Gives a node the metadata that it has so many layers behind; `lists` are those that list names."""
        del made.metadata_props[:]
        segment, at = divmod(self._places[node.output[0]] - self._starts[0], self._starts[1] - self._starts[0])
        if at in self._like:
            away = segment * self._distance + by * self.stretch.layers.period
            likes = [self.stretch.scope.nodes[like + away].proto for like in sorted(self._like[at])]
            if len({_inherited(like) for like in likes}) != 1:
                raise NotAlike
            made.metadata_props.extend([p for p in likes[0].metadata_props if not p.key.startswith(OWN)])
        elif _inherited(node):
            raise NotAlike
        renamed = iter(lists)
        for prop in node.metadata_props:
            if prop.key.startswith(OWN):
                is_list = prop.key == NODE_LIST
                value = json.dumps(next(renamed), ensure_ascii=False) if is_list else prop.value
                made.metadata_props.add(key=prop.key, value=value)

    def _note_likes(self, at: int, segment: int, node: onnx.NodeProto) -> None:
        """Notes which nodes of a layer have the metadata that a new node has taken over, as in the segments before."""
        told = _inherited(node)
        if not told and at not in self._like:
            return
        here = {place - segment * self._distance for place in self._with_metadata.get(told, ())}
        self._like[at] = self._like.get(at, set()) & here if segment else here
        if not self._like[at]:
            raise NotAlike

    @property
    def _distance(self) -> int:
        """How many nodes of the long model a segment stands for."""
        return self.stride * self.stretch.layers.period

    @cached_property
    def _with_metadata(self) -> dict[tuple[tuple[str, str], ...], list[int]]:
        """Where the nodes of the layers stand, by their metadata."""
        found: dict[tuple[tuple[str, str], ...], list[int]] = {}
        for node in self.stretch.kept():
            found.setdefault(_inherited(node.proto), []).append(self.stretch.place(node.index))
        return found


def _lists(node: onnx.NodeProto) -> list[list[str]]:
    """The names of nodes that metadata of a new node list. Raises NotAlike where others have written there."""
    own = [p for p in node.metadata_props if p.key.startswith(OWN)]
    if own and node.domain != FUSED_DOMAIN:
        raise NotAlike
    try:
        found = [json.loads(p.value) for p in own if p.key == NODE_LIST]
    except (ValueError, RecursionError) as problem:
        raise NotAlike from problem
    if not all(isinstance(names, list) and all(isinstance(n, str) for n in names) for names in found):
        raise NotAlike
    return found


def _has_taken_name(scope: Scope, node: onnx.NodeProto, taken: Set[str]) -> bool:
    """Whether a name made up for a fused node is one of the model as it came, or got its number because of one."""
    if node.domain != FUSED_DOMAIN or (node.name not in taken and _NUMBER.sub("", node.name) not in taken):
        return False
    before = scope.producers.get(node.output[0])
    return before is None or before.proto.name != node.name


def _inherited(node: onnx.NodeProto) -> tuple[tuple[str, str], ...]:
    """A node's metadata but what only a fused one has."""
    return tuple([(p.key, p.value) for p in node.metadata_props if not p.key.startswith(OWN)])


def _with_names(node: onnx.NodeProto, inputs: Iterable[str], outputs: Iterable[str], name: str) -> onnx.NodeProto:
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    del copy.input[:]
    del copy.output[:]
    copy.input.extend(inputs)
    copy.output.extend(outputs)
    copy.name = name
    return copy


def _apart_from_names(node: onnx.NodeProto) -> tuple[object, ...]:
    attributes = sorted(a.SerializeToString() for a in node.attribute)
    return node.op_type, node.domain, node.overload, attributes, len(node.input), len(node.output)


def unroll(model: Model, short: Short) -> list[Unrolling]:
    """Makes a short model long again, in place; `model` is the long one as it came.

    Gives the names that stretches have got, in the order in which to ask them. Raises NotAlike, with nothing changed,
    where layers came out unlike.
    """
    graph, scope = model.proto.graph, model.main
    names, sequence = Names(model), list(graph.node)
    known = names.taken
    if any(t.name not in scope.tensors and not t.name.startswith(INT64_PREFIX) for t in graph.initializer):
        raise NotAlike  # weights that were worked out anew are others in every layer
    if any(_has_taken_name(scope, node, known) for node in sequence):
        raise NotAlike  # names of layers would tell the wrong one
    still = {name for i in short.kept for name in (scope.nodes[i].name, *scope.nodes[i].outputs)}
    made = {name for node in sequence for name in (node.name, *node.output) if name not in still}
    clashing, known = known & made, known - made  # what was made anew may have got a name that was cut out
    done: list[Unrolling] = []
    for stretch in reversed(short.stretches):
        done.append(Unrolling(stretch, sequence, known, clashing, names))
        sequence = done[-1].unrolled()
    del graph.node[:]
    graph.node.extend(sequence)
    _tidy(model, short, {name for one in done for name in one.renewed})
    return done


def _tidy(model: Model, short: Short, renewed: Set[str]) -> None:
    """Drops initializers and annotations that nodes which were cut out have left behind."""
    scope, graph = model.main, model.proto.graph
    gone = [scope.nodes[i] for stretch in short.stretches for i in range(*stretch.gap)]
    drop_initializers(model, {name for node in gone for name in node.inputs if name in scope.tensors})
    made = {o for node in graph.node for o in node.output}
    keep_annotations(scope, {o for node in gone for o in node.outputs} - made, renewed)
