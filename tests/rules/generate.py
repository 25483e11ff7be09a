"""Attention blocks from independent choices of spelling: every valid case must fuse and agree in numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from building import Array, Builder, Built

B, H, S, L, D = 2, 4, 3, 5, 8
KV = 2
LOWEST = {"float32": -3.4028234663852886e38, "float16": -65504.0}
BOOL = 9

CHOICES: dict[str, tuple[str, ...]] = {
    "layout": (
        "BNSD", "BSH", "BSND", "SBH", "bmm", "packed_split", "packed_slice", "packed_5d_split", "packed_5d_gather",
        "interleaved", "interleaved_gather", "grouped", "one_kv_head", "cache",
    ),
    "scale": ("none", "mul", "div", "mul_q", "div_q", "both", "computed", "early", "on_k", "stacked"),
    "keys": ("after", "merged", "flat"),
    "mask": (
        "none", "B11L", "B1SL", "SL", "BHSL", "constant", "two", "keep_inf", "drop_inf", "keep_finite", "drop_finite",
        "selected", "causal_buffer", "trilu", "keep_and_add", "zero", "range_inf", "range_finite", "range_late", "tril_added",
    ),
    "guard": ("none", "isnan", "row_max"),
    "merge": ("BSH", "BNSD", "BSND", "SBH"),
    "dtype": ("float32", "float16"),
    "dims": ("static", "dynamic"),
    "targets": ("constant", "computed"),
    "extra": ("none", "shape", "identity", "dropout"),
    "softmax": ("plain", "cast"),
    "cap": ("none", "cap"),
    "opset": ("11", "13", "17", "18"),
}  # fmt: skip
"""The parameters and their values."""

PACKED = ("packed_split", "packed_slice", "packed_5d_split", "packed_5d_gather", "interleaved", "interleaved_gather")
ADDED = ("B11L", "B1SL", "SL", "BHSL", "constant", "two")


def valid(case: Mapping[str, str]) -> bool:
    """Whether the choices make sense together."""
    layout, mask = case["layout"], case["mask"]
    if case["keys"] == "merged" and layout not in ("BSH", "BSND", "packed_split", "packed_slice"):
        return False
    if case["guard"] == "row_max" and mask not in ("B11L", "B1SL", "SL", "BHSL", "constant"):
        return False
    if case["guard"] == "row_max" and layout == "bmm" and mask != "SL":
        return False  # the guard's rows would not line up with those of 3-D probabilities
    if layout == "bmm" and case["softmax"] == "cast":
        # onnxruntime keeps the float32 of a float16 Add that is cast back at once, but not across this Reshape.
        return False
    if mask in ("trilu", "tril_added") and int(case["opset"]) < 14:
        return False
    if case["softmax"] == "cast" and case["dtype"] == "float32":
        return False
    return not (layout == "bmm" and case["merge"] == "BSND")


def build(case: Mapping[str, str], seed: int = 0) -> Built:
    """The model of a valid case and its input sets."""
    return _Attention(case).build(seed)


@dataclass
class _Attention:
    case: Mapping[str, str]

    def __post_init__(self) -> None:
        self.b = Builder(int(self.case["opset"]), self.case["dtype"])
        self.rng = np.random.default_rng(0)
        self.own = self.case["layout"] in PACKED
        self.positions = S if self.own else L
        dynamic = self.case["dims"] == "dynamic"
        self.batch: int | str = "batch" if dynamic else B
        self.queries: int | str = "queries" if dynamic else S
        self.keys: int | str = self.queries if self.own else "keys" if dynamic else L

    def build(self, seed: int) -> Built:
        b = self.b
        q, k, v = getattr(self, f"_{self.case['layout']}")()
        q, kt = self._scaled_operands(q, self._transposed(k))
        scores = self._masked(self._capped(self._scaled_scores(b.op("MatMul", q, kt), q)))
        probs = self._softmax(scores)
        out = self._merged(b.op("MatMul", probs, v))
        b.output(out, 3 if self.case["merge"] in ("BSH", "SBH") else 4)
        return Built(b.model(), tuple(self._feed(seed + i, kind) for i, kind in enumerate(("lowest", "infinite"))))

    # Operands: each layout gives q [B,H,S,D], k and v [B,H,L,D] (bmm: [B*H,…]).

    def _input(self, name: str, positions: int | str, heads: int, order: str = "BSH") -> str:
        shapes = {
            "BSH": [self.batch, positions, heads * D],
            "BSND": [self.batch, positions, heads, D],
            "BNSD": [self.batch, heads, positions, D],
            "SBH": [positions, self.batch, heads * D],
        }
        return self.b.input(name, shapes[order])

    def _split_heads(self, x: str, heads: int = H, perm: tuple[int, ...] = (0, 2, 1, 3)) -> str:
        """[B,S,heads*D] to [B,heads,S,D]."""
        return self.b.transpose(self.b.reshape(x, self._target(x, heads, D)), *perm)

    def _target(self, x: str, *rest: int) -> list[int | str]:
        return [0, -1, *rest] if self.case["targets"] == "constant" else [f"{x}:0", f"{x}:1", *rest]

    def _noted(self, x: str) -> str:
        """A value with the extra consumer or no-op of the case."""
        b, extra = self.b, self.case["extra"]
        if extra == "shape":
            b.output(b.op("Shape", x), 1, element=7)
        elif extra == "identity":
            return b.op("Identity", x)
        return x

    def _operands(self, order: str) -> tuple[str, str, str]:
        names = zip("qkv", (self.queries, self.keys, self.keys), strict=True)
        q, k, v = (self._input(name, positions, H, order) for name, positions in names)
        return q, k, v

    def _BNSD(self) -> tuple[str, str, str]:
        q, k, v = self._operands("BNSD")
        q = self._early(q)
        return self._noted(q), k, v

    def _BSH(self) -> tuple[str, str, str]:
        q, k, v = self._operands("BSH")
        return self._noted(self._split_heads(self._early(q))), self._keys_of(k), self._split_heads(v)

    def _keys_of(self, k: str) -> str:
        merged = self.case["keys"] == "merged"
        return self._split_heads(k, perm=(0, 2, 3, 1) if merged else (0, 2, 1, 3))

    def _BSND(self) -> tuple[str, str, str]:
        q, k, v = self._operands("BSND")
        perm = (0, 2, 3, 1) if self.case["keys"] == "merged" else (0, 2, 1, 3)
        t = self.b.transpose
        return self._noted(t(self._early(q), 0, 2, 1, 3)), t(k, *perm), t(v, 0, 2, 1, 3)

    def _SBH(self) -> tuple[str, str, str]:
        q, k, v = self._operands("SBH")
        return self._noted(self._from_sbh(self._early(q))), self._from_sbh(k), self._from_sbh(v)

    def _from_sbh(self, x: str) -> str:
        return self.b.transpose(self.b.reshape(x, self._target_sbh(x)), 1, 2, 0, 3)

    def _target_sbh(self, x: str) -> list[int | str]:
        return [-1, 0, H, D] if self.case["targets"] == "constant" else [f"{x}:0", f"{x}:1", H, D]

    def _bmm(self) -> tuple[str, str, str]:
        q, k, v = self._operands("BSH")
        return (
            self._flat(self._noted(self._split_heads(self._early(q)))),
            self._flat(self._split_heads(k)),
            self._flat(self._split_heads(v)),
        )

    def _flat(self, x: str) -> str:
        """[B,H,S,D] to [B*H,S,D]."""
        if self.case["dims"] == "static":
            return self.b.op("Reshape", x, self.b.ints([B * H, -1, D]))
        return self.b.op(
            "Reshape", x, self.b.op("Concat", self.b.ints([-1]), self.b.extent(x, 2), self.b.ints([D]), axis=0)
        )

    def _packed_split(self) -> tuple[str, str, str]:
        parts = self.b.split(self._input("x", self.queries, 3 * H), [H * D] * 3, 2)
        return (
            self._noted(self._split_heads(self._early(parts[0]))),
            self._keys_of(parts[1]),
            self._split_heads(parts[2]),
        )

    def _packed_slice(self) -> tuple[str, str, str]:
        x = self._input("x", self.queries, 3 * H)
        q, k, v = (self.b.slice(x, i * H * D, (i + 1) * H * D, 2) for i in range(3))
        return self._noted(self._split_heads(self._early(q))), self._keys_of(k), self._split_heads(v)

    def _five(self) -> str:
        x = self._input("x", self.queries, 3 * H)
        return self.b.transpose(self.b.reshape(x, self._target(x, 3, H, D)), 2, 0, 3, 1, 4)

    def _packed_5d_split(self) -> tuple[str, str, str]:
        q, k, v = (self.b.axes("Squeeze", p, [0]) for p in self.b.split(self._five(), [1, 1, 1], 0))
        return self._noted(self._early(q)), k, v

    def _packed_5d_gather(self) -> tuple[str, str, str]:
        five = self._five()
        q, k, v = (self.b.op("Gather", five, self.b.constant(i, "int64"), axis=0) for i in range(3))
        return self._noted(self._early(q)), k, v

    def _interleaved(self) -> tuple[str, str, str]:
        heads = self._split_heads_of_three()
        q, k, v = (self.b.slice(heads, i * D, (i + 1) * D, 3) for i in range(3))
        return self._noted(self._early(q)), k, v

    def _split_heads_of_three(self) -> str:
        x = self._input("x", self.queries, 3 * H)
        return self.b.transpose(self.b.reshape(x, self._target(x, H, 3 * D)), 0, 2, 1, 3)

    def _interleaved_gather(self) -> tuple[str, str, str]:
        x = self._input("x", self.queries, 3 * H)
        five = self.b.reshape(x, self._target(x, H, 3, D))
        parts = [self.b.op("Gather", five, self.b.constant(i, "int64"), axis=3) for i in range(3)]
        q, k, v = (self.b.transpose(p, 0, 2, 1, 3) for p in parts)
        return self._noted(self._early(q)), k, v

    def _grouped(self) -> tuple[str, str, str]:
        q = self._split_heads(self._early(self._input("q", self.queries, H)))
        k, v = (self._repeated(self._split_heads(self._input(n, self.keys, KV), KV)) for n in "kv")
        return self._noted(q), k, v

    def _repeated(self, x: str) -> str:
        """[B,KV,L,D] to [B,H,L,D]: each head repeated for its group."""
        b = self.b
        five = b.axes("Unsqueeze", x, [2])
        extents = [b.extent(x, 0), b.ints([KV, H // KV]), b.extent(x, 2), b.ints([D])]
        wide = b.op("Expand", five, b.op("Concat", *extents, axis=0))
        return b.op("Reshape", wide, b.op("Concat", b.extent(x, 0), b.ints([H]), b.extent(x, 2), b.ints([D]), axis=0))

    def _one_kv_head(self) -> tuple[str, str, str]:
        q = self._split_heads(self._early(self._input("q", self.queries, H)))
        k, v = (self._input(n, self.keys, 1, "BNSD") for n in "kv")
        return self._noted(q), k, v

    def _cache(self) -> tuple[str, str, str]:
        b = self.b
        past: int | str = "past" if self.case["dims"] == "dynamic" else L - 1
        fresh: int | str = "fresh" if self.case["dims"] == "dynamic" else 1
        q = self._split_heads(self._early(self._input("q", self.queries, H)))
        both = []
        for n in "kv":
            kept = b.input(f"past_{n}", [self.batch, H, past, D])
            both.append(b.op("Concat", kept, self._split_heads(self._input(n, fresh, H)), axis=2))
            b.output(both[-1], 4)
        return self._noted(q), both[0], both[1]

    # Scale, cap, masks.

    def _early(self, q: str) -> str:
        return self.b.op("Mul", q, self.b.constant(0.25)) if self.case["scale"] == "early" else q

    def _transposed(self, k: str) -> str:
        how = self.case["keys"]
        if how == "merged":
            return k
        if self.case["layout"] == "bmm":
            return self.b.transpose(k, 0, 2, 1)
        if how == "after":
            return self.b.transpose(k, 0, 1, 3, 2)
        b, heads = self.b, 1 if self.case["layout"] == "one_kv_head" else H
        length = b.extent(k, 2)
        flat = b.op("Reshape", k, b.op("Concat", b.ints([-1]), length, b.ints([D]), axis=0))
        turned = b.transpose(flat, 0, 2, 1)
        target = b.op("Concat", b.extent(k, 0), b.ints([heads, D]), length, axis=0)
        return b.op("Reshape", turned, target)

    def _scaled_operands(self, q: str, kt: str) -> tuple[str, str]:
        b, how = self.b, self.case["scale"]
        if how in ("mul_q", "stacked"):
            q = b.op("Mul", q, b.constant([0.5]))
        if how == "div_q":
            q = b.op("Div", q, b.constant(2.5))
        if how == "both":
            q, kt = b.op("Mul", q, b.constant(0.6)), b.op("Mul", b.constant(0.6), kt)
        if how == "on_k":
            kt = b.op("Div", kt, b.constant(2.0))
        return q, kt

    def _scaled_scores(self, scores: str, q: str) -> str:
        b, how = self.b, self.case["scale"]
        if how in ("mul", "stacked"):
            return b.op("Mul", b.constant(0.35), scores)
        if how == "div":
            return b.op("Div", scores, b.constant(2.8284270763397217))
        if how == "computed":
            width = b.op("Gather", b.op("Shape", q), b.constant(-1, "int64"), axis=0)
            return b.op("Div", scores, b.op("Sqrt", b.cast(width, b.element)))
        return scores

    def _capped(self, scores: str) -> str:
        if self.case["cap"] == "none":
            return scores
        b = self.b
        return b.op("Mul", b.op("Tanh", b.op("Div", scores, b.constant(3.0))), b.constant(3.0))

    def _masked(self, scores: str) -> str:
        kind = self.case["mask"]
        if kind == "none":
            return scores
        if self.case["layout"] != "bmm":
            return self._with_mask(scores, kind)
        b = self.b
        rows, columns = b.extent(scores, 1), b.extent(scores, 2)
        four = b.op("Reshape", scores, b.op("Concat", b.ints([-1, H]), rows, columns, axis=0))
        masked = self._with_mask(four, kind)
        return b.op("Reshape", masked, b.op("Concat", b.ints([-1]), rows, columns, axis=0))

    def _with_mask(self, scores: str, kind: str) -> str:
        b = self.b
        if kind in ADDED:
            return self._added(scores, kind)
        if kind == "tril_added":
            low = b.op("Expand", b.constant(LOWEST[b.dtype]), self._score_shape(scores))
            return b.op("Add", scores, b.op("Trilu", low, b.constant(1, "int64"), upper=1))
        if kind == "zero":
            return b.op("Add", scores, b.constant(np.zeros([1, 1, 1, 1])))
        fill = b.constant(LOWEST[b.dtype] if "finite" in kind or kind == "selected" else -np.inf)
        m = self._boolean(kind, scores)
        if kind == "selected":
            kept = b.op("Mul", b.cast(m, b.element), scores)
            return b.op("Add", kept, b.op("Mul", b.cast(b.op("Not", m), b.element), fill))
        if kind.startswith("drop"):
            return b.op("Where", m, fill, scores)
        masked = b.op("Where", m, scores, fill)
        if kind == "keep_and_add":
            return b.op("Add", masked, b.input("bias", [self.batch, 1, self.queries, self._columns()]))
        return masked

    def _columns(self) -> int | str:
        if self.case["layout"] == "cache":
            return "keys" if self.case["dims"] == "dynamic" else L
        return self.keys

    def _added(self, scores: str, kind: str) -> str:
        b, columns = self.b, self._columns()
        if kind == "constant":
            table = np.zeros([1, 1, S, self.positions])
            table[..., 1, 1:] = LOWEST[b.dtype]
            # A constant table fixes the extents: only static models have one.
            self.guard_source = b.constant(table if self.case["dims"] == "static" else table[..., :1, :1])
            return b.op("Add", scores, self.guard_source)
        shapes = {
            "B11L": [self.batch, 1, 1, columns], "B1SL": [self.batch, 1, self.queries, columns],
            "SL": [self.queries, columns], "BHSL": [self.batch, H, self.queries, columns],
            "two": [self.batch, 1, 1, columns],
        }  # fmt: skip
        self.guard_source = b.input("bias", shapes[kind])
        if kind == "two":
            # Of two values added one after the other, one must swallow or leave the other: zeros and -inf.
            hidden = b.op(
                "Where", b.input("mask", [1, 1, self.queries, columns], BOOL), b.constant(0.0), b.constant(-np.inf)
            )
            scores = b.op("Add", hidden, scores)
        return b.op("Add", self.guard_source, scores)

    def _boolean(self, kind: str, scores: str) -> str:
        b = self.b
        if kind == "causal_buffer":
            table = np.tril(np.ones([1, 1, 9, 9]))
            ends = (b.extent(scores, 2), b.extent(scores, 3))
            cut = b.constant(table, "bool")
            for axis, end in enumerate(ends, 2):
                cut = b.op("Slice", cut, b.ints([0]), end, b.ints([axis]))
            return cut
        if kind == "trilu":
            ones = b.op("Expand", b.constant(1.0), self._score_shape(scores))
            return b.cast(b.op("Trilu", ones, upper=0), BOOL)
        if kind.startswith("range"):
            return self._later_keys_hidden(scores, from_the_end=kind == "range_late")
        return b.input("mask", [self.batch, 1, self.queries, self._columns()], BOOL)

    def _score_shape(self, scores: str) -> str:
        return self.b.op("Concat", self.b.extent(scores, 2), self.b.extent(scores, 3), axis=0)

    def _later_keys_hidden(self, scores: str, from_the_end: bool) -> str:
        """Key at most query, counted from the beginning or from the end of both."""
        b = self.b
        zero, one = b.constant(0, "int64"), b.constant(1, "int64")
        rows, columns = (b.axes("Squeeze", b.extent(scores, axis), [0]) for axis in (2, 3))
        row = b.op("Range", zero, rows, one)
        if from_the_end:
            row = b.op("Add", row, b.op("Sub", columns, rows))
        key = b.op("Range", zero, columns, one)
        return b.op("Not", b.op("Greater", b.axes("Unsqueeze", key, [0]), b.axes("Unsqueeze", row, [1])))

    def _softmax(self, scores: str) -> str:
        b = self.b
        axis = 2 if self.case["layout"] == "bmm" else 3
        if self.case["softmax"] == "cast":
            scores = b.cast(scores, 1)
        probs = b.op("Softmax", scores, axis=axis if b.opset < 13 else -1)
        guard, kind = self.case["guard"], "float32" if self.case["softmax"] == "cast" else b.dtype
        if guard == "isnan":
            probs = b.op("Where", b.op("IsNaN", probs), b.constant(0.0, kind), probs)
        if guard == "row_max":
            masked = b.op("Equal", b.maximum(self.guard_source), b.constant(-np.inf))
            probs = b.op("Where", masked, b.constant(0.0, kind), probs)
        if self.case["softmax"] == "cast":
            probs = b.cast(probs, b.element)
        if self.case["extra"] == "dropout":
            probs = b.op("Dropout", probs)
        return probs

    def _merged(self, out: str) -> str:
        b = self.b
        if self.case["layout"] == "bmm":
            rows = b.extent(out, 1)
            out = b.op("Reshape", out, b.op("Concat", b.ints([-1, H]), rows, b.ints([D]), axis=0))
        how = self.case["merge"]
        if how == "BNSD":
            return out
        if how == "SBH":
            turned = b.transpose(out, 2, 0, 1, 3)
            return b.op("Reshape", turned, b.ints([0, 0, H * D]))
        turned = b.transpose(out, 0, 2, 1, 3)
        return turned if how == "BSND" else b.reshape(turned, self._target(turned, H * D))

    # Input sets: ragged masks with one fully masked row; what is masked is the lowest number, or infinite.

    def _feed(self, seed: int, masked: str) -> dict[str, Array]:
        rng = np.random.default_rng(seed)
        sizes = {"batch": B, "queries": S, "keys": L, "past": L - 1, "fresh": 1}
        lowest = -np.inf if masked == "infinite" else LOWEST[self.b.dtype]
        feed: dict[str, Array] = {}
        for value in self.b.inputs:
            shape = [d.dim_value or sizes[d.dim_param] for d in value.type.tensor_type.shape.dim]
            if value.name == "mask":
                feed[value.name] = _ragged(rng, shape)
            elif value.name in ("bias", "second"):
                feed[value.name] = np.where(_ragged(rng, shape), rng.standard_normal(shape) * 0.5, lowest).astype(
                    self.b.dtype
                )
            else:
                feed[value.name] = rng.standard_normal(shape).astype(self.b.dtype)
        return feed


def _ragged(rng: np.random.Generator, shape: list[int]) -> Array:
    """A mask that keeps about two thirds, all of one row and nothing of another."""
    keep = rng.random(shape) < 0.66
    rows = keep.reshape(-1, shape[-1])
    rows[0], rows[-1] = True, False
    return keep
