"""ONNX's own text form: models as the examples of rules write them, functions as meanings are rendered."""

from __future__ import annotations

import re
from typing import Any

import onnx
import onnx.checker
import onnx.parser
from onnx import FunctionProto, ModelProto

IR_VERSION = 8
"""What the examples of rules are written in: the version that came with opset 16 and 17."""

_DOMAINS = {"com.microsoft": 1, "npu": 1}
_SMALL_NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d*)?[eE]-\d{2,}")
_LEAST_NORMAL = 2.0**-126
_STAND_IN = 2.0**100


def parse_graph(text: str, opset: int) -> ModelProto:
    """The model of a graph text `(inputs) => (outputs) <initializers> { nodes }` at an opset.

    Nodes get names, `Op_position`, so that diagnostics can point at them. Raises ValueError where the text is not a
    graph or not a valid model.
    """
    used = [domain for domain in _DOMAINS if f"{domain}." in text]
    imports = ", ".join(f'"{d}" : {v}' for d, v in {"": opset, **{d: _DOMAINS[d] for d in used}}.items())
    head = f"<ir_version: {IR_VERSION}, opset_import: [{imports}]>\nexample "
    readable, small = _without_subnormals(text)
    try:
        model = onnx.parser.parse_model(head + readable)
        _put_back(model, small)
        onnx.checker.check_model(model)
    except onnx.parser.ParseError as problem:
        raise ValueError(_shortened(str(problem))) from None
    except onnx.checker.ValidationError as problem:
        raise ValueError(_shortened(str(problem))) from None
    except (IndexError, RuntimeError):  # from C++'s own conversions, depending on the version
        raise ValueError("a number is beyond the range of its type") from None
    for position, node in enumerate(model.graph.node):
        node.name = node.name or f"{node.op_type}_{position}"
    return model


def parse_function(text: str) -> FunctionProto:
    """The function of ONNX text, as `atcfuse.meaning` renders it."""
    readable, small = _without_subnormals(text)
    function = onnx.parser.parse_function(readable)
    _put_back(function, small)
    return function


def _without_subnormals(text: str) -> tuple[str, dict[float, float]]:
    """The text with another number for every one below float32's normal range, and which one stands for which.

    The parsers of onnx before 1.23 end with an error where a float is subnormal.
    """
    stand_ins: dict[float, float] = {}

    def stand_in(found: re.Match[str]) -> str:
        value = float(found[0])
        if abs(value) >= _LEAST_NORMAL:
            return found[0]
        number = _STAND_IN * (1 + (1 + len(stand_ins)) / 2**20)  # exact in float32, and nothing that a text would say
        stand_ins[number] = value
        return repr(number)

    return _SMALL_NUMBER.sub(stand_in, text), stand_ins


def _put_back(message: Any, stand_ins: dict[float, float]) -> None:
    """Writes the numbers that others stood for into every float of a protobuf message, in place."""
    if not stand_ins:
        return
    for field, value in message.ListFields():
        if hasattr(value, "ListFields"):
            _put_back(value, stand_ins)
        elif isinstance(value, float):
            setattr(message, field.name, stand_ins.get(value, value))
        elif isinstance(value, (int, str, bytes)):
            continue
        elif hasattr(value[0], "ListFields"):  # repeated; only fields that hold something are listed
            for inner in value:
                _put_back(inner, stand_ins)
        elif isinstance(value[0], float):
            value[:] = [stand_ins.get(number, number) for number in value]


def _shortened(message: str) -> str:
    plain = message.removeprefix("b'").removesuffix("'").replace("\\n", " ")
    return re.sub(r"\s+", " ", plain).strip()[:300]
