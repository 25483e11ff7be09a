"""Attention written with Einsum becomes products that change no number, and fuses; other Einsums stay."""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import onnx
import onnx.parser
import plain
import pytest

import atcfuse
from atcfuse import moves
from atcfuse.graph.index import Model
from atcfuse.graph.infer import infer
from atcfuse.keep_nodes import NO_NODES

SIZES = {"b": 2, "h": 3, "q": 4, "k": 5, "d": 8, "e": 6}
ATTENTION = {
    "heads first": ("bhqd,bhkd->bhqk", "bhqk,bhke->bhqe"),
    "positions first": ("bqhd,bkhd->bhqk", "bhqk,bkhe->bqhe"),
    "the keys on the left": ("bkhd, bqhd -> bhqk", "bhqk, bkhe -> bqhe"),
    "the values on the left": ("bhqd,bhdk->bhqk", "bhke,bhqk->bhqe"),
    "heads in the batch": ("bqd,bkd->bqk", "bqk,bke->bqe"),
    "heads share keys": ("bhqd,bkd->bhqk", "bhqk,bke->bhqe"),
    "heads share keys, which are on the left": ("bkd,bqhd->bhqk", "bke,bhqk->bqhe"),
}
STAYS = {
    "no softmax near": 'y = Einsum<equation = "bhqd,bhkd->bhqk">(q, k)',
    "keys are summed up": 'a = Einsum<equation = "bhqd,bhkd->bhq">(q, k) y = Softmax(a)',
    "a diagonal": 'a = Einsum<equation = "bhqd,bhqd->bhq">(q, q) y = Softmax(a)',
    "two axes are summed over": 'a = Einsum<equation = "bhqd,bhkd->qk">(q, k) y = Softmax(a)',
    "an axis twice": 'a = Einsum<equation = "bhqq,bhkq->bhqk">(s, k) y = Softmax(a)',
    "an axis of length 1 that is summed over": 'a = Einsum<equation = "bhqd,bhkd->bhqk">(q, t) y = Softmax(a)',
    "dots for more axes here than there": 'a = Einsum<equation = "...qd,...kd->...qk">(q, m) y = Softmax(a)',
    "dots of one operand": 'a = Einsum<equation = "...qd,bhkd->...qk">(q, k) y = Softmax(a)',
    "no result": 'a = Einsum<equation = "bhqd,bhkd">(q, k) y = Softmax(a)',
    "no batch": 'a = Einsum<equation = "qd,kd->qk">(m, m) y = Softmax(a)',
}


def parsed(text: str) -> onnx.ModelProto:
    return plain.parsed(f'<ir_version: 8, opset_import: ["" : 17]> g {text}')


def attention(scores: str, sums: str) -> onnx.ModelProto:
    """Scores of q and k, softmax, and what they take of v; the operands are named by the letter that only they have."""

    def operands(equation: str) -> list[str]:
        return [t.strip() for t in equation.split("->")[0].split(",")]

    terms = {("q" if "q" in t else "k"): t for t in operands(scores)} | {
        "v": next(t for t in operands(sums) if "q" not in t)
    }
    inputs = ", ".join(f"float[{','.join(str(SIZES[c]) for c in t)}] {n}" for n, t in terms.items())
    first = ", ".join("q" if "q" in t else "k" for t in operands(scores))
    second = ", ".join("p" if "q" in t else "v" for t in operands(sums))
    out = ",".join(str(SIZES[c]) for c in sums.split("->")[1].strip())
    return parsed(f"""({inputs}) => (float[{out}] y) <float c = {{0.3}}> {{
        a = Einsum<equation = "{scores}">({first}) s = Mul(a, c) p = Softmax<axis = -1>(s)
        y = Einsum<equation = "{sums}">({second}) }}""")


def run(model: onnx.ModelProto) -> np.ndarray:
    session = plain.plain_session(model)
    rng = np.random.default_rng(7)
    feeds = {
        i.name: rng.normal(size=i.shape).astype(np.float32) for i in sorted(session.get_inputs(), key=lambda i: i.name)
    }
    return np.asarray(session.run(None, feeds)[0])


@pytest.mark.parametrize(("scores", "sums"), ATTENTION.values(), ids=ATTENTION)
def test_attention_of_einsums_fuses(scores: str, sums: str) -> None:
    proto = attention(scores, sums)
    original, moved = run(proto), deepcopy(proto)
    model = Model(moved)
    infer(model)
    begun = moves.find(model, NO_NODES)
    assert len(begun) == 2
    moves.carry_out(model, begun)
    onnx.checker.check_model(moved, full_check=True)
    np.testing.assert_allclose(run(moved), original, rtol=1e-5, atol=1e-6)
    result = atcfuse.optimize(proto, dialect="portable", min_saving_us=0.0)
    assert "FusedAttention" in [f["op"] for f in result.report["fusions"]]
    np.testing.assert_allclose(run(result.model), original, rtol=1e-5, atol=1e-6)


def test_dots_stand_for_letters() -> None:
    proto = parsed("""(float[2,3,4,8] q, float[2,3,5,8] k, float[2,3,5,6] v) => (float[2,4,3,6] y) <float c = {0.3}> {
        a = Einsum<equation = "...qd,...kd->...qk">(q, k) s = Mul(a, c) p = Softmax<axis = -1>(s)
        o = Einsum<equation = "...qk, ...ke -> ...qe">(p, v) y = Transpose<perm = [0, 2, 1, 3]>(o) }""")
    original = run(proto)
    result = atcfuse.optimize(proto, dialect="portable", min_saving_us=0.0)
    assert [n.op_type for n in result.model.graph.node] == ["FusedAttention"]
    np.testing.assert_allclose(run(result.model), original, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("body", STAYS.values(), ids=STAYS)
def test_other_einsums_stay(body: str) -> None:
    model = Model(
        parsed(
            f"(float[2,3,4,8] q, float[2,3,5,8] k, float[2,3,8,8] s, float[4,4] m, float[2,3,5,1] t) => (float y) {{ {body} }}"
        )
    )
    infer(model)
    assert moves.find(model, NO_NODES) == []


def test_an_einsum_that_no_attention_takes_up_goes_back() -> None:
    proto = attention(*ATTENTION["positions first"])
    proto.graph.output.append(onnx.helper.make_tensor_value_info("p", 1, [2, 3, 4, 5]))
    result = atcfuse.optimize(proto, dialect="portable", min_saving_us=0.0)
    assert [n.op_type for n in result.model.graph.node].count("Einsum") == 2
