"""The rounds of a run: fold, match and select, group what is left; each applies what it chose."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence, Set
from dataclasses import replace

from atcfuse import autofuse
from atcfuse.decide import DEPTH, Pricer, kept_by_user
from atcfuse.estimate import planned_share
from atcfuse.fold import Folding, fold
from atcfuse.graph.edit import Names, apply
from atcfuse.graph.index import Model, Scope
from atcfuse.graph.infer import infer
from atcfuse.match.find import Lookup, Match, RuleFinder
from atcfuse.match.heads import Heads
from atcfuse.match.values import Built, Refusal
from atcfuse.meaning import render
from atcfuse.planner.work import platform
from atcfuse.progress import counted
from atcfuse.reasons import LAST, SINGLE, one_each
from atcfuse.rewrite import Fusion, foldings, plan, prepare, reconnected
from atcfuse.rule.model import Rule, RuleBook
from atcfuse.run import Findings, Kept, Toolbox
from atcfuse.select import Selection, select
from atcfuse.sharing import with_shared_operands
from atcfuse.tally import raising

MAX_ROUNDS = 4
MAX_GROUPINGS = 16
"""Groups that were fused may let others grow further: the last grouping is one that finds nothing."""


UNBLOCKED = frozenset({"ATF302", "ATF303", "ATF320"})
"""Refusals that may fall away once other fusions were carried out; ATF301 only where the value lost a reader."""


def folded(model: Model, finders: Sequence[RuleFinder], tools: Toolbox, lookup: Lookup, findings: Findings) -> Model:
    """The model with the rules of level `constant` applied, again and again while they find something.

    `finders` are those of the model's scopes as they are now.
    """
    ops = {node.op for scope in model.scopes() for node in scope.nodes}
    changing = [r for r in tools.book.rules if r.rebuilt is not None and not r.removes]
    rules = [r for r in changing if _may_begin(r, model.opset, ops, lookup.heads)]
    for _ in range(MAX_ROUNDS if rules else 0):
        chosen: list[Folding] = []
        kept: list[Kept] = []
        for finder in finders:
            taken: set[int] = set()
            for rule in rules:
                _fold_rule(finder, rule, tools, taken, chosen, kept, findings)
        findings.unfolded = kept
        if not chosen:
            break
        names = Names(model)
        made = foldings(chosen, names)
        findings.folded += [(folding, name) for folding, (_, name) in zip(chosen, made, strict=True)]
        apply(model, [one for one, _ in made], (), names)
        known = {scope.path: scope for scope in model.scopes()}
        model = Model(model.proto, model.path)
        infer(model, known)
        finders = [RuleFinder(scope, lookup) for scope in model.scopes()]
    return model


def _may_begin(rule: Rule, opset: int, ops: Set[str], heads: Heads) -> bool:
    step = rule.step(rule.anchor)
    begins = None if step is None else heads.of(step.term)
    return rule.opset[0] <= opset <= rule.opset[1] and (begins is None or not begins.isdisjoint(ops))


def matches_of(finder: RuleFinder, rule: Rule, kept: list[Kept], findings: Findings) -> list[Match]:
    """The matches of a rule, noted in the findings; what nearly matched goes to what is kept."""
    matches, misses = finder.find(rule)
    kept += [Kept.of(m, m.refusal) for m in misses]
    findings.matched.setdefault(rule.name, []).extend(m.anchor.name for m in matches)
    return matches


def _fold_rule(
    finder: RuleFinder,
    rule: Rule,
    tools: Toolbox,
    taken: set[int],
    chosen: list[Folding],
    kept: list[Kept],
    findings: Findings,
) -> None:
    off = tools.why_off(rule)
    for match in matches_of(finder, rule, kept, findings):
        if match.members & taken:  # the next pass finds it again, if it is still there
            continue
        ready = off or kept_by_user(match, tools.keep) or fold(match)
        if isinstance(ready, Refusal):
            kept.append(Kept.of(match, ready))
        else:
            taken |= match.members
            chosen.append(ready)


def unfolded(findings: Findings) -> list[Kept]:
    """What rules of level `constant` left, one entry an anchor, but for what a fusion took after all."""
    if not findings.unfolded:
        return []
    taken = {f.match.scope.nodes[i].name for f, _ in findings.fusions for i in f.match.members}
    return [k for k in one_each(findings.unfolded, ()) if k.anchor not in taken]


def another_round(kept: Sequence[Kept], model: Model) -> bool:
    """Whether a refusal may have fallen away: only then is another round worth its time."""
    now = {scope.path: scope for scope in model.scopes()}
    for entry in kept:
        if entry.refusal.code in UNBLOCKED:
            return True
        scope, value = now.get(entry.scope.path), entry.refusal.where
        if scope is None:  # the body went with a node that nothing reads any more
            continue
        if entry.refusal.code == "ATF301" and len(scope.readers(value)) < len(entry.scope.readers(value)):
            return True
        if _is_known_otherwise(entry, scope):
            return True
    return False


def _is_known_otherwise(entry: Kept, now: Scope) -> bool:
    """Whether a shape around a refused anchor is another one now: fused nodes may tell more than what they replaced."""
    before = entry.scope
    nodes = [before.nodes[index] for index in (entry.index, *entry.members)]
    values = {name for node in nodes for name in (*node.inputs, *node.outputs) if name and now.defines(name)}
    return any(now.fact(name).shape != before.fact(name).shape for name in values)


def one_round(model: Model, finders: Sequence[RuleFinder], tools: Toolbox, findings: Findings) -> bool:
    """Finds, selects and applies once; False where nothing was left to apply. The last round's refusals are kept."""
    fusions: list[Fusion] = []
    refused: list[list[Kept]] = []
    searched = [(finder, rule) for finder in finders for rule in _searched(tools.book, model.opset)]
    for finder, rule in counted("matching rules", searched):
        refused.append(_one_rule(finder, rule, tools, fusions, findings))
    fusions += _shorter(fusions, finders, tools, findings.pricer)
    fusions.sort(key=lambda f: f.match.scope.positions[f.match.anchor.index])
    pricer = findings.pricer
    # What is left over is only known when nothing larger fuses any more: a fusion may make room for another one.
    larger = [f for f in fusions if f.match.rule.level != LAST]
    selection, beaten = selected(larger or fusions, findings, tools.options.forced)
    findings.finished, findings.waiting = not larger, _any_left(fusions, selection.chosen)
    kept = _reasons(searched, refused, selection.chosen)
    kept += [*beaten, *(_lost(loser, winner, pricer) for loser, winner in selection.losers)]
    findings.kept = one_each(kept, selection.chosen)
    taken = _members_by_scope(selection.chosen)
    findings.blocked = [k for k in kept if k.index not in taken.get(id(k.scope), ())]
    findings.overtaken = [k for k in findings.kept if k.index in taken.get(id(k.scope), ())]
    return carry_out(model, selection.chosen, findings)


def selected(fusions: Sequence[Fusion], findings: Findings, forced: Collection[str]) -> tuple[Selection, list[Kept]]:
    """The fusions to carry out; those without which the model, or ATC by itself, has fewer launches or takes less."""
    pricer, kinds_of = findings.pricer, findings.kinds_of
    gain = pricer.gain if pricer else _most_nodes
    beaten: dict[int, Kept] = {}
    while True:
        selection = select([f for f in fusions if id(f) not in beaten], gain)
        refusals = raising(selection.chosen, kinds_of, forced)
        found = {id(f): Kept.of(f.match, refusals[id(f)]) for f in selection.chosen if id(f) in refusals}
        found = found or (_behind_atc(selection.chosen, pricer) if pricer else {})
        if not found:
            return selection, list(beaten.values())
        beaten |= found


def _most_nodes(fusion: Fusion) -> float:
    """The gain of a fusion where nothing is costed."""
    return float(len(fusion.match.members))


def _behind_atc(chosen: Sequence[Fusion], pricer: Pricer) -> dict[int, Kept]:
    """Those of the fusions without which ATC is better off, by identity."""
    taken = _members_by_scope(chosen)
    found = {}
    for fusion in chosen:
        match = fusion.match
        refusal = pricer.behind_atc(fusion, taken[id(match.scope)])
        if refusal is not None:
            found[id(fusion)] = Kept.of(match, replace(refusal, where=match.anchor.name))
    return found


def views_between(model: Model, tools: Toolbox, findings: Findings) -> autofuse.Moves | None:
    """Views between element-wise operators that may be moved behind them, where groups are made at all."""
    if not _groups(model, tools) or tools.why_off(autofuse.RULE) is not None:
        return None
    return autofuse.find_moves(model, _limits(tools), findings.kinds_of, tools.keep)


def _groups(model: Model, tools: Toolbox) -> bool:
    """Whether element-wise operators of such a model are grouped."""
    rule = tools.book.rule(autofuse.RULE.name)
    return rule is autofuse.RULE and rule.opset[0] <= model.opset <= rule.opset[1]


def _limits(tools: Toolbox) -> autofuse.Limits:
    device = tools.device
    room = platform(device, planned_share(device, tools.options)).ub
    return autofuse.Limits.of(device.family, device.icache // device.vector_call_bytes, room)


def group_leftovers(model: Model, tools: Toolbox, findings: Findings) -> bool:
    """Groups the element-wise operators that no rule took; False where no group is worth a kernel."""
    if not _groups(model, tools):
        return False
    rule = autofuse.RULE
    pricer, device, off = findings.pricer, tools.device, tools.why_off(rule)
    kinds_of = findings.kinds_of
    limits = _limits(tools)
    ready: list[Fusion] = []
    for scope in model.scopes():
        found = autofuse.search(scope, tools.kernels[rule.kernel], limits, kinds_of, tools.keep)
        findings.matched.setdefault(rule.name, []).extend(f.match.anchor.name for f in found.fusions)
        for fusion in found.fusions:
            refusal = off or (pricer.refusal(fusion) if pricer else None)
            if refusal is None:
                ready.append(fusion)
            else:
                findings.kept.append(Kept.of(fusion.match, refusal))
        for left in found.left_out:
            refusal = Refusal(left.code, f"{device.name}: {left.reason}", left.anchor.name)
            findings.left_out.append(Kept(rule, scope, left.anchor.name, left.anchor.index, refusal, left.members))
        told = {k.refusal.where for k in findings.kept if k.refusal.code == "ATF325"}
        for node in autofuse.kept_by_user(scope, tools.keep, kinds_of):
            if node.name and node.name in told:
                continue
            reason = tools.keep.reason(node.name, node.op)
            refusal = Refusal("ATF325", reason, node.name)
            findings.kept.append(Kept(rule, scope, node.name, node.index, refusal, frozenset({node.index})))
    selection, beaten = selected(ready, findings, tools.options.forced)
    findings.kept += beaten
    return carry_out(model, selection.chosen, findings)


def ungrouped(findings: Findings) -> list[Kept]:
    """What only a limit of the kernel left out of groups, one entry an anchor; none for what another one then took."""
    if not findings.left_out:
        return []
    taken = {f.match.scope.nodes[i].name for f, _ in findings.fusions for i in f.match.members}
    told = {k.anchor for k in findings.kept}
    left = {(k.scope.path, k.anchor or k.index): k for k in findings.left_out if k.anchor not in taken | told}
    return list(left.values())


def carry_out(model: Model, chosen: Sequence[Fusion], findings: Findings) -> bool:
    """Applies the chosen fusions; False where there are none."""
    readable, lost = reconnected(chosen)
    findings.kept += [_unread(loser, maker) for loser, maker in lost]
    findings.waiting = findings.waiting or bool(lost)
    chosen = with_shared_operands(readable)
    if not chosen:
        return False
    if findings.pricer is not None and findings.pricer.estimate is not None:
        for fusion in chosen:
            findings.pricer.estimate.take(fusion.match.scope, fusion.match.members)
    names = Names(model)
    shared: dict[int, dict[Built, str]] = {}
    replacements = []
    functions: dict[str, str] = {}
    have = {f.overload for f in model.proto.functions}
    for fusion in chosen:
        made, name = plan(fusion, names, shared.setdefault(id(fusion.match.scope), {}))
        replacements.append(made)
        findings.fusions.append((fusion, name))
        overload = fusion.signature.overload
        if overload not in have and overload not in functions:
            functions[overload] = render(fusion.spec, fusion.signature)
    apply(model, replacements, list(functions.values()), names)
    return True


def _any_left(fusions: Sequence[Fusion], chosen: Sequence[Fusion]) -> bool:
    """Whether a fusion has no node in common with those chosen."""
    taken = _members_by_scope(chosen)
    return any(taken.get(id(f.match.scope), set()).isdisjoint(f.match.members) for f in fusions)


def _members_by_scope(fusions: Iterable[Fusion]) -> dict[int, set[int]]:
    """The nodes that fusions take, by the identity of their scope."""
    found: dict[int, set[int]] = {}
    for fusion in fusions:
        found.setdefault(id(fusion.match.scope), set()).update(fusion.match.members)
    return found


def _searched(book: RuleBook, opset: int) -> list[Rule]:
    """The rules that the rounds ask; those of single operators come when all else is done."""
    return [r for r in book.rules if r.rebuilt is None and r.level != SINGLE and r.opset[0] <= opset <= r.opset[1]]


def _one_rule(finder: RuleFinder, rule: Rule, tools: Toolbox, fusions: list[Fusion], found: Findings) -> list[Kept]:
    """Adds the fusions that a rule asks for; the matches that are refused."""
    matches = finder.matches(rule)
    found.matched.setdefault(rule.name, []).extend(m.anchor.name for m in matches)
    off, kept = tools.why_off(rule), []
    for match in matches:
        ready = off or asked_for(match, tools, found.pricer)
        if isinstance(ready, Refusal):
            # A draft takes nothing, so it hides no reason of another rule within it.
            members = frozenset({match.anchor.index}) if rule.draft else match.members
            kept.append(Kept(rule, match.scope, match.anchor.name, match.anchor.index, ready, members))
        else:
            fusions.append(ready)
    return kept


def _shorter(
    fusions: Sequence[Fusion], finders: Sequence[RuleFinder], tools: Toolbox, pricer: Pricer | None
) -> list[Fusion]:
    """Fusions once more without their last nodes, where another begins with these that nothing else could take.

    A factor behind a query projection may be the projection's or the attention's. Matches are as long as they can be,
    and so these two exclude each other; here the projection is offered without the factor.
    """
    owners: dict[int, dict[int, list[Fusion]]] = {}
    for fusion in fusions:
        own = owners.setdefault(id(fusion.match.scope), {})
        for member in fusion.match.members:
            if member in own:
                own[member].append(fusion)
            else:
                own[member] = [fusion]
    alone = {id(own[member][0]) for own in owners.values() for member in own if len(own[member]) == 1}
    by_scope = {id(finder.scope): finder for finder in finders}
    found = []
    for fusion in fusions:
        match, key = fusion.match, id(fusion.match.scope)
        last = match.scope.producers[match.outputs[0]].index
        for other in owners[key][last] if len(match.outputs) == 1 else ():
            if other is fusion or id(other) not in alone:  # whatever is behind may be taken by others
                continue
            shared = other.match.members & match.members
            first = min(shared, key=match.scope.positions.__getitem__)
            shorter = by_scope[key].shorter(match, first) if first != match.anchor.index else None
            ready = None if shorter is None or shorter.members & shared else asked_for(shorter, tools, pricer)
            if isinstance(ready, Fusion):
                found.append(ready)
    return found


def _reasons(
    searched: Sequence[tuple[RuleFinder, Rule]], refused: Sequence[list[Kept]], chosen: Sequence[Fusion]
) -> list[Kept]:
    """Why anchors are kept, rule by rule. Of those inside a chosen fusion none is asked, but of leftovers that a larger
    fusion might have taken.
    """
    taken = _members_by_scope(f for f in chosen if f.match.rule.level != LAST)
    kept: list[Kept] = []
    for (finder, rule), matches in zip(searched, refused, strict=True):
        kept += [Kept.of(m, m.refusal) for m in finder.misses(rule, taken.get(id(finder.scope), set()))]
        kept += matches
    return kept


def asked_for(match: Match, tools: Toolbox, pricer: Pricer | None) -> Fusion | Refusal:
    """The fusion a match asks for, where its operator can do it and a kernel of the chip is worth it."""
    kept = kept_by_user(match, tools.keep)
    if kept is not None:
        return kept
    if match.rule.draft:
        reason = f"the pattern matches, but {match.rule.name} is a draft; missing: {match.rule.draft}"
        return Refusal("ATF345", reason, match.anchor.name, len(match.members) + DEPTH)
    fusion = prepare(match, tools.kernels[match.rule.kernel])
    if isinstance(fusion, Refusal):
        return fusion
    return _misread(fusion, tools) or (pricer.refusal(fusion) if pricer is not None else None) or fusion


def _misread(fusion: Fusion, tools: Toolbox) -> Refusal | None:
    """Why ATC would connect an absent operand: in a branch of an If it takes the empty name for a captured value.

    The portable dialect is not for ATC. Of Loop and Scan ATC reads no bodies at all.
    """
    match = fusion.match
    if tools.options.dialect == "portable" or None not in fusion.inputs or not match.scope.is_branch:
        return None
    operand = fusion.spec.inputs[fusion.inputs.index(None)].name
    reason = (
        f"{fusion.spec.op} would have no {operand} in front of other operands, which ATC misreads in a branch of an If"
    )
    return Refusal("ATF347", reason, match.anchor.name, len(match.members) + DEPTH)


def _lost(loser: Fusion, winner: Fusion, pricer: Pricer | None) -> Kept:
    rule, anchor = winner.match.rule.name, winner.match.anchor.name
    if pricer is None:
        reason = f"{rule} at {anchor!r} takes some of the same nodes"
    else:
        mine, others = (pricer.cost(f).saved_us.high for f in (loser, winner))
        saved = f"up to {others:,.1f} µs, this one up to {mine:,.1f} µs"
        reason = f"{rule} at {anchor!r} takes some of the same nodes and saves {saved}"
    return Kept.of(loser.match, Refusal("ATF320", reason))


def _unread(loser: Fusion, maker: Fusion) -> Kept:
    reason = f"{maker.match.rule.name} at {maker.match.anchor.name!r} takes in a value that it reads"
    return Kept.of(loser.match, Refusal("ATF320", reason, loser.match.anchor.name))
