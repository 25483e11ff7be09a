"""What ATC makes of a graph by itself: its own documented fusions, estimated and never applied.

Rules in `rules/atc/` describe passes of ATC in the rule language. Here they are matched in the order in which their
results build on each other; a match that overlaps an earlier one is left out unless its rule says that it takes such
results in. Nodes that one pass or several make one operator of are one launch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from atcfuse.device import Device
from atcfuse.graph.index import Scope
from atcfuse.graph.merged import merged_work
from atcfuse.graph.traffic import Kind, KindsOf
from atcfuse.graph.work import NodeWorks, OpWork
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
    """Nodes that ATC makes one operator of; `rule` describes the last pass that took part."""

    rule: Rule
    members: frozenset[int]


@dataclass(frozen=True)
class Fused:
    """What ATC's passes make of one scope: the groups left in the end, and launches saved by each pass in turn."""

    groups: tuple[Group, ...]
    applied: tuple[tuple[str, int], ...]


def fused_by_atc(finder: RuleFinder, rules: Sequence[Rule], kinds: Mapping[int, Kind]) -> Fused:
    """Runs the passes over a scope one after another. Matches that save no launch are none."""
    owner: dict[int, int] = {}
    groups: dict[int, Group] = {}
    applied: list[tuple[str, int]] = []
    opset = finder.scope.model.opset
    for rule in rules:
        if not rule.opset[0] <= opset <= rule.opset[1]:
            continue
        for match in finder.find(rule)[0]:
            touched = {owner[i] for i in match.members if i in owner}
            if not _may_take(rule, [groups[t].rule.name for t in touched]):
                continue
            free = sum(kinds[i] == "launch" for i in match.members if i not in owner)
            saved = free + len(touched) - 1
            if saved < 1:
                continue
            members = match.members.union(*(groups.pop(t).members for t in touched))
            number = len(applied)
            groups[number] = Group(rule, members)
            owner.update(dict.fromkeys(members, number))
            applied.append((rule.name, saved))
    return Fused(tuple(groups.values()), tuple(applied))


def _may_take(rule: Rule, touched: Sequence[str]) -> bool:
    """Whether the results of other passes that a match overlaps are such as its pass works on."""
    atc = described(rule)
    if atc.after and not set(atc.after) & set(touched):
        return False
    return set(touched) <= {*atc.after, *atc.joins}


class Estimate:
    """ATC's passes over the graphs of one run. A scope is looked at while it is as it was indexed."""

    def __init__(self, found: Passes, works: NodeWorks, kinds_of: KindsOf) -> None:
        self.passes, self._nodes, self._kinds_of = found, works, kinds_of
        self._fused: dict[int, tuple[Scope, Fused]] = {}
        self._works: dict[int, dict[int, OpWork]] = {}
        self._of_node: dict[int, dict[int, Group]] = {}

    def knows(self, scope: Scope) -> bool:
        """Whether the scope was looked at."""
        return id(scope) in self._fused

    def look(self, finder: RuleFinder) -> None:
        """Runs the passes over the finder's scope; what its fragments found is shared with other rules."""
        scope = finder.scope
        if not self.knows(scope):
            self._fused[id(scope)] = scope, fused_by_atc(finder, self.passes.running, self._kinds_of(scope))

    def works(self, scope: Scope) -> Mapping[int, OpWork]:
        """The work of every node of a scope that was looked at; that of its launch where ATC fused it into one."""
        key = id(scope)
        if key not in self._works:
            single = self._nodes(scope)
            together = dict(single)
            for group in self._fused[key][1].groups:
                atc = described(group.rule)
                work = merged_work(scope, group.members, single, atc.operator, atc.vector_passes)
                together.update(dict.fromkeys(group.members, work))
            self._works[key] = together
        return self._works[key]

    def region(self, scope: Scope, members: frozenset[int]) -> tuple[list[OpWork], list[OpWork]]:
        """The launches that ATC makes of some nodes, and the nodes that they leave behind when those are taken out.

        A launch that takes in nodes outside too is listed whole; the outside ones run one by one without it.
        """
        works, single, groups = self.works(scope), self._nodes(scope), self._groups(scope)
        launches = {id(works[i]): works[i] for i in _in_order(scope, members) if works[i].launches}
        left = {i for m in members if m in groups for i in groups[m].members if i not in members}
        return list(launches.values()), [single[i] for i in _in_order(scope, left) if single[i].launches]

    def _groups(self, scope: Scope) -> Mapping[int, Group]:
        key = id(scope)
        if key not in self._of_node:
            self._of_node[key] = {i: group for group in self._fused[key][1].groups for i in group.members}
        return self._of_node[key]

    def counts(self, scopes: Iterable[Scope]) -> dict[str, tuple[int, int]]:
        """By rule: how often its pass acts in these scopes, and the launches that saves."""
        totals = {rule.name: (0, 0) for rule in self.passes.rules}
        for scope in scopes:
            for name, saved in self._fused[id(scope)][1].applied:
                times, before = totals[name]
                totals[name] = times + 1, before + saved
        return totals


def _in_order(scope: Scope, members: Iterable[int]) -> list[int]:
    return sorted(members, key=lambda i: scope.positions[i])
