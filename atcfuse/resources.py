"""Where the rules and kernels that ship with atcfuse lie."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

_PACKAGE = Path(__file__).resolve().parent


def data_folder(name: Literal["rules", "kernels"]) -> Path:
    """The shipped folder: inside an installed package, beside it in a checkout."""
    inside = _PACKAGE / "_data" / name
    return inside if inside.is_dir() else _PACKAGE.parent / name
