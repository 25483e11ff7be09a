"""Which bytes reach DDR: a least-recently-used model of L2 over a sequence of launches.

Everything passes through L2. A value comes from DDR when it is first read or when more than L2 was touched since; what
one launch writes and the next ones read costs DDR only where it would spill. This is a model, not a measurement: the
real cache has sets and shares L2 with the rest of the chip.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from atcfuse.graph.work import OpWork
from atcfuse.planner import KernelWork, ProductPlan


class Moved(NamedTuple):
    """Bytes of one launch: at global memory, and the part that reaches DDR."""

    gm_read: int
    gm_written: int
    ddr_read: int
    ddr_written: int

    @property
    def ddr(self) -> int:
        """DDR traffic in both directions."""
        return self.ddr_read + self.ddr_written


class L2:
    """The values that a cache of `capacity` bytes still holds, most recently used last."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._total = 0
        self._held: dict[str, int] = {}

    def touch(self, value: str, size: int) -> bool:
        """Uses a value; whether it was held. What is larger than the cache passes through and drives everything out."""
        held = self._held.pop(value, None)
        self._held[value] = size
        self._total += size - (held or 0)
        while self._total > self._capacity:
            self._total -= self._held.pop(next(iter(self._held)))
        return held is not None


_NONE: Mapping[str, tuple[int, int]] = {}


def moved_by(
    works: Sequence[OpWork], plans: Sequence[ProductPlan | None], capacity: int, outputs: Iterable[str] = ()
) -> list[Moved]:
    """What each of a sequence of unfused launches moves; `plans` cut the products among them.

    `outputs` are values that are read elsewhere too; what nobody in the sequence reads is one in any case.
    """
    touch = L2(capacity).touch
    written = {name for work in works for name in work.writes}
    kept = set(outputs) | (written - {name for work in works for name in work.reads})
    spilled: set[str] = set()
    moved = []
    for work, plan in zip(works, plans, strict=True):
        again = _NONE if plan is None else _repeated(work, plan)
        ddr_read = gm_read = gm_written = late = 0
        for name, size in work.reads.items():
            gm_read += size
            if not touch(name, size):
                ddr_read += size
                if name in written and name not in kept and name not in spilled:
                    spilled.add(name)  # it had left L2 for DDR after it was written
                    late += size
            if name in again:
                total, resident = again[name]
                gm_read += total - size
                ddr_read += int((total - size) * _spilt(resident, capacity))
        for name, size in work.writes.items():
            touch(name, size)
            gm_written += size
            if name in kept:
                late += size
        moved.append(Moved(gm_read, gm_written, ddr_read, late))
    return moved


def _repeated(work: OpWork, plan: ProductPlan) -> dict[str, tuple[int, int]]:
    """For the operands of a product that is cut: bytes read at global memory with repetitions, and what must stay in L2
    for those to come from there.
    """
    if work.product is None:
        return {}
    a, b, found = work.product.a, work.product.b, dict[str, tuple[int, int]]()
    if a in work.reads and a != b:
        found[a] = max(plan.a_reads, work.reads[a]), plan.a_resident
    if b in work.reads:
        found[b] = max(plan.b_reads + (plan.a_reads if a == b else 0), work.reads[b]), plan.b_resident
    return found


def moved_by_kernel(kernel: KernelWork, capacity: int) -> Moved:
    """What one fused launch moves, workspace included.

    Repeated reads and the workspace stay in L2 while they fit it together; the share that does not fit goes to DDR.
    """
    ddr_read = 0
    for name, total in kernel.reads.items():
        once = min(total, kernel.sizes.get(name, total))
        resident = kernel.resident.get(name, once) + kernel.workspace_footprint
        ddr_read += once + int((total - once) * _spilt(resident, capacity))
    overflow = _spilt(kernel.workspace_footprint, capacity)
    outputs = sum(kernel.writes.values())
    return Moved(
        gm_read=sum(kernel.reads.values()) + kernel.workspace_read,
        gm_written=outputs + kernel.workspace_written,
        ddr_read=ddr_read + int(kernel.workspace_read * overflow),
        ddr_written=outputs + int(kernel.workspace_written * overflow),
    )


def _spilt(needed: int, capacity: int) -> float:
    """The share of repeated accesses to `needed` bytes that L2 cannot serve."""
    return 0.0 if needed <= capacity else 1 - capacity / needed


def handovers(works: Sequence[OpWork]) -> int:
    """Values that one launch of the sequence hands to another through memory."""
    producers: Mapping[str, int] = {name: i for i, work in enumerate(works) for name in work.writes}
    return len({name for i, work in enumerate(works) for name in work.reads if producers.get(name, i) != i})
