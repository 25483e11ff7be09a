"""ATC's precision modes: in which element type a fused node really runs."""

from __future__ import annotations

from atcfuse.diagnostics import UsageError, did_you_mean, error

FLOAT32, FLOAT16, BFLOAT16 = 1, 10, 16

DEFAULT_MODE = "force_fp16"
"""What ATC does when nothing is said."""

MODES = {
    "force_fp16": "force_fp16",
    "force_fp32": "force_fp32",
    "allow_fp32_to_fp16": "allow_fp32_to_fp16",
    "must_keep_origin_dtype": "must_keep_origin_dtype",
    "allow_mix_precision": "allow_mix_precision",
    "allow_mix_precision_fp16": "allow_mix_precision",
    "cube_fp16in_fp32out": "cube_fp16in_fp32out",
    "fp16": "force_fp16",
    "origin": "must_keep_origin_dtype",
    "mixed_float16": "allow_mix_precision",
}
"""Accepted spellings, those of `--precision_mode` and of `--precision_mode_v2`, and the mode each stands for."""


def parse_precision_mode(text: str) -> str:
    """A precision mode by either of ATC's spellings. Raises UsageError ATF153."""
    mode = MODES.get(text)
    if mode is None:
        hint = did_you_mean(text, MODES) or f"one of {', '.join(MODES)}"
        raise UsageError(error("ATF153", f"{text!r} is not a precision mode of ATC", hint=hint))
    return mode


def compute_type(dtype: int, mode: str) -> int:
    """The element type in which an operand of the given type reaches the kernel under a precision mode."""
    return FLOAT16 if mode == "force_fp16" and dtype in (FLOAT32, BFLOAT16) else dtype
