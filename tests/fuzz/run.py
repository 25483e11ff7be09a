"""`make fuzz`: random cases of every kind, each in a process of its own, for some minutes.

    python tests/fuzz/run.py --seed 1 --minutes 60 --out fuzz-out
    python tests/fuzz/run.py --seed 1 --kind networks --case 17     # one case again, with its files

Findings go to OUT/findings, one folder each; OUT/results.json has the outcomes by kind.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # a parent that forks has no threads
os.environ.setdefault("OMP_NUM_THREADS", "1")

import folders  # noqa: F401
import kinds
from judge import Task
from limits import Outcome, Phase, run_limited

from atcfuse.library import library

SECONDS = 60.0
"""CPU seconds that a case may take; wall time three times as long."""
EXCUSED = "onnxruntime on the original"
"""What dies in this phase is not ours."""


@dataclass
class Tally:
    """The outcomes of one kind."""

    cases: int = 0
    outcomes: dict[str, int] = field(default_factory=dict)
    findings: list[str] = field(default_factory=list)
    slowest: float = 0.0
    largest: int = 0

    def count(self, outcome: str) -> None:
        """One more case."""
        self.cases += 1
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1


def one_case(seed: object, kind: str, number: int, folder: Path) -> Outcome:
    """Runs one case in `folder`, which is made and stays."""
    call = kinds.KINDS[kind][0]
    folder.mkdir(parents=True)

    def case(phase: Phase) -> str:
        return call(Task(random.Random(f"{seed} {kind} {number}"), folder, phase))

    return run_limited(case, SECONDS)


def judged(outcome: Outcome) -> tuple[str, bool]:
    """The outcome in a word, and whether it is a finding."""
    if not outcome.died:
        return outcome.text, False
    if outcome.phase.startswith(EXCUSED):
        return "onnxruntime died of the original", False
    return outcome.died, True


def schedule(only: str | None) -> Iterator[str]:
    """The kinds in turn, by their weights, for ever."""
    turn = [name for name, (_, weight) in kinds.KINDS.items() for _ in range(weight) if only in (None, name)]
    random.Random(0).shuffle(turn)
    while True:
        yield from turn


def warm() -> None:
    """Reads what every case needs once, before the first fork."""
    library()
    import onnxruntime  # noqa: F401

    import atcfuse.cli.optimize  # noqa: F401


def fuzz(seed: object, until: float, out: Path, only: str | None = None, most: int | None = None) -> dict[str, Tally]:
    """Runs cases until the time is over or `most` are done."""
    tallies = {name: Tally() for name in kinds.KINDS}
    with tempfile.TemporaryDirectory(prefix="atcfuse-fuzz-") as scratch:
        for count, kind in enumerate(schedule(only)):
            if time.time() >= until or count == most:
                break
            tally = tallies[kind]
            folder = Path(scratch) / "case"
            outcome = one_case(seed, kind, tally.cases, folder)
            text, bad = judged(outcome)
            if bad:
                _keep(out, kind, tally, outcome, folder, text)
            tally.count("finding" if bad else text)
            tally.slowest, tally.largest = max(tally.slowest, outcome.seconds), max(tally.largest, outcome.peak)
            for left in Path(scratch).iterdir():
                shutil.rmtree(left) if left.is_dir() else left.unlink()
            if count % 50 == 0:
                _save(out, seed, tallies)
    _save(out, seed, tallies)
    return tallies


def _keep(out: Path, kind: str, tally: Tally, outcome: Outcome, folder: Path, text: str) -> None:
    tally.findings.append(f"case {tally.cases}, {outcome.phase[:300]}: {text[-600:]}")
    place = out / "findings" / f"{kind.replace(' ', '_')}-{tally.cases}"
    shutil.copytree(folder, place, dirs_exist_ok=True)
    (place / "finding.txt").write_text(f"{outcome.phase}\n{text}\n", "utf-8")
    print(f"{kind} {tally.cases}: {text.strip().splitlines()[-1][:200]}", flush=True)


def _save(out: Path, seed: object, tallies: dict[str, Tally]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    document = {"seed": seed, "kinds": {name: asdict(tally) for name, tally in tallies.items()}}
    (out / "results.json").write_text(json.dumps(document, indent=1, sort_keys=True), "utf-8")


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", default="1")
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--out", type=Path, default=Path("fuzz-out"))
    parser.add_argument("--kind", choices=list(kinds.KINDS))
    parser.add_argument("--cases", type=int, help="end after so many cases")
    parser.add_argument("--case", type=int, help="one case of --kind again, in a folder below --out")
    given = parser.parse_args()
    warm()
    if given.case is not None:
        folder = given.out / f"{given.kind.replace(' ', '_')}-{given.case}-again"
        shutil.rmtree(folder, ignore_errors=True)
        outcome = one_case(given.seed, given.kind, given.case, folder.resolve())
        print(f"{folder}\n{outcome.phase}\n{outcome.text}{outcome.died}\n{outcome.seconds:.1f} s")
        return int(judged(outcome)[1])
    tallies = fuzz(given.seed, time.time() + 60 * given.minutes, given.out, given.kind, given.cases)
    for name, tally in tallies.items():
        told = ", ".join(f"{count} {text}" for text, count in Counter(tally.outcomes).most_common(6))
        print(f"{name}: {tally.cases} cases, {len(tally.findings)} findings; {told}; slowest {tally.slowest:.1f} s")
    return int(any(tally.findings for tally in tallies.values()))


if __name__ == "__main__":
    sys.exit(main())
