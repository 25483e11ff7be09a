"""Runs one call in a process of its own with bounds on time and memory, and tells how it ended."""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field

MEMORY = 3 << 30
"""Bytes of address space that a case may add to those of its parent."""


@dataclass(frozen=True)
class Outcome:
    """How a call ended: `text` is what it gave, "" where it gave nothing; `phase` is what it was at then.

    `died` tells why there is no result: a signal, too much time, or a Python exception with its traceback.
    """

    text: str = ""
    died: str = ""
    phase: str = ""
    seconds: float = 0.0
    peak: int = 0


@dataclass
class Phase:
    """What the call is at, told to the parent as it changes, so that a crash has an address."""

    pipe: int
    now: str = field(default="")

    def __call__(self, name: str) -> None:
        self.now = name
        os.write(self.pipe, f"{json.dumps({'phase': name})}\n".encode())


def run_limited(call: Callable[[Phase], str], seconds: float, memory: int = MEMORY) -> Outcome:
    """Forks, calls, waits. The parent must have no threads."""
    started = time.monotonic()
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(reader)
        _in_child(call, writer, seconds, memory)
    os.close(writer)
    lines, in_time = _read(reader, started + 3 * seconds)
    os.close(reader)
    if not in_time:
        os.kill(child, signal.SIGKILL)
    _, status, usage = os.wait4(child, 0)
    spent = usage.ru_utime + usage.ru_stime
    last = {key: value for line in lines for key, value in line.items()}
    died = last.get("error", "")
    if "text" not in last and not died:
        died = "no end in sight" if not in_time else f"exit status {os.waitstatus_to_exitcode(status)}"
    return Outcome(last.get("text", ""), died, last.get("phase", ""), spent, usage.ru_maxrss * 1024)


def _in_child(call: Callable[[Phase], str], pipe: int, seconds: float, memory: int) -> None:
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        whole = int(seconds) + 1
        resource.setrlimit(resource.RLIMIT_CPU, (whole, whole + 5))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        bound = _address_space() + memory
        resource.setrlimit(resource.RLIMIT_AS, (bound, bound))
        text = call(Phase(pipe))
        os.write(pipe, f"{json.dumps({'text': text})}\n".encode())
        code = 0
    except BaseException:
        os.write(pipe, f"{json.dumps({'error': traceback.format_exc()[-4000:]})}\n".encode())
    finally:
        os._exit(code)


def _address_space() -> int:
    with open("/proc/self/statm", encoding="ascii") as stream:
        return int(stream.read().split()[0]) * resource.getpagesize()


def _read(pipe: int, until: float) -> tuple[list[dict[str, str]], bool]:
    """Every line that the child wrote, and whether it closed its end in time."""
    data = b""
    while (left := until - time.monotonic()) > 0:
        if not select.select([pipe], [], [], left)[0]:
            break
        piece = os.read(pipe, 65536)
        if not piece:
            return [json.loads(line) for line in data.splitlines()], True
        data += piece
    return [json.loads(line) for line in data.splitlines() if line.endswith(b"}")], False
