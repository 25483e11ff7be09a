"""Names in rules: everything a rule mentions must exist, and its replacement must fit the kernel's declaration."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field

from atcfuse.diagnostics import AtcfuseError, Diagnostic, Span, did_you_mean, error
from atcfuse.expr import Expr, dotted
from atcfuse.kernel import KEPT, KernelSpec
from atcfuse.rule.model import AtcPass, Fragment, Rebuilt, Rule, RuleBook
from atcfuse.rule.names import names_of_alternative, names_of_inputs, names_of_steps
from atcfuse.rule.terms import Alternative, Call, Choice, Condition, Step, Term, subterms
from atcfuse.rule.vocabulary import COMBINATORS, FUNCTIONS, TENSOR_FUNCTIONS

Mistakes = Iterator[Diagnostic]

_CONSTANTS = frozenset({"inf"})


@dataclass(frozen=True)
class Operator:
    """What is known of an operator over all opsets: its parameters (None where nobody tells), the most inputs."""

    parameters: frozenset[str] | None = None
    most_inputs: int = sys.maxsize


@dataclass(frozen=True)
class Known:
    """What names in rules may mean. Operators are not looked at where none are given, nor those of other domains."""

    book: RuleBook
    kernels: Mapping[str, KernelSpec]
    operators: Mapping[str, Operator] = field(default_factory=dict)


def check_book(book: RuleBook, kernels: Mapping[str, KernelSpec]) -> None:
    """Raises AtcfuseError with every name that does not exist; operators are not looked at."""
    found = list(mistakes(Known(book, kernels)))
    if found:
        raise AtcfuseError(found)


def mistakes(known: Known) -> Mistakes:
    """What is wrong with the names in all rules and fragments of a book."""
    for fragment in known.book.fragments.values():
        yield from _fragment(fragment, known)
    for rule in (*known.book.rules, *known.book.atc):
        yield from _rule(rule, known)


def _fragment(fragment: Fragment, known: Known) -> Mistakes:
    if fragment.name in COMBINATORS:
        yield _error("ATF211", f"{fragment.name!r} is built in", fragment.span)
    outer = names_of_inputs(fragment.inputs) | set(fragment.params) | set(fragment.exports)
    for alternative in fragment.alternatives:
        yield from _alternative(alternative, outer, known)


def _alternative(alternative: Alternative, outer: Set[str], known: Known) -> Mistakes:
    bound = outer | names_of_alternative(alternative, known.book.fragments)
    for step in alternative.steps:
        yield from _term(step.term, bound, known)
    yield from _term(alternative.result, bound, known)
    yield from _expressions(alternative.let, alternative.where, bound)


def _expressions(let: Iterable[tuple[str, Expr]], where: Iterable[Condition], bound: Set[str]) -> Mistakes:
    for expr in (*(expr for _, expr in let), *(condition.test for condition in where)):
        yield from _calls(expr)
        yield from _names(expr, bound)


def _rule(rule: Rule, known: Known) -> Mistakes:
    steps = {name for step in rule.steps for name in step.names}
    bound = names_of_steps((*rule.steps, *rule.context), known.book.fragments) | names_of_inputs(rule.inputs)
    bound |= {name for name, _ in rule.let}
    for step in (*rule.steps, *rule.context):
        yield from _term(step.term, bound, known)
    if rule.anchor not in steps:
        what = f"the anchor {rule.anchor!r} is no step of the pattern"
        yield _error("ATF210", what, rule.places.get("anchor", rule.span), _near(rule.anchor, steps))
    for output in rule.outputs:
        if output.step not in steps:
            what = f"the output {output.name!r} is no step of the pattern"
            yield _error("ATF210", what, output.span or rule.span, _near(output.step, steps))
    yield from _expressions(rule.let, rule.where, bound)
    if rule.atc is not None:
        yield from _described(rule, rule.atc, bound, known)
    elif rule.replace is not None:
        yield from _replacement(rule, rule.replace, bound, known)
    elif rule.rebuilt is not None:
        yield from _rebuilt(rule, rule.rebuilt, bound, steps)


def _described(rule: Rule, described: AtcPass, bound: Set[str], known: Known) -> Mistakes:
    """A rule about a pass of ATC: its call names an operator of GE, which nothing here declares."""
    call = rule.replace
    if call is None or not isinstance(call.tree, ast.Call):
        yield _error("ATF215", "`replace` must call the GE operator that the pass makes", rule.span)
        return
    others = [r.name for r in known.book.atc]
    for key, names in (("after", described.after), ("joins", described.joins)):
        for name in names:
            if name not in others:
                what = f"{name!r} is no rule about a pass of ATC"
                yield _error("ATF210", what, rule.places.get(key, rule.span), _near(name, others))
    yield from _names(call, bound, " in `replace`")
    yield from _calls(call, {described.operator})


def _rebuilt(rule: Rule, node: Rebuilt, bound: Set[str], steps: Set[str]) -> Mistakes:
    known = {*bound, *rule.types}
    for name, expr in rule.tensors:
        yield from _names(expr, known, " in `tensors`")
        yield from _calls(expr, functions=TENSOR_FUNCTIONS, of=" of tensors")
        known.add(name)
    for name in node.names:
        if name not in known:
            yield _error("ATF210", f"unknown name {name!r} in `replace`", node.span, _near(name, known))
    for made in node.nodes:
        if made.like and made.like not in steps:
            yield _error("ATF210", f"{made.like!r} is no step of the pattern", node.span, _near(made.like, steps))


def _replacement(rule: Rule, replace: Expr, bound: Set[str], known: Known) -> Mistakes:
    spec = known.kernels.get(rule.kernel)
    if spec is None:
        where = rule.places.get("kernel", rule.span)
        yield _error("ATF218", f"there is no kernel {rule.kernel!r}", where, _near(rule.kernel, known.kernels))
        return
    call = replace.tree
    if not isinstance(call, ast.Call) or dotted(call.func) != spec.op:
        what = f"`replace` must make {spec.op}, which the kernel {spec.name} implements"
        yield _error("ATF215", what, replace.span)
        return
    yield from _fits(rule, replace, call, spec)
    layouts = {a.name for a in spec.attributes} if _has_strided(rule.steps) else set()
    yield from _names(replace, bound | layouts, " in `replace`")
    yield from _calls(replace, {spec.op})


def _fits(rule: Rule, replace: Expr, call: ast.Call, spec: KernelSpec) -> Mistakes:
    """Whether a call has the inputs, attributes and outputs that the kernel declares."""
    if len(call.args) > len(spec.inputs):
        where = replace.place(call.args[len(spec.inputs)])
        yield _error("ATF215", f"{spec.op} has {len(spec.inputs)} inputs, not {len(call.args)}", where)
    attributes = {a.name for a in spec.attributes}
    for keyword in call.keywords:
        if keyword.arg and keyword.arg not in attributes:
            what = f"{spec.op} has no attribute {keyword.arg!r}"
            yield _error("ATF215", what, replace.place(keyword), _near(keyword.arg, attributes))
    given = {keyword.arg for keyword in call.keywords}
    for attribute in spec.attributes:
        if attribute.default is None and attribute.name not in {*given, KEPT}:
            yield _error("ATF215", f"{spec.op} needs the attribute {attribute.name!r}", replace.span)
    if len(rule.outputs) > len(spec.outputs):
        where = rule.outputs[len(spec.outputs)].span or replace.span
        yield _error("ATF215", f"{spec.op} has {len(spec.outputs)} outputs, not {len(rule.outputs)}", where)


def _has_strided(steps: Iterable[Step]) -> bool:
    return any(isinstance(t, Call) and t.head == "strided" for s in steps for t in subterms(s.term))


# ---------------------------------------------------------------- terms and expressions


def _term(term: Term, bound: Set[str], known: Known) -> Mistakes:
    for part in subterms(term):
        if isinstance(part, Choice):
            for alternative in part.alternatives:
                yield from _alternative(alternative, bound, known)
        if not isinstance(part, Call) or part.head in COMBINATORS:
            continue
        yield from _operator(part, known) if part.is_operator else _fragment_call(part, known)


def _operator(call: Call, known: Known) -> Mistakes:
    if "." in call.head or not known.operators:
        return
    operator = known.operators.get(call.head)
    if operator is None:
        hint = _near(call.head, known.operators) or "operators are spelled as ONNX spells them, `Softmax`"
        yield _error("ATF209", f"ONNX has no operator {call.head!r}", call.span, hint)
        return
    if len(call.args) > operator.most_inputs:
        what = f"{call.head} takes at most {operator.most_inputs} values, not {len(call.args)}"
        yield _error("ATF213", what, call.args[operator.most_inputs].span)
    parameters = operator.parameters
    for name, _ in call.keywords:
        if parameters is not None and name not in parameters:
            hint = _near(name, parameters) or f"it has {', '.join(sorted(parameters)) or 'none'}"
            yield _error("ATF213", f"{call.head} has no parameter {name!r}", call.places.get(name, call.span), hint)


def _fragment_call(call: Call, known: Known) -> Mistakes:
    fragments = known.book.fragments
    fragment = fragments.get(call.head)
    if fragment is None:
        hint = _near(call.head, [*fragments, *COMBINATORS]) or "operators are capitalised, fragments are not"
        yield _error("ATF209", f"there is no fragment {call.head!r}", call.span, hint)
        return
    if len(call.args) > len(fragment.params):
        wanted = ", ".join(fragment.params)
        where = call.args[len(fragment.params)].span
        yield _error("ATF213", f"{call.head} takes ({wanted}), not {len(call.args)} values", where)
    for name, _ in call.keywords:
        if name not in fragment.exports:
            hint = _near(name, fragment.exports) or f"it exports {', '.join(fragment.exports) or 'nothing'}"
            yield _error("ATF213", f"{call.head} exports no {name!r}", call.places.get(name, call.span), hint)


def _names(expr: Expr, bound: Set[str], where: str = "") -> Mistakes:
    """Names that nothing binds, each once."""
    unknown = expr.names() - bound - _CONSTANTS
    for node in ast.walk(expr.tree) if unknown else ():
        if isinstance(node, ast.Name) and node.id in unknown:
            unknown -= {node.id}
            yield _error("ATF210", f"unknown name {node.id!r}{where}", expr.place(node), _near(node.id, bound))


def _calls(expr: Expr, more: Set[str] = frozenset(), functions: Set[str] = FUNCTIONS, of: str = "") -> Mistakes:
    """Functions that do not exist, each once."""
    unknown = expr.calls() - functions - more
    for node in ast.walk(expr.tree) if unknown else ():
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in unknown:
            unknown.discard(node.func.id)
            what = f"there is no function {node.func.id!r}{of}"
            yield _error("ATF209", what, expr.place(node.func), _near(node.func.id, functions))


def _near(name: str, known: Iterable[str]) -> str:
    return did_you_mean(name, known)


def _error(code: str, message: str, span: Span, hint: str = "") -> Diagnostic:
    return error(code, message, span, hint)
