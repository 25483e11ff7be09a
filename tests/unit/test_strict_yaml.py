"""Strict YAML: every mistake has a code and a place, and nothing but plain data gets through."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from atcfuse.diagnostics import AtcfuseError
from atcfuse.strict_yaml import MAX_BYTES, MAX_DEPTH, Value, parse_documents, read_documents

ROOT = Path(__file__).parents[2]


def one(text: str) -> Value:
    (document,) = parse_documents(text, "f.yaml")
    return document


def failure(text: str) -> tuple[str, str]:
    """Code and place of the mistake in a text, read as deep as it goes."""
    with pytest.raises(AtcfuseError) as caught:
        for document in parse_documents(text, "f.yaml"):
            walk(document)
    found = caught.value.diagnostics[0]
    return found.code, str(found.span)


def walk(value: Value) -> None:
    """Reads everything that a value holds."""
    if value.is_mapping():
        for _, _, inner in value.items():
            walk(inner)
    elif value.is_text():
        value.text()
    else:
        for inner in value.list():
            walk(inner)


@pytest.mark.parametrize(
    ("text", "code", "place"),
    [
        ("a: 1\na: 2\n", "ATF203", "f.yaml:2:1"),
        ("a: {b: 1, b: 2}\n", "ATF203", "f.yaml:1:11"),
        ("a: &x 1\nb: *x\n", "ATF204", "f.yaml:1:4"),
        ("a: !!python/object/apply:os.system [true]\n", "ATF204", "f.yaml:1:4"),
        ("a: !!str 1\n", "ATF204", "f.yaml:1:4"),
        ("a: yes\n", "ATF205", "f.yaml:1:4"),
        ("a: Off\n", "ATF205", "f.yaml:1:4"),
        ("a: ~\n", "ATF205", "f.yaml:1:4"),
        ("a: null\n", "ATF205", "f.yaml:1:4"),
        ("a:\n", "ATF205", "f.yaml:1:3"),
        ("a: [1, 2\n", "ATF201", "f.yaml:2:1"),
        ("a: 'x\n", "ATF201", "f.yaml:2:1"),
        ("a: 1\n\tb: 2\n", "ATF201", "f.yaml:2:1"),
        ("a: " + "[" * (MAX_DEPTH + 1), "ATF217", f"f.yaml:1:{3 + MAX_DEPTH}"),
    ],
)
def test_mistakes_have_a_code_and_a_place(text: str, code: str, place: str) -> None:
    assert failure(text) == (code, place)


def test_unknown_and_missing_keys() -> None:
    with pytest.raises(AtcfuseError, match='did you mean "summary"') as caught:
        one("sumary: x\n").fields(("summary",))
    assert caught.value.diagnostics[0].code == "ATF202"
    with pytest.raises(AtcfuseError, match="the key 'summary' is missing") as caught:
        one("b: x\n").fields(("summary",), ("b",))
    assert caught.value.diagnostics[0].code == "ATF206"


@pytest.mark.parametrize("read", [lambda v: v.text(), lambda v: v.list()], ids=["text", "list"])
def test_a_mapping_is_neither_text_nor_list(read: object) -> None:
    with pytest.raises(AtcfuseError) as caught:
        read(one("a: 1\n"))  # type: ignore[operator]
    assert caught.value.diagnostics[0].code == "ATF207"


def test_quotes_and_blocks_make_text() -> None:
    document = one('a: "on"\nb: |\n  two\n  lines\nc: 1e-5\nd: -inf\n')
    values = {name: value for name, _, value in document.items()}
    assert (values["a"].text(), values["b"].text()) == ("on", "two\nlines\n")
    assert (values["c"].number(), values["d"].number(), values["a"].number()) == (1e-5, float("-inf"), "on")
    assert str(values["b"].text_span()) == "f.yaml:3:3"
    assert str(values["a"].text_span()) == "f.yaml:1:5"


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    for name, data, code in (("latin", b"a: \xe9\n", "ATF201"), ("big", b"a" * (MAX_BYTES + 1), "ATF217")):
        file = tmp_path / name
        file.write_bytes(data)
        with pytest.raises(AtcfuseError) as caught:
            read_documents(file, name)
        assert caught.value.diagnostics[0].code == code
    with pytest.raises(AtcfuseError) as caught:
        read_documents(tmp_path / "missing", "missing")
    assert caught.value.diagnostics[0].code == "ATF200"


@given(st.one_of(st.text(max_size=80), st.text("ab:-[]{}&*!|>'\"#, \n\t~%@`", max_size=40)))
@settings(max_examples=400, deadline=None)
def test_any_text_is_data_or_a_coded_error(text: str) -> None:
    try:
        for document in parse_documents(text, "f.yaml"):
            walk(document)
    except AtcfuseError as problem:
        assert problem.diagnostics[0].code.startswith("ATF20") or problem.diagnostics[0].code == "ATF217"


@given(st.binary(max_size=60))
@settings(max_examples=200, deadline=None)
def test_any_bytes_are_data_or_a_coded_error(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    file = tmp_path_factory.getbasetemp() / "bytes.yaml"
    file.write_bytes(data)
    try:
        for document in read_documents(file, "f.yaml"):
            walk(document)
    except AtcfuseError as problem:
        assert problem.diagnostics[0].code.startswith("ATF2")


def _marks(text: str, loader: type) -> list[tuple[str, object, int, int]]:
    """Every node of a text, depth first, with its kind, plain value and place."""
    found = []

    def visit(node: yaml.Node) -> None:
        plain = node.value if isinstance(node, yaml.ScalarNode) else None
        found.append((type(node).__name__, plain, node.start_mark.line, node.start_mark.column))
        children = node.value if not isinstance(node, yaml.ScalarNode) else ()
        for child in children:
            for part in child if isinstance(child, tuple) else (child,):
                visit(part)

    for document in yaml.compose_all(text, Loader=loader):
        visit(document)
    return found


@pytest.mark.skipif(not hasattr(yaml, "CSafeLoader"), reason="PyYAML without libyaml")
@pytest.mark.parametrize("name", ["rules", "kernels", "sample_models"])
def test_both_yaml_parsers_see_the_same_at_the_same_place(name: str) -> None:
    texts = [p.read_text(encoding="utf-8") for p in sorted((ROOT / name).rglob("*.yaml"))]
    for text in [*texts, 'a: "é 中文"\nbé: [x, {y: 1}]   # ü\nc: |\n  block\n  ßtext\n']:
        assert _marks(text, yaml.CSafeLoader) == _marks(text, yaml.SafeLoader)


@given(st.text(st.sampled_from("ab c'\"\\\n,:é中"), min_size=1, max_size=40), st.sampled_from(["'", '"', "|", ">"]))
@settings(max_examples=200, deadline=None)
def test_every_place_inside_a_text_is_known(text: str, style: str) -> None:
    """Whatever the style, a letter that stands once in the text is found where the file has it."""
    text = f"{text}Z"
    dumped = yaml.dump({"key": text, "end": "1"}, default_style=style, allow_unicode=True, width=20, sort_keys=False)
    value = {name: v for name, _, v in one(dumped).items()}["key"]
    assert value.text() == text
    span = value.text_span().at(text.index("Z"))
    line = dumped.split("\n")[span.line - 1]
    assert line[span.column - 1] == "Z"
