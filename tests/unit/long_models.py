"""Models of many layers, and whether one is fused by way of a few of them."""

from __future__ import annotations

import importlib.util
import re
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

import onnx
import onnx.printer
import pytest

from atcfuse import compiler
from atcfuse.compiler import optimize_proto, toolbox
from atcfuse.graph import reroll
from atcfuse.graph.unroll import unroll
from atcfuse.options import EVERY_RULE, Options
from atcfuse.report.document import to_json
from atcfuse.run import Toolbox

TOOLS = toolbox(Options())
PLAIN = toolbox(Options(kernels=False))
GREEDY = toolbox(Options(forced=frozenset({EVERY_RULE}), min_saving_us=0.0))


@cache
def bench_models() -> ModuleType:
    path = Path(__file__).parents[2] / "bench" / "models.py"
    spec = importlib.util.spec_from_file_location("bench_models", path)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def transformer(layers: int) -> onnx.ModelProto:
    proto = onnx.ModelProto()
    proto.CopyFrom(bench_models().transformer(layers))
    return proto


def optimized(
    proto: onnx.ModelProto, tools: Toolbox, monkeypatch: pytest.MonkeyPatch, layers: bool
) -> tuple[bytes, str]:
    """The optimized model and its report, by way of a short one only where asked for."""
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    with monkeypatch.context() as patch:
        patch.setattr(reroll, "MANY", 0 if layers else 1 << 40)
        done = optimize_proto(copy, tools)
    return done.model.SerializeToString(deterministic=True), to_json(done.report)


_NUMBER = re.compile(r"(?<=/)([A-Z][A-Za-z]*)(_\d+)+")


def is_fused_by_layers(
    proto: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch, tools: Toolbox = PLAIN, *, numbered: bool = True
) -> bool:
    """Whether a model was fused by way of a short one, the result of which is that of the long one.

    Where layers as they come again begin in the middle of a module, the numbers of names made up in it may differ; they
    are not compared unless `numbered`.
    """
    unrolled = []
    with monkeypatch.context() as patch:
        patch.setattr(reroll, "LEAST_NODES", 1)
        patch.setattr(compiler, "unroll", lambda *given: unrolled.append(unroll(*given)) or unrolled[-1])
        short, short_report = optimized(proto, tools, monkeypatch, layers=True)
    whole, report = optimized(proto, tools, monkeypatch, layers=False)
    if numbered:
        assert short_report == report
        assert short == whole
        return bool(unrolled)
    assert _NUMBER.sub(r"\1", short_report) == _NUMBER.sub(r"\1", report)
    first, second = (onnx.printer.to_text(onnx.load_from_string(model)) for model in (short, whole))
    assert _NUMBER.sub(r"\1", first) == _NUMBER.sub(r"\1", second)
    names = [name for node in onnx.load_from_string(short).graph.node for name in (node.name, *node.output)]
    assert len(names) == len(set(names))
    return bool(unrolled)


def side_by_side(proto: onnx.ModelProto, times: int) -> onnx.ModelProto:
    """A model so many times in one graph, each with inputs, outputs and constants of its own."""
    graph = onnx.GraphProto(name="many")
    for number in range(times):
        for item in (*proto.graph.input, *proto.graph.output, *proto.graph.initializer):
            copy = type(item)()
            copy.CopyFrom(item)
            copy.name = f"{item.name}.{number}"
            same = {onnx.TensorProto: graph.initializer}.get(type(item))
            if same is None:
                same = graph.input if any(item is i for i in proto.graph.input) else graph.output
            same.append(copy)
        for node in proto.graph.node:
            copy = graph.node.add()
            copy.CopyFrom(node)
            copy.name = f"{node.name}.{number}" if node.name else ""
            for field in ("input", "output"):
                names = [f"{n}.{number}" if n else "" for n in getattr(node, field)]
                del getattr(copy, field)[:]
                getattr(copy, field).extend(names)
    many = onnx.ModelProto()
    many.CopyFrom(proto)
    many.graph.CopyFrom(graph)
    return many
