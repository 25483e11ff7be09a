"""Rule files: what they become, and every mistake with its code, line and column."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from atcfuse.diagnostics import AtcfuseError
from atcfuse.kernel import load_kernels
from atcfuse.loader import load_rules
from atcfuse.resources import data_folder
from atcfuse.rule.model import RuleBook
from atcfuse.rule.terms import Call, Choice, Literal, Ref

KERNELS = load_kernels(data_folder("kernels"))
RULE = """\
rule: twice
switch: TwiceFusionPass
summary: a norm read twice
why: it saves launches
limits: none
level: graph
opset: 8-18
kernel: layer_norm_qkv
types: {T: [float16, float32]}
inputs: {x: "T[...,K]"}
pattern:
  n: LayerNormalization(x, gamma, beta, axis=-1, epsilon=epsilon)
  a:
    any_of:
      left: {is: "MatMul(n, wa)", let: {t: "0"}}
      right: Add(MatMul(n, wa), ba)
  b: halved(n, by=f)
anchor: n
where:
  dtype(n) == dtype(x): the type changes
let: {twice: f * 2}
replace:
  (a, b, n?): >-
    FusedLayerNormQKV(x, gamma, beta, wa, wa, norm='layer_norm', epsilon=epsilon * twice, num_projections=2,
    transposed=[0, 0])
examples:
  keeps:
    nothing to see:
      graph: "(float[1] x) => (float[1] y) { y = Relu(x) }"
      because: ATF310
      opset: 13
---
fragment: halved(x)
summary: x times a half
exports: {by: the factor}
inputs: {c: "const [1]"}
any_of:
  mul: {is: "Mul(x, 0.5)", let: {by: 0.5}}
  div: {is: "Div(x, c)", let: {by: 1 / scalar(c)}, where: {"scalar(c) == 2": not a half}}
"""


def load(folder: Path, text: str = RULE, name: str = "twice.yaml") -> RuleBook:
    (folder / name).write_text(text, encoding="utf-8")
    return load_rules([folder], KERNELS)


def failure(folder: Path, text: str) -> tuple[str, int]:
    """Code and line of the first mistake."""
    with pytest.raises(AtcfuseError) as caught:
        load(folder, text)
    found = caught.value.diagnostics[0]
    assert found.span is not None
    assert found.span.file == f"{folder.name}/twice.yaml"
    return found.code, found.span.line


def test_a_rule_is_read(tmp_path: Path) -> None:
    rule = load(tmp_path).rules[0]
    assert (rule.name, rule.switch, rule.switch_kind, rule.opset) == (
        "twice",
        "TwiceFusionPass",
        "GraphFusion",
        (8, 18),
    )
    assert rule.types == {"T": (10, 1)}
    assert [(o.name, o.if_used) for o in rule.outputs] == [("a", False), ("b", False), ("n", True)]
    norm, a, b = (s.term for s in rule.steps)
    assert isinstance(norm, Call)
    assert norm.op == "LayerNormalization"
    assert dict(norm.keywords)["epsilon"] == Ref("epsilon", dict(norm.keywords)["epsilon"].span)
    assert isinstance(dict(norm.keywords)["axis"], Literal)
    assert isinstance(a, Choice)
    assert [alternative.label for alternative in a.alternatives] == ["left", "right"]
    assert isinstance(b, Call)
    assert not b.is_operator
    (kept,) = rule.keeps
    assert (kept.title, kept.because, kept.opset, kept.span.line) == ("nothing to see", "ATF310", 13, 28)


def test_a_fragment_is_read(tmp_path: Path) -> None:
    fragment = load(tmp_path).fragments["halved"]
    assert (fragment.params, dict(fragment.exports)) == (("x",), {"by": "the factor"})
    assert fragment.inputs["c"].type.const
    assert fragment.alternatives[1].where[0].reason == "not a half"


@pytest.mark.parametrize(
    ("old", "new", "code", "line"),
    [
        ("level: graph\n", "", "ATF206", 1),
        ("level: graph", "level: grap", "ATF207", 6),
        ("level: graph", "level: graph\nlevl: x", "ATF202", 7),
        ("level: graph", "level: graph\nlevel: graph", "ATF203", 7),
        ("level: graph", "level: on", "ATF205", 6),
        ("level: graph", "level: &a graph", "ATF204", 6),
        ("level: graph", "level: [graph]", "ATF207", 6),
        ("level: graph", "level: 'graph", "ATF201", 24),
        ("opset: 8-18", "opset: newest", "ATF207", 7),
        ("switch: TwiceFusionPass", "switch: Twice-Fusion", "ATF207", 2),
        ("types: {T: [float16, float32]}", "types: {T: [float17]}", "ATF214", 9),
        ('"T[...,K]"', '"T[K,...]"', "ATF214", 10),
        ('"T[...,K]"', '"U[K]"', "ATF214", 10),
        ("kernel: layer_norm_qkv", "kernel: layer_norm_qk", "ATF218", 8),
        ("axis=-1, epsilon", "axis=1+1, epsilon", "ATF208", 12),
        ("axis=-1, epsilon", "axis=, epsilon", "ATF208", 12),
        ("axis=-1, epsilon", "**axis, epsilon", "ATF208", 12),
        ("b: halved(n, by=f)", "b: halvd(n, by=f)", "ATF209", 17),
        ("b: halved(n, by=f)", "b: halved(n, bye=f)", "ATF213", 17),
        ("b: halved(n, by=f)", "b: halved(n, n, by=f)", "ATF213", 17),
        ("b: halved(n, by=f)", "(b c): halved(n, by=f)", "ATF208", 17),
        ("anchor: n", "anchor: m", "ATF210", 18),
        ("dtype(n) == dtype(x)", "dtyp(n) == dtype(x)", "ATF209", 20),
        ("dtype(n) == dtype(x)", "n == lambda x", "ATF212", 20),
        ("f * 2", "f *", "ATF212", 21),
        ("(a, b, n?): >-", "(a, c, n?): >-", "ATF210", 23),
        ("FusedLayerNormQKV(", "FusedLayerNorm(", "ATF215", 24),
        ("norm='layer_norm', ", "", "ATF215", 24),
        ("norm='layer_norm', ", "norm='layer_norm', nrm=1, ", "ATF215", 24),
        ("wa, wa, norm", "wa, wz, norm", "ATF210", 24),
        ("fragment: halved(x)", "fragment: Halved", "ATF208", 33),
        ("fragment: halved(x)", "fragment: view(x)", "ATF211", 33),
        ("fragment: halved(x)", "fragmnt: halved(x)", "ATF206", 33),
        ("  div: {is", "  mul: {is", "ATF203", 39),
        ("because: ATF310", "gives: [X]", "ATF202", 30),
        ("opset: 13", "opset: thirteen", "ATF207", 31),
    ],
)
def test_mistakes_have_a_code_and_a_line(tmp_path: Path, old: str, new: str, code: str, line: int) -> None:
    assert RULE.count(old) >= 1
    assert failure(tmp_path, RULE.replace(old, new, 1)) == (code, line)


MISSPELT = [
    ("gamma, beta, axis=-1", "halvd(gamma), beta, axis=-1", "halvd"),
    ('"MatMul(n, wa)"', '"MatMul(n, halvd(wa))"', "halvd"),
    ("right: Add(MatMul(n, wa), ba)", "right: Add(halvd(n), ba)", "halvd"),
    ("halved(n, by=f)", "halved(n, bye=f)", "bye=f"),
    ("halved(n, by=f)", "halved(n, n, by=f)", "n, by=f"),
    ("kernel: layer_norm_qkv", "kernel: layer_norm_qk", "layer_norm_qk"),
    ("anchor: n", "anchor: nn", "nn"),
    ("dtype(n) == dtype(x)", "dtype(n) == dtyp(x)", "dtyp(x)"),
    ("dtype(n) == dtype(x)", "dtype(n) == dtype(xx)", "xx"),
    ("f * 2", "ff * 2", "ff"),
    ("(a, b, n?)", "(a, c, n?)", "c, n?"),
    ("epsilon=epsilon * twice", "epsilon=epsilon * twise", "twise"),
    ("transposed=[0, 0]", "transposed=[0, zero]", "zero"),
    ("num_projections=2", "nums=2", "nums=2"),
    ('"T[...,K]"', '"T[...,K, 1 +]"', "1 +"),
    ('"T[...,K]"', '"T[K,...]"', "...]"),
    ("let: {by: 1 / scalar(c)}", "let: {by: '1 + ''a'' + scaler(c)'}", "scaler"),
    ('"scalar(c) == 2"', r'"scalar(c) == \x32 and scaler(c) == 2"', "scaler"),
]


@pytest.mark.parametrize(("old", "new", "marked"), MISSPELT)
def test_mistakes_are_where_they_stand(tmp_path: Path, old: str, new: str, marked: str) -> None:
    """To the column, in quotes, escapes and folded blocks too."""
    assert RULE.count(old) >= 1
    text = RULE.replace(old, new, 1)
    offset = text.index(new) + new.index(marked)
    with pytest.raises(AtcfuseError) as caught:
        load(tmp_path, text)
    span = caught.value.diagnostics[0].span
    assert span is not None
    assert (span.line, span.column) == (text.count("\n", 0, offset) + 1, offset - text.rfind("\n", 0, offset))


def test_every_wrong_name_is_told_at_once(tmp_path: Path) -> None:
    text = RULE.replace("anchor: n", "anchor: m").replace("f * 2", "g * 2").replace("scalar(c) == 2", "scalar(d) == 2")
    with pytest.raises(AtcfuseError) as caught:
        load(tmp_path, text)
    assert [(d.code, d.span.line) for d in caught.value.diagnostics if d.span] == [
        ("ATF210", 39), ("ATF210", 18), ("ATF210", 21),
    ]  # fmt: skip


def test_names_are_unique_over_folders(tmp_path: Path) -> None:
    with pytest.raises(AtcfuseError, match="a second rule called 'twice'") as caught:
        load(tmp_path, RULE + "---\n" + RULE.partition("---")[0])
    assert caught.value.diagnostics[0].code == "ATF211"


def test_a_later_folder_uses_earlier_fragments(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    first.mkdir()
    second.mkdir()
    rule, _, fragment = RULE.partition("---\n")
    (first / "f.yaml").write_text(fragment)
    (second / "r.yaml").write_text(rule)
    assert [r.name for r in load_rules([first, second], KERNELS).rules] == ["twice"]


def test_both_endings_of_yaml_are_read(tmp_path: Path) -> None:
    rule, _, fragment = RULE.partition("---\n")
    (tmp_path / "f.yml").write_text(fragment)
    (tmp_path / "r.yaml").write_text(rule)
    assert [r.name for r in load_rules([tmp_path], KERNELS).rules] == ["twice"]


def test_a_folder_without_rules_is_a_mistake(tmp_path: Path) -> None:
    (tmp_path / "rule.yam").write_text("rule: x\n")
    with pytest.raises(AtcfuseError) as caught:
        load_rules([tmp_path], KERNELS)
    assert caught.value.diagnostics[0].code == "ATF200"


def test_a_folder_must_be_one(tmp_path: Path) -> None:
    with pytest.raises(AtcfuseError) as caught:
        load_rules([tmp_path / "missing"], KERNELS)
    assert caught.value.diagnostics[0].code == "ATF200"


@given(st.data())
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_damage_ends_in_rules_or_a_coded_error(tmp_path: Path, data: st.DataObject) -> None:
    text = RULE
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(text) - 1))
        end = data.draw(st.integers(at, min(at + 30, len(text))))
        text = (
            text[:at]
            + data.draw(st.sampled_from(["", "x", "(", ")", ":", "\n", '"', "{", "1", "*", "…", text[at:end] * 2]))
            + text[end:]
        )
    try:
        load(tmp_path, text)
    except AtcfuseError as problem:
        assert problem.diagnostics[0].code.startswith("ATF2")
