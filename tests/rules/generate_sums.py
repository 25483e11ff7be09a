"""Norms of sums and norms alone, from independent choices of spelling: every valid case must fuse and agree in numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from building import Array, Built
from generate_norms import B, K, S, _Norm

CHOICES: dict[str, tuple[str, ...]] = {
    "norm": (
        "operator", "operator_cast", "pow", "mul", "reciprocal", "gamma_first", "gain", "divided_gain", "two_subs",
        "moments", "keras", "pooled", "cast", "every_step_cast", "rms_one_over", "rms_reciprocal", "rms_divided",
        "rms_gain", "rms_cast",
    ),
    "affine": ("both", "scale", "none", "swapped"),
    "epsilon": ("1e-5", "1e-12", "dropped"),
    "sum": ("none", "two", "bias", "three", "positions", "flat_positions", "small_first"),
    "order": ("plain", "swapped"),
    "read": ("no", "residual", "output", "shape", "twice"),
    "dtype": ("float32", "float16"),
    "dims": ("static", "dynamic"),
    "opset": ("11", "13", "17", "18"),
}  # fmt: skip
"""The parameters and their values."""

_IN_FLOAT32 = ("operator", "operator_cast", "cast", "every_step_cast", "rms_cast")
_ONE_ROW = ("gain", "divided_gain", "rms_gain")


def valid(case: Mapping[str, str]) -> bool:
    """Whether the choices make sense together."""
    norm, affine = case["norm"], case["affine"]
    if norm.startswith("operator") and (
        int(case["opset"]) < 17 or affine not in ("both", "scale") or case["epsilon"] == "dropped"
    ):
        return False
    if norm == "operator" and case["sum"] == "none":
        return False  # one operator already
    if norm in ("operator_cast", "every_step_cast") and case["dtype"] != "float16":
        return False
    if (norm.startswith("rms") and affine != "scale") or (norm == "keras" and affine not in ("both", "swapped")):
        return False
    if norm in ("gamma_first", *_ONE_ROW) and affine == "none":
        return False
    if norm == "cast" and case["dtype"] == "float32" and case["read"] in ("output", "twice"):
        return False  # the Cast is a no-op that makes a graph output: it must stay, and so must what it reads
    # float16 squares and sums lose more than the comparison allows; real float16 models keep statistics in float32.
    return not (case["dtype"] == "float16" and norm not in _IN_FLOAT32)


def fused(case: Mapping[str, str]) -> str:
    """The operator that a valid case becomes."""
    kind = "RMSNorm" if case["norm"].startswith("rms") else "LayerNorm"
    return f"Fused{kind}" if case["sum"] == "none" else f"FusedAdd{kind}"


def build(case: Mapping[str, str], seed: int = 0) -> Built:
    """The model of a valid case and its input set."""
    return _Sum(case, seed).build()


@dataclass
class _Sum(_Norm):
    def build(self) -> Built:
        b, read = self.b, self.case["read"]
        self.feed: dict[str, Array] = {}
        total = self._sum()
        normalized = self._norm(total)
        b.output(normalized, 3)
        if read in ("residual", "twice"):
            b.output(b.op("Add", total, self._input("next", [*self.rows, K])), 3)
        if read in ("output", "twice") and self.case["sum"] != "none":
            b.output(total, 3)
        if read == "shape":
            b.output(b.op("Shape", total), 1, element=7)
        return Built(b.model(), (self.feed,))

    def _input(self, name: str, shape: list[int | str]) -> str:
        sizes = [{"batch": B, "positions": S}.get(n, n) if isinstance(n, str) else n for n in shape]
        values = self.rng.standard_normal([int(n) for n in sizes]) * 2 + 0.5
        self.feed[name] = values.astype(self.b.dtype)
        return self.b.input(name, shape)

    def _add(self, a: str, b: str) -> str:
        return self.b.op("Add", *((a, b) if self.case["order"] == "plain" else (b, a)))

    def _sum(self) -> str:
        how, rows = self.case["sum"], [*self.rows, K]
        x = self._input("x", rows)
        if how == "none":
            return self.b.op("Relu", x) if self.case["read"] == "shape" else x
        if how == "bias":
            return self._add(self._add(x, self.b.constant(self._weight(K))), self._input("r", rows))
        if how == "positions":
            types = self._input("types", [1, 1, K])
            return self._add(self._add(x, types), self._input("positions_table", [1, rows[1], K]))
        if how == "flat_positions":
            return self._add(x, self._input("positions_table", [rows[1], K]))
        if how == "small_first":
            small = self._add(self._input("positions_table", [rows[1], K]), self.b.constant(self._weight(1, 1, K)))
            return self._add(small, x)
        total = self._add(x, self._input("r", rows))
        return total if how == "two" else self._add(total, self._input("r2", rows))

    def _norm(self, x: str) -> str:
        b, kind = self.b, self.case["norm"]
        if kind == "operator_cast":
            given = [b.constant(self._weight(K), "float32") for _ in range(2 if self.case["affine"] == "both" else 1)]
            wide = b.op("LayerNormalization", b.cast(x, 1), *given, axis=-1, epsilon=float(self.case["epsilon"]))
            return b.cast(wide, b.element)
        if kind == "every_step_cast":
            return self._every_step_cast(x)
        if kind == "moments":
            mean = b.mean(x)
            variance = b.op("Sub", b.mean(b.op("Mul", x, x)), b.op("Mul", mean, mean))
            return self._affine(b.op("Div", b.op("Sub", x, mean), b.op("Sqrt", self._plus_epsilon(variance))))
        if kind in _ONE_ROW:
            return self._gain(x)
        return super()._norm(x)

    def _gain(self, x: str) -> str:
        b, kind = self.b, self.case["norm"]
        values = x if kind == "rms_gain" else b.op("Sub", x, b.mean(x))
        deviation = b.op("Sqrt", self._plus_epsilon(b.mean(b.op("Mul", values, values))))
        gamma = b.constant(self._weight(K))
        gain = (
            b.op("Div", gamma, deviation)
            if kind == "divided_gain"
            else b.op("Mul", b.op("Reciprocal", deviation), gamma)
        )
        scaled = b.op("Mul", values, gain)
        return scaled if self.case["affine"] == "scale" else b.op("Add", scaled, b.constant(self._weight(K)))

    def _every_step_cast(self, x: str) -> str:
        """Each step between casts of its own, as converters with a list of blocked operators leave it."""
        b = self.b

        def wide(kind: str, *values: str) -> str:
            return b.op(kind, *(b.cast(v, 1) for v in values))

        def narrow(value: str) -> str:
            return b.cast(value, b.element)

        centred = narrow(wide("Sub", x, narrow(b.mean(b.cast(x, 1)))))
        square = b.op("Pow", b.cast(centred, 1), b.constant(2.0, "float32"))
        variance = b.mean(b.cast(b.cast(square, 1), 1))
        deviation = narrow(b.op("Sqrt", self._plus_epsilon(variance)))
        return self._affine(narrow(wide("Div", centred, deviation)))
