"""Operators that keep the shape of an input: activations, normalisations, quantization; and recurrent layers."""

from __future__ import annotations

from collections.abc import Callable

from onnx import TensorProto

from atcfuse.dims import Dim, divide
from atcfuse.graph.facts import Fact
from atcfuse.graph.infer.call import Call, Shape, normalized_axis

FLOAT = TensorProto.FLOAT
MICROSOFT = "com.microsoft::"


def _same(call: Call) -> Fact:
    return Fact(call.input(0).dtype, call.input(0).shape)


def _dropout(call: Call) -> list[Fact]:
    source = call.input(0)
    training = call.input(2).splat if call.has_input(2) else 0
    mask = Fact(TensorProto.BOOL, source.shape)
    return [source if training == 0 else Fact(source.dtype, source.shape), mask]


def _layer_normalization(call: Call) -> list[Fact]:
    source = call.input(0)
    shape = source.shape
    axis = None if shape is None else normalized_axis(call.attribute("axis", -1), len(shape))
    statistics = Fact(call.attribute("stash_type", FLOAT))
    if shape is not None and axis is not None:
        statistics.shape = shape[:axis] + (1,) * (len(shape) - axis)
    return [Fact(source.dtype, shape), statistics, statistics]


def _rms_normalization(call: Call) -> Fact:
    """The element type is that of the scale, which need not be the rows' own."""
    return Fact(call.input(1).dtype, call.input(0).shape)


def _skip_layer_normalization(call: Call) -> list[Fact]:
    source = Fact(call.input(0).dtype, call.input(0).shape)
    statistics = Fact(FLOAT, None if source.shape is None else (*source.shape[:-1], 1))
    return [source, statistics, statistics, source]


def _batch_normalization(call: Call) -> list[Fact]:
    return [_same(call), *(Fact(call.input(3).dtype, call.input(3).shape) for _ in call.node.outputs[1:])]


def _quantize(call: Call) -> Fact:
    dtype = call.attribute("output_dtype", 0) or call.input(2).dtype
    if not dtype and not call.has_input(2):
        dtype = TensorProto.UINT8
    return Fact(dtype, call.input(0).shape)


def _dequantize(call: Call) -> Fact:
    return Fact(call.attribute("output_dtype", 0) or call.input(1).dtype, call.input(0).shape)


def _dynamic_quantize(call: Call) -> list[Fact]:
    return [Fact(TensorProto.UINT8, call.input(0).shape), Fact(FLOAT, ()), Fact(TensorProto.UINT8, ())]


def _lstm(call: Call) -> list[Fact]:
    shape, recurrence = call.input(0).shape, call.input(2).shape
    dtype = call.input(0).dtype
    if shape is None or len(shape) != 3:
        return [Fact(dtype)] * 3
    directions = 2 if call.attribute("direction", "forward") == "bidirectional" else 1
    hidden: Dim | None = call.attribute("hidden_size")
    if hidden is None:
        hidden = recurrence[-1] if recurrence else call.fresh(3)
    if call.attribute("layout", 0):
        batch, length = shape[:2]
        everything: Shape = (batch, length, directions, hidden)
        last: Shape = (batch, directions, hidden)
    else:
        length, batch = shape[:2]
        everything, last = (length, directions, batch, hidden), (directions, batch, hidden)
    return [Fact(dtype, everything), Fact(dtype, last), Fact(dtype, last)]


def _glu_halves(call: Call) -> Fact:
    shape = call.input(0).shape
    half = divide(shape[-1], 2) if shape else None
    return Fact(call.input(0).dtype, None if half is None or not shape else (*shape[:-1], half))


SAME = (
    *("Celu", "Elu", "Gelu", "Hardmax", "HardSigmoid", "HardSwish", "LeakyRelu", "LogSoftmax", "Mish", "PRelu", "Selu"),
    *("Shrink", "Sigmoid", "Softmax", "Softplus", "Softsign", "Swish", "ThresholdedRelu"),
    *("Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Cosh", "Sinh", "Tan"),
    *("GroupNormalization", "InstanceNormalization", "LRN", "LpNormalization", "MeanVarianceNormalization"),
    "RotaryEmbedding",
    *(MICROSOFT + name for name in ("BiasGelu", "FastGelu", "Gelu", "QuickGelu", "RotaryEmbedding")),
)

OPERATORS: dict[str, Callable[[Call], Fact | list[Fact]]] = {
    **dict.fromkeys(SAME, _same),
    "Dropout": _dropout,
    "LayerNormalization": _layer_normalization,
    "RMSNormalization": _rms_normalization,
    "SimplifiedLayerNormalization": _rms_normalization,
    "BatchNormalization": _batch_normalization,
    "QuantizeLinear": _quantize,
    "DequantizeLinear": _dequantize,
    "DynamicQuantizeLinear": _dynamic_quantize,
    "LSTM": _lstm,
    "GRU": _lstm,
    "RNN": _lstm,
    MICROSOFT + "SkipLayerNormalization": _skip_layer_normalization,
    MICROSOFT + "SkipSimplifiedLayerNormalization": _skip_layer_normalization,
    MICROSOFT + "QuantizeLinear": _quantize,
    MICROSOFT + "DequantizeLinear": _dequantize,
    MICROSOFT + "BiasSplitGelu": _glu_halves,
}
