"""The JSON schema of rule files, for editors: `python -m atcfuse.rule.json_schema > rules/schema.json`.

It says which keys there are and of what kind their values; names that must exist and terms that must parse stay with
the loader.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from atcfuse.rule.model import CHIPS
from atcfuse.rule.types import ELEMENT_TYPES

Schema = dict[str, Any]

_NAME = r"^[A-Za-z_]\w{0,79}$"


def schema() -> Schema:
    """The schema of one document of a rule file: a rule, a fragment or the description of a pass of ATC."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "atcfuse rule file",
        "description": "One fusion, a fragment that rules use, or a pass of ATC. A file may hold several documents.",
        "oneOf": [_rule(), _fragment(), _atc()],
        "$defs": {
            "term": _text("a pattern term such as Softmax(logits, axis=-1), scaled(x, by=s), a name or a number"),
            "type": _text("T, float16, T[B,S,H*D], T[...,K], const, const [1] or any"),
            "expression": {**_text("names, numbers, arithmetic, comparison, functions"), "type": ["string", "number"]},
            "reasons": _map(_text("what is wrong where the condition is not proved"), "condition: reason"),
            "let": _map({"$ref": "#/$defs/expression"}, "name: expression, computed in order"),
            "steps": _map(_step(), "name of the value, or (a, b) for several outputs: the term that it must match"),
            "inputs": _map({"$ref": "#/$defs/type"}, "name, or name? for one that may be absent: its type"),
            "alternative": {"oneOf": [{"$ref": "#/$defs/term"}, _alternative()]},
            "examples": _examples(),
        },
    }


def text() -> str:
    """The schema as `rules/schema.json` holds it."""
    return json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"


def _text(description: str) -> Schema:
    return {"type": "string", "description": description}


def _map(values: Schema, description: str) -> Schema:
    return {"type": "object", "additionalProperties": values, "description": description}


def _object(required: Schema, optional: Schema, description: str = "") -> Schema:
    said = {"description": description} if description else {}
    properties = {**required, **optional}
    return {"type": "object", **said, "properties": properties, "required": [*required], "additionalProperties": False}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/$defs/{name}"}


def _rule() -> Schema:
    elements = {"type": "array", "items": {"enum": sorted(ELEMENT_TYPES)}}
    required = {
        "rule": {**_text("the rule's name"), "pattern": _NAME},
        "switch": {**_text("its name in a fusion switch file"), "pattern": _NAME},
        "summary": _text("what becomes what, in one sentence"),
        "why": _text("what the fusion saves"),
        "limits": _text("what it does not cover"),
        "level": {"enum": ["constant", "operator", "elementwise", "pattern", "graph"], "description": "breaks ties"},
        "types": _map(elements, "type variables and the element types that they may be"),
        "inputs": _ref("inputs"),
        "pattern": _ref("steps"),
        "anchor": _text("the step that matching starts from"),
    }
    optional = {
        "opset": {**_text("8+ or 8-18"), "pattern": r"^\d+(\+|-\d+)$"},
        "kind": {"enum": ["GraphFusion", "UBFusion"], "description": "the section of the switch file"},
        "context": _ref("steps"),
        "outputs": _map(_text("the step that makes it, or if_used"), "outputs of the fused node"),
        "where": _ref("reasons"),
        "let": _ref("let"),
        "examples": _ref("examples"),
        "kernel": _text("the folder under kernels/ that implements the fused operator; not with level constant"),
        "replace": {
            **_map(
                _text("FusedOp(inputs, attribute=expression), Conv(x, tensor, like=step), or Identity(x)"),
                "outputs: call",
            ),
            "maxProperties": 1,
        },
        "tensors": _map(_ref("expression"), "level constant: new constant tensors, computed in float64, in order"),
        "aliases": {"type": "array", "items": {"type": "string", "pattern": _NAME}, "description": "its other names"},
        "draft": _text("what is missing; the rule tells where it matches and replaces nothing"),
    }
    becomes = [
        {"required": ["kernel", "replace"]},
        {"required": ["replace"], "properties": {"level": {"enum": ["constant"]}}},
        {"required": ["draft", "outputs"]},
    ]
    return {**_object(required, optional, "One fusion."), "anyOf": becomes}


def _atc() -> Schema:
    rule = _rule()["properties"]
    names = {"type": "array", "items": {"type": "string"}}
    shared = ("types", "inputs", "pattern", "anchor")
    required = {
        "atc": {**_text("the rule's name"), "pattern": _NAME},
        "switch": {**_text("the registered name of the pass, as a fusion switch file has it"), "pattern": _NAME},
        "summary": _text("what becomes what, in one sentence"),
        "limits": _text("what of the pass is not described, and why"),
        "source": _text("what documents the pass"),
        "chips": {"type": "array", "items": {"enum": list(CHIPS)}, "description": "the chips it is documented for"},
        **{key: rule[key] for key in shared},
        "replace": {**_map(_text("GeOperator(inputs, attribute=expression)"), "outputs: call"), "maxProperties": 1},
    }
    optional = {
        "numerics": _text("how the results change, where they do"),
        "after": {**names, "description": "rules of which the match must take in a result"},
        "joins": {**names, "description": "rules of which the match may take in results"},
        "vector_passes": {
            "type": "integer",
            "description": "vector instructions an element of the result goes through",
        },
        **{key: rule[key] for key in ("opset", "kind", "outputs", "where", "let", "examples")},
    }
    return _object(required, optional, "A fusion of ATC itself: estimated, never applied.")


def _fragment() -> Schema:
    required = {
        "fragment": {**_text("name(parameters)"), "pattern": r"^\s*[a-z_]\w*\([^()]*\)\s*$"},
        "summary": _text("what it recognises"),
    }
    optional = {
        "exports": _map(_text("what it is"), "what a call may capture by keyword"),
        "inputs": _ref("inputs"),
        "any_of": _map(_ref("alternative"), "label: one spelling; the first that matches wins"),
        **_alternative()["properties"],
    }
    either = {"oneOf": [{"required": ["any_of"]}, {"required": ["is"]}]}
    return {**_object(required, optional, "A part of patterns that rules share."), **either}


def _alternative() -> Schema:
    return _object({"is": _ref("term")}, {k: _ref(v) for k, v in _ALTERNATIVE.items()})


_ALTERNATIVE = {"type": "type", "pattern": "steps", "let": "let", "where": "reasons"}


def _step() -> Schema:
    choice = {"is": _ref("term"), "any_of": _map(_ref("alternative"), "labelled alternatives"), "type": _ref("type")}
    return {"oneOf": [_ref("term"), _object({}, choice)]}


def _examples() -> Schema:
    graph = _text("a graph in ONNX's text form: (inputs) => (outputs) <initializers> { nodes }")
    opset = {"opset": {"type": "integer", "minimum": 1, "description": "17 where it is not given"}}
    gives = {"type": "array", "items": {"type": "string"}, "description": "the fused operators, exactly"}
    because = {"type": "string", "pattern": r"^(ATF\d{3}|none)$", "description": "the code of the refusal, or none"}
    fuses = _map(_object({"graph": graph, "gives": gives}, opset), "title: a model that must fuse")
    keeps = _map(_object({"graph": graph, "because": because}, opset), "title: a model that must stay")
    return _object({}, {"fuses": fuses, "keeps": keeps})


if __name__ == "__main__":
    sys.stdout.write(text())
