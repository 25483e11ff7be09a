"""Control flow: If, Loop and Scan evaluate their bodies and merge what holds on every path."""

from __future__ import annotations

from collections.abc import Callable

from onnx import TensorProto

from atcfuse.dims import Dim
from atcfuse.graph.facts import UNKNOWN, Fact
from atcfuse.graph.index import Scope
from atcfuse.graph.infer.call import Call, Shape


def body_outputs(scope: Scope) -> list[Fact]:
    """The facts of a body's outputs, in order."""
    return [scope.fact(output.name) for output in scope.graph.output]


def decided_branch(call: Call) -> Scope | None:
    """The body that an If with a known condition always runs, or None."""
    condition = call.input(0).splat
    if not isinstance(condition, int):
        return None
    return call.bodies.get("then_branch" if condition else "else_branch")


def _if(call: Call) -> list[Fact]:
    for body in call.bodies.values():
        call.run(body, ())
    decided = decided_branch(call)
    if decided is not None:
        return body_outputs(decided)
    branches = [body_outputs(body) for body in call.bodies.values()]
    if len(branches) != 2 or len(branches[0]) != len(branches[1]):
        return []
    return [_merged(call, k, a, b) for k, (a, b) in enumerate(zip(*branches, strict=True))]


def _merged(call: Call, output: int, a: Fact, b: Fact) -> Fact:
    """What holds whichever of the two values an output has."""
    if a is b:
        return a
    dtype = a.dtype if a.dtype == b.dtype else 0
    if a.shape is None or b.shape is None or len(a.shape) != len(b.shape):
        return Fact(dtype)
    pairs = zip(a.shape, b.shape, strict=True)
    shape = tuple(x if x == y else call.fresh(i, output) for i, (x, y) in enumerate(pairs))
    splat = a.splat if type(a.splat) is type(b.splat) and a.splat == b.splat else None
    if a.elements is not None and a.elements == b.elements and a.shape == b.shape:
        return Fact(dtype, shape, a.elements, splat=splat)
    return Fact(dtype, shape, splat=splat)


def _loop(call: Call) -> list[Fact]:
    """Loop: what a carried value is before the first iteration and after any; scans get a leading extent."""
    body = call.bodies.get("body")
    if body is None:
        return []
    carried = call.inputs[2:]
    call.run(body, [Fact(TensorProto.INT64, ()), Fact(TensorProto.BOOL, ()), *(Fact(f.dtype) for f in carried)])
    results = body_outputs(body)[1:]
    if len(results) < len(carried):
        return []
    out = [_left(call, k, initial, results[k]) for k, initial in enumerate(carried)]
    return out + [_scanned(call, k, results[k], 0) for k in range(len(carried), len(results))]


def _left(call: Call, output: int, initial: Fact, result: Fact) -> Fact:
    """A carried value after the loop; symbols of an iteration mean nothing outside, so only numbers remain."""
    shape: Shape | None = None
    if initial.shape is not None and result.shape is not None and len(initial.shape) == len(result.shape):
        pairs = enumerate(zip(initial.shape, result.shape, strict=True))
        shape = tuple(x if isinstance(x, int) and x == y else call.fresh(i, output) for i, (x, y) in pairs)
    return Fact(initial.dtype, shape)


def _scanned(call: Call, output: int, result: Fact, axis: int, length: Dim | None = None) -> Fact:
    if result.shape is None or not 0 <= axis <= len(result.shape):
        return Fact(result.dtype)
    rank = len(result.shape)
    inner = [d if isinstance(d, int) else call.fresh(i + (i >= axis), output) for i, d in enumerate(result.shape)]
    inner.insert(axis, call.fresh(axis, output) if length is None else length)
    return Fact(result.dtype, tuple(inner)) if len(inner) == rank + 1 else UNKNOWN


def _scan(call: Call) -> list[Fact]:
    """Scan: state variables as in Loop, outputs stacked along the scanned axis (opset 9 and later)."""
    body = call.bodies.get("body")
    count = call.attribute("num_scan_inputs")
    if body is None or count is None or not 0 < count <= len(call.inputs) or call.opset < 9:
        return []
    states, scanned = call.inputs[: len(call.inputs) - count], call.inputs[len(call.inputs) - count :]
    axes = call.attribute("scan_input_axes") or (0,) * count
    slices = [Fact(f.dtype, _without_axis(f.shape, axis)) for f, axis in zip(scanned, axes, strict=False)]
    call.run(body, [*(Fact(f.dtype) for f in states), *slices])
    results = body_outputs(body)
    places = call.attribute("scan_output_axes") or (0,) * max(len(results) - len(states), 0)
    if len(results) - len(states) != len(places):
        return []
    out = [_left(call, k, initial, results[k]) for k, initial in enumerate(states)]
    for k, place in enumerate(places, len(states)):
        rank = len(results[k].shape or ()) + 1
        out.append(_scanned(call, k, results[k], place + rank if place < 0 else place))
    return out


def _without_axis(shape: Shape | None, axis: int) -> Shape | None:
    if shape is None or not -len(shape) <= axis < len(shape):
        return None
    axis %= len(shape)
    return shape[:axis] + shape[axis + 1 :]


OPERATORS: dict[str, Callable[[Call], Fact | list[Fact]]] = {"If": _if, "Loop": _loop, "Scan": _scan}
