"""Element-wise groups in whole models: the same bits as before, no cycle, nothing left for a second run."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest
from elementwise_models import FLOAT, FLOAT16, random_model
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from onnx import ModelProto, TensorProto, parser
from onnx.reference import ReferenceEvaluator
from plain import run_plain as run

from atcfuse import safety
from atcfuse.artifacts import model_project
from atcfuse.autofuse import RULE, Limits, find_fusions
from atcfuse.compiler import Result, optimize_proto, toolbox
from atcfuse.elementwise import parse_expression
from atcfuse.graph.index import Model
from atcfuse.graph.infer import infer
from atcfuse.graph.traffic import Remembered
from atcfuse.options import Options
from atcfuse.restore import restore
from atcfuse.run import Toolbox
from atcfuse.switches import NO_SWITCHES

SEEDS = st.integers(0, 2**32 - 1)


@lru_cache(maxsize=8)
def tools(**changes: object) -> Toolbox:
    return toolbox(replace(Options(dialect="portable", kernels=False), **changes))  # type: ignore[arg-type]


def optimized(model: ModelProto, using: Toolbox | None = None) -> Result:
    return optimize_proto(copy.deepcopy(model), using or tools())


def interpret(model: ModelProto, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """By ONNX's own interpreter: onnxruntime computes chains of half in float, and drops roundings as it likes."""
    known = {i.name for i in model.graph.input}
    with np.errstate(all="ignore"):
        found = ReferenceEvaluator(model).run(None, {k: v for k, v in inputs.items() if k in known})
    return list(found)


def assert_same(
    original: ModelProto, changed: ModelProto, inputs: Mapping[str, np.ndarray], half: bool = False
) -> None:
    compute = interpret if half else run
    for a, b in zip(compute(original, inputs), compute(changed, inputs), strict=True):
        np.testing.assert_array_equal(a, b)


def fused_ops(model: ModelProto) -> list[str]:
    return [n.op_type for n in model.graph.node if n.domain == "atcfuse"]


def parsed(text: str, opset: int = 17) -> ModelProto:
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]> {text}')
    for at, node in enumerate(model.graph.node):
        node.name = node.name or f"{node.op_type}_{at}"
    return model


CHAIN = """chain (float[batch,3,64] x, float[64] b) => (float[batch,3,64] y) <float two = {2.0}> {
  a = Add(x, b)
  m = Mul(a, two)
  y = Sigmoid(m)
}"""


SEVERAL = """several (float[batch,64] x, float[batch,64] z, float[64] b, float low, float high) => (float[batch,64] y) {
  m = Max(x, z, b)
  s = Sum(m, x, z, b)
  c = Clip(s, low, high)
  p = Clip(m, , high)
  q = Min(c, p, z, x)
  y = Tanh(q)
}"""


@pytest.mark.parametrize("opset", [12, 17])
def test_operands_beyond_two_and_bounds_that_are_values_are_steps(opset: int) -> None:
    model = parsed(SEVERAL, opset)
    result = optimized(model, alone())
    assert fused_ops(result.model) == [n.op_type for n in result.model.graph.node]
    assert len(result.model.graph.node) == 1
    source = np.random.default_rng(0)
    inputs = {n: source.normal(size=s).astype(np.float32) for n, s in (("x", (3, 64)), ("z", (3, 64)), ("b", 64))}
    for low, high in ((-0.5, 0.25), (0.5, -0.25), (-np.inf, 0.0)):
        bounds = {"low": np.float32(low), "high": np.float32(high)}
        assert_same(model, result.model, {**inputs, **{k: np.asarray(v) for k, v in bounds.items()}})


@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=SEEDS, half=st.booleans())
@example(seed=489085, half=False)  # two casts that are a no-op together, read by another piece
def test_random_models_keep_every_bit_and_come_out_unchanged(seed: int, half: bool) -> None:
    check_random(seed, FLOAT16 if half else FLOAT)


@pytest.mark.slow
@settings(max_examples=4000, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=SEEDS, half=st.booleans())
def test_thousands_of_random_models(seed: int, half: bool) -> None:
    check_random(seed, FLOAT16 if half else FLOAT)


def alone() -> Toolbox:
    """Element-wise groups and nothing else: other kernels round less in between."""
    return tools(disabled=frozenset(rule.name for rule in tools().book.rules) - {"elementwise"})


def check_random(seed: int, dtype: int) -> None:
    model, inputs = random_model(seed, dtype)
    first = optimized(model, alone())
    assert_same(model, first.model, inputs, dtype == FLOAT16)
    again = optimized(first.model, alone())
    assert again.model.SerializeToString() == first.model.SerializeToString()
    assert_same(model, restore(first.model), inputs, dtype == FLOAT16)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=SEEDS)
@example(seed=121049383)  # a no-op of one piece whose reader is in another
def test_every_group_alone_is_safe(seed: int) -> None:
    model = Model(random_model(seed, steps=40)[0])
    infer(model)
    spec = tools().kernels["elementwise"]
    for fusion in find_fusions(model.main, spec, Limits(), Remembered()):
        match = fusion.match
        inputs = [str(v) for v in fusion.inputs]
        violation, _ = safety.check(model.main, match.members, match.outputs, inputs, frozenset(inputs))
        assert violation is None
        assert len(fusion.inputs) <= 8
        assert 1 <= len(match.outputs) <= 4


def test_random_models_are_fused_at_all() -> None:
    counts = [len(fused_ops(optimized(random_model(seed)[0]).model)) for seed in range(20)]
    assert min(counts) >= 1
    assert sum(counts) >= 30


def test_a_chain_is_one_node_with_its_expression() -> None:
    result = optimized(parsed(CHAIN))
    (node,) = result.model.graph.node
    assert node.op_type.startswith("FusedElementwise")
    assert len(node.op_type) == len("FusedElementwise") + 10
    assert {a.name: a.s.decode() for a in node.attribute} == {
        "expression": "columns 1; x1: float32 full; x2: float32 row; t1: float32 = Add(x1, x2); "
        "t2: float32 = Mul(t1, 0x1.0000000000000p+1); t3: float32 = Sigmoid(t2); out t3"
    }
    (entry,) = result.report["fusions"]
    assert entry["rule"] == "elementwise"
    assert entry["op"] == node.op_type
    assert entry["launches_saved"] == 2


def layers(count: int, scale: float = 2.0) -> ModelProto:
    body = ["x0 = Add(x, b)\n  h0 = MatMul(x0, w)"]
    for i in range(count):
        body += [f"a{i} = Mul(h{i}, s)", f"e{i} = Erf(a{i})", f"g{i} = Mul(e{i}, h{i})", f"h{i + 1} = MatMul(g{i}, w)"]
    head = f"(float[4,8] x, float[8] b, float[8,8] w) => (float[4,8] h{count}) <float s = {{{scale}}}>"
    return parsed(f"layers {head} {{\n  " + "\n  ".join(body) + "\n}")


def test_the_same_group_in_every_layer_is_one_operator() -> None:
    ops = fused_ops(optimized(layers(5)).model)
    assert len(ops) == 5
    assert len(set(ops)) == 1


def test_another_constant_is_another_operator() -> None:
    one, other = (fused_ops(optimized(layers(1, scale)).model) for scale in (2.0, 3.0))
    assert one != other


def test_sizes_and_names_are_in_no_operator() -> None:
    renamed = CHAIN.replace("64", "32").replace("a = ", "q = ").replace("Mul(a", "Mul(q").replace("chain", "other")
    assert fused_ops(optimized(parsed(CHAIN)).model) == fused_ops(optimized(parsed(renamed)).model)


DIAMOND = """diamond (float[4,8] x, float[8,8] w) => (float[4,8] y) {
  a = Relu(x)
  b = Exp(a)
  m = MatMul(b, w)
  c = Tanh(a)
  y = Add(m, c)
}"""


def test_a_path_that_leaves_and_comes_back_splits_the_group() -> None:
    model = parsed(DIAMOND)
    result = optimized(model, alone()).model
    (fused,) = [n for n in result.graph.node if n.domain == "atcfuse"]
    assert set(fused.output) == {"b", "c"}
    assert Counter(n.op_type for n in result.graph.node if not n.domain) == {"MatMul": 1, "Add": 1}
    assert_same(model, result, {"x": np.ones((4, 8), np.float32), "w": np.eye(8, dtype=np.float32)})


def test_two_that_read_one_value_are_one_kernel() -> None:
    """As the sine and cosine of rotary angles, or the activations of a gate."""
    model = parsed("""angles (float[4,8] x, float[8,8] w) => (float[4,8] s, float[4,8] c) {
      m = MatMul(x, w)
      s = Sin(m)
      c = Cos(m)
    }""")
    result = optimized(model, alone()).model
    (fused,) = [n for n in result.graph.node if n.domain]
    assert set(fused.output) == {"s", "c"}
    assert_same(model, result, {"x": np.ones((4, 8), np.float32), "w": np.eye(8, dtype=np.float32)})


def test_two_that_read_one_value_stay_apart_where_one_waits_for_the_other() -> None:
    model = parsed("""waits (float[4,8] x, float[8,8] w) => (float[4,8] y) {
      m = MatMul(x, w)
      s = Sin(m)
      p = MatMul(s, w)
      y = Sub(m, p)
    }""")
    assert not fused_ops(optimized(model, alone()).model)


def test_values_read_elsewhere_become_outputs() -> None:
    model = parsed("""several (float[4,8] x) => (float[4,8] y, float[4,8] a) {
      a = Relu(x)
      b = Exp(a)
      y = Tanh(b)
    }""")
    (node,) = optimized(model).model.graph.node
    assert list(node.output) == ["a", "y"]


def test_a_shape_of_an_inner_value_is_read_from_an_operand() -> None:
    model = parsed("""shapes (float[batch,8] x) => (float[batch,8] y, int64[2] s) {
      a = Relu(x)
      s = Shape(a)
      b = Exp(a)
      y = Tanh(b)
    }""")
    result = optimized(model).model
    (node,) = [n for n in result.graph.node if n.domain == "atcfuse"]
    assert list(node.output) == ["y"]
    assert_same(model, result, {"x": np.ones((3, 8), np.float32)})


def test_host_arithmetic_on_shapes_is_left_alone() -> None:
    model = parsed("""host (float[batch,8] x) => (int64[2] y) <int64 two = {2}> {
      s = Shape(x)
      a = Mul(s, two)
      b = Add(a, two)
      y = Sub(b, s)
    }""")
    assert not fused_ops(optimized(model).model)


def test_broadcasts_that_no_kernel_knows_end_the_group() -> None:
    model = parsed("""apart (float[2,3,4,5] x, float[2,1,4,1] c, float[1,1,1,5] r) => (float[2,3,4,5] y) {
      a = Mul(x, c)
      b = Relu(a)
      y = Add(b, r)
    }""")
    result = optimized(model).model
    assert next(n.op_type for n in result.graph.node) == "Mul"
    assert len(fused_ops(result)) == 1


MASK = """mask (bool[batch,1,1,keys] pad, bool[1,1,queries,1] seen, float[batch,heads,queries,keys] x)
=> (float[batch,heads,queries,keys] y) <float low = {-10000.0}, float zero = {0.0}> {
  both = And(pad, seen)
  bias = Where(both, zero, low)
  y = Add(x, bias)
}"""


@pytest.mark.parametrize(
    ("shapes", "kinds"),
    [
        (("batch,1,1,keys", "1,1,queries,1"), ["batch_row", "shared_column"]),
        (("batch,1,1,1", "1,1,queries,keys"), ["column", "row"]),
        (("batch,1,queries,1", "keys"), ["column", "row"]),
    ],
)
def test_broadcasts_along_axes_in_the_middle(shapes: tuple[str, str], kinds: list[str]) -> None:
    text = MASK.replace("batch,1,1,keys", shapes[0]).replace("bool[1,1,queries,1]", f"bool[{shapes[1]}]")
    text = text.replace("batch,heads,queries,keys", "batch,1,queries,keys")
    model = parsed(text)
    result = optimized(model).model
    sizes = {"batch": 2, "queries": 3, "keys": 4, "1": 1}
    pad, seen = (tuple(sizes[d] for d in shape.split(",")) for shape in shapes)
    source = np.random.default_rng(1)
    x = source.normal(size=(2, 1, 3, 4)).astype(np.float32)
    assert_same(model, result, {"pad": source.random(pad) > 0.5, "seen": source.random(seen) > 0.5, "x": x})
    first, *others = result.graph.node
    assert not others
    expression = parse_expression(first.attribute[0].s.decode())
    assert [given.kind for given in expression.inputs][:2] == kinds


PREPARED = """prepared (int64[batch,keys] pad, int64[queries] at, float[batch,1,queries,keys] x)
=> (float[batch,1,queries,keys] y)
<float one = {1.0}, float low = {-10000.0}, int64 least = {2}, int64[2] first = {1, 2}, int64[3] last = {0, 1, 3}, float zero = {0.0}> {
  wide = Unsqueeze(pad, first)
  f = Cast<to = 1>(wide)
  s = Sub(one, f)
  m = Mul(s, low)
  column = Unsqueeze(at, last)
  seen = GreaterOrEqual(column, least)
  masked = Where(seen, x, zero)
  y = Add(masked, m)
}"""


def test_what_prepares_an_operand_is_computed_where_it_is_broadcast() -> None:
    """A padding mask and a comparison of positions: cheap, and nobody else reads them."""
    model = parsed(PREPARED)
    result = optimized(model, alone())
    (node,) = [n for n in result.model.graph.node if n.domain]
    expression = parse_expression(node.attribute[0].s.decode())
    assert [given.kind for given in expression.inputs] == ["batch_row", "shared_column", "full"]
    assert [n.op_type for n in result.model.graph.node if not n.domain] == ["Unsqueeze", "Unsqueeze"]
    x = np.random.default_rng(0).normal(size=(2, 1, 4, 5)).astype(np.float32)
    assert_same(model, result.model, {"pad": np.arange(10).reshape(2, 5) % 2, "at": np.arange(4), "x": x})


@pytest.mark.parametrize(
    ("before", "after", "groups"),
    [
        ("y = Add(masked, m)", "z = Add(masked, m)\n y = Add(z, m)", 3),
        ("m = Mul(s, low)", "t = Mul(s, low)\n m = Exp(t)", 2),
    ],
)
def test_what_others_read_or_what_is_dear_is_computed_once(before: str, after: str, groups: int) -> None:
    model = parsed(PREPARED.replace(before, after))
    result = optimized(model, alone())
    assert len(fused_ops(result.model)) == groups
    x = np.random.default_rng(0).normal(size=(2, 1, 4, 5)).astype(np.float32)
    assert_same(model, result.model, {"pad": np.arange(10).reshape(2, 5) % 2, "at": np.arange(4), "x": x})


def test_the_start_of_a_table_is_as_long_as_what_it_is_added_to() -> None:
    """A slice of a table of 64 rows has as many as there are positions, or the model fails by itself."""
    model = parsed("""positions (float[batch,sequence,8] x, float[batch,sequence,8] z, float[1,64,8] table)
    => (float[batch,sequence,8] y) <int64[1] zero = {0}, int64[1] one = {1}> {
      s = Shape<start = 1, end = 2>(x)
      p = Slice(table, zero, s, one)
      a = Add(x, z)
      y = Add(a, p)
    }""")
    result = optimized(model).model
    (node,) = [n for n in result.graph.node if n.domain]
    assert "x3: float32 row" in node.attribute[0].s.decode()
    inputs = {"x": np.ones((2, 5, 8)), "z": np.zeros((2, 5, 8)), "table": np.arange(512).reshape(1, 64, 8)}
    assert_same(model, result, {k: v.astype(np.float32) for k, v in inputs.items()})


def test_a_constant_that_makes_the_shape_is_an_operand_that_stays() -> None:
    model = parsed("""raises (float[3] x) => (float[1,3] y, float[1,3] z) <float[1,1] one = {1.0}> {
      a = Add(x, one)
      y = Exp(a)
      z = Tanh(y)
    }""")
    result = optimized(model).model
    assert "Add" in [n.op_type for n in result.graph.node]
    assert_same(model, result, {"x": np.ones(3, np.float32)})


@pytest.mark.parametrize(
    ("changes", "code"),
    [({"disabled": frozenset({"elementwise"})}, "ATF321"), ({"keep_all": True}, "ATF322")],
)
def test_what_turns_rules_off_turns_the_grouping_off(changes: dict[str, object], code: str) -> None:
    result = optimized(parsed(CHAIN), tools(**changes))
    assert not result.report["fusions"]
    assert [k["code"] for k in result.report["kept"] if k["rule"] == "elementwise"] == [code]
    told = result.report["rules"]["elementwise"]
    assert (told["switch"], told["match_times"], told["effect_times"]) == ("off", 1, 0)


def test_a_node_left_alone_is_no_step() -> None:
    result = optimized(parsed(CHAIN), tools(keep_nodes=("Mul_1",)))
    assert not result.report["fusions"]
    told = [(k["anchor"], k["code"]) for k in result.report["kept"] if k["rule"] == "elementwise"]
    assert told == [("Mul_1", "ATF325")]


def test_what_does_not_pay_is_kept_with_its_figures() -> None:
    using = tools(kernels=True, min_saving_us=1000.0)
    result = optimized(parsed(CHAIN), using)
    assert [k["code"] for k in result.report["kept"] if k["rule"] == "elementwise"] == ["ATF330"]
    forced = optimized(parsed(CHAIN), tools(kernels=True, min_saving_us=1000.0, forced=frozenset({"elementwise"})))
    assert len(forced.report["fusions"]) == 1


def test_long_chains_end_at_the_instruction_cache() -> None:
    lines = "\n".join(f"v{i + 1} = {'Tanh' if i % 2 else 'Neg'}(v{i})" for i in range(300))
    model = parsed(f"long (float[4,8] v0) => (float[4,8] v300) {{ {lines} }}")
    result = optimized(model, tools(kernels=True))
    assert not [k for k in result.report["kept"] if k["code"] == "ATF332"]
    assert 2 < len(fused_ops(result.model)) < 20
    assert len(result.model.graph.node) == len(fused_ops(result.model))


def test_a_chip_without_kernels_keeps_everything() -> None:
    result = optimized(parsed(CHAIN), tools(kernels=True, soc="Ascend910A"))
    assert [k["code"] for k in result.report["kept"] if k["rule"] == "elementwise"] == ["ATF336"]


def test_310p_takes_rows_of_whole_blocks_only() -> None:
    whole = optimized(parsed(CHAIN), tools(kernels=True, soc="Ascend310P3"))
    ragged = optimized(parsed(CHAIN.replace("64", "65")), tools(kernels=True, soc="Ascend310P3"))
    assert len(whole.report["fusions"]) == 1
    assert [f["nodes"] for f in ragged.report["fusions"]] == [["Mul_1", "Sigmoid_2"]]


def test_310p_takes_tensors_only_that_are_surely_a_block_long() -> None:
    """A kernel that refuses a size when the model runs would be worse than none."""
    text = "few (float[batch,1,1,keys] x) => (float[batch,1,1,keys] y) { a = Neg(x) \n y = Exp(a) }"
    using = tools(kernels=True, soc="Ascend310P3")
    assert not optimized(parsed(text), using).report["fusions"]
    assert len(optimized(parsed(text.replace("1,1", "1,32")), using).report["fusions"]) == 1


def test_the_rule_has_a_switch_of_its_own() -> None:
    assert RULE.switch == "FusedElementwiseFusionPass"
    assert RULE.switch_kind == "UBFusion"
    assert tools().switches is NO_SWITCHES
    assert tools().book.rules[-1] is RULE


def test_clip_and_power_take_constants_only() -> None:
    model = parsed("""functions (float[4,8] x, float e) => (float[4,8] y) <float lo = {0.5}, float three = {3.0}> {
      a = Clip(x, lo)
      b = Pow(a, three)
      c = Pow(b, e)
      y = Relu(c)
    }""")
    result = optimized(model).model
    assert [n.op_type[:3] for n in result.graph.node] == ["Fus", "Pow", "Rel"]
    assert_same(
        model, result, {"x": np.linspace(-1, 2, 32, dtype=np.float32).reshape(4, 8), "e": np.array(1.5, np.float32)}
    )


def test_old_opsets_write_bounds_as_attributes() -> None:
    model = parsed("old (float[4,8] x) => (float[4,8] y) { a = Clip<min = -1.0, max = 0.5>(x) \n y = Neg(a) }", 10)
    result = optimized(model).model
    assert len(fused_ops(result)) == 1
    assert_same(model, result, {"x": np.linspace(-3, 3, 32, dtype=np.float32).reshape(4, 8)})


def outputs_of(model: ModelProto) -> Sequence[str]:
    return [o.name for o in model.graph.output]


def test_types_of_outputs_follow_the_expression() -> None:
    model = parsed("masks (float[4,8] x) => (bool[4,8] y) <float zero = {0.0}> { a = Neg(x) \n y = Less(a, zero) }")
    result = optimized(model, tools(kernels=True, forced=frozenset({"elementwise"})))
    assert len(fused_ops(result.model)) == 1
    assert result.model.graph.output[0].type.tensor_type.elem_type == TensorProto.BOOL
    assert outputs_of(result.model) == ["y"]


INTEGERS = """mask (int64[batch,64] ids, float[batch,64] x) => (float[batch,64] y, bool[batch,64] pad)
<int64 one = {1}, float unit = {1.0}, float low = {-10000.0}> {
  f = Cast<to = 1>(ids)
  s = Sub(unit, f)
  m = Mul(s, low)
  pad = Equal(ids, one)
  w = Where(pad, low, m)
  y = Add(w, x)
}"""


def test_integers_are_cast_and_compared_with_constants() -> None:
    model = parsed(INTEGERS)
    result = optimized(model)
    (node,) = result.model.graph.node
    assert "int64 full" in node.attribute[0].s.decode()
    inputs = {"ids": np.arange(128).reshape(2, 64) % 3, "x": np.ones((2, 64), np.float32)}
    assert_same(model, result.model, inputs)


@pytest.mark.parametrize(
    ("before", "after"), [("one = {1}", "one = {16777216}"), ("Equal(ids, one)", "Equal(ids, ids)")]
)
def test_comparisons_of_integers_that_float32_may_get_wrong_stay(before: str, after: str) -> None:
    result = optimized(parsed(INTEGERS.replace(before, after)))
    assert [n.op_type for n in result.model.graph.node if not n.domain] == ["Equal"]


def test_310p_reads_no_integers() -> None:
    result = optimized(parsed(INTEGERS), tools(kernels=True, soc="Ascend310P3", forced=frozenset({"elementwise"})))
    assert [n.op_type for n in result.model.graph.node if not n.domain] == ["Cast", "Equal"]


def test_functions_and_their_defaults() -> None:
    lines = ["Selu", "Celu", "ThresholdedRelu", "Softsign", "Floor", "Sign", "Round", "Ceil", "Sin", "Cos"]
    body = "".join(f"a{i} = {op}(x{i})\n  x{i + 1} = Add(x, a{i})\n  " for i, op in enumerate(lines))
    head = f"functions (float[4,8] x, float[8] slope) => (float[4,8] y, float[4,8] x{len(lines)})"
    model = parsed(f"{head} {{\n  x0 = Neg(x)\n  {body} y = PRelu(x2, slope)\n}}")
    result = optimized(model)
    assert all(n.domain for n in result.model.graph.node)
    inputs = {
        "x": np.linspace(-2, 3, 32, dtype=np.float32).reshape(4, 8),
        "slope": np.linspace(0, 1, 8, dtype=np.float32),
    }
    assert_same(model, result.model, inputs)


TWO = """two (float[4,64] x, float[64,64] w) => (float[4,64] y) <float half = {0.5}> {
  a = Tanh(x)
  b = Mul(a, half)
  m = MatMul(b, w)
  c = Exp(m)
  d = Neg(c)
  n = MatMul(d, w)
  e = Exp(n)
  y = Neg(e)
}"""


def test_every_expression_has_its_own_operator_and_plugin_in_the_project() -> None:
    using = tools(kernels=True, forced=frozenset({"elementwise"}))
    model = optimized(parsed(TWO), using).model
    ops = sorted(set(fused_ops(model)))
    assert len(fused_ops(model)) == 3
    assert len(ops) == 2
    files = model_project(model, None, using.kernels, "Ascend910B1").files
    definitions = [name for name in files if name.startswith("op_host/atcfuse_elementwise_")]
    plugins = [text for name, text in files.items() if name.endswith("_plugin.cpp")]
    assert len(definitions) == len(plugins) == 2
    for op in ops:
        (plugin,) = [text for text in plugins if f'"atcfuse::1::{op}"' in str(text)]
        assert "PartitionedCall" not in str(plugin)
    tests = {name.split("/")[1] for name in files if name.startswith("tests/")}
    assert len(tests) == 2


def test_the_report_names_a_plugin_for_every_operator() -> None:
    result = optimized(parsed(TWO), tools(kernels=True, forced=frozenset({"elementwise"})))
    assert [p["op_type"] for p in result.report["plugins"]] == sorted(set(fused_ops(result.model)))


def test_guards_against_nan_and_infinity_are_steps() -> None:
    model = parsed("""guards (float[batch,64] x) => (float[batch,64] y, bool[batch,64] n) <float zero = {0}, float top = {9}> {
      e = Exp(x)
      n = IsNaN(e)
      i = IsInf<detect_negative = 0>(e)
      c = Where(i, top, e)
      y = Where(n, zero, c)
    }""")
    result = optimized(model, alone())
    (node,) = result.model.graph.node
    assert "IsInf(t1, 0x0.0p+0, 0x1.0000000000000p+0)" in node.attribute[0].s.decode()
    x = np.array([np.nan, np.inf, -np.inf, 89.0, -1.0, 1.0, 0.0, -0.0] * 8, np.float32)[None]
    assert_same(model, result.model, {"x": x})


@pytest.mark.parametrize(("dtype", "why"), [("int64", "no type of the vector unit"), ("int32", "promises no overflow")])
def test_arithmetic_on_integers_is_kept_with_a_reason(dtype: str, why: str) -> None:
    """One reads a step, others stand beside each other; one that stands alone is no missed fusion."""
    model = parsed(f"""positions ({dtype}[batch,64] x, {dtype}[batch,64] z, float[batch,64] f)
    => (float[batch,64] y, {dtype}[batch,64] p, {dtype}[batch,64] r) <{dtype} one = {{1}}, int64 axis = {{1}}> {{
      a = Sub(one, x)
      b = Cast<to = 1>(a)
      y = Add(b, f)
      m = Mul(x, z)
      p = Add(m, one)
      c = CumSum(z, axis)
      r = Neg(c)
    }}""")
    result = optimized(model, alone())
    kept = {k["anchor"]: k for k in result.report["kept"] if k["code"] == "ATF340"}
    assert set(kept) == {"Sub_0", "Mul_3", "Add_4"}
    assert all(why in k["reason"] and dtype in k["reason"] for k in kept.values())
    assert len(fused_ops(result.model)) == 1
