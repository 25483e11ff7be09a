"""No fusion and no move makes launches more, as exported or with what ATC does by itself, and the report's sums add up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import pytest

from atcfuse.compiler import optimize_proto, toolbox
from atcfuse.graph.index import Model
from atcfuse.graph.infer import infer
from atcfuse.graph.text import parse_graph
from atcfuse.graph.traffic import Remembered
from atcfuse.match.find import Lookup, RuleFinder
from atcfuse.match.values import Built
from atcfuse.options import Options
from atcfuse.report.groups import elsewhere_line
from atcfuse.rewrite import Fusion, prepare
from atcfuse.run import Toolbox
from atcfuse.tally import raising


@lru_cache(maxsize=1)
def everything() -> Toolbox:
    """All that a run has, a single launch saved being worth a fusion."""
    return toolbox(Options(dialect="portable", min_saving_us=0.0))


def of(graph: str, opset: int = 17) -> dict[str, Any]:
    return optimize_proto(parse_graph(graph, opset), everything()).report


def figures(report: dict[str, Any]) -> tuple[int, int, int, int]:
    found = (report["summary"][f"launches_{column}"] for column in ("before", "after", "after_atc", "after_both"))
    before, after, after_atc, after_both = found
    return before, after, after_atc, after_both


RULES = [rule.name for rule in everything().book.rules if rule.fuses]


@pytest.mark.parametrize("name", RULES)
def test_examples_of_rules_have_no_more_launches_than_before(name: str) -> None:
    rule = everything().book.rule(name)
    assert rule is not None
    for example in rule.fuses:
        report = of(example.graph, example.opset)
        before, after, after_atc, after_both = figures(report)
        assert after <= before, example.title
        assert after_both <= after_atc, example.title


def fusions_of(graph: str) -> list[Fusion]:
    """All that the rule about rotations finds; each takes eight launches."""
    model = Model(parse_graph(graph, 17))
    infer(model)
    rule = everything().book.rule("rotary_embedding")
    assert rule is not None
    finder = RuleFinder(model.main, Lookup.of(everything().book))
    found = [prepare(match, everything().kernels[rule.kernel]) for match in finder.matches(rule)]
    assert all(isinstance(fusion, Fusion) for fusion in found)
    return [fusion for fusion in found if isinstance(fusion, Fusion)]


def turned(*names: str) -> str:
    """Halves of vectors turned apart by the same angles, from x to y with each of the names."""
    nodes = """l{0}, h{0} = Split<axis = -1>(x{0}, parts) a{0} = Mul(l{0}, c) b{0} = Mul(s, h{0}) f{0} = Sub(a{0}, b{0})
        d{0} = Mul(h{0}, c) e{0} = Mul(l{0}, s) g{0} = Add(d{0}, e{0}) y{0} = Concat<axis = -1>(f{0}, g{0})"""
    given, made = (", ".join(f"float[2,3,S,8] {letter}{name}" for name in names) for letter in "xy")
    return f"""({given}, float[S,4] c, float[S,4] s) => ({made}) <int64[2] parts = {{4, 4}}> {{
        {" ".join(nodes.format(name) for name in names)} }}"""


def needing(fusion: Fusion, count: int) -> Fusion:
    """The fusion with so many launches beside it: those that write out cosines and sines, and more behind the cosines."""
    at = [operand.name for operand in fusion.spec.inputs].index("cos")
    cos: Any = fusion.match.env["cos"]
    for _ in range(count - 2):
        cos = Built("Neg", (cos,))
    sin = fusion.match.env["sin"]
    return replace(fusion, inputs=(*fusion.inputs[:at], cos, sin))


def refused(fusions: Sequence[Fusion], forced: frozenset[str] = frozenset()) -> list[str | None]:
    found = raising(fusions, Remembered(), forced)
    return [found[id(f)].reason if id(f) in found else None for f in fusions]


def test_what_is_made_beside_a_fusion_may_be_as_much_as_it_saves_and_no_more() -> None:
    (fusion,) = fusions_of(turned("1"))
    assert refused([needing(fusion, 7)]) == [None]
    reason = "with FusedRotaryEmbedding 8 launches would become 9, by standard operators that it needs beside it"
    assert refused([needing(fusion, 8)]) == [reason]
    assert refused([needing(fusion, 8)], frozenset({"rotary_embedding"})) == [None]


def test_what_fusions_share_is_counted_once_for_all_of_them() -> None:
    first, second, other = fusions_of(turned("1", "2", "3"))
    assert refused([needing(first, 14), needing(second, 14)]) == [None, None]
    assert [bool(r) for r in refused([needing(first, 15), needing(second, 15)])] == [True, True]
    # The third shares two of these, and saves enough for all.
    assert refused([needing(first, 15), needing(second, 15), other]) == [None, None, None]


def test_views_beside_are_no_launches_and_constants_are_made_by_the_converter() -> None:
    (fusion,) = fusions_of(turned("1"))
    at = [operand.name for operand in fusion.spec.inputs].index("cos")
    cos: Any = fusion.match.env["cos"]
    for axis in range(9):
        cos = Built("Unsqueeze", (cos,), (("axes", (axis,)),))
    assert refused([replace(fusion, inputs=(*fusion.inputs[:at], cos))]) == [None]
    given = turned("1").replace(", float[S,4] c, float[S,4] s", ", float[1,4] s")
    (fixed,) = fusions_of(given.replace("<int64", "<float[1,4] c = {1, 2, 3, 4}, int64"))
    assert refused([needing(fixed, 9)]) == [None]


def test_the_report_tells_what_no_fusion_claims() -> None:
    """The cosines and sines are written out for each element, by a Gather each; the fusion claims seven launches."""
    report = of(turned("1"))
    assert figures(report) == (8, 3, 8, 3)
    assert [fusion["launches_saved"] for fusion in report["fusions"]] == [7]
    assert (report["summary"]["launches_elsewhere"], report["summary"]["launches_elsewhere_after_atc"]) == (-2, -2)
    told = elsewhere_line(report)
    assert told.startswith("launches that no fusion claims: +2 against ATC alone, +2 as exported (")


def test_nothing_is_told_where_the_claims_are_all() -> None:
    report = of("(float[2,S,8] x, float[8,8] w, float[2,S,8] r) => (float[2,S,8] y) { p = MatMul(x, w) y = Add(p, r) }")
    assert [fusion["launches_saved"] for fusion in report["fusions"]] == [1]
    assert report["summary"]["launches_elsewhere"] == 0
    assert elsewhere_line(report) == ""
