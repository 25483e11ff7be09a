"""What each kernel's own module adds to its templates, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from atcfuse.codegen import attention
from atcfuse.codegen.signature import Signature


def _nothing(signature: Signature) -> Mapping[str, Any]:
    return {}


def _never(signature: Signature) -> str | None:
    return None


@dataclass(frozen=True)
class Generator:
    """`values` are further template variables; `refusal` is why no kernel can be made for a signature, or None."""

    values: Callable[[Signature], Mapping[str, Any]] = _nothing
    refusal: Callable[[Signature], str | None] = _never


GENERATORS: Mapping[str, Generator] = {
    "attention": Generator(attention.values, attention.refusal),
}
"""By kernel name; a kernel that is not listed needs nothing but its templates."""
