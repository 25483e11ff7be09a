"""A test of one kernel on the real chip: a model of its operator alone, inputs, and what must come out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from atcfuse import meaning
from atcfuse.codegen import GeneratedKernel, Signature
from atcfuse.codegen.signature import BFLOAT16, BOOL, FLOAT16, INT32, INT64
from atcfuse.elementwise import VARIES, parse_expression
from atcfuse.graph.dialect import Dialect, to_dialect
from atcfuse.graph.single import Tensor, one_node_model
from atcfuse.graph.store import save_bytes
from atcfuse.reference import (
    Array,
    bfloat16_bits,
    bfloat16_values,
    evaluate,
    memory_shape,
    operand_factors,
    operand_sizes,
)
from atcfuse.tiling import ffn_problem, linear_problem

if TYPE_CHECKING:
    from onnx import ModelProto

BATCH, QUERIES, KEYS = 2, 5, 19
ROWS, HIDDEN, COLUMNS = (2, 3), 64, 40
INNER = 96
SPATIAL = (4, 8)
_PLAIN = (1.0, 0.5, 2.0, 0.0)
"""Numbers that element-wise expressions are tried with where others give no finite result."""
Shape = tuple[int, ...]


def vector_files(kernel: GeneratedKernel, attributes: Mapping[str, Any], opset: int) -> dict[str, bytes]:
    """The files of a kernel's test by path; the same signature gives the same bytes."""
    signature = kernel.signature
    batch, queries, keys = _extents(signature)
    inputs = {name: _values(signature, name, shape) for name, shape in _shapes(signature).items()}
    if signature.spec.name == "elementwise":
        inputs = _tamed(signature, inputs)
    expected = evaluate(signature, _exact(signature, inputs), queries, keys, batch)
    shapes = {name: array.shape for name, array in {**inputs, **expected}.items()}
    model = signature_model(signature, attributes, opset, shapes, "atc")
    files = {"model.onnx": save_bytes(model)}
    files |= {f"inputs/{name}.bin": array.tobytes() for name, array in inputs.items()}
    files |= {
        f"expected/{name}.bin": encode(array, signature.dtypes[name]).tobytes() for name, array in expected.items()
    }
    return files


def signature_model(
    signature: Signature,
    attributes: Mapping[str, Any],
    opset: int,
    shapes: Mapping[str, Shape] | None = None,
    dialect: Dialect = "portable",
) -> ModelProto:
    """A model of one node of a signature, operands named as the kernel names them; without shapes it takes any."""
    spec, dtypes = signature.spec, signature.dtypes
    inputs = {o.name: dtypes[o.name] for o in spec.inputs if signature.has(o.name)}
    outputs = [o.name for o in spec.outputs if signature.has(o.name)]
    of = meaning.signature_of(spec, signature.attributes, inputs, outputs, opset)

    def tensor(name: str) -> Tensor:
        return Tensor(name, dtypes[name], None if shapes is None else shapes[name])

    operands = [tensor(o.name) if signature.has(o.name) else None for o in spec.inputs]
    results = [tensor(name) for name in outputs]
    function = meaning.render(spec, of, {name: dtypes[name] for name in outputs})
    model = one_node_model(spec.op_of(attributes), attributes, operands, results, function, opset)
    to_dialect(model, dialect)
    return model


def _exact(signature: Signature, inputs: Mapping[str, Array]) -> dict[str, Array]:
    return {name: decode(array, signature.dtypes[name]) for name, array in inputs.items()}


def _tamed(signature: Signature, inputs: dict[str, Array]) -> dict[str, Array]:
    """The inputs of an element-wise kernel, with plain numbers where a result is no finite number of its type.

    Masks are such: the least number of a type times anything but 0 overflows. Where numbers of whole size do not help,
    those of rows and columns are exchanged too; an expression that is finite nowhere keeps what it has.
    """
    shape = np.broadcast_shapes(*(array.shape for array in inputs.values()))
    for number in _PLAIN:
        for wide in (False, True):
            found = evaluate(signature, _exact(signature, inputs), *_extents(signature)[1:], BATCH)
            stored = {n: decode(encode(a, signature.dtypes[n]), signature.dtypes[n]) for n, a in found.items()}
            odd = np.zeros(shape, bool)
            for array in stored.values():
                odd |= ~np.isfinite(np.broadcast_to(array, shape))
            if not odd.any():
                return inputs
            inputs = {
                name: _with(array, odd, number, signature.dtypes[name])
                if array.dtype != bool and (wide or array.shape == shape)
                else array
                for name, array in inputs.items()
            }
    return inputs


def _with(array: Array, odd: Array, number: float, dtype: int) -> Array:
    """The array with a number at every element that an odd result reads."""
    axes = tuple(i for i in range(odd.ndim) if i < odd.ndim - array.ndim or array.shape[i - odd.ndim] == 1)
    here = odd.any(axis=axes, keepdims=True).reshape(array.shape)
    changed: Array = np.where(here, encode(np.full(array.shape, number), dtype), array).astype(array.dtype)
    return changed


_NUMPY_TYPES = {BOOL: "|b1", FLOAT16: "<f2", INT32: "<i4", INT64: "<i8"}


def encode(values: Array, dtype: int) -> Array:
    """Numbers as a kernel's operand: bfloat16 as bits in uint16."""
    if dtype == BFLOAT16:
        return bfloat16_bits(values)
    with np.errstate(over="ignore"):
        return values.astype(_NUMPY_TYPES.get(dtype, "<f4"))


def decode(array: Array, dtype: int) -> Array:
    """A kernel's operand as float64; a mask stays boolean."""
    if dtype == BOOL:
        return array
    return (bfloat16_values(array) if dtype == BFLOAT16 else array).astype(np.float64)


def _extents(signature: Signature) -> tuple[int, int, int]:
    """Batch, queries and keys of the test; a layout that leaves a letter out has one of it."""
    if signature.spec.name != "attention":
        return BATCH, QUERIES, KEYS
    texts = {name: {f.letter for f in _plain_factors(signature, name)} for name in ("q", "k", "v", "out")}
    batch = BATCH if all("B" in letters for letters in texts.values()) else 1
    batch *= 2 if any(signature.attributes.get(f"{name}_cycles", 0) for name in ("bias", "mask")) else 1
    queries = QUERIES if "S" in texts["q"] and "S" in texts["out"] else 1
    keys = KEYS if "S" in texts["k"] and "S" in texts["v"] else 1
    return batch, queries, keys


def _plain_factors(signature: Signature, operand: str) -> list[Any]:
    return operand_factors(signature, operand, operand_sizes(signature, operand, 1, 1, 1))


def _shapes(signature: Signature) -> dict[str, Shape]:
    shapes = _SHAPES[signature.spec.name](signature)
    return {o.name: shapes[o.name] for o in signature.spec.inputs if signature.has(o.name)}


def _attention_shapes(signature: Signature) -> dict[str, Shape]:
    batch, queries, keys = _extents(signature)
    shapes = {
        name: memory_shape(operand_factors(signature, name, operand_sizes(signature, name, queries, keys, batch)))
        for name in "qkv"
    }
    cycles = {name: bool(signature.attributes.get(f"{name}_cycles", 0)) for name in ("bias", "mask")}
    whole = batch // 2 if cycles["mask"] else batch
    return {**shapes, "bias": (batch // 2 if cycles["bias"] else 1, 1, queries, keys), "mask": (whole, 1, 1, keys)}


def _group_norm_shapes(signature: Signature) -> dict[str, Shape]:
    channels = signature.integer("num_channels")
    return {"x": (BATCH, channels, *SPATIAL), "gamma": (channels,), "beta": (channels,)}


def _norm_shapes(signature: Signature) -> dict[str, Shape]:
    rows = (*ROWS, HIDDEN)
    shapes: dict[str, Shape] = {
        "x": rows,
        "x1": rows,
        "x2": rows,
        "x3": rows,
        "residual": rows,
        "gamma": (HIDDEN,),
        "beta": (HIDDEN,),
    }
    transposed = signature.attributes.get("transposed", ())
    assert isinstance(transposed, tuple)
    for index, flag in enumerate(transposed, 1):
        shapes[f"w{index}"] = (COLUMNS, HIDDEN) if flag else (HIDDEN, COLUMNS)
        shapes[f"b{index}"] = (COLUMNS,)
    return shapes


def _modulated_shapes(signature: Signature) -> dict[str, Shape]:
    """A row of scale and shift for each batch."""
    row = (ROWS[0], *(1,) * (len(ROWS) - 1), HIDDEN)
    return {**_norm_shapes(signature), "gamma": row, "beta": row, "gate": row}


def _ffn_shapes(signature: Signature) -> dict[str, Shape]:
    flags = signature.attributes["transposed"]
    assert isinstance(flags, tuple)
    columns = HIDDEN if signature.attributes.get("add_normalized") else COLUMNS
    up = INNER if signature.text("gating") in ("none", "separate") else 2 * INNER
    shapes: dict[str, Shape] = {"x": (*ROWS, HIDDEN), "residual": (*ROWS, columns), "residual2": (*ROWS, columns)}
    weights = {"up": (HIDDEN, up), "gate": (HIDDEN, INNER), "down": (INNER, columns)}
    for (name, shape), flag in zip(weights.items(), flags, strict=True):
        shapes[f"w_{name}"] = shape[::-1] if flag else shape
        shapes[f"b_{name}"] = (shape[1],)
    vectors = dict.fromkeys(ffn_problem.VECTORS, (columns,))
    return {**shapes, **vectors, "gamma": (HIDDEN,), "beta": (HIDDEN,)}


def _rotary_shapes(signature: Signature) -> dict[str, Shape]:
    """Three heads, of keys two, at five positions."""
    width, shapes = signature.integer("head_dim"), {}  # type: int, dict[str, Shape]
    for name, heads in (("q", 3), ("k", 2)):
        heads = signature.integer(f"{name}_heads") or heads
        step = signature.integer(f"{name}_step")
        row = signature.integer(f"{name}_offset") * (step == width) + heads * (step or width)
        layouts: dict[str, Shape] = {
            "BSH": (BATCH, QUERIES, row),
            "BSND": (BATCH, QUERIES, heads, width),
            "as_is": (BATCH, heads, QUERIES, width),
        }
        shapes[name] = layouts[signature.text(f"{name}_layout")]
    angles = (1, 1, QUERIES, signature.integer("rotary_dim"))
    scales: dict[str, Shape] = {}
    for name, heads in (("q", 3), ("k", 2)):
        heads = signature.integer(f"{name}_heads") or heads
        shape = (heads, width) if signature.integer("by_head") else (width,)
        scales |= {f"{name}_gamma": shape, f"{name}_beta": shape}
    return {**shapes, "cos": angles, "sin": angles, **scales}


def _softmax_shapes(signature: Signature) -> dict[str, Shape]:
    return {"x": (BATCH, 3, QUERIES, KEYS), "bias": (1, 1, QUERIES, KEYS), "mask": (BATCH, 1, 1, KEYS)}


def _linear_shapes(signature: Signature) -> dict[str, Shape]:
    weight = (COLUMNS, HIDDEN) if signature.integer("transposed") else (HIDDEN, COLUMNS)
    leading = (math.prod(ROWS),) if signature.integer("folded") else ROWS
    result: Shape = (*ROWS, COLUMNS)
    rows: dict[str, Shape] = {"x": (*leading, HIDDEN), "residual": result, "residual2": result, "w": weight}
    vectors = dict.fromkeys(linear_problem.VECTORS, (COLUMNS,))
    return {**rows, **vectors, "gamma": (HIDDEN,), "beta": (HIDDEN,)}


def _elementwise_shapes(signature: Signature) -> dict[str, Shape]:
    expression = parse_expression(signature.text("expression"))
    columns = (*(1,) * (expression.columns - 1), HIDDEN) if expression.columns else (HIDDEN,)
    rows = (*(1,) * (expression.rows - 1), ROWS[1]) if expression.rows else ROWS
    groups = ((BATCH,) if expression.rows else (), rows, columns)

    def shape(varies: Sequence[bool]) -> Shape:
        """From the first group of axes on that the operand varies along."""
        if not any(varies):
            return (1,)
        first = varies.index(True)
        named = zip(varies[first:], groups[first:], strict=True)
        return tuple(size if wide else 1 for wide, group in named for size in group)

    return {f"x{i + 1}": shape(VARIES[given.kind]) for i, given in enumerate(expression.inputs)}


_SHAPES: Mapping[str, Callable[[Signature], dict[str, Shape]]] = {
    "attention": _attention_shapes,
    "modulated_layer_norm": _modulated_shapes,
    **dict.fromkeys(
        ("layer_norm_qkv", "add_layer_norm_qkv", "qkv", "add_layer_norm", "add_rms_norm", "layer_norm", "rms_norm"),
        _norm_shapes,
    ),
    **dict.fromkeys(("ffn", "layer_norm_ffn"), _ffn_shapes),
    "group_norm_silu": _group_norm_shapes,
    **dict.fromkeys(("linear", "layer_norm_linear"), _linear_shapes),
    "elementwise": _elementwise_shapes,
    "rotary_embedding": _rotary_shapes,
    "scale_mask_softmax": _softmax_shapes,
}
"""Shapes of a test's operands by kernel name."""


def _values(signature: Signature, name: str, shape: Shape) -> Array:
    """Scrambled numbers that every element type holds exactly; a mask keeps the last key of every row."""
    count = int(np.prod(shape))
    seed = sum(map(ord, name))
    mixed = (np.arange(1, count + 1, dtype=np.uint64) * 2654435761 + seed * 40503) % 2**32
    mixed = (mixed ^ (mixed >> np.uint64(15))) * np.uint64(2246822519) % 2**32
    steps = ((mixed >> np.uint64(20)) % 255).astype(np.int64) - 127
    if signature.dtypes[name] == BOOL:
        keep: Array = (steps > -40).reshape(shape)
        if signature.spec.name == "elementwise":
            return keep
        keep[..., -1] = True
        return keep if signature.integer("mask_keeps") else ~keep
    if signature.spec.name == "elementwise":
        steps = np.abs(steps) + 1  # within the domain of logarithms and roots
        # Many ones: a mask made of 0 and 1 is filled with the least number of the type, and all else overflows.
        steps = np.where((mixed >> np.uint64(8)) % 3 == 0, 64, steps)
    scale = 512 if name.startswith("w") else 64
    return encode((steps / scale).reshape(shape), signature.dtypes[name])
