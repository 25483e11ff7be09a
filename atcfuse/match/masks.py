"""Masks and biases of scores: proved to broadcast, brought to the shape [batch, heads, queries, keys]."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from atcfuse.dims import Dim, as_symbol, divide
from atcfuse.graph.index import Scope
from atcfuse.graph.validity import cut_off, implied
from atcfuse.match.functions import Aligned
from atcfuse.match.layouts import Layouts
from atcfuse.match.levels import absorbs, is_step
from atcfuse.match.values import Built, Refusal, Value


@dataclass(frozen=True)
class Agreement:
    """What the product with V fixes: the number of `keys`; that of `batches`, where one axis has them and heads."""

    keys: bool
    batches: bool = False


def combined(
    scope: Scope, items: Sequence[Aligned], op: str, layouts: Layouts, scores: Sequence[Dim], agree: Agreement
) -> Value | Built | Refusal | None:
    """All items as one operand: none, the value itself, or standard nodes that combine several with `op`.

    `scores` is the shape of Q·Kᵀ, of which a mask may regroup the leading dims only. Where masks `cycle`, the
    others must have as many batches or one.
    """
    total: Value | Built | None = None
    if op == "Add" and _rounds_differently(scope, items):
        reason = "two values are added to the scores one after the other; added up first they would round differently"
        return Refusal("ATF314", reason, items[0].value)
    for item in items:
        if not all(_is_still(d, s) for d, s in zip(item.shape[-2:], scores[-2:], strict=True)):
            reason = "the mask is applied where queries and keys are not the last two dims"
            return Refusal("ATF315", reason, item.value)
        one = _as_scores(scope, item, layouts, agree)
        if isinstance(one, Refusal):
            return one
        total = one if total is None else Built(op, (total, one))
    if cycle(scope, items, layouts) > 1 and not all(_fits_cycle(scope, item, items, layouts) for item in items):
        reason = "masks of windows and of whole batches meet"
        return Refusal("ATF315", reason, items[0].value)
    return total


def cycle(scope: Scope, items: Sequence[Aligned], layouts: Layouts) -> int:
    """How many batches the masks have where the batches of the scores go through them again and again, else 0.

    Scores [B·W, H, S, L] are given as [B, W, H, S, L] to a mask [W, …, S, L], one for each window.
    """
    return max((_windows(scope, item, layouts) for item in items), default=0)


def _windows(scope: Scope, item: Aligned, layouts: Layouts) -> int:
    shape, lead = scope.fact(item.value).shape, item.shape[:-2]
    if shape is None or len(lead) != 3 or len(shape) not in (4, 5) or any(d != 1 for d in shape[:-4]):
        return 0
    windows = shape[-4]
    fits = lead[1] == windows and lead[2] == layouts.heads and lead[0] * lead[1] == layouts.batch
    return windows if isinstance(windows, int) and windows > 1 and fits and shape[-3] in (1, layouts.heads) else 0


def _fits_cycle(scope: Scope, item: Aligned, items: Sequence[Aligned], layouts: Layouts) -> bool:
    shape = scope.fact(item.value).shape or ()
    return len(shape) < 4 or shape[-4] in (1, cycle(scope, items, layouts))


def broadcast(scope: Scope, items: Sequence[Aligned], op: str, scores: Sequence[Dim]) -> Value | Built | Refusal | None:
    """All items as one operand that broadcasts over the leading axes to scores of just this shape, or why not."""
    total: Value | Built | None = None
    if op == "Add" and _rounds_differently(scope, items):
        reason = "two values are added to the scores one after the other; added up first they would round differently"
        return Refusal("ATF314", reason, items[0].value)
    for item in items:
        shape = scope.fact(item.value).shape
        if shape is None or len(item.shape) != len(scores) or len(shape) > len(scores):
            return Refusal("ATF315", "the mask is applied to scores of another rank", item.value)
        extent = implied(item.extent, item.extent, item.shape)
        for size, against, score in zip(reversed(extent), reversed(item.shape), reversed(scores), strict=False):
            if against != score or not _fits(size, against):
                reason = f"the mask must not make the scores larger: {size} against {score}"
                return Refusal("ATF313", reason, item.value)
        if not shape or shape[-1] != scores[-1]:
            return Refusal("ATF313", "the mask is one value for all keys", item.value)
        one = Value(item.value)
        total = one if total is None else Built(op, (total, one))
    return total


def _rounds_differently(scope: Scope, items: Sequence[Aligned]) -> bool:
    """Whether adding up the items first may give other scores than adding one after the other."""
    plain = [item for item in items if not absorbs(scope, item.value)]
    return len(plain) > 1 and sum(not is_step(scope, item.value) for item in plain) > 1


def _is_still(dim: Dim, score: Dim) -> bool:
    """Whether a dim is that of the scores, as it was or broadcast against an earlier mask."""
    atom = as_symbol(dim)
    if dim == score or cut_off(dim, score) is not None or cut_off(score, dim) is not None:
        return True
    return bool(atom is not None and atom.op == "broadcast" and score in atom.args)


def _as_scores(scope: Scope, item: Aligned, layouts: Layouts, agree: Agreement) -> Value | Built | Refusal:
    shape = scope.fact(item.value).shape
    if shape is None:
        return Refusal("ATF313", "the rank of the mask is not known", item.value)
    if len(item.extent) > len(item.shape):
        return Refusal("ATF313", "the mask has more dims than the scores", item.value)
    # The key axis cannot grow when K and V agree on its length: probabilities times V fixes it.
    extent = implied(item.extent, item.extent, item.shape)
    larger = [back for back in range(1, len(extent) + 1) if not _fits(extent[-back], item.shape[-back])]
    larger = [back for back in larger if not (back == 1 and agree.keys)]
    if larger and not (agree.batches and _is_fixed(item.shape, larger)):
        reason = f"the mask must not make the scores larger: {extent[-larger[0]]} against {item.shape[-larger[0]]}"
        return Refusal("ATF313", reason, item.value)
    if _windows(scope, item, layouts):
        return Value(item.value) if len(shape) == 4 else _squeezed(item.value, 3)
    return _regrouped(item.value, shape, item.shape, layouts)


def _is_fixed(scores: Sequence[Dim], larger: Sequence[int]) -> bool:
    """Whether scores that a mask made larger in one batch axis, from the end, would not be as many as V's batches.

    With several heads neither is one, so that they do not broadcast.
    """
    others = [d for back, d in enumerate(reversed(scores), 1) if back > 2 and back not in larger]
    return len(larger) == 1 and larger[0] > 2 and any(isinstance(d, int) and d > 1 for d in others)


def _fits(size: Dim, against: Dim) -> bool:
    """Whether broadcasting a mask dim against a score dim provably leaves the score dim."""
    # Of min(size, c) and size neither is 1 alone: they broadcast where they are equal. So do the last of c and size.
    if size in (1, against) or cut_off(against, size) is not None:
        return True
    atom = as_symbol(size)
    if atom is not None and atom.op in ("min", "last") and against in atom.args:
        return True
    whole = as_symbol(against)
    return bool(whole is not None and whole.op == "broadcast" and size in whole.args)


def _regrouped(value: str, shape: Sequence[Dim], scores: Sequence[Dim], layouts: Layouts) -> Value | Built | Refusal:
    """The mask with one axis for the batch and one for the heads, by views only."""
    lead = scores[:-2]
    leading = list(shape[: max(len(shape) - 2, 0)])
    if not leading or all(d == 1 for d in leading):
        return _squeezed(value, len(leading)) if len(leading) > 2 else Value(value)
    if len(lead) == 2 and lead[1] == layouts.heads:
        return Value(value)
    if len(shape) == len(scores) > 4 and lead[-1] == layouts.heads:
        return _one_batch_axis(value, shape, scores)
    if len(lead) == 1 and layouts.heads == 1:
        return Built("Unsqueeze", (Value(value),), (("axes", (1,)),))
    if len(lead) == 1 and layouts.batch == 1:
        return Value(value)
    if len(lead) == 1 and divide(lead[0], layouts.heads) is not None:
        whole = Built("Unsqueeze", (Value(value),), (("axes", (0,)),))
        return Built("Reshape", (whole,), (("shape", (-1, layouts.heads, 0, 0)),))
    return Refusal("ATF315", "the mask does not group its axes as [batch, heads, queries, keys]", value)


def _one_batch_axis(value: str, shape: Sequence[Dim], scores: Sequence[Dim]) -> Value | Built | Refusal:
    """The mask of scores with several batch axes, all of which it has or none."""
    front, own = shape[:-3], shape[-3:]
    if all(d == 1 for d in front):
        return _squeezed(value, len(shape) - 2)
    if tuple(front) == tuple(scores[:-3]) and all(isinstance(d, int) for d in own):
        return Built("Reshape", (Value(value),), (("shape", (-1, *own)),))
    return Refusal("ATF315", "the mask does not group its axes as [batch, heads, queries, keys]", value)


def _squeezed(value: str, leading: int) -> Built:
    return Built("Squeeze", (Value(value),), (("axes", tuple(range(leading - 2))),))
