"""ATC's own `fusion_result.json`: how often each of its passes matched and took effect."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from atcfuse.diagnostics import AtcfuseError, Span, error
from atcfuse.paths import head_of, is_file
from atcfuse.report.document import read_text
from atcfuse.switches.json_tree import parse_json
from atcfuse.switches.tree import Node, Scalar, Sequence, Table, shown

FILE_NAME = "fusion_result.json"
GRAPH_PREFIX = "session_and_graph_id_"
_LOOKS_SO = re.compile(rf'\s*\{{\s*"{GRAPH_PREFIX}')
_HEAD_BYTES = 4096
_NUMBER = re.compile(r"[0-9]{1,18}")
_HINT = "give the fusion_result.json as ATC wrote it; a file that ATC was stopped in the middle of cannot be used"


@dataclass(frozen=True)
class Counts:
    """How often a pass matched, and how often it took effect."""

    matched: int
    effect: int

    def __add__(self, other: Counts) -> Counts:
        return Counts(self.matched + other.matched, self.effect + other.effect)


@dataclass(frozen=True)
class AtcResult:
    """Counters of all graphs of a run together, by (kind, pass), kinds as in the file: `graph_fusion`, `ub_fusion`."""

    graphs: tuple[str, ...]
    passes: Mapping[tuple[str, str], Counts]


def is_atc_result(path: Path) -> bool:
    """Whether a file is ATC's, by its name or its first key."""
    if path.name == FILE_NAME:
        return True
    head = head_of(path, _HEAD_BYTES).removeprefix(b"\xef\xbb\xbf") if is_file(path) else b""
    return _LOOKS_SO.match(head.decode("latin-1")) is not None


def read_atc_result(path: Path) -> AtcResult:
    """The counters in a file.

    Raises AtcfuseError: ATF530 no such file, ATF531 not readable, ATF532 not text, ATF550 not of ATC's form.
    """
    text = read_text(path)
    try:
        document = parse_json(text, str(path))
    except AtcfuseError as exc:  # in the words of switch files
        raise AtcfuseError([error("ATF550", d.message, d.span, _HINT) for d in exc.diagnostics]) from None
    graphs: list[str] = []
    passes: dict[tuple[str, str], Counts] = {}
    for graph, kinds in _entries(document, "an object with one entry a graph"):
        if not graph.text.startswith(GRAPH_PREFIX):
            raise _malformed(f"expected {GRAPH_PREFIX}…, found {shown(graph.text)}", graph.span)
        graphs.append(graph.text)
        for kind, named in _entries(kinds, "an object with graph_fusion and ub_fusion"):
            for name, counters in _entries(named, "an object with one entry a pass"):
                key = (kind.text, name.text)
                passes[key] = passes.get(key, Counts(0, 0)) + _counts(name, counters)
    return AtcResult(tuple(graphs), passes)


def _entries(node: Node, expected: str) -> tuple[tuple[Scalar, Node], ...]:
    """The entries of an object, no key twice."""
    if not isinstance(node, Table):
        raise _malformed(f"expected {expected}, found {_what(node)}", node.span)
    seen: dict[str, Span] = {}
    for key, _ in node.items:
        if key.text in seen:
            raise _malformed(f"{shown(key.text)} is there twice, first in line {seen[key.text].line}", key.span)
        seen[key.text] = key.span
    return node.items


def _counts(name: Scalar, node: Node) -> Counts:
    found = {key.text: value for key, value in _entries(node, "an object with match_times and effect_times")}
    missing = [key for key in ("match_times", "effect_times") if key not in found]
    if missing:
        raise _malformed(f"{' and '.join(missing)} of {shown(name.text)} are missing", node.span)
    return Counts(_number(found["match_times"]), _number(found["effect_times"]))


def _number(node: Node) -> int:
    """A counter; ATC writes them as text."""
    if isinstance(node, Scalar) and _NUMBER.fullmatch(node.text):
        return int(node.text)
    raise _malformed(f'expected a count such as "3", found {_what(node)}', node.span)


def _what(node: Node) -> str:
    if isinstance(node, Table):
        return "an object"
    if isinstance(node, Sequence):
        return "a list"
    return shown(node.text) if node.quoted else node.text


def _malformed(message: str, span: Span) -> AtcfuseError:
    return AtcfuseError(error("ATF550", message, span, _HINT))
