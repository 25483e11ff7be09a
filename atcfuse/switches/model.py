"""The switches themselves: what is on, why, and the same as JSON for ATC."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from atcfuse.diagnostics import Diagnostic
from atcfuse.switches.passes import atc_passes

Kind = Literal["GraphFusion", "UBFusion"]
KINDS: tuple[Kind, ...] = ("GraphFusion", "UBFusion")
ALL = "ALL"
EXTRA_SECTIONS = ("Priority", "ExceptionalPassOfO1Level")


@dataclass(frozen=True)
class Switches:
    """The state of every fusion, as one switch file sets it.

    `entries` maps both kinds to name → on; `extras` holds the file's `Priority` and `ExceptionalPassOfO1Level`, checked
    but of no meaning to atcfuse. `diagnostics` are the file's warnings and infos (errors are raised by the reader).
    """

    file: str | None
    entries: Mapping[str, Mapping[str, bool]]
    extras: Mapping[str, object] = field(default_factory=dict)
    diagnostics: tuple[Diagnostic, ...] = ()

    def is_on(self, name: str, kind: Kind = "GraphFusion") -> bool:
        """Whether the file leaves the fusion on: its own entry beats `ALL`, and without either it is on."""
        entries = self.entries.get(kind, {})
        return entries.get(name, entries.get(ALL, True))

    def is_on_in_atc(self, name: str, kind: Kind = "GraphFusion") -> bool:
        """Whether ATC runs its own pass under this file: as `is_on`, but some passes a file cannot turn off."""
        return self.is_on(name, kind) or self._kept_on(name)

    def _kept_on(self, name: str) -> bool:
        exceptional = self.extras.get("ExceptionalPassOfO1Level", ())
        return name in atc_passes().always_on or (isinstance(exceptional, list) and name in exceptional)

    def for_atc(self) -> str:
        """The switches as JSON that ATC accepts: strict ASCII, 4-space indent, names sorted."""
        switch = {kind: self._states(kind) for kind in KINDS}
        document: dict[str, object] = {"Switch": switch}
        document.update((key, self.extras[key]) for key in EXTRA_SECTIONS if key in self.extras)
        return json.dumps(document, indent=4) + "\n"

    def _states(self, kind: Kind) -> dict[str, str]:
        entries = self.entries.get(kind, {})
        return {name: "on" if entries[name] else "off" for name in sorted(entries)}


NO_SWITCHES = Switches(file=None, entries={kind: {} for kind in KINDS})


class SwitchState(NamedTuple):
    """One line of `atcfuse switches F`."""

    name: str
    kind: Kind
    state: Literal["on", "off"]
    why: str


def explain_switch(switches: Switches, name: str, kind: Kind = "GraphFusion") -> str:
    """One line on the fusion's state and what decided it, such as `off by ALL in sw.yaml` or `on by default`."""
    entries = switches.entries.get(kind, {})
    state = "on" if switches.is_on(name, kind) else "off"
    if name in entries:
        decided = f"{state} in {switches.file}"
    elif ALL in entries:
        decided = f"{state} by {ALL} in {switches.file}"
    else:
        return f"{state} by default"
    if state == "off" and switches.is_on_in_atc(name, kind):
        return f"{decided}, but ATC keeps it on"
    return decided


def describe(switches: Switches, own: Iterable[str] | Mapping[str, Kind]) -> list[SwitchState]:
    """The state of each of our own fusions, then of every other name in the file; each part sorted by name and kind."""
    kinds = own_kinds(own)
    ours = sorted(kinds.items())
    others = sorted((name, kind) for kind in KINDS for name in switches.entries.get(kind, {}) if name not in kinds)
    return [
        SwitchState(name, kind, "on" if switches.is_on(name, kind) else "off", explain_switch(switches, name, kind))
        for name, kind in [*ours, *others]
    ]


def own_kinds(own: Iterable[str] | Mapping[str, Kind]) -> dict[str, Kind]:
    """Our own switch names with their kinds; names given without one belong to GraphFusion."""
    if isinstance(own, Mapping):
        return dict(own)
    return dict.fromkeys(own, "GraphFusion")
