"""Running the examples that rule files carry: what must fuse fuses and agrees in numbers, what must stay stays."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from atcfuse.device import load_device
from atcfuse.kernel import KernelSpec
from atcfuse.options import Options
from atcfuse.rule.model import Example, Rule, RuleBook
from atcfuse.switches import NO_SWITCHES

if TYPE_CHECKING:
    from atcfuse.graph.feeds import ModelProto
    from atcfuse.run import Toolbox

Kind = Literal["fuses", "keeps"]


@dataclass(frozen=True)
class ExampleResult:
    """What became of one example; `message` says what is wrong with it, and is "" where nothing is."""

    rule: str
    title: str
    kind: Kind
    ok: bool
    message: str = ""


NOT_TOLD = "none"
"""The code of a `keeps` example at which its rule does not begin, so that nothing is told of it."""


def run_examples(
    book: RuleBook, kernels: Mapping[str, KernelSpec], names: Collection[str] | None = None
) -> list[ExampleResult]:
    """Runs the examples of the named rules (of all where `names` is None), in the order of the rule files.

    A `fuses` example is optimized with all rules: it must give exactly the listed operators, one of them by its own
    rule, and equal numbers in onnxruntime. A `keeps` example is shown to its own rule alone, which must refuse it with
    the code that it states. Rules about ATC's passes change nothing, so their examples are only matched: on the first
    chip of the rule, `fuses` must give exactly the listed operators of GE.
    """
    from atcfuse.run import Toolbox

    book = RuleBook(
        tuple(r for r in book.rules if r.steps), book.fragments
    )  # what no rule takes is no example's matter
    options = Options(dialect="portable")
    tools = Toolbox(book, kernels, NO_SWITCHES, options, load_device(options.soc))
    results: list[ExampleResult] = []
    for rule in book.rules:
        if names is not None and rule.name not in names:
            continue
        alone = replace(tools, book=RuleBook((rule,), book.fragments))
        results += [_result(rule, "fuses", example, tools) for example in rule.fuses]
        results += [_result(rule, "keeps", example, alone) for example in rule.keeps]
    for rule in book.atc:
        if names is None or rule.name in names:
            results += [_result(rule, "fuses", example, tools) for example in rule.fuses]
            results += [_result(rule, "keeps", example, tools) for example in rule.keeps]
    return results


def _result(rule: Rule, kind: Kind, example: Example, tools: Toolbox) -> ExampleResult:
    message = (_problem if rule.atc is None else _atc_problem)(rule, kind, example, tools)
    return ExampleResult(rule.name, example.title, kind, not message, message and f"{example.span}: {message}")


def _problem(rule: Rule, kind: Kind, example: Example, tools: Toolbox) -> str:
    """What is wrong with the example, "" where nothing is."""
    from atcfuse.compiler import optimize_proto
    from atcfuse.graph.text import parse_graph

    try:
        original = parse_graph(example.graph, example.opset)
    except ValueError as problem:
        return f"the graph cannot be read: {problem}"
    result = optimize_proto(deepcopy(original), tools)
    told = _not_fused(rule, example, result.report) if kind == "fuses" else _not_kept(rule, example, result.report)
    return told or _different(original, result.model)


def _atc_problem(rule: Rule, kind: Kind, example: Example, tools: Toolbox) -> str:
    """What is wrong with an example of a pass of ATC, "" where nothing is."""
    from atcfuse import atc
    from atcfuse.graph.index import Model
    from atcfuse.graph.infer import infer
    from atcfuse.graph.text import parse_graph
    from atcfuse.graph.traffic import kinds
    from atcfuse.match.find import Lookup, RuleFinder

    try:
        model = Model(parse_graph(example.graph, example.opset), None)
    except ValueError as problem:
        return f"the graph cannot be read: {problem}"
    infer(model)
    passes = atc.passes(tools.book, NO_SWITCHES, atc.described(rule).chips[0])
    assert passes is not None  # the rule's own chip
    finder = RuleFinder(model.main, Lookup.of(tools.book))
    groups = atc.fused_by_atc(finder, passes.running, kinds(model.main))
    acted = any(name == rule.name for group in groups for name, _ in group.applied)
    codes = sorted({miss.refusal.code for miss in finder.find(rule)[1]})
    told = f"; kept: {', '.join(codes)}" if codes else ""
    if kind == "keeps":
        if acted:
            return f"it was fused, but {example.because} should keep it"
        return "" if example.because in codes else f"expected {example.because}{told}"
    made = sorted(atc.described(group.rule).operator for group in groups)
    if made != sorted(example.gives):
        return f"it gives {', '.join(made) or 'nothing'} instead of {', '.join(sorted(example.gives))}{told}"
    return "" if acted else f"it was fused by others, not by {rule.name}"


def _not_fused(rule: Rule, example: Example, report: Mapping[str, Any]) -> str:
    made = Counter(fusion["op"] for fusion in report["fusions"])
    if made != Counter(example.gives):
        wanted = ", ".join(sorted(example.gives))
        found = ", ".join(sorted(made.elements())) or "nothing"
        return f"it gives {found} instead of {wanted}{_reasons(report)}"
    if all(fusion["rule"] != rule.name for fusion in report["fusions"]):
        others = ", ".join(sorted({fusion["rule"] for fusion in report["fusions"]}))
        return f"it was fused by {others}, not by {rule.name}"
    return ""


def _not_kept(rule: Rule, example: Example, report: Mapping[str, Any]) -> str:
    if report["fusions"]:
        return f"it was fused, but {example.because} should keep it"
    codes = {entry["code"] for entry in report["kept"]}
    if not codes:
        untold = example.because == NOT_TOLD
        return "" if untold else f"{rule.name} does not start here, so {example.because} is not given"
    return "" if example.because in codes else f"expected {example.because}{_reasons(report)}"


def _reasons(report: Mapping[str, Any]) -> str:
    reasons = [f"{entry['code']} {entry['reason']} ({entry['value']})" for entry in report["kept"]]
    return f"; kept: {'; '.join(reasons)}" if reasons else ""


def _different(original: ModelProto, optimized: ModelProto) -> str:
    """How the numbers of the two models differ, "" where they agree. An example that does not run is wrong too."""
    from atcfuse.verify import verify

    here = Path()
    outcome = verify(original, optimized, base_dir_original=here, base_dir_optimized=here)
    errors = [d.message for d in outcome.diagnostics if d.severity == "error"]
    return "" if outcome.ok else "; ".join(errors) or "nothing could be compared"


__all__ = ["ExampleResult", "run_examples"]
