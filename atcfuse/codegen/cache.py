"""Rendered kernels kept for the next one that needs the same: for the time of a run, and on disk between runs.

The key is a hash over everything that a kernel is rendered from: its signature, the templates, and the program itself.
So an entry is never out of date, only unused. Entries appear whole or not at all, and any number of runs may share a
folder: whoever comes second finds the entry there and drops its own.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import lru_cache
from pathlib import Path
from typing import Any

from atcfuse.codegen.signature import Signature
from atcfuse.files import writing

Rendered = tuple[str, str, Mapping[str, str]]
"""GE op type, kernel function, and the sources by file name."""

MANIFEST = "kernel.json"
_FORMAT = 2
_active: ContextVar[KernelCache | None] = ContextVar("atcfuse_kernel_cache", default=None)


class KernelCache:
    """Kernels by key, in memory and, where there is a folder, on disk; `hits` and `misses` count the latter."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._known: dict[tuple[str, str], Rendered] = {}
        self.hits = self.misses = 0

    def get(self, signature: Signature, render: Callable[[], Rendered]) -> Rendered:
        """The kernel of a signature, rendered only where nobody has yet. Raises what `writing` raises."""
        key = str(signature.spec.folder), _told(signature)
        if key not in self._known:
            self._known[key] = self._stored(signature, render)
        return self._known[key]

    def _stored(self, signature: Signature, render: Callable[[], Rendered]) -> Rendered:
        if self._folder is None:
            return render()
        entry = self._folder / key_of(signature)
        found = _read(entry)
        if found is not None:
            self.hits += 1
            return found
        self.misses += 1
        made = render()
        with writing(self._folder):
            _write(entry, made)
        return made


@contextmanager
def kernel_cache(folder: Path | None = None) -> Iterator[KernelCache]:
    """Shares rendered kernels within the block, and with earlier and later runs where a folder is given.

    Within another such block a call without a folder goes on using that one's.
    """
    outer = _active.get()
    cache = outer if outer is not None and folder is None else KernelCache(folder)
    token = _active.set(cache)
    try:
        yield cache
    finally:
        _active.reset(token)


def cached(signature: Signature, render: Callable[[], Rendered]) -> Rendered:
    """The kernel of a signature from the cache of the block around, rendered anew where there is no such block."""
    cache = _active.get()
    return render() if cache is None else cache.get(signature, render)


def key_of(signature: Signature) -> str:
    """A hash over all that the kernel is rendered from."""
    templates = _contents(signature.spec.folder.parent, (".j2", ".inc", ".yaml", ".h"))
    program = _contents(Path(__file__).resolve().parents[1], (".py",))
    told = json.dumps([_FORMAT, _told(signature), templates, program])
    return hashlib.sha256(told.encode()).hexdigest()


def _told(signature: Signature) -> str:
    """Everything that a signature says."""
    told = {
        "kernel": signature.spec.name,
        "attributes": {name: _exact(value) for name, value in signature.attributes.items()},
        "dtypes": dict(signature.dtypes),
        "family": signature.family,
    }
    return json.dumps(told, sort_keys=True)


def _exact(value: Any) -> Any:
    """An attribute as JSON that tells 1 from 1.0 and keeps every bit of a float."""
    if isinstance(value, float):
        return ["float", value.hex()]
    return [type(value).__name__, [_exact(v) for v in value]] if isinstance(value, (tuple, list)) else value


@lru_cache(maxsize=8)
def _contents(folder: Path, endings: tuple[str, ...]) -> str:
    digest = hashlib.sha256()
    for path in sorted(p for p in folder.rglob("*") if p.suffix in endings and p.is_file()):
        data = path.read_bytes()
        digest.update(f"{path.relative_to(folder).as_posix()}\0{len(data)}\0".encode())
        digest.update(data)
    return digest.hexdigest()


def _read(entry: Path) -> Rendered | None:
    """A whole and undamaged entry, or None."""
    try:
        manifest = json.loads((entry / MANIFEST).read_bytes())
        files = {name: (entry / name).read_bytes() for name in manifest["files"]}
        sound = all(hashlib.sha256(data).hexdigest() == manifest["files"][name] for name, data in files.items())
        named = str(manifest["op_type"]), str(manifest["function"])
        return (*named, {name: data.decode() for name, data in files.items()}) if sound and files else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _write(entry: Path, made: Rendered) -> None:
    """Puts an entry in place as a whole; one that is there and sound stays, a damaged one goes."""
    op_type, function, files = made
    entry.parent.mkdir(parents=True, exist_ok=True)
    temporary = entry.parent / f".atcfuse-{os.getpid()}-{secrets.token_hex(6)}.tmp"
    temporary.mkdir()
    try:
        hashes = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in sorted(files.items())}
        for name, text in files.items():
            (temporary / name).write_bytes(text.encode())
        manifest = {"op_type": op_type, "function": function, "files": hashes}
        (temporary / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
        if not _moved(temporary, entry) and _read(entry) is None:
            aside = temporary.with_suffix(".old")
            with suppress(OSError):  # another run may have put it right meanwhile
                os.rename(entry, aside)
            shutil.rmtree(aside, ignore_errors=True)
            _moved(temporary, entry)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _moved(temporary: Path, entry: Path) -> bool:
    try:
        os.rename(temporary, entry)
    except OSError:  # the entry is there
        return False
    return True
