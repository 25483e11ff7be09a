"""Layout texts: how an operand of a fused operator lies in its root's memory.

`BSH`, `BSND`, `BNSD`, `SBH`, or the root's axes in einops notation over `B` batch, `N` heads, `S` positions, `D` width,
as `B S (3 N D)`: a number is a factor of which the operand takes one part (the offset says which), `N:73` the operand's
heads within an axis factor of 73.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from atcfuse.diagnostics import AtcfuseError, error

ALIASES = {"B S (N D)": "BSH", "B S N D": "BSND", "B N S D": "BNSD", "S B (N D)": "SBH"}
"""The layouts that Ascend users know by name."""

_SPELLED = {name: text for text, name in ALIASES.items()}


@dataclass(frozen=True)
class LayoutFactor:
    """One factor of a root axis: a letter, or a number of which part `index` is taken.

    `size` is the extent in memory (None: read from the shape), `taken` the letter's own extent where it is smaller.
    """

    axis: int
    letter: str | None
    size: int | None
    index: int = 0
    taken: int | None = None


def parse_layout(layout: str, offset: int, sizes: Mapping[str, int]) -> list[LayoutFactor]:
    """The factors of a layout, major first. Raises AtcfuseError ATF219 where the text is none."""
    words = re.findall(r"\([^()]*\)|\S+", _SPELLED.get(layout, layout))
    factors: list[LayoutFactor] = []
    for axis, word in enumerate(words):
        for part in word.strip("()").split():
            factors.append(_factor(axis, part, layout, sizes))
    return _indexed(factors, offset)


def _factor(axis: int, part: str, layout: str, sizes: Mapping[str, int]) -> LayoutFactor:
    if part.isdigit():
        return LayoutFactor(axis, None, int(part))
    letter, _, extent = part.partition(":")
    if letter not in ("B", "N", "S", "D") or (extent and not extent.isdigit()):
        hint = "layouts are BSH, BSND, BNSD, SBH, or axes over B, N, S, D and numbers such as B S (3 N D)"
        raise AtcfuseError(error("ATF219", f"cannot read the layout {layout!r}", hint=hint))
    if extent:
        return LayoutFactor(axis, letter, int(extent), 0, sizes[letter])
    return LayoutFactor(axis, letter, sizes.get(letter))


def _indexed(factors: list[LayoutFactor], offset: int) -> list[LayoutFactor]:
    """The factors with the part that the offset selects in each number and each partly taken letter."""
    stride: int | None = 1
    out: list[LayoutFactor] = []
    for factor in reversed(factors):
        index = 0
        if stride is not None and factor.size and (factor.letter is None or factor.taken is not None):
            index = offset // stride % factor.size
        out.insert(0, LayoutFactor(factor.axis, factor.letter, factor.size, index, factor.taken))
        stride = None if stride is None or factor.size is None else stride * factor.size
    return out
