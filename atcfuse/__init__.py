"""atcfuse: transformer fusion for Ascend, just before ATC.

`optimize(model)` does in Python what `atcfuse optimize MODEL` does in a shell.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from atcfuse.api import Result, optimize
    from atcfuse.options import Options

__version__ = "0.1.0"
__all__ = ["Options", "Result", "__version__", "optimize"]

_EXPORTS = {"optimize": "atcfuse.api", "Result": "atcfuse.api", "Options": "atcfuse.options"}


def __getattr__(name: str) -> Any:
    # On first use, so that importing the package imports neither onnx nor numpy.
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_EXPORTS[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
