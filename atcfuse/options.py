"""What a caller may ask of a run."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from atcfuse.diagnostics import UsageError, did_you_mean, error
from atcfuse.precision import DEFAULT_MODE

Dialect = Literal["atc", "atc-flat", "portable"]
DIALECTS: tuple[Dialect, ...] = ("atc", "atc-flat", "portable")
DEBUG_VARIABLE = "GF_AUTOFUSION_DEBUG"
DISABLE_VARIABLE = "GF_AUTOFUSION_DISABLE"


@dataclass(frozen=True)
class Options:
    """Options of `optimize`; the defaults are those of the command line.

    With `kernels` a subgraph is only fused where a kernel can be generated for `soc` under `precision_mode`.
    """

    switch_file: Path | None = None
    soc: str = "Ascend910B1"
    rules: tuple[Path, ...] = ()
    dialect: Dialect = "atc"
    assume: Mapping[str, int] = field(default_factory=dict)
    keep_all: bool = False
    disabled: frozenset[str] = frozenset()
    kernels: bool = True
    precision_mode: str = DEFAULT_MODE


def with_environment(options: Options, environment: Mapping[str, str] | None = None) -> Options:
    """The options with what `GF_AUTOFUSION_DEBUG` and `GF_AUTOFUSION_DISABLE` say."""
    from dataclasses import replace

    found = os.environ if environment is None else environment
    disabled = {n.strip() for n in found.get(DISABLE_VARIABLE, "").split(",") if n.strip()}
    debug = found.get(DEBUG_VARIABLE, "") not in ("", "0")
    return replace(options, keep_all=options.keep_all or debug, disabled=options.disabled | disabled)


def parse_dialect(text: str) -> Dialect:
    """A dialect by name. Raises UsageError ATF150."""
    for dialect in DIALECTS:
        if text == dialect:
            return dialect
    hint = did_you_mean(text, DIALECTS) or f"one of {', '.join(DIALECTS)}"
    raise UsageError(error("ATF150", f"there is no dialect {text!r}", hint=hint))


def parse_assumed(text: str) -> dict[str, int]:
    """`batch=1,seq=128` as sizes by dim name. Raises UsageError ATF151."""
    sizes: dict[str, int] = {}
    for part in filter(None, (p.strip() for p in text.split(","))):
        name, equals, size = part.partition("=")
        if not equals or not name.strip() or not size.strip().isdigit():
            hint = "write name=size pairs such as --assume batch=1,seq=128"
            raise UsageError(error("ATF151", f"cannot read {part!r} as an assumed size", hint=hint))
        sizes[name.strip()] = int(size)
    return sizes
