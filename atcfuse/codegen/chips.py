"""Which chips a kernel can be generated for, and how far it has been checked."""

from __future__ import annotations

from dataclasses import dataclass

from atcfuse.codegen.registry import GENERATORS
from atcfuse.kernel import KernelSpec
from atcfuse.tiling import FAMILIES

TWIN = "twin"
TWIN_ONLY = "checked in the twin only"
"""Cube products in float32 and all of 310P: their rules come from documents, the toolkit's own headers ran neither."""


@dataclass(frozen=True)
class Support:
    """Chips and element types of one status; `socs` names them as ATC's `--soc_version` begins."""

    socs: tuple[str, ...]
    elements: tuple[str, ...]
    status: str


def status_of(family: str, element: str) -> str:
    """How far a kernel of a chip family and element type has been checked: TWIN or TWIN_ONLY."""
    return TWIN_ONLY if family == "310P" or element == "float32" else TWIN


def support_of(spec: KernelSpec) -> list[Support]:
    """What a kernel can be generated for, best checked first within a family."""
    found = []
    for family, elements in GENERATORS[spec.name].elements.items():
        socs = tuple(soc for soc, name in FAMILIES.items() if name == family)
        for status in (TWIN, TWIN_ONLY):
            checked = tuple(e for e in elements if status_of(family, e) == status)
            if checked:
                found.append(Support(socs, checked, status))
    return found
