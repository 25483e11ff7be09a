"""Operators over spatial axes: convolution, pooling, resizing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from onnx import TensorProto

from atcfuse.dims import Dim, Poly, floor_divide, is_nonnegative
from atcfuse.graph.facts import Fact
from atcfuse.graph.infer.call import Call, Shape, normalized_axes, replaced


def _conv(call: Call) -> Fact:
    return Fact(call.input(0).dtype, _convolved(call, call.input(0).shape, call.input(1).shape))


def _conv_integer(call: Call) -> Fact:
    return Fact(TensorProto.INT32, _convolved(call, call.input(0).shape, call.input(1).shape))


def _qlinear_conv(call: Call) -> Fact:
    return Fact(call.input(7).dtype, _convolved(call, call.input(0).shape, call.input(3).shape))


def _convolved(call: Call, shape: Shape | None, weights: Shape | None) -> Shape | None:
    if shape is None or len(shape) < 3:
        return None
    if weights is None or len(weights) != len(shape):
        return (shape[0], *call.fresh_shape(len(shape))[1:])
    return (shape[0], weights[0], *_windows(call, shape[2:], call.attribute("kernel_shape") or weights[2:]))


def _windows(call: Call, spatial: Shape, kernel: Sequence[Dim]) -> Shape:
    """How many windows fit along each spatial axis."""
    rank = len(spatial)
    strides = _per_axis(call, "strides", rank, 1)
    dilations = _per_axis(call, "dilations", rank, 1)
    pads = _per_axis(call, "pads", 2 * rank, 0)
    auto = call.attribute("auto_pad", "NOTSET")
    if len(kernel) != rank or strides is None or dilations is None or pads is None or 0 in strides:
        return call.fresh_shape(rank + 2)[2:]
    out: list[Dim] = []
    for i, extent in enumerate(spatial):
        stride, reach = strides[i], (kernel[i] - 1) * dilations[i] + 1
        if auto in ("SAME_UPPER", "SAME_LOWER"):
            out.append(floor_divide(extent + (stride - 1), stride))
            continue
        padding = pads[i] + pads[i + rank] if auto in ("NOTSET", "") else 0
        room = extent + padding - reach
        exact = isinstance(room, int) and room % stride == 0
        if call.attribute("ceil_mode", 0) and not exact and stride != 1:
            out.append(call.fresh(i + 2))  # runtimes differ in whether a window may start in the padding
        else:
            out.append(floor_divide(room, stride) + 1)
    return tuple(out)


def _per_axis(call: Call, name: str, count: int, default: int) -> tuple[int, ...] | None:
    given: Any = call.attribute(name) or (default,) * count
    return given if len(given) == count else None


def _conv_transpose(call: Call) -> Fact:
    shape, weights = call.input(0).shape, call.input(1).shape
    dtype = call.input(0).dtype
    if shape is None or len(shape) < 3:
        return Fact(dtype)
    if weights is None or len(weights) != len(shape):
        return Fact(dtype, (shape[0], *call.fresh_shape(len(shape))[1:]))
    channels = weights[1] * call.attribute("group", 1)
    return Fact(dtype, (shape[0], channels, *_transposed_windows(call, shape[2:], weights[2:])))


def _transposed_windows(call: Call, spatial: Shape, weights: Shape) -> Shape:
    rank = len(spatial)
    given = call.attribute("output_shape")
    if given:
        return tuple(given)[-rank:] if len(given) in (rank, rank + 2) else call.fresh_shape(rank + 2)[2:]
    strides, dilations = _per_axis(call, "strides", rank, 1), _per_axis(call, "dilations", rank, 1)
    pads, extra = _per_axis(call, "pads", 2 * rank, 0), _per_axis(call, "output_padding", rank, 0)
    kernel: Sequence[Dim] = call.attribute("kernel_shape") or weights
    if strides is None or dilations is None or pads is None or extra is None or len(kernel) != rank:
        return call.fresh_shape(rank + 2)[2:]
    if call.attribute("auto_pad", "NOTSET") not in ("NOTSET", "VALID", ""):
        return call.fresh_shape(rank + 2)[2:]
    return tuple(
        (d - 1) * strides[i] + extra[i] + (kernel[i] - 1) * dilations[i] + 1 - pads[i] - pads[i + rank]
        for i, d in enumerate(spatial)
    )


def _pool(call: Call) -> list[Fact]:
    shape = call.input(0).shape
    kernel = call.attribute("kernel_shape")
    if shape is None or len(shape) < 3 or kernel is None:
        return [Fact(call.input(0).dtype), Fact(TensorProto.INT64)]
    out = (*shape[:2], *_windows(call, shape[2:], kernel))
    return [Fact(call.input(0).dtype, out), Fact(TensorProto.INT64, out)]


def _global_pool(call: Call) -> Fact:
    shape = call.input(0).shape
    return Fact(call.input(0).dtype, None if shape is None else shape[:2] + (1,) * (len(shape) - 2))


def _resize(call: Call) -> Fact:
    source = call.input(0)
    shape = source.shape
    if shape is None:
        return Fact(source.dtype)
    rank = len(shape)
    given = call.attribute("axes") or range(rank)
    axes = normalized_axes(given, rank)
    if axes is None or call.attribute("keep_aspect_ratio_policy", "stretch") != "stretch":
        return Fact(source.dtype, call.fresh_shape(rank))
    sizes = call.input(3).elements
    if sizes is not None and len(sizes) == len(axes):
        for axis, size in zip(axes, sizes, strict=True):
            shape = replaced(shape, axis, size if is_nonnegative(size) else call.fresh(axis))
        return Fact(source.dtype, shape)
    scales = call.input(1 if call.opset == 10 else 2).array
    crops = call.attribute("coordinate_transformation_mode", "") == "tf_crop_and_resize"
    if scales is None or scales.size != len(axes) or crops or call.has_input(3):
        return Fact(source.dtype, call.fresh_shape(rank))
    for axis, scale in zip(axes, scales.ravel(), strict=True):
        shape = replaced(shape, axis, _scaled(call, axis, shape[axis], scale))
    return Fact(source.dtype, shape)


def _upsample(call: Call) -> Fact:
    source = call.input(0)
    if source.shape is None:
        return Fact(source.dtype)
    scales = call.input(1).array
    if scales is None or scales.size != len(source.shape):
        return Fact(source.dtype, call.fresh_shape(len(source.shape)))
    scaled = zip(source.shape, scales.ravel(), strict=True)
    return Fact(source.dtype, tuple(_scaled(call, i, d, s) for i, (d, s) in enumerate(scaled)))


def _scaled(call: Call, axis: int, extent: Dim, scale: np.floating) -> Dim:
    if float(scale).is_integer() and scale > 0:
        return extent * int(scale)
    if isinstance(extent, Poly) or not np.isfinite(scale):
        return call.fresh(axis)
    return int(np.floor(np.float32(extent) * np.float32(scale)))


def _roi_align(call: Call) -> Fact:
    shape, rois = call.input(0).shape, call.input(1).shape
    count = rois[0] if rois else call.fresh(0)
    channels = shape[1] if shape is not None and len(shape) == 4 else call.fresh(1)
    size = call.attribute("output_height", 1), call.attribute("output_width", 1)
    return Fact(call.input(0).dtype, (count, channels, *size))


def _grid_sample(call: Call) -> Fact:
    shape, grid = call.input(0).shape, call.input(1).shape
    if shape is None or grid is None or len(shape) != len(grid):
        return Fact(call.input(0).dtype)
    return Fact(call.input(0).dtype, (*shape[:2], *grid[1:-1]))


OPERATORS: dict[str, Callable[[Call], Fact | list[Fact]]] = {
    "Conv": _conv,
    "ConvInteger": _conv_integer,
    "QLinearConv": _qlinear_conv,
    "ConvTranspose": _conv_transpose,
    "MaxPool": _pool,
    "AveragePool": _pool,
    "LpPool": _pool,
    "GlobalAveragePool": _global_pool,
    "GlobalMaxPool": _global_pool,
    "GlobalLpPool": _global_pool,
    "Resize": _resize,
    "Upsample": _upsample,
    "RoiAlign": _roi_align,
    "GridSample": _grid_sample,
}
