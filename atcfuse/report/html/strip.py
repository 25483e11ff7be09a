"""The model as a strip of fused kernels in the order of the model, in which repeated layers fold."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from atcfuse.report.groups import Entry

MAX_PERIOD = 64
"""Kernels a repeated block may have; a layer has far fewer."""

_SHAPE_KEYS = ("rule", "op", "attributes", "choices", "tiling", "kernel", "launches_saved", "ddr_bytes_saved")


@dataclass(frozen=True)
class Block:
    """`times` equal runs of kernels; `fusions` are those of the first run, `all` those of every run.

    `between` are the launches, by operator, that stand between one run and the next.
    """

    times: int
    fusions: tuple[Entry, ...]
    all: tuple[Entry, ...]
    between: Mapping[str, int]


def strip(fusions: Sequence[Entry]) -> list[Block]:
    """The fusions of a report as blocks: at every place the repetition that covers most, the shortest period of equals.

    Fusions are equal that differ in nothing but names and in what ATC would have made of their surroundings, with the
    same launches left before them; before the first run of a block others may stand.
    """
    numbers: dict[str, int] = {}
    shapes = [numbers.setdefault(_shape(f), len(numbers)) for f in fusions]
    keys = [numbers.setdefault(f"{shape} {_left(f)}", len(numbers)) for shape, f in zip(shapes, fusions, strict=True)]
    blocks, at = [], 0
    while at < len(keys):
        period, times = _repetition(shapes, keys, at)
        end = at + period * times
        between = fusions[at + period].get("left_before") or {} if times > 1 else {}
        blocks.append(Block(times, tuple(fusions[at : at + period]), tuple(fusions[at:end]), between))
        at = end
    return _joined(blocks)


def _shape(fusion: Entry) -> str:
    return json.dumps([*(fusion.get(key) for key in _SHAPE_KEYS), len(fusion["nodes"])], sort_keys=True)


def _left(fusion: Entry) -> str:
    return json.dumps(fusion.get("left_before") or {}, sort_keys=True)


def _repetition(shapes: Sequence[int], keys: Sequence[int], at: int) -> tuple[int, int]:
    best = (1, 1)
    for period in range(1, min(MAX_PERIOD, (len(keys) - at) // 2) + 1):
        second = at + period
        if shapes[at] != shapes[second] or keys[at + 1 : second] != keys[second + 1 : second + period]:
            continue
        unit, times = keys[second : second + period], 2
        while keys[at + times * period : at + (times + 1) * period] == unit:
            times += 1
        if period * times > best[0] * best[1]:
            best = (period, times)
    return best


def _joined(blocks: Sequence[Block]) -> list[Block]:
    """Single kernels in a row as one block."""
    found: list[Block] = []
    for block in blocks:
        if block.times == 1 and found and found[-1].times == 1:
            last = found.pop()
            block = Block(1, last.fusions + block.fusions, last.all + block.all, {})
        found.append(block)
    return found
