"""The model as a strip of fused kernels in the order of the model, in which repeated layers fold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from atcfuse.report.groups import Entry, fused_shape

MAX_PERIOD = 64
"""Kernels a repeated block may have; a layer has far fewer."""


@dataclass(frozen=True)
class Block:
    """`times` equal runs of kernels; `fusions` are those of the first run, `all` those of every run."""

    times: int
    fusions: tuple[Entry, ...]
    all: tuple[Entry, ...]


def strip(fusions: Sequence[Entry]) -> list[Block]:
    """The fusions of a report as blocks: at every place the repetition that covers most, the shortest period of equals.

    Fusions are equal that differ in nothing but names.
    """
    numbers: dict[str, int] = {}
    keys = [numbers.setdefault(fused_shape(f), len(numbers)) for f in fusions]
    blocks, at = [], 0
    while at < len(keys):
        period, times = _repetition(keys, at)
        end = at + period * times
        blocks.append(Block(times, tuple(fusions[at : at + period]), tuple(fusions[at:end])))
        at = end
    return _joined(blocks)


def _repetition(keys: Sequence[int], at: int) -> tuple[int, int]:
    best = (1, 1)
    for period in range(1, min(MAX_PERIOD, (len(keys) - at) // 2) + 1):
        unit, times = keys[at : at + period], 1
        while keys[at + times * period : at + (times + 1) * period] == unit:
            times += 1
        if times > 1 and period * times > best[0] * best[1]:
            best = (period, times)
    return best


def _joined(blocks: Sequence[Block]) -> list[Block]:
    """Single kernels in a row as one block."""
    found: list[Block] = []
    for block in blocks:
        if block.times == 1 and found and found[-1].times == 1:
            last = found.pop()
            block = Block(1, last.fusions + block.fusions, last.all + block.all)
        found.append(block)
    return found
