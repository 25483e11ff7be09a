"""The symbolic evaluator: element types, shapes, small integer values and no-ops of every value of a model."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from atcfuse.graph.index import Model, Scope


def infer(model: Model, known: Mapping[str, Scope] | None = None) -> None:
    """Fills `facts` and `alias` of every scope of the model, in one pass over the nodes.

    Facts hold in every run in which the model itself succeeds, integers do not overflow and inputs that declare the
    same `dim_param` agree. An extent of which nothing is known is a symbol of its own, at least 0, named after the
    value and axis; so is each unknown element of a small integer tensor, which may be negative. Where a tensor is empty
    its other extents may differ from what is said: a computed 0 in a Reshape target copies. `known` gives, by path, the
    scopes as they were before nodes were edited: facts proved then about values whose operator the evaluator does not
    know, about inputs whose extents are pinned (see `pinned`), and about tensors, of which edits change none.
    """
    from atcfuse.graph.infer.engine import Evaluator
    from atcfuse.graph.infer.pinned import pinned

    evaluator = Evaluator(model, known)
    evaluator.run(model.main)
    while known is None and (found := pinned(model.main, evaluator.parameters)):
        evaluator = evaluator.again({**evaluator.pins, **found})
        evaluator.run(model.main)
    model.pins = evaluator.pins
