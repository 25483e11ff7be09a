"""What choosing tiles and pricing fusions takes in a model of many layers; `make bench` prints it.

    python bench/planning.py [LAYERS]

Kernels rendered, tiles planned and fusions priced are counted together, once each where layers are alike. The first run
in a process is told: later ones find everything planned.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory

import phases

LIMIT = 0.3
"""Seconds that planning 32 layers may take."""


def main() -> None:
    """Prints the seconds of planning and of the whole run."""
    parser = argparse.ArgumentParser(description="Time of planning a transformer.")
    parser.add_argument("layers", nargs="?", type=int, default=32)
    layers = parser.parse_args().layers
    with TemporaryDirectory() as name:
        folder = Path(name)
        path = folder / "model.onnx"
        phases.onnx.save(phases.models.transformer(layers), path)
        clock = phases.Clock()
        report = phases.run(path, clock, folder)
    took, fusions = clock.seconds["plan"], len(report["fusions"])
    print(f"planning {layers} layers, {fusions} fusions: {took:.3f} s (limit {LIMIT} s) of {clock.total():.2f} s CPU")


if __name__ == "__main__":
    main()
