"""CPU time of every phase of `optimize` on one model, and where Python spends it.

python bench/phases.py MODEL.onnx|transformer:20000|chain:20000|bert:12 [--top 25] [--repeat 3]
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import models
import onnx

from atcfuse import account, compiler, rounds
from atcfuse.atc import Estimate
from atcfuse.decide import Pricer
from atcfuse.estimate import Kernels
from atcfuse.files import Transaction
from atcfuse.graph import dialect, store
from atcfuse.match.find import RuleFinder
from atcfuse.options import Options

PHASES = (
    "rules",
    "load",
    "index",
    "infer",
    "match",
    "reasons",
    "atc",
    "group",
    "prepare",
    "plan",
    "select",
    "rewrite",
    "dialect",
    "account",
    "save",
)


class Clock:
    """CPU seconds by phase; time in a phase inside another one counts for the inner one only.

    A phase is a word; `match RULE` is the part of `match` that one rule takes.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._stack: list[str] = []
        self._since = time.process_time()

    def _switch(self) -> None:
        now = time.process_time()
        self.seconds[self._stack[-1] if self._stack else "other"] += now - self._since
        self._since = now

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Counts the time inside the block for a phase."""
        self._switch()
        self._stack.append(name)
        try:
            yield
        finally:
            self._switch()
            self._stack.pop()

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, its time counted for a phase."""

        def call(*args: Any, **kwargs: Any) -> Any:
            with self.phase(f"match {args[1].name}" if name == "match" else name):
                return function(*args, **kwargs)

        return call

    def total(self) -> float:
        """All phases together."""
        return sum(s for name, s in self.seconds.items() if " " not in name)

    def stop(self) -> Clock:
        """Counts what has passed since the last phase, and sums the rules up as `match`."""
        self._switch()
        self.seconds["match"] = sum(s for name, s in self.seconds.items() if name.startswith("match "))
        return self


@contextmanager
def _watched(clock: Clock) -> Iterator[None]:
    """The compiler with its steps timed, put back afterwards."""
    places: list[tuple[Any, str, str]] = [
        (compiler, "Model", "index"),
        (compiler, "infer", "infer"),
        (RuleFinder, "__init__", "index"),
        (RuleFinder, "matches", "match"),
        (RuleFinder, "misses", "reasons"),
        (Estimate, "look", "atc"),
        (Estimate, "take", "atc"),
        (rounds, "group_leftovers", "group"),
        (rounds, "prepare", "prepare"),
        (Pricer, "refusal", "plan"),
        (Kernels, "of_node", "plan"),
        (rounds, "select", "select"),
        (rounds, "plan", "rewrite"),
        (rounds, "render", "rewrite"),
        (rounds, "apply", "rewrite"),
        (dialect, "to_dialect", "dialect"),
        (account, "before", "account"),
        (account, "document", "account"),
    ]
    saved = [getattr(owner, name) for owner, name, _ in places]
    for (owner, name, phase), function in zip(places, saved, strict=True):
        setattr(owner, name, clock.timed(phase, function))
    try:
        yield
    finally:
        for (owner, name, _), function in zip(places, saved, strict=True):
            setattr(owner, name, function)


def run(path: Path, clock: Clock, folder: Path) -> dict[str, Any]:
    """One whole optimization of a model file; the report document."""
    with clock.phase("rules"):
        tools = compiler.toolbox(Options())
    with clock.phase("load"):
        proto = store.load(path)
    with _watched(clock):
        result = compiler.optimize_proto(proto, tools, path, path.name)
    with clock.phase("save"), Transaction() as transaction:
        store.write(result.model, transaction, folder / "out.onnx", path)
    clock.stop()
    return result.report


def model_file(text: str, folder: Path) -> Path:
    """A model given as a path or as `KIND:NUMBER`, as `models.MAKERS` knows them."""
    kind, colon, number = text.partition(":")
    if not colon or kind not in models.MAKERS:
        return Path(text)
    path = folder / f"{kind}_{number}.onnx"
    onnx.save(models.MAKERS[kind](int(number)), path)
    return path


def main() -> None:
    """Prints the table of phases, then the hot spots."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--top", type=int, default=25, help="functions to list by their own time; 0 for none")
    parser.add_argument("--repeat", type=int, default=3, help="runs to take the best of")
    options = parser.parse_args()
    with TemporaryDirectory() as name:
        folder = Path(name)
        path = model_file(options.model, folder)
        clocks = []
        for _ in range(options.repeat):
            clocks.append(Clock())
            report = run(path, clocks[-1], folder)
        best = min(clocks, key=Clock.total)
        summary = report["summary"]
        nodes = f"{summary['nodes_before']} -> {summary['nodes_after']} nodes"
        print(f"{path.name}: {nodes}, {len(report['fusions'])} fusions")
        for phase in (*PHASES, "other"):
            print(f"  {phase:28} {best.seconds[phase]:8.3f} s")
            for rule in sorted(r for r in best.seconds if r.startswith(f"{phase} ")):
                print(f"    {rule:26} {best.seconds[rule]:8.3f} s")
        print(f"  {'sum':28} {best.total():8.3f} s CPU, best of {options.repeat}")
        if options.top:
            profile = cProfile.Profile()
            profile.runcall(run, path, Clock(), folder)
            pstats.Stats(profile, stream=sys.stdout).sort_stats("tottime").print_stats(options.top)


if __name__ == "__main__":
    main()
