"""The language of a command line: `--lang`, the environment, and what stays the same in any language."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from cli_support import SAMPLES, files

from atcfuse.cli.app import COMMANDS
from atcfuse.lang.width import display_width

CHINESE = re.compile("[\u4e00-\u9fff]")
BERT = SAMPLES / "bert_ts11_fp32_dynamic.onnx"


@pytest.fixture
def written(atcfuse, tmp_path):
    """Optimizes a model with options, in a folder of its own; gives the outcome and the files."""

    def run(name: str, *options: str):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "bert.onnx").write_bytes(BERT.read_bytes())
        return atcfuse("optimize", folder / "bert.onnx", *options), files(folder)

    return run


def test_only_what_people_read_is_in_their_language(written):
    english, plain = written("en")
    chinese, other = written("zh", "--lang", "zh")
    assert english.code == chinese.code == 0
    assert plain.keys() == other.keys()
    assert sorted(name for name in plain if plain[name] != other[name]) == [
        "bert.fused.report.html",
        "bert.fused.report.md",
    ]
    for name in ("bert.fused.report.html", "bert.fused.report.md"):
        assert CHINESE.search(other[name].decode())
        assert not CHINESE.search(plain[name].decode())
    assert CHINESE.search(chinese.out)
    assert not CHINESE.search(english.out)


def test_what_programs_read_is_the_same_in_any_language(atcfuse, written, tmp_path):
    written("a")
    report = tmp_path / "a" / "bert.fused.report.json"
    fused, switches = tmp_path / "a" / "bert.fused.onnx", tmp_path / "sw.json"
    switches.write_text('{"Switch": {"GraphFusion": {"FusedAttentionFusionPass": "off", "NoSuchPass": "off"}}}')
    lines = [
        *(["report", report, "--format", form] for form in ("sarif", "junit", "code-quality", "fusion-result")),
        ["diff", report, BERT, "--format", "json"],
        ["check", BERT, "--format", "json"],
        *(["check", BERT, "--format", form] for form in ("sarif", "junit", "code-quality")),
        ["explain", BERT, "--format", "json"],
        ["switches", switches, "--format", "json"],
        ["verify", BERT, fused, "--format", "json"],
    ]
    for line in lines:
        english, chinese = atcfuse(*line), atcfuse(*line, "--lang", "zh")
        assert english.out == chinese.out, line
        assert english.code == chinese.code, line
        assert not CHINESE.search(chinese.out), line


def test_commands_speak_chinese(atcfuse, written, tmp_path, monkeypatch):
    monkeypatch.setenv("ATCFUSE_LANG", "zh")
    written("a")
    folder = tmp_path / "a"
    report, fused = folder / "bert.fused.report.json", folder / "bert.fused.onnx"
    switches = tmp_path / "sw.json"
    switches.write_text('{"Switch": {"GraphFusion": {"FusedAttentionFusionPass": "off"}}}')
    lines = {
        "下发次数": ["report", report],
        "无差异。": ["diff", report, report],
        "ATC会拒绝或误读该模型|未发现ATC会拒绝的内容": ["check", BERT],
        "未融合": ["explain", BERT],
        "处理": ["explain", "ATF301"],
        "两个模型结果一致": ["verify", BERT, fused],
        "默认开": ["switches", switches],
        "变为一个FusedAttention": ["rules", "list"],
        "没有错误": ["rules", "check"],
        "全部正确": ["rules", "test", "rms_norm"],
        "算子": ["kernels", "list"],
        "还原为标准算子": ["restore", fused, "-o", tmp_path / "plain.onnx"],
        "未安装|atcfuse": ["--version"],
    }
    for expected, line in lines.items():
        assert re.search(expected, atcfuse(*line).out), line


def test_a_wrong_language_is_told_with_a_code(atcfuse, monkeypatch):
    for line in (["--lang", "xx", "check", BERT], ["check", BERT, "--lang", "xx"], ["check", BERT, "--lang=zhh"]):
        outcome = atcfuse(*line)
        assert outcome.code == 2
        assert "ATF149" in outcome.err
        assert outcome.out == ""
    monkeypatch.setenv("ATCFUSE_LANG", "klingon")
    outcome = atcfuse("check", BERT)
    assert outcome.code == 2
    assert "ATF149: ATCFUSE_LANG 'klingon' is not a language of atcfuse" in outcome.err
    assert atcfuse("check", BERT, "--lang", "zh").code != 2


def test_the_option_beats_the_environment(atcfuse, monkeypatch):
    monkeypatch.delenv("ATCFUSE_LANG")
    monkeypatch.setenv("LC_ALL", "zh_CN.UTF-8")
    assert CHINESE.search(atcfuse("check", BERT).out)
    assert not CHINESE.search(atcfuse("check", BERT, "--lang", "en").out)
    assert not CHINESE.search(atcfuse("--lang", "en", "check", BERT).out)
    monkeypatch.setenv("LC_ALL", "C")
    assert not CHINESE.search(atcfuse("check", BERT).out)
    assert CHINESE.search(atcfuse("--lang", "zh", "check", BERT).out)
    assert CHINESE.search(atcfuse("--lang", "en", "check", BERT, "--lang", "zh").out)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (["chek"], "错误: ATF131: 没有命令'chek'"),
        (["check"], "错误: ATF131: 缺少参数"),
        (["check", "m.onnx", "--colour"], "错误: ATF131: 没有选项"),
        (["check", "m.onnx", "--color", "red"], "不是'auto', 'always', 'never'之一"),
        (["diff", "a", "b", "--max-launches", "x"], "不是有效的整数"),
        (["check", "gone.onnx"], "错误: ATF101: gone.onnx不存在"),
        (["optimize", "a.onnx", "b.onnx", "-o", "c.onnx"], "-o只适用于一个模型，当前给出了2个"),
        (["explain", "ATF999"], "没有错误码ATF999"),
        (["rules", "show", "attenton"], "您是否要用“attention”？"),
    ],
)
def test_mistakes_are_told_in_chinese(atcfuse, line, said):
    outcome = atcfuse(*line, "--lang", "zh")
    assert outcome.code in (1, 2)
    assert said in outcome.err, outcome.err


@pytest.mark.parametrize("command", ["", *COMMANDS, "rules check", "rules new", "kernels run", "kernels generate"])
def test_help_is_in_chinese_and_keeps_to_its_width(atcfuse, command):
    outcome = atcfuse(*command.split(), "--lang", "zh", "--help")
    assert outcome.code == 0
    assert CHINESE.search(outcome.out)
    assert re.findall(r"\b(?:the|of|that|and|with|are|is)\b", outcome.out) == []
    assert max(display_width(line) for line in outcome.out.splitlines()) <= 100


def test_help_in_chinese_is_as_reviewed(atcfuse, golden):
    golden("cli/help.zh.txt", atcfuse("--lang", "zh", "optimize", "--help").out)


def test_reports_on_one_line_and_in_tables_of_60_columns(atcfuse, written, tmp_path):
    outcome, _ = written("q", "--quiet", "--lang", "zh")
    assert len(outcome.out.splitlines()) == 1
    assert outcome.err == ""
    document = json.loads((tmp_path / "q" / "bert.fused.report.json").read_text())
    from atcfuse.report import to_text

    assert max(display_width(line) for line in to_text(document, 60, lang="zh").splitlines()) <= 60


def test_the_console_script_speaks_chinese_by_its_locale(tmp_path: Path):
    code = "from atcfuse.cli import main; main()"
    environment = {"LANG": "zh_CN.UTF-8", "PATH": "/usr/bin:/bin", "PYTHONIOENCODING": "utf-8"}
    run = subprocess.run(
        [sys.executable, "-c", code, "check", "gone.onnx"],
        env={**environment, "PYTHONPATH": ":".join(p for p in sys.path if p)},
        cwd=tmp_path,
        capture_output=True,
        timeout=60,
    )
    assert run.returncode == 1
    assert "不存在" in run.stderr.decode()
