"""Rotary embeddings from independent choices of spelling: every valid case must fuse and agree in numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from building import Array, Builder, Built

B, S, H, D, R, P = 2, 5, 3, 8, 4, 2

CHOICES: dict[str, tuple[str, ...]] = {
    "pairs": ("halves", "neighbours"),
    "count": ("one", "two"),
    "start": ("heads", "transposed", "split", "computed_split", "packed", "before"),
    "cut": ("slice", "split", "computed"),
    "negate": ("after", "times", "before"),
    "width": ("all", "some"),
    "island": ("no", "operand", "angles", "terms"),
    "norm": ("no", "mean_square", "variance"),
    "angles": ("positions", "broadcast", "batch", "unsqueezed"),
    "order": ("cos_first", "sin_first", "factors_swapped"),
    "read": ("no", "cache", "shape"),
    "dtype": ("float32", "float16"),
    "dims": ("static", "dynamic"),
    "opset": ("11", "13", "17"),
}
"""The parameters and their values."""


def valid(case: Mapping[str, str]) -> bool:
    """Whether the choices make sense together."""
    if case["pairs"] == "neighbours" and case["cut"] != "slice":
        return False
    if case["start"] == "before" and case["read"] == "cache":
        return False
    # Neither is there anything to convert in float32.
    return not (case["island"] != "no" and case["dtype"] == "float32")


def build(case: Mapping[str, str], seed: int = 0) -> Built:
    """The model of a valid case and its input set."""
    return _Rotary(case, seed).build()


@dataclass
class _Rotary:
    case: Mapping[str, str]
    seed: int

    def __post_init__(self) -> None:
        self.b = Builder(int(self.case["opset"]), self.case["dtype"])
        self.rng = np.random.default_rng(self.seed)
        self.feed: dict[str, Array] = {}
        dynamic = self.case["dims"] == "dynamic"
        self.batch: int | str = "batch" if dynamic else B
        self.positions: int | str = "positions" if dynamic else S
        self.width = R if self.case["width"] == "some" else D

    def build(self) -> Built:
        wide = self.case["island"] in ("angles", "terms")
        cos, sin = (self._angles(name, wide) for name in ("cos", "sin"))
        heads = (H,) if self.case["count"] == "one" else (H, 1)
        for name, count in zip(("q", "k"), heads, strict=False):
            x = self._operand(name, count)
            y = self._rotary(x if self.case["norm"] == "no" else self._normed(name, x), cos, sin)
            if self.case["read"] == "cache":
                past = self.b.input(f"past_{name}", [self.batch, count, "past", D])
                self.feed[past] = self._values(B, count, P, D)
                y = self.b.op("Concat", past, y, axis=2)
            if self.case["read"] == "shape":
                self.b.output(self.b.op("Shape", x), 1, element=7)
            self.b.output(y, 4)
        return Built(self.b.model(), (self.feed,))

    def _values(self, *shape: int) -> Array:
        return self.rng.standard_normal(shape).astype(self.b.dtype)

    def _angles(self, name: str, wide: bool) -> str:
        kind, before = self.case["angles"], self.case["start"] == "before"
        batch, rows = (self.batch, B) if kind in ("batch", "unsqueezed") else (1, 1)
        # Rotated before the transposition, positions are the second axis.
        shapes: dict[str, tuple[list[int | str], tuple[int, ...]]] = {
            "positions": ([self.positions, self.width], (S, self.width)),
            "unsqueezed": ([batch, self.positions, self.width], (rows, S, self.width)),
        }
        four = ([batch, self.positions, 1], (rows, S, 1)) if before else ([batch, 1, self.positions], (rows, 1, S))
        declared, real = shapes.get(kind, ([*four[0], self.width], (*four[1], self.width)))
        made = self.b.input(name, declared, 1 if wide else None)
        self.feed[name] = self.rng.uniform(-1, 1, real).astype("float32" if wide else self.b.dtype)
        if kind == "unsqueezed":
            return self.b.axes("Unsqueeze", made, [2 if before else 1])
        return self.b.axes("Unsqueeze", made, [1]) if kind == "positions" and before else made

    def _operand(self, name: str, heads: int) -> str:
        b, kind = self.b, self.case["start"]
        shapes: dict[str, tuple[list[int | str], tuple[int, ...]]] = {
            "heads": ([self.batch, heads, self.positions, D], (B, heads, S, D)),
            "transposed": ([self.batch, self.positions, heads, D], (B, S, heads, D)),
            "before": ([self.batch, self.positions, heads, D], (B, S, heads, D)),
            "packed": ([self.batch, self.positions, 2 * heads * D], (B, S, 2 * heads * D)),
        }
        flat = ([self.batch, self.positions, heads * D], (B, S, heads * D))
        declared, real = shapes.get(kind, flat)
        x = b.input(name, declared)
        self.feed[name] = self._values(*real)
        if kind in ("heads", "before"):
            return x
        if kind == "packed":
            x = b.split(x, [heads * D, heads * D], 2)[1]
        if kind == "computed_split":
            x = b.reshape(x, [f"{x}:0", f"{x}:1", heads, D])
        elif kind != "transposed":
            x = b.reshape(x, [0, 0, heads, D])
        return b.transpose(x, 0, 2, 1, 3)

    def _rotary(self, x: str, cos: str, sin: str) -> str:
        b = self.b
        rest = ""
        if self.case["width"] == "some":
            # Both cuts share their axis: onnxruntime concatenates an empty part along a wrong one without complaint.
            middle, axis = b.ints([R]), b.ints([3])
            x, rest = b.op("Slice", x, b.ints([0]), middle, axis), b.op("Slice", x, middle, b.ints([D]), axis)
        wide = self.case["island"] != "no"
        if self.case["island"] == "operand":
            cos, sin = b.cast(cos, 1), b.cast(sin, 1)
        if self.case["island"] in ("operand", "angles"):
            x = b.cast(x, 1)
        straight, across = [x, cos], [self._turned(x), sin]
        if self.case["island"] == "terms":
            straight[0], across[0] = b.cast(straight[0], 1), b.cast(across[0], 1)
        if self.case["order"] == "factors_swapped":
            straight, across = straight[::-1], across[::-1]
        terms = [b.op("Mul", *straight), b.op("Mul", *across)]
        y = b.op("Add", *(terms[::-1] if self.case["order"] == "sin_first" else terms))
        y = b.cast(y, b.element) if wide else y
        return b.op("Concat", y, rest, axis=-1) if rest else y

    def _normed(self, name: str, x: str) -> str:
        """RMSNorm or LayerNorm of every vector, computed in float32 and rounded before it is scaled."""
        b, centred = self.b, self.case["norm"] == "variance"
        gamma = b.input(f"{name}_gamma", [D])
        self.feed[gamma] = self._values(D)
        wide = b.cast(x, 1)
        if centred:
            wide = b.op("Sub", wide, b.op("ReduceMean", wide, axes=[-1]))
        mean = b.op("ReduceMean", b.op("Mul", wide, wide), axes=[-1])
        root = b.op("Sqrt", b.op("Add", mean, b.constant(1e-3, "float32")))
        scaled = b.op("Mul", gamma, b.cast(b.op("Div", wide, root), b.element))
        if not centred:
            return scaled
        beta = b.input(f"{name}_beta", [D])
        self.feed[beta] = self._values(D)
        return b.op("Add", scaled, beta)

    def _minus(self, x: str) -> str:
        if self.case["negate"] == "times":
            return self.b.op(
                "Mul", x, self.b.constant(-1.0, "float32" if self.case["island"] in ("operand", "angles") else None)
            )
        return self.b.op("Neg", x)

    def _turned(self, x: str) -> str:
        b, first = self.b, self.case["negate"] == "before"
        source = self._minus(x) if first else x
        if self.case["pairs"] == "neighbours":
            odd, even = self._every_other(source, 1), self._every_other(x, 0)
            odd = odd if first else self._minus(odd)
            stacked = b.op("Concat", b.axes("Unsqueeze", odd, [4]), b.axes("Unsqueeze", even, [4]), axis=-1)
            shape = b.op("Concat", b.slice(b.op("Shape", x), 0, 3, 0), b.ints([self.width]), axis=0)
            return b.op("Reshape", stacked, shape)
        low, high = self._halves(x, source)
        return b.op("Concat", high if first else self._minus(high), low, axis=-1)

    def _halves(self, x: str, other: str) -> tuple[str, str]:
        """The first half of x and the second half of another value."""
        b, half = self.b, self.width // 2
        if self.case["cut"] == "split":
            return b.split(x, [half, half], 3)[0], b.split(other, [half, half], 3)[1]
        middle = b.ints([half])
        if self.case["cut"] == "computed":
            middle = b.op("Div", b.extent(x, 3), b.ints([2]))
        low = b.op("Slice", x, b.ints([0]), middle, b.ints([3]))
        return low, b.op("Slice", other, middle, b.ints([2**63 - 1]), b.ints([3]))

    def _every_other(self, x: str, start: int) -> str:
        b = self.b
        return b.op("Slice", x, b.ints([start]), b.ints([2**63 - 1]), b.ints([3]), b.ints([2]))
