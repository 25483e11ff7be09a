"""What is left of a transformer block: launches from one attention to the next, by model, as a table.

python bench/blocks.py [FOLDER] [--out docs/coverage.md] [--soc Ascend910B1]

A launch belongs to an attention when it computes from an earlier attention's result and this attention, and none before
it, reads what it makes; the attention itself is one more. Masks, positions and embeddings compute from no attention and
are counted with the whole model only.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import onnx

import atcfuse
from atcfuse.compiler import toolbox
from atcfuse.graph.index import Model, Node, Scope
from atcfuse.graph.infer import infer
from atcfuse.graph.traffic import kinds
from atcfuse.options import Options

ATTENTION = "atcfuse::FusedAttention"


@dataclass(frozen=True)
class Coverage:
    """One optimized model: launches of the whole, and of the layers alone."""

    model: str
    before: int
    after: int
    layers_before: int
    layers_after: int
    each: tuple[int, ...]
    left: tuple[str, ...]


def cover(path: Path, soc: str = "Ascend910B1") -> Coverage:
    """Optimizes a model with every rule forced, and counts."""
    rules = frozenset(rule.name for rule in toolbox(Options()).book.rules)
    options = Options(soc=soc, dialect="portable", forced=rules, min_saving_us=0.0)
    result = atcfuse.optimize(path, options)
    scope = _largest(result.model)
    replaced = {f["name"]: (f["launches_saved"] or 0) + 1 for f in result.report["fusions"]}
    groups = launches_by_attention(scope)
    layers = [node for group in groups for node in group]
    summary = result.report["summary"]
    return Coverage(
        model=path.stem,
        before=summary["launches_before"],
        after=summary["launches_after"],
        layers_before=sum(replaced.get(node.name, 1) for node in layers),
        layers_after=len(layers),
        each=tuple(len(group) for group in groups[1:]),
        left=tuple(sorted({node.op for node in layers if not node.op.startswith("atcfuse::")})),
    )


def _largest(proto: onnx.ModelProto) -> Scope:
    """The scope with the most attention: the main graph, or the body of a merged decoder's If."""
    model = Model(proto)
    infer(model)
    return max(model.scopes(), key=lambda s: sum(node.op == ATTENTION for node in s.nodes))


def launches_by_attention(scope: Scope) -> list[list[Node]]:
    """For every attention in execution order the launches that lead to it from earlier ones, itself last."""
    kind = kinds(scope)
    order = [scope.nodes[i] for i in scope.order]
    downstream = _reached(order, (n for n in order if n.op == ATTENTION), lambda n: n.outputs, lambda n: n.inputs)
    taken: set[int] = set()
    groups = []
    for attention in (n for n in order if n.op == ATTENTION):
        upstream = _reached(order[::-1], [attention], lambda n: n.inputs, lambda n: n.outputs)
        found = [
            n
            for n in order
            if n.index in upstream and n.index in downstream and n.index not in taken and n.op != ATTENTION
            if kind[n.index] == "launch"
        ]
        taken |= {n.index for n in found}
        groups.append([*found, attention])
    return groups


def _reached(order: Sequence[Node], start: Iterable[Node], gives: Any, takes: Any) -> set[int]:
    """Nodes that take in what the start nodes give, directly or not; `order` has each behind those it takes from."""
    values = {value for node in start for value in gives(node) if value}
    found: set[int] = set()
    for node in order:
        if any(value in values for value in takes(node) if value):
            found.add(node.index)
            values.update(value for value in gives(node) if value)
    return found


def table(rows: Sequence[Coverage]) -> str:
    """The rows as Markdown."""
    head = "| model | launches | | layers alone | | kernels an attention | not fused between |"
    lines = [head, "|---|---:|---:|---:|---:|---|---|"]
    for row in rows:
        each = ", ".join(str(n) for n in sorted(set(row.each))) or "-"
        left = ", ".join(f"`{op}`" for op in row.left) or ""
        whole, layers = _share(row.after, row.before), _share(row.layers_after, row.layers_before)
        counts = f"{row.before} → {row.after} | {whole} | {row.layers_before} → {row.layers_after} | {layers}"
        lines.append(f"| {row.model} | {counts} | {each} | {left} |")
    return "\n".join(lines) + "\n"


def _share(after: float, before: float) -> str:
    return f"{100 * after / before:.0f} %" if before else "-"


def family(model: str) -> str:
    """The family that a file's name begins with, before exporter and opset."""
    return re.split(r"__|_(?:ts|dynamo)\d", model)[0]


def families(rows: Sequence[Coverage]) -> str:
    """Shares of launches left by family, each the median of its models, as Markdown."""
    lines = ["| family | models | layers alone, median | whole model, median |", "|---|---:|---:|---:|"]
    named = sorted({family(row.model) for row in rows})
    for name in [*named, "all"]:
        mine = [row for row in rows if name in ("all", family(row.model))]
        layers = median(row.layers_after / row.layers_before for row in mine)
        whole = median(row.after / row.before for row in mine)
        lines.append(f"| {name} | {len(mine)} | {_share(layers, 1)} | {_share(whole, 1)} |")
    return "\n".join(lines) + "\n"


TEXT = """# What is left of a transformer block

Made by `python bench/blocks.py` for {soc}, with every rule forced and no least saving. Launches before and after;
then those of the layers alone: what lies between one attention and the next. That is a block of a model with one
attention a layer (norm with projections, attention, output projection with residual, norm with feed-forward network and
residual: four; a rotary embedding is a fifth), and half of a decoder block with cross-attention. Masks and position
tables are made once a model and weigh more in these two-layer samples than in a real one.

"""


FAMILIES = """
Launches left by family, after against before, the median of the models above. A corpus of other exports is counted by
`python bench/blocks.py FOLDER --out FILE`.

"""


def main() -> None:
    """Writes the page."""
    root = Path(__file__).parents[1]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=root / "sample_models")
    parser.add_argument("--out", type=Path, default=root / "docs" / "coverage.md")
    parser.add_argument("--soc", default="Ascend910B1")
    arguments = parser.parse_args()
    rows = [cover(path, arguments.soc) for path in sorted(arguments.folder.glob("*.onnx"))]
    rows = [row for row in rows if row.layers_after and row.layers_before]
    text = TEXT.format(soc=arguments.soc) + table(rows) + FAMILIES + families(rows)
    arguments.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
