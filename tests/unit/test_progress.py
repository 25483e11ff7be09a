"""Progress: who listens is told, in this thread alone, and nobody else is concerned."""

from __future__ import annotations

import threading

from atcfuse.progress import counted, listening, reached


def test_every_item_is_told_before_it_is_worked_on() -> None:
    told: list[object] = []
    with listening(lambda *what: told.append(what)):
        for item in counted("working", ["a", "b"]):
            told.append(item)
        reached("ending")
    reached("after it")
    assert told == [("working", 1, 2), "a", ("working", 2, 2), "b", ("ending", 0, 0)]


def test_another_thread_is_not_listened_to() -> None:
    told: list[object] = []
    with listening(lambda *what: told.append(what)):
        other = threading.Thread(target=lambda: reached("elsewhere"))
        other.start()
        other.join()
    assert told == []
