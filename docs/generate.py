"""Writes the reference pages that are made of their sources: docs/rules/, docs/kernels/ and docs/codes.md.

python docs/generate.py

`make docs` does this too; a test compares what is there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, takewhile
from pathlib import Path

from atcfuse import autofuse
from atcfuse.codegen import support_of
from atcfuse.diagnostics import all_codes, code_page
from atcfuse.kernel import Attribute, KernelSpec, Operand, load_kernels
from atcfuse.loader import load_rules
from atcfuse.resources import data_folder
from atcfuse.rule.model import Fragment, Rule, RuleBook
from atcfuse.rule.types import ELEMENT_TYPES
from atcfuse.rule_tests import NOT_TOLD

ROOT = Path(__file__).parents[1]
MADE = "<!-- Made by docs/generate.py; change the source and run `make docs`. -->"
CENTURIES = {
    "1": "Model files and usage",
    "2": "Rule, kernel and switch files",
    "3": "Reasons to keep a subgraph",
    "4": "What ATC would refuse",
    "5": "Verification, reports and gates",
    "6": "Dialect repairs",
    "7": "Kernels",
}
_NAMES = {number: name for name, number in ELEMENT_TYPES.items() if name not in ("float", "float64")}


def pages() -> dict[str, str]:
    """Every page by its path below docs/."""
    kernels = load_kernels(data_folder("kernels"))
    book = load_rules([data_folder("rules")], kernels)
    found = dict(_rule_pages(book, kernels))
    found |= dict(_kernel_pages(autofuse.with_autofuse(book), kernels))
    found["codes.md"] = _codes()
    return {path: f"{MADE}\n\n{text.strip()}\n" for path, text in found.items()}


# ---------------------------------------------------------------- rules


def _rule_pages(book: RuleBook, kernels: dict[str, KernelSpec]) -> Iterator[tuple[str, str]]:
    families = {family: list(rules) for family, rules in groupby(book.rules, key=_family)}
    rows = [
        (f"[{r.name}]({family}.md#{r.name})", _code(r.switch), _made(r, kernels), _cell(r.summary))
        for family, rules in families.items()
        for r in rules
    ]
    passes = [(f"[{r.name}](atc.md#{r.name})", _code(r.switch), _cell(r.summary)) for r in book.atc]
    yield "rules/README.md", "\n".join([
        "# Rules", "",
        "What fuses: one YAML file a rule in [rules/](../../rules). [write-a-rule.md](../write-a-rule.md) makes one;",
        "[fragments.md](fragments.md) has the patterns that they share. `atcfuse rules list` prints this list.", "",
        *_table(("rule", "switch", "makes", "summary"), rows), "",
        "What is left of element-wise operators is grouped without a rule file; its switch is",
        "`FusedElementwiseFusionPass` under `UBFusion`.", "",
        "## ATC's own passes", "",
        "Described for the estimate and never applied: [atc.md](atc.md).", "",
        *_table(("description", "pass of ATC", "summary"), passes),
    ])  # fmt: skip
    for family, rules in families.items():
        yield f"rules/{family}.md", "\n".join([f"# Rules: {family}", *(_rule(r, kernels) for r in rules)])
    described = [_rule(rule, kernels) for rule in book.atc]
    yield "rules/atc.md", "\n".join(["# ATC's own passes", "", "None of these is ever applied.", *described])
    yield "rules/fragments.md", _fragments(book.fragments.values())


def _family(rule: Rule) -> str:
    return Path(rule.span.file).parts[1]


def _rule(rule: Rule, kernels: dict[str, KernelSpec]) -> str:
    facts = {
        "also called": ", ".join(map(_code, rule.aliases)),
        "switch": f"{_code(rule.switch)} under `{rule.switch_kind}`",
        "makes": _made(rule, kernels),
        "level": rule.level if rule.atc is None else "",
        "opset": _opset(rule.opset),
        "element types": "; ".join(f"{name}: {_types(types)}" for name, types in rule.types.items()),
        "chips": ", ".join(rule.atc.chips) if rule.atc else "",
        "why": rule.why,
        "limits": rule.limits,
        "numerics": rule.atc.numerics if rule.atc else "",
        "source": rule.atc.source if rule.atc else "",
    }
    lines = ["", f"## {rule.name}", "", rule.summary, ""]
    lines += [f"- **{what}**: {_cell(text)}" for what, text in facts.items() if text]
    lines += ["", "```yaml", *_pattern(rule), "```"]
    if rule.where:
        lines += ["", "Kept where it is not proved that", ""]
        lines += [f"- `{_flat(c.test.text)}`: {c.reason}" for c in rule.where]
    lines += _examples(rule)
    return "\n".join([*lines, "", f"Source: [{rule.span.file}](../../{rule.span.file})"])


def _examples(rule: Rule) -> list[str]:
    fuses = [f"- fuses: {example.title}" for example in rule.fuses]
    keeps = [f"- keeps: {e.title}{_because(e.because)}" for e in rule.keeps]
    return ["", "Examples that the tests run:", "", *fuses, *keeps] if fuses or keeps else []


def _because(code: str) -> str:
    """The code of an example that is kept; nothing is told of one at which the rule does not begin."""
    return "" if code == NOT_TOLD else f" ([{code}](../../atcfuse/codes/{code}.md))"


def _pattern(rule: Rule) -> list[str]:
    """The pattern as it stands in the file, and what it becomes."""
    lines = (ROOT / rule.span.file).read_text(encoding="utf-8").splitlines()[rule.span.line - 1 :]
    document = list(takewhile(lambda line: line != "---", lines))
    return [line for key in ("inputs", "pattern", "context", "replace") for line in _section(document, key)]


def _section(lines: Sequence[str], key: str) -> list[str]:
    start = next((i for i, line in enumerate(lines) if line.startswith(f"{key}:")), None)
    if start is None:
        return []
    rest = takewhile(lambda line: not line or line[0] in " #", lines[start + 1 :])
    found = [lines[start], *rest]
    while found and (not found[-1].strip() or found[-1].startswith("#")):
        found.pop()
    return found


def _made(rule: Rule, kernels: dict[str, KernelSpec]) -> str:
    if rule.atc is not None:
        return f"{_code(rule.atc.operator)}, an operator of GE"
    if rule.kernel:
        return f"[{kernels[rule.kernel].op}](../kernels/{rule.kernel}.md)"
    return "standard operators"


def _fragments(fragments: Iterable[Fragment]) -> str:
    lines = [
        "# Fragments",
        "",
        "Patterns that rules share: `scaled(x, by=s)` matches what `scaled` describes and captures",
    ]
    lines += ["the factor. `atcfuse rules show NAME` shows one in full.", ""]
    for fragment in sorted(fragments, key=lambda f: f.name):
        call = f"{fragment.name}({', '.join(fragment.params)})"
        labels = ", ".join(f"`{a.label}`" for a in fragment.alternatives if a.label != "is")
        lines += [f"## {fragment.name}", "", f"`{call}`: {fragment.summary}", ""]
        lines += [f"- exports `{name}`: {what}" for name, what in fragment.exports.items()]
        lines += [f"- alternatives: {labels}"] if labels else []
        lines += [f"- source: [{fragment.span.file}](../../{fragment.span.file})", ""]
    return "\n".join(lines)


# ---------------------------------------------------------------- kernels


def _kernel_pages(book: RuleBook, kernels: dict[str, KernelSpec]) -> Iterator[tuple[str, str]]:
    rows = [(f"[{s.name}]({s.name}.md)", _code(s.op), _cell(s.summary)) for s in kernels.values()]
    yield "kernels/README.md", "\n".join([
        "# Kernels", "",
        "The fused operators and what makes them: one folder each in [kernels/](../../kernels). `atcfuse kernels list`",
        "prints what each is generated for.", "",
        *_table(("kernel", "operator", "computes"), rows),
    ])  # fmt: skip
    for spec in kernels.values():
        yield f"kernels/{spec.name}.md", _kernel(spec, [r for r in book.rules if r.kernel == spec.name])


def _kernel(spec: KernelSpec, rules: Sequence[Rule]) -> str:
    attributes = [(_code(a.name), a.kind, _default(a), _cell(a.doc)) for a in spec.attributes]
    chips = [(", ".join(f"{soc}*" for soc in s.socs), ", ".join(s.elements), s.status) for s in support_of(spec)]
    made = ", ".join(_rule_link(rule) for rule in rules) or "none"
    lines = [f"# {spec.op}", "", f"{spec.summary[:1].upper()}{spec.summary[1:]}", "", f"Rules that make it: {made}", ""]
    lines += ["## Inputs", "", *_table(("name", "types", "what it is"), map(_operand, spec.inputs)), ""]
    lines += ["## Attributes", "", *_table(("name", "kind", "default", "what it is"), attributes), ""]
    lines += ["## Outputs", "", *_table(("name", "types", "what it is"), map(_operand, spec.outputs)), ""]
    if spec.requires:
        lines += ["## It needs", "", *(f"- `{_flat(r.test.text)}`: {r.reason}" for r in spec.requires), ""]
    lines += ["## Chips", "", *_table(("chips", "element types", "checked"), chips), ""]
    lines += ["Nothing has run on a chip yet: `twin` is a model of the chip on the development machine.", ""]
    lines += [f"Floating-point operations: `{_flat(spec.flops.text)}`", ""]
    source = f"kernels/{spec.name}"
    return "\n".join([*lines, f"Source: [{source}](../../{source}), the meaning in ONNX in `meaning.onnx.j2`"])


def _rule_link(rule: Rule) -> str:
    if rule is autofuse.RULE:
        return f"[{rule.name}](../rules/README.md)"
    return f"[{rule.name}](../rules/{_family(rule)}.md#{rule.name})"


def _operand(operand: Operand) -> tuple[str, str, str]:
    return (
        f"{_code(operand.name)}{' (may be absent)' if operand.optional else ''}",
        _types(operand.types),
        _cell(operand.doc),
    )


def _default(attribute: Attribute) -> str:
    return "" if attribute.default is None else _code(str(attribute.default))


# ---------------------------------------------------------------- codes


def _codes() -> str:
    lines = ["# Codes", "", "Every message has one; `atcfuse explain ATFnnn` prints its page.", ""]
    for century, codes in groupby(all_codes(), key=lambda code: code[3]):
        titles = [(f"[{code}](../atcfuse/codes/{code}.md)", _cell(_title(code))) for code in codes]
        lines += [f"## {century}xx: {CENTURIES[century]}", "", *_table(("code", "says"), titles), ""]
    return "\n".join(lines)


def _title(code: str) -> str:
    return (code_page(code) or "").splitlines()[0].partition(": ")[2]


# ---------------------------------------------------------------- Markdown


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows)]


def _cell(text: str) -> str:
    return _flat(text).replace("|", "\\|").replace("<", "&lt;")


def _flat(text: str) -> str:
    return " ".join(text.split())


def _code(text: str) -> str:
    return f"`{text}`"


def _types(types: Iterable[int]) -> str:
    return ", ".join(_NAMES[number] for number in types)


def _opset(opset: tuple[int, int]) -> str:
    first, last = opset
    return f"{first} and later" if last > 1 << 20 else f"{first} to {last}"


def write(folder: Path) -> None:
    """Writes every page, and removes those of what is no longer there."""
    found = pages()
    for old in stale(folder, found):
        old.unlink()
    for path, text in found.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")


def stale(folder: Path, found: Iterable[str]) -> list[Path]:
    """Pages below a folder that nothing makes any more."""
    there = [*folder.glob("rules/*.md"), *folder.glob("kernels/*.md")]
    return sorted(path for path in there if path.relative_to(folder).as_posix() not in set(found))


if __name__ == "__main__":
    write(Path(__file__).parent)
