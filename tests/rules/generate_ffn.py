"""Feed-forward networks from independent choices of spelling: every valid case must fuse and agree in numbers."""

from __future__ import annotations

from collections.abc import Mapping

from building import Array, B, Built, K, Rows, S

I = 12  # noqa: E741

CHOICES: dict[str, tuple[str, ...]] = {
    "norm": ("none", "layer_norm", "rms_norm"),
    "activation": (
        "gelu", "gelu_approximate", "erf_last", "erf_half_x", "erf_half_sum", "erf_halved", "tanh_pow", "tanh_mul",
        "tanh_factored", "tanh_by_sigmoid", "quick", "silu", "relu", "max",
    ),
    "gating": ("none", "separate", "split", "slice", "up_first", "gather"),
    "linear": ("matmul_bias", "bias_left", "matmul", "gemm", "gemm_trans", "gemm_then_bias", "reshaped"),
    "residual": ("none", "x", "x_left", "norm", "other", "broadcast"),
    "read": ("no", "norm", "shape"),
    "weights": ("initializer", "transposed"),
    "dtype": ("float32", "float16"),
    "dims": ("static", "dynamic"),
    "opset": ("11", "13", "17", "20"),
}  # fmt: skip
"""The parameters and their values."""


def valid(case: Mapping[str, str]) -> bool:
    """Whether the choices make sense together."""
    if case["norm"] == "none" and "norm" in (case["residual"], case["read"]):
        return False
    if case["activation"].startswith("gelu") and case["opset"] != "20":
        return False
    # float16 statistics lose more than the comparison allows; real float16 models keep them in float32.
    return not (
        case["dtype"] == "float16"
        and (case["norm"] == "rms_norm" or (case["norm"] == "layer_norm" and int(case["opset"]) < 17))
    )


def expected(case: Mapping[str, str]) -> str:
    """The fused operator of a valid case."""
    return "FusedFFN" if case["norm"] == "none" else "FusedLayerNormFFN"


def build(case: Mapping[str, str], seed: int = 0) -> Built:
    """The model of a valid case and its input set."""
    return _Network(case, seed).build()


class _Network(Rows):
    def build(self) -> Built:
        b, case = self.b, self.case
        x = b.input("x", [*self.rows, K])
        n = self._norm(x)
        hidden = self._hidden(n)
        result = self._linear(hidden, I, K)
        other = b.input("r", [*self.rows, K] if case["residual"] == "other" else [1, 1, K])
        added = {"x": x, "x_left": x, "norm": n, "other": other, "broadcast": other}.get(case["residual"])
        if added is not None:
            operands = (added, result) if case["residual"] == "x_left" else (result, added)
            result = b.op("Add", *operands)
        b.output(result, 3)
        if case["read"] == "norm":
            b.output(b.op("Sigmoid", n), 3)
        if case["read"] == "shape":
            b.output(b.op("Shape", hidden), 1, element=7)
        shapes = {"x": [B, S, K], "r": [B, S, K] if case["residual"] == "other" else [1, 1, K]}
        feed: dict[str, Array] = {
            name: (self.rng.standard_normal(shape) * 1.5 + 0.2).astype(b.dtype) for name, shape in shapes.items()
        }
        return Built(b.model(), (feed,))

    def _weight(self, *shape: int) -> Array:
        return (self.rng.standard_normal(shape) / shape[0] ** 0.5).astype(self.b.dtype)

    def _norm(self, x: str) -> str:
        b, kind = self.b, self.case["norm"]
        if kind == "none":
            return x
        gamma = b.constant(self._weight(K) + 1)
        if kind == "layer_norm" and b.opset >= 17:
            return b.op("LayerNormalization", x, gamma, b.constant(self._weight(K)), axis=-1, epsilon=1e-5)
        centred = b.op("Sub", x, b.mean(x)) if kind == "layer_norm" else x
        variance = b.mean(b.op("Mul", centred, centred))
        root = b.op("Sqrt", b.op("Add", variance, b.constant(1e-5)))
        scaled = b.op("Mul", b.op("Div", centred, root), gamma)
        return b.op("Add", scaled, b.constant(self._weight(K))) if kind == "layer_norm" else scaled

    def _hidden(self, x: str) -> str:
        b, gating = self.b, self.case["gating"]
        if gating == "none":
            return self._activation(self._linear(x, K, I))
        if gating == "separate":
            gate, up = self._linear(x, K, I), self._linear(x, K, I)
            return b.op("Mul", self._activation(gate), up)
        packed = self._linear(x, K, 2 * I)
        if gating == "split":
            gate, up = b.split(packed, [I, I], 2)
        elif gating == "gather":
            target = [B, S, 2, I] if self.case["dims"] == "static" else [f"{x}:0", f"{x}:1", 2, I]
            halves = b.reshape(packed, target)
            gate, up = (b.op("Gather", halves, b.constant(i, "int64"), axis=2) for i in (0, 1))
        else:
            up = b.slice(packed, I, 2 * I, 2)
            gate = b.slice(packed, 0, I, -1)
            gate, up = (up, gate) if gating == "up_first" else (gate, up)
        return b.op("Mul", up, self._activation(gate))

    def _activation(self, x: str) -> str:
        b, kind = self.b, self.case["activation"]
        if kind in ("gelu", "gelu_approximate"):
            return b.op("Gelu", x, **({"approximate": "tanh"} if kind == "gelu_approximate" else {}))
        if kind.startswith("erf"):
            return self._gelu_erf(x, kind)
        if kind.startswith("tanh"):
            return self._gelu_tanh(x, kind)
        if kind == "quick":
            return b.op("Mul", x, b.op("Sigmoid", b.op("Mul", b.constant(1.702), x)))
        if kind == "silu":
            return b.op("Mul", b.op("Sigmoid", x), x)
        return b.op("Relu", x) if kind == "relu" else b.op("Max", x, b.constant(0.0))

    def _gelu_erf(self, x: str, kind: str) -> str:
        b = self.b
        half, one = b.constant(0.5), b.constant(1.0)
        factor = kind in ("erf_half_x", "erf_halved")
        inner = b.op("Mul", x, b.constant(0.5**0.5)) if factor else b.op("Div", x, b.constant(2**0.5))
        total = b.op("Add", b.op("Erf", inner), one)
        if kind == "erf_last":
            return b.op("Mul", b.op("Mul", x, total), half)
        if kind == "erf_half_x":
            return b.op("Mul", b.op("Mul", half, x), total)
        if kind == "erf_half_sum":
            return b.op("Mul", x, b.op("Mul", half, total))
        return b.op("Div", b.op("Mul", total, x), b.constant(2.0))

    def _gelu_tanh(self, x: str, kind: str) -> str:
        b = self.b
        factor, cubic = b.constant(0.7978845608028654), b.constant(0.044715)
        half, one = b.constant(0.5), b.constant(1.0)
        if kind == "tanh_by_sigmoid":
            power = b.op("Mul", b.op("Mul", x, x), b.op("Mul", x, cubic))
            inner = b.op("Mul", b.op("Mul", b.op("Add", power, x), b.constant(2.0)), factor)
            return b.op("Mul", x, b.op("Sigmoid", inner))
        if kind == "tanh_factored":
            square = b.op("Mul", b.op("Mul", cubic, x), x)
            inner = b.op("Mul", b.op("Mul", factor, x), b.op("Add", one, square))
        else:
            power = kind == "tanh_pow"
            cube = b.op("Pow", x, b.constant(3.0)) if power else b.op("Mul", b.op("Mul", x, x), x)
            inner = b.op("Mul", factor, b.op("Add", x, b.op("Mul", cube, cubic)))
        total = b.op("Add", one, b.op("Tanh", inner))
        return b.op("Mul", total, b.op("Mul", half, x))

    def _linear(self, x: str, width: int, columns: int) -> str:
        b, how = self.b, self.case["linear"]
        target: list[int | str] = [B, S, columns] if self.case["dims"] == "static" else [f"{x}:0", f"{x}:1", columns]
        if not how.startswith("gemm"):
            product = b.op("MatMul", x, self._matrix(width, columns))
            if how == "matmul":
                return product
            product = b.reshape(product, target) if how == "reshaped" else product
            bias = b.constant(self._weight(columns))
            return b.op("Add", bias, product) if how == "bias_left" else b.op("Add", product, bias)
        transposed = int(how == "gemm_trans")
        weight = self._matrix(*((columns, width) if transposed else (width, columns)))
        flat = b.op("Reshape", x, b.ints([-1, width]))
        bias = [b.constant(self._weight(columns))] if how != "gemm_then_bias" else []
        back = b.reshape(b.op("Gemm", flat, weight, *bias, **({"transB": 1} if transposed else {})), target)
        return back if how != "gemm_then_bias" else b.op("Add", b.constant(self._weight(columns)), back)

    def _matrix(self, rows: int, columns: int) -> str:
        if self.case["weights"] == "transposed":
            return self.b.transpose(self.b.constant(self._weight(columns, rows)), 1, 0)
        return self.b.constant(self._weight(rows, columns))
