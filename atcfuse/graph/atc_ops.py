"""Which operators ATC has an ONNX plugin for, and what to do about those it has none for.

ATC looks an operator up by the exact key `<domain>::<opset>::<operator>`. The table that ships with the package lists
the keys of the open CANN operator repositories; an installed CANN, or a plugin of the user's, may know more.
"""

from __future__ import annotations

import json
from functools import lru_cache
from importlib import resources

STANDARD_DOMAIN = "ai.onnx"
FUSED_DOMAIN = "atcfuse"
NEWEST_OPSET = 18
OLDEST_OPSET = 8

_LOWER = f"export the model with opset {NEWEST_OPSET} or lower"
_QUANTIZED = (
    "give ATC the float model, or one quantized with Ascend's own tools (AMCT writes AscendQuant and AscendDequant, "
    "which are registered)"
)
_UNROLL = "unroll the loop when the model is exported: fixed trip counts, or one step a call with its state as inputs"

_ADVICE: dict[str, str] = {
    "Attention": f"{_LOWER}: attention is then written as MatMul and Softmax, which `atcfuse optimize` fuses",
    "ConvInteger": _QUANTIZED,
    "DequantizeLinear": _QUANTIZED,
    "DynamicQuantizeLinear": _QUANTIZED,
    "Gelu": f"{_LOWER}: Gelu is then written with Erf or Tanh, which ATC takes",
    "GroupNormalization": "export with opset 17 or lower: it is then written as InstanceNormalization, Mul and Add",
    "Loop": _UNROLL,
    "MatMulInteger": _QUANTIZED,
    "QLinearConv": _QUANTIZED,
    "QLinearMatMul": _QUANTIZED,
    "QuantizeLinear": _QUANTIZED,
    "RMSNormalization": f"{_LOWER}: it is then written as Pow or Mul, ReduceMean, Add, Sqrt and Div, which ATC takes",
    "RotaryEmbedding": f"{_LOWER}: it is then written as Slice, Neg, Concat, Mul and Add, which ATC takes",
    "Scan": _UNROLL,
    "Swish": f"{_LOWER}: Swish is then written as Sigmoid and Mul, which ATC takes",
}
_ADVICE_AT_OPSET: dict[str, str] = {
    "LayerNormalization": "export with opset 17 or 18; with 16 or lower, PyTorch writes it in operators that ATC takes",
}
# Domains of other runtimes and of exporters' libraries: no CANN plugin of any release is known for them.
_FOREIGN_DOMAINS = ("ai.onnx.ml", "ai.onnx.preview", "ai.onnx.training", "com.microsoft", "com.ms", "org.pytorch")
# onnxruntime's own operator that its optimizer writes into the standard domain.
_ONNXRUNTIME_STANDARD = ("SimplifiedLayerNormalization",)


@lru_cache(maxsize=1)
def _table() -> dict[str, dict[str, frozenset[int]]]:
    """Domain → operator → opset versions with a plugin."""
    text = (resources.files("atcfuse") / "data" / "atc_onnx_ops.json").read_text(encoding="utf-8")
    domains: dict[str, dict[str, str]] = json.loads(text)["domains"]
    return {domain: {op: frozenset(_versions(text)) for op, text in ops.items()} for domain, ops in domains.items()}


def _versions(text: str) -> list[int]:
    """The versions in a list of ranges: `11, 16-18` is 11, 16, 17, 18."""
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def registered_opsets(domain: str, op_type: str) -> frozenset[int]:
    """The opset versions of `domain` ("" is `ai.onnx`) at which ATC has a plugin for `op_type`; empty if at none."""
    return _table().get(domain or STANDARD_DOMAIN, {}).get(op_type, frozenset())


def registered_operators() -> frozenset[str]:
    """Every operator that ATC has a plugin for in the standard domain; some are ATC's own, as NPURmsNorm."""
    return frozenset(_table()[STANDARD_DOMAIN])


def plugin_key(domain: str, version: int, op_type: str) -> str:
    """The key under which ATC looks a node up: `ai.onnx::17::Softmax`."""
    return f"{domain or STANDARD_DOMAIN}::{version}::{op_type}"


def is_foreign(domain: str, op_type: str) -> bool:
    """Whether the operator belongs to another runtime, for which no ATC plugin is known."""
    return op_type in _ONNXRUNTIME_STANDARD or any(
        domain == known or domain.startswith(known + ".") for known in _FOREIGN_DOMAINS
    )


def advice(op_type: str) -> str:
    """What to do about a standard operator without any plugin."""
    default = "write it in other operators before the export, or write an ONNX plugin and a kernel for it"
    return _ADVICE.get(op_type, default)


def advice_at_opset(op_type: str) -> str:
    """What to do about a standard operator that has plugins, but not for the model's opset."""
    return _ADVICE_AT_OPSET.get(op_type, "export the model with one of these opsets")


def foreign_advice(domain: str, op_type: str) -> str:
    """What to do about an operator of another runtime."""
    if not domain.startswith(("com.ms", "com.microsoft")) and op_type not in _ONNXRUNTIME_STANDARD:
        return "remove these operators, or write an ONNX plugin and a kernel for them"
    if any(mark in op_type for mark in ("NBits", "Quant", "Integer", "QLinear", "QAttention", "QGemm")):
        return _QUANTIZED
    return "give ATC the model as it was before onnxruntime's optimizer; `atcfuse optimize` fuses for Ascend"


def ranges(versions: frozenset[int]) -> str:
    """Opset versions as text: 11, 16, 17, 18 is `11, 16-18`."""
    parts: list[list[int]] = []
    for version in sorted(versions):
        if parts and version == parts[-1][-1] + 1:
            parts[-1].append(version)
        else:
            parts.append([version])
    return ", ".join(str(p[0]) if len(p) == 1 else f"{p[0]}-{p[-1]}" for p in parts)
