"""Random cases of a generator with one fault each, and what becomes of them."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from mutate import mutant
from pairwise import random_case
from running import difference, fused_ops, optimized, run

Generator = Any


def judge(module: Generator, rng: random.Random) -> str:
    """One mutant: `kept`, `fused`, `invalid` where onnxruntime refuses it, or what is wrong."""
    case = random_case(module.CHOICES, module.valid, rng)
    built = module.build(case)
    made = next(filter(None, (mutant(built.model, built.feeds[0], rng) for _ in range(50))))
    references = _results(lambda: [run(made.model, feed) for feed in built.feeds])
    if references is None:
        return "invalid"
    result = optimized(made.model)
    if not fused_ops(result):
        return "kept"
    for feed, reference in zip(built.feeds, references, strict=True):
        wrong = difference(reference, run(result.model, feed), case["dtype"])
        if wrong:
            return f"{wrong} after {made.what} in {case}"
    return "fused"


def _results(compute: Callable[[], list[dict[str, Any]]]) -> list[dict[str, Any]] | None:
    try:
        return compute()
    except Exception:  # onnxruntime's exceptions share no base class; a faulty model may not run at all
        return None
