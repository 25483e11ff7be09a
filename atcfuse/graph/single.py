"""Models of one fused node, and taps on the values of a larger one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper

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


def keep_nan(model: ModelProto) -> None:
    """Lets ReduceMax and ReduceMin in a model's functions give NaN for every row that has one, in place.

    So ONNX means it; onnxruntime passes over a NaN that is not the first element of its row.
    """
    for function in model.functions:
        nodes = [made for node in function.node for made in _with_nan(node)]
        del function.node[:]
        function.node.extend(nodes)


def _with_nan(node: NodeProto) -> Iterator[NodeProto]:
    """An extremum in operators of its opset; another node as it is."""
    if node.op_type not in ("ReduceMax", "ReduceMin"):
        yield node
        return
    value = node.input[0]
    (result,) = node.output

    def reduced(op: str, source: str, target: str) -> NodeProto:
        made = NodeProto()
        made.CopyFrom(node)
        made.op_type, made.input[0], made.output[0] = op, source, target
        return made

    yield helper.make_node("IsNaN", [value], [f"{result}_nan"])
    yield helper.make_node("Cast", [f"{result}_nan"], [f"{result}_ones"], to=TensorProto.FLOAT)
    yield reduced("ReduceMax", f"{result}_ones", f"{result}_any")
    yield helper.make_node("Cast", [f"{result}_any"], [f"{result}_has"], to=TensorProto.BOOL)
    yield reduced("ReduceMean", value, f"{result}_mean")  # NaN there, in the element type
    yield reduced(node.op_type, value, f"{result}_ordered")
    yield helper.make_node("Where", [f"{result}_has", f"{result}_mean", f"{result}_ordered"], [result])


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
