"""The output files of one run, which appear whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import signal
import stat
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType, TracebackType
from typing import BinaryIO

from atcfuse.diagnostics import AtcfuseError, UsageError, error
from atcfuse.files.staging import (
    Staged,
    create,
    held_folders,
    holds,
    remove,
    sync_folder,
    write_all,
    write_tree,
    writing,
)

_SIGNALS = [s for s in (getattr(signal, n, None) for n in ("SIGINT", "SIGTERM", "SIGHUP")) if s is not None]

Handler = Callable[[int, FrameType | None], object]


class Transaction:
    """The output files of one run: staged as they come, renamed into place when the `with` block ends without an error.

    `inputs` are files that must not be overwritten, under whatever name they are reached. Raises `AtcfuseError`
    (ATF119 to ATF122, ATF124, ATF128) and `UsageError` (ATF123, ATF127). Where it is entered in the main thread,
    SIGINT, SIGTERM and SIGHUP wait until a commit under way is done, and otherwise clean up before they take effect
    (SIGTERM and SIGHUP, where the program has no handler of its own, as `SystemExit(128 + number)`). With `handed` the
    outputs are handed over at the end, for another transaction to `take`.
    """

    def __init__(self, inputs: Iterable[Path] = (), handed: Handed | None = None) -> None:
        self._inputs = list(inputs)
        self._handed = handed
        self._staged: list[Staged] = []
        self._made: list[Path] = []
        self._previous: dict[int, Handler | int | None] = {}
        self._busy = False
        self._pending: list[int] = []

    def __enter__(self) -> Transaction:
        if threading.current_thread() is threading.main_thread():
            for signum in _SIGNALS:
                if signal.getsignal(signum) not in (signal.SIG_IGN, None):
                    self._previous[signum] = signal.signal(signum, self._on_signal)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._busy = True
        try:
            if exc is None and self._handed is not None:
                self._handed.staged, self._staged = self._staged, []
                self._handed.made, self._made = self._made, []
            elif exc is None:
                self._commit()
        finally:
            self._discard()
            for signum, handler in self._previous.items():
                signal.signal(signum, handler)
            self._busy = False
        if exc is None and self._pending:
            self._deliver(self._pending[0], None)

    @property
    def targets(self) -> list[Path]:
        """Where everything that is staged will appear."""
        return [item.target for item in self._staged]

    def protect(self, path: Path) -> None:
        """Adds a file that no output may overwrite."""
        self._inputs.append(path)
        for item in self._staged:
            _refuse_input(item.target, [path])

    def check(self, target: Path, *, folder: bool = False, marker: str = "") -> Path:
        """The file (or `folder`) that an output to `target` would replace, symbolic links followed.

        Raises what staging it would raise, so that a run can fail before it has worked; with a `marker` ATF128 for a
        folder that is not empty and does not have it.
        """
        with writing(target):
            path = Path(os.path.realpath(target))
            parent = path.parent
            if not parent.is_dir():
                what = "is not a folder" if parent.exists() else "does not exist"
                hint = "create the folder first, or choose another output"
                raise AtcfuseError(error("ATF119", f"cannot write {target}: {parent} {what}", hint=hint))
            _refuse_kind(target, path, folder)
            _refuse_input(path, self._inputs)
            if marker and path.is_dir() and any(path.iterdir()) and not (path / marker).is_file():
                hint = "choose another folder, or empty this one"
                raise AtcfuseError(error("ATF128", f"{target} exists and was not written by atcfuse", hint=hint))
            if any(item.target == path for item in self._staged):
                hint = "give every output of a run its own path"
                raise UsageError(error("ATF127", f"two outputs of this run would both be {target}", hint=hint))
            if not os.access(parent, os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return path

    def stage(self, target: Path, *, last: bool = False, parents: bool = False) -> Path:
        """A temporary name, not yet in use, whose file becomes `target`; the caller makes and syncs that file.

        `parents` makes missing folders above the target.
        """
        if parents:
            self._make_parents(target)
        path = self.check(target)
        return self._add(path, last=last, folder=False)

    @contextlib.contextmanager
    def open(self, target: Path, *, last: bool = False) -> Iterator[BinaryIO]:
        """A binary stream that becomes `target`; for outputs that are too large to hold in memory."""
        temporary = self.stage(target, last=last)
        with writing(target), create(temporary) as stream:
            yield stream

    def write(self, target: Path, data: bytes | str, *, last: bool = False) -> None:
        """Stages a whole file; text is written as UTF-8."""
        temporary = self.stage(target, last=last)
        with writing(target), create(temporary) as stream:
            write_all(stream.fileno(), data.encode() if isinstance(data, str) else data)

    def folder(
        self, target: Path, files: Mapping[str, bytes | str], *, marker: str, executable: Collection[str] = ()
    ) -> None:
        """Stages a generated folder: `files` maps relative paths (with `/`) to contents.

        It replaces an older one as a whole; one whose files are all the same already stays as it is, with whatever was
        built inside. A folder that is not empty and has no file `marker` was not generated: ATF128.
        """
        path = self.check(target, folder=True, marker=marker)
        contents = {name: data.encode() if isinstance(data, str) else data for name, data in files.items()}
        with writing(target):
            if path.is_dir() and holds(path, contents):
                return
            temporary = self._add(path, last=False, folder=True)
            write_tree(temporary, contents, frozenset(executable))

    def take(self, handed: Handed) -> None:
        """Outputs that another transaction made, maybe in another process."""
        self._staged += handed.staged
        self._made += handed.made

    def _add(self, path: Path, *, last: bool, folder: bool) -> Path:
        temporary = path.parent / _temporary_name(self._handed)
        self._staged.append(Staged(path, temporary, last, folder))
        return temporary

    def _make_parents(self, target: Path) -> None:
        missing = []
        parent = target.parent
        while not parent.exists() and parent != parent.parent:
            missing.append(parent)
            parent = parent.parent
        with writing(target):
            for made in reversed(missing):
                self._made.append(made)
                made.mkdir(exist_ok=True)

    def _commit(self) -> None:
        begun: list[Staged] = []
        folders = list(dict.fromkeys(item.target.parent for item in self._staged))
        with held_folders(folders):
            try:
                for item in sorted(self._staged, key=lambda item: item.last):
                    begun.append(item)
                    with writing(item.target):
                        item.publish()
            except BaseException:
                for item in reversed(begun):
                    item.revert()
                raise
        for parent in folders:
            sync_folder(parent)
        self._made.clear()

    def _discard(self) -> None:
        """Removes every temporary file; after a commit these are what the new files replaced."""
        for item in self._staged:
            item.remove_leftovers()
        for made in reversed(self._made):
            with contextlib.suppress(OSError):  # another run may have put its files there meanwhile
                made.rmdir()
        self._staged.clear()
        self._made.clear()

    def _on_signal(self, signum: int, frame: FrameType | None) -> None:
        if self._busy:
            self._pending.append(signum)
            return
        try:
            self._deliver(signum, frame)
        except BaseException:
            self._discard()
            raise

    def _deliver(self, signum: int, frame: FrameType | None) -> None:
        handler = self._previous.get(signum)
        if callable(handler):
            handler(signum, frame)
        else:
            raise SystemExit(128 + signum)


@dataclass
class Handed:
    """Outputs that one transaction made and another is to put in place; `tag` is in all their temporary names."""

    tag: str
    staged: list[Staged] = field(default_factory=list)
    made: list[Path] = field(default_factory=list)


def _temporary_name(handed: Handed | None) -> str:
    return f".atcfuse-{handed.tag if handed else os.getpid()}-{secrets.token_hex(6)}.tmp"


def remove_temporaries(folder: Path, tag: str) -> None:
    """Removes what a process left in a folder that handed its outputs to nobody."""
    with contextlib.suppress(OSError):
        for left in list(folder.glob(f".atcfuse-{tag}-*")):
            remove(left)


def _refuse_kind(target: Path, path: Path, folder: bool) -> None:
    if not path.exists():
        return
    mode = path.stat().st_mode
    fits = stat.S_ISDIR(mode) if folder else stat.S_ISREG(mode)
    if not fits:
        found = "a folder" if stat.S_ISDIR(mode) else "a file" if stat.S_ISREG(mode) else "not a regular file"
        hint = "give the path of a folder" if folder else "give the path of a file, such as out.onnx"
        raise AtcfuseError(error("ATF122", f"cannot write {target}: it is {found}", hint=hint))


def _refuse_input(target: Path, inputs: Iterable[Path]) -> None:
    for source in inputs:
        if target.exists() and source.exists() and os.path.samefile(target, source):
            hint = "choose another output with -o; atcfuse never changes its input"
            raise UsageError(error("ATF123", f"the output {target} is the input {source}", hint=hint))
