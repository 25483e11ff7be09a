"""The documents say what is so: pasted output, commands, options, targets, layers, the worked example, links, codes."""

from __future__ import annotations

import importlib.util
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from atcfuse.cli import cli
from atcfuse.diagnostics import all_codes, code_page
from atcfuse.kernel import load_kernels
from atcfuse.loader import load_rules
from atcfuse.resources import data_folder
from atcfuse.rule_tests import run_examples

ROOT = Path(__file__).parents[2]
DOCUMENTS = (
    "README.md",
    "README.zh.md",
    "DESIGN.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "sample_models/README.md",
    "docs/ci.md",
    "docs/costs.md",
    "docs/debug-a-fused-model.md",
    "docs/python.md",
    "docs/write-a-rule.md",
)
MAIN_JOB = ".venv/bin/atcfuse optimize sample_models/"


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def fenced(text: str, language: str) -> list[str]:
    """The bodies of a document's code blocks in a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def shell_lines(name: str) -> list[str]:
    return [line for block in fenced(read(name), "sh") for line in block.splitlines()]


def toml_list(key: str) -> list[str]:
    """A list of texts in pyproject.toml; tomllib is not there before Python 3.11."""
    found = re.search(rf"^{key} = \[\n(.*?)^\]", read("pyproject.toml"), re.MULTILINE | re.DOTALL)
    assert found is not None
    return re.findall(r'"([^"]+)"', found[1])


# ---------------------------------------------------------------- README


PASTED = {
    "README.md": "pastes anew. -->\n```text\n",
    "README.zh.md": "重新粘贴。 -->\n```text\n",
}


@pytest.mark.parametrize("name", PASTED)
def test_the_pasted_output_is_what_the_main_job_prints(
    name: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    (line,) = [line for line in shell_lines(name) if line.startswith(MAIN_JOB)]
    _, *arguments = shlex.split(line)
    (tmp_path / "sample_models").mkdir()
    shutil.copy(ROOT / arguments[1], tmp_path / "sample_models")
    command = [sys.executable, "-c", "from atcfuse.cli import main; main()", *arguments]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, encoding="utf-8", check=True)
    assert len(list((tmp_path / "sample_models").glob("*.fused.*"))) == 5
    before, fence, rest = read(name).partition(PASTED[name])
    pasted, end, after = rest.partition("```\n")
    shown = beginning(ran.stdout)
    if request.config.getoption("--update-golden"):
        (ROOT / name).write_text("".join((before, fence, shown, end, after)), encoding="utf-8")
        return
    assert pasted == shown, "run `make docs`"


def beginning(text: str) -> str:
    """A report's text up to the end of the first rule that fused."""
    rules = [found.start() for found in re.finditer(r"^  [a-z_]+[:：] ?\d", text, re.MULTILINE)]
    assert len(rules) > 2
    return text[: rules[1]]


def test_the_chinese_readme_sets_up_in_the_same_way() -> None:
    assert fenced(read("README.zh.md"), "sh")[0] == fenced(read("README.md"), "sh")[0]


def test_two_commands_set_up_and_ci_runs_the_same_test_command() -> None:
    blocks = fenced(read("README.md"), "sh")
    setup, main_job, tests = (block.splitlines() for block in blocks[:3])
    assert len(setup) == 2
    assert len(main_job) == len(tests) == 1
    ci = read(".ci/run")
    assert tests[0].startswith(".venv/bin/pytest")
    assert any(line == tests[0] or line.startswith(f"{tests[0]} 2>&1 |") for line in ci.splitlines())
    assert tests[0].removeprefix(".venv") in read("Makefile").replace("$(BIN)", "/bin")
    extras = re.search(r"'(\.\[.*?\])'", setup[1])
    assert extras is not None
    assert extras[1] in ci


def test_the_python_example_runs(tmp_path: Path) -> None:
    (code,) = fenced(read("README.md"), "python")
    (tmp_path / "sample_models").symlink_to(ROOT / "sample_models")
    ran = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "FusedAttention attention" in ran.stdout


def test_the_switch_file_example_is_read_as_it_looks(tmp_path: Path) -> None:
    from atcfuse.switches import read_switches

    (text,) = fenced(read("README.md"), "yaml")
    (tmp_path / "sw.yaml").write_text(text)
    own = {rule.switch: rule.switch_kind for rule in load_book().rules}
    switches = read_switches(tmp_path / "sw.yaml", own)
    assert switches.diagnostics == ()
    assert switches.is_on("FusedAttentionFusionPass")
    assert not switches.is_on("FusedLayerNormQKVFusionPass")


# ---------------------------------------------------------------- commands and options


def commands_in(name: str) -> Iterator[list[str]]:
    """Every `atcfuse …` command line of a document, in blocks and between backticks."""
    text = read(name)
    for line in [*shell_lines(name), *re.findall(r"`(atcfuse [^`]+)`", text)]:
        words = shlex.split(line.removeprefix(".venv/bin/"))
        if words[0] == "atcfuse":
            yield words[1:]


def problem(words: list[str]) -> str:
    """What the command line does not know in these words, "" where nothing."""
    command: click.Command = cli
    context = click.Context(cli, info_name="atcfuse", **cli.context_settings)
    while isinstance(command, click.Group):
        if not words or words[0].startswith("-"):
            break
        found = command.get_command(context, words[0])
        if found is None:
            return f"no command {words[0]}"
        command, words = found, words[1:]
    known = {o for p in command.get_params(context) for o in (*p.opts, *p.secondary_opts)}
    return ", ".join(w for w in words if w.startswith("-") and w.split("=")[0] not in known)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_commands_and_options_exist(name: str) -> None:
    wrong = {" ".join(words): found for words in commands_in(name) if (found := problem(words))}
    assert wrong == {}


def test_options_between_backticks_exist_somewhere() -> None:
    context = click.Context(cli, **cli.context_settings)
    every = [cli, *(c for n in cli.list_commands(context) if (c := cli.get_command(context, n)))]
    every += [c for group in every if isinstance(group, click.Group) for c in group.commands.values()]
    known = {option for command in every for p in command.get_params(context) for option in p.opts}
    foreign = {"--fusion_switch_file", "--soc_version", "--update-golden", "--optimize"}  # ATC's, pytest's, Optimum's
    said = set(re.findall(r"`(--[\w-]+)", "".join(read(name) for name in DOCUMENTS)))
    assert said - known - foreign == set()
    assert "--dialect" in said


def test_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", read("Makefile"), re.MULTILINE))
    assert targets == {"help", "setup", "test", "lint", "rules", "golden", "docs", "fuzz", "compat", "bench"}
    said = set(re.findall(r"`make\s+(\w+)`", "".join(read(name) for name in DOCUMENTS)))
    assert {"bench", "docs", "help", "lint", "setup"} <= said <= targets


# ---------------------------------------------------------------- design and contribution


def test_the_order_of_modules_is_the_contract() -> None:
    layers = [layer.strip("()") for layer in toml_list("layers")]  # in parentheses: may be missing
    (order,) = [b.splitlines() for b in fenced(read("DESIGN.md"), "text")]
    assert order == layers
    named = set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\| `.*", read("DESIGN.md"), re.MULTILINE))))
    modules = {name for layer in layers for name in layer.split(" | ")}
    helpers = {"__main__", "layout", "options", "precision", "keep_nodes", "hints", "resources", "files", "switches"}
    assert modules - helpers <= named, "the table in DESIGN.md leaves a module out"


def load_book(*folders: Path):  # type: ignore[no-untyped-def]
    return load_rules([data_folder("rules"), *folders], load_kernels(data_folder("kernels")))


def test_the_worked_example_is_a_rule_that_keeps_its_promises(tmp_path: Path) -> None:
    (text,) = fenced(read("CONTRIBUTING.md"), "yaml")
    (tmp_path / "example.yaml").write_text(text)
    book = load_book(tmp_path)
    (rule,) = [rule for rule in book.rules if text.splitlines()[0] == f"rule: {rule.name}"]
    results = run_examples(book, load_kernels(data_folder("kernels")), [rule.name])
    assert [r.kind for r in results] == ["fuses", "keeps"]
    assert [r.message for r in results if not r.ok] == []


# ---------------------------------------------------------------- links and codes


def generator() -> Any:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_reference_pages_are_those_of_their_sources(request: pytest.FixtureRequest) -> None:
    """A page a rule, a kernel and a code, none of them stale."""
    made = generator()
    found = made.pages()
    if request.config.getoption("--update-golden"):
        made.write(ROOT / "docs")
    for path, text in found.items():
        file = ROOT / "docs" / path
        assert file.is_file(), f"no {path}: run `make docs`"
        assert file.read_text(encoding="utf-8") == text, f"{path} is stale: run `make docs`"
    assert made.stale(ROOT / "docs", found) == []
    book = load_book()
    text = "".join(found.values())
    assert [r.name for r in (*book.rules, *book.atc) if f"\n## {r.name}\n" not in text] == []
    assert [f for f in book.fragments if f"\n## {f}\n" not in found["rules/fragments.md"]] == []
    assert [k for k in load_kernels(data_folder("kernels")) if f"kernels/{k}.md" not in found] == []
    assert [code for code in all_codes() if f"[{code}]" not in found["codes.md"]] == []


def reference_pages() -> list[str]:
    folder = ROOT / "docs"
    found = [folder / "codes.md", *folder.glob("rules/*.md"), *folder.glob("kernels/*.md")]
    return [path.relative_to(ROOT).as_posix() for path in sorted(found)]


@pytest.mark.parametrize("name", [*DOCUMENTS, *reference_pages(), "kernels/twin/README.md"])
def test_relative_links_lead_somewhere(name: str) -> None:
    links = re.findall(r"\]\(([^)#\s]+)\)", read(name))
    folder = (ROOT / name).parent
    assert [link for link in links if "://" not in link and not (folder / link).exists()] == []


def test_paths_between_backticks_exist() -> None:
    text = "".join(read(name) for name in ("README.md", "DESIGN.md", "CONTRIBUTING.md"))
    paths = set(re.findall(r"`((?:rules|kernels|tests|atcfuse|bench)/[\w./-]*)`", text))
    assert len(paths) > 5
    assert sorted(p for p in paths if "nnn" not in p and not (ROOT / p).exists()) == []


def used_codes() -> set[str]:
    files = [*(ROOT / "atcfuse").rglob("*.py"), *(ROOT / "rules").rglob("*.yaml")]
    return {code for file in files for code in re.findall(r"\bATF\d{3}\b", file.read_text(encoding="utf-8"))}


def test_every_code_has_a_page_and_every_page_is_used() -> None:
    used = used_codes()
    pages = {page.stem for page in (ROOT / "atcfuse/codes").glob("*.md")}
    assert sorted(used - pages) == [], "codes without a page"
    assert sorted(pages - used) == [], "pages of codes that nothing gives"


@pytest.mark.parametrize("page", sorted(p.stem for p in (ROOT / "atcfuse/codes").glob("*.md")))
def test_pages_of_codes_say_what_was_found_expected_and_to_do(page: str) -> None:
    text = code_page(page)
    assert text is not None
    assert re.match(rf"# {page}: \S", text)
    assert [text.find(word) > 0 for word in ("**Found**", "**Expected**", "**What to do**")] == [True] * 3
