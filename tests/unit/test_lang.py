"""Chinese: the catalog is complete and says nothing else, finished messages find their template, JSON stays English."""

from __future__ import annotations

import ast
import inspect
import json
import re
import threading
from pathlib import Path
from typing import Any

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lang_sources import PACKAGE, messages, renderer_templates

import atcfuse.lang
from atcfuse.diagnostics import all_codes, code_page, error
from atcfuse.hints import hint_for
from atcfuse.lang import from_environment, language, say, speaking, tell
from atcfuse.lang.catalog import catalog, read
from atcfuse.lang.width import aligned, breakable, display_width, folded
from atcfuse.report import diff, diff_markdown, diff_text, read_report, to_json, to_line, to_markdown, to_text
from atcfuse.report.html import to_html
from atcfuse.report.names import wrap

REPORTS = Path(__file__).parents[1] / "golden" / "report"
ZH = catalog("zh")
CHINESE = re.compile("[\u4e00-\u9fff]")
ENGLISH = re.compile(r"\b(?:the|of|is|are|with|which|not|and|from|to|for|has|no)\b")


def entries(name: str) -> dict[str, str]:
    return dict(read((PACKAGE / "lang" / "zh" / f"{name}.po").read_text(encoding="utf-8")))


FILES = ("cli", "click", "messages", "render", "rules", "words")


# ---------------------------------------------------------------- complete


def test_everything_that_is_said_has_a_translation() -> None:
    assert sorted(renderer_templates() - ZH.plain.keys()) == []
    assert sorted(set(messages()) - (ZH.plain.keys() - entries("render").keys())) == []


def test_no_translation_is_of_something_nobody_says() -> None:
    said = renderer_templates() | set(messages())
    words = {
        node.value
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    for name in ("cli", "messages", "render", "rules"):
        assert sorted(entries(name).keys() - said) == [], name
    assert sorted(entries("words").keys() - words) == []


def test_each_entry_is_in_one_file() -> None:
    found = [key for name in FILES for key in entries(name)]
    assert sorted({key for key in found if found.count(key) > 1}) == []


@pytest.mark.parametrize("name", FILES)
def test_translations_have_the_values_of_their_template(name: str) -> None:
    for template, said in entries(name).items():
        values = template.replace("{{", "").replace("}}", "").count("{}")
        places = re.findall(r"\{(\d?)(?::[tw])?\}", said.replace("{{", "").replace("}}", ""))
        numbered = [int(p) for p in places if p]
        assert len(places) == values, template
        assert not numbered or sorted(numbered) == list(range(values)), template
        assert said.strip(), template


def test_what_is_said_in_english_only_are_names() -> None:
    same = [key for name in FILES for key, said in entries(name).items() if not CHINESE.search(said)]
    assert [key for key in same if ENGLISH.search(key) and key not in (" is like ", "{} to {}")] == []


# ---------------------------------------------------------------- pages of codes


@pytest.mark.parametrize("code", all_codes())
def test_every_code_has_a_chinese_page_of_one_form(code: str) -> None:
    page, english = code_page(code, "zh"), code_page(code)
    assert page is not None
    assert english is not None
    assert re.fullmatch(
        rf"# {code}: [^\n]+\n\n\*\*发现\*\* .+?\n\n\*\*预期\*\* .+?\n\n\*\*处理\*\* .+?\n", page, re.DOTALL
    )
    assert page.count("```") == english.count("```")
    named = {word for word in re.findall(r"`([^`\s]+)`", english) if re.fullmatch(r"[\w.*/-]+", word)}
    assert [word for word in sorted(named) if word not in page] == []


def test_there_is_no_page_of_an_unknown_code() -> None:
    assert sorted(p.stem for p in (PACKAGE / "codes" / "zh").glob("*.md")) == all_codes()


# ---------------------------------------------------------------- finished messages


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ('"y" feeds 1 more linear, 2 are needed', "“y”后面还有1个linear，需要2个"),
        ("the rank is not known", "秩未知"),
        ("q: the rank is not known", "q：秩未知"),
        ("expected a mapping (key: value), found a list", "应为映射（键: 值），实际为列表"),
        ("ATF313 the rank is not known", "ATF313 秩未知"),
        ("a list of names; the rank is not known", "名称列表；秩未知"),
        ("no such option: --fo", "没有选项：--fo"),
        ("cannot write a b.onnx: it is a folder", "无法写入a b.onnx：它是文件夹"),
        (
            "k saves 1.0 to 2.0 µs by 3 launches, 1 conversions and 4 bytes of DDR traffic; the threshold is 10 µs",
            "k节省1.0～2.0 µs：3次下发、1次转换和4字节DDR访存；门限为10 µs",
        ),
        ("the reason of somebody's own rule is this", "the reason of somebody's own rule is this"),
        ("{braces} and {} stay", "{braces} and {} stay"),
        ("", ""),
    ],
)
def test_a_finished_message_is_told(message: str, said: str) -> None:
    with speaking("zh"):
        assert tell(message) == said
    assert tell(message) == message


@given(st.text(max_size=40), st.text(max_size=40))
def test_whatever_a_model_names_stays_as_it_is(one: str, other: str) -> None:
    with speaking("zh"):
        told = tell(f'the head dim must be static, it is "{one}"')
        assert told == f'头维度必须是静态的，当前为"{one}"'
        tell(f"{one}: {other}; {one}")


def test_the_hint_of_a_refusal_is_what_its_page_advises() -> None:
    with speaking("zh"):
        assert tell(hint_for("ATF320")) == "无需处理。若要优先采用本融合，请在融合开关文件中关闭另一条规则。"


def test_a_diagnostic_is_shown_in_the_language_spoken() -> None:
    found = error("ATF101", "m.onnx does not exist", hint="paths are relative to the working directory", notes=["a b"])
    with speaking("zh"):
        assert str(found).splitlines() == [
            "错误: ATF101: m.onnx不存在",
            "  说明：a b",
            "  帮助：路径相对于当前工作目录",
        ]
        assert found.as_dict()["message"] == "m.onnx does not exist"


def test_a_language_is_spoken_in_one_thread_only() -> None:
    heard = []
    with speaking("zh"):
        other = threading.Thread(target=lambda: heard.append((language(), say("Kept"))))
        other.start()
        other.join()
        with speaking(None):
            heard.append((language(), say("Kept")))
    assert heard == [("en", "Kept"), ("zh", "未融合")]
    assert language() == "en"


# ---------------------------------------------------------------- which language


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, "en"),
        ({"LANG": "zh_CN.UTF-8"}, "zh"),
        ({"LANG": "de_DE.UTF-8"}, "en"),
        ({"LANG": "en_US.UTF-8", "LC_MESSAGES": "zh_CN"}, "zh"),
        ({"LANG": "zh_CN", "LC_ALL": "C"}, "en"),
        ({"LANG": "zh_CN", "LC_ALL": ""}, "zh"),
        ({"LANG": "zh_CN", "ATCFUSE_LANG": "en"}, "en"),
        ({"ATCFUSE_LANG": "xx"}, "xx"),
    ],
)
def test_the_environment_tells_the_language(environ: dict[str, str], expected: str) -> None:
    assert from_environment(environ) == expected


# ---------------------------------------------------------------- width


def test_columns_are_as_wide_as_they_look() -> None:
    rows = aligned([("下发次数", "1"), ("ab", "2")])
    assert rows == ["下发次数  1", "ab        2"]
    assert display_width("下发ab") == 6


_ROWS = [
    ("attention", "on", "softmax(Q·Kᵀ·scale + bias)·V becomes one FusedAttention, head split and merge included."),
    ("layer_norm", "off", "展开书写的LayerNorm变为一个FusedLayerNorm，最多九次下发及同样多的内存往返变为一次。"),
]


@pytest.mark.parametrize("width", [40, 60, 100, 200])
def test_a_table_keeps_to_its_width(width: int) -> None:
    lines = folded(("rule", "switch", "summary"), _ROWS, width)
    assert max(map(display_width, lines)) <= width
    assert "".join("".join(lines).split()).count("FusedAttention") == 1
    assert (len(lines) == 3) is (width == 200)


def test_a_table_without_room_is_told_row_by_row() -> None:
    rows = [("a_rule_with_a_long_name", "a_switch_with_a_long_name", "what it does")]
    assert folded(("rule", "switch", "summary"), rows, 60) == [
        "a_rule_with_a_long_name",
        "  switch: a_switch_with_a_long_name",
        "  summary: what it does",
    ]


@given(st.text("下发次数，。（）ab c", max_size=80), st.integers(40, 60))
def test_chinese_breaks_between_characters_and_loses_nothing(text: str, width: int) -> None:
    lines = wrap(text, width)
    assert all(display_width(line) <= width for line in lines)
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")
    assert "".join(space + part for space, part in breakable(text)) == text


def test_no_line_begins_with_a_comma_or_ends_with_a_bracket() -> None:
    assert wrap("一二三四五六七八九，十", 18) == ["一二三四五六七八", "九，十"]
    assert wrap("一二三四五六七八（十）", 18) == ["一二三四五六七八", "（十）"]


# ---------------------------------------------------------------- reports


def report(name: str) -> dict[str, Any]:
    return read_report(REPORTS / f"{name}.json")


def test_reports_in_chinese_are_as_reviewed(golden) -> None:
    golden("report/bert.zh.txt", to_text(report("bert"), 80, lang="zh"))
    golden("report/atc.zh.md", to_markdown(report("atc"), "zh"))
    golden("report/diff.zh.md", diff_markdown(diff(report("bert"), report("atc")), lang="zh"))


@pytest.mark.parametrize("name", ["bert", "empty", "atc"])
@pytest.mark.parametrize("width", [40, 60, 80, 100])
def test_no_line_is_wider_than_asked_for(name: str, width: int) -> None:
    texts = [to_text(report(name), width, lang="zh"), diff_text(diff(report("empty"), report(name)), width, lang="zh")]
    for text in texts:
        assert [line for line in text.splitlines() if display_width(line) > width] == []


@pytest.mark.parametrize("name", ["empty", "atc"])
def test_a_report_is_rendered_in_full(name: str) -> None:
    """Nothing of the English renderings is left but names; JSON and the English renderings are what they were."""
    found = report(name)
    found["kept"] = [{**kept, "hint": hint_for(kept["code"])} for kept in found["kept"]]
    english = to_text(found), to_markdown(found), to_html(found), to_line(found), to_json(found)
    chinese = to_text(found, lang="zh"), to_markdown(found, "zh"), to_html(found, "zh"), to_line(found, "zh")
    assert english == (to_text(found), to_markdown(found), to_html(found), to_line(found), to_json(found))
    for text in chinese:
        visible = re.sub(r"(?s)<(script|style)>.*?</\1>|<[^>]*>|`[^`]*`", " ", text)
        left = [line for line in visible.splitlines() if len(ENGLISH.findall(line)) > 1]
        assert left == []


def test_what_click_says_is_known() -> None:
    """Messages that users of the command line meet, as click itself words them today."""
    source = inspect.getsource(click.exceptions) + inspect.getsource(click.types) + inspect.getsource(click.core)
    for word in ("No such option", "Missing argument", "Invalid value for", "is not one of", "Show this message"):
        assert word in source or word in inspect.getsource(click.decorators)


def test_catalogs_are_in_the_package() -> None:
    assert {p.stem for p in (Path(atcfuse.lang.__file__).parent / "zh").glob("*.po")} == set(FILES)
    assert json.dumps(entries("render")["Kept"], ensure_ascii=False) == '"未融合"'


@pytest.mark.parametrize("model", ["llama_past_ts17_fp16_dynamic", "vit_dynamo18_fp32_static"])
@pytest.mark.parametrize("soc", ["Ascend910B1", "Ascend310P3"])
def test_everything_that_a_run_says_of_a_model_is_known(model: str, soc: str) -> None:
    from atcfuse import optimize

    found = optimize(Path(__file__).parents[2] / "sample_models" / f"{model}.onnx", soc=soc).report
    said = [text for entry in found["kept"] for text in (entry["reason"], entry["hint"])]
    said += [
        text for fusion in found["fusions"] for text in (*fusion.get("remarks", ()), fusion.get("chip_status", ""))
    ]
    said += [switch["why"] for switch in found["switches"]] + list(found["basis"].values())
    said += [text for entry in found["atc"]["passes"] for text in (entry["why"], entry["numerics"], entry["source"])]
    assert [text for text in dict.fromkeys(filter(None, said)) if not ZH.known(text)] == []
