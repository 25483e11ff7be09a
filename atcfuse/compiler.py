"""The whole way: a model in, the fused model and its report out. Decides the order of the steps and nothing else."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atcfuse import account, atc, autofuse, moves, noops
from atcfuse.decide import Pricer
from atcfuse.device import load_device
from atcfuse.diagnostics import Diagnostic, UsageError, did_you_mean, error, info, warning
from atcfuse.graph.index import Model
from atcfuse.graph.infer import infer
from atcfuse.graph.layers import Layers, NotAlike
from atcfuse.graph.reroll import Short, layers_of, shorten
from atcfuse.graph.schema import signature
from atcfuse.graph.snapshot import Snapshot
from atcfuse.graph.spread import spread
from atcfuse.graph.traffic import Sizes
from atcfuse.graph.unroll import unroll
from atcfuse.graph.work import VECTOR_PASSES
from atcfuse.keep_nodes import KeepNodes, parse_keep_nodes
from atcfuse.library import library
from atcfuse.match.alike import rules_are_told_alike
from atcfuse.match.find import Lookup, RuleFinder
from atcfuse.match.values import Refusal
from atcfuse.moves import ones, parts, unread
from atcfuse.options import EVERY_RULE, Options
from atcfuse.progress import reached
from atcfuse.reasons import in_trials, of_operators, of_others, of_trials, told_better
from atcfuse.report.bounds import bounded
from atcfuse.rounds import (
    MAX_GROUPINGS,
    MAX_ROUNDS,
    another_round,
    folded,
    group_leftovers,
    one_round,
    unfolded,
    ungrouped,
    views_between,
)
from atcfuse.run import Findings, Kept, Toolbox
from atcfuse.singles import replace_singles
from atcfuse.switches import NO_SWITCHES, read_switches
from atcfuse.tally import moves_raising
from atcfuse.unrolled import is_told_alike

if TYPE_CHECKING:
    import onnx

_NEWEST_OPSET = 23


@dataclass(frozen=True)
class Result:
    """The optimized model (the one given, changed in place), its report document and the diagnostics of the run."""

    model: onnx.ModelProto
    report: dict[str, Any]
    diagnostics: tuple[Diagnostic, ...]


def toolbox(options: Options) -> Toolbox:
    """Loads rules, kernels, switches and chip. Raises AtcfuseError for a mistake in any of them."""
    book, kernels = library(options.rules)
    book = autofuse.with_autofuse(book)
    forced = {rule.name for rule in book.rules} if EVERY_RULE in options.forced else options.forced
    options = replace(options, forced=book.canonical(forced), disabled=book.canonical(options.disabled))
    _check_names(options, [r.name for r in book.rules])
    own = {r.switch: r.switch_kind for r in book.rules}
    switches = read_switches(options.switch_file, own) if options.switch_file else NO_SWITCHES
    return Toolbox(book, kernels, switches, options, load_device(options.soc), parse_keep_nodes(options.keep_nodes))


def _check_names(options: Options, rules: Sequence[str]) -> None:
    """Raises UsageError for a rule or operator that does not exist."""
    for code, given, names in (
        ("ATF152", "GF_AUTOFUSION_DISABLE", options.disabled),
        ("ATF157", "--force", options.forced),
    ):
        for name in sorted(names - set(rules)):
            hint = did_you_mean(name, rules) or "`atcfuse rules list` shows the rules"
            raise UsageError(error(code, f"{given} names no rule: {name!r}", hint=hint))
    for name in sorted(options.keep_fp32):
        if signature(name, _NEWEST_OPSET) is None and name not in VECTOR_PASSES:
            hint = did_you_mean(name, VECTOR_PASSES) or "operator types such as Softmax,LayerNormalization"
            raise UsageError(error("ATF158", f"--keep-fp32 names no operator: {name!r}", hint=hint))


def optimize_proto(
    proto: onnx.ModelProto, tools: Toolbox, path: Path | None = None, name: str = "model.onnx", sha256: str = ""
) -> Result:
    """Fuses a model in place and gives its report.

    `path` locates external data; `name` and `sha256` are what the report says of the file.
    """
    with _collector_paused():
        return _optimize(proto, tools, path, name, sha256)


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Nothing that a run builds is garbage before it ends: collecting in between only costs time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            # All that was made counts as old from here on, or the next allocation would look through all of it.
            # What somebody else has frozen stays so.
            if not gc.get_freeze_count():
                gc.freeze()
                gc.unfreeze()
            gc.enable()


def _optimize(proto: onnx.ModelProto, tools: Toolbox, path: Path | None, name: str, sha256: str) -> Result:
    from atcfuse.graph.dialect import to_dialect

    reached("inferring shapes")
    to_dialect(proto, "portable")
    model = Model(proto, path)
    sizes = Sizes(tools.options.assume)
    lookup, pricer = Lookup.of(tools.book.fusing), _pricer(tools, sizes)
    short, finders = _shortened(model, tools, lookup, pricer), list[RuleFinder]()
    if short is None:  # what ATC would make of a short one that was given up is no part of the estimate
        infer(model)
        pricer = _pricer(tools, sizes)
        finders = _finders(model, tools, lookup, pricer)
    pins = model.pins
    before = account.before(model, tools, sizes, pricer)
    unmatched = tools.keep.unmatched((node.name, node.op) for scope in model.scopes() for node in scope.nodes)
    found = None if short is None else _by_way_of(short, model, tools, lookup, sizes, pricer)
    if short is not None and found is None:
        pricer = _pricer(tools, sizes)
        finders = _finders(model, tools, lookup, pricer)
    model, findings = found or _fused(model, finders, tools, lookup, sizes, pricer)
    reached("writing the report")
    dialect = to_dialect(proto, tools.options.dialect)
    given = [*_unused_sizes(before.sizes, tools.options.assume, pins), *_already_fused(before)]
    diagnostics = (*tools.switches.diagnostics, *unmatched, *given, *dialect)
    document, cut = bounded(account.document(before, model, tools, findings, diagnostics, name, sha256))
    if cut:
        hint = "look for a dim of the model, or a size in --assume, that is wrong by far"
        told = warning("ATF180", "a tensor is so large that figures of the report were cut to 64 bits", hint=hint)
        diagnostics = (*diagnostics, told)
        document["diagnostics"] = [*document["diagnostics"], told.as_dict()]
    return Result(proto, document, diagnostics)


@dataclass(frozen=True)
class _Short:
    """A model with a few of the layers of a long one, indexed; `snapshot` is of the long one."""

    model: Model
    finders: list[RuleFinder]
    cut: Short
    snapshot: Snapshot


def _shortened(model: Model, tools: Toolbox, lookup: Lookup, pricer: Pricer | None) -> _Short | None:
    """Makes a model of many layers that are alike short, in place; None, with that as it came, where it has none.

    What is known of the values of the long one and what ATC makes of it is noted as well.
    """
    layers = layers_of(model.main)
    if not all(_are_kept_alike(one, tools.keep) for one in layers):
        return None
    snapshot = Snapshot.of(model, is_replaced=True) if layers else None
    cut = shorten(model, layers)
    if snapshot is None or cut is None:
        return None
    short = Model(model.proto, model.path)
    infer(short)
    finders = _finders(short, tools, lookup, pricer)
    try:
        if not all(rules_are_told_alike(short.main, stretch.layers) for stretch in cut.stretches):
            raise NotAlike
        if pricer is not None:
            pricer.adopt(cut, short.main)
        spread(cut, short.main)
    except NotAlike:
        snapshot.restore(model.proto)
        return None
    return _Short(short, finders, cut, snapshot)


def _are_kept_alike(layers: Layers, keep: KeepNodes) -> bool:
    """Whether the user keeps the same nodes in all layers."""
    scope, period = layers.scope, layers.period
    nodes = [scope.nodes[i] for i in scope.order[layers.start : layers.stop]] if keep.entries else []
    kept = [keep.entry(node.name, node.op) for node in nodes]
    return kept[period:] == kept[:-period]


def _by_way_of(
    short: _Short, model: Model, tools: Toolbox, lookup: Lookup, sizes: Sizes, pricer: Pricer | None
) -> tuple[Model, Findings] | None:
    """Fuses the short model and does the same to the long one; None, with that as it came, where layers differ."""
    _, findings = _fused(short.model, short.finders, tools, lookup, sizes, pricer)
    try:
        findings.unrolled = unroll(model, short.cut)
        reasons = ((k.anchor, (k.rule.name, k.refusal.code, k.refusal.depth)) for k in findings.kept)
        if not is_told_alike(reasons, findings.unrolled):
            raise NotAlike
    except NotAlike:
        short.snapshot.restore(model.proto)
        return None
    return _looked_at(model, tools, lookup, findings.pricer), findings


def _fused(
    model: Model,
    finders: list[RuleFinder],
    tools: Toolbox,
    lookup: Lookup,
    sizes: Sizes,
    pricer: Pricer | None,
) -> tuple[Model, Findings]:
    """Fuses with operators moved to where kernels take them along; what none takes stays where it was."""
    kinds = [kind for kind in moves.KINDS if tools.is_made(kind.kernel)]
    begun, stuck, told = moves.find(model, tools.keep, (), kinds), frozenset[str](), dict[str, Refusal]()
    trials: dict[tuple[str, str], Kept] = {}
    snapshot = Snapshot.of(model) if begun else None
    while begun:
        findings = Findings(pricer)
        kinds_of = findings.kinds_of
        moved = moves.carry_out(model, begun, kinds_of)
        kinds_of.idle = moves.idle(moved)
        model = _indexed(model)
        if behind := moves.find(model, tools.keep, stuck, [kind for kind in kinds if kind.follows]):
            moved += moves.carry_out(model, behind, kinds_of, moved)
            kinds_of.idle = moves.idle(moved)
            model = _indexed(model)
        known = _names_of(model)
        model = _by_rules(model, _finders(model, tools, lookup, pricer), tools, lookup, findings)
        left = moves.stuck(model, moved)
        told |= of_trials(moved, left, findings.kept)
        if not left:
            kept = told_better(of_others(moved, findings.kept), trials)
            findings.kept = [*kept, *of_operators(model, tools, told)]
            model = _grouped(model, tools, lookup, findings)
            left = moves.stuck(model, moved, by_groups=True)
        if not left:
            costly = moves_raising(model, moved, findings, known, tools.options.forced)
            told, left = told | costly, frozenset(costly)
        if not left:
            return _singles(model, tools, lookup, findings), findings
        assert snapshot is not None  # there are moves
        trials = in_trials(of_others(moved, findings.kept), trials)
        snapshot.restore(model.proto)
        model = Model(model.proto, model.path)
        infer(model)
        pricer, stuck = _pricer(tools, sizes), stuck | left
        finders = _finders(model, tools, lookup, pricer)
        begun = moves.find(model, tools.keep, stuck, kinds)
    findings = Findings(pricer)
    model = _by_rules(model, finders, tools, lookup, findings)
    findings.kept = [*told_better(findings.kept, trials), *of_operators(model, tools, told)]
    model = _grouped(model, tools, lookup, findings)
    return _singles(model, tools, lookup, findings), findings


def _names_of(model: Model) -> frozenset[str]:
    return frozenset(node.name for scope in model.scopes() for node in scope.nodes)


def _indexed(model: Model) -> Model:
    """The index of a model that was edited; what was proved before is still known."""
    known = {scope.path: scope for scope in model.scopes()}
    again = Model(model.proto, model.path)
    infer(again, known)
    return again


def _looked_at(model: Model, tools: Toolbox, lookup: Lookup, pricer: Pricer | None) -> Model:
    """The same, and it is noted what ATC makes of it."""
    again = _indexed(model)
    _finders(again, tools, lookup, pricer)
    return again


def _by_rules(model: Model, finders: list[RuleFinder], tools: Toolbox, lookup: Lookup, findings: Findings) -> Model:
    """Applies the rules of the book, round by round."""
    pricer = findings.pricer
    after = folded(model, finders, tools, lookup, findings)
    if after is not model:
        model, finders = after, _finders(after, tools, lookup, pricer)
    overtaken: list[Kept] = []
    for _ in range(MAX_ROUNDS):
        overtaken += findings.overtaken
        if not one_round(model, finders, tools, findings):
            break
        model = _indexed(model)
        again = not findings.finished and (findings.waiting or another_round(findings.blocked, model))
        finders = _finders(model, tools, lookup, pricer) if again or pricer else []
        if not again:
            break
    findings.kept = [*overtaken, *findings.kept, *unfolded(findings)]
    return model


def _grouped(model: Model, tools: Toolbox, lookup: Lookup, findings: Findings) -> Model:
    """Takes away launches that do nothing and groups what the rules left.

    Views between element-wise operators are moved where that makes a group.
    """
    if noops.take_away(model, tools, findings):
        model = _looked_at(model, tools, lookup, findings.pricer)
    for spelled_anew in (parts.join, unread.respell, ones.respell) if tools.is_made(autofuse.RULE.kernel) else ():
        if spelled_anew(model, tools.keep):
            model = _looked_at(model, tools, lookup, findings.pricer)
    by_rules = findings.kept
    for attempt in range(MAX_ROUNDS):
        shifts, done = views_between(model, tools, findings), len(findings.fusions)
        if shifts is None:
            return model if attempt else _all_groups(model, tools, lookup, findings)
        snapshot, findings.kept = Snapshot.of(model), by_rules
        shifts.carry_out(model)
        model = _looked_at(model, tools, lookup, findings.pricer)
        model = _all_groups(model, tools, lookup, findings)
        if len(findings.fusions) == done:
            snapshot.restore(model.proto)
            model = Model(model.proto, model.path)
            infer(model)
            _finders(model, tools, lookup, findings.pricer)
            break
    findings.kept = by_rules
    return _all_groups(model, tools, lookup, findings)


def _all_groups(model: Model, tools: Toolbox, lookup: Lookup, findings: Findings) -> Model:
    by_rules = findings.kept
    for _ in range(MAX_GROUPINGS):
        findings.kept = list(by_rules)
        if not group_leftovers(model, tools, findings):
            break
        model = _looked_at(model, tools, lookup, findings.pricer)
    findings.kept += ungrouped(findings)
    return model


def _singles(model: Model, tools: Toolbox, lookup: Lookup, findings: Findings) -> Model:
    """Replaces single operators that are left, where there are rules for them."""
    if not replace_singles(model, tools, findings):
        return model
    return _looked_at(model, tools, lookup, findings.pricer)


def _pricer(tools: Toolbox, sizes: Sizes) -> Pricer | None:
    if not tools.options.kernels:
        return None
    passes = atc.passes(tools.book, tools.switches, atc.chip_of(tools.device))
    return Pricer(tools.device, tools.options, sizes, passes)


def _finders(model: Model, tools: Toolbox, lookup: Lookup, pricer: Pricer | None) -> list[RuleFinder]:
    """A finder a scope. ATC's own passes look at the scopes now: later they are changed."""
    finders = [RuleFinder(scope, lookup) for scope in model.scopes()]
    if pricer is not None and pricer.estimate is not None:
        for finder in finders:
            pricer.estimate.look(finder)
    return finders


def _unused_sizes(sizes: Sizes, assumed: Mapping[str, int], pins: Mapping[str, int]) -> list[Diagnostic]:
    """A warning for every assumed size that is no dim of the model, or not the one that the model runs with."""
    known = sorted({*sizes.used, *pins})
    unknown = [
        warning(
            "ATF145",
            f"--assume {name}={assumed[name]} names no dynamic dim of the model",
            hint=did_you_mean(name, known) or f"its dynamic dims are {', '.join(known) or 'none'}",
        )
        for name in sorted(set(assumed) - set(known))
    ]
    return unknown + [
        warning(
            "ATF145",
            f"--assume {name}={assumed[name]}: the model runs with {name}={number} alone",
            hint="a Reshape has that extent as a number; export the model so that it is computed",
        )
        for name, number in sorted(pins.items())
        if assumed.get(name, number) != number
    ]


def _already_fused(before: account.Before) -> list[Diagnostic]:
    if not before.fused:
        return []
    nodes = f"{before.fused} fused node{'' if before.fused == 1 else 's'}"
    return [info("ATF326", f"{nodes} came with the model and stay as they are")]
