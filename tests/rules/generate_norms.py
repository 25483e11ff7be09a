"""Norms and their projections from independent choices of spelling: every valid case must fuse and agree in numbers."""

from __future__ import annotations

from collections.abc import Mapping

from building import Array, B, Built, K, Projected, S

CHOICES: dict[str, tuple[str, ...]] = {
    "norm": (
        "operator", "pow", "mul", "reciprocal", "gamma_first", "two_subs", "keras", "pooled", "cast",
        "rms_one_over", "rms_reciprocal", "rms_divided", "rms_cast",
    ),
    "affine": ("both", "scale", "none", "swapped"),
    "epsilon": ("1e-5", "1e-12", "dropped"),
    "linear": ("matmul_bias", "matmul", "bias_left", "gemm", "gemm_trans", "gemm_no_bias", "gemm_then_bias", "mixed"),
    "count": ("2", "3", "4"),
    "read": ("no", "residual", "output", "shape"),
    "weights": ("initializer", "constant", "identity", "transposed"),
    "dtype": ("float32", "float16"),
    "dims": ("static", "dynamic"),
    "opset": ("11", "13", "17", "18"),
}  # fmt: skip
"""The parameters and their values."""


def valid(case: Mapping[str, str]) -> bool:
    """Whether the choices make sense together."""
    norm, affine = case["norm"], case["affine"]
    if norm == "operator" and (
        int(case["opset"]) < 17 or affine not in ("both", "scale") or case["epsilon"] == "dropped"
    ):
        return False
    if norm.startswith("rms") and affine != "scale":
        return False
    if norm == "keras" and affine not in ("both", "swapped"):
        return False
    if norm == "gamma_first" and affine == "none":
        return False
    if norm == "cast" and case["dtype"] == "float32" and case["read"] == "output":
        return False  # the Cast is a no-op that makes a graph output: it must stay, and so must what it reads
    # float16 squares and sums lose more than the comparison allows; real float16 models keep statistics in float32.
    return not (case["dtype"] == "float16" and norm not in ("operator", "cast", "rms_cast"))


def build(case: Mapping[str, str], seed: int = 0) -> Built:
    """The model of a valid case and its input set."""
    return _Norm(case, seed).build()


class _Norm(Projected):
    def build(self) -> Built:
        b = self.b
        x = b.input("x", [*self.rows, K])
        normalized = self._norm(x)
        for position in range(int(self.case["count"])):
            b.output(self._linear(normalized, position), 3)
        if self.case["read"] == "residual":
            b.output(b.op("Add", normalized, x), 3)
        if self.case["read"] == "output":
            b.output(normalized, 3)
        if self.case["read"] == "shape":
            b.output(b.op("Shape", normalized), 1, element=7)
        feed: dict[str, Array] = {"x": (self.rng.standard_normal([B, S, K]) * 2 + 0.5).astype(b.dtype)}
        return Built(b.model(), (feed,))

    def _norm(self, x: str) -> str:
        kind = self.case["norm"]
        if kind == "operator":
            given = [
                self.b.constant(self._weight(K)),
                *([self.b.constant(self._weight(K))] if self.case["affine"] == "both" else []),
            ]
            return self.b.op("LayerNormalization", x, *given, axis=-1, epsilon=float(self.case["epsilon"]))
        if kind in ("cast", "rms_cast"):
            wide = self.b.cast(x, 1)
            unit = self._rms(wide, "rms_reciprocal") if kind == "rms_cast" else self._centred(wide)
            return self._affine(self.b.cast(unit, self.b.element))
        if kind.startswith("rms"):
            return self._affine(self._rms(x, kind))
        if kind == "keras":
            return self._keras(x)
        if kind == "gamma_first":
            return self._gamma_first(x)
        return self._affine(self._centred(x))

    def _plus_epsilon(self, variance: str) -> str:
        if self.case["epsilon"] == "dropped":
            return variance
        return self.b.op("Add", variance, self.b.constant(float(self.case["epsilon"]), "float32"))

    def _mean(self, x: str) -> str:
        return self.b.op("GlobalAveragePool", x) if self.case["norm"] == "pooled" else self.b.mean(x)

    def _deviation(self, centred: str) -> str:
        b = self.b
        squared = self.case["norm"] in ("pow", "cast")
        square = b.op("Pow", centred, b.constant(2.0, "float32")) if squared else b.op("Mul", centred, centred)
        return b.op("Sqrt", self._plus_epsilon(self._mean(square)))

    def _centred(self, x: str) -> str:
        b, kind = self.b, self.case["norm"]
        mean = self._mean(x)
        centred = b.op("Sub", x, mean)
        deviation = self._deviation(b.op("Sub", x, mean) if kind == "two_subs" else centred)
        if kind == "reciprocal":
            return b.op("Mul", centred, b.op("Reciprocal", deviation))
        return b.op("Div", centred, deviation)

    def _rms(self, x: str, kind: str) -> str:
        b = self.b
        root = b.op("Sqrt", self._plus_epsilon(b.mean(b.op("Pow", x, b.constant(2.0, "float32")))))
        if kind == "rms_one_over":
            return b.op("Mul", x, b.op("Div", b.constant(1.0), root))
        return b.op("Mul", x, b.op("Reciprocal", root)) if kind == "rms_reciprocal" else b.op("Div", x, root)

    def _affine(self, unit: str) -> str:
        b, how = self.b, self.case["affine"]
        if how == "none":
            return unit
        gamma = b.constant(self._weight(K))
        scaled = b.op("Mul", unit, gamma) if how != "swapped" else b.op("Mul", gamma, unit)
        if how == "scale":
            return scaled
        beta = b.constant(self._weight(K))
        return b.op("Add", scaled, beta) if how == "both" else b.op("Add", beta, scaled)

    def _gamma_first(self, x: str) -> str:
        b = self.b
        centred = b.op("Sub", x, self._mean(x))
        unit = b.op("Div", b.op("Mul", b.constant(self._weight(K)), centred), self._deviation(centred))
        return unit if self.case["affine"] == "scale" else b.op("Add", unit, b.constant(self._weight(K)))

    def _keras(self, x: str) -> str:
        b = self.b
        mean = b.op("GlobalAveragePool", x)
        centred = b.op("Sub", x, mean)
        variance = b.op("GlobalAveragePool", b.op("Mul", centred, centred))
        inverse = b.op("Reciprocal", b.op("Sqrt", self._plus_epsilon(variance)))
        gain = b.op("Mul", inverse, b.constant(self._weight(1, 1, K)))
        beta = b.constant(self._weight(K))
        subtracted = self.case["affine"] == "swapped"
        less = b.op("Mul", mean if subtracted else b.op("Neg", mean), gain)
        moved = b.op("Sub" if subtracted else "Add", beta, less)
        return b.op("Add", b.op("Mul", x, gain), moved)

    def _linear(self, x: str, position: int) -> str:
        how = self.case["linear"]
        return self._project(
            x, ("matmul", "gemm_trans", "matmul_bias", "bias_left")[position] if how == "mixed" else how
        )
