"""All output files of a run appear whole, or none of them does.

Every file is written under a temporary name in its target's folder (so on the same filesystem), synced, and renamed
into place when the whole run has succeeded; the file marked `last` (the model) is renamed last, so that whoever waits
for it finds the others in place. A failure or an interrupt removes what was staged and puts back what was already
replaced; a power cut or `kill -9` leaves each file old or new. Two runs on one output never mix: the later whole write
wins.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import signal
import stat
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from types import FrameType, TracebackType
from typing import BinaryIO, cast

from atcfuse.diagnostics import AtcfuseError, UsageError, error

CHUNK = 16 << 20
"""Bytes written by one system call, so that an interrupt does not wait for gigabytes."""

_FULL = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "the file would be larger than the system allows",
}
_FORBIDDEN = {errno.EACCES, errno.EPERM, errno.EROFS}
_SIGNALS = [s for s in (getattr(signal, n, None) for n in ("SIGINT", "SIGTERM", "SIGHUP")) if s is not None]
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2
_NO_EXCHANGE = {errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP}

Handler = Callable[[int, FrameType | None], object]


@contextlib.contextmanager
def writing(target: Path) -> Iterator[None]:
    """Turns an OSError while `target` is written into the coded error a user can act on."""
    try:
        yield
    except OSError as exc:
        raise _coded(exc, target) from exc


def write_all(descriptor: int, data: bytes | memoryview) -> None:
    """Writes every byte; a short write is continued."""
    view = memoryview(data).cast("B")
    while view:
        view = view[os.write(descriptor, view[:CHUNK]) :]


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
        self._staged: list[_Staged] = []
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
            if path.is_dir() and _holds(path, contents):
                return
            temporary = self._add(path, last=False, folder=True)
            _write_tree(temporary, contents, frozenset(executable))

    def take(self, handed: Handed) -> None:
        """Outputs that another transaction made, maybe in another process."""
        self._staged += handed.staged
        self._made += handed.made

    def _add(self, path: Path, *, last: bool, folder: bool) -> Path:
        temporary = path.parent / _temporary_name(self._handed)
        self._staged.append(_Staged(path, temporary, last, folder))
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
        begun: list[_Staged] = []
        folders = list(dict.fromkeys(item.target.parent for item in self._staged))
        with _held(folders):
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
            _sync_folder(parent)
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
    staged: list[_Staged] = field(default_factory=list)
    made: list[Path] = field(default_factory=list)


def _temporary_name(handed: Handed | None) -> str:
    return f".atcfuse-{handed.tag if handed else os.getpid()}-{secrets.token_hex(6)}.tmp"


def remove_temporaries(folder: Path, tag: str) -> None:
    """Removes what a process left in a folder that handed its outputs to nobody."""
    with contextlib.suppress(OSError):
        for left in list(folder.glob(f".atcfuse-{tag}-*")):
            _remove(left)


@dataclass
class _Staged:
    """One output: what is staged under `temporary` and becomes `target`; `backup` is the replaced one until the end."""

    target: Path
    temporary: Path
    last: bool
    folder: bool
    backup: Path | None = None
    existed: bool = False
    published: bool = False

    def publish(self) -> None:
        """Renames the staged file or folder into place and keeps the replaced one at hand."""
        self.existed = self.target.exists()
        spare = self.temporary.with_suffix(".old")
        if not (self.folder and self.existed):
            if self.existed and _hard_link(self.target, spare):
                self.backup = spare
            os.replace(self.temporary, self.target)
        elif _exchange(self.temporary, self.target):
            self.backup = self.temporary
        else:  # no atomic exchange on this system: two renames
            os.rename(self.target, spare)
            self.backup = spare
            os.rename(self.temporary, self.target)
        self.published = True

    def revert(self) -> None:
        """Puts the replaced file or folder back, where there was one and it could be kept."""
        if self.folder and self.backup is not None:
            if self.published and _exchange(self.backup, self.target):
                return
            if self.published:
                os.rename(self.target, self.temporary)
            os.rename(self.backup, self.target)
        elif self.published and self.backup is not None:
            os.replace(self.backup, self.target)
        elif self.published and not self.existed:
            _remove(self.target)

    def remove_leftovers(self) -> None:
        """Removes the temporary names of this output."""
        for leftover in (self.temporary, self.temporary.with_suffix(".old")):
            _remove(leftover)


def _remove(path: Path) -> None:
    """Removes a file or folder; what cannot be removed stays, since the outcome of the run matters more."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


def _hard_link(source: Path, target: Path) -> bool:
    try:
        os.link(source, target)
    except OSError:  # a filesystem without hard links: the replaced file is then not kept
        return False
    return True


def _exchange(one: Path, other: Path) -> bool:
    """Swaps two names in one step; False where the system cannot."""
    import ctypes

    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    if rename(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in _NO_EXCHANGE:
        return False
    raise OSError(code, os.strerror(code))


@contextlib.contextmanager
def create(path: Path, mode: int = 0o666) -> Iterator[BinaryIO]:
    """A new unbuffered file that is synced to disk at the end of the block; FileExistsError where there is one."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb", buffering=0) as stream:
        yield cast("BinaryIO", stream)
        os.fsync(stream.fileno())


def _write_tree(root: Path, contents: Mapping[str, bytes], executable: frozenset[str]) -> None:
    root.mkdir()
    for name in sorted(contents):
        relative = PurePosixPath(name)
        if relative.is_absolute() or ".." in relative.parts:
            raise ValueError(f"not a path inside the folder: {name!r}")
        path = root / relative
        path.parent.mkdir(parents=True, exist_ok=True)
        with create(path, 0o777 if name in executable else 0o666) as stream:
            write_all(stream.fileno(), contents[name])


def _holds(folder: Path, contents: Mapping[str, bytes]) -> bool:
    paths = {folder / name: data for name, data in contents.items()}
    return all(path.is_file() and path.read_bytes() == data for path, data in paths.items())


@contextlib.contextmanager
def _held(folders: Iterable[Path]) -> Iterator[None]:
    """Keeps other runs from renaming files into the folders meanwhile, so that no mix of two runs' outputs stays.

    The lock is on the folders themselves: nothing is left behind, and the system lifts it from a run that is killed.
    """
    with contextlib.ExitStack() as held:
        for folder in sorted(folders):  # in one order, so that two runs never wait for each other
            with contextlib.suppress(OSError, ImportError):  # a filesystem or system without such locks
                import fcntl

                descriptor = os.open(folder, os.O_RDONLY)
                held.callback(os.close, descriptor)
                fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield


def _sync_folder(folder: Path) -> None:
    with contextlib.suppress(OSError):  # some filesystems cannot sync a folder; the files themselves are synced
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


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


def _coded(exc: OSError, target: Path) -> AtcfuseError:
    reason = exc.strerror or str(exc)
    if exc.errno in _FULL:
        message = f"cannot write {target}: {_FULL[exc.errno]}"
        return AtcfuseError(error("ATF121", message, hint="free some space, or write to another disk"))
    if exc.errno in _FORBIDDEN:
        hint = "choose a folder that you may write to"
        return AtcfuseError(error("ATF120", f"cannot write {target}: {reason}", hint=hint))
    return AtcfuseError(error("ATF124", f"cannot write {target}: {reason}", hint="choose another output path"))
