"""The combinators of the pattern language that know about views.

`strided(x, '... S D', by=f)`   x read through any chain of views and constant factors, its root chosen later, jointly;
                                `transposed=t` where the product itself exchanges the last two axes
`merged(y, '... S E')`          y rearranged by any chain of views into one value; how far is chosen later
`same(x)`                       x through views that keep every element in its place in memory: a pure reshape
`view(x, 'B S (H D) -> B H S D')` x through any chain of views whose composite is this index map (einops notation)
`part(x, start=a, step=s)`      elements a, a + s, … of x's last axis, cut out by any chain of views
`packed(x, offset=a, step=s)`   heads of [B, N, S, D] that lie s elements apart in rows of x, [B, S, W], from element a
`optional(Op(x, …))`            Op, or where it is missing its first operand
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from atcfuse.dims import Dim, product
from atcfuse.graph.index import Scope
from atcfuse.graph.views import View, identity
from atcfuse.match.chains import passed_noops, roots
from atcfuse.match.engine import Builtin, Matcher
from atcfuse.match.frames import Frame
from atcfuse.match.values import Link, Operand, State
from atcfuse.rule.terms import Call, Literal, Ref


def _strided(matcher: Matcher, term: Call, value: str, state: State, frame: Frame) -> Iterator[State]:
    target, axes = term.args
    if not isinstance(target, Ref) or not isinstance(axes, Literal):
        return
    links = roots(matcher.scope, value, scaling=True)
    if not links or len(links[0].shape) < 2:
        matcher.refuse("ATF313", f"{target.name}: the rank is not known", value, len(state.members))
        return
    flag = next((ref for key, ref in term.keywords if key == "transposed"), None)
    if flag is not None and (state.env.get(flag.name) if isinstance(flag, Ref) else flag.value):
        links = tuple(_swapped(link) for link in links)
    passed = passed_noops(matcher.scope, value)
    operand = Operand(target.name, tuple(str(axes.value).split()), links)
    factors = {f"by {target.name}": ref.name for key, ref in term.keywords if key == "by" and isinstance(ref, Ref)}
    yield State({**state.env, target.name: operand, **factors}, state.members | passed, state.labels)


def _swapped(link: Link) -> Link:
    """The link with the operand's last two axes exchanged: the product reads it transposed."""
    view = link.view
    return replace(link, view=View(view.root, view.offset, (*view.axes[:-2], view.axes[-1], view.axes[-2])))


def _merged(matcher: Matcher, term: Call, value: str, state: State, frame: Frame) -> Iterator[State]:
    yield from matcher.match(term.args[0], value, state, frame)


def _same(matcher: Matcher, term: Call, value: str, state: State, frame: Frame) -> Iterator[State]:
    for link in reversed(roots(matcher.scope, value, scaling=False)[1:]):
        if link.view.is_linear() and product(link.view.shape) == product(link.shape):
            taken = State(state.env, state.members | link.members | passed_noops(matcher.scope, value), state.labels)
            yield from matcher.match(term.args[0], str(link.value), taken, frame)


def _part(matcher: Matcher, term: Call, value: str, state: State, frame: Frame) -> Iterator[State]:
    names = {key: target.name for key, target in term.keywords if isinstance(target, Ref)}
    for link in roots(matcher.scope, value, scaling=False)[1:]:
        found = _range_of(link)
        if found is None:
            continue
        members = state.members | link.members | passed_noops(matcher.scope, value)
        taken: State | None = State(state.env, members, state.labels)
        for key, number in zip(("start", "step"), found, strict=True):
            taken = matcher.unify(names[key], number, taken) if taken is not None and key in names else taken
        if taken is not None:
            yield from matcher.match(term.args[0], str(link.value), taken, frame)
    matcher.refuse("ATF315", "it is not a part of a value's last axis", value, len(state.members))


def _range_of(link: Link) -> tuple[int, int] | None:
    """First element and step of the part of the last axis that a link takes, all other axes whole; None for others."""
    whole = identity(link.view.root, link.shape).axes
    if not link.shape or len(link.view.axes) != len(whole) or link.view.axes[:-1] != whole[:-1]:
        return None
    axis, start, width = link.view.axes[-1], link.view.offset, link.shape[-1]
    count, step = axis[0] if axis else (1, 1)
    if len(axis) > 1 or not isinstance(start, int) or not isinstance(width, int):
        return None
    if not isinstance(count, int) or not isinstance(step, int) or step < 1:
        return None
    return (start, step) if start >= 0 and start + (count - 1) * step < width else None


def _packed(matcher: Matcher, term: Call, value: str, state: State, frame: Frame) -> Iterator[State]:
    names = {key: target.name for key, target in term.keywords if isinstance(target, Ref)}
    for link in roots(matcher.scope, value, scaling=False)[1:]:
        place = _place_in_rows(link)
        if place is None:
            continue
        taken: State | None = State(state.env, state.members | _own(matcher.scope, link.members), state.labels)
        for key, number in zip(("offset", "step"), place, strict=True):
            taken = matcher.unify(names[key], number, taken) if taken is not None and key in names else taken
        if taken is not None:
            yield from matcher.match(term.args[0], str(link.value), taken, frame)
    matcher.refuse("ATF315", "no heads are cut out of longer rows", value, len(state.members))


def _place_in_rows(link: Link) -> tuple[int, int] | None:
    """Where heads begin in rows that hold more than these, and how far they are apart; None for other views."""
    if len(link.shape) != 3 or len(link.view.axes) != 4:
        return None
    batch, heads, positions, elements = link.view.axes
    whole = identity(link.view.root, link.shape).axes
    offset, row, width = link.view.offset, link.shape[-1], link.view.shape[-1]
    if (batch, positions) != whole[:2] or elements != ((width, 1),) or len(heads) > 1:
        return None
    count, step = heads[0] if heads else (1, width)
    if not (isinstance(offset, int) and isinstance(row, int) and isinstance(width, int)):
        return None
    if not (isinstance(count, int) and isinstance(step, int)) or offset < 0:
        return None
    side_by_side = step == width and count * width < row and offset + count * width <= row
    among_others = step > width and offset + width <= step and count * step == row
    return (offset, step) if side_by_side or among_others else None


def _own(scope: Scope, members: frozenset[int]) -> frozenset[int]:
    """The nodes of a chain of views behind the last one that is read elsewhere too, and goes on being read there."""
    own: set[int] = set()
    for index in sorted(members, key=lambda i: -scope.positions[i]):
        outputs = [o for o in scope.nodes[index].outputs if o]
        readers = {r.index for o in outputs for r in scope.value_readers(o)}
        if any(scope.escapes(o) for o in outputs) or (own and not readers <= own):
            break
        if not own and len(readers) > 0 and len(outputs) > 1:
            break
        own.add(index)
    return frozenset(own)


def _optional(matcher: Matcher, term: Call, value: str, state: State, frame: Frame) -> Iterator[State]:
    inner = term.args[0]
    if not isinstance(inner, Call):
        return
    yield from matcher.match(inner, value, state, frame)
    names = {a.name: None for a in inner.args[1:] if isinstance(a, Ref) and a.name not in state.env}
    yield from matcher.match(inner.args[0], value, state.bind(**names), frame)


def _view(matcher: Matcher, term: Call, value: str, state: State, frame: Frame) -> Iterator[State]:
    spec = term.args[1]
    if not isinstance(spec, Literal):
        return
    source, target = split_spec(str(spec.value))
    links = roots(matcher.scope, value, scaling=False)
    for link in reversed(links):
        dims = _bind_sizes(source, target, link.shape, link.view.shape, state.env)
        if dims is None or not _is_map(link.view, link.shape, source, target, {**state.env, **dims}):
            continue
        taken = State({**state.env, **dims}, state.members | link.members, state.labels)
        yield from matcher.match(term.args[0], str(link.value), taken, frame)
    # Without any view there is nothing to say of their composite; another spelling's reason is a better one.
    code = "ATF315" if len(links) > 1 else "ATF310"
    matcher.refuse(code, f"no chain of views is '{spec.value}'", value, len(state.members))


def split_spec(spec: str) -> tuple[list[list[str]], list[list[str]]]:
    """`'B S (H D) -> B H S D'` as groups of factor names for both sides."""
    left, _, right = spec.partition("->")
    return _groups(left), _groups(right)


def _groups(side: str) -> list[list[str]]:
    words = re.findall(r"\([^()]*\)|\S+", side)
    return [w.strip("()").split() for w in words]


def _bind_sizes(
    source: list[list[str]],
    target: list[list[str]],
    shape: tuple[Dim, ...],
    out: tuple[Dim, ...],
    env: Mapping[str, Any],
) -> dict[str, Dim] | None:
    """Sizes of the factor names from axes that hold one factor each; names bound before must agree."""
    if len(source) != len(shape) or len(target) != len(out):
        return None
    dims: dict[str, Dim] = {}
    for groups, sizes in ((target, out), (source, shape)):
        for group, size in zip(groups, sizes, strict=True):
            if len(group) != 1 or group[0].isdigit():
                continue
            if {**env, **dims}.get(group[0], size) != size:
                return None
            dims[group[0]] = size
    return dims


def _is_map(
    view: View, shape: tuple[Dim, ...], source: list[list[str]], target: list[list[str]], sizes: Mapping[str, Any]
) -> bool:
    if view.offset != 0:
        return False
    strides: dict[str, Dim] = {}
    for group, (size, axis) in zip(source, zip(shape, identity("", shape).axes, strict=True), strict=True):
        stride: Dim = axis[0][1] if axis else 1
        for name in reversed(group):
            if name not in sizes:
                return False
            strides[name] = stride
            stride = stride * sizes[name]
        if product(sizes[n] for n in group) != size:
            return False
    for group, axis in zip(target, view.axes, strict=True):
        wanted = View("", 0, (tuple((sizes[n], strides[n]) for n in group),))
        if wanted.axes_merged() != View("", 0, (axis,)).axes_merged():
            return False
    return True


BUILTINS: Mapping[str, Builtin] = {
    "strided": _strided,
    "merged": _merged,
    "same": _same,
    "view": _view,
    "part": _part,
    "packed": _packed,
    "optional": _optional,
}
