"""What every format comes down to, before names are judged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from atcfuse.diagnostics import Span
from atcfuse.switches.model import KINDS, Kind

# What ATC's own trimming takes off; str.strip() would also take Unicode blanks.
BLANKS = " \t\n\v\f\r"


@dataclass(frozen=True)
class Entry:
    """One switch and the place of its name."""

    name: str
    on: bool
    span: Span


@dataclass(frozen=True)
class Content:
    """The switches of one file by kind and name, and its other sections."""

    switches: Mapping[Kind, Mapping[str, Entry]]
    extras: Mapping[str, object] = field(default_factory=dict)

    def states(self) -> dict[str, dict[str, bool]]:
        """kind → name → on, both kinds always present."""
        return {kind: {e.name: e.on for e in self.switches.get(kind, {}).values()} for kind in KINDS}
