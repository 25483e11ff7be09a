"""Linear projections and what surrounds them from independent choices of spelling: every valid case must fuse."""

from __future__ import annotations

from collections.abc import Mapping

from building import Array, B, Built, K, M, Projected, S

CHOICES: dict[str, tuple[str, ...]] = {
    "before": ("none", "relu", "silu", "gelu_erf", "gelu_quick", "layer_norm", "rms_norm", "dropout"),
    "linear": ("matmul_bias", "matmul", "bias_left", "gemm", "gemm_trans", "gemm_no_bias", "gemm_then_bias"),
    "scale": ("none", "mul", "div"),
    "activation": (
        "none", "relu", "max", "tanh", "sigmoid", "silu", "gelu_op", "gelu_op_tanh", "gelu_erf", "gelu_left",
        "gelu_tanh", "gelu_quick",
    ),
    "gain": ("none", "right", "left", "of_rank_3"),
    "residual": ("none", "right", "left", "operand"),
    "read": ("no", "shape"),
    "weights": ("initializer", "constant", "identity", "transposed"),
    "dtype": ("float32", "float16"),
    "dims": ("static", "dynamic"),
    "opset": ("11", "13", "17", "20"),
}  # fmt: skip
"""The parameters and their values."""


def operator(case: Mapping[str, str]) -> str:
    """The operator that a case becomes."""
    return "FusedLayerNormLinear" if case["before"].endswith("norm") or case["before"] == "dropout" else "FusedLinear"


def valid(case: Mapping[str, str]) -> bool:
    """Whether the choices make sense together."""
    if case["activation"].startswith("gelu_op") and int(case["opset"]) < 20:
        return False
    if case["dtype"] == "float16" and operator(case) == "FusedLayerNormLinear":
        return int(case["opset"]) >= 17 and case["before"] != "rms_norm"
    behind = any(case[name] != "none" for name in ("scale", "activation", "gain", "residual"))
    return behind or case["before"] != "none"


def build(case: Mapping[str, str], seed: int = 0) -> Built:
    """The model of a valid case and its input set."""
    return _Linear(case, seed).build()


class _Linear(Projected):
    def build(self) -> Built:
        b, case = self.b, self.case
        x = b.input("x", [*self.rows, K])
        residual = b.input("r", [*self.rows, M]) if case["residual"] in ("left", "right") else ""
        value = self._project(self._before(x), self.case["linear"])
        if case["read"] == "shape":
            b.output(b.op("Shape", value), 1, element=7)
        value = self._activation(self._scaled(value), case["activation"])
        value = self._gained(value)
        b.output(self._summed(value, residual, x), 3)
        feed: dict[str, Array] = {"x": (self.rng.standard_normal([B, S, K]) + 0.3).astype(b.dtype)}
        if residual:
            feed["r"] = self.rng.standard_normal([B, S, M]).astype(b.dtype)
        return Built(b.model(), (feed,))

    def _weight(self, *shape: int) -> Array:
        return (self.rng.standard_normal(shape) * 0.7).astype(self.b.dtype)

    def _before(self, x: str) -> str:
        b, how = self.b, self.case["before"]
        if how == "layer_norm" and int(self.case["opset"]) >= 17:
            gamma, beta = b.constant(self._weight(K)), b.constant(self._weight(K))
            return b.op("LayerNormalization", x, gamma, beta, axis=-1, epsilon=1e-5)
        if how in ("layer_norm", "rms_norm", "dropout"):
            centred = x if how == "rms_norm" else b.op("Sub", x, b.mean(x))
            variance = b.mean(b.op("Mul", centred, centred))
            root = b.op("Sqrt", b.op("Add", variance, b.constant(1e-4)))
            scaled = b.op("Mul", b.op("Div", centred, root), b.constant(self._weight(K)))
            return b.op("Dropout", scaled) if how == "dropout" else scaled
        return self._activation(x, how)

    def _scaled(self, value: str) -> str:
        b, how = self.b, self.case["scale"]
        if how == "mul":
            return b.op("Mul", b.constant(0.25), value)
        return b.op("Div", value, b.constant(4.0)) if how == "div" else value

    def _activation(self, x: str, how: str) -> str:
        b = self.b
        if how in ("none", "relu", "tanh", "sigmoid"):
            return x if how == "none" else b.op(how.capitalize(), x)
        if how == "max":
            return b.op("Max", x, b.constant(0.0))
        if how in ("silu", "gelu_quick"):
            inner = x if how == "silu" else b.op("Mul", x, b.constant(1.702))
            return b.op("Mul", x, b.op("Sigmoid", inner))
        if how.startswith("gelu_op"):
            return b.op("Gelu", x, **({"approximate": "tanh"} if how == "gelu_op_tanh" else {}))
        half, one = b.constant(0.5), b.constant(1.0)
        if how == "gelu_tanh":
            cube = b.op("Mul", b.op("Pow", x, b.constant(3.0)), b.constant(0.044715))
            inner = b.op("Tanh", b.op("Mul", b.op("Add", x, cube), b.constant(0.7978845608)))
        else:
            inner = b.op("Erf", b.op("Div", x, b.constant(1.4142135)))
        weight = b.op("Add", inner, one)
        if how == "gelu_left":
            return b.op("Mul", x, b.op("Mul", half, weight))
        return b.op("Mul", b.op("Mul", x, weight), half)

    def _gained(self, value: str) -> str:
        b, how = self.b, self.case["gain"]
        if how == "none":
            return value
        gain = b.constant(self._weight(1, 1, M) if how == "of_rank_3" else self._weight(M))
        return b.op("Mul", gain, value) if how == "left" else b.op("Mul", value, gain)

    def _summed(self, value: str, residual: str, x: str) -> str:
        b, how = self.b, self.case["residual"]
        if how == "none":
            return value
        if how == "operand":
            residual = b.slice(b.op("Neg", x), 0, M, 2)
        return b.op("Add", residual, value) if how == "left" else b.op("Add", value, residual)
