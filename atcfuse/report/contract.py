"""The contract of a report, `report.schema.json`, and the check of a document against it.

The shipped JSON Schema is the only statement of the contract; this module reads the part of JSON Schema that the file
uses, so that checking a report needs no further package and the two cannot drift apart.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from importlib import resources
from typing import Any

SCHEMA = "atcfuse.report/1"

Schema = Mapping[str, Any]

KEYWORDS = frozenset(
    {"$ref", "type", "const", "enum", "minimum", "maximum", "pattern", "items", "minItems", "maxItems", "required"}
    | {"properties", "patternProperties", "additionalProperties"}
)
"""The keywords that are checked; `report.schema.json` uses no others but annotations and `$defs`."""

_ARTICLES = {
    "null": "null",
    "boolean": "a boolean",
    "integer": "an integer",
    "number": "a number",
    "string": "a string",
    "array": "a list",
    "object": "an object",
}


@lru_cache(maxsize=1)
def report_schema() -> Schema:
    """The shipped JSON Schema (draft 2020-12) of a report; not to be modified."""
    text = (resources.files("atcfuse.report") / "report.schema.json").read_text(encoding="utf-8")
    schema: Schema = json.loads(text)
    return schema


def validate(report: object) -> list[str]:
    """What in `report` breaks the contract, one `path: expected …, found …` each; empty for a good report."""
    return list(_problems(report, report_schema(), ""))


def _problems(value: object, schema: Schema, path: str) -> Iterator[str]:
    while "$ref" in schema:
        own = {key: part for key, part in schema.items() if key != "$ref"}
        schema = {**report_schema()["$defs"][schema["$ref"].rpartition("/")[2]], **own}
    kinds = schema.get("type", [])
    allowed = [kinds] if isinstance(kinds, str) else kinds
    if allowed and not any(_is_a(value, kind) for kind in allowed):
        yield _problem(path, " or ".join(_ARTICLES[kind] for kind in allowed), value)
        return
    if "const" in schema and value != schema["const"]:
        yield _problem(path, repr(schema["const"]), value)
    if "enum" in schema and value not in schema["enum"]:
        yield _problem(path, " or ".join(repr(one) for one in schema["enum"]), value)
    if isinstance(value, str):
        if "pattern" in schema and not re.search(schema["pattern"], value):
            yield _problem(path, f"text like {schema['pattern']}", value)
    elif isinstance(value, (int, float)):
        yield from _number_problems(value, schema, path)
    elif isinstance(value, list):
        yield from _list_problems(value, schema, path)
    elif isinstance(value, Mapping):
        yield from _object_problems(value, schema, path)


def _number_problems(value: float, schema: Schema, path: str) -> Iterator[str]:
    if not math.isfinite(value):
        yield _problem(path, "a finite number", value)
    elif "minimum" in schema and value < schema["minimum"]:
        yield _problem(path, f"at least {schema['minimum']}", value)
    elif "maximum" in schema and value > schema["maximum"]:
        yield _problem(path, f"at most {schema['maximum']}", value)


def _list_problems(value: list[object], schema: Schema, path: str) -> Iterator[str]:
    least, most = schema.get("minItems", 0), schema.get("maxItems", math.inf)
    if not least <= len(value) <= most:
        expected = f"{least}" if least == most else f"{least} to {most}"
        yield f"{path or 'report'}: expected {expected} entries, found {len(value)}"
    for i, item in enumerate(value):
        yield from _problems(item, schema.get("items", {}), f"{path}[{i}]")


def _object_problems(value: Mapping[object, object], schema: Schema, path: str) -> Iterator[str]:
    for key in schema.get("required", ()):
        if key not in value:
            yield f"{path or 'report'}: the key {key!r} is missing"
    for key, item in value.items():
        where = f"{path}.{key}" if path else str(key)
        if not isinstance(key, str):
            yield f"{where}: expected a string as key, found {key!r}"
            continue
        for part in _schemas_of(key, schema):
            yield from _problems(item, part, where)


def _schemas_of(key: str, schema: Schema) -> list[Schema]:
    """What applies to one key of an object."""
    found = [schema["properties"][key]] if key in schema.get("properties", {}) else []
    found += [part for pattern, part in schema.get("patternProperties", {}).items() if re.search(pattern, key)]
    return found or [schema.get("additionalProperties", {})]


def _is_a(value: object, kind: str) -> bool:
    """Whether `value` is of a JSON type; a boolean is no number, and 1.0 no integer here."""
    match kind:
        case "null":
            return value is None
        case "boolean":
            return isinstance(value, bool)
        case "integer":
            return isinstance(value, int) and not isinstance(value, bool)
        case "number":
            return isinstance(value, (int, float)) and not isinstance(value, bool)
        case "string":
            return isinstance(value, str)
        case "array":
            return isinstance(value, list)
    return isinstance(value, Mapping)


def _problem(path: str, expected: str, found: object) -> str:
    text = repr(found)
    shown = text if len(text) <= 60 else f"{text[:57]}..."
    return f"{path or 'report'}: expected {expected}, found {shown}"
