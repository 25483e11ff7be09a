"""Judging the names in a switch file: ours, ATC's, misspelt or unknown."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher

from atcfuse.diagnostics import Diagnostic, Span, info, warning
from atcfuse.switches.content import BLANKS, Content
from atcfuse.switches.model import ALL, KINDS, Kind
from atcfuse.switches.passes import AtcPasses
from atcfuse.switches.tree import shown

_NEAR = 0.75
_LONGEST_NAME = 200  # beyond it a name is no misspelling of anything, and comparing gets slow
_MOST_COMPARED = 500  # unknown names looked up for a near one; a file of thousands must not take minutes
_COMMON_ENDING = re.compile(r"(?:fusion[a-z]{0,6}|pass|rule)$")


@dataclass(frozen=True)
class _Use:
    """One name with the state and kinds it is given in the file."""

    name: str
    span: Span
    kinds: tuple[Kind, ...]
    turned_off: bool


def judge_names(content: Content, own: Mapping[str, Kind], passes: AtcPasses) -> Iterable[Diagnostic]:
    """At most one diagnostic a name."""
    exceptional = content.extras.get("ExceptionalPassOfO1Level", [])
    kept_on = frozenset(exceptional) if isinstance(exceptional, list) else frozenset()
    compared = 0
    for use in _uses(content):
        if _is_unknown(use, own, passes.known | kept_on):
            candidates = (own, passes.known) if compared < _MOST_COMPARED else ((), ())
            compared += 1
            yield _unknown(use, *candidates)
        elif (found := _judge(use, own, passes, kept_on)) is not None:
            yield found


def _is_unknown(use: _Use, own: Collection[str], atc: Collection[str]) -> bool:
    untrimmed = use.name != use.name.strip(BLANKS)  # reported where it was read
    return not (untrimmed or use.name == ALL or use.name in own or use.name in atc)


def _uses(content: Content) -> list[_Use]:
    uses: dict[str, _Use] = {}
    for kind in KINDS:
        for entry in content.switches.get(kind, {}).values():
            before = uses.get(entry.name)
            uses[entry.name] = _Use(
                entry.name,
                before.span if before else entry.span,
                (*before.kinds, kind) if before else (kind,),
                not entry.on or bool(before and before.turned_off),
            )
    return sorted(uses.values(), key=lambda use: (use.span.line, use.span.column))


def _judge(use: _Use, own: Mapping[str, Kind], passes: AtcPasses, kept_on: Collection[str]) -> Diagnostic | None:
    if use.name == ALL:
        return info(
            "ATF273",
            f"{ALL} is weaker than any entry by name, also than those in CANN's built-in fusion_config.json",
            use.span,
            "name the ATC passes that must change; atcfuse's own fusions follow this file alone",
        )
    if use.name in own:
        return _other_kind(use, own[use.name])
    if use.turned_off and use.name in passes.always_on:
        hint = f"remove it, or try atc --optimization_switch={use.name}:off"
        return warning("ATF268", f"{use.name} is turned off, but ATC always keeps it on", use.span, hint)
    if use.turned_off and use.name in kept_on:
        message = f"{shown(use.name)} is turned off, but ExceptionalPassOfO1Level keeps it on in ATC"
        return warning("ATF268", message, use.span, "remove it from one of the two")
    return None


def _other_kind(use: _Use, kind: Kind) -> Diagnostic | None:
    if kind in use.kinds:
        return None
    message = f"{use.name} is a {kind} switch; under {use.kinds[0]} it changes nothing"
    return warning("ATF271", message, use.span, f"move it to {kind}")


def _unknown(use: _Use, own: Collection[str], atc: Collection[str]) -> Diagnostic:
    if use.name.casefold() == ALL.casefold():
        hint = f'did you mean "{ALL}"?'
        return warning("ATF269", f"{shown(use.name)} is no known fusion: names are case-sensitive", use.span, hint)
    our_score, ours = _nearest(use.name, own)
    atc_score, atcs = _nearest(use.name, atc)
    if ours is not None and our_score >= atc_score:
        message = f"{shown(use.name)} is no fusion of atcfuse and no known ATC pass, so it changes nothing here"
        return warning("ATF269", message, use.span, f'did you mean "{ours}"?')
    hint = "ATC takes unknown names without a word: compare the name with fusion_result.json of your CANN"
    message = f"{shown(use.name)} is neither a fusion of atcfuse nor a known ATC pass"
    if atcs is not None:
        return warning("ATF270", message, use.span, f'did you mean "{atcs}"? {hint}')
    return info("ATF270", message, use.span, hint)


def _nearest(name: str, candidates: Iterable[str]) -> tuple[float, str | None]:
    """The candidate whose distinctive part is most like the name's, with its likeness; (0, None) where none is near."""
    best: tuple[float, str | None] = (0.0, None)
    if len(name) > _LONGEST_NAME:
        return best
    matcher = SequenceMatcher(autojunk=False)
    matcher.set_seq2(_distinctive(name))
    for candidate in sorted(candidates):
        matcher.set_seq1(_distinctive(candidate))
        floor = max(best[0], _NEAR)
        if matcher.real_quick_ratio() < floor or matcher.quick_ratio() < floor:
            continue
        score = matcher.ratio()
        if score > best[0] and score >= _NEAR:
            best = (score, candidate)
    return best


def _distinctive(name: str) -> str:
    """The name without case and without the ending most names share, which would make them all alike."""
    folded = name.casefold()
    return _COMMON_ENDING.sub("", folded) or folded
