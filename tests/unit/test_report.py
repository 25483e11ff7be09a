"""Reports: byte-stable JSON, the contract, coded read errors, and what people read."""

from __future__ import annotations

import copy
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atcfuse.diagnostics import AtcfuseError, code_page
from atcfuse.report import read_report, report_schema, to_json, to_line, to_markdown, to_text, validate
from atcfuse.report.contract import KEYWORDS
from atcfuse.report.figures import bytes_change, exact_bytes, human_bytes, microseconds, percent, total
from atcfuse.report.names import display_width, shorten, span_of

FIXTURES = Path(__file__).parents[1] / "golden" / "report"


def load(name: str) -> dict[str, Any]:
    return read_report(FIXTURES / f"{name}.json")


@pytest.fixture
def bert() -> dict[str, Any]:
    return load("bert")


@pytest.fixture
def empty() -> dict[str, Any]:
    return load("empty")


# ---------------------------------------------------------------- golden


@pytest.mark.parametrize("name", ["bert", "empty", "atc"])
def test_renderings_are_as_reviewed(name, golden):
    report = load(name)
    golden(f"report/{name}.txt", to_text(report, 80))
    golden(f"report/{name}.narrow.txt", to_text(report, 40))
    golden(f"report/{name}.color.txt", to_text(report, 100, color=True))
    golden(f"report/{name}.md", to_markdown(report))
    golden(f"report/{name}.line.txt", to_line(report) + "\n")


# ---------------------------------------------------------------- JSON


def test_json_does_not_depend_on_the_order_of_keys(bert):
    def reversed_keys(value):
        if isinstance(value, dict):
            return {key: reversed_keys(value[key]) for key in reversed(value)}
        return [reversed_keys(item) for item in value] if isinstance(value, list) else value

    assert to_json(reversed_keys(bert)) == to_json(bert) == (FIXTURES / "bert.json").read_text(encoding="utf-8")


def test_json_has_sorted_keys_two_spaces_and_exact_floats():
    assert to_json({"b": 0.1, "a": [1e-12]}) == '{\n  "a": [\n    1e-12\n  ],\n  "b": 0.1\n}\n'


_SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
_VALUES = st.recursive(
    _SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4), max_leaves=20
)


@given(st.dictionaries(st.text(), _VALUES, max_size=4))
def test_json_is_what_the_standard_encoder_writes_also_where_values_are_shared(document):
    document = {**document, "again": document, "twice": [document, list(document), {"deeper": document}]}
    standard = json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False)
    assert json.loads(to_json(document)) == json.loads(standard)
    if standard.isascii() and "\x7f" not in standard:
        assert to_json(document) == standard + "\n"


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_json_refuses_what_is_no_number(value):
    with pytest.raises(ValueError, match="JSON"):
        to_json({"a": value})


@given(st.text(st.characters(exclude_categories=())))
def test_any_name_survives_json_and_can_be_written_as_utf8(name):
    text = to_json({"name": name})
    assert json.loads(text.encode().decode())["name"] == name
    assert not re.search("[\u202a-\u202e\u2066-\u2069]", text), "a direction mark would show another text"


# ---------------------------------------------------------------- contract


def test_the_schema_uses_no_keyword_that_is_not_checked():
    annotations = {"$schema", "$id", "$defs", "title", "description"}

    def check(schema):
        assert set(schema) <= KEYWORDS | annotations
        parts = [*schema.get("$defs", {}).values(), *schema.get("properties", {}).values()]
        parts += [*schema.get("patternProperties", {}).values()]
        parts += [schema[key] for key in ("items", "additionalProperties") if key in schema]
        for part in parts:
            check(part)
        if "$ref" in schema:
            assert schema["$ref"].removeprefix("#/$defs/") in report_schema()["$defs"]
        assert set(schema.get("required", ())) <= set(schema.get("properties", ()))

    check(report_schema())


def required_paths(schema, document, path=()):
    """Every key that the schema requires somewhere in the document, as a path."""
    while "$ref" in schema:
        schema = report_schema()["$defs"][schema["$ref"].removeprefix("#/$defs/")]
    if isinstance(document, list):
        for i, item in enumerate(document):
            yield from required_paths(schema.get("items", {}), item, (*path, i))
    elif isinstance(document, dict):
        yield from ((*path, key) for key in schema.get("required", ()))
        for key, item in document.items():
            part = schema.get("properties", {}).get(key, schema.get("additionalProperties", {}))
            yield from required_paths(part, item, (*path, key))


def at(document, path):
    for key in path:
        document = document[key]
    return document


def test_every_required_key_is_missed_and_every_wrong_type_is_found(bert):
    paths = list(required_paths(report_schema(), bert))
    assert ("kept", 0, "reason") in paths
    assert len(paths) > 100
    for path in paths:
        without, wrong = copy.deepcopy(bert), copy.deepcopy(bert)
        del at(without, path[:-1])[path[-1]]
        (problem,) = validate(without)
        assert "is missing" in problem
        assert repr(path[-1]) in problem
        at(wrong, path[:-1])[path[-1]] = object()
        assert validate(wrong), f"{path} may be anything"


@pytest.mark.parametrize(
    ("path", "value", "problem"),
    [
        (("fusions", 1, "op"), None, "fusions[1].op: expected a string, found None"),
        (("summary", "launches_after"), True, "summary.launches_after: expected an integer or null, found True"),
        (("summary", "launches_after"), -1, "summary.launches_after: expected at least 0, found -1"),
        (("summary", "weight_bytes_after"), "x", "summary.weight_bytes_after: expected an integer or null, found 'x'"),
        (("summary", "time_us_after"), [1.0], "summary.time_us_after: expected 2 entries, found 1"),
        (("summary", "time_us_after"), float("nan"), "summary.time_us_after: expected a finite number, found nan"),
        (("kept", 0, "code"), "E10013", "kept[0].code: expected text like ^ATF[0-9]{3}$, found 'E10013'"),
        (("rules", "gelu", "switch"), "no", "rules.gelu.switch: expected 'on' or 'off', found 'no'"),
        (("schema",), "atcfuse.report/2", "schema: expected 'atcfuse.report/1', found 'atcfuse.report/2'"),
    ],
)
def test_a_problem_says_where_what_was_expected_and_what_was_found(bert, path, value, problem):
    at(bert, path[:-1])[path[-1]] = value
    assert validate(bert) == [problem]


def with_unknown_keys(value):
    if isinstance(value, dict):
        return {key: with_unknown_keys(item) for key, item in value.items()} | {"zz_new": {"a": [None]}}
    return [with_unknown_keys(item) for item in value] if isinstance(value, list) else value


def test_unknown_keys_change_no_rendering(bert):
    tolerant = with_unknown_keys(bert)
    for part in [*tolerant["fusions"], tolerant["summary"]]:
        for key in ("choices", "attributes", "assumed_dims"):  # open dictionaries: their keys are data
            part.get(key, {}).pop("zz_new", None)
    tolerant["rules"].pop("zz_new")
    assert validate(tolerant) == []
    assert to_text(tolerant) == to_text(bert)
    assert to_markdown(tolerant) == to_markdown(bert)


def test_the_schema_ships_with_the_package_and_reading_a_report_imports_neither_onnx_nor_numpy():
    script = (
        "import sys, atcfuse.report as r; r.report_schema(); print({'onnx','numpy','onnxruntime'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


# ---------------------------------------------------------------- reading


@pytest.mark.parametrize(
    ("content", "code", "place"),
    [
        (b"", "ATF532", ":1:1"),
        (b'{"schema":\n  oops}', "ATF532", ":2:3"),
        (b"\xff\xfe", "ATF532", ""),
        (b'{"a": NaN}', "ATF532", ""),
        (b"[" * 100_000, "ATF532", ""),
        (b'{"a": ' + b"9" * 5000 + b"}", "ATF532", ""),
        (b"[]", "ATF533", ""),
        (b"{}", "ATF533", ""),
        (b'{"schema": 1}', "ATF533", ""),
        (b'{"schema": "atcfuse.report/2"}', "ATF533", ""),
        (b'{"schema": "atcfuse.report/1"}', "ATF534", ""),
    ],
)
def test_what_is_no_report_is_a_coded_error(tmp_path, content, code, place):
    path = tmp_path / "r.json"
    path.write_bytes(content)
    with pytest.raises(AtcfuseError) as caught:
        read_report(path)
    (diagnostic,) = caught.value.diagnostics
    assert (diagnostic.code, str(diagnostic.span)) == (code, f"{path}{place}")
    assert diagnostic.hint
    assert (code_page(code) or "").startswith(f"# {code}: ")


def test_a_missing_file_and_a_folder_are_told_apart(tmp_path):
    for path, code in ((tmp_path / "no.json", "ATF530"), (tmp_path, "ATF531")):
        with pytest.raises(AtcfuseError) as caught:
            read_report(path)
        assert caught.value.diagnostics[0].code == code
        assert caught.value.exit_code == 1


def test_many_problems_are_counted_and_the_first_are_shown(tmp_path, bert):
    for fusion in bert["fusions"]:
        del fusion["op"], fusion["rule"]
    path = tmp_path / "r.json"
    path.write_text(to_json(bert), encoding="utf-8")
    with pytest.raises(AtcfuseError) as caught:
        read_report(path)
    (diagnostic,) = caught.value.diagnostics
    assert "8 places" in diagnostic.message
    assert diagnostic.notes[-1] == "and 3 more"


# ---------------------------------------------------------------- figures and names


def test_figures():
    assert human_bytes(1023) == "1023 B"
    assert human_bytes(1024) == "1.00 KiB"
    assert exact_bytes(1_250_000_000) == "1.16 GiB (1,250,000,000 B)"
    assert bytes_change(-2048) == "+2.00 KiB"
    assert bytes_change(2048) == "-2.00 KiB"
    assert bytes_change(0) == "0 B"
    assert percent(610, 55) == "-91.0%"
    assert percent(7, 7) == percent(0, 0) == "0%"
    assert percent(0, 1) == percent(None, 1) == ""
    assert microseconds([1, 2.54]) == "1.0 to 2.5 µs"
    assert total([1, None]) is None
    assert {human_bytes(None), microseconds(None), bytes_change(None)} == {"not estimated"}


def test_folded_names_show_what_differs():
    layers = [f"/bert/layer.{i}/attn/Fused" for i in range(12)]
    assert span_of(layers) == ["layer.0", "layer.11"]
    assert span_of([name.replace("/", ".").removeprefix(".") for name in layers]) == ["layer.0", "layer.11"]
    assert span_of(layers[:1]) == layers[:1]
    assert span_of(["a", "a/b"]) == ["a", "a/b"]
    assert span_of(["x", "x"]) == ["x", "x"]
    assert span_of(["", "b"]) == ["(unnamed)", "b"]


@given(st.text(st.characters(exclude_categories=()), max_size=60), st.integers(3, 40))
def test_shortened_names_are_printable_and_fit(name, limit):
    short = shorten(name, limit)
    assert short.isprintable()
    assert display_width(short) <= limit
    if name.isprintable() and display_width(name) <= limit:
        assert short == name


@given(st.lists(st.text(max_size=20), min_size=1, max_size=4))
def test_no_names_break_folding(names):
    assert 1 <= len(span_of(names)) <= 2


# ---------------------------------------------------------------- what people read


def test_identical_fusions_fold_and_different_ones_do_not(bert):
    assert "FusedAttention ×2  layer.0, layer.1" in to_text(bert)
    bert["fusions"][1]["attributes"]["scale"] = 0.5
    text = to_text(bert)
    assert "FusedAttention ×2" not in text
    assert "scale=0.5" in " ".join(text.split())
    bert["fusions"] = [dict(bert["fusions"][3], name=f"/model/layer.{i}/FusedAttention") for i in range(12)]
    assert "FusedAttention ×12  layer.0 … layer.11" in to_text(bert)


def test_an_unknown_part_makes_the_sum_unknown(bert):
    bert["fusions"][1]["ddr_bytes_saved"] = None
    line = next(line for line in to_text(bert).splitlines() if line.startswith("  attention:"))
    assert line == "  attention: 2 fusions; launches -16, DDR not estimated"


def test_kept_places_are_counted_and_the_first_named(bert):
    bert["kept"] = [dict(bert["kept"][2], anchor=f"s{i}") for i in range(5)]
    text = to_text(bert)
    assert "ATF301 ×5 attention: the probabilities are also an output of the model" in text
    assert "at s0, s1, s2 and 2 more" in text
    assert "help: drop the output when nobody reads it" in text


def test_figures_after_atc_get_a_column_once_there_are_any(bert):
    assert "after ATC" not in to_text(bert) + to_markdown(bert)
    bert["summary"].update(launches_after_atc=48, launches_after_both=30)
    assert "| launches | 62 | 48 | 30 | -37.5% |" in to_markdown(bert)
    assert "| nodes | 131 | - | 75 | -42.7% |" in to_markdown(bert)
    assert re.search(r"as exported +after ATC +after atcfuse \+ ATC +change", to_text(bert))
    assert "launches 62 → 48 with ATC → 30 with atcfuse too (-37.5%)" in to_line(bert)
    assert "hands over has 34 launches" in " ".join(to_text(bert).split())


def test_ranges_of_time_are_shown(bert):
    bert["summary"].update(time_us_before=[100, 120], time_us_after=[50, 75])
    assert "| time | 100.0 to 120.0 µs | 50.0 to 75.0 µs |  |" in to_markdown(bert)


def test_the_line_is_one_line_whatever_the_name(bert):
    bert["model"]["name"] = "a\nb\x1b[31m" + "x" * 10_000
    line = to_line(bert)
    assert line.isprintable()
    assert len(line) < 200


def test_harmless_names_and_sentences_stay_readable(bert):
    bert["kept"][2]["reason"] = "use `atcfuse check`; layer.0/Add_3 has 2 uses (see ATF301)."
    assert "| use `atcfuse check`; `layer.0/Add_3` has 2 uses (see ATF301). |" in to_markdown(bert)
    bert["kept"][2]["reason"] = "see #1`one``two`#2"
    assert "| see `#1` `one` `two` `#2` |" in to_markdown(bert)
    bert["fusions"] = [dict(bert["fusions"][1], name="a|b<c>")]
    assert "<code>a&#124;b&#60;c&#62;</code>" in to_markdown(bert)
