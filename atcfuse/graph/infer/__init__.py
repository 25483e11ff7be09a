"""The symbolic evaluator: element types, shapes, small integer values and no-ops of every value of a model."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from atcfuse.graph.facts import Fact
    from atcfuse.graph.index import Model


def infer(model: Model, known: Mapping[str, Mapping[str, Fact]] | None = None) -> None:
    """Fills `facts` and `alias` of every scope of the model, in one pass over the nodes.

    Facts hold in every run in which the model itself succeeds. Extents are at least 0; an extent of which nothing is
    known is a symbol of its own, named after the value and axis; so is each unknown element of a small integer tensor.
    A symbolic extent in a Reshape or Expand target counts as itself, although 0 and -1 mean other things there: where
    a tensor is not empty the model would fail otherwise. `known` gives, by scope path, facts proved before about values
    whose operator the evaluator does not know.
    """
    from atcfuse.graph.infer.engine import Evaluator

    Evaluator(model, known).run(model.main)
