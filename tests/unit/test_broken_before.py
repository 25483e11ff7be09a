"""Models that were once fused wrongly, crashed a run or came back broken, with every rule and the grouping at work."""

from __future__ import annotations

from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from plain import run_plain as run

import atcfuse
from atcfuse.diagnostics import AtcfuseError
from atcfuse.graph.inline import inline_fused
from atcfuse.graph.text import parse_graph
from atcfuse.options import Options
from atcfuse.report import validate
from atcfuse.verify.core import verify

SAMPLES = Path(__file__).parents[2] / "sample_models"
Arrays = dict[str, np.ndarray[Any, Any]]
CHIP = {"dialect": "portable", "min_saving_us": 0.0}
BARE = {"dialect": "portable", "kernels": False}

GROUP_NORM = """(float[2,8,4,6] x, float[{gamma}] g, float[{beta}] b) => (float[{out}] y)
  <int64[3] to = {{0,4,-1}}, int64[4] back = {{2,8,4,6}}, float[4] one = {{1,1,1,1}}, float[4] zero = {{0,0,0,0}}> {{
    r = Reshape(x, to)
    i = InstanceNormalization(r, one, zero)
    k = Reshape(i, back)
    m = Mul(k, g)
    y = Add(m, b)
  }}"""
NO_OP_BETWEEN = """(float[2,3,8] x, float[2,3,8] r, float[8,8] wq, float[8,8] wk, float[8,8] wv, float[8,8] wo) => (float[2,3,8] y)
  <int64[4] split = {0,0,2,4}, int64[3] merge = {0,0,8}> {
    q0 = MatMul(x, wq)
    k0 = MatMul(x, wk)
    v0 = MatMul(x, wv)
    q1 = Reshape(q0, split)
    k1 = Reshape(k0, split)
    v1 = Reshape(v0, split)
    q = Transpose<perm = [0,2,1,3]>(q1)
    k = Transpose<perm = [0,2,3,1]>(k1)
    v = Transpose<perm = [0,2,1,3]>(v1)
    a = MatMul(q, k)
    p = Softmax<axis = -1>(a)
    o = MatMul(p, v)
    t = Transpose<perm = [0,2,1,3]>(o)
    m = Reshape(t, merge)
    d = Identity(m)
    l = MatMul(d, wo)
    y = Add(l, r)
  }"""


def agree(text: str, feed: Arrays, opset: int = 17, **options: Any) -> list[str]:
    """Optimizes and compares; the fused operators, hashes left out."""
    model = parse_graph(text, opset)
    result = atcfuse.optimize(model, Options(**{**CHIP, **options}))
    for wanted, got in zip(run(model, feed), run(result.model, feed), strict=True):
        assert got.shape == wanted.shape
        np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=2e-5)
    ops = sorted(n.op_type for n in result.model.graph.node if n.domain == "atcfuse")
    return ["FusedElementwise" if op.startswith("FusedElementwise") else op for op in ops]


def ones(**shapes: tuple[int, ...]) -> Arrays:
    rng = np.random.default_rng(0)
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


@pytest.mark.parametrize(
    ("gamma", "beta", "out", "fuses"),
    [("8,1,1", "8,1,1", "2,8,4,6", True), ("1,1,8,1,1", "8,1,1", "1,2,8,4,6", False)],
)
def test_scale_and_shift_do_not_change_the_rank_of_a_group_norm(gamma: str, beta: str, out: str, fuses: bool) -> None:
    shapes = {name: tuple(map(int, text.split(","))) for name, text in (("g", gamma), ("b", beta))}
    text = GROUP_NORM.format(gamma=gamma, beta=beta, out=out)
    assert ("FusedGroupNormSilu" in agree(text, ones(x=(2, 8, 4, 6), **shapes))) is fuses


@pytest.mark.parametrize("batch", [0, 2])
def test_a_group_norm_takes_an_empty_batch(batch: int) -> None:
    text = """(float[N,4,W] x, float[4,1] g, float[4,1] b) => (float[N,4,W] y)
      <float[4] one = {1,1,1,1}, float[4] zero = {0,0,0,0}> {
        i = InstanceNormalization(x, one, zero)
        m = Mul(i, g)
        y = Add(m, b)
      }"""
    assert agree(text, ones(x=(batch, 4, 6), g=(4, 1), b=(4, 1))) == ["FusedGroupNormSilu"]


@pytest.mark.parametrize("bounds", ["low", ", high", "low, high"])
@pytest.mark.parametrize("options", [CHIP, BARE])
def test_clip_makes_infinities_finite_where_it_has_no_bound(bounds: str, options: dict[str, Any]) -> None:
    text = f"""(float[2,64] s, bool[2,64] keep) => (float[2,64] y)
      <float low = {{-1e30}}, float high = {{0.0}}, float none = {{-inf}}, float nothing = {{0.0}}> {{
        m = Where(keep, s, none)
        c = Clip(m, {bounds})
        z = Mul(c, nothing)
        y = Exp(z)
      }}"""
    keep = np.arange(128).reshape(2, 64) % 3 > 0
    agree(text, {**ones(s=(2, 64)), "keep": keep}, **options)


def test_a_factor_beyond_float32_ends_no_run() -> None:
    text = """(float[2,3,8] x, float[8,6] w) => (float[2,3,6] y) <float tiny = {1e-39}> {
      p = MatMul(x, w)
      s = Div(p, tiny)
      y = Relu(s)
    }"""
    atcfuse.optimize(parse_graph(text, 17), Options(**CHIP))
    atcfuse.optimize(parse_graph(text, 17), Options(**BARE))


@pytest.mark.parametrize("alpha", ["nan", "inf"])
def test_odd_numbers_of_an_activation_stay_where_they_are(alpha: str) -> None:
    model = parse_graph("(float[2,64] x) => (float[2,64] y) { l = LeakyRelu(x) n = Neg(l) y = Exp(n) }", 17)
    model.graph.node[0].attribute.append(onnx.helper.make_attribute("alpha", float(alpha)))
    result = atcfuse.optimize(model, Options(**BARE))
    assert result.model.graph.node[0].op_type == "LeakyRelu"


def test_fused_nodes_in_bodies_are_restored_too() -> None:
    body = "{ a = Mul(x, x) b = Abs(a) %s = Exp(b) }"
    text = f"""<ir_version: 8, opset_import: ["" : 17]> g (float[2,64] x, bool c) => (float[2,64] z) {{
      r = If(c) <then_branch = yes () => (float[2,64] t) {body % "t"}, else_branch = no () => (float[2,64] e) {body % "e"}>
      n = Neg(r)
      z = Exp(n)
    }}"""
    model = onnx.parser.parse_model(text)
    fused = atcfuse.optimize(model, Options(**BARE)).model
    assert len(inline_fused(fused)) == 3
    for c in (True, False):
        feed = {**ones(x=(2, 64)), "c": np.array(c)}
        np.testing.assert_allclose(run(fused, feed)[0], run(model, feed)[0], rtol=2e-5)


def test_a_projection_behind_a_no_op_behind_attention_reads_what_attention_makes() -> None:
    shapes = {"x": (2, 3, 8), "r": (2, 3, 8), **{f"w{n}": (8, 8) for n in "qkvo"}}
    found = agree(NO_OP_BETWEEN, ones(**shapes))
    assert found == ["FusedAttention", "FusedLinear"]


@pytest.mark.parametrize("quantized", [True, False])
def test_a_norm_that_is_quantized_next_stays(quantized: bool) -> None:
    """A last bit that differs may be a whole step of a quantized value."""
    last = "q, s, z = DynamicQuantizeLinear(n)\n y = Cast<to = 1>(q)" if quantized else "y = Relu(n)"
    text = f"""(float[2,3,8] x, float[2,3,8] r, float[8] g) => (float[2,3,8] y) <float e = {{1e-6}}, float two = {{2.0}}> {{
      h = Add(x, r)
      p = Pow(h, two)
      m = ReduceMean<axes = [-1]>(p)
      v = Add(m, e)
      d = Sqrt(v)
      u = Div(h, d)
      n = Mul(u, g)
      {last}
    }}"""
    assert ("FusedAddRMSNorm" in agree(text, ones(x=(2, 3, 8), r=(2, 3, 8), g=(8,)))) is not quantized


def test_an_operand_of_unknown_type_is_no_input_of_a_group() -> None:
    text = "(float[2,64] x, float[2,64] z) => (float[2,64] y) { p = Greater(x, z) w = Where(p, x, x) y = Exp(w) }"
    model = parse_graph(text, 17)
    model.graph.input[1].type.tensor_type.elem_type = 0
    assert atcfuse.optimize(model, Options(**BARE)).model.graph.node[0].op_type == "Greater"


def test_figures_beyond_64_bits_are_cut_and_told() -> None:
    text = f"(float[{2**40},{2**40}] x) => (float[{2**40},{2**40}] y) {{ a = Abs(x) y = Exp(a) }}"
    result = atcfuse.optimize(parse_graph(text, 17), Options(**CHIP))
    assert [p for p in validate(result.report) if "files" not in p] == []
    assert result.report["summary"]["ddr_bytes_before"] == 2**63 - 1
    assert [d.code for d in result.diagnostics] == ["ATF180"]
    assert result.report["diagnostics"][-1]["code"] == "ATF180"


OVERSIZED = """{
  l = MatMul(x, w)
  t = Transpose<perm = [0,2,1]>(x)
  s = MatMul(l, t)
  a = Add(s, m)
  y = Softmax<axis = -1>(a)
}"""


@pytest.mark.parametrize("size", [10**12, 2**63, 10**400])
@pytest.mark.parametrize("soc", ["Ascend910B1", "Ascend310P3"])
def test_sizes_beyond_all_memory_are_counted_all_the_same(size: int, soc: str) -> None:
    model = parse_graph("(float[B,S,8] x, float[8,8] w, float[B,S,S] m) => (float[B,S,S] y)" + OVERSIZED, 17)
    result = atcfuse.optimize(model, Options(**{**CHIP, "soc": soc, "assume": {"B": size, "S": size}}))
    assert [p for p in validate(result.report) if "files" not in p] == []


def test_a_node_that_makes_nothing_stays() -> None:
    model = parse_graph("(float[2,8] x, float[8,8] w) => (float[2,8] y) { l = MatMul(x, w)  y = Relu(l) }", 17)
    model.graph.node.add(op_type="Print", domain="custom", name="print", input=["l"])
    model.opset_import.add(domain="custom", version=1)
    result = atcfuse.optimize(model, Options(**CHIP))
    assert [n.name for n in result.model.graph.node if n.op_type == "Print"] == ["print"]
    assert [p for p in validate(result.report) if "files" not in p] == []


def hurt_operators() -> list[Any]:
    """Every operator of three models; an ordinary run takes each in the first model that has it."""
    found, seen = [], set()  # type: list[Any], set[str]
    for name in ("bert_ts17_fp32_dynamic", "llama_dynamo18_fp32_dynamic", "gpt2_ts14_fp32_dynamic"):
        ops = sorted({node.op_type for node in onnx.load(SAMPLES / f"{name}.onnx").graph.node})
        found += [pytest.param(name, op, marks=[pytest.mark.slow] if op in seen else []) for op in ops]
        seen.update(ops)
    return found


@pytest.mark.parametrize(("name", "op"), hurt_operators())
@pytest.mark.parametrize("lost", ["outputs", "inputs"])
def test_nodes_that_lost_what_they_make_or_read_end_no_run(name: str, op: str, lost: str) -> None:
    """Such a model is not sound, and is refused with a code or left alone where it is hurt."""
    hurt = onnx.load(SAMPLES / f"{name}.onnx")
    node = next(node for node in hurt.graph.node if node.op_type == op)
    del (node.output if lost == "outputs" else node.input)[:]
    with suppress(AtcfuseError):
        atcfuse.optimize(hurt, Options(**CHIP))


@pytest.mark.parametrize("outputs", [[], [""]])
def test_nodes_of_operators_that_rules_know_stay_where_they_make_nothing(outputs: list[str]) -> None:
    model = parse_graph("(float[2,8] x) => (float[2,8] y) { a = Tanh(x)  b = Exp(a)  y = Relu(b) }", 17)
    ops = (
        "Relu",
        "Reshape",
        "Squeeze",
        "Flatten",
        "ReduceMax",
        "Add",
        "Softmax",
        "MatMul",
        "LayerNormalization",
        "Split",
    )
    for op in ops:
        model.graph.node.add(op_type=op, name=f"no {op}", input=["b", "a"], output=outputs)
    result = atcfuse.optimize(model, Options(**{**CHIP, "forced": frozenset({"all"})}))
    assert [n.name for n in result.model.graph.node if n.name.startswith("no ")] == [f"no {op}" for op in ops]


TURNED_APART = """(float[2,3,S,W] x, float[S,H] c, float[S,H] s) => (float[2,3,S,W] y) <int64[2] parts = {H, H}> {
  low, high = Split<axis = -1>(x, parts)
  lc = Mul(low, c)
  hs = Mul(high, s)
  first = Sub(lc, hs)
  hc = Mul(high, c)
  ls = Mul(low, s)
  second = Add(hc, ls)
  y = Concat<axis = -1>(first, second)
}"""


@pytest.mark.parametrize("half", [2048, 2049, 2**31, 2**61])
def test_angles_are_not_written_out_for_pairs_without_number(half: int) -> None:
    model = parse_graph(TURNED_APART.replace("W", str(2 * half)).replace("H", str(half)), 17)
    fused = [f["op"] for f in atcfuse.optimize(model, Options(**BARE)).report["fusions"]]
    assert ("FusedRotaryEmbedding" in fused) is (half <= 2048)


def test_pairs_of_unknown_number_are_left_apart() -> None:
    text = """(float[2,3,S,E] half, float[S,E] c, float[S,E] s) => (float[2,3,S,W] y)
      <int64[1] zero = {0}, int64[1] one = {1}, int64[1] end = {9999}, int64[1] last = {-1}, int64[1] two = {2}> {
      x = Concat<axis = -1>(half, half)
      even = Slice(x, zero, end, last, two)
      odd = Slice(x, one, end, last, two)
      ec = Mul(even, c)
      os = Mul(odd, s)
      first = Sub(ec, os)
      oc = Mul(odd, c)
      es = Mul(even, s)
      second = Add(oc, es)
      a = Unsqueeze(first, last)
      b = Unsqueeze(second, last)
      both = Concat<axis = -1>(a, b)
      shape = Shape(x)
      y = Reshape(both, shape)
    }"""
    assert "FusedRotaryEmbedding" not in agree(text, ones(half=(2, 3, 5, 4), c=(5, 4), s=(5, 4)), **BARE)


@pytest.mark.parametrize("op", ["Mul", "Add", "Max"])
def test_what_is_made_of_itself_over_and_over_is_looked_at_once(op: str) -> None:
    """Each step doubles the ways back to its beginning."""
    steps = "\n".join(f"v{i + 1} = {op}(v{i}, v{i})" for i in range(40))
    text = f"""(float[1,2,4,8] q, float[1,2,8,4] k, float[1,2,4,4] m, float[1,2,4,4] n) => (float[1,2,4,4] y) <float half = {{0.5}}> {{
      v0 = MatMul(m, n)
      {steps}
      s = MatMul(q, k)
      a = Add(s, v40)
      b = Add(a, n)
      c = Mul(b, half)
      y = Softmax<axis = -1>(c)
    }}"""
    atcfuse.optimize(parse_graph(text, 17), Options(**CHIP))


def test_what_fused_nodes_tell_of_shapes_lets_others_fuse_in_the_same_run() -> None:
    model = onnx.load(SAMPLES / "nanogpt_ts16_fp32_dynamic.onnx")
    constant = next(node for node in model.graph.node if node.name == "/Constant")
    constant.op_type, constant.domain = "Unheard", "custom"
    model.opset_import.add(domain="custom", version=1)
    once = atcfuse.optimize(model, Options(**CHIP)).model
    assert [n.op_type for n in once.graph.node].count("FusedLinear") == 2
    again = atcfuse.optimize(once, Options(**CHIP)).model
    assert list(again.graph.node) == list(once.graph.node)


def _without_attention(model: onnx.ModelProto) -> int:
    """Merges of heads read the split values instead of what attention made of them; how many."""
    makers = {o: n for n in model.graph.node for o in n.output}

    def below(node: onnx.NodeProto | None, op: str, position: int) -> onnx.NodeProto | None:
        maker = makers.get(node.input[position]) if node is not None else None
        return maker if maker is not None and maker.op_type == op else None

    changed = 0
    for node in [n for n in model.graph.node if n.op_type == "Reshape"]:
        values = below(below(below(node, "Transpose", 0), "MatMul", 0), "Transpose", 1)
        if values is not None:
            node.input[0] = values.input[0]
            changed += 1
    return changed


@pytest.mark.parametrize("name", ["bert_ts11_fp32_dynamic", "gpt2_ts14_fp32_dynamic", "vit_ts14_fp16_dynamic"])
def test_a_fusion_whose_operand_another_one_takes_in_waits_or_is_told(name: str, tmp_path: Path) -> None:
    model = onnx.load(SAMPLES / f"{name}.onnx")
    assert _without_attention(model) == 2
    original = deepcopy(model)
    result = atcfuse.optimize(model, Options(**CHIP, forced=frozenset({"all"})))
    assert verify(original, result.model, base_dir_original=tmp_path, base_dir_optimized=tmp_path).ok
    left = {n.name for n in result.model.graph.node if n.op_type == "Softmax"}
    assert left <= {entry["anchor"] for entry in result.report["kept"]}


def test_an_annotation_that_is_wrong_does_not_keep_runtimes_from_the_fused_node() -> None:
    text = NO_OP_BETWEEN.replace("float[8,8] wk", "float[1,1,8,8] wk").replace("split = {0,0,2,4}", "split = {2,3,2,4}")
    model = parse_graph(text, 17)
    model.graph.value_info.append(onnx.helper.make_tensor_value_info("k0", onnx.TensorProto.FLOAT, [2, 3, 8]))
    model.graph.value_info.append(onnx.helper.make_tensor_value_info("q0", onnx.TensorProto.FLOAT, [2, 3, 8]))
    source = np.random.default_rng(0)
    feed = {
        i.name: source.standard_normal([d.dim_value for d in i.type.tensor_type.shape.dim], np.float32)
        for i in model.graph.input
    }
    before = run(model, feed)
    result = atcfuse.optimize(model, Options(**BARE)).model
    assert [v.name for v in result.graph.value_info] == ["q0"]
    assert "FusedAttention" in [n.op_type for n in result.graph.node]
    assert all(np.allclose(a, b, atol=1e-5) for a, b in zip(before, run(result, feed), strict=True))


@pytest.mark.parametrize("shape", ["2,3,0", "0,3,4", "2,0,4"])
def test_attention_of_empty_tensors_is_costed(shape: str) -> None:
    rest = shape.rpartition(",")[0]
    proto = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]> g
      (float[{shape},8] q, float[{rest},5,8] k, float[{rest},5,8] v) => (float[{shape},8] y) {{
        t = Transpose<perm = [0, 1, 3, 2]>(k)
        a = MatMul(q, t)
        p = Softmax<axis = -1>(a)
        y = MatMul(p, v)
      }}""")
    result = atcfuse.optimize(deepcopy(proto), **CHIP)
    feed = {
        v.name: np.zeros([d.dim_value for d in v.type.tensor_type.shape.dim], np.float32) for v in proto.graph.input
    }
    for found, expected in zip(run(result.model, feed), run(proto, feed), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_a_product_without_columns_is_costed() -> None:
    proto = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]> g
      (float[2,3,8] x, float[8,0] w) => (float[2,3,0] y) { y = MatMul(x, w) }""")
    result = atcfuse.optimize(proto, **CHIP)
    assert [n.op_type for n in result.model.graph.node] == ["MatMul"]
