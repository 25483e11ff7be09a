"""Environments of templates. What Jinja compiled is kept for later runs, as Python keeps its compiled modules.

Compiling the templates of a transformer's kernels takes longer than everything else about its plan, and comes out the
same until a template or Jinja changes. Kept is only what nobody but the user can have written, since it is code.
"""

from __future__ import annotations

from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from atcfuse.paths import own_cache

if TYPE_CHECKING:
    from jinja2 import Environment, FileSystemBytecodeCache


@lru_cache(maxsize=64)
def environment(*folders: Path, autoescape: bool = False) -> Environment:
    """The templates in some folders; the first that has one wins, and a name that is not given is an error."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    return Environment(
        loader=FileSystemLoader(folders),
        bytecode_cache=_compiled(),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=autoescape,
    )


def _compiled() -> FileSystemBytecodeCache | None:
    """Compiled templates in the user's cache folder; None where there is no safe one."""
    folder = own_cache("templates")
    if folder is None:
        return None
    from jinja2 import FileSystemBytecodeCache
    from jinja2.bccache import Bucket

    class Compiled(FileSystemBytecodeCache):
        def load_bytecode(self, bucket: Bucket) -> None:
            with suppress(OSError):
                super().load_bytecode(bucket)

        def dump_bytecode(self, bucket: Bucket) -> None:
            with suppress(OSError):  # a full disk costs time, nothing else
                super().dump_bytecode(bucket)

    return Compiled(str(folder))
