"""Rule files: strict YAML to rules and fragments, every mistake with its file, line and column."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from atcfuse.diagnostics import AtcfuseError, Span, UsageError, error
from atcfuse.expr import Expr, dotted, parse, shifted
from atcfuse.kernel import KernelSpec
from atcfuse.paths import is_folder
from atcfuse.resolve import check_book
from atcfuse.rule.model import CHIPS, IDENTITY, AtcPass, Example, Fragment, Input, Output, Rebuilt, Rule, RuleBook
from atcfuse.rule.terms import Alternative, Call, Choice, Condition, Ref, Step, Term, parse_term
from atcfuse.rule.types import ELEMENT_TYPES, TypeSpec, parse_type
from atcfuse.strict_yaml import Value, read_documents

MAX_FILES = 2000

_RULE_REQUIRED = (
    "rule", "switch", "summary", "why", "limits", "level", "types", "inputs", "pattern", "anchor",
)  # fmt: skip
_RULE_OPTIONAL = (
    "opset", "kind", "context", "outputs", "where", "let", "examples", "kernel", "replace", "tensors", "draft",
    "aliases",
)  # fmt: skip
_ATC_REQUIRED = (
    "atc", "switch", "summary", "limits", "source", "chips", "types", "inputs", "pattern", "anchor", "replace",
)  # fmt: skip
_ATC_OPTIONAL = ("opset", "kind", "numerics", "after", "joins", "vector_passes", "outputs", "where", "let", "examples")
_PLACED = ("anchor", "kernel", "after", "joins")
_LEVELS = ("constant", "operator", "elementwise", "pattern", "graph")


def load_rules(folders: Iterable[Path], kernels: Mapping[str, KernelSpec]) -> RuleBook:
    """All rules and fragments below the folders, files in sorted order; a later folder may use earlier fragments.

    Raises AtcfuseError with a code of the 200s.
    """
    rules: list[Rule] = []
    fragments: dict[str, Fragment] = {}
    for folder in folders:
        for path in rule_files(folder):
            for document in read_documents(path, _shown(path, folder)):
                _document(document, rules, fragments)
    book = RuleBook(tuple(r for r in rules if r.atc is None), fragments, tuple(r for r in rules if r.atc is not None))
    check_book(book, kernels)
    return book


def rule_files(folder: Path) -> list[Path]:
    """The rule files below a folder, sorted. Raises UsageError for no folder, AtcfuseError for no files or too many."""
    hint = "give a folder that holds *.yaml or *.yml rule files"
    if not is_folder(folder):
        raise UsageError(error("ATF200", "not a folder of rules", Span(str(folder)), hint))
    files = sorted(p for p in folder.rglob("*") if p.suffix in (".yaml", ".yml") and p.is_file())
    if not files:
        raise AtcfuseError(error("ATF200", "a folder without rule files", Span(str(folder)), hint))
    if len(files) > MAX_FILES:
        raise AtcfuseError(error("ATF217", f"more than {MAX_FILES} rule files", Span(str(folder))))
    return files


def _shown(path: Path, folder: Path) -> str:
    return f"{folder.name}/{path.relative_to(folder).as_posix()}"


def _document(value: Value, rules: list[Rule], fragments: dict[str, Fragment]) -> None:
    kinds = [name for name, _, _ in value.items() if name in ("rule", "fragment", "atc")]
    if kinds == ["fragment"]:
        fragment = read_fragment(value)
        if fragment.name in fragments:
            raise value.fail("ATF211", f"a second fragment called {fragment.name!r}")
        fragments[fragment.name] = fragment
    elif kinds in (["rule"], ["atc"]):
        rule = read_rule(value) if kinds == ["rule"] else read_atc(value)
        if any(rule.name == other.name for other in rules):
            raise value.fail("ATF211", f"a second rule called {rule.name!r}", "give it another name")
        rules.append(rule)
    else:
        raise value.fail(
            "ATF206", "neither a rule nor a fragment", "begin with `rule: NAME`, `fragment: NAME(x)` or `atc: NAME`"
        )


def read_rule(value: Value) -> Rule:
    """One `rule:` document."""
    keys = value.fields(_RULE_REQUIRED, _RULE_OPTIONAL)
    level = keys["level"].text()
    if level not in _LEVELS:
        raise keys["level"].fail("ATF207", f"unknown level {level!r}", f"one of {', '.join(_LEVELS)}")
    _check_replacement(value, keys, level)
    common, made = _common(keys, value.span)
    call = common.pop("replace")
    return Rule(
        name=_identifier(keys["rule"]), why=keys["why"].text(), level=level,  # type: ignore[arg-type]
        kernel=keys["kernel"].text() if "kernel" in keys else "",
        context=_steps(keys["context"], set(common["types"])) if "context" in keys else (),
        replace=call if "kernel" in keys else None, tensors=_let(keys.get("tensors")),
        rebuilt=_rebuilt(made, call) if call is not None and "kernel" not in keys else None,
        draft=keys["draft"].text() if "draft" in keys else "",
        aliases=tuple(_identifier(item) for item in keys["aliases"].list()) if "aliases" in keys else (),
        **common,
    )  # fmt: skip


def read_atc(value: Value) -> Rule:
    """One `atc:` document: a rule that describes a pass of ATC, without a kernel."""
    keys = value.fields(_ATC_REQUIRED, _ATC_OPTIONAL)
    chips = keys["chips"].list()
    for chip in chips:
        if chip.text() not in CHIPS:
            raise chip.fail("ATF207", f"unknown chip {chip.text()!r}", f"one of {', '.join(CHIPS)}, in quotes")
    common, _ = _common(keys, value.span)
    operator = dotted(getattr(common["replace"].tree, "func", common["replace"].tree))
    described = AtcPass(
        operator=operator, chips=tuple(c.text() for c in chips), source=keys["source"].text(),
        numerics=keys["numerics"].text() if "numerics" in keys else "",
        after=_names(keys.get("after")), joins=_names(keys.get("joins")),
        vector_passes=keys["vector_passes"].integer() if "vector_passes" in keys else None,
    )  # fmt: skip
    name = _identifier(keys["atc"])
    return Rule(name=name, why="", level="pattern", kernel="", context=(), atc=described, **common)


def _names(value: Value | None) -> tuple[str, ...]:
    return () if value is None else tuple(item.text() for item in value.list())


def _common(keys: Mapping[str, Value], span: Span) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The fields of a rule that both kinds of documents have, and the names that `replace` gives its results."""
    types = {name: _types(v) for name, _, v in keys["types"].items()}
    kind = keys["kind"].text() if "kind" in keys else "GraphFusion"
    if kind not in ("GraphFusion", "UBFusion"):
        raise keys["kind"].fail("ATF207", f"unknown kind {kind!r}", "GraphFusion or UBFusion")
    made, call, outputs = _replace(keys["replace"]) if "replace" in keys else ((), None, ())
    examples = keys["examples"].fields((), ("fuses", "keeps")) if "examples" in keys else {}
    variables = set(types)
    fields = {
        "switch": _identifier(keys["switch"]),
        "switch_kind": kind,
        "summary": keys["summary"].text(),
        "limits": keys["limits"].text(),
        "opset": _opset(keys.get("opset")),
        "types": types,
        "inputs": _inputs(keys["inputs"], variables),
        "steps": _steps(keys["pattern"], variables),
        "outputs": _outputs(keys["outputs"]) if "outputs" in keys else outputs,
        "where": _conditions(keys.get("where")),
        "let": _let(keys.get("let")),
        "replace": call,
        "anchor": keys["anchor"].text(),
        "fuses": _examples(examples.get("fuses"), "gives"),
        "keeps": _examples(examples.get("keeps"), "because"),
        "span": span,
        "places": {key: keys[key].span for key in _PLACED if key in keys},
    }
    return fields, made


def read_fragment(value: Value) -> Fragment:
    """One `fragment:` document."""
    optional = ("exports", "inputs", "any_of", "is", "type", "pattern", "let", "where")
    keys = value.fields(("fragment", "summary"), optional)
    head = re.fullmatch(r"\s*([a-z_]\w*)\(([^()]*)\)\s*", keys["fragment"].text())
    if head is None:
        raise keys["fragment"].fail("ATF208", "a fragment is named like `scaled(x)`")
    variables = {"T"}
    if ("any_of" in keys) == ("is" in keys):
        raise value.fail("ATF206", "a fragment needs either `is` or `any_of`")
    bodies = [(n, v) for n, _, v in keys["any_of"].items()] if "any_of" in keys else []
    alternatives = [_alternative(name, v, variables) for name, v in bodies]
    if "is" in keys:
        alternatives = [_alternative_from("is", keys, variables, value.span)]
    return Fragment(
        name=head[1],
        params=tuple(p.strip() for p in head[2].split(",") if p.strip()),
        exports={n: v.text() for n, _, v in keys["exports"].items()} if "exports" in keys else {},
        inputs=_inputs(keys["inputs"], variables) if "inputs" in keys else {},
        alternatives=tuple(alternatives),
        summary=keys["summary"].text(),
        span=value.span,
    )


def _alternative(label: str, value: Value, variables: set[str]) -> Alternative:
    if value.is_text():
        term = parse_term(value.text(), value.text_span())
        return Alternative(label, (), term, None, (), (), value.span)
    keys = value.fields(("is",), ("type", "pattern", "let", "where"))
    return _alternative_from(label, keys, variables, value.span)


def _alternative_from(label: str, keys: Mapping[str, Value], variables: set[str], span: Span) -> Alternative:
    return Alternative(
        label,
        _steps(keys["pattern"], variables) if "pattern" in keys else (),
        parse_term(keys["is"].text(), keys["is"].text_span()),
        _type(keys.get("type"), variables),
        _let(keys.get("let")),
        _conditions(keys.get("where")),
        span,
    )


def _steps(value: Value, variables: set[str]) -> tuple[Step, ...]:
    steps = []
    for key_text, key, body in value.items():
        names = tuple(n.strip() for n in key_text.strip("() ").split(","))
        if not all(re.fullmatch(r"[A-Za-z_]\w*", n) for n in names):
            raise key.fail("ATF208", f"{key_text!r} is no name", "a name, or (a, b) for several outputs")
        term, kind = _step_body(names[0], body, variables)
        steps.append(Step(names, term, kind, key.span))
    return tuple(steps)


def _step_body(name: str, body: Value, variables: set[str]) -> tuple[Term, TypeSpec | None]:
    if body.is_text():
        return parse_term(body.text(), body.text_span()), None
    keys = body.fields((), ("is", "any_of", "type"))
    kind = _type(keys.get("type"), variables)
    if "any_of" in keys:
        found = tuple(_alternative(label, v, variables) for label, _, v in keys["any_of"].items())
        return Choice(name, found, body.span), kind
    if "is" not in keys:
        raise body.fail("ATF206", "the key 'is' is missing", "add `is: Operator(…)` here")
    return parse_term(keys["is"].text(), keys["is"].text_span()), kind


def _type(value: Value | None, variables: set[str]) -> TypeSpec | None:
    return None if value is None else parse_type(value.text(), value.text_span(), variables)


def _types(value: Value) -> tuple[int, ...]:
    out = []
    for item in value.list():
        if item.text() not in ELEMENT_TYPES:
            raise item.fail("ATF214", f"unknown element type {item.text()!r}")
        out.append(ELEMENT_TYPES[item.text()])
    return tuple(out)


def _inputs(value: Value, variables: set[str]) -> dict[str, Input]:
    found = {}
    for key_text, _, v in value.items():
        name = key_text.rstrip("?")
        found[name] = Input(name, parse_type(v.text(), v.text_span(), variables), key_text.endswith("?"))
    return found


def _let(value: Value | None) -> tuple[tuple[str, Expr], ...]:
    if value is None:
        return ()
    return tuple((name, _expression(v)) for name, _, v in value.items())


def _expression(value: Value) -> Expr:
    return parse(value.text(), value.text_span())


def _conditions(value: Value | None) -> tuple[Condition, ...]:
    if value is None:
        return ()
    return tuple(Condition(parse(test, key.text_span()), v.text()) for test, key, v in value.items())


def _replace(value: Value) -> tuple[tuple[str, ...], Expr, tuple[Output, ...]]:
    """The names of the results, the call that makes them, and what outputs they are where none are listed."""
    pairs = list(value.items())
    if len(pairs) != 1:
        raise value.fail("ATF207", "`replace` holds one line, `out: FusedOp(…)` or `(a, b): FusedOp(…)`")
    names, key, call = pairs[0]
    found = [(m[0], shifted(key.text_span(), m.start())) for m in re.finditer(r"[^\s(),]+", names)]
    outputs = tuple(Output(n.rstrip("?"), n.rstrip("?"), n.endswith("?"), span) for n, span in found)
    return tuple(name for name, _ in found), _expression(call), outputs


def _check_replacement(value: Value, keys: Mapping[str, Value], level: str) -> None:
    """What a rule becomes is said in one of three ways: by a kernel, by standard nodes, or not yet."""
    if "draft" in keys:
        allowed, needed, hint = {"draft"}, {"outputs"}, "a draft names its outputs and replaces nothing"
    elif level == "constant" and "kernel" not in keys:
        allowed, needed, hint = {"replace", "tensors"}, {"replace"}, "it makes a standard node that reads `tensors`"
    else:
        allowed, needed, hint = {"kernel", "replace"}, {"kernel", "replace"}, "or write `draft: what is missing`"
    for name in sorted(needed - keys.keys()):
        raise value.fail("ATF206", f"the key {name!r} is missing", f"add `{name}: …` here; {hint}")
    for name in ("kernel", "replace", "tensors", "draft"):
        if name in keys and name not in allowed:
            raise keys[name].fail("ATF207", f"`{name}` does not go with the rest of the rule", hint)


def _rebuilt(made: tuple[str, ...], call: Expr) -> Rebuilt:
    """`y: Conv(x, weight, bias, like=c)`."""
    term = parse_term(call.text, call.span)
    if not isinstance(term, Call) or len(made) != 1:
        raise AtcfuseError(error("ATF215", "`replace` must make one standard node", call.span, _REBUILT_HINT))
    return _rebuilt_node(made[0], term, call.span)


_REBUILT_HINT = "write it like `y: Conv(x, weight, bias, like=c)`"


def _rebuilt_node(output: str, term: Call, span: Span) -> Rebuilt:
    like = dict(term.keywords).get("like")
    inputs: list[str | Rebuilt] = []
    for argument in term.args:
        if isinstance(argument, Call) and (argument.is_operator or len(argument.args) == 1):
            inputs.append(_rebuilt_node("", argument, span))
        else:
            inputs.append(argument.name if isinstance(argument, Ref) else "")
    if term.op == IDENTITY and len(inputs) == 1 and inputs[0] and not term.keywords:
        return Rebuilt(output, term.op, tuple(inputs), "", span)
    if not term.is_operator and not term.keywords and len(inputs) == 1 and isinstance(inputs[0], Rebuilt):
        return Rebuilt(output, "", tuple(inputs), term.head, span)
    if term.op == "Add" and not term.keywords and "" not in inputs:  # it has no attributes
        return Rebuilt(output, term.op, tuple(inputs), "", span)
    if "" in inputs or len(term.keywords) != 1 or not isinstance(like, Ref) or not term.is_operator:
        what = "the node takes names of values and tensors, and `like=` a step whose attributes it keeps"
        raise AtcfuseError(error("ATF215", what, span, _REBUILT_HINT))
    return Rebuilt(output, term.op, tuple(inputs), like.name, span)


def _outputs(value: Value) -> tuple[Output, ...]:
    found = []
    for key_text, key, v in value.items():
        name, target = key_text.rstrip("?"), v.text()
        if key_text.endswith("?") and target != "if_used":
            raise v.fail("ATF207", f"an optional output is written `{key_text}: if_used`")
        place = key.span if target == "if_used" else v.span
        found.append(Output(name, name if target == "if_used" else target, target == "if_used", place))
    return tuple(found)


def _examples(value: Value | None, expects: str) -> tuple[Example, ...]:
    if value is None:
        return ()
    found = []
    for title, key, v in value.items():
        keys = v.fields(("graph", expects), ("opset",))
        gives = tuple(i.text() for i in keys["gives"].list()) if expects == "gives" else ()
        because = keys["because"].text() if expects == "because" else ""
        opset = keys["opset"].integer() if "opset" in keys else 17
        found.append(Example(title, keys["graph"].text(), gives, because, opset, key.span))
    return tuple(found)


def _opset(value: Value | None) -> tuple[int, int]:
    if value is None:
        return 8, 1 << 30
    match = re.fullmatch(r"(\d+)(\+|-(\d+))", value.text())
    if match is None:
        raise value.fail("ATF207", f"cannot read the opset range {value.text()!r}", "write 8+ or 8-18")
    return int(match[1]), int(match[3]) if match[3] else 1 << 30


def _identifier(value: Value) -> str:
    text = value.text()
    if not re.fullmatch(r"[A-Za-z_]\w{0,79}", text):
        raise value.fail("ATF207", f"{text!r} is not a name", "letters, digits and _, beginning with a letter")
    return text
