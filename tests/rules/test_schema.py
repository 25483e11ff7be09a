"""`rules/schema.json`: fresh, in step with the loader, and true of every shipped rule file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from atcfuse import loader
from atcfuse.diagnostics import AtcfuseError
from atcfuse.resources import data_folder
from atcfuse.rule.json_schema import schema, text
from atcfuse.strict_yaml import parse_documents

RULES = data_folder("rules")
FILES = sorted(RULES.rglob("*.yaml"))
TYPES = {"object": dict, "array": list, "string": str, "number": (int, float), "integer": int}


def problems(value: Any, rule: dict[str, Any], at: str = "") -> list[str]:
    """What the schema says against a value; as much of JSON schema as ours uses."""
    if "$ref" in rule:
        return problems(value, schema()["$defs"][rule["$ref"].rpartition("/")[2]], at)
    found: list[str] = []
    kinds = rule.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if kinds and not any(isinstance(value, TYPES[k]) for k in kinds):
        return [f"{at}: not {kinds}"]
    if "enum" in rule and value not in rule["enum"]:
        found.append(f"{at}: not one of {rule['enum']}")
    if "pattern" in rule and not re.search(rule["pattern"], value):
        found.append(f"{at}: not like {rule['pattern']}")
    if "oneOf" in rule:
        tried = [problems(value, option, at) for option in rule["oneOf"]]
        if sum(not t for t in tried) != 1:
            found += min(tried, key=len) or [f"{at}: fits several forms"]
    if "anyOf" in rule:
        tried = [problems(value, option, at) for option in rule["anyOf"]]
        found += [] if any(not t for t in tried) else min(tried, key=len)
    for position, item in enumerate(value if isinstance(value, list) else ()):
        found += problems(item, rule.get("items", {}), f"{at}[{position}]")
    return found + (_object_problems(value, rule, at) if isinstance(value, dict) else [])


def _object_problems(value: dict[str, Any], rule: dict[str, Any], at: str) -> list[str]:
    known, more = rule.get("properties", {}), rule.get("additionalProperties", {})
    found = [f"{at}: lacks {name}" for name in rule.get("required", ()) if name not in value]
    for name, item in value.items():
        if name in known:
            found += problems(item, known[name], f"{at}/{name}")
        elif more is False:
            found.append(f"{at}: unknown key {name}")
        else:
            found += problems(item, more, f"{at}/{name}")
    return found


def test_the_shipped_file_is_fresh() -> None:
    told = "run `python -m atcfuse.rule.json_schema > rules/schema.json`"
    assert (RULES / "schema.json").read_text(encoding="utf-8") == text(), told


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.name)
def test_shipped_rules_fit(path: Path) -> None:
    for document in yaml.safe_load_all(path.read_text(encoding="utf-8")):
        branch = schema()["oneOf"][0 if "rule" in document else 2 if "atc" in document else 1]
        assert problems(document, branch) == []


def test_rules_have_the_keys_that_the_loader_reads() -> None:
    rule = schema()["oneOf"][0]
    assert rule["required"] == list(loader._RULE_REQUIRED)
    assert set(rule["properties"]) == {*loader._RULE_REQUIRED, *loader._RULE_OPTIONAL}
    described = schema()["oneOf"][2]
    assert sorted(described["required"]) == sorted(loader._ATC_REQUIRED)
    assert set(described["properties"]) == {*loader._ATC_REQUIRED, *loader._ATC_OPTIONAL}


@pytest.mark.parametrize("key", sorted(schema()["oneOf"][1]["properties"]))
def test_fragments_may_have_every_key(key: str) -> None:
    """The loader complains about the value, if at all, never about the key."""
    document = parse_documents(
        f'fragment: f(x)\nsummary: s\n{key}: "x"\n'
        if key not in ("fragment", "summary")
        else "fragment: f(x)\nsummary: s\nis: x\n",
        "f.yaml",
    )[0]
    try:
        loader.read_fragment(document)
    except AtcfuseError as problem:
        assert problem.diagnostics[0].code != "ATF202"


def test_the_schema_refuses_what_the_loader_refuses() -> None:
    document = yaml.safe_load((RULES / "norm" / "rms_norm_pair.yaml").read_text(encoding="utf-8"))
    branch = schema()["oneOf"][0]
    assert "/level: not one of" in problems({**document, "level": "graphs"}, branch)[0]
    assert problems({**document, "anchr": "n"}, branch) == [": unknown key anchr"]
    without = {k: v for k, v in document.items() if k != "kernel"}
    assert problems(without, branch) == [": lacks kernel"]
