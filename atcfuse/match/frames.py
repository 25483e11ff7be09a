"""What names mean while a rule is matched: in patterns a frame, in expressions the bindings so far."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from atcfuse.rule.model import Input
from atcfuse.rule.terms import Step


@dataclass(frozen=True)
class Frame:
    """What names mean in a rule or in one alternative of a fragment."""

    steps: Mapping[str, tuple[Step, int]]
    inputs: Mapping[str, Input]
    params: frozenset[str]
    types: Mapping[str, tuple[int, ...]]
    all_steps: tuple[Step, ...]


def frame_of(
    steps: tuple[Step, ...],
    inputs: Mapping[str, Input],
    params: tuple[str, ...] = (),
    types: Mapping[str, tuple[int, ...]] | None = None,
) -> Frame:
    """The frame of a set of steps."""
    table = {name: (step, position) for step in steps for position, name in enumerate(step.names)}
    return Frame(table, inputs, frozenset(params), types or {}, steps)


class Bindings(Mapping[str, Any]):
    """Bindings for an expression: a name that the pattern did not bind is absent, not an error."""

    __slots__ = ("_env",)

    def __init__(self, env: Mapping[str, Any]) -> None:
        self._env = env

    def __contains__(self, key: object) -> bool:
        return True

    def __getitem__(self, key: str) -> Any:
        return self._env.get(key, math.inf if key == "inf" else None)

    def __iter__(self) -> Iterator[str]:
        return iter(self._env)

    def __len__(self) -> int:
        return len(self._env)
