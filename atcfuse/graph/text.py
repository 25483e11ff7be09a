"""Models in ONNX's own text form, as the examples of rules write them."""

from __future__ import annotations

import re

import onnx
import onnx.checker
import onnx.parser
from onnx import ModelProto

IR_VERSION = 8
"""What the examples of rules are written in: the version that came with opset 16 and 17."""

_DOMAINS = {"com.microsoft": 1, "npu": 1}


def parse_graph(text: str, opset: int) -> ModelProto:
    """The model of a graph text `(inputs) => (outputs) <initializers> { nodes }` at an opset.

    Nodes get names, `Op_position`, so that diagnostics can point at them. Raises ValueError where the text is not a
    graph or not a valid model.
    """
    used = [domain for domain in _DOMAINS if f"{domain}." in text]
    imports = ", ".join(f'"{d}" : {v}' for d, v in {"": opset, **{d: _DOMAINS[d] for d in used}}.items())
    head = f"<ir_version: {IR_VERSION}, opset_import: [{imports}]>\nexample "
    try:
        model = onnx.parser.parse_model(head + text)
        onnx.checker.check_model(model)
    except onnx.parser.ParseError as problem:
        raise ValueError(_shortened(str(problem))) from None
    except onnx.checker.ValidationError as problem:
        raise ValueError(_shortened(str(problem))) from None
    for position, node in enumerate(model.graph.node):
        node.name = node.name or f"{node.op_type}_{position}"
    return model


def _shortened(message: str) -> str:
    plain = message.removeprefix("b'").removesuffix("'").replace("\\n", " ")
    return re.sub(r"\s+", " ", plain).strip()[:300]
