"""Regions as exporters write them, described by their work alone."""

from __future__ import annotations

from collections.abc import Sequence

from atcfuse.graph.work import OpWork, Product


def product(name: str, a: str, b: str, out: str, sizes: tuple[int, int, int, int], element: int = 2) -> OpWork:
    """A MatMul of `sizes` (batch, m, n, k)."""
    batch, m, n, k = sizes
    cut = Product(batch, m, n, k, a, b, element)
    reads = {a: batch * m * k * element, b: batch * k * n * element}
    dtype = "float16" if element == 2 else "float32"
    return OpWork("MatMul", name, reads, {out: batch * m * n * element}, cut.flops, 0, dtype, cut)


def elementwise(op: str, reads: Sequence[str], out: str, elements: int, element: int = 2) -> OpWork:
    """An element-wise node whose operands are all full."""
    return OpWork(op, out, dict.fromkeys(reads, elements * element), {out: elements * element}, 0, elements)


def attention(batch: int, heads: int, length: int, dim: int, element: int = 2, split: bool = True) -> list[OpWork]:
    """Head transposes (where `split`), Q·Kᵀ, scale, mask, softmax, ·V."""
    operand, scores = batch * heads * length * dim, batch * heads * length * length
    works = [OpWork("Transpose", f"t{n}", {n: operand * element}, {f"{n}h": operand * element}) for n in "qkv"]
    q, k, v = ("qh", "kh", "vh") if split else "qkv"
    body = [
        product("scores", q, k, "s", (batch * heads, length, length, dim), element),
        elementwise("Mul", ["s"], "scaled", scores, element),
        elementwise("Add", ["scaled", "mask"], "masked", scores, element),
        OpWork("Softmax", "softmax", {"masked": scores * element}, {"p": scores * element}, 0, 5 * scores, "float32"),
        product("values", "p", v, "oh", (batch * heads, length, dim, length), element),
    ]
    merge = OpWork("Transpose", "merge", {"oh": operand * element}, {"o": operand * element})
    return [*works, *body, merge] if split else body


def norm_qkv(rows: int, hidden: int, columns: Sequence[int], bias: bool = True, element: int = 2) -> list[OpWork]:
    """LayerNormalization and its projections, each MatMul (+ Add)."""
    x = rows * hidden * element
    affine = {"gamma": hidden * element, "beta": hidden * element}
    works = [OpWork("LayerNormalization", "ln", {"x": x, **affine}, {"n": x}, 0, 10 * rows * hidden, "float32")]
    for i, width in enumerate(columns):
        works.append(product(f"m{i}", "n", f"w{i}", f"y{i}", (1, rows, width, hidden), element))
        if bias:
            reads, out = {f"y{i}": rows * width * element, f"b{i}": width * element}, {f"z{i}": rows * width * element}
            works.append(OpWork("Add", f"a{i}", reads, out, 0, rows * width))
    return works
