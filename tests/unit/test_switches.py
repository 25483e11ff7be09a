"""Reading fusion switch files: ATC's semantics in three formats, its traps as warnings, bad files as coded errors."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from atcfuse.diagnostics import AtcfuseError, Diagnostic, UsageError, code_page
from atcfuse.switches import NO_SWITCHES, Switches, describe, explain_switch, read_switches
from atcfuse.switches.passes import atc_passes

ATTENTION = "FusedAttentionFusionPass"
QKV = "FusedLayerNormQKVFusionPass"
OWN = (ATTENTION, QKV)

JSON = '{"Switch": {"GraphFusion": {"ALL": "off", "FusedAttentionFusionPass": "on"}, "UBFusion": {"TbeConvZ": "off"}}}'
YAML = "Switch:\n  GraphFusion:\n    ALL: off\n    FusedAttentionFusionPass: on\n  UBFusion:\n    TbeConvZ: off\n"
LINES = "ALL:off\nFusedAttentionFusionPass:on\n"


@pytest.fixture
def read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Reads a text (or bytes) as the switch file `sw`."""
    monkeypatch.chdir(tmp_path)

    def read_text(content: str | bytes, own=OWN) -> Switches:
        Path("sw").write_bytes(content.encode() if isinstance(content, str) else content)
        return read_switches(Path("sw"), own)

    return read_text


def graph(entries: str) -> str:
    return '{"Switch": {"GraphFusion": {' + entries + "}}}"


def places(diagnostics: tuple[Diagnostic, ...]) -> list[str]:
    return [f"{d.code} {d.span}" for d in diagnostics]


def by_code(switches: Switches) -> dict[str, Diagnostic]:
    return {d.code: d for d in switches.diagnostics}


# ---------------------------------------------------------------- what is on


@pytest.mark.parametrize("text", [JSON, YAML, LINES, "\n \t" + JSON, "\ufeff" + JSON, LINES.replace("\n", "\r\n")])
def test_an_entry_by_name_beats_all_in_every_format(read, text):
    switches = read(text)
    assert switches.is_on(ATTENTION)
    assert not switches.is_on(QKV)


def test_the_default_is_on(read):
    assert NO_SWITCHES.is_on(ATTENTION)
    assert NO_SWITCHES.is_on("TbeConvZ", "UBFusion")
    assert read(graph('"FusedLayerNormQKVFusionPass": "off"')).is_on(ATTENTION)


def test_the_kinds_are_separate_in_json_and_one_in_lines(read):
    assert read(JSON).is_on("Anything", "UBFusion")
    assert not read(LINES).is_on("Anything", "UBFusion")
    assert read(LINES).entries["GraphFusion"] == read(LINES).entries["UBFusion"]


@pytest.mark.parametrize("section", ['{"Switch": {}}', "{}", '{"Switch": {"UBFusion": {}}}', "Switch: {}"])
def test_sections_may_be_left_out(read, section):
    switches = read(section)
    assert switches.entries == {"GraphFusion": {}, "UBFusion": {}}
    assert switches.diagnostics == ()


@pytest.mark.parametrize(("word", "on"), [("on", True), ("On", True), ("OFF", False), ('"on"', True), ("'off'", False)])
def test_yaml_booleans_that_read_on_and_off(read, word, on):
    assert read(f"Switch:\n  GraphFusion:\n    {ATTENTION}: {word}\n").is_on(ATTENTION) is on


def test_one_yaml_line_of_a_section_is_not_taken_for_lines(read):
    switches = read(f"Switch: {{GraphFusion: {{{ATTENTION}: off}}}}")
    assert not switches.is_on(ATTENTION)
    assert switches.entries["UBFusion"] == {}


def test_lines_are_trimmed_as_in_atc(read):
    switches = read(f"  {ATTENTION} :\toff \n\n{QKV}: on")
    assert (switches.is_on(ATTENTION), switches.is_on(QKV)) == (False, True)


# ---------------------------------------------------------------- what ATC reads otherwise than it looks


def test_blanks_inside_a_json_value_read_as_off(read):
    switches = read(graph(f'"{ATTENTION}": " on "'))
    assert not switches.is_on(ATTENTION)
    assert places(switches.diagnostics) == ["ATF266 sw:1:57"]


def test_a_json_section_with_blanks_is_ignored(read):
    switches = read(f'{{" Switch ": {{"GraphFusion": {{"{ATTENTION}": "off"}}}}}}')
    assert switches.is_on(ATTENTION)
    assert places(switches.diagnostics) == ["ATF266 sw:1:2"]


def test_a_json_name_with_blanks_is_another_name(read):
    switches = read(graph(f'"{ATTENTION} ": "off"'))
    assert switches.is_on(ATTENTION)
    assert list(by_code(switches)) == ["ATF266"]


def test_of_duplicate_json_keys_the_last_one_counts(read):
    switches = read(graph(f'"{ATTENTION}": true,\n"{ATTENTION}": "off"'))
    assert not switches.is_on(ATTENTION)
    assert places(switches.diagnostics) == ["ATF265 sw:2:1"]
    assert switches.diagnostics[0].notes == ("first given at sw:1:29",)


def test_a_duplicate_json_section_replaces_the_first_as_a_whole(read):
    switches = read(f'{{"Switch": {{"GraphFusion": {{"{ATTENTION}": "off"}}}}, "Switch": {{}}}}')
    assert switches.is_on(ATTENTION)
    assert "ATF265" in by_code(switches)


def test_lines_come_with_the_advice_to_use_json(read):
    warning = by_code(read(LINES))["ATF267"]
    assert warning.severity == "warning"
    assert "atcfuse switches sw --for-atc OUT.json" in warning.hint


def test_a_byte_order_mark_before_lines_is_told(read):
    switches = read(f"\ufeff{ATTENTION}:off\n")
    assert not switches.is_on(ATTENTION)
    assert "ATF266" in by_code(switches)


@pytest.mark.parametrize("text", [graph('"": "off"'), ":off\nALL:on\n"])
def test_an_empty_name_sets_nothing(read, text):
    switches = read(text)
    assert "" not in switches.entries["GraphFusion"]
    assert by_code(switches)["ATF272"].severity == "warning"


def test_passes_that_atc_keeps_on(read):
    switches = read(graph('"ConstToAttrPass": "off", "EinsumPass": "on"'))
    assert places(switches.diagnostics) == ["ATF268 sw:1:29"]
    assert explain_switch(switches, "ConstToAttrPass") == "off in sw, but ATC keeps it on"


def test_a_pass_that_the_file_itself_keeps_on(read):
    text = '{"Switch": {"GraphFusion": {"PadFusionPass": "off"}}, "ExceptionalPassOfO1Level": ["PadFusionPass"]}'
    assert places(read(text).diagnostics) == ["ATF268 sw:1:29"]


def test_all_is_explained_once(read):
    assert [
        d.severity for d in read('{"Switch": {"GraphFusion": {"ALL": "off"}, "UBFusion": {"ALL": "on"}}}').diagnostics
    ] == ["info"]


# ---------------------------------------------------------------- names


def test_known_names_pass_silently(read):
    names = sorted(atc_passes().known - atc_passes().always_on)
    assert read(graph(", ".join(f'"{n}": "off"' for n in [*names, *OWN]))).diagnostics == ()


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("FusedAtentionFusionPass", ATTENTION),
        ("fusedattentionfusionpass", ATTENTION),
        ("FusedAttention", ATTENTION),
        ("FusedLayerNormQKVPass", QKV),
        ("all", "ALL"),
    ],
)
def test_names_near_ours_are_asked_about(read, written, meant):
    (found,) = read(graph(f'"{written}": "off"')).diagnostics
    assert (found.code, found.severity, found.hint) == ("ATF269", "warning", f'did you mean "{meant}"?')


def test_the_ending_all_names_share_makes_no_likeness(read):
    (found,) = read(graph('"ZorkFusionPass": "off"')).diagnostics
    assert (found.code, found.severity) == ("ATF270", "info")
    assert "did you mean" not in found.hint


def test_a_name_nearer_to_one_of_atc_is_not_ours(read):
    (found,) = read(graph('"AddLayerNormFusionPas": "off"'), own=["FusedAddLayerNormFusionPass"]).diagnostics
    assert (found.code, found.severity) == ("ATF270", "warning")
    assert found.hint.startswith('did you mean "AddLayerNormFusionPass"?')


def test_an_unknown_name_is_told_once_for_both_kinds(read):
    assert [d.code for d in read("Zork:off\n").diagnostics] == ["ATF267", "ATF270"]


def test_our_name_under_the_wrong_kind(read):
    text = f'{{"Switch": {{"UBFusion": {{"{ATTENTION}": "off"}}}}}}'
    switches = read(text)
    assert switches.is_on(ATTENTION)
    assert places(switches.diagnostics) == ["ATF271 sw:1:26"]
    assert read(text, own={ATTENTION: "UBFusion"}).diagnostics == ()


def test_many_findings_are_counted_not_listed(read):
    found = read(graph(", ".join(f'"Zork{n}x": "off"' for n in range(1000)))).diagnostics
    assert len(found) == 20
    assert found[-1].notes == ("980 more like this one are not shown",)


# ---------------------------------------------------------------- bad files


BAD = [
    ("", ["ATF252 sw"]),
    (" \n\t\r\n", ["ATF252 sw"]),
    ("\ufeff", ["ATF252 sw"]),
    ("# nothing yet\n", ["ATF252 sw"]),
    (b"Switch:\n  \xff", ["ATF253 sw:2:3"]),
    (JSON.encode("utf-16"), ["ATF253 sw:1:1"]),
    (b"x" * ((1 << 20) + 1), ["ATF254 sw"]),
    # JSON syntax, with its place and without a second try as lines
    ('{"Switch": {"GraphFusion": {"A": "on",}}}', ["ATF255 sw:1:39"]),
    ('{\n  "Switch": {}\n', ["ATF255 sw:3:1"]),
    ('{"Switch": {}} x', ["ATF255 sw:1:16"]),
    ('{"Switch": // none\n {}}', ["ATF255 sw:1:12"]),
    ('{"Switch" {}}', ["ATF255 sw:1:11"]),
    ("{Switch: {}}", ["ATF255 sw:1:2"]),
    ('{"Switch": NaN}', ["ATF255 sw:1:12"]),
    ('{"Switch": 01}', ["ATF255 sw:1:13"]),
    ('{"Switch": "a\tb"}', ["ATF255 sw:1:14"]),
    ('{"\\ud800": {}}', ["ATF255 sw:1:2"]),
    ("{", ["ATF255 sw:1:2"]),
    # YAML syntax
    ("Switch:\n\tGraphFusion: {}\n", ["ATF256 sw:2:1"]),
    ("Switch: [\n", ["ATF256 sw:2:1"]),
    ("Switch: x\x01\n", ["ATF256 sw:1:10"]),
    ('Switch: "\\UFFFFFFFF"\n', ["ATF256 sw:1:12"]),
    ('Switch: "\\uD800"\n', ["ATF256 sw:1:9"]),
    ("? [a]\n: b\n", ["ATF256 sw:1:3"]),
    # depth
    ('{"a":' * 50_000, ["ATF257 sw:1:86"]),
    ("[" * 50_000, ["ATF257 sw:1:18"]),
    ("- " * 50_000, ["ATF257 sw:1:35"]),
    ("? " * 50_000, ["ATF257 sw:1:35"]),
    # refused parts of YAML
    ("Switch:\n  GraphFusion: &a {A: on}\n", ["ATF258 sw:2:16"]),
    ("Switch: *a\n", ["ATF258 sw:1:9"]),
    ("Switch: !!map {}\n", ["ATF258 sw:1:9"]),
    ("Switch: {}\n---\nSwitch: {}\n", ["ATF258 sw:2:1"]),
    # shapes and keys
    ("[]", ["ATF259 sw:1:1"]),
    ("null", ["ATF259 sw:1:1"]),
    ('{"Switch": []}', ["ATF259 sw:1:12"]),
    ('{"Switch": {"GraphFusion": ["A"]}}', ["ATF259 sw:1:28"]),
    ("Switch:\n  GraphFusion:\n", ["ATF259 sw:2:15"]),
    ('{"ExceptionalPassOfO1Level": "A"}', ["ATF259 sw:1:30"]),
    ('{"ExceptionalPassOfO1Level": ["A", 1]}', ["ATF259 sw:1:36"]),
    ('{"Priority": {"GraphFusion": {"Top": []}}}', ["ATF259 sw:1:38"]),
    ('{"Switch": {}, "version": 1}', ["ATF260 sw:1:16"]),
    ('{"Switch": {"UBfusion": {}}}', ["ATF260 sw:1:13"]),
    ("GraphFusion:\n  A: on\n", ["ATF260 sw:1:1"]),
    ('{"Priority": {"GraphFusion": {"top": {}}}}', ["ATF260 sw:1:31"]),
    ('" Switch ": {}\n', ["ATF260 sw:1:1"]),
    # values
    (graph('"A": true, "B": 1, "C": null, "D": "On", "E": {}'), [f"ATF261 sw:1:{n}" for n in (34, 45, 53, 64, 75)]),
    ("Switch:\n  GraphFusion:\n    A: true\n    B: yes\n    C: ' on '\n", [f"ATF261 sw:{n}:8" for n in (3, 4, 5)]),
    ("A:on\nB: On\nC:\toff # why\n", ["ATF261 sw:2:4", "ATF261 sw:3:4"]),
    ("A:on\nB:\nC:off\n", ["ATF261 sw:2:3"]),
    ("Switch:\nGraphFusion:\nA: on\n", ["ATF259 sw:1:8", "ATF260 sw:2:1", "ATF260 sw:3:1"]),
    # duplicates where ATC or we refuse them
    ("A:on\nB:on\n A :on\n", ["ATF262 sw:3:2"]),
    ("Switch:\n  GraphFusion:\n    A: on\n    A: on\n", ["ATF262 sw:4:5"]),
    ("Switch: {}\nSwitch: {}\n", ["ATF262 sw:2:1"]),
    # lines
    ("# all off\nA:off\n  \nB\n", ["ATF263 sw:1:1", "ATF263 sw:3:1", "ATF263 sw:4:1"]),
    ("A:on\r\n\r\nB:on\r\n", ["ATF263 sw:2:1"]),
    # priorities
    ('{"Priority": {"UBFusion": {"Top": {"A": "1000"}}}}', ["ATF264 sw:1:41"]),
    ('{"Priority": {"UBFusion": {"Down": {"A": 2000}}}}', ["ATF264 sw:1:42"]),
    ('{"Priority": {"UBFusion": {"Top": {"A": "1"}, "Main": {"A": "1001"}}}}', ["ATF264 sw:1:56"]),
    ('{"Priority": {"UBFusion": {"Top": {"A": "' + "9" * 5000 + '"}}}}', ["ATF264 sw:1:41"]),
    # in YAML no blanks around names and no empty names
    ("Switch:\n  GraphFusion:\n    ' A': on\n    '': on\n", ["ATF266 sw:3:5", "ATF272 sw:4:5"]),
]


@pytest.mark.parametrize(("content", "expected"), BAD, ids=[f"{c[0][:5]}-{n}" for n, (_, c) in enumerate(BAD)])
def test_a_bad_file_is_an_error_with_code_place_and_hint(read, content, expected):
    with pytest.raises(AtcfuseError) as raised:
        read(content)
    diagnostics = raised.value.diagnostics
    assert places(diagnostics) == expected
    assert raised.value.exit_code == 1
    assert all(d.hint and d.severity == "error" and code_page(d.code) for d in diagnostics)
    assert all(len(line) < 400 and line.isprintable() for d in diagnostics for line in d.lines())


def test_no_file_is_a_usage_error(tmp_path):
    locked = tmp_path / "loop"
    locked.symlink_to(locked)
    for path, code in [
        (tmp_path / "none", "ATF250"),
        (tmp_path, "ATF251"),
        (locked, "ATF251"),
        (Path("a\0b"), "ATF251"),
    ]:
        with pytest.raises(UsageError) as raised:
            read_switches(path, OWN)
        assert [d.code for d in raised.value.diagnostics] == [code]


def test_a_hint_for_a_key_in_the_wrong_case(read):
    with pytest.raises(AtcfuseError, match='did you mean "Switch"'):
        read('{"switch": {}}')


def test_errors_come_in_file_order(read):
    with pytest.raises(AtcfuseError) as raised:
        read('{"Priority": {"GraphFusion": {"Top": 1}},\n "Switch": {"GraphFusion": {"A": 1}},\n "x": 1}')
    assert [d.span.line for d in raised.value.diagnostics if d.span] == [1, 2, 3]


# ---------------------------------------------------------------- for ATC


def test_the_json_for_atc_is_exact(read):
    text = (
        "Switch:\n  GraphFusion: {B: on, A: off}\n"
        "Priority: {GraphFusion: {Main: {C: 1500, B: ' 1001 '}}}\n"
        "ExceptionalPassOfO1Level: [Z]\n"
    )
    assert read(text).for_atc() == (
        "{\n"
        '    "Switch": {\n'
        '        "GraphFusion": {\n'
        '            "A": "off",\n'
        '            "B": "on"\n'
        "        },\n"
        '        "UBFusion": {}\n'
        "    },\n"
        '    "Priority": {\n'
        '        "GraphFusion": {\n'
        '            "Main": {\n'
        '                "B": "1001",\n'
        '                "C": "1500"\n'
        "            }\n"
        "        }\n"
        "    },\n"
        '    "ExceptionalPassOfO1Level": [\n'
        '        "Z"\n'
        "    ]\n"
        "}\n"
    )


NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12) | st.sampled_from(
    ["ALL", ATTENTION, "PadFusionPass"]
)
ENTRIES = st.dictionaries(NAMES, st.booleans(), max_size=6)
RELAXED = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)


@RELAXED
@given(ENTRIES, ENTRIES)
def test_what_is_written_for_atc_reads_back_the_same(read, graph_fusion, ub_fusion):
    entries = {"GraphFusion": graph_fusion, "UBFusion": ub_fusion}
    written = Switches("sw", entries).for_atc()
    again = read(written)
    assert again.entries == entries
    assert again.for_atc() == written


@RELAXED
@given(
    st.dictionaries(st.from_regex(r"[A-Za-z][A-Za-z0-9_.]{0,9}", fullmatch=True), st.booleans(), min_size=1, max_size=6)
)
def test_the_three_formats_say_the_same(read, entries):
    states = {name: "on" if on else "off" for name, on in entries.items()}
    document = {"Switch": {"GraphFusion": states, "UBFusion": dict(states)}}
    from_lines = read("".join(f"{name}:{state}\n" for name, state in states.items()))
    assert from_lines.entries == read(json.dumps(document)).entries == read(yaml.safe_dump(document)).entries


# ---------------------------------------------------------------- no file may crash the reader


@st.composite
def mutants(draw: st.DrawFn) -> bytes:
    """A valid file with a few pieces cut out, doubled or replaced."""
    content = bytearray(draw(st.sampled_from([JSON, YAML, LINES])).encode())
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(content)))
        stop = min(len(content), start + draw(st.integers(0, 12)))
        piece = draw(
            st.binary(max_size=4)
            | st.sampled_from([b"{", b"}", b": ", b"\n", b"&a ", b"*a", b"!!x ", b'"', b"\\u", b"- "])
        )
        content[start:stop] = piece if draw(st.booleans()) else bytes(content[start:stop]) * 2 + piece
    return bytes(content)


@settings(RELAXED, max_examples=600)
@given(st.binary(max_size=200) | st.text(max_size=200).map(lambda t: t.encode("utf-8", "replace")) | mutants())
def test_any_bytes_give_switches_or_a_coded_error(read, content):
    try:
        switches, diagnostics = read(content), ()
    except AtcfuseError as refused:
        switches, diagnostics = NO_SWITCHES, refused.diagnostics
    assert all(d.severity == "error" and code_page(d.code) for d in diagnostics)
    assert all(d.severity != "error" and code_page(d.code) for d in switches.diagnostics)
    assert read(switches.for_atc()).entries == switches.entries


# ---------------------------------------------------------------- explaining, listing


def test_explanations_name_what_decided(read):
    switches = read(JSON)
    assert explain_switch(switches, ATTENTION) == "on in sw"
    assert explain_switch(switches, QKV) == "off by ALL in sw"
    assert explain_switch(switches, QKV, "UBFusion") == "on by default"
    assert explain_switch(NO_SWITCHES, QKV) == "on by default"


def test_the_listing_has_ours_first_then_the_rest_of_the_file(read):
    assert describe(read(JSON), OWN) == [
        (ATTENTION, "GraphFusion", "on", "on in sw"),
        (QKV, "GraphFusion", "off", "off by ALL in sw"),
        ("ALL", "GraphFusion", "off", "off in sw"),
        ("TbeConvZ", "UBFusion", "off", "off in sw"),
    ]


def test_an_absolute_path_is_shown_by_its_name_only(tmp_path):
    (tmp_path / "sw.yaml").write_text(LINES)
    switches = read_switches(tmp_path / "sw.yaml", OWN)
    assert switches.file == "sw.yaml"
    assert not any(str(tmp_path) in str(d) for d in switches.diagnostics)


# ---------------------------------------------------------------- the shipped list


def test_the_shipped_names_are_sorted_and_listed_once():
    lists = yaml.safe_load(
        (Path(read_switches.__globals__["__file__"]).parents[1] / "data" / "atc_passes.yaml").read_text()
    )
    assert list(lists) == ["GraphFusion", "UBFusion", "other", "always_on"]
    assert all(names == sorted(set(names)) for names in lists.values())
    assert not set(lists["other"]) & {*lists["GraphFusion"], *lists["UBFusion"], *lists["always_on"]}


def test_importing_the_reader_imports_no_yaml():
    code = "import sys, atcfuse.switches; sys.exit('yaml' in sys.modules or 'onnx' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
