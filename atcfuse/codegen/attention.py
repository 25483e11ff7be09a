"""Template values of the attention kernel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from atcfuse.codegen.signature import Signature


def refusal(signature: Signature) -> str | None:
    """Why no attention kernel can be generated for this signature, or None."""
    return None


def values(signature: Signature) -> Mapping[str, Any]:
    """What the attention templates need beyond the common variables."""
    return {}
