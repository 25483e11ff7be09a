"""The generated attention kernel: run in the twin against numpy, and its predicted bytes against the twin's count."""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attention_cases import INF, LOWEST, SPEC, Array, Heads, Outcome, kernel_of, lay_out, run
from hypothesis import given, settings
from hypothesis import strategies as st

from atcfuse.codegen import kernel_function, refusal_of, render_kernel
from atcfuse.codegen.layouts import parse_layout, read_sizes
from atcfuse.diagnostics import AtcfuseError
from atcfuse.tiling import PLATFORM_310P, PLATFORM_910B, Platform, Prediction
from atcfuse.tiling.attention import predict
from atcfuse.tiling.attention_problem import Problem
from atcfuse.twin import run_kernel

needs_compiler = pytest.mark.skipif(
    not any(shutil.which(name) for name in ("g++", "clang++", "c++")), reason="no C++ compiler"
)
TOLERANCE = {np.float16: 5e-3, np.float32: 1e-5}
ONE_CORE = replace(PLATFORM_910B, cube_cores=1, vector_cores=2)
"""A chip on which splitting work does not pay: the tiling takes its largest tiles."""


def check(outcome: Outcome, dtype: type) -> None:
    """The numbers are right and every predicted figure is what the twin counted."""
    assert outcome.error < TOLERANCE[dtype]
    counted, predicted = outcome.result.counters, outcome.predicted
    tensors = {t["name"]: t for t in counted["tensors"]}
    for name in ("q", "k", "v", "bias", "mask", "out"):
        read, written = (
            sum(tensors.get(name, {}).get(f"{d}_by_{u}", 0) for u in ("vector", "cube")) for d in ("read", "written")
        )
        assert (read, written) == (predicted.reads.get(name, 0), predicted.writes.get(name, 0)), name
    assert counted["workspace_bytes_read"] == predicted.workspace_read
    assert counted["workspace_bytes_written"] == predicted.workspace_written
    assert counted["workspace_footprint"] == predicted.workspace_footprint
    assert counted["messages"] == predicted.messages
    assert counted["peak"] == dict(predicted.peak)
    launch = outcome.result.launch
    assert (launch.blocks, launch.workspace_bytes) == (predicted.blocks, predicted.workspace_bytes)


# Each kind is one kernel; its masks have rows that are masked as a whole.
KINDS: Mapping[str, Heads] = {
    "plain": Heads(),
    "bias": Heads(layouts=("B S (3 N D)",) * 3 + ("BSH",)),
    "padding": Heads(4, 2, layouts=("BNSD", "BNSD", "BNSD", "BSH"), attributes={"mask_fill": LOWEST}),
    "boolean": Heads(dim=40, value_dim=24, dtype=np.float32, attributes={"masked_rows": "zero"}),
    "causal": Heads(2, 1, layouts=("SBH", "SBH", "SBH", "SBH"), attributes={"causal": "bottom_right"}),
    "causal and padding": Heads(
        2, 1, 128, 128, dtype=np.float32, layouts=("BSND",) * 4, attributes={"causal": "top_left"}
    ),
}
LENGTHS = [(1, 1), (1, 1000), (17, 17), (128, 128), (1000, 1000), (130, 17)]


def masks_of(kind: str, batch: int, queries: int, keys: int) -> dict[str, Array]:
    """The bias or mask of a kind, for two batches different ones."""
    random = np.random.default_rng(queries + keys)
    keep = random.random((batch, 1, queries, keys)) > 0.4
    if kind == "bias":
        keep[:, :, queries // 2] = False
        return {"bias": np.where(keep, random.standard_normal(keep.shape), -INF).astype(np.float16)}
    if kind == "boolean":
        keep[:, :, queries // 2] = False
        return {"mask": keep}
    if kind == "padding":
        keep = np.broadcast_to(np.arange(keys) < 1 + keys // 2, (batch, 1, 1, keys)).copy()
        keep[0] = False
        return {"mask": keep}
    if kind == "causal and padding":
        padded = np.where(np.arange(keys) < keys // 3, LOWEST, 0.0).astype(np.float32)
        return {"bias": np.broadcast_to(padded, (batch, 1, 1, keys)).copy()}
    return {}


@needs_compiler
@pytest.mark.parametrize(("queries", "keys"), LENGTHS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_mask_at_every_length(kind: str, queries: int, keys: int, programs: Path) -> None:
    batch = 1 if queries == 1000 else 2
    outcome = run(KINDS[kind], batch, queries, keys, programs, **masks_of(kind, batch, queries, keys))
    check(outcome, KINDS[kind].dtype)


LEVELS = [
    ("plain", PLATFORM_910B, 16, 16),
    ("plain", PLATFORM_910B, 32, 32),
    ("plain", PLATFORM_910B, 128, 128),
    ("boolean", PLATFORM_910B, 128, 64),
    ("bias", PLATFORM_310P, 32, 32),
    ("bias", PLATFORM_310P, 128, 64),
]


@needs_compiler
@pytest.mark.parametrize("kind", ["plain", "boolean", "causal and padding"])
def test_the_largest_tiles(kind: str, programs: Path) -> None:
    outcome = run(KINDS[kind], 2, 290, 530, programs, **masks_of(kind, 2, 290, 530), platform=ONE_CORE)
    assert outcome.predicted.parameters["rows"] >= 64
    check(outcome, KINDS[kind].dtype)


@needs_compiler
@pytest.mark.parametrize(("kind", "chip", "rows", "taken"), LEVELS)
def test_tiles_of_the_rows_that_were_asked_for(
    kind: str, chip: Platform, rows: int, taken: int, programs: Path
) -> None:
    """The C++ tiling takes the same tile: bytes and peaks would differ otherwise. 128 rows seldom fit."""
    case = SHARED_CORE["bias"] if chip is PLATFORM_310P else KINDS[kind]
    asked = replace(chip, tile_rows=rows)
    outcome = run(case, 2, 130, 300, programs, **masks_of(kind, 2, 130, 300), platform=asked)
    assert outcome.predicted.parameters["rows"] == taken
    check(outcome, case.dtype)


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_long_odd_length(kind: str, programs: Path) -> None:
    outcome = run(replace(KINDS[kind], heads=1, kv_heads=1), 1, 4097, 4097, programs, **masks_of(kind, 1, 4097, 4097))
    check(outcome, KINDS[kind].dtype)


SIGNATURES = {
    "keys transposed": Heads(layouts=("BNSD", "B N D S", "BNSD", "BNSD")),
    "parts of a head axis": Heads(4, 2, layouts=("B S N:5 D", "BSND", "B S N:5 D", "BSND")),
    "interleaved parts": Heads(layouts=("B S (N 3 D)",) * 3 + ("BSND",)),
    "narrow heads": Heads(dim=8, value_dim=8),
    "odd heads": Heads(dim=20, value_dim=36),
    "wide heads": Heads(dim=256, value_dim=256, dtype=np.float32),
    "softcap": Heads(attributes={"softcap": 2.0}),
    "floor": Heads(attributes={"floor": -1.0, "causal": "top_left"}),
    "floor under a bias": Heads(attributes={"floor": -2.0, "masked_rows": "zero"}),
}


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize(("queries", "keys"), [(1, 200), (33, 100), (70, 300)])
@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures(name: str, queries: int, keys: int, programs: Path) -> None:
    masks = masks_of("bias", 2, queries, keys) if "bias" in name else {}
    check(run(SIGNATURES[name], 2, queries, keys, programs, **masks), SIGNATURES[name].dtype)


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("shape", [(2, 2, 33, 140), (33, 140), (1, 2, 1, 140), (2, 1, 33, 1), (1,), ()])
def test_bias_and_mask_broadcast(shape: tuple[int, ...], dtype: type, first: int, programs: Path) -> None:
    random = np.random.default_rng(len(shape))
    bias = np.asarray(random.standard_normal(shape)).astype(dtype)
    mask = np.asarray(random.random(shape) > 0.5)
    case = Heads(attributes={"mask_fill": -3.0, "mask_first": first, "mask_keeps": first})
    check(run(case, 2, 33, 140, programs, bias=bias, mask=mask), np.float16)


@needs_compiler
@pytest.mark.parametrize("soc", ["Ascend910B1", "Ascend310P3"])
@pytest.mark.parametrize("queries", [33, 1])
def test_batches_of_windows_go_through_bias_and_mask_again_and_again(queries: int, soc: str, programs: Path) -> None:
    """Six batches, three of the bias, two of the mask: every one has its own numbers."""
    random = np.random.default_rng(queries)
    bias = random.standard_normal((3, 2, queries, 48)).astype(np.float16)
    mask = random.random((2, 1, 1, 48)) > 0.4
    case = Heads(soc=soc, attributes={"bias_cycles": 1, "mask_cycles": 1, "mask_fill": -3.0})
    check(run(case, 6, queries, 48, programs, bias=bias, mask=mask), np.float16)


SHARED_CORE: Mapping[str, Heads] = {
    "bias": Heads(4, 2, soc="Ascend310P3", attributes={"causal": "bottom_right"}),
    "boolean": Heads(soc="Ascend310P3", attributes={"masked_rows": "zero"}),
    "padding": Heads(
        4, 2, 96, 32, layouts=("BNSD", "BSND", "SBH", "BSH"), soc="Ascend310P3", attributes={"mask_fill": LOWEST}
    ),
    "causal": Heads(
        layouts=("B S (3 N D)",) * 3 + ("BNSD",), soc="Ascend310P3", attributes={"causal": "top_left", "softcap": 3.0}
    ),
}


@needs_compiler
@pytest.mark.parametrize(("queries", "keys"), [(1, 33), (17, 17), (130, 300)])
@pytest.mark.parametrize(
    "kind", ["bias", *(pytest.param(k, marks=pytest.mark.slow) for k in ("boolean", "padding", "causal"))]
)
def test_shared_core_chips(kind: str, queries: int, keys: int, programs: Path) -> None:
    masks = masks_of(kind, 2, queries, keys)
    check(run(SHARED_CORE[kind], 2, queries, keys, programs, **masks, platform=PLATFORM_310P), np.float16)


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["bias", "boolean", "padding"])
@pytest.mark.parametrize(("queries", "keys"), [(5, 1), (3, 7), (16, 16), (20, 130), (33, 1000)])
def test_masks_are_not_read_beyond_their_end_on_310p(kind: str, queries: int, keys: int, programs: Path) -> None:
    masks = masks_of(kind, 2, queries, keys)
    check(run(SHARED_CORE[kind], 2, queries, keys, programs, **masks, platform=PLATFORM_310P), np.float16)


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize(("queries", "keys"), [(1, 70), (40, 200)])
def test_bfloat16(queries: int, keys: int, programs: Path) -> None:
    """bfloat16 operands as their bits; the reference sees the values that these bits stand for."""
    random = np.random.default_rng(queries)

    def bits(shape: tuple[int, ...]) -> Array:
        return (random.standard_normal(shape).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)

    def wide(x: Array) -> Array:
        return (x.astype(np.uint32) << 16).view(np.float32)

    q, k, v = bits((1, 2, queries, 64)), bits((1, 2, keys, 64)), bits((1, 2, keys, 64))
    bias = bits((queries, keys))
    layouts = {f"{name}_layout": "BNSD" for name in ("q", "k", "v", "out")}
    attributes = {**BASE, **layouts, "num_heads": 2, "num_kv_heads": 2}
    kernel = render_kernel(SPEC, attributes, dict.fromkeys(("q", "k", "v", "bias", "out"), 16), "Ascend910B1")
    out = run_kernel(kernel, {"q": q, "k": k, "v": v, "bias": bias}, cache=programs).outputs["out"]
    scores = wide(q) @ wide(k).swapaxes(2, 3) * np.float32(0.125) + wide(bias)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    want = weights / weights.sum(-1, keepdims=True) @ wide(v)
    assert np.abs(wide(out) - want).max() < 3e-2


@needs_compiler
def test_half_sums_beyond_its_range_become_minus_infinity(programs: Path) -> None:
    """float16's lowest number plus a score below -16 is -inf in the model, and must not share a row's weight."""
    bias = np.full((1, 1, 1, 50), -65504.0, dtype=np.float16)
    check(run(KINDS["bias"], 1, 20, 50, programs, bias=bias, spread=30.0), np.float16)


# Changes to the sources that a chip would punish or that give wrong numbers.
MUTANTS = {
    "store not waited for": ("        Sync<HardEvent::MTE3_S>();\n        valueProduct", "        valueProduct"),
    "maximum not updated": ("        Adds(maximum, now, 0.0f, count);\n", ""),
    "no barrier": ("PipeBarrier<PIPE_V>();", ""),
    "row stride of scores": ("t.queryRow, t.keyRow, t.columns)", "t.queryRow, t.keyRow, t.rows)"),
    "padding keeps its weight": ("FillFrom(x, kLowest,", "FillFrom(x, 0.0f,"),
    "factor of the wrong slot": ("softmax_.Factor(j % 2)", "softmax_.Factor((j + 1) % 2)"),
    "scores of one slot": ("ring_.Scores(j % 2), 0", "ring_.Scores(0), 0"),
    "tail loaded whole": ("tile.columns = Least(tiling_->columns, ", "tile.columns = Most(tiling_->columns, "),
    "load not freed": ("        io_.Free(partial);\n", ""),
    "keys and values swapped": ("SetTensorB(operands_.Value(", "SetTensorB(operands_.Key("),
}


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_caught(name: str, programs: Path) -> None:
    case = Heads()
    operands = [
        lay_out(np.random.default_rng(i).standard_normal((1, 2, 300, 64)).astype(np.float16), "BSH") for i in range(3)
    ]
    inputs = dict(zip("qkv", operands, strict=True))
    kernel = kernel_of(case, inputs)
    old, new = MUTANTS[name]
    source = kernel.files[f"{kernel.function}.cpp"]
    assert old in source
    broken = replace(kernel, files={**kernel.files, f"{kernel.function}.cpp": source.replace(old, new)})
    right = run_kernel(kernel, inputs, cache=programs).outputs["out"].astype(np.float32)
    try:
        wrong = run_kernel(broken, inputs, cache=programs).outputs["out"].astype(np.float32)
    except AtcfuseError as exc:
        caught = exc.diagnostics[0].code
    else:
        caught = "numbers" if np.abs(wrong - right).max() > 0.02 * np.abs(right).max() else "nothing"
    assert caught in ("ATF702", "numbers")


def problem(**changes: Any) -> Problem:
    sizes = {"batch": 1, "queries": 4096, "keys": 4096}
    kinds = {"bias_bytes": 0, "has_mask": False, "has_softcap": False, "keys_transposed": False, "shared_core": False}
    static = {"heads": 12, "kv_heads": 12, "head_dim": 128, "value_dim": 128, "element_bytes": 2}
    return Problem(**{**static, **kinds, "skips": False, "bottom_right": False, **sizes, **changes})


def predicted(**changes: Any) -> Prediction:
    prediction = predict(problem(**changes), PLATFORM_910B)
    assert isinstance(prediction, Prediction)
    return prediction


def on_310p(**changes: Any) -> Prediction:
    prediction = predict(problem(shared_core=True, **changes), PLATFORM_310P)
    assert isinstance(prediction, Prediction)
    return prediction


def test_scores_stay_on_chip_on_310p() -> None:
    short, long = on_310p(), on_310p(queries=16384, keys=16384)
    assert long.workspace_read == long.workspace_written == long.workspace_bytes == 0
    assert long.peak == short.peak


def test_memory_does_not_grow_with_the_sequence() -> None:
    short, long = predicted(), predicted(queries=16384, keys=16384)
    assert long.workspace_footprint == short.workspace_footprint
    assert long.workspace_bytes == short.workspace_bytes < 10 << 20
    assert long.peak == short.peak


def test_the_bytes_of_a_score_element() -> None:
    """12 B of scores and probabilities, K and V once a row tile, Q and partial results once a column tile."""
    p = predicted()
    rows, columns = p.parameters["rows"], p.parameters["columns"]
    elements = 12 * 4096 * 4096
    moved = p.tensor_bytes - p.writes["out"] + p.workspace_read + p.workspace_written
    assert moved / elements == pytest.approx(12 + 4 * 128 / rows + 10 * 128 / columns)


def test_causal_tiles_are_skipped_only_where_that_is_exact() -> None:
    whole, causal = predicted(), predicted(skips=True)
    assert 0.5 < causal.reads["k"] / whole.reads["k"] < 0.54


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from([2, 4]),
    st.integers(1, 256),
    st.integers(1, 256),
    st.integers(1, 5000),
    st.integers(1, 5000),
    st.sampled_from([0, 2, 4]),
    st.booleans(),
    st.booleans(),
)
def test_every_tiling_fits_the_chip(
    size: int, dim: int, value_dim: int, queries: int, keys: int, bias: int, mask: bool, cap: bool
) -> None:
    scores = (1, 12, queries, keys)
    p = predicted(
        element_bytes=size, head_dim=dim, value_dim=value_dim, queries=queries, keys=keys, bias_bytes=bias,
        has_mask=mask, has_softcap=cap, bias_shape=scores if bias else (), mask_shape=scores if mask else (),
    )  # fmt: skip
    assert p.peak["ub"] == sum(p.buffers.values()) <= PLATFORM_910B.ub
    assert p.peak["l1"] <= PLATFORM_910B.l1
    assert all(p.peak[name] <= getattr(PLATFORM_910B, name) for name in ("l0a", "l0b", "l0c"))


BASE = {
    "num_heads": 12, "num_kv_heads": 12, "head_dim": 64, "v_head_dim": 64, "scale": 0.125, "softmax_precision": 1,
    "q_layout": "BSH", "k_layout": "BSH", "v_layout": "BSH", "out_layout": "BSH",
}  # fmt: skip
HALVES = {"q": 10, "k": 10, "v": 10, "out": 10}


@pytest.mark.parametrize(
    ("changes", "soc", "because"),
    [
        ({}, "Ascend310B1", "no generated kernels for Ascend310B1"),
        ({"head_dim": 512}, "Ascend910B1", "head dims 512 and 64"),
        ({"num_kv_heads": 5}, "Ascend910B1", "cannot share 5 key heads"),
        ({"q_layout": "B N D S"}, "Ascend910B1", "head dim of q is not contiguous"),
        ({"q_layout": "B S [N D]"}, "Ascend910B1", "cannot be read"),
        ({f"{x}_layout": "(B S) (N D)" for x in "qkv"}, "Ascend910B1", "batch size cannot be read"),
        ({"head_dim": 40}, "Ascend310P3", "head_dim must be a multiple of 16"),
        ({"k_layout": "B N D S"}, "Ascend310P3", "keys must not be transposed"),
        ({"causal": "left"}, "Ascend910B1", "top_left"),
        ({"scale": math.nan}, "Ascend910B1", "scale is nan"),
    ],
)
def test_what_cannot_be_generated_is_refused(changes: Mapping[str, Any], soc: str, because: str) -> None:
    assert because in str(refusal_of(SPEC, {**BASE, **changes}, HALVES, soc))


def test_refused_signatures_raise_when_rendered_all_the_same() -> None:
    with pytest.raises(AtcfuseError, match="ATF704"):
        render_kernel(SPEC, {**BASE, "head_dim": 512}, HALVES, "Ascend910B1")
    with pytest.raises(AtcfuseError, match="ATF705"):
        render_kernel(SPEC, {"num_heads": 1}, HALVES, "Ascend910B1")


def test_the_op_type_names_the_content() -> None:
    one, same, other = (
        render_kernel(SPEC, {**BASE, "scale": scale}, HALVES, "Ascend910B1") for scale in (0.125, 0.125, 0.25)
    )
    assert one.files == same.files
    assert one.op_type != other.op_type
    assert one.op_type.isalnum()
    assert one.function == kernel_function(one.op_type)
    assert one.function.startswith("atcfuse_attention_")
    assert set(one.function.removeprefix("atcfuse_attention_")) <= set("abcdefghijklmnop")


@pytest.mark.parametrize(
    ("op_type", "function"),
    [
        ("LayerNormCustom", "layer_norm_custom"),
        ("Conv2D", "conv2_d"),
        ("GRUCell", "gru_cell"),
        ("GatherV2", "gather_v2"),
        ("FusedLayerNormQKV", "fused_layer_norm_qkv"),
        ("FusedMatMul", "fused_mat_mul"),
    ],
)
def test_kernel_functions_follow_the_toolkit(op_type: str, function: str) -> None:
    assert kernel_function(op_type) == function


@pytest.mark.parametrize("soc", ["Ascend910B1", "Ascend310P3"])
def test_generated_lines_fit_a_page(soc: str) -> None:
    attributes = {**BASE, "causal": "top_left", "softcap": 30.0}
    kernel = render_kernel(SPEC, attributes, {**HALVES, "bias": 10, "mask": 9}, soc)
    for name, text in kernel.files.items():
        assert max(map(len, text.splitlines())) <= 120, name
        assert "\n\n\n" not in text, name
        assert text.endswith("}\n") or name.endswith(".h"), name


LETTERS = {"B": "b", "S": "s", "N": "n", "D": "d"}


def test_layouts_give_strides_and_shapes() -> None:
    packed = parse_layout("B S (3 N D)")
    assert packed is not None
    assert packed.shape(LETTERS) == ["b", "s", "3 * n * d"]
    assert [packed.stride(letter, LETTERS) for letter in "BSND"] == ["s * 3 * n * d", "3 * n * d", "d", "1"]
    part = parse_layout("B S N:73 D")
    assert part is not None
    assert part.shape(LETTERS)[2] == "73"
    assert part.stride("S", LETTERS) == "73 * d"
    assert parse_layout("BNSD") == replace(parse_layout("B N S D"), text="BNSD")
    assert parse_layout("B S (N D") is None or parse_layout("B S (N D").innermost() == "D"


def test_sizes_are_read_where_one_alone_is_unknown() -> None:
    rows = parse_layout("(B S) (N D)")
    named = parse_layout("B S (N D)")
    assert rows is not None
    assert named is not None
    sizes = {"B": "b", "S": "s", "N": "n", "D": "d"}
    readings = read_sizes([(rows, sizes), (named, {**sizes, "S": "l"})], ("b", "s", "l"))
    assert not isinstance(readings, str)
    assert [(r.name, r.operand, r.axis, r.divisor) for r in readings] == [
        ("b", 1, 0, "1"),
        ("s", 0, 0, "b"),
        ("l", 1, 1, "1"),
    ]
    assert read_sizes([(rows, sizes)], ("b", "s")) in ("b", "s")


@needs_compiler
def test_shapes_that_disagree_are_refused(programs: Path) -> None:
    inputs = {name: np.zeros((1, 17, 128), dtype=np.float16) for name in "qkv"}
    kernel = kernel_of(Heads(), inputs)
    with pytest.raises(AtcfuseError, match=r"ATF703.*v does not have the shape BSH"):
        run_kernel(kernel, {**inputs, "v": np.zeros((1, 18, 128), dtype=np.float16)}, cache=programs)
    with pytest.raises(AtcfuseError, match=r"ATF706.*k is missing"):
        run_kernel(kernel, {"q": inputs["q"], "v": inputs["v"]}, cache=programs)
    with pytest.raises(AtcfuseError, match=r"ATF706.*expected float16"):
        run_kernel(kernel, {**inputs, "v": inputs["v"].astype(np.float32)}, cache=programs)


def test_without_a_compiler_there_is_a_clear_message(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    inputs = {name: np.zeros((1, 17, 128), dtype=np.float16) for name in "qkv"}
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(AtcfuseError, match=r"ATF700.*CXX names"):
        run_kernel(kernel_of(Heads(), inputs), inputs, cache=tmp_path)
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(AtcfuseError, match=r"ATF700.*no C\+\+ compiler"):
        run_kernel(kernel_of(Heads(), inputs), inputs, cache=tmp_path)
