"""From a region to a rule file that passes `rules check` and whose example passes `rules test`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from atcfuse.compiler import optimize_proto
from atcfuse.diagnostics import AtcfuseError, Diagnostic, UsageError, error, info, warning
from atcfuse.graph.dialect import to_dialect
from atcfuse.graph.index import Model
from atcfuse.graph.infer import infer
from atcfuse.graph.store import load
from atcfuse.kernel import KernelSpec
from atcfuse.loader import read_rule
from atcfuse.options import DISABLE_VARIABLE
from atcfuse.reasons import DECISIONS
from atcfuse.resolve import check_book
from atcfuse.rule.model import Rule, RuleBook
from atcfuse.rule_tests import run_examples
from atcfuse.run import Toolbox
from atcfuse.skeleton.region import Region, region_of
from atcfuse.skeleton.sizes import Sizes
from atcfuse.skeleton.terms import Parts, Writer, anchors_by_rarity
from atcfuse.strict_yaml import parse_documents

DRAFT = "the kernel"
_MATCHED = "ATF345"
_SHOWN = 5


@dataclass(frozen=True)
class Skeleton:
    """The text of a new rule file, how many places of the model it matches, and what is to be said about it."""

    text: str
    places: int
    diagnostics: tuple[Diagnostic, ...]


def new_rule(name: str, path: Path, nodes: Sequence[str], tools: Toolbox, kernel: KernelSpec | None = None) -> Skeleton:
    """A draft rule for the region of these nodes of a model file; `kernel` is described in it where it is given.

    The draft is checked, its example is run and it is tried on the model before it is given. Raises UsageError ATF170
    to ATF172 for a region that cannot be a pattern, ATF173 where no rule made from it matches its own example.
    """
    if tools.book.rule(name) is not None:
        hint = "choose another name; `atcfuse rules list` shows those taken"
        raise UsageError(error("ATF174", f"there is a rule {name!r} already", hint=hint))
    proto = load(path)
    to_dialect(proto, "portable")
    model = Model(proto, path)
    infer(model)
    region = region_of(model, nodes)
    text, rule = _first_that_works(name, path, region, tools, kernel)
    alone = replace(tools, book=RuleBook((rule,), tools.book.fragments))
    kept = optimize_proto(load(path), alone, path, path.name).report["kept"]
    inside = {n.name for n in region.nodes}
    matched = [entry for entry in kept if entry["code"] == _MATCHED]
    notes = [*_missed(kept, inside, path), *_known(path, inside, tools)]
    return Skeleton(text, len(matched), tuple(notes))


def _missed(kept: Sequence[dict[str, str]], inside: set[str], path: Path) -> Iterator[Diagnostic]:
    """A warning where the rule does not match the nodes it was made from, with the reason."""
    here = [entry for entry in kept if entry["anchor"] in inside]
    if any(entry["code"] == _MATCHED for entry in here):
        return
    why = here[0] if here else None
    reason = f"{why['code']} {why['reason']}" if why else "it begins at none of them"
    hint = "loosen the pattern; `atcfuse explain MODEL --rule NAME --rules DIR` shows how far it gets"
    yield warning("ATF175", f"the rule does not match the nodes it was made from in {path.name}: {reason}", hint=hint)


def _known(path: Path, inside: set[str], tools: Toolbox) -> Iterator[Diagnostic]:
    """What an ordinary run makes of these nodes of the model, and what keeps it from making more."""
    report = optimize_proto(load(path), tools, path, path.name).report
    takers = [fusion for fusion in report["fusions"] if not inside.isdisjoint(fusion["nodes"])]
    if takers:
        taken = sum(len(inside.intersection(fusion["nodes"])) for fusion in takers)
        rules = ", ".join(dict.fromkeys(f"{f['rule']} (into {f['op']})" for f in takers))
        hint = (
            f"switch those rules off to try another: {DISABLE_VARIABLE}={','.join(sorted({f['rule'] for f in takers}))}"
        )
        yield info("ATF176", f"an ordinary run fuses {taken} of these {len(inside)} nodes: {rules}", hint=hint)
    decided = [entry for entry in report["kept"] if entry["anchor"] in inside and entry["code"] in DECISIONS]
    for entry in decided:
        yield info("ATF176", f"{entry['rule']} matches here and is not done: {entry['code']} {entry['reason']}")


def _first_that_works(
    name: str, path: Path, region: Region, tools: Toolbox, kernel: KernelSpec | None
) -> tuple[str, Rule]:
    """The most general draft whose example matches: letters for numbers where that works, then other anchors."""
    counts: dict[str, int] = {}
    for node in region.scope.nodes:
        counts[node.op] = counts.get(node.op, 0) + 1
    said = ""
    for generalised in (True, False):
        writer = Writer(region, Sizes(region, generalised))
        for anchor in anchors_by_rarity(writer.parts, counts):
            text = _text(name, path, region, writer, anchor, kernel)
            rule = read_rule(parse_documents(text, f"{name}.yaml")[0])
            check_book(RuleBook((rule,), tools.book.fragments), tools.kernels)
            (result,) = run_examples(RuleBook((rule,), tools.book.fragments), tools.kernels, [name])
            if result.ok:
                return text, rule
            said = said or result.message
    hint = "choose fewer nodes, or write the rule by hand: docs/write-a-rule.md"
    raise AtcfuseError(error("ATF173", f"no pattern of these nodes matches its own example: {said}", hint=hint))


def _text(name: str, path: Path, region: Region, writer: Writer, anchor: str, kernel: KernelSpec | None) -> str:
    parts = writer.parts
    ops = list(dict.fromkeys(n.op for n in region.nodes))
    shown = ", ".join(ops[:_SHOWN]) + (", …" if len(ops) > _SHOWN else "")
    lines = [
        f"# A draft, made from {path.name}: it tells where it matches and replaces nothing.",
        f"rule: {name}",
        f"switch: Fused{_camel(name)}FusionPass",
        f"summary: {len(region.nodes)} operators ({shown}) become one.",
        "why: (what the fusion saves)",
        "limits: (what it does not cover)",
        "level: pattern",
        "opset: 8+",
        "types:",
        f"  T: {writer.types}",
        "",
        "# A letter is the same extent everywhere; numbers must be there as they are.",
        "inputs:",
        *(f"  {_quoted(k)}: {_quoted(v)}" for k, v in parts.inputs.items()),
        "",
        "pattern:",
        *(line for step in parts.steps for line in _step(*step)),
        "",
        "# The step that matching starts from: best one whose operator is rare.",
        f"anchor: {anchor}",
        "",
        "outputs:",
        *(f"  {o}: {o}" for o in parts.outputs),
        "",
    ]
    if parts.where:
        lines += ["where:", *(f'  "{test}": {reason}' for test, reason in parts.where.items()), ""]
    return "\n".join([*lines, *_missing(parts, kernel), "", *_example(parts, region), ""])


def _step(name: str, term: str, kind: str) -> list[str]:
    if not kind:
        return [f"  {name}: {_quoted(term)}"]
    return [f"  {name}: {{is: {_quoted(term, flow=True)}, type: {_quoted(kind, flow=True)}}}"]


def _missing(parts: Parts, kernel: KernelSpec | None) -> list[str]:
    """The draft's placeholder, with what is to be written instead."""
    outputs = parts.outputs[0] if len(parts.outputs) == 1 else f"({', '.join(parts.outputs)})"
    lines = ["# In place of `draft` and `outputs`, once a kernel computes this (`atcfuse kernels list`):"]
    if kernel is None:
        values = ", ".join(parts.inputs)
        lines += ["#   kernel: NAME", "#   replace:", f"#     {outputs}: FusedOp({values}, attribute=value)"]
    else:
        inputs = ", ".join(o.name + ("?" * o.optional) for o in kernel.inputs)
        attributes = "".join(f", {a.name}=…" for a in kernel.attributes)
        lines += [f"#   kernel: {kernel.name}", "#   replace:", f"#     {outputs}: {kernel.op}({inputs}{attributes})"]
        lines += [f"#   where {o.name} is {o.doc}" for o in kernel.inputs]
        lines += [f"#   where {a.name} is {a.doc}" for a in kernel.attributes]
    lines.append("# and then `fuses:` and `gives: [FusedOp]` in place of `keeps:` and `because:` below.")
    return [*lines, f"draft: {DRAFT}"]


def _example(parts: Parts, region: Region) -> list[str]:
    head = [f"({', '.join(parts.given)})", f"=> ({', '.join(parts.made)})"]
    given = [f"<{', '.join(parts.initializers)}>"] if parts.initializers else []
    graph = [*head, *given, "{", *(f"  {line}" for line in parts.lines), "}"]
    opset = region.scope.model.opset
    return [
        "examples:",
        "  keeps:",
        "    as it was found:",
        "      graph: |",
        *(f"        {line}" for line in graph),
        *([f"      opset: {opset}"] if opset != 17 else []),
        f"      because: {_MATCHED}",
    ]


def _camel(name: str) -> str:
    return "".join(word[:1].upper() + word[1:] for word in name.split("_"))


def _quoted(text: str, flow: bool = False) -> str:
    """Text as a YAML scalar, in quotes where a plain one would be read otherwise."""
    plain = not flow and text[:1] not in "[{'\"&*!|>%@`-?" and ": " not in text and " #" not in text
    return text if plain else '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


__all__ = ["DRAFT", "Skeleton", "new_rule"]
