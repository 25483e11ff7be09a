"""Which names a rule or an alternative of a fragment binds, so that a misspelt one can be told from them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from atcfuse.rule.model import Fragment, Input
from atcfuse.rule.terms import Alternative, Call, Choice, Literal, Ref, Step, Term, subterms
from atcfuse.rule.types import TypeSpec

_WORD = re.compile(r"[A-Za-z_]\w*")
_NOTATION = frozenset({"view", "strided", "merged"})
"""Combinators whose text names dims."""


def names_of_steps(steps: Iterable[Step], fragments: Mapping[str, Fragment]) -> set[str]:
    """Names of the steps and all that their terms and types bind."""
    found: set[str] = set()
    for step in steps:
        found |= {*step.names, *_dims(step.type), *names_of_term(step.term, fragments)}
    return found


def names_of_term(term: Term, fragments: Mapping[str, Fragment]) -> set[str]:
    """Values, captures, dims in notation, and what a fragment hands through with `...`."""
    found: set[str] = set()
    for part in subterms(term):
        if isinstance(part, Ref):
            found.add(part.name)
        elif isinstance(part, Choice):
            for alternative in part.alternatives:
                found |= names_of_alternative(alternative, fragments)
        elif isinstance(part, Call):
            found |= set(_of_call(part, fragments))
    return found


def _of_call(call: Call, fragments: Mapping[str, Fragment]) -> Iterator[str]:
    yield from (value.name for _, value in call.keywords if isinstance(value, Ref))
    if call.inherits and call.head in fragments:
        yield from fragments[call.head].exports
    if call.head in _NOTATION:
        for argument in call.args:
            if isinstance(argument, Literal):
                yield from _WORD.findall(str(argument.value))


def names_of_alternative(alternative: Alternative, fragments: Mapping[str, Fragment]) -> set[str]:
    """What one spelling binds, `let` included."""
    lets = {name for name, _ in alternative.let}
    inner = names_of_steps(alternative.steps, fragments) | names_of_term(alternative.result, fragments)
    return lets | inner | set(_dims(alternative.type))


def names_of_inputs(inputs: Mapping[str, Input]) -> set[str]:
    """The inputs and the dims in their types."""
    return {*inputs, *(dim for one in inputs.values() for dim in _dims(one.type))}


def _dims(spec: TypeSpec | None) -> Iterator[str]:
    for dim in (spec.dims or ()) if spec else ():
        if not isinstance(dim, str):
            yield from dim.names()
