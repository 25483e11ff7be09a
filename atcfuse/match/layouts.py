"""The strided operands of attention: roots chosen jointly, batch and heads refined in common, layouts derived.

All operands start at their deepest root. Whatever does not work out names the operand to blame, which is then read one
view less deep; at its own value every operand has a plain layout, so the search ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from atcfuse.dims import Dim, divide, product
from atcfuse.graph.views import Axis, Factor
from atcfuse.layout import ALIASES, parse_layout
from atcfuse.match.factors import chain, grouped, layout_text, merged, merged_text, split_at, suffix_cuts
from atcfuse.match.values import Link, Refusal


@dataclass(frozen=True)
class Blame:
    """An operand that must be read less deep, and why; `by_choice` where only for the sake of an ordinary layout."""

    operand: str
    refusal: Refusal
    by_choice: bool = False


@dataclass(frozen=True)
class Layouts:
    """The layout attributes of a fused attention; `heads_cut` splits the score matrix's leading dims."""

    attributes: Mapping[str, Any]
    batch: Dim
    heads: int
    queries: Dim
    keys: Dim


@dataclass(frozen=True)
class _Space:
    """The refined index space of batch and heads, and each operand's strides in it."""

    cuts: tuple[Dim, ...]
    strides: Mapping[str, tuple[Factor, ...]]
    preferred: Dim | None


def solve(
    operands: Mapping[str, Link], out: Link, shape: Sequence[Dim], scores: Sequence[Dim], ordinary: bool = False
) -> Layouts | Blame | Refusal:
    """Layouts for the roots chosen for q, k, v and out.

    `shape` is that of probabilities times values, `scores` that of Q·Kᵀ; they may group batch and heads differently.
    An `ordinary` layout has the elements of a head side by side, of keys these or the positions.
    """
    scattered = _scattered(operands, out) if ordinary else None
    if scattered is not None:
        return scattered
    space = _space(operands, out, shape, scores)
    if not isinstance(space, _Space):
        return space
    sizes = _sizes(operands, shape)
    if isinstance(sizes, Refusal):
        return sizes
    first: Blame | None = None
    for split in _splits(space):
        found = _at_split(space, split, operands, out, sizes)
        if isinstance(found, Layouts):
            return found
        first = first or found
    return first or Refusal("ATF315", "batch and heads cannot be told apart", str(out.value))


def _scattered(operands: Mapping[str, Link], out: Link) -> Blame | None:
    for name, link in {**operands, "out": out}.items():
        axes = link.view.axes[-2:] if name == "k" else link.view.axes[-1:]
        if not any(_runs_in_steps_of_one(axis) for axis in axes):
            reason = f"the elements of a head of {name} do not lie side by side"
            return Blame(name, Refusal("ATF315", reason, str(link.value)), by_choice=True)
    return None


def _runs_in_steps_of_one(axis: Axis) -> bool:
    factors = [f for f in axis if f[0] != 1]
    return not factors or factors[-1][1] == 1


def _sizes(operands: Mapping[str, Link], shape: Sequence[Dim]) -> Mapping[str, Dim] | Refusal:
    q, k, v = (operands[name].view.shape for name in ("q", "k", "v"))
    head_dim = next((d for d in (q[-1], k[-2]) if isinstance(d, int)), None)
    if head_dim is None or not isinstance(v[-1], int):
        found = q[-1] if head_dim is None else v[-1]
        return Refusal("ATF313", f"the head dim must be static, it is {found}", str(operands["q"].value))
    keys = next((d for d in (k[-1], v[-2]) if isinstance(d, int)), k[-1])
    return {"S": shape[-2], "D": head_dim, "L": keys, "E": v[-1]}


def _space(
    operands: Mapping[str, Link], out: Link, shape: Sequence[Dim], scores: Sequence[Dim]
) -> _Space | Blame | Refusal:
    batch, score_batch = tuple(shape[:-2]), tuple(scores[:-2])
    total = product(batch)
    inner = shape[-2] * shape[-1]
    cuts = suffix_cuts(batch) + suffix_cuts(score_batch)
    if product(score_batch) != total:
        return Refusal("ATF313", "scores and result differ in their batch dims", str(out.value))
    factors: dict[str, Axis] = {}
    for name, link in operands.items():
        aligned = _batch_factors(link, batch if name == "v" else score_batch)
        if aligned is None:
            reason = f"the batch dims of {name} are not provably those of the result"
            return Refusal("ATF313", reason, str(link.value), len(link.members))
        factors[name] = aligned
        cuts += suffix_cuts([size for size, _ in aligned])
    for axis in out.view.axes:
        for size, stride in axis:
            for edge in (stride, size * stride):
                cut = divide(edge, inner)
                if cut is not None and divide(total, cut) is not None:
                    cuts.append(cut)
    ordered = chain(cuts)
    if ordered is None:
        blamed = max(operands, key=lambda n: len(operands[n].members))
        return Blame(blamed, Refusal("ATF315", "batch and heads are split differently", str(operands[blamed].value)))
    strides: dict[str, tuple[Factor, ...]] = {}
    for name, found in factors.items():
        split = split_at(found, ordered)
        if split is None:
            return Blame(name, Refusal("ATF315", f"{name} splits batch and heads oddly", str(operands[name].value)))
        strides[name] = split
    heads = next((b[-1] for b in (batch, score_batch) if len(b) >= 2), None)
    return _Space(ordered, strides, heads)


def _batch_factors(link: Link, batch: Sequence[Dim]) -> Axis | None:
    axes = link.view.axes[:-2]
    padded: list[Axis] = [()] * (len(batch) - len(axes)) + list(axes)
    if len(padded) != len(batch):
        return None
    out: list[Factor] = []
    for axis, size in zip(padded, batch, strict=True):
        have = product(s for s, _ in axis)
        if have == size:
            out += axis
        elif have == 1:
            out.append((size, 0))
        else:
            return None
    return tuple(f for f in out if f[0] != 1)


def _splits(space: _Space) -> Iterator[int]:
    """Positions in the refined space where heads may begin, the likeliest first; heads must be a number."""
    positions = [i for i in range(len(space.cuts)) if isinstance(space.cuts[i], int)]
    ones = [i for i in positions if i > 0]
    if space.preferred in space.cuts:
        yield space.cuts.index(space.preferred)
    yield from (i for i in [*ones, *(i for i in positions if i == 0)] if space.cuts[i] != space.preferred)


def _at_split(
    space: _Space, split: int, operands: Mapping[str, Link], out: Link, sizes: Mapping[str, Dim]
) -> Layouts | Blame:
    heads, batch = space.cuts[split], divide(space.cuts[0], space.cuts[split])
    if not isinstance(heads, int) or batch is None:
        return Blame("q", Refusal("ATF315", f"the number of heads is not static, it is {heads}", str(out.value)))
    attributes: dict[str, Any] = {"num_heads": heads, "head_dim": sizes["D"], "v_head_dim": sizes["E"]}
    readable: dict[str, frozenset[str]] = {}
    groups: dict[str, Dim] = {}
    for name, positions, width in (("q", "S", "D"), ("k", "L", "D"), ("v", "L", "E")):
        found = _operand_layout(name, operands[name], space.strides[name], split, sizes[positions], sizes[width])
        if isinstance(found, Blame):
            return found
        attributes[f"{name}_layout"], attributes[f"{name}_offset"], readable[name], groups[name] = found
    if groups["k"] != groups["v"] or not isinstance(groups["k"], int):
        name = _more_grouped(groups["k"], groups["v"])
        where = str(operands[name].value)
        return Blame(name, Refusal("ATF315", "keys and values repeat their heads differently", where))
    attributes["num_kv_heads"] = heads // groups["k"]
    blame = _unreadable(readable, batch, sizes, operands)
    if blame is not None:
        return blame
    text = _out_layout(out, batch, heads, sizes)
    if text is None:
        return Blame("out", Refusal("ATF315", "the result is rearranged in a way no layout names", str(out.value)))
    attributes["out_layout"] = text
    return Layouts(attributes, batch, heads, sizes["S"], sizes["L"])


def _more_grouped(k: Dim, v: Dim) -> str:
    """The operand whose heads are read by larger groups: read less deep, its heads come repeated already."""
    return "k" if isinstance(k, int) and isinstance(v, int) and k > v else "v"


def _operand_layout(
    name: str, link: Link, strides: tuple[Factor, ...], split: int, positions: Dim, width: Dim
) -> tuple[str, int, frozenset[str], Dim] | Blame:
    where = str(link.value)
    batch, head = merged(strides[:split]), grouped(strides[split:])
    if batch is None or head is None or (name == "q" and head[1] != 1):
        return Blame(name, Refusal("ATF315", f"batch or heads of {name} do not run with one stride", where))
    axes = link.view.axes[-2:]
    rows, columns = (axes[1], axes[0]) if name == "k" else (axes[0], axes[1])
    letters = {"B": batch, "N": head[0]}
    for letter, axis in (("S", rows), ("D", columns)):
        one = merged(axis)
        if one is None or (one[1] == 0 and one[0] != 1):
            return Blame(name, Refusal("ATF315", f"{name} is cut across its positions or head dim", where))
        letters[letter] = one
    present = {n: f for n, f in letters.items() if f[0] != 1 and f[1] != 0}
    if "D" in present and all(present[n][1] != 1 for n in ("DS" if name == "k" else "D") if n in present):
        return Blame(name, Refusal("ATF315", f"the head dim of {name} is not contiguous in {where}", where))
    view = link.view
    found = layout_text(link.shape, present) if isinstance(view.offset, int) else None
    if found is None and any(product(link.shape[:n]) == batch[0] != 1 for n in range(2, len(link.shape) - 1)):
        reason = f"the batch of {name} lies over several axes of {where}, which no layout names"
        return Blame(name, Refusal("ATF315", reason, where))
    if found is None:
        return Blame(name, Refusal("ATF315", f"{name} lies in {where} in a way no layout names", where))
    if not _reaches(found[0], view.offset, head[0][0], width):
        return Blame(name, Refusal("ATF315", f"where {name} begins in {where} depends on batch or positions", where))
    unread = sorted({"B", "S"} & set(present) - found[1])
    if unread:
        return Blame(name, Refusal("ATF315", f"{where} does not tell batch and positions of {name} apart", where))
    return ALIASES.get(found[0], found[0]), int(view.offset), found[1], head[1]  # type: ignore[arg-type]


def _reaches(text: str, offset: Dim, heads: Dim, width: Dim) -> bool:
    """Whether a layout can express the offset: nothing read from shapes lies below it, no part crosses its axis."""
    if not isinstance(offset, int) or not isinstance(heads, int) or not isinstance(width, int):
        return False
    stride: int | None = 1
    left = offset
    for factor in reversed(parse_layout(text, offset, {"N": heads, "D": width})):
        left -= factor.index * (stride or 0)
        if factor.taken is not None and factor.size is not None and factor.index + factor.taken > factor.size:
            return False
        stride = None if stride is None or factor.size is None else stride * factor.size
    return left == 0


def _unreadable(
    readable: Mapping[str, frozenset[str]], batch: Dim, sizes: Mapping[str, Dim], operands: Mapping[str, Link]
) -> Blame | None:
    """Batch and positions must be readable from some root's shape at run time."""

    def blame(name: str, what: str) -> Blame:
        reason = f"the {what} cannot be read from the shape of {operands[name].value}"
        return Blame(name, Refusal("ATF315", reason, str(operands[name].value)))

    if sizes["S"] != 1 and "S" not in readable["q"]:
        return blame("q", "number of queries")
    if sizes["L"] != 1 and "S" not in readable["k"] | readable["v"]:
        return blame("k" if len(operands["k"].members) >= len(operands["v"].members) else "v", "number of keys")
    if batch != 1 and not any("B" in found for found in readable.values()):
        return blame(max(operands, key=lambda n: len(operands[n].members)), "batch size")
    return None


def _out_layout(out: Link, batch: Dim, heads: int, sizes: Mapping[str, Dim]) -> str | None:
    if out.view.offset != 0:
        return None
    strides: dict[str, Factor] = {}
    stride: Dim = 1
    for letter, size in (("D", sizes["E"]), ("S", sizes["S"]), ("N", heads), ("B", batch)):
        if size != 1:
            strides[letter] = (size, stride)
        stride = stride * size
    text = merged_text(out.view.axes, strides)
    return None if text is None else ALIASES.get(text, text)
