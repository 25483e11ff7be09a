"""The names of ATC's own fusion passes, from `atcfuse/data/atc_passes.yaml`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from importlib import resources


@dataclass(frozen=True)
class AtcPasses:
    """`known` are the names of any kind; `always_on` those that ATC runs whatever a switch file says."""

    known: frozenset[str]
    always_on: frozenset[str]


@lru_cache(maxsize=1)
def atc_passes() -> AtcPasses:
    """The shipped list, read once and only when a switch file names something."""
    import yaml  # deferred: a run without a switch file never needs it

    text = (resources.files("atcfuse") / "data" / "atc_passes.yaml").read_text(encoding="utf-8")
    lists: dict[str, list[str]] = yaml.safe_load(text)
    return AtcPasses(
        known=frozenset(name for names in lists.values() for name in names), always_on=frozenset(lists["always_on"])
    )
