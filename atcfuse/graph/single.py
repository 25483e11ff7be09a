"""Models of one fused node, and taps on the values of a larger one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onnx import ModelProto, ValueInfoProto, helper

from atcfuse.graph.dialect import FUSED_DOMAIN, FUSED_VERSION, OVERLOAD_IR
from atcfuse.graph.index import Model
from atcfuse.graph.text import parse_function


@dataclass(frozen=True)
class Tensor:
    """A graph input or output; an extent may be unknown (None), and so may the whole shape."""

    name: str
    dtype: int
    shape: tuple[int | None, ...] | None


def one_node_model(
    op: str,
    attributes: Mapping[str, Any],
    inputs: Sequence[Tensor | None],
    outputs: Sequence[Tensor],
    function: str,
    opset: int,
) -> ModelProto:
    """A portable model of one fused node; `inputs` are None where the node has none, `function` is its meaning."""
    body = parse_function(function)
    names = ["" if tensor is None else tensor.name for tensor in inputs]
    while names and not names[-1]:
        names.pop()
    node = helper.make_node(
        op,
        names,
        [o.name for o in outputs],
        name=f"{op}_node",
        domain=FUSED_DOMAIN,
        overload=body.overload,
        **attributes,
    )
    given = [_value_info(tensor) for tensor in inputs if tensor is not None]
    graph = helper.make_graph([node], op, given, [_value_info(o) for o in outputs])
    imports = [helper.make_opsetid("", opset), helper.make_opsetid(FUSED_DOMAIN, FUSED_VERSION)]
    return helper.make_model(
        graph, opset_imports=imports, functions=[body], ir_version=OVERLOAD_IR, producer_name="atcfuse"
    )


def _value_info(tensor: Tensor) -> ValueInfoProto:
    return helper.make_tensor_value_info(tensor.name, tensor.dtype, tensor.shape)


def tap(model: Model, values: Iterable[str]) -> dict[str, str]:
    """Makes values of the main graph graph outputs, in place; gives the outputs' names by value.

    Each goes through an Identity, so that graph inputs, initializers and outputs can be tapped alike.
    """
    names: dict[str, str] = {}
    taken = {*model.main.inputs, *model.main.tensors, *model.main.producers}
    for value in dict.fromkeys(values):
        name = f"{value}/tap"
        while name in taken:
            name += "_"
        taken.add(name)
        names[value] = name
        model.proto.graph.node.append(helper.make_node("Identity", [value], [name], name=name))
        model.proto.graph.output.append(ValueInfoProto(name=name))
    return names
