"""Fusions and moves after which a model would have more launches than before: these are not carried out.

A fusion may need standard operators beside it (the sum of two masks, cosines written out for each element), a move may
leave some of those that it spells an operator in. Layers share such operators, so fusions are judged together with all
that read the same ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence, Set

from atcfuse.decide import DEPTH
from atcfuse.graph.fixed import is_given
from atcfuse.graph.index import Model, Scope
from atcfuse.graph.traffic import VIEWS, Kind, KindsOf
from atcfuse.kernel import DOMAIN
from atcfuse.match.values import Built, Refusal, Value
from atcfuse.moves import Moved
from atcfuse.rewrite import Fusion
from atcfuse.run import Findings
from atcfuse.sharing import with_shared_operands


def raising(chosen: Sequence[Fusion], kinds_of: KindsOf, forced: Collection[str] = ()) -> dict[int, Refusal]:
    """Why fusions of those chosen are not carried out that would only make launches more, by their identity."""
    open_to_doubt = [f for f in chosen if f.match.rule.name not in forced]
    if all(1 + len(set(_beside(f))) <= _launches(f, kinds_of) for f in open_to_doubt):
        return {}
    shared = with_shared_operands(chosen)
    needed = {id(old): frozenset(_beside(new)) for old, new in zip(chosen, shared, strict=True)}
    found: dict[int, Refusal] = {}
    for group in _together([(f, needed[id(f)]) for f in chosen]):
        beside = frozenset().union(*(needed[id(f)] for f in group))
        before, after = sum(_launches(f, kinds_of) for f in group), len(group) + len(beside)
        if after > before:
            doubted = [f for f in group if f.match.rule.name not in forced]
            found |= {id(f): _refusal(f.op, before, after, f.match.anchor.name, len(f.match.members)) for f in doubted}
    return found


def _refusal(op: str, before: int, after: int, anchor: str, members: int) -> Refusal:
    reason = f"with {op} {before} launches would become {after}, by standard operators that it needs beside it"
    return Refusal("ATF348", reason, anchor, members + DEPTH)


def _launches(fusion: Fusion, kinds_of: KindsOf) -> int:
    kinds = kinds_of(fusion.match.scope)
    return sum(kinds[i] == "launch" for i in fusion.match.members)


def _beside(fusion: Fusion) -> Iterator[tuple[int, Built]]:
    """The launches that a fusion needs made for its operands, each with its scope."""
    scope = fusion.match.scope
    for value in fusion.inputs:
        if isinstance(value, Built):
            yield from ((id(scope), built) for built in _made(scope, value))


def _made(scope: Scope, built: Built) -> Iterator[Built]:
    for value in built.inputs:
        if isinstance(value, Built):
            yield from _made(scope, value)
    if built.op not in VIEWS and _is_computed(scope, built):
        yield built


def _is_computed(scope: Scope, value: object) -> bool:
    """Whether a value is made of others than constants; of these the converter makes it."""
    if isinstance(value, Built):
        return any(_is_computed(scope, inner) for inner in value.inputs)
    return isinstance(value, Value) and not is_given(scope, str(value))


def _together(items: Sequence[tuple[Fusion, Collection[Hashable]]]) -> list[list[Fusion]]:
    """Fusions by what they have in common, directly or by way of others."""
    sets = _Sets()
    for fusion, keys in items:
        sets.join(id(fusion), *keys)
    groups: dict[Hashable, list[Fusion]] = {}
    for fusion, _ in items:
        groups.setdefault(sets.root(id(fusion)), []).append(fusion)
    return list(groups.values())


class _Sets:
    """Disjoint sets of anything that can be a key."""

    def __init__(self) -> None:
        self._parents: dict[Hashable, Hashable] = {}

    def root(self, item: Hashable) -> Hashable:
        """The one item that stands for the set of an item."""
        parents = self._parents
        while (parent := parents.get(item, item)) != item:
            parents[item] = parents.get(parent, parent)  # the way is shorter the next time
            item = parent
        return item

    def join(self, first: Hashable, *others: Hashable) -> None:
        """Makes one set of those that the items are in."""
        for other in others:
            self._parents[self.root(other)] = self.root(first)


def moves_raising(
    model: Model, moved: Sequence[Moved], findings: Findings, known: Collection[str], forced: Collection[str] = ()
) -> dict[str, Refusal]:
    """Why moves are not made after which there are more launches, all fusions done, by their names.

    Operators that ATC does not know are no launches, so that there is nothing to compare what they are spelled in with.
    `known` are the names of the nodes that the model had before anything was fused.
    """
    sets, owner = _Sets(), dict[str, str]()
    moved = [m for m in moved if m.kernel not in forced and not m.is_foreign]
    for move in moved:
        for node in move.standing:
            sets.join(owner.setdefault(node, move.name), move.name)
    if not owner:
        return {}
    kinds_of = findings.kinds_of
    before, after = Counter({m.name: m.launches for m in moved}), Counter[str]()
    made: dict[str, str] = {}
    for fusion, name in findings.fusions:
        nodes = {fusion.match.scope.nodes[i].name: i for i in fusion.match.members}
        if spelled := sorted({owner[n] for n in nodes if n in owner}):
            sets.join(*spelled)
            kinds = kinds_of(fusion.match.scope)
            before[spelled[0]] += sum(kinds[i] == "launch" for n, i in nodes.items() if n not in owner)
            made[name] = spelled[0]
    others = frozenset[str]().union(*(move.others for move in moved))
    for scope in model.scopes():
        after += _left(scope, sets, owner, made, known, others, kinds_of(scope))
    found: dict[str, Refusal] = {}
    for group in _by_root(sets, before):
        were, are = (sum(counts[name] for name in group) for counts in (before, after))
        if are > were:
            reason = f"spelled out and fused, {were} launches would become {are}"
            found |= {name: Refusal("ATF348", reason, name) for name in group}
    return found


def _by_root(sets: _Sets, names: Collection[str]) -> list[list[str]]:
    groups: dict[Hashable, list[str]] = {}
    for name in sorted(names):
        groups.setdefault(sets.root(name), []).append(name)
    return list(groups.values())


def _left(
    scope: Scope,
    sets: _Sets,
    owner: Mapping[str, str],
    made: Mapping[str, str],
    known: Collection[str],
    others: Set[str],
    kinds: Mapping[int, Kind],
) -> Counter[str]:
    """The launches of a scope by the move that they are of, one of those that share them: fused nodes, what is left of
    what it made, and standard nodes beside. What makes one of `others`, all keys of a cache, is needed in any case.
    """
    whose, found = dict[int, str](), Counter[str]()
    for index in reversed(scope.order):
        node = scope.nodes[index]
        fresh = node.name not in known and not node.op.startswith(f"{DOMAIN}::")
        readers = {whose[r.index] for o in node.outputs for r in scope.consumers.get(o, ()) if r.index in whose}
        name = made.get(node.name) or owner.get(node.name) or (min(readers) if fresh and readers else None)
        if name is None:
            continue
        if node.name not in made:
            sets.join(name, *readers)
        whose[index] = name
        found[name] += kinds[index] == "launch" and others.isdisjoint(node.outputs)
    return found
