"""What ATC did on top: its fusion_result.json is read strictly, held against the report, and judged pass by pass."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from atcfuse.diagnostics import AtcfuseError, code_page
from atcfuse.report import read_report
from atcfuse.report.atc_compare import VERDICTS, atc_diff, atc_gate, result_diff
from atcfuse.report.atc_render import atc_diff_markdown, atc_diff_text
from atcfuse.report.atc_result import AtcResult, Counts, is_atc_result, read_atc_result

GOLDEN = Path(__file__).parents[1] / "golden" / "report"
GRAPH = "session_and_graph_id_0_0"


def counters(matched: int, effect: int) -> dict[str, str]:
    return {"effect_times": str(effect), "match_times": str(matched)}


def described(name: str, exported: int, after: int, kind: str = "GraphFusion", state: str = "on") -> dict[str, Any]:
    zero = {"launches_saved": 0, "launches_saved_after": 0, "numerics": None, "source": "s", "why": None}
    return {
        "rule": f"atc_{name}",
        "name": name,
        "kind": kind,
        "state": state,
        "makes": f"Made{name}",
        "times": exported,
        "times_after": after,
        **zero,
    }


def report(*passes: dict[str, Any]) -> dict[str, Any]:
    document = read_report(GOLDEN / "bert.json")
    document["atc"] = {"basis": "estimated", "passes": list(passes)}
    document["switches"] = [
        {"name": "OwnPass", "kind": "GraphFusion", "rule": "attention", "state": "on", "why": None},
    ]
    return document


def result(passes: dict[str, tuple[int, int]], kind: str = "graph_fusion") -> AtcResult:
    return AtcResult((GRAPH,), {(kind, name): Counts(*counts) for name, counts in passes.items()})


EVERY = (
    report(
        described("Gelu", 2, 0),
        described("Off", 1, 1, state="off"),
        described("Norm", 4, 4),
        described("Bias", 6, 6),
        described("Twice", 1, 1),
        described("Twice", 2, 2),
        described("Absent", 3, 3),
        described("Idle", 5, 0),
    ),
    result(
        {
            "Gelu": (3, 2),
            "Off": (1, 1),
            "Norm": (4, 4),
            "Bias": (9, 9),
            "Twice": (3, 3),
            "New": (2, 1),
            "OwnPass": (1, 1),
        }
    ),
)


def verdicts(difference: dict[str, Any]) -> dict[str, str]:
    return {row["name"]: row["verdict"] for row in difference["passes"]}


def test_every_pass_is_judged() -> None:
    found = verdicts(atc_diff(*EVERY))
    assert found == {
        "Gelu": "on_fused",
        "Off": "switched_off",
        "Bias": "more",
        "Absent": "fewer",
        "Norm": "as_expected",
        "Twice": "as_expected",
        "New": "undescribed",
        "OwnPass": "own",
    }
    assert set(found.values()) == set(VERDICTS)


def test_a_pass_of_another_kind_is_another_pass() -> None:
    found = atc_diff(report(described("P", 1, 1, kind="UBFusion")), result({"P": (1, 1)}))
    assert [(row["kind"], row["verdict"]) for row in found["passes"]] == [
        ("ub_fusion", "fewer"),
        ("graph_fusion", "undescribed"),
    ]


def test_renderings_are_as_reviewed(golden) -> None:
    difference = json.loads(json.dumps(atc_diff(*EVERY)))
    golden("report/atc_diff.txt", atc_diff_text(difference, 80))
    golden("report/atc_diff.md", atc_diff_markdown(difference))
    changed = result_diff(result({"A": (2, 2), "B": (1, 1)}), result({"A": (2, 2), "B": (3, 1), "C": (1, 1)}))
    golden("report/atc_changed.txt", atc_diff_text(changed, 80))
    assert [row["name"] for row in changed["passes"]] == ["B", "C"]
    assert "as often as before" in atc_diff_text(result_diff(EVERY[1], EVERY[1]))


def test_the_gate_fails_where_atc_took_what_atcfuse_fuses_or_what_is_off() -> None:
    found = atc_gate(atc_diff(*EVERY))
    assert [d.code for d in found] == ["ATF551", "ATF551"]
    assert found[0].message == "Gelu took effect 2 times, 0 expected and 2 in the model as exported"
    assert "switched off" in found[1].message
    assert atc_gate(atc_diff(report(described("Norm", 4, 4)), result({"Norm": (4, 4)}))) == []


def test_counts_of_the_model_as_exported_are_told() -> None:
    given = report(described("Gelu", 2, 0), described("Bias", 6, 1), described("Norm", 4, 4))
    exported = atc_diff(given, result({"Gelu": (2, 2), "Bias": (6, 6), "Norm": (4, 4)}))
    assert "model as exported" in "".join(exported["caveats"])
    assert atc_diff(given, result({"Gelu": (2, 2), "Bias": (6, 5), "Norm": (4, 4)}))["caveats"] == []


def test_a_report_that_knows_no_passes_says_so() -> None:
    document = report()
    del document["atc"]
    found = atc_diff(document, result({"P": (1, 1)}))
    assert "no pass of ATC is described for Ascend910B1" in found["caveats"]
    assert verdicts(found) == {"P": "undescribed"}


# ---------------------------------------------------------------- the file


def test_graphs_and_kinds_are_read_as_atc_writes_them(tmp_path: Path) -> None:
    hit = {**counters(1, 1), "repository_hit_times": "0"}
    document = {
        GRAPH: {"graph_fusion": {"P": counters(4, 3)}},
        "session_and_graph_id_0_1": {"graph_fusion": {"P": counters(2, 2)}, "ub_fusion": {"P": hit}},
    }
    path = tmp_path / "any.json"
    path.write_text(json.dumps(document, indent=4), encoding="utf-8-sig")
    assert is_atc_result(path)
    found = read_atc_result(path)
    assert found.graphs == tuple(document)
    assert found.passes == {("graph_fusion", "P"): Counts(6, 5), ("ub_fusion", "P"): Counts(1, 1)}
    assert "2 graphs" in atc_diff(report(), found)["caveats"][1]


@pytest.mark.parametrize("text", ["{}", '{"schema": "atcfuse.report/1"}', "[]", "\x08\x07not json", ""])
def test_other_files_are_not_taken_for_it(tmp_path: Path, text: str) -> None:
    (tmp_path / "report.json").write_text(text)
    assert not is_atc_result(tmp_path / "report.json")
    assert not is_atc_result(tmp_path)
    assert not is_atc_result(tmp_path / ("n" * 5000))
    assert not is_atc_result(Path("a\0b"))


@pytest.mark.parametrize(
    ("text", "place", "said"),
    [
        ('{"session_and_graph_id_0_0": {\n  "graph_fusion": {', "2:20", "the end of the file"),
        ("[]", "1:1", "expected an object with one entry a graph, found a list"),
        ('{"graph": {}}', "1:2", 'found "graph"'),
        (f'{{"{GRAPH}": 3}}', "1:30", "found 3"),
        (f'{{"{GRAPH}": {{"ub_fusion": []}}}}', "1:44", "found a list"),
        (f'{{"{GRAPH}": {{"ub_fusion": {{\n"P": {{"match_times": "1"}}}}}}}}', "2:6", 'effect_times of "P"'),
        (f'{{"{GRAPH}": {{"ub_fusion": {{"P": "1"}}}}}}', "1:50", 'found "1"'),
        (f'{{"{GRAPH}": {{"k": {{"P": {{"match_times": "-1", "effect_times": "1"}}}}}}}}', "1:58", 'found "-1"'),
        (f'{{"{GRAPH}": {{"k": {{"P": {{"match_times": {{}}, "effect_times": 1}}}}}}}}', "1:58", "found an object"),
        (f'{{"{GRAPH}": {{}},\n "{GRAPH}": {{}}}}', "2:2", "there twice, first in line 1"),
    ],
)
def test_what_is_wrong_in_the_file_has_its_place(tmp_path: Path, text: str, place: str, said: str) -> None:
    path = tmp_path / "fusion_result.json"
    path.write_text(text)
    assert is_atc_result(path)
    with pytest.raises(AtcfuseError) as caught:
        read_atc_result(path)
    (diagnostic,) = caught.value.diagnostics
    assert (diagnostic.code, str(diagnostic.span)) == ("ATF550", f"{path}:{place}")
    assert said in diagnostic.message


def test_a_file_that_is_not_there_or_no_text(tmp_path: Path) -> None:
    path = tmp_path / "fusion_result.json"
    for content, code in ((None, "ATF530"), (b"\xff\xfe", "ATF532")):
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(AtcfuseError) as caught:
            read_atc_result(path)
        assert caught.value.diagnostics[0].code == code


def test_names_in_the_file_stay_text() -> None:
    name = "P|`<b>\x1b[31m\u202e" + "x" * 2000
    difference = atc_diff(report(), result({name: (1, 1)}))
    for text in (atc_diff_text(difference), atc_diff_markdown(difference)):
        assert not {c for c in text if not c.isprintable() and c != "\n"}
        assert max(map(len, text.splitlines())) < 700
    assert "<b>" not in atc_diff_markdown(difference)


def test_the_codes_have_pages() -> None:
    assert all(code_page(code) for code in ("ATF550", "ATF551", "ATF552"))
