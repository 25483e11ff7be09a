"""Verification by execution: right rewrites pass, wrong ones are caught, and inputs are made up sensibly."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper, parser

from atcfuse.diagnostics import AtcfuseError, UsageError
from atcfuse.graph import feeds_bytes
from atcfuse.graph.feeds import BFLOAT16, read_interface
from atcfuse.verify import Verification, generate_feeds, load_inputs, verification_dict, verification_text, verify
from atcfuse.verify import drift as drift_module
from atcfuse.verify.compare import Tolerance, compare_arrays
from atcfuse.verify.session import RuntimeFailure
from atcfuse.verify.values import keep_mask

HERE = Path(".")


def model(text: str, opset: int = 17, **weights: np.ndarray) -> onnx.ModelProto:
    out = parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}]>\n{text}')
    out.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in weights.items())
    return out


def compare(a: onnx.ModelProto, b: onnx.ModelProto, folder: Path = HERE, **options: object) -> Verification:
    return verify(a, b, base_dir_original=folder, base_dir_optimized=folder, **options)  # type: ignore[arg-type]


def codes(v: Verification) -> list[str]:
    return [d.code for d in v.diagnostics]


def random(*shape: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def attention(
    scale: float = 0.5, masked: str = "Sub(one, mf)", fill: float = -10000.0, tail: str = ""
) -> onnx.ModelProto:
    """Embedded tokens attending to each other under a padding mask."""
    return model(
        f"""g (int64[batch,seq] input_ids, int64[batch,seq] attention_mask) => (float[batch,seq,8] y) {{
          x = Gather(table, input_ids)
          t = Transpose<perm=[0,2,1]>(x)
          raw = MatMul(x, t)
          scaled = Mul(raw, scale)
          m3 = Unsqueeze(attention_mask, axis1)
          mf = Cast<to=1>(m3)
          off = {masked}
          bias = Mul(off, fill)
          logits = Add(scaled, bias)
          p = Softmax<axis=-1>(logits)
          y = MatMul(p, x)
        }}""",
        table=random(23, 8),
        scale=np.float32(scale).reshape(1),
        one=np.float32([1]),
        fill=np.float32([fill]),
        axis1=np.int64([1]),
    )


def layer_norm(epsilon: str = "1e-5", axes: str = "-1") -> onnx.ModelProto:
    return model(
        f"g (float[batch,seq,8] x) => (float[batch,seq,8] y) {{"
        f" s = Mul(x, c) y = LayerNormalization<axis={axes}, epsilon={epsilon}>(s, gamma, beta) }}",
        c=np.float32([0.01]),
        gamma=random(8),
        beta=random(8, seed=2),
    )


def test_a_model_agrees_with_itself_on_small_odd_single_and_ragged_sets() -> None:
    v = compare(attention(), attention())
    assert v.ok
    assert not v.diagnostics
    assert [name.split(";")[0] for name in v.feeds] == ["small", "odd", "odd", "small", "odd", "single"]
    assert {name.split("; ")[2] for name in v.feeds} >= {"mask right-padded", "mask one row masked", "mask scattered"}
    assert "batch=3 seq=11" in v.feeds[1]


def test_a_rewrite_that_only_rounds_differently_passes() -> None:
    folded = attention()
    # (q·s)·kᵀ instead of (q·kᵀ)·s
    for node in folded.graph.node:
        if node.output[0] == "raw":
            node.input[0] = "xs"
    folded.graph.node[3].CopyFrom(helper.make_node("Identity", ["raw"], ["scaled"]))
    folded.graph.node.insert(1, helper.make_node("Mul", ["x", "scale"], ["xs"]))
    v = compare(attention(), folded)
    assert v.ok
    assert max(o.max_abs for o in v.outputs) < 1e-5


def test_a_scale_that_is_one_percent_off_is_caught() -> None:
    v = compare(attention(0.5), attention(0.505))
    assert not v.ok
    assert codes(v) == ["ATF508"]
    worst = v.worst()[0]
    assert worst.status == "wrong"
    assert worst.max_rel > worst.limit == v.rtol == 2e-5
    assert v.drift is not None
    assert v.drift < 1e-5


def test_another_epsilon_is_caught() -> None:
    assert not compare(layer_norm("1e-5"), layer_norm("1e-6")).ok
    assert compare(layer_norm("1e-5"), layer_norm("1e-5", axes="2")).ok


def test_swapped_outputs_are_caught() -> None:
    text = "g (float[n,4] x) => (float[n,4] a, float[n,4] b) {{ {} = Relu(x) {} = Neg(x) }}"
    v = compare(model(text.format("a", "b")), model(text.format("b", "a")), rtol=1e-4)
    assert [(o.name, o.status) for o in v.worst()] == [("a", "wrong"), ("b", "wrong")]


def test_a_flipped_mask_is_caught_although_full_masks_do_not_show_it() -> None:
    v = compare(attention(), attention(masked="Identity(mf)"), rtol=1e-3)
    status = {o.size_set.split("; ")[-1]: o.status for o in v.outputs}
    assert status["mask all ones"] == "ok"
    assert status["mask right-padded"] == status["mask scattered"] == "wrong"


def test_what_a_fully_masked_row_gives_is_compared() -> None:
    """A finite fill attends uniformly there, an infinite one gives NaN; on all other rows they are equal."""
    text = """g (float[batch,seq,seq] s, bool[batch,seq] mask) => (float[batch,seq,seq] p) {
      m = Unsqueeze(mask, axis1)  w = Where(m, s, fill)  p = Softmax<axis=-1>(w) }"""
    finite, infinite = (
        model(text, axis1=np.int64([1]), fill=np.float32(f)) for f in (np.finfo(np.float32).min, -np.inf)
    )
    v = compare(finite, infinite)
    wrong = {o.size_set for o in v.outputs if o.status != "ok"}
    assert {o.status for o in v.outputs} == {"ok", "nan"}
    assert wrong
    assert all("one row masked" in name or "all ones, True = masked" in name for name in wrong)


def test_a_wrong_branch_is_caught_through_the_flag() -> None:
    text = """g (bool[1] use_cache_branch, float[n,4] x) => (float[n,4] y) {{
      y = If(use_cache_branch) <
        then_branch = t () => (float[n,4] a) {{ a = Mul(x, {}) }},
        else_branch = e () => (float[n,4] b) {{ b = Neg(x) }}> }}"""
    weights = {"two": np.float32([2]), "three": np.float32([3])}
    good, bad = model(text.format("two"), **weights), model(text.format("three"), **weights)
    assert compare(good, good).ok
    v = compare(good, bad, rtol=1e-4)
    assert {o.size_set: o.status == "ok" for o in v.outputs} == {n: "flags False" in n for n in v.feeds}
    assert sum("flags False" in n for n in v.feeds) > 1


def test_members_of_sequence_outputs_are_compared() -> None:
    text = "g (float[n,4] x) => (seq(float[n,4]) s) {{ a = Neg(x) b = Relu(x) s = SequenceConstruct({}) }}"
    v = compare(model(text.format("a, b")), model(text.format("a, a")), rtol=1e-4)
    assert [(o.name, o.status) for o in v.worst()] == [("s[0]", "ok"), ("s[1]", "wrong")]
    longer = compare(model(text.format("a, b")), model(text.format("a, b, a")), rtol=1e-4)
    assert {o.status for o in longer.outputs} == {"shape"}


def test_integer_outputs_must_be_equal() -> None:
    text = "g (float[n,4] x) => (int64[n] y) {{ t = {}(x) y = ArgMax<axis=1, keepdims=0>(t) }}"
    v = compare(model(text.format("Identity")), model(text.format("Neg")), rtol=1e9)
    assert not v.ok
    assert "elements differ" in v.worst()[0].message


def external(folder: Path, file: str, scale: float) -> onnx.ModelProto:
    out = model("g (float[n,4] x) => (float[n,4] y) { y = Mul(x, w) }")
    (folder / file).parent.mkdir(parents=True, exist_ok=True)
    (folder / file).write_bytes(b"\0" * 64 + (np.arange(4, dtype=np.float32) * np.float32(scale)).tobytes())
    tensor = TensorProto(name="w", dims=[4], data_type=TensorProto.FLOAT, data_location=TensorProto.EXTERNAL)
    for key, value in {"location": file, "offset": "64", "length": "16"}.items():
        tensor.external_data.add(key=key, value=value)
    out.graph.initializer.append(tensor)
    return out


def test_external_tensors_are_read_from_each_models_own_folder(tmp_path: Path) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    a, b = external(before, "weights/a.bin", 1.0), external(after, "b.bin", 1.01)
    assert not verify(a, b, base_dir_original=before, base_dir_optimized=after, rtol=1e-4).ok
    same = external(after, "c.bin", 1.0)
    assert verify(a, same, base_dir_original=before, base_dir_optimized=after).ok


def test_missing_external_data_is_told_without_the_folder(tmp_path: Path) -> None:
    a, b = external(tmp_path, "a.bin", 1.0), external(tmp_path, "b.bin", 1.0)
    (tmp_path / "b.bin").unlink()
    v = compare(a, b, tmp_path)
    assert codes(v) == ["ATF506"]
    assert str(tmp_path) not in v.diagnostics[0].message


def test_weights_beyond_protobufs_limit_travel_beside_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds_bytes, "SPILL_ABOVE", 16)
    monkeypatch.setattr(feeds_bytes, "SPILL_TENSOR", 32)
    whole = model(
        "g (float[n,8] x) => (float[n,8] y) { h = Cast<to=10>(x) z = Mul(h, half) f = Cast<to=1>(z) y = MatMul(f, w) }",
        w=random(8, 8),
        half=np.ones(32, np.float16)[:1],
    )
    content, left_out = feeds_bytes.model_bytes(whole)
    assert list(left_out) == ["w"]
    assert numpy_helper.to_array(whole.graph.initializer[0]).tobytes() not in content
    assert compare(whole, whole).ok


def test_overridden_initializers_are_part_of_the_comparison() -> None:
    text = "g (float[n,4] x, float[4] w) => (float[n,4] y) { y = Mul(x, w) }"
    constant = "g (float[n,4] x, float[4] w) => (float[n,4] y) { y = Mul(x, frozen) }"
    w = random(4)
    v = compare(model(text, w=w), model(constant, w=w, frozen=w), rtol=1e-4)
    assert [o.status for o in v.outputs] == ["ok", "ok", "ok", "wrong"]
    assert "overridden" in v.worst()[0].size_set


def test_a_size_that_fails_in_the_original_is_dropped_and_another_one_found() -> None:
    """Tracing baked the shape [2, 8] in although the axes are declared dynamic."""
    baked = model(
        "g (float[batch,seq,4] x) => (float[2,8,2,2] y) { y = Reshape(x, traced) }",
        traced=np.int64([2, 8, 2, 2]),
    )
    v = compare(baked, baked)
    assert v.ok
    assert set(codes(v)) == {"ATF510"}
    assert any("batch=2 seq=8" in name for name in v.feeds)


def test_failing_where_the_original_runs_is_an_error() -> None:
    text = "g (float[n,4] x) => (float[m,4] y) {{ y = {} }}"
    a, b = model(text.format("Identity(x)")), model(text.format("Reshape(x, to)"), to=np.int64([2, 4]))
    v = compare(a, b)
    assert "ATF507" in codes(v)
    failed = next(d for d in v.diagnostics if d.code == "ATF507")
    assert "odd" in failed.message
    assert "Reshape" in failed.notes[0]


def test_without_a_set_that_runs_inputs_are_asked_for() -> None:
    text = "g (float[n,4] x) => (float[m,4] y) { y = Reshape(x, to) }"
    picky = model(text, to=np.int64([4999, 4]))
    v = compare(picky, picky)
    assert not v.ok
    assert codes(v)[-1] == "ATF504"
    assert "--inputs F.npz" in v.diagnostics[-1].hint


@pytest.mark.parametrize(
    ("outputs", "status"), [("float[n,4] b, float[n,4] a", None), ("float[n,4] a", "missing")], ids=["order", "lost"]
)
def test_reordered_and_lost_outputs_are_errors(outputs: str, status: str | None) -> None:
    text = "g (float[n,4] x) => ({}) {{ a = Relu(x) b = Neg(x) }}"
    v = compare(model(text.format("float[n,4] a, float[n,4] b")), model(text.format(outputs)))
    assert not v.ok
    assert codes(v)[0] == "ATF509"
    assert {o.status for o in v.outputs} - {"ok"} == ({status} if status else set())


def test_an_output_without_any_number_is_pointed_out() -> None:
    zero = model("g (float[n,4] x) => (float[n,4] y) { y = Mul(x, zero) }", zero=np.float32([0]))
    v = compare(zero, zero)
    assert v.ok
    assert codes(v) == ["ATF512"]


def half_model(factor: float) -> onnx.ModelProto:
    return model(
        "g (float[n,4] x) => (float[n,4] y) { h = Cast<to=10>(x) m = Mul(h, f) y = Cast<to=1>(m) }",
        f=np.array([factor], np.float16),
    )


def test_the_default_tolerance_follows_the_precision() -> None:
    assert compare(half_model(1.0), half_model(1.001)).ok
    assert compare(half_model(1.0), half_model(1.001), rtol=1e-4).ok is False
    assert compare(half_model(1.0), half_model(1.02)).ok is False
    assert read_interface(half_model(1.0)).precision == "half"
    assert read_interface(attention()).precision == "float32"


def test_the_originals_own_drift_widens_the_tolerance_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, off = (model("g (float[n,4] x) => (float[n,4] y) { y = Mul(x, f) }", f=np.float32([f])) for f in (1, 1.001))

    def drifting(factor: float) -> object:
        return lambda m, b, i, feeds: [{"y": f.values["x"] * np.float32(factor)} for f in feeds]

    monkeypatch.setattr("atcfuse.verify.core.optimized_results", drifting(1.0002))
    v = compare(plain, off)
    assert v.ok
    assert set(codes(v)) == {"ATF511"}
    assert not compare(plain, off, rtol=2e-5).ok
    monkeypatch.setattr("atcfuse.verify.core.optimized_results", drifting(2.0))
    far = model("g (float[n,4] x) => (float[n,4] y) { y = Mul(x, f) }", f=np.float32([1.01]))
    assert not compare(plain, far).ok


def test_a_crashing_optimizer_leaves_the_default_tolerance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drift_module, "CHILD", "import os; os.abort()")
    v = compare(attention(0.5), attention(0.505))
    assert not v.ok
    assert codes(v) == ["ATF511", "ATF508"]
    with pytest.raises(RuntimeFailure):
        drift_module.optimized_results(attention(), HERE, read_interface(attention()), [])


def roles(m: onnx.ModelProto) -> dict[str, tuple[str, int | None]]:
    return {i.name: (i.role, i.bound) for i in read_interface(m).inputs}


def test_vocabularies_are_found_through_casts_offsets_functions_and_bodies() -> None:
    m = parser.parse_model("""<ir_version: 8, opset_import: ["": 17, "local": 1]>
      g (int32[b,s] ids, int64[b,s] token_type_ids, int64[s] position_ids, int64[s] shifted, bool cond)
      => (float[b,s,2] y)
      <float[9,2] words, float[2,2] types, float[7,2] places, int64 two = {2}> {
        wide = Cast<to=7>(ids)
        w = local.look (words, wide)
        t = If(cond) <then_branch = a () => (float[b,s,2] u) { u = Gather(types, token_type_ids) },
                      else_branch = z () => (float[b,s,2] n) { n = Neg(w) }>
        p = Gather(places, position_ids)
        moved = Add(shifted, two)
        q = Gather(places, moved)
        wt = Add(w, t) pq = Add(p, q) y = Add(wt, pq)
      }
      <domain: "local", opset_import: ["": 17]> look (table, i) => (o) { o = Gather(table, i) }""")
    m.graph.initializer.extend(numpy_helper.from_array(random(n, 2), name) for n, name in ((9, "words"), (2, "types")))
    assert roles(m) == {
        "ids": ("index", 9),
        "token_type_ids": ("index", 2),
        "position_ids": ("positions", 7),
        "shifted": ("index", 5),
        "cond": ("flag", None),
    }


def test_masks_are_known_by_what_is_done_with_them() -> None:
    m = model(
        """g (float[b,s] keep, bool[b,s] valid, float[b,1,s,s] attn_mask, float[b,s] x) => (float[b,s] y) {
          off = Sub(one, keep) bias = Mul(off, big) a = Add(x, bias)
          v = Where(valid, a, big) y = Add(v, attn_mask) }""",
        one=np.float32([1]),
        big=np.float32([-1e9]),
    )
    assert {n: r for n, (r, _) in roles(m).items()} == {
        "keep": "mask",
        "valid": "mask",
        "attn_mask": "bias",
        "x": "value",
    }


def test_generated_ids_are_in_range_and_sums_of_dims_hold() -> None:
    m = model(
        """g (int64[batch,seq] input_ids, int64[batch, total] attention_mask, float[batch,2,past,4] past_key_values)
          => (float[batch,seq,4] y) { y = Gather(table, input_ids) }""",
        table=random(13, 4),
    )
    m.graph.input[1].type.tensor_type.shape.dim[1].dim_param = "past + seq"
    feeds = generate_feeds(m, seed=3)
    shapes = [
        (f.values["input_ids"].shape, f.values["attention_mask"].shape, f.values["past_key_values"].shape)
        for f in feeds
    ]
    assert all(ids[0] == mask[0] == past[0] and mask[1] == past[2] + ids[1] for ids, mask, past in shapes)
    assert {past[2] == 0 for _, _, past in shapes} == {True, False}
    assert len({ids for ids, _, _ in shapes}) >= 3
    ids = np.concatenate([f.values["input_ids"].ravel() for f in feeds])
    assert ids.min() >= 0
    assert 10 <= ids.max() < 13
    masks = [f.values["attention_mask"] for f in feeds]
    assert any(not mask.any(axis=1).all() for mask in masks)
    assert all(mask.any(axis=1)[1:].all() for mask in masks)


def test_equal_seeds_give_equal_values() -> None:
    def content(seed: int) -> list[bytes]:
        return [f.values["input_ids"].tobytes() for f in generate_feeds(attention(), seed)]

    assert content(5) == content(5) != content(6)


@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 99))
def test_ragged_rows_keep_a_token_and_the_first_is_short(rows: int, length: int, seed: int) -> None:
    for masking in ("right-padded", "left-padded", "scattered"):
        keep = keep_mask((rows, 1, length), masking, np.random.default_rng(seed))
        assert keep.any(axis=-1).all()
        assert length == 1 or not keep[0].all()
    right = keep_mask((rows, length), "right-padded", np.random.default_rng(seed)).astype(int)
    assert (np.diff(right, axis=1) <= 0).all()
    one = keep_mask((rows, length), "one row masked", np.random.default_rng(seed))
    assert not one[0].any()
    assert one[1:].any(axis=-1).all()


@given(st.floats(-1e3, 1e3, width=32), st.floats(1e-6, 1.0))
def test_the_relative_error_is_against_the_largest_reference(value: float, delta: float) -> None:
    reference = np.array([value, 2000.0, np.inf, np.nan])
    got = reference + np.array([delta, 0, 0, 0])
    one = compare_arrays("y", "set", reference, got, Tolerance(1e-3))
    expected = abs(got[0] - reference[0])
    assert one.max_abs == expected
    assert one.max_rel == expected / 2000.0
    assert one.status == "ok"
    assert compare_arrays("y", "set", reference, got, Tolerance(expected / 4000.0)).status == "wrong"


@pytest.mark.parametrize(
    ("got", "status"),
    [
        (np.float32([1, np.inf]), "wrong"),
        (np.float32([1, np.nan]), "nan"),
        (np.float64([1, 2]), "shape"),
        (np.float32([[1, 2]]), "shape"),
    ],
)
def test_other_kinds_of_difference(got: np.ndarray, status: str) -> None:
    one = compare_arrays("y", "set", np.float32([1, 2]), got, Tolerance(1e9))
    assert one.status == status
    assert one.message


def test_bfloat16_goes_in_and_out() -> None:
    text = "g (bfloat16[n,4] x) => (bfloat16[n,4] y, float[n,4] z) { y = Identity(x) z = Cast<to=1>(x) }"
    m = model(text)
    v = compare(m, m)
    assert v.ok
    assert not v.diagnostics
    assert read_interface(m).inputs[0].dtype == BFLOAT16


def test_given_inputs_are_used_and_checked(tmp_path: Path) -> None:
    m = attention()
    path = tmp_path / "in.npz"
    ids, mask = np.int64([[1, 2, 3]]), np.int64([[1, 1, 0]])
    np.savez(path, input_ids=ids, attention_mask=mask)
    v = compare(m, m, inputs=load_inputs(path))
    assert v.feeds == ("given inputs",)
    assert v.ok
    beyond = compare(m, m, inputs={"input_ids": ids + 99, "attention_mask": mask})
    assert codes(beyond) == ["ATF513"]


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        ({"input_ids": None}, "ATF502", "'input_ids' is not among"),
        ({"atention_mask": np.int64([[1]])}, "ATF502", "not an input"),
        ({"input_ids": np.float64([[1]])}, "ATF503", "float64, the model takes int64"),
        ({"input_ids": np.int64([1])}, "ATF503", "rank 1"),
    ],
)
def test_wrong_given_inputs_have_a_code(change: dict[str, np.ndarray | None], code: str, words: str) -> None:
    values = {"input_ids": np.int64([[1]]), "attention_mask": np.int64([[1]]), **change}
    with pytest.raises(AtcfuseError) as caught:
        compare(attention(), attention(), inputs={n: v for n, v in values.items() if v is not None})
    assert [d.code for d in caught.value.diagnostics] == [code]
    assert words in str(caught.value)


def test_files_that_cannot_be_inputs_have_a_code(tmp_path: Path) -> None:
    for path in (tmp_path / "none.npz", tmp_path):
        with pytest.raises(UsageError, match="ATF500"):
            load_inputs(path)
    text, array, pickled, cut, foreign = (tmp_path / n for n in ("t.npz", "a.npy", "p.npz", "c.npz", "f.npz"))
    text.write_text("not an archive")
    np.save(array, np.zeros(3))
    np.savez(pickled, x=np.array([{"a": 1}], dtype=object))
    np.savez(cut, x=np.zeros(1000))
    cut.write_bytes(cut.read_bytes()[:500])
    empty = tmp_path / "empty.npz"
    empty.write_bytes(b"")
    with zipfile.ZipFile(foreign, "w") as archive:
        archive.writestr("readme.txt", "no array")
    for path in (text, array, pickled, cut, empty, foreign):
        with pytest.raises(AtcfuseError, match="ATF501") as caught:
            load_inputs(path)
        assert caught.value.exit_code == 1
    with pytest.raises(AtcfuseError, match="never loaded"):
        load_inputs(pickled)


def test_text_and_json_tell_the_worst_of_every_output() -> None:
    v = compare(attention(), attention(0.505), rtol=2e-5)
    text = verification_text(v)
    assert text.startswith("models DIFFER on 6 input sets")
    assert "wrong" in text
    data = json.dumps(verification_dict(v), sort_keys=True)
    assert data == json.dumps(verification_dict(compare(attention(), attention(0.505), rtol=2e-5)), sort_keys=True)
    parsed = json.loads(data)
    assert parsed["ok"] is False
    assert [o["name"] for o in parsed["outputs"]] == ["y"]
    assert parsed["outputs"][0]["max_rel"] == pytest.approx(v.worst()[0].max_rel, rel=1e-2)


def test_numbers_that_json_cannot_hold_become_null() -> None:
    zero = model("g (float[n,4] x) => (float[n,4] y) { y = Mul(x, f) }", f=np.float32([0]))
    other = model("g (float[n,4] x) => (float[n,4] y) { y = Mul(x, f) }", f=np.float32([1]))
    output = verification_dict(compare(zero, other, rtol=1e-4))["outputs"][0]  # type: ignore[index]
    assert output["max_rel"] is None
    assert output["status"] == "wrong"
