"""What a model's graph was like, to go back to: nodes and declarations are copied, tensors are not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx

from atcfuse.graph.index import Model


@dataclass(frozen=True)
class Snapshot:
    """The main graph of a model with all bodies, before edits that may have to be undone."""

    nodes: Sequence[onnx.NodeProto]
    infos: Sequence[onnx.ValueInfoProto]
    inputs: Sequence[onnx.ValueInfoProto]
    tensors: Sequence[onnx.TensorProto]
    functions: int

    @staticmethod
    def of(model: Model, *, is_replaced: bool = False) -> Snapshot:
        """The model as it is now. Its nodes need no copies where others take their place at once (`is_replaced`)."""
        graph = model.proto.graph
        nodes = [node.proto for node in model.main.nodes] if is_replaced else onnx.GraphProto(node=graph.node).node
        copied = onnx.GraphProto(value_info=graph.value_info, input=graph.input)
        tensors, functions = list(graph.initializer), len(model.proto.functions)
        return Snapshot(list(nodes), list(copied.value_info), list(copied.input), tensors, functions)

    def restore(self, proto: onnx.ModelProto) -> None:
        """Puts the model back, in place. Tensors are copied only where edits dropped or added some."""
        graph = proto.graph
        for field, kept in ((graph.node, self.nodes), (graph.value_info, self.infos), (graph.input, self.inputs)):
            del field[:]
            field.extend(kept)
        if [t.name for t in graph.initializer] != [t.name for t in self.tensors]:
            tensors = onnx.GraphProto(initializer=self.tensors)
            del graph.initializer[:]
            graph.initializer.extend(tensors.initializer)
        del proto.functions[self.functions :]
