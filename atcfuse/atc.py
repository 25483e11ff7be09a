"""What ATC makes of a graph by itself: its own documented fusions, estimated and never applied.

Rules in `rules/atc/` describe passes of ATC in the rule language. Here they are matched in the order in which their
results build on each other; a match that overlaps an earlier one is left out unless its rule says that it takes such
results in. Nodes that one pass or several make one operator of are one launch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

from atcfuse.device import Device
from atcfuse.graph.index import Scope
from atcfuse.graph.merged import merged_work
from atcfuse.graph.reroll import Short
from atcfuse.graph.traffic import Kind, KindsOf
from atcfuse.graph.work import NO_WORK, NodeWorks, OpWork, renamed
from atcfuse.match.find import RuleFinder
from atcfuse.rule.model import AtcPass, Rule, RuleBook
from atcfuse.switches import Switches

_CHIP = re.compile(r"Ascend(910B|310P|310B|910)(?:\d|A|Pro|Premium|$)", re.IGNORECASE)


def chip_of(device: Device) -> str | None:
    """The chip as rules about ATC name it, None where nothing is known of ATC's passes there."""
    found = _CHIP.match(device.name)
    return found[1].upper() if found else device.family


@dataclass(frozen=True)
class Passes:
    """The described passes that ATC has on a chip, in running order, and which of them the switches leave on."""

    rules: tuple[Rule, ...]
    on: frozenset[str]

    @property
    def running(self) -> list[Rule]:
        """The rules of passes that are on."""
        return [rule for rule in self.rules if rule.name in self.on]


def passes(book: RuleBook, switches: Switches, chip: str | None) -> Passes | None:
    """The passes on a chip under a switch file, None where none is described for it."""
    rules = tuple(rule for rule in in_order(book.atc) if chip in described(rule).chips)
    if not rules:
        return None
    on = frozenset(rule.name for rule in rules if switches.is_on_in_atc(rule.switch, rule.switch_kind))
    return Passes(rules, on)


def described(rule: Rule) -> AtcPass:
    """What a rule about a pass of ATC says beside its pattern."""
    assert rule.atc is not None
    return rule.atc


def in_order(rules: Iterable[Rule]) -> list[Rule]:
    """Rules of graph passes first, each after those whose results it takes in, else in file order."""
    by_name = {rule.name: rule for rule in sorted(rules, key=lambda rule: rule.switch_kind != "GraphFusion")}
    done: dict[str, Rule] = {}
    entered: set[str] = set()

    def enter(rule: Rule) -> None:
        if rule.name in entered:
            return
        entered.add(rule.name)
        for name in (*described(rule).after, *described(rule).joins):
            if name in by_name:
                enter(by_name[name])
        done[rule.name] = rule

    for rule in by_name.values():
        enter(rule)
    return list(done.values())


@dataclass(frozen=True)
class Group:
    """Nodes that ATC makes one operator of. `rule` describes the last pass that took part, `applied` are all of them in
    turn by the names of their rules, each with the launches it saves.
    """

    rule: Rule
    members: frozenset[int]
    applied: tuple[tuple[str, int], ...]


class _Run:
    """The passes over one scope one after another; `owner` has the group of every node that is in one, and changes."""

    def __init__(
        self,
        finder: RuleFinder,
        kinds: Mapping[int, Kind],
        owner: dict[int, Group],
        fused: Set[int],
        near: Set[int] | None,
    ) -> None:
        self.finder, self.kinds, self.owner, self.fused, self.near = finder, kinds, owner, fused, near
        self._made: list[Group] = []
        self._taken_in: list[Group] = []

    def apply(self, rule: Rule) -> None:
        """One pass: every match that saves a launch and overlaps only what the pass takes in."""
        takes_in = _taken_in(rule)
        for match in self.finder.matches_among(rule, lambda node: self._is_taken(takes_in, node.index), self.near):
            if not match.members.isdisjoint(self.fused):
                continue
            touched = list({id(g): g for i in sorted(match.members) if (g := self.owner.get(i)) is not None}.values())
            if not _may_take(rule, [group.rule.name for group in touched]):
                continue
            free = sum(self.kinds[i] == "launch" for i in match.members if i not in self.owner)
            saved = free + len(touched) - 1
            if saved > 0:
                self._join(rule, match.members, touched, saved)

    def _is_taken(self, takes_in: Set[str], index: int) -> bool:
        """Whether a node is not to be looked at, or belongs to an operator other than a pass `takes_in`."""
        if index in self.fused or (self.near is not None and index not in self.near):
            return True
        owner = self.owner.get(index)
        return owner is not None and owner.rule.name not in takes_in

    def _join(self, rule: Rule, members: frozenset[int], parts: Sequence[Group], saved: int) -> None:
        history = tuple(entry for part in parts for entry in part.applied)
        together = members.union(*(part.members for part in parts))
        group = Group(rule, together, (*history, (rule.name, saved)))
        self.owner.update(dict.fromkeys(together, group))
        self._made.append(group)
        self._taken_in += parts

    def displaced(self) -> list[Group]:
        """The operators there were before that operators made now took in."""
        made = {id(group) for group in self._made}
        return [group for group in _distinct(self._taken_in) if id(group) not in made]


def fused_by_atc(
    finder: RuleFinder, rules: Sequence[Rule], kinds: Mapping[int, Kind], given: Iterable[Group] = ()
) -> list[Group]:
    """What the passes make of a scope; `given` are groups in it that are known already."""
    owner = {i: group for group in given for i in group.members}
    _run_passes(_Run(finder, kinds, owner, frozenset(), None), rules)
    return _distinct(owner.values())


def _run_passes(run: _Run, rules: Sequence[Rule]) -> None:
    opset = run.finder.scope.model.opset
    for rule in rules:
        if rule.opset[0] <= opset <= rule.opset[1] and run.finder.may_match(rule):
            run.apply(rule)


def _distinct(groups: Iterable[Group]) -> list[Group]:
    return list({id(group): group for group in groups}.values())


def _taken_in(rule: Rule) -> set[str]:
    atc = described(rule)
    return {*atc.after, *atc.joins}


def _may_take(rule: Rule, touched: Sequence[str]) -> bool:
    """Whether the results of other passes that a match overlaps are such as its pass works on."""
    after = described(rule).after
    if after and not set(after) & set(touched):
        return False
    return set(touched) <= _taken_in(rule)


@dataclass
class _Now:
    """A scope while fusions are carried out in it: what ATC makes of the nodes that are not `fused` yet, by node."""

    finder: RuleFinder
    owner: dict[int, Group]
    fused: set[int] = field(default_factory=set)


_CASTS = ("Cast", "CastLike")
TAKEN_AWAY = {
    "Cast": "CastRemovePass",
    "CastLike": "CastRemovePass",
    "Transpose": "UnchangedTransposeRemovePass",
    "Dropout": "DropOutPass",
}
"""Operators that the graph engine takes away where they do nothing, on any chip, and its passes: no fusion switch has
them. Sums with 0 and products with 1 go in AutoFuse alone, which is off unless AUTOFUSE_FLAGS asks for it.
"""


def taken_away(scope: Scope, kinds: Mapping[int, Kind]) -> frozenset[int]:
    """The launches of a scope that the graph engine takes away because they do nothing.

    Of casts there and back it takes both, and only where one operator reads each of the values on the way.
    """
    found: set[int] = set()
    for index in {scope.producers[name].index for name in scope.alias if name in scope.producers}:
        node = scope.nodes[index]
        if node.op not in TAKEN_AWAY or kinds[index] != "launch":
            continue
        before = scope.producers.get(node.input(0))
        if node.op not in _CASTS or scope.fact(node.input(0)).dtype == scope.fact(node.outputs[0]).dtype:
            found.add(index)
        elif before is not None and before.op in _CASTS and all(_read_once(scope, n.input(0)) for n in (before, node)):
            found |= {i for i in (before.index, index) if kinds[i] == "launch"}
    return frozenset(found)


def _read_once(scope: Scope, value: str) -> bool:
    return len(scope.readers(value)) == 1 and not scope.is_output(value)


class Estimate:
    """ATC's passes over the graphs of one run. A scope is looked at while it is as it was indexed."""

    def __init__(self, found: Passes, works: NodeWorks, kinds_of: KindsOf) -> None:
        self.passes, self._nodes, self._kinds_of = found, works, kinds_of
        self._groups: dict[int, tuple[Scope, list[Group]]] = {}
        self._latest: dict[str, _Now] = {}
        self._emptied: set[str] = set()
        self._works: dict[int, dict[int, OpWork]] = {}
        self._lone: dict[int, dict[int, OpWork]] = {}
        self._merges: dict[tuple[int, int], tuple[Group, OpWork]] = {}
        self._regions: dict[tuple[int, frozenset[int]], tuple[list[OpWork], list[OpWork]]] = {}

    def look(self, finder: RuleFinder) -> None:
        """Runs the passes over the finder's scope; what its fragments found is shared with other rules.

        Of a scope that was looked at before it was changed, operators that nothing touched are known already.
        """
        scope = finder.scope
        if id(scope) in self._groups:
            return
        before = None if scope.path in self._emptied else self._latest.get(scope.path)
        self._emptied.discard(scope.path)
        known = [] if before is None else _surviving(before.finder.scope, scope, _distinct(before.owner.values()))
        found = fused_by_atc(finder, self.passes.running, self._kinds_of(scope), known)
        self._groups[id(scope)] = scope, found
        self._latest[scope.path] = _Now(finder, {i: group for group in found for i in group.members})

    def adopt(self, scope: Scope, other: Scope, short: Short) -> None:
        """Notes what the passes make of a scope that is not to be changed: what they make of `other`, which is short
        for it. Raises NotAlike where layers come out unlike.
        """
        rules = {rule.name: rule for rule in self.passes.rules}
        told = [((g.rule.name, g.applied), g.members) for g in self._groups[id(other)][1]]
        found = [Group(rules[name], members, applied) for (name, applied), members in short.spread(told)]
        self._groups[id(scope)] = scope, found
        by_members = {group.members: group for group in self._groups[id(other)][1]}
        for group in found:
            pairs = [(other.nodes[short.likes[i]], scope.nodes[i]) for i in _in_order(scope, group.members)]
            like = by_members.get(frozenset([node.index for node, _ in pairs]))
            if like is not None:  # none where a launch reaches from one layer that was cut out into the next
                self._merges[id(scope), id(group)] = group, renamed(self._merged(other, like), pairs)

    def take(self, scope: Scope, members: frozenset[int]) -> None:
        """Notes that a fusion takes nodes of a scope that was looked at and is not changed yet.

        Fusions claim one after another: each against what those before it left of ATC's operators, so that no launch
        is claimed twice. What it leaves of an operator itself may still make a smaller one.
        """
        now = self._latest[scope.path]
        assert now.finder.scope is scope  # fusions are carried out in the newest state of a graph
        launches, left, _ = self._taken(now, members)
        self._regions[id(scope), members] = launches, left

    def take_away(self, scope: Scope, members: frozenset[int]) -> None:
        """The same for launches in whose place nothing comes. What stood around them may now be one operator, however
        far it reaches, so of the changed scope nothing counts as known.
        """
        self.take(scope, members)
        self._emptied.add(scope.path)

    def would_leave(
        self, scope: Scope, members: frozenset[int]
    ) -> tuple[list[OpWork], list[OpWork], frozenset[int]] | None:
        """The region of a fusion as `region` has it, were it carried out now, and the nodes of what it leaves.

        None where ATC has no operator with one of its nodes, so that it makes what is exported, or one that changes
        results.
        """
        now = self._latest.get(scope.path)
        if now is None or now.finder.scope is not scope:
            return None
        acting = {name for i in members if i in now.owner for name, _ in now.owner[i].applied}
        if not acting or any(described(rule).numerics for rule in self.passes.rules if rule.name in acting):
            return None
        return self._taken(_Now(now.finder, dict(now.owner), set(now.fused)), members)

    def _taken(self, now: _Now, members: frozenset[int]) -> tuple[list[OpWork], list[OpWork], frozenset[int]]:
        """Takes nodes of a graph: ATC's launches of the region, those of what is left of it, and its nodes."""
        scope = now.finder.scope
        gone = _distinct(group for i in sorted(members) if (group := now.owner.get(i)) is not None)
        left = {i for group in gone for i in group.members} - members
        now.fused |= members
        for i in (*left, *members):
            now.owner.pop(i, None)
        if left:
            joined = self._anew(now, left)
            gone += [group for group in joined if not any(group is other for other in gone)]
        changed = members.union(*(group.members for group in gone))
        fresh = _distinct(group for i in sorted(changed - members) if (group := now.owner.get(i)) is not None)
        changed = changed.union(*(group.members for group in fresh))
        behind = frozenset(changed - members)
        return self._launches(scope, changed, gone), self._launches(scope, behind, fresh), behind

    def _anew(self, now: _Now, left: Set[int]) -> list[Group]:
        """Runs the passes again where operators were broken up; the others that what is made anew took in.

        `left` are the nodes that are left of those broken up.
        """
        scope = now.finder.scope
        near = left | {n.index for i in left for o in scope.nodes[i].outputs for n in scope.consumers.get(o, ())}
        run = _Run(now.finder, self._kinds_of(scope), now.owner, now.fused, near)
        _run_passes(run, self.passes.running)
        return run.displaced()

    def _single(self, scope: Scope) -> Mapping[int, OpWork]:
        """The work of every node by itself, none for those that ATC takes away."""
        key = id(scope)
        if key not in self._lone:
            away = taken_away(scope, self._kinds_of(scope))
            self._lone[key] = {**self._nodes(scope), **dict.fromkeys(away, NO_WORK)}
        return self._lone[key]

    def _launches(self, scope: Scope, members: Iterable[int], groups: Iterable[Group]) -> list[OpWork]:
        """The launches that some nodes are in execution order, those of each group together."""
        single = self._single(scope)
        owners = {i: group for group in groups for i in group.members}
        merged = {key: self._merged(scope, group) for key, group in {id(g): g for g in owners.values()}.items()}
        works = [merged[id(owners[i])] if i in owners else single[i] for i in _in_order(scope, members)]
        return list({id(work): work for work in works if work.launches}.values())

    def _merged(self, scope: Scope, group: Group) -> OpWork:
        key = id(scope), id(group)
        if key not in self._merges:
            rule, single = described(group.rule), self._nodes(scope)
            self._merges[key] = group, merged_work(scope, group.members, single, rule.operator, rule.vector_passes)
        return self._merges[key][1]

    def works(self, scope: Scope) -> Mapping[int, OpWork]:
        """The work of every node of a scope that was looked at; that of its launch where ATC fused it into one."""
        key = id(scope)
        if key not in self._works:
            together = dict(self._single(scope))
            for group in self._groups[key][1]:
                together.update(dict.fromkeys(group.members, self._merged(scope, group)))
            self._works[key] = together
        return self._works[key]

    def region(self, scope: Scope, members: frozenset[int]) -> tuple[list[OpWork], list[OpWork]] | None:
        """The launches of ATC's that a fusion took nodes from, and those that the nodes it left make; None for nodes
        that no fusion took.

        A launch that takes in nodes outside too is listed whole.
        """
        return self._regions.get((id(scope), members))

    def counts(self, scopes: Iterable[Scope]) -> dict[str, tuple[int, int]]:
        """By rule: how often its pass acts in these scopes, and the launches that saves."""
        totals = {rule.name: (0, 0) for rule in self.passes.rules}
        for scope in scopes:
            for name, saved in (entry for group in self._groups[id(scope)][1] for entry in group.applied):
                times, before = totals[name]
                totals[name] = times + 1, before + saved
        return totals


def _in_order(scope: Scope, members: Iterable[int]) -> list[int]:
    return sorted(members, key=scope.positions.__getitem__)


def _surviving(before: Scope, now: Scope, groups: Iterable[Group]) -> list[Group]:
    """The groups of a scope all of whose nodes are still there after a change, by their new indices.

    What they make inside nobody else read before, so nobody does now.
    """
    found = []
    for group in groups:
        nodes = [(before.nodes[i], now.producers.get(before.nodes[i].outputs[0])) for i in group.members]
        if all(new is not None and (old.op, old.inputs) == (new.op, new.inputs) for old, new in nodes):
            found.append(replace(group, members=frozenset(new.index for _, new in nodes if new is not None)))
    return found
