"""Make the sample models again, check each and describe them in models.yaml and README.md.

    python make_all.py [PART_OF_A_NAME]...
"""

from __future__ import annotations

import logging
import sys
import zlib
from importlib import import_module

import torch
import transformers
import yaml

from common import FOLDER, Sample, check, export

FAMILIES = ("bert", "gpt2", "llama", "nanogpt", "vit", "t5", "bart", "whisper", "torch_encoder")
MARK = "<!-- the table below is written by scripts/make_all.py -->\n"


def samples() -> list[Sample]:
    return [sample for family in FAMILIES for sample in import_module(family).SAMPLES]


def entry(sample: Sample) -> dict[str, object]:
    made: dict[str, object] = {
        "family": sample.family,
        "exporter": sample.exporter,
        "opset": sample.opset,
        "dtype": sample.dtype,
        "dynamic": sample.dynamic,
        "attention": sample.attention,
        "norms": sample.norms,
        "sizes": [dict(sizes) for sizes in sample.sizes],
    }
    if sample.ranges:
        made["ranges"] = {name: list(limits) for name, limits in sample.ranges.items()}
    return made


def table() -> str:
    lines = [
        "| file (.onnx) | what it is | exporter | opset | dtype | shapes | attentions, norms | what is interesting |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for sample in samples():
        exporter = {"ts": "TorchScript", "dynamo": "dynamo"}[sample.exporter]
        shapes = "dynamic" if sample.dynamic else "static"
        facts = (sample.what, exporter, sample.opset, sample.dtype, shapes, f"{sample.attention}, {sample.norms}")
        lines.append(f"| `{sample.name}` | {' | '.join(map(str, facts))} | {sample.interesting} |")
    versions = f"torch {torch.__version__.partition('+')[0]}, transformers {transformers.__version__}"
    return f"\nExported with {versions}.\n\n" + "\n".join(lines) + "\n"


def describe() -> None:
    listing = {f"{sample.name}.onnx": entry(sample) for sample in samples()}
    text = yaml.safe_dump(listing, sort_keys=False, default_flow_style=None, width=120)
    (FOLDER / "models.yaml").write_text(text, encoding="utf-8")
    readme = FOLDER / "README.md"
    prose = readme.read_text(encoding="utf-8").partition(MARK)[0]
    readme.write_text(prose + MARK + table(), encoding="utf-8")


def main(parts: list[str]) -> None:
    logging.disable(logging.WARNING)
    for sample in samples():
        if not parts or any(part in sample.name for part in parts):
            seed = zlib.crc32(sample.name.encode())  # independent of the order and of the other models
            print(f"{sample.name:36s}", check(sample, *export(sample, seed), seed), flush=True)
    describe()


if __name__ == "__main__":
    main(sys.argv[1:])
