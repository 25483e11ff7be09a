"""ONNX's own Attention and RotaryEmbedding mean what the standard says, are fused, and where they stay it is told why."""

from __future__ import annotations

import math
from collections import Counter
from copy import deepcopy
from typing import Any

import numpy as np
import onnx
import onnx.parser
import plain
import pytest

import atcfuse

FLOATS = np.float32
Feeds = dict[str, np.ndarray]


def parsed(text: str, opset: int = 23) -> onnx.ModelProto:
    return plain.parsed(f'<ir_version: 10, opset_import: ["" : {opset}]> g {text}')


def run(model: onnx.ModelProto, feeds: Feeds) -> list[np.ndarray]:
    return list(plain.plain_session(model).run(None, feeds))


def optimized(model: onnx.ModelProto, **options: Any) -> atcfuse.Result:
    return atcfuse.optimize(deepcopy(model), dialect="portable", min_saving_us=0.0, **options)


def kept(result: atcfuse.Result, anchor: str = "n0") -> list[tuple[str, str]]:
    return [(entry["code"], entry["reason"]) for entry in result.report["kept"] if entry["anchor"] == anchor]


def numbers(*shape: int, seed: int = 0, dtype: Any = FLOATS) -> np.ndarray:
    return np.random.default_rng((seed, *shape)).normal(size=shape).astype(dtype)


def attention(feeds: Feeds, heads: int = 0, few: int = 0, causal: bool = False, cap: float = 0.0, scale: float = 0.0):
    """Attention as the standard describes it, in float64: the result and all keys and values."""
    q, k, v = (feeds[n].astype(np.float64) for n in "qkv")
    flat = q.ndim == 3
    if flat:
        q, k, v = (x.reshape(*x.shape[:2], n, -1).swapaxes(1, 2) for x, n in ((q, heads), (k, few), (v, few)))
    past = feeds["pk"].shape[2] if "pk" in feeds else 0
    if past:
        k, v = (np.concatenate([feeds[n], x], axis=2) for n, x in (("pk", k), ("pv", v)))
    times = q.shape[1] // k.shape[1]
    scores = q @ np.repeat(k, times, axis=1).swapaxes(2, 3) * (scale or 1 / math.sqrt(q.shape[-1]))
    scores = cap * np.tanh(scores / cap) if cap else scores
    bias = np.zeros(scores.shape)
    if causal:
        i, j = np.ogrid[: scores.shape[2], : scores.shape[3]]
        bias = bias + np.where(j <= i + past, 0.0, -np.inf)
    if "m" in feeds:
        m = feeds["m"]
        bias = bias + (np.where(m, 0.0, -np.inf) if m.dtype == bool else m)
    dark = np.isneginf(bias).all(axis=-1, keepdims=True)
    scores = np.where(dark, 0.0, scores + bias)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights = np.where(dark, 0.0, weights / weights.sum(axis=-1, keepdims=True))
    y = weights @ np.repeat(v, times, axis=1)
    return (y.swapaxes(1, 2).reshape(y.shape[0], y.shape[2], -1) if flat else y), k, v


Q, K, V = "float[B,3,S,8] q", "float[B,3,L,8] k", "float[B,3,L,4] v"
PAST = "float[B,3,P,8] pk, float[B,3,P,4] pv"
PRESENT = "float[B,3,S,4] y, float[B,3,T,8] nk, float[B,3,T,4] nv"


def operands(queries: int = 5, keys: int = 6, past: int = 0, heads: int = 3, few: int = 3) -> Feeds:
    found = {
        "q": numbers(2, heads, queries, 8),
        "k": numbers(2, few, keys, 8, seed=1),
        "v": numbers(2, few, keys, 4, seed=2),
    }
    return found | ({"pk": numbers(2, few, past, 8, seed=3), "pv": numbers(2, few, past, 4, seed=4)} if past else {})


def rows(feeds: Feeds, heads: int, few: int) -> Feeds:
    """Queries, keys and values with the heads of a position in one row."""
    counts = {"q": heads, "k": few, "v": few}
    return {n: x.swapaxes(1, 2).reshape(2, x.shape[2], counts[n] * x.shape[3]) for n, x in feeds.items()}


def ragged(*shape: int) -> np.ndarray:
    """A mask with rows in which nothing is kept."""
    mask = np.random.default_rng(shape).random(shape) < 0.5
    mask[..., 1, :] = False
    return mask


FUSED = {
    "plain": (f"({Q}, {K}, {V}) => (float[B,3,S,4] y) {{ y = Attention(q, k, v) }}", operands(), {}),
    "a factor of its own": (
        f"({Q}, {K}, {V}) => (float[B,3,S,4] y) {{ y = Attention<scale = 0.7>(q, k, v) }}",
        operands(),
        {"scale": 0.7},
    ),
    "causal, more keys": (
        f"({Q}, {K}, {V}) => (float[B,3,S,4] y) {{ y = Attention<is_causal = 1>(q, k, v) }}",
        operands(),
        {"causal": True},
    ),
    "causal, more queries": (
        f"({Q}, {K}, {V}) => (float[B,3,S,4] y) {{ y = Attention<is_causal = 1>(q, k, v) }}",
        operands(6, 4),
        {"causal": True},
    ),
    "a mask that keeps, and rows of which it keeps nothing": (
        f"({Q}, {K}, {V}, bool[S,L] m) => (float[B,3,S,4] y) {{ y = Attention(q, k, v, m) }}",
        operands() | {"m": ragged(5, 6)},
        {},
    ),
    "a mask for each batch, causal": (
        f"({Q}, {K}, {V}, bool[B,1,S,L] m) => (float[B,3,S,4] y) {{ y = Attention<is_causal = 1>(q, k, v, m) }}",
        operands() | {"m": ragged(2, 1, 5, 6)},
        {"causal": True},
    ),
    "a mask for each head": (
        f"({Q}, {K}, {V}, bool[3,S,L] m) => (float[B,3,S,4] y) {{ y = Attention(q, k, v, m) }}",
        operands() | {"m": ragged(3, 5, 6)},
        {},
    ),
    "values added": (
        f"({Q}, {K}, {V}, float[B,1,S,L] m) => (float[B,3,S,4] y) {{ y = Attention(q, k, v, m) }}",
        operands() | {"m": numbers(2, 1, 5, 6, seed=5)},
        {},
    ),
    "values added, causal": (
        f"({Q}, {K}, {V}, float[S,L] m) => (float[B,3,S,4] y) {{ y = Attention<is_causal = 1>(q, k, v, m) }}",
        operands() | {"m": numbers(5, 6, seed=5)},
        {"causal": True},
    ),
    "minus infinity added, and rows of nothing else": (
        f"({Q}, {K}, {V}, float[S,L] m) => (float[B,3,S,4] y) {{ y = Attention(q, k, v, m) }}",
        operands() | {"m": np.where(ragged(5, 6), 0, -np.inf).astype(FLOATS)},
        {},
    ),
    "the lowest number added, which is none of infinity": (
        f"({Q}, {K}, {V}, float[S,L] m) => (float[B,3,S,4] y) {{ y = Attention(q, k, v, m) }}",
        operands() | {"m": np.where(ragged(5, 6), 0, np.finfo(FLOATS).min).astype(FLOATS)},
        {},
    ),
    "a cap before the mask": (
        f"({Q}, {K}, {V}, bool[S,L] m) => (float[B,3,S,4] y) {{ y = Attention<softcap = 0.5>(q, k, v, m) }}",
        operands() | {"m": ragged(5, 6)},
        {"cap": 0.5},
    ),
    "a cap before values are added": (
        f"({Q}, {K}, {V}, float[S,L] m) => (float[B,3,S,4] y) {{ y = Attention<softcap = 0.5>(q, k, v, m) }}",
        operands() | {"m": numbers(5, 6, seed=5)},
        {"cap": 0.5},
    ),
    "fewer heads of keys": (
        "(float[B,6,S,8] q, float[B,2,L,8] k, float[B,2,L,4] v) => (float[B,6,S,4] y) { y = Attention(q, k, v) }",
        operands(heads=6, few=2),
        {},
    ),
    "heads in rows": (
        """(float[B,S,24] q, float[B,L,24] k, float[B,L,12] v) => (float[B,S,12] y)
        { y = Attention<q_num_heads = 3, kv_num_heads = 3>(q, k, v) }""",
        rows(operands(), 3, 3),
        {"heads": 3, "few": 3},
    ),
    "fewer heads in rows, causal": (
        """(float[B,S,48] q, float[B,L,16] k, float[B,L,8] v) => (float[B,S,24] y)
        { y = Attention<q_num_heads = 6, kv_num_heads = 2, is_causal = 1>(q, k, v) }""",
        rows(operands(heads=6, few=2), 6, 2),
        {"heads": 6, "few": 2, "causal": True},
    ),
    "keys of the past, causal": (
        f"({Q}, {K}, {V}, {PAST}) => ({PRESENT}) {{ y, nk, nv = Attention<is_causal = 1>(q, k, v, , pk, pv) }}",
        operands(5, 5, 7),
        {"causal": True},
    ),
    "keys of the past and a mask": (
        f"({Q}, {K}, {V}, bool[B,1,S,T] m, {PAST}) => ({PRESENT}) {{ y, nk, nv = Attention(q, k, v, m, pk, pv) }}",
        operands(5, 5, 7) | {"m": ragged(2, 1, 5, 12)},
        {},
    ),
    "all keys as an output, without any of the past": (
        f"({Q}, {K}, {V}) => ({PRESENT}) {{ y, nk, nv = Attention(q, k, v) }}",
        operands(),
        {},
    ),
}


@pytest.mark.parametrize(("text", "feeds", "meaning"), FUSED.values(), ids=FUSED)
def test_attention_is_fused_and_means_the_same(text: str, feeds: Feeds, meaning: dict[str, Any]) -> None:
    # By force, as masks that layers share make more launches beside a single one than it has.
    result = optimized(parsed(text), forced=frozenset({"attention"}))
    count = Counter(n.op_type for n in result.model.graph.node)
    assert (count["FusedAttention"], count["Attention"], count["Softmax"]) == (1, 0, 0)
    assert not kept(result)
    for found, expected in zip(run(result.model, feeds), attention(feeds, **meaning), strict=False):
        np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-6)


@pytest.mark.skipif(plain.FIRST_OF_OPSET_23, reason="the first kernels of opset 23 differ from the standard")
@pytest.mark.parametrize("name", [n for n in FUSED if "lowest" not in n])
def test_runtimes_see_the_original_like_that(name: str) -> None:
    """onnxruntime makes zero of rows to which the lowest number was added; the standard only of infinite ones."""
    text, feeds, meaning = FUSED[name]
    for found, expected in zip(run(parsed(text), feeds), attention(feeds, **meaning), strict=False):
        np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("precision", ["", "<softmax_precision = 1>", "<softmax_precision = 10>"])
def test_softmax_of_float16_is_taken_in_the_type_that_is_asked_for(precision: str) -> None:
    text = f"({Q}, {K}, {V}, bool[S,L] m) => (float[B,3,S,4] y) {{ y = Attention{precision}(q, k, v, m) }}"
    result = optimized(parsed(text.replace("float", "float16")))
    (node,) = result.model.graph.node
    taken = {a.name: a.i for a in node.attribute}["softmax_precision"]
    assert (node.op_type, taken) == ("FusedAttention", 1 if "= 1>" in precision else 10)
    feeds = {n: x.astype(np.float16) for n, x in operands().items()} | {"m": ragged(5, 6)}
    np.testing.assert_allclose(run(result.model, feeds)[0], attention(feeds)[0], rtol=2e-3, atol=2e-3)


STAYS = {
    "a count of keys": (
        f"({Q}, {K}, {V}, int64[B] n) => (float[B,3,S,4] y) {{ y = Attention(q, k, v, , , , n) }}",
        24,
        "keys are counted for each batch (nonpad_kv_seqlen)",
    ),
    "a window": (
        f"({Q}, {K}, {V}) => (float[B,3,S,4] y) {{ y = Attention<left_window_size = 2>(q, k, v) }}",
        25,
        "positions attend to a window (left_window_size, right_window_size)",
    ),
    "scores that are read": (
        f"({Q}, {K}, {V}) => (float[B,3,S,4] y, float[B,3,S,L] o) {{ y, , , o = Attention(q, k, v) }}",
        23,
        "the scores are read elsewhere (qk_matmul_output)",
    ),
    "a mask that may be short": (
        f"({Q}, {K}, {V}, bool[S,M] m) => (float[B,3,S,4] y) {{ y = Attention(q, k, v, m) }}",
        24,
        "the mask is not proved to have a column for each key",
    ),
    "a mask of one column": (
        f"({Q}, {K}, {V}, bool[S,1] m) => (float[B,3,S,4] y) {{ y = Attention(q, k, v, m) }}",
        23,
        "the mask is not proved to have a column for each key",
    ),
    "a lower precision": (
        f"({Q}, {K}, {V}) => (float[B,3,S,4] y) {{ y = Attention<softmax_precision = 10>(q, k, v) }}",
        23,
        "softmax is taken in another element type than float32 or that of the queries",
    ),
    "values of another type": (
        f"({Q}, {K}, float16[B,3,L,4] v) => (float[B,3,S,4] y) {{ y = Attention(q, k, v) }}",
        23,
        "queries, keys and values are not all float32 or all float16",
    ),
    "a factor that turns scores around": (
        f"({Q}, {K}, {V}) => (float[B,3,S,4] y) {{ y = Attention<scale = -1.0>(q, k, v) }}",
        23,
        "the factor on the scores is not positive",
    ),
    "vectors of unknown length": (
        "(float[B,3,S,D] q, float[B,3,L,D] k, float[B,3,L,D] v) => (float[B,3,S,D] y) { y = Attention(q, k, v) }",
        23,
        "the number of heads, or of elements of a vector, is not known",
    ),
    "heads that are no groups": (
        "(float[B,3,S,8] q, float[B,2,L,8] k, float[B,2,L,8] v) => (float[B,3,S,8] y) { y = Attention(q, k, v) }",
        23,
        "the heads of queries are no multiple of those of keys and values",
    ),
    "a result that is left out": (
        f"({Q}, {K}, {V}) => (float[B,3,L,8] nk) {{ , nk, nv = Attention(q, k, v) }}",
        23,
        "the result is left out",
    ),
    "keys of the past alone": (
        f"({Q}, {K}, {V}, {PAST}) => (float[B,3,S,4] y) {{ y = Attention(q, k, v, , pk) }}",
        23,
        "keys of the past come without values, or values without keys",
    ),
}


@pytest.mark.parametrize(("text", "opset", "reason"), STAYS.values(), ids=STAYS)
def test_attention_that_stays_is_told_why(text: str, opset: int, reason: str) -> None:
    result = optimized(parsed(text, opset))
    assert [n.op_type for n in result.model.graph.node] == ["Attention"]
    assert kept(result) == [("ATF314", reason)]


def test_the_reason_of_attention_spelled_out_is_told_of_the_operator() -> None:
    text = f"({Q}, {K}, {V}, float[M,S,L] m) => (float[B,3,S,4] y) {{ y = Attention(q, k, v, m) }}"
    result = optimized(parsed(text))
    assert [n.op_type for n in result.model.graph.node] == ["Attention"]
    ((code, reason),) = kept(result)
    assert code.startswith("ATF3")
    assert "spelled out" not in reason
    assert [entry["anchor"] for entry in result.report["kept"]] == ["n0"]


def test_what_is_switched_off_or_kept_by_the_user_is_told_so() -> None:
    model = parsed(f"({Q}, {K}, {V}) => (float[B,3,S,4] y) {{ y = Attention(q, k, v) }}")
    assert [code for code, _ in kept(optimized(model, disabled=frozenset({"attention"})))] == ["ATF321"]
    assert [code for code, _ in kept(optimized(model, keep_nodes=["n0"]))] == ["ATF325"]


def rotation(feeds: Feeds, heads: int, width: int, interleaved: bool) -> np.ndarray:
    """Rotary position embedding as the standard describes it, in float64."""
    x, cos, sin = (feeds[n].astype(np.float64) for n in "xcs")
    if "p" in feeds:
        cos, sin = cos[feeds["p"]], sin[feeds["p"]]
    by_position = x.reshape(*x.shape[:2], heads, -1) if x.ndim == 3 else x.swapaxes(1, 2)
    turned = by_position.copy()
    first, second = (
        (slice(0, width, 2), slice(1, width, 2)) if interleaved else (slice(0, width // 2), slice(width // 2, width))
    )
    one, two = by_position[..., first], by_position[..., second]
    cos, sin = cos[:, :, None], sin[:, :, None]
    turned[..., first], turned[..., second] = one * cos - two * sin, two * cos + one * sin
    return turned.reshape(x.shape) if x.ndim == 3 else turned.swapaxes(1, 2)


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("width", [8, 4])
@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("tables", ["batches", "one batch", "positions"])
def test_rotary_embedding(interleaved: int, width: int, flat: bool, tables: str) -> None:
    batches, rows_ = {"batches": ("B,S", (2, 5)), "one batch": ("1,S", (1, 5)), "positions": ("9", (9,))}[tables]
    x = "float[B,S,24] x" if flat else "float[B,3,S,8] x"
    ids = ", int64[B,S] p" if tables == "positions" else ""
    text = f"""({x}, float[{batches},{width // 2}] c, float[{batches},{width // 2}] s{ids}) => ({x[:-1]}y) {{
        y = RotaryEmbedding<interleaved = {interleaved}, rotary_embedding_dim = {width % 8}, num_heads = {3 * flat}>
        (x, c, s{", p" if ids else ""}) }}"""
    result = optimized(parsed(text), forced=frozenset({"rotary_embedding"}))
    count = Counter(n.op_type for n in result.model.graph.node)
    assert (count["FusedRotaryEmbedding"], count["RotaryEmbedding"], count["Mul"]) == (1, 0, 0)
    assert not result.report["kept"]
    angles = numbers(*rows_, width // 2, seed=7)
    feeds = {"x": numbers(2, 5, 24) if flat else numbers(2, 3, 5, 8), "c": np.cos(angles), "s": np.sin(angles)}
    feeds |= {"p": np.array([[0, 1, 2, 3, 4], [8, 0, 2, 2, 7]])} if ids else {}
    expected = rotation(feeds, 3, width, bool(interleaved))
    np.testing.assert_allclose(run(result.model, feeds)[0], expected, rtol=2e-5, atol=2e-6)
    if tables != "one batch" and not plain.FIRST_OF_OPSET_23:  # which onnxruntime takes for one batch alone
        np.testing.assert_allclose(run(parsed(text), feeds)[0], expected, rtol=2e-5, atol=2e-6)


def turned(count: int) -> onnx.ModelProto:
    """Vectors that are all turned by the same angles, chosen by positions."""
    given = ", ".join(f"float[B,3,S,8] x{i}" for i in range(count))
    made = ", ".join(f"float[B,3,S,8] y{i}" for i in range(count))
    nodes = " ".join(f"y{i} = RotaryEmbedding(x{i}, c, s, p)" for i in range(count))
    return parsed(f"({given}, float[64,4] c, float[64,4] s, int64[B,S] p) => ({made}) {{ {nodes} }}")


@pytest.mark.parametrize("count", [1, 2, 4])
def test_operators_that_would_be_more_launches_spelled_out_stay(count: int) -> None:
    """Four Gathers beside: tables at the positions, and these for each element of a pair."""
    result = optimized(turned(count))
    assert Counter(n.op_type for n in result.model.graph.node) == {"RotaryEmbedding": count}
    after = 4 + (count + 1) // 2
    reason = f"spelled out and fused, {count} launches would become {after}"
    assert [kept(result, f"n{i}") for i in range(count)] == [[("ATF348", reason)]] * count


@pytest.mark.parametrize(("count", "after"), [(8, 8), (12, 10)])
def test_operators_that_share_what_is_made_beside_them_are_fused(count: int, after: int) -> None:
    result = optimized(turned(count))
    made = Counter(n.op_type for n in result.model.graph.node)
    assert (made["FusedRotaryEmbedding"], made["RotaryEmbedding"]) == (count // 2, 0)
    assert result.report["summary"]["launches_after"] == after


def test_one_of_many_operators_stays_where_it_shares_nothing() -> None:
    many, one = (
        turned(12).graph,
        parsed(
            "(float[B,3,S,8] x, float[9,4] d, float[9,4] e, int64[B,S] q) => (float[B,3,S,8] y)"
            "{ y = RotaryEmbedding(x, d, e, q) }"
        ),
    )
    one.graph.node[0].name = "alone"
    for field in ("node", "input", "output"):
        getattr(one.graph, field).extend(getattr(many, field))
    made = Counter(n.op_type for n in optimized(one).model.graph.node)
    assert (made["FusedRotaryEmbedding"], made["RotaryEmbedding"]) == (6, 1)


def test_a_single_attention_stays_where_its_mask_takes_more_launches_than_it_has() -> None:
    text, _, _ = FUSED["a mask for each batch, causal"]
    result = optimized(parsed(text))
    assert [n.op_type for n in result.model.graph.node] == ["Attention"]
    assert kept(result) == [("ATF348", "spelled out and fused, 1 launches would become 5")]


def test_keys_of_the_past_that_are_outputs_have_to_be_made_in_any_case() -> None:
    text, _, _ = FUSED["keys of the past and a mask"]
    made = Counter(n.op_type for n in optimized(parsed(text)).model.graph.node)
    assert made == {"Concat": 2, "FusedAttention": 1}


UNTURNED = {
    "tables of other positions": (
        "(float[B,3,S,8] x, float[B,N,4] c, float[B,N,4] s) => (float[B,3,S,8] y) { y = RotaryEmbedding(x, c, s) }",
        "cosines and sines are not proved to be one for each position of each batch",
    ),
    "tables of other pairs": (
        "(float[B,3,S,8] x, float[B,S,3] c, float[B,S,3] s) => (float[B,3,S,8] y) { y = RotaryEmbedding(x, c, s) }",
        "cosines and sines are not proved to be one for each pair of elements",
    ),
    "vectors of unknown length": (
        "(float[B,3,S,D] x, float[B,S,4] c, float[B,S,4] s) => (float[B,3,S,D] y) { y = RotaryEmbedding(x, c, s) }",
        "the number of elements of a vector, or of those that are rotated, is not known or not even",
    ),
    "tables of another type": (
        "(float16[B,3,S,8] x, float[B,S,4] c, float[B,S,4] s) => (float16[B,3,S,8] y) { y = RotaryEmbedding(x, c, s) }",
        "vectors, cosines and sines are not all float32 or all float16",
    ),
}


@pytest.mark.parametrize(("text", "reason"), UNTURNED.values(), ids=UNTURNED)
def test_rotary_embedding_that_stays_is_told_why(text: str, reason: str) -> None:
    result = optimized(parsed(text))
    assert [n.op_type for n in result.model.graph.node] == ["RotaryEmbedding"]
    assert kept(result) == [("ATF314", reason)]


SWISH = """(float[B,4,8] x, float[8,16] w, float[16] b, float[16,8] u, float[8] c) => (float[B,4,8] y) {{
    m = MatMul(x, w) a = Add(m, b) g = Swish<alpha = {alpha}>(a) n = MatMul(g, u) y = Add(n, c) }}"""


@pytest.mark.skipif(onnx.defs.onnx_opset_version() < 24, reason="this ONNX has no Swish")
def test_swish_is_silu_where_nothing_multiplies_its_argument() -> None:
    feeds = {
        n: numbers(*shape) for n, shape in (("x", (2, 4, 8)), ("w", (8, 16)), ("b", (16,)), ("u", (16, 8)), ("c", (8,)))
    }
    result = optimized(parsed(SWISH.format(alpha=1.0), 24))
    assert [n.op_type for n in result.model.graph.node] == ["FusedFFN"]
    hidden = feeds["x"].astype(np.float64) @ feeds["w"] + feeds["b"]
    expected = hidden / (1 + np.exp(-hidden)) @ feeds["u"] + feeds["c"]
    np.testing.assert_allclose(run(result.model, feeds)[0], expected, rtol=2e-5, atol=2e-5)
    steeper = optimized(parsed(SWISH.format(alpha=1.7), 24))
    assert Counter(n.op_type for n in steeper.model.graph.node)["Swish"] == 1
    assert ("ATF311", "Swish has alpha=1.7000000476837158") in kept(steeper, "n2")


@pytest.mark.parametrize(("opset", "numbers_", "fused"), [(21, 8, 1), (18, 2, 0), (18, 8, 0)])
def test_group_normalization_had_a_scale_for_each_group_once(opset: int, numbers_: int, fused: int) -> None:
    text = f"""(float[B,8,6,6] x, float[{numbers_}] g, float[{numbers_}] b) => (float[B,8,6,6] y)
        {{ y = GroupNormalization<num_groups = 2>(x, g, b) }}"""
    result = optimized(parsed(text, opset))
    assert Counter(n.op_type for n in result.model.graph.node)["FusedGroupNormSilu"] == fused
    reason = [] if fused else [("ATF314", "scale and shift are not one number a channel")]
    assert kept(result) == reason
