"""New rules from regions of models: what is written passes `rules check` and `rules test` and matches where it came from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import onnx
import pytest
from onnx.parser import parse_model

from atcfuse.api import settled
from atcfuse.compiler import optimize_proto, toolbox
from atcfuse.diagnostics import AtcfuseError
from atcfuse.loader import read_rule
from atcfuse.options import Options
from atcfuse.rule.model import Rule
from atcfuse.run import Toolbox
from atcfuse.skeleton import Skeleton, new_rule
from atcfuse.strict_yaml import parse_documents

SAMPLES = Path(__file__).parents[2] / "sample_models"
LAYER = "/bert/encoder/layer.0"


@pytest.fixture(scope="module")
def tools() -> Toolbox:
    return toolbox(settled(Options(), {}))


def made(tools: Toolbox, path: Path, *nodes: str) -> tuple[Skeleton, Rule]:
    skeleton = new_rule("mine", path, nodes, tools)
    return skeleton, read_rule(parse_documents(skeleton.text, "mine.yaml")[0])


def model(tmp_path: Path, text: str, opset: int = 17) -> Path:
    path = tmp_path / "m.onnx"
    onnx.save(parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]>\nm {text}'), path)
    return path


@pytest.mark.parametrize(
    ("sample", "nodes", "places"),
    [
        ("bert_ts17_fp32_dynamic", (f"{LAYER}/intermediate/intermediate_act_fn/*",), 2),
        ("bert_ts11_fp32_dynamic", (f"{LAYER}/attention/output/LayerNorm/*",), 4),
        ("bert_ts17_fp32_dynamic", (f"{LAYER}/attention/self/*",), 2),
        ("bert_ts17_fp32_dynamic", (f"{LAYER}/attention/output/*", f"{LAYER}/intermediate/*", f"{LAYER}/output/*"), 1),
        ("nanogpt_ts17_fp16_static", ("/blocks.0/attention/Softmax", "/blocks.0/attention/MatMul_1"), 2),
    ],
)
def test_a_draft_matches_where_it_came_from(tools: Toolbox, sample: str, nodes: tuple[str, ...], places: int) -> None:
    skeleton, rule = made(tools, SAMPLES / f"{sample}.onnx", *nodes)
    assert skeleton.places >= places
    assert not any(d.code == "ATF175" for d in skeleton.diagnostics)
    assert rule.draft
    assert rule.replace is None
    assert [e.because for e in rule.keeps] == ["ATF345"]


def test_the_same_input_gives_the_same_text(tools: Toolbox) -> None:
    path, nodes = SAMPLES / "bert_ts17_fp32_dynamic.onnx", (f"{LAYER}/intermediate/*",)
    assert new_rule("mine", path, nodes, tools).text == new_rule("mine", path, nodes, tools).text


HEADS = """(float[batch,6,48] x, float[48] g) => (float[batch,3,6,16] y)
<int64[4] target = {0,0,3,16}, float root = {4.0}> {
  [mul] a = Mul(x, g)
  [div] b = Div(a, root)
  [reshape] c = Reshape(b, target)
  [transpose] y = Transpose<perm = [0,2,1,3]>(c)
}"""


def test_sizes_become_letters_and_products_stay_products(tools: Toolbox, tmp_path: Path) -> None:
    _, rule = made(tools, model(tmp_path, HEADS), "mul", "div", "reshape", "transpose")
    shapes = {name: [getattr(d, "text", d) for d in i.type.dims or ()] for name, i in rule.inputs.items()}
    batch, rows, whole = shapes["x"]
    assert shapes["g"] == [whole]
    assert len({batch, rows, whole}) == 3
    assert not any(d.isdigit() for d in (batch, rows, whole))
    (reshaped,) = [step for step in rule.steps if step.type is not None]
    _, _, heads, size = [getattr(d, "text", d) for d in reshaped.type.dims or ()]  # type: ignore[union-attr]
    (condition,) = rule.where
    assert condition.test.text == f"close(scalar(root), sqrt({size}))"
    assert heads != size


def test_a_rule_for_one_size_matches_another(tools: Toolbox, tmp_path: Path) -> None:
    """The draft of one model is tried on the same network with other sizes."""
    from dataclasses import replace

    from atcfuse.compiler import optimize_proto
    from atcfuse.rule.model import RuleBook

    _, rule = made(tools, model(tmp_path, HEADS), "mul", "div", "reshape", "transpose")
    alone = replace(tools, book=RuleBook((rule,), tools.book.fragments))
    for width, root, code in ((16, 4.0, "ATF345"), (25, 5.0, "ATF345"), (25, 4.0, "ATF314")):
        text = HEADS.replace("48", str(3 * width)).replace("16", str(width)).replace("{4.0}", f"{{{root}}}")
        other = model(tmp_path, text)
        (kept,) = optimize_proto(onnx.load(other), alone).report["kept"]
        assert kept["code"] == code, kept


def test_numbers_that_an_operator_needs_stay(tools: Toolbox, tmp_path: Path) -> None:
    text = """(float[batch,4,48] x) => (float[batch,4,16] y) <int64[3] parts = {16,16,16}> {
      [split] a, b, c = Split<axis = -1>(x, parts)
      [ab] s = Mul(a, b)
      [sc] y = Mul(s, c)
    }"""
    skeleton, rule = made(tools, model(tmp_path, text), "split", "ab", "sc")
    assert "split=[16, 16, 16]" in skeleton.text
    (only,) = rule.inputs.values()
    assert [getattr(d, "text", d) for d in only.type.dims or ()][1:] == ["4", "48"]


def test_what_an_ordinary_run_makes_of_a_region_is_told(tools: Toolbox) -> None:
    """In the model, where a larger fusion takes it; alone the five nodes would be an element-wise group."""
    bert = SAMPLES / "bert_ts17_fp32_dynamic.onnx"
    skeleton, _ = made(tools, bert, f"{LAYER}/intermediate/intermediate_act_fn/*")
    (told,) = [d for d in skeleton.diagnostics if d.code == "ATF176"]
    assert told.message == "an ordinary run fuses 5 of these 5 nodes: layer_norm_ffn (into FusedLayerNormFFN)"
    assert told.hint.endswith("GF_AUTOFUSION_DISABLE=layer_norm_ffn")
    report = optimize_proto(onnx.load(bert), tools).report
    assert "layer_norm_ffn" in {f["rule"] for f in report["fusions"]}


def test_a_match_that_does_not_pay_is_told_with_its_reason() -> None:
    options = settled(replace(Options(), min_saving_us=1e6), {})
    skeleton, _ = made(toolbox(options), SAMPLES / "bert_ts17_fp32_dynamic.onnx", f"{LAYER}/attention/self/Softmax")
    told = [d.message for d in skeleton.diagnostics if d.code == "ATF176"]
    assert any(text.startswith("attention matches here and is not done: ATF33") for text in told)


def test_a_region_read_in_its_middle_is_told(tools: Toolbox, tmp_path: Path) -> None:
    """The values that are read outside are outputs, so nothing is lost."""
    text = """(float[2,3] x) => (float[2,3] y, float[2,3] z) {
      [one] a = Exp(x)
      [two] y = Tanh(a)
      [three] z = Neg(a)
    }"""
    skeleton, rule = made(tools, model(tmp_path, text), "one", "two")
    assert [o.step for o in rule.outputs] == ["a", "y"]
    assert skeleton.places == 1


@pytest.mark.parametrize(
    ("nodes", "code", "said"),
    [
        (("nosuch",), "ATF170", "nosuch"),
        (("one", "four"), "ATF171", "no value connects"),
        (("one", "three"), "ATF171", "'two' lies between"),
        (("topk",), "ATF172", "TopK"),
    ],
)
def test_regions_that_cannot_be_a_pattern(
    tools: Toolbox, tmp_path: Path, nodes: tuple[str, ...], code: str, said: str
) -> None:
    text = """(float[2,3] x, float[2,3] w) => (float[2,3] y, float[2,3] z, float[2,1] v, int64[2,1] i)
    <int64[1] k = {1}> {
      [one] a = Exp(x)
      [two] b = Tanh(a)
      [three] y = Add(a, b)
      [four] z = Neg(w)
      [topk] v, i = TopK(w, k)
    }"""
    with pytest.raises(AtcfuseError) as caught:
        new_rule("mine", model(tmp_path, text), nodes, tools)
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.code == code
    assert said in diagnostic.message


def test_a_name_that_is_taken_is_refused(tools: Toolbox) -> None:
    with pytest.raises(AtcfuseError, match="ATF174"):
        new_rule("attention", SAMPLES / "bert_ts17_fp32_dynamic.onnx", ("x",), tools)
