"""Layout texts, and the meaning functions that unfold and fold by them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import atcfuse
from atcfuse.diagnostics import AtcfuseError
from atcfuse.graph.text import parse_graph
from atcfuse.layout import ALIASES, parse_layout
from atcfuse.meaning import Writer

SIZES = {"B": 2, "N": 3, "S": 5, "D": 4}


@dataclass(frozen=True)
class Layout:
    """A random layout: `axes` of letters and numbers, `taken` the part of each number that the operand takes."""

    text: str
    axes: tuple[tuple[str, ...], ...]
    taken: tuple[int, ...]


@st.composite
def layouts(draw: st.DrawFn, numbers: bool) -> Layout:
    """Layouts that a meaning can read: no number above what is read from a shape unless its first part is taken."""
    letters = draw(st.permutations("BNSD"))
    words: list[str] = [letter for letter in letters if letter in "SD" or draw(st.integers(0, 5))]
    if numbers:
        for _ in range(draw(st.integers(0, 2))):
            words.insert(draw(st.integers(0, len(words))), draw(st.sampled_from(["2", "3"])))
    axes: list[list[str]] = [[words[0]]]
    for word in words[1:]:
        # Batch and positions in one axis cannot be told apart.
        together = draw(st.booleans()) and not {"B", "S"} <= {*axes[-1], word}
        axes[-1].append(word) if together else axes.append([word])
    text = " ".join(a[0] if len(a) == 1 else f"({' '.join(a)})" for a in axes)
    taken = []
    for position, word in enumerate(words):
        if word.isdigit():
            readable = not {"B", "S"} & set(words[position + 1 :])
            taken.append(draw(st.integers(0, int(word) - 1)) if readable else 0)
    return Layout(text, tuple(tuple(a) for a in axes), tuple(taken))


def size(word: str) -> int:
    return int(word) if word.isdigit() else SIZES[word]


def offset(layout: Layout) -> int:
    """Elements before the operand's first one."""
    words = [word for axis in layout.axes for word in axis]
    parts = iter(layout.taken)
    return sum(
        next(parts) * math.prod(size(w) for w in words[i + 1 :]) for i, word in enumerate(words) if word.isdigit()
    )


def run(body: str, x: np.ndarray) -> np.ndarray:
    text = f'<ir_version: 8, opset_import: ["" : 17]> g (float[{", ".join("abcdef"[i] for i in range(x.ndim))}] x) => (float y) {{\n{body}}}'
    model = onnx.parser.parse_model(text)
    del model.graph.output[0].type.tensor_type.shape.dim[:]
    model.graph.output[0].type.tensor_type.ClearField("shape")
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"x": x})[0])


@given(layouts(numbers=True))
@settings(max_examples=120, deadline=None)
def test_unfolding_reads_what_the_layout_says(layout: Layout) -> None:
    words = [word for axis in layout.axes for word in axis]
    split = np.arange(math.prod(size(w) for w in words), dtype=np.float32).reshape([size(w) for w in words])
    memory = split.reshape([math.prod(size(w) for w in axis) for axis in layout.axes])
    parts = iter(layout.taken)
    picked = split[tuple(next(parts) if w.isdigit() else slice(None) for w in words)]
    letters = [w for w in words if not w.isdigit()]
    expected = picked.transpose([letters.index(c) for c in "BNSD" if c in letters])
    expected = expected.reshape([SIZES[c] if c in letters else 1 for c in "BNSD"])
    body = Writer(17).unfold("y", "x", layout.text, offset(layout), SIZES["N"] if "N" in letters else 1, SIZES["D"])
    np.testing.assert_array_equal(run(body, memory), expected)


@given(layouts(numbers=False))
@settings(max_examples=120, deadline=None)
def test_folding_writes_what_the_layout_says(layout: Layout) -> None:
    letters = [word for axis in layout.axes for word in axis]
    value = np.arange(math.prod(SIZES[c] if c in letters else 1 for c in "BNSD"), dtype=np.float32)
    value = value.reshape([SIZES[c] if c in letters else 1 for c in "BNSD"])
    kept = value.reshape([SIZES[c] for c in "BNSD" if c in letters])
    present = [c for c in "BNSD" if c in letters]
    expected = kept.transpose([present.index(c) for c in letters])
    expected = expected.reshape([math.prod(SIZES[w] for w in axis) for axis in layout.axes])
    body = Writer(17).fold("y", "x", layout.text, SIZES["N"] if "N" in letters else 1, SIZES["D"])
    np.testing.assert_array_equal(run(body, value), expected)


@pytest.mark.parametrize("name", ["BSH", "BSND", "BNSD", "SBH"])
def test_names_stand_for_their_axes(name: str) -> None:
    spelled = next(text for text, alias in ALIASES.items() if alias == name)
    assert parse_layout(name, 0, {"N": 3, "D": 4}) == parse_layout(spelled, 0, {"N": 3, "D": 4})


def test_offsets_select_parts() -> None:
    factors = parse_layout("B S (3 N D)", 24, {"N": 3, "D": 4})
    assert [(f.letter, f.size, f.index) for f in factors if f.letter is None] == [(None, 3, 2)]
    (part,) = [f for f in parse_layout("B S (N:73 D)", 280, {"N": 3, "D": 4}) if f.taken is not None]
    assert (part.letter, part.size, part.index, part.taken) == ("N", 73, 70, 3)


@pytest.mark.parametrize("text", ["B X S D", "B S (N;D)", "B:x", "b s", "B N:-1"])
def test_what_is_no_layout(text: str) -> None:
    with pytest.raises(AtcfuseError) as caught:
        parse_layout(text, 0, {"N": 3, "D": 4, "B": 1})
    assert caught.value.diagnostics[0].code == "ATF219"


def test_a_batch_over_several_open_axes_is_what_keeps_attention_of_windows() -> None:
    """Before opset 14 no Reshape gives two open axes back."""
    text = """(float[B,W,9,24] x) => (float[B,W,3,9,8] y) <int64[5] heads = {0, 0, 9, 3, 8}> {
        s = Reshape(x, heads) q = Transpose<perm = [0, 1, 3, 2, 4]>(s) t = Transpose<perm = [0, 1, 3, 4, 2]>(s)
        a = MatMul(q, t) p = Softmax<axis = -1>(a) y = MatMul(p, q) }"""
    kept = atcfuse.optimize(parse_graph(text, 13), dialect="portable", min_saving_us=0.0).report["kept"]
    (entry,) = [k for k in kept if k["rule"] == "attention"]
    assert entry["code"] == "ATF315"
    assert entry["reason"] == "the batch of q lies over several axes of q, which no layout names"
