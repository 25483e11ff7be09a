"""What a fusion does not touch stays byte for byte as it was."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

from atcfuse.compiler import optimize_proto, toolbox
from atcfuse.options import Options

ATTENTION = """
<ir_version: 8, opset_import: ["" : 17, "other" : 3], producer_name: "exporter", producer_version: "9",
 model_version: 7, doc_string: "a model", metadata_props: ["author" : "me", "n" : "1"]>
g (float[2,4,32] x, float[32] gamma, float[8] spare) => (float[2,4,32] y, float[8] other, int64[3] shape)
  <float[32,32] wq = {%(zeros)s}, float[32,32] wk = {%(zeros)s}, float[32,32] wv = {%(zeros)s}, float[32] unused = {%(row)s},
   int64[4] heads = {2,4,4,8}, int64[3] back = {2,4,32}, float scale = {2.0}>
{
  extra = other.Custom <blob = "raw"> (spare)
  before = Relu (spare)
  other = Neg (before)
  q = MatMul (x, wq)
  shape = Shape (x)
  k = MatMul (x, wk)
  v = MatMul (x, wv)
  qr = Reshape (q, heads)
  qh = Transpose <perm = [0, 2, 1, 3]> (qr)
  kr = Reshape (k, heads)
  kh = Transpose <perm = [0, 2, 3, 1]> (kr)
  vr = Reshape (v, heads)
  vh = Transpose <perm = [0, 2, 1, 3]> (vr)
  s = MatMul (qh, kh)
  d = Div (s, scale)
  p = Softmax <axis = -1> (d)
  o = MatMul (p, vh)
  ot = Transpose <perm = [0, 2, 1, 3]> (o)
  y = Reshape (ot, back)
}
"""


ONLY_RULES = frozenset({"elementwise", "qkv", "qkv_pair"})


def rich_model() -> onnx.ModelProto:
    """An attention among everything that a lossy round trip would drop."""
    zeros = ",".join(["0.0"] * 1024)
    model = parser.parse_model(ATTENTION % {"zeros": zeros, "row": ",".join(["1.0"] * 32)})
    graph = model.graph
    graph.doc_string = "a graph"
    for number, node in enumerate(graph.node):
        node.name = f"{node.op_type}_{number}"
        node.doc_string = f"written by hand {number}"
        entry = node.metadata_props.add()
        entry.key, entry.value = "scope", f"layer/{number}"
    note = graph.quantization_annotation.add()
    note.tensor_name = "q"
    pair = note.quant_parameter_tensor_names.add()
    pair.key, pair.value = "SCALE_TENSOR", "scale"
    graph.value_info.extend([helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in
                             (("q", [2, 4, 32]), ("s", [2, 2, 4, 4]), ("before", [8]))])  # fmt: skip
    graph.value_info[0].doc_string = "kept"
    graph.input[0].doc_string = "tokens"
    graph.input[0].type.denotation = "TENSOR"
    entry = graph.metadata_props.add()
    entry.key, entry.value = "g", "h"
    sparse = graph.sparse_initializer.add()
    sparse.values.CopyFrom(numpy_helper.from_array(np.ones(1, np.float32), "sparse"))
    sparse.indices.CopyFrom(numpy_helper.from_array(np.zeros(1, np.int64), "sparse_indices"))
    sparse.dims.append(4)
    training = model.training_info.add()
    training.algorithm.name = "none"
    local = parser.parse_function('<domain: "mine", opset_import: ["" : 17]> F (a) => (b) { b = Relu (a) }')
    model.functions.append(local)
    return model


def fused(dialect: str) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    before = rich_model()
    after = onnx.ModelProto()
    after.CopyFrom(before)
    result = optimize_proto(after, toolbox(Options(dialect=dialect, disabled=ONLY_RULES)))  # type: ignore[arg-type]
    assert [f["op"] for f in result.report["fusions"]] == ["FusedAttention"]
    return before, after


def test_untouched_nodes_are_byte_identical_and_in_order() -> None:
    before, after = fused("portable")
    untouched = [n.SerializeToString() for n in after.graph.node if n.domain != "atcfuse"]
    originals = [n.SerializeToString() for n in before.graph.node]
    positions = [originals.index(n) for n in untouched]
    assert positions == sorted(positions)
    assert [n.op_type for n in after.graph.node] == [
        "Custom", "Relu", "Neg", "MatMul", "Shape", "MatMul", "MatMul", "FusedAttention",
    ]  # fmt: skip


def test_model_and_graph_fields_survive() -> None:
    before, after = fused("portable")
    for name in ("producer_name", "producer_version", "model_version", "doc_string", "metadata_props", "training_info"):
        assert getattr(after, name) == getattr(before, name), name
    for name in ("input", "output", "doc_string", "quantization_annotation", "sparse_initializer", "metadata_props"):
        assert getattr(after.graph, name) == getattr(before.graph, name), name
    assert after.functions[0] == before.functions[0]
    assert list(after.opset_import)[: len(before.opset_import)] == list(before.opset_import)


def test_only_vanished_values_lose_their_annotation() -> None:
    before, after = fused("portable")
    assert [v.name for v in after.graph.value_info] == ["q", "before"]
    assert after.graph.value_info[0] == before.graph.value_info[0]


def test_initializers_keep_their_order_and_bytes_and_only_ours_go() -> None:
    before, after = fused("portable")
    kept = [t.name for t in after.graph.initializer]
    assert kept == ["wq", "wk", "wv", "unused"]
    originals = {t.name: t.SerializeToString() for t in before.graph.initializer}
    assert all(t.SerializeToString() == originals[t.name] for t in after.graph.initializer)


@pytest.mark.parametrize("dialect", ["atc", "atc-flat", "portable"])
def test_a_second_run_changes_nothing(dialect: str) -> None:
    _, after = fused(dialect)
    once = after.SerializeToString(deterministic=True)
    optimize_proto(after, toolbox(Options(dialect=dialect, disabled=ONLY_RULES)))  # type: ignore[arg-type]
    assert after.SerializeToString(deterministic=True) == once


def test_several_outputs_move_as_little_as_possible() -> None:
    row = ",".join(["0.5"] * 16)
    model = parser.parse_model(f"""
<ir_version: 8, opset_import: ["" : 17]>
g (float[2,4] x) => (float[2,4] a, float[2,4] b, float[2,4] c)
  <float[4] gamma = {{1.0,2.0,3.0,4.0}}, float[4] beta = {{0.0,0.0,0.0,0.0}}, float[4,4] w = {{{row}}},
   float[4,4] u = {{{row}}}>
{{
  first = Abs (x)
  n = LayerNormalization (first, gamma, beta)
  p = MatMul (n, w)
  a = Relu (p)
  b = Neg (a)
  q = MatMul (n, u)
  c = Exp (q)
}}""")
    optimize_proto(model, toolbox(Options(dialect="portable", disabled=ONLY_RULES | {"layernorm_dropout_linear"})))
    assert [n.op_type for n in model.graph.node] == ["Abs", "FusedLayerNormQKV", "Relu", "Neg", "Exp"]
    onnx.checker.check_model(model)
