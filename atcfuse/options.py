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
TileLevel = Literal["auto", "small", "large"]
TILE_LEVELS: tuple[TileLevel, ...] = ("auto", "small", "large")
DEBUG_VARIABLE = "GF_AUTOFUSION_DEBUG"
DISABLE_VARIABLE = "GF_AUTOFUSION_DISABLE"


EVERY_RULE = "all"
"""What `forced` holds where no rule's fusions need to pay."""


@dataclass(frozen=True)
class Options:
    """Options of `optimize`; the defaults are those of the command line.

    `soc` is a chip's name or a SoC file. With `kernels` a subgraph is only fused where a kernel can be generated for
    it under `precision_mode`, and where that pays: by `min_saving_us` or more, within `occupancy` of L1 and UB (None
    takes the SoC file's figures), with attention tiles of a `tile_level`, with the operators `keep_fp32` computed in
    float32; rules in `forced` need not pay (`EVERY_RULE` for all). `keep_nodes` are names, patterns of names and files,
    see `keep_nodes.parse_keep_nodes`. `kernel_cache` is a folder in which rendered kernels are kept for later runs.
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
    min_saving_us: float | None = None
    occupancy: float | None = None
    tile_level: TileLevel = "auto"
    keep_fp32: frozenset[str] = frozenset()
    forced: frozenset[str] = frozenset()
    keep_nodes: tuple[str, ...] = ()
    kernel_cache: Path | None = None


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


def parse_tile_level(text: str) -> TileLevel:
    """A tile level by name. Raises UsageError ATF159."""
    for level in TILE_LEVELS:
        if text == level:
            return level
    hint = did_you_mean(text, TILE_LEVELS) or f"one of {', '.join(TILE_LEVELS)}"
    raise UsageError(error("ATF159", f"there is no tile level {text!r}", hint=hint))


def parse_names(text: str) -> frozenset[str]:
    """Names separated by commas."""
    return frozenset(filter(None, (part.strip() for part in text.split(","))))


def check_figures(options: Options) -> None:
    """Raises UsageError ATF156 for a saving below 0 or a share that is none."""
    saving, share = options.min_saving_us, options.occupancy
    if saving is not None and not 0 <= saving < float("inf"):
        hint = "microseconds, such as --min-saving 10; 0 takes whatever does not lose"
        raise UsageError(error("ATF156", f"the least saving must be a number from 0, found {saving:g}", hint=hint))
    if share is not None and not 0 < share <= 1:
        hint = "a share of each on-chip memory, such as --occupancy 0.8"
        raise UsageError(error("ATF156", f"the occupancy must be above 0 and up to 1, found {share:g}", hint=hint))


def parse_assumed(text: str) -> dict[str, int]:
    """`batch=1,seq=128` as sizes by dim name. Raises UsageError ATF151."""
    sizes: dict[str, int] = {}
    for part in filter(None, (p.strip() for p in text.split(","))):
        name, equals, size = part.partition("=")
        if not equals or not name.strip() or not (size.strip().isascii() and size.strip().isdigit()):
            hint = "write name=size pairs such as --assume batch=1,seq=128"
            raise UsageError(error("ATF151", f"cannot read {part!r} as an assumed size", hint=hint))
        sizes[name.strip()] = int(size)
    return sizes
