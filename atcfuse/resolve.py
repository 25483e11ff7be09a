"""Names in rules: everything a rule mentions must exist, and its replacement must fit the kernel's declaration."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping

from atcfuse.diagnostics import AtcfuseError, Span, did_you_mean, error
from atcfuse.expr import Expr, dotted
from atcfuse.kernel import KernelSpec
from atcfuse.rule.model import AtcPass, Fragment, Rebuilt, Rule, RuleBook
from atcfuse.rule.terms import Alternative, Call, Choice, Ref, Step, Term, subterms
from atcfuse.rule.vocabulary import COMBINATORS, FUNCTIONS, TENSOR_FUNCTIONS


def check_book(book: RuleBook, kernels: Mapping[str, KernelSpec]) -> None:
    """Raises AtcfuseError for the first name that does not exist."""
    for fragment in book.fragments.values():
        _fragment(fragment, book)
    for rule in (*book.rules, *book.atc):
        _rule(rule, book, kernels)


def _fragment(fragment: Fragment, book: RuleBook) -> None:
    if fragment.name in COMBINATORS:
        raise _error("ATF211", f"{fragment.name!r} is built in", fragment.span)
    for alternative in fragment.alternatives:
        for step in alternative.steps:
            _term(step.term, book)
        _alternative(alternative, book)


def _alternative(alternative: Alternative, book: RuleBook) -> None:
    _term(alternative.result, book)
    for _, expr in alternative.let:
        _calls(expr)
    for condition in alternative.where:
        _calls(condition.test)


def _rule(rule: Rule, book: RuleBook, kernels: Mapping[str, KernelSpec]) -> None:
    steps = {name for step in rule.steps for name in step.names}
    for step in (*rule.steps, *rule.context):
        _term(step.term, book)
    if rule.anchor not in steps:
        what = f"the anchor {rule.anchor!r} is no step of the pattern"
        raise _error("ATF210", what, rule.span, _near(rule.anchor, steps))
    for output in rule.outputs:
        if output.step not in steps:
            made = rule.replace or rule.rebuilt or rule
            raise _error("ATF210", f"the output {output.name!r} is no step of the pattern", made.span)
    for _, expr in rule.let:
        _calls(expr)
    for condition in rule.where:
        _calls(condition.test)
    bound = steps | set(rule.inputs) | _captured(rule.steps) | {name for name, _ in rule.let}
    if rule.atc is not None:
        _described(rule, rule.atc, bound, book)
    elif rule.replace is not None:
        _replacement(rule, rule.replace, bound, kernels)
    elif rule.rebuilt is not None:
        _rebuilt(rule, rule.rebuilt, bound, steps)


def _described(rule: Rule, described: AtcPass, bound: set[str], book: RuleBook) -> None:
    """A rule about a pass of ATC: its call names an operator of GE, which nothing here declares."""
    call = rule.replace
    if call is None or not isinstance(call.tree, ast.Call):
        raise _error("ATF215", "`replace` must call the GE operator that the pass makes", rule.span)
    others = [r.name for r in book.atc]
    for name in (*described.after, *described.joins):
        if name not in others:
            what = f"{name!r} is no rule about a pass of ATC"
            raise _error("ATF210", what, rule.span, _near(name, others))
    for name in sorted(call.names() - bound - {"inf"}):
        raise _error("ATF210", f"unknown name {name!r} in `replace`", call.span, _near(name, bound))
    _calls(call, {described.operator})


def _rebuilt(rule: Rule, node: Rebuilt, bound: set[str], steps: set[str]) -> None:
    known = {*bound, *rule.types}
    for name, expr in rule.tensors:
        for unknown in sorted(expr.names() - known):
            raise _error("ATF210", f"unknown name {unknown!r} in `tensors`", expr.span, _near(unknown, known))
        for function in sorted(expr.calls() - TENSOR_FUNCTIONS):
            what = f"there is no function {function!r} of tensors"
            raise _error("ATF209", what, expr.span, _near(function, TENSOR_FUNCTIONS))
        known.add(name)
    for name in node.inputs:
        if name not in known:
            raise _error("ATF210", f"unknown name {name!r} in `replace`", node.span, _near(name, known))
    if node.like not in steps:
        raise _error("ATF210", f"{node.like!r} is no step of the pattern", node.span, _near(node.like, steps))


def _captured(steps: Iterable[Step]) -> set[str]:
    found: set[str] = set()
    for step in steps:
        for term in subterms(step.term):
            if isinstance(term, Call):
                found.update(v.name for _, v in term.keywords if isinstance(v, Ref))
            elif isinstance(term, Ref):
                found.add(term.name)
            elif isinstance(term, Choice):
                found.update(name for a in term.alternatives for name, _ in a.let)
    return found


def _replacement(rule: Rule, replace: Expr, bound: set[str], kernels: Mapping[str, KernelSpec]) -> None:
    spec = kernels.get(rule.kernel)
    if spec is None:
        raise _error("ATF218", f"there is no kernel {rule.kernel!r}", rule.span, _near(rule.kernel, kernels))
    call = replace.tree
    if not isinstance(call, ast.Call) or dotted(call.func) != spec.op:
        what = f"`replace` must make {spec.op}, which the kernel {spec.name} implements"
        raise _error("ATF215", what, replace.span)
    if len(call.args) > len(spec.inputs):
        raise _error("ATF215", f"{spec.op} has {len(spec.inputs)} inputs, not {len(call.args)}", replace.span)
    given = {k.arg for k in call.keywords if k.arg}
    known = {a.name for a in spec.attributes}
    for name in sorted(given - known):
        raise _error("ATF215", f"{spec.op} has no attribute {name!r}", replace.span, _near(name, known))
    for attribute in spec.attributes:
        if attribute.default is None and attribute.name not in given:
            raise _error("ATF215", f"{spec.op} needs the attribute {attribute.name!r}", replace.span)
    if len(rule.outputs) > len(spec.outputs):
        raise _error("ATF215", f"{spec.op} has {len(spec.outputs)} outputs", replace.span)
    layouts = {a.name for a in spec.attributes} if _has_strided(rule.steps) else set()
    for name in sorted(replace.names() - bound - layouts - {"inf"}):
        raise _error("ATF210", f"unknown name {name!r} in `replace`", replace.span, _near(name, bound))
    _calls(replace, {spec.op})


def _has_strided(steps: Iterable[Step]) -> bool:
    return any(isinstance(t, Call) and t.head == "strided" for s in steps for t in subterms(s.term))


def _term(term: Term, book: RuleBook) -> None:
    for part in subterms(term):
        if isinstance(part, Choice):
            for alternative in part.alternatives:
                _alternative(alternative, book)
        if not isinstance(part, Call) or part.is_operator or part.head in COMBINATORS:
            continue
        fragment = book.fragments.get(part.head)
        if fragment is None:
            hint = _near(part.head, [*book.fragments, *COMBINATORS]) or "operators are capitalised, fragments are not"
            raise _error("ATF209", f"there is no fragment {part.head!r}", part.span, hint)
        if len(part.args) > len(fragment.params):
            wanted = ", ".join(fragment.params)
            raise _error("ATF213", f"{part.head} takes ({wanted}), not {len(part.args)} values", part.span)
        for name, _ in part.keywords:
            if name not in fragment.exports:
                hint = _near(name, fragment.exports) or f"it exports {', '.join(fragment.exports) or 'nothing'}"
                raise _error("ATF213", f"{part.head} exports no {name!r}", part.span, hint)


def _calls(expr: Expr, more: set[str] | None = None) -> None:
    for name in sorted(expr.calls() - FUNCTIONS - (more or set())):
        raise _error("ATF209", f"there is no function {name!r}", expr.span, _near(name, FUNCTIONS))


def _near(name: str, known: Iterable[str]) -> str:
    return did_you_mean(name, known)


def _error(code: str, message: str, span: Span, hint: str = "") -> AtcfuseError:
    return AtcfuseError(error(code, message, span, hint))
