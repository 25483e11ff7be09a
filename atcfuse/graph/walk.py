"""Every node list of a model: the main graph, training graphs, functions, and the bodies nested in any of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, cast

from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, SparseTensorProto, TensorProto

Owner = Literal["main", "training", "function"]

_GRAPHS = (AttributeProto.GRAPH, AttributeProto.GRAPHS)
_TENSORS = (AttributeProto.TENSOR, AttributeProto.TENSORS)
_SPARSE = (AttributeProto.SPARSE_TENSOR, AttributeProto.SPARSE_TENSORS)
_HOLDERS = frozenset(_GRAPHS + _TENSORS + _SPARSE)


@dataclass(frozen=True)
class Block:
    """One node list: `graph` is None for a function's own list; `depth` counts the bodies around it.

    `attributes` are those of all nodes, `tensors` those of initializers and attributes, sparse ones as their values and
    indices.
    """

    owner: Owner
    nodes: Sequence[NodeProto]
    graph: GraphProto | None
    depth: int
    attributes: list[AttributeProto] = field(default_factory=list)
    tensors: list[TensorProto] = field(default_factory=list)
    bodies: list[GraphProto] = field(default_factory=list)


def blocks(model: ModelProto) -> Iterator[Block]:
    """All node lists, each before the bodies nested in it; the main graph first. Never recurses."""
    yield from _nested("main", model.graph)
    for training in model.training_info:
        yield from _nested("training", training.initialization)
        yield from _nested("training", training.algorithm)
    for function in model.functions:
        own = _block("function", cast("Sequence[NodeProto]", function.node), None, 0)
        yield own
        for body in own.bodies:
            yield from _nested("function", body, 1)


def _nested(owner: Owner, root: GraphProto, depth: int = 0) -> Iterator[Block]:
    stack = [(root, depth)]
    while stack:
        graph, level = stack.pop()
        block = _block(owner, cast("Sequence[NodeProto]", graph.node), graph, level)
        yield block
        stack.extend((body, level + 1) for body in reversed(block.bodies))


def _block(owner: Owner, nodes: Sequence[NodeProto], graph: GraphProto | None, depth: int) -> Block:
    block = Block(owner, nodes, graph, depth)
    if graph is not None:
        block.tensors.extend(graph.initializer)
        for sparse in graph.sparse_initializer:
            block.tensors.extend(_parts(sparse))
    block.attributes.extend([attribute for node in nodes for attribute in node.attribute])
    for attribute in block.attributes:
        if attribute.type in _HOLDERS:
            _open(attribute, block)
    return block


def _open(attribute: AttributeProto, block: Block) -> None:
    kind = attribute.type
    if kind == AttributeProto.GRAPH:
        block.bodies.append(attribute.g)
    elif kind == AttributeProto.GRAPHS:
        block.bodies.extend(attribute.graphs)
    elif kind == AttributeProto.TENSOR:
        block.tensors.append(attribute.t)
    elif kind == AttributeProto.TENSORS:
        block.tensors.extend(attribute.tensors)
    elif kind == AttributeProto.SPARSE_TENSOR:
        block.tensors.extend(_parts(attribute.sparse_tensor))
    else:
        block.tensors.extend(part for sparse in attribute.sparse_tensors for part in _parts(sparse))


def _parts(sparse: SparseTensorProto) -> list[TensorProto]:
    return [sparse.values, sparse.indices]
