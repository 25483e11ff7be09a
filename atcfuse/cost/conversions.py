"""Launches that are no nodes of the model: what ATC puts between operators whose layouts or element types differ.

An estimate: ATC keeps no record of its choices, and may hand a fractal layout on through element-wise operators.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from atcfuse.graph.work import OpWork, transdata_work


def with_layout_changes(
    works: Sequence[OpWork], outputs: Iterable[str] = (), fractal: Iterable[str] = ()
) -> list[OpWork]:
    """The launches with a TransData wherever a value goes from a product to another operator or the other way.

    Products take and give fractal layout, everything else ND, fused kernels included; constants are laid out when the
    model is built. `outputs` are read outside, in ND, `fractal` are inputs that a product outside made.
    """
    lying = set(fractal)
    plain = {name for work in works if work.product is None for name in work.reads} | set(outputs)
    multiplied = {name for work in works if work.product is not None for name in work.reads}
    found: list[OpWork] = []
    renamed: dict[str, str] = {}
    for work in works:
        if work.product is None:
            found.append(work)
            continue
        for name, size in work.reads.items():
            if name not in work.constants and name not in lying and name not in renamed:
                found.append(transdata_work(name, size))
                renamed[name] = f"{name}/transdata"
        made = next(iter(work.writes), None)
        if made is None:  # nothing reads what is multiplied
            found.append(_with_names(work, renamed))
            continue
        lying.add(made)
        if made in multiplied and made not in plain:
            found.append(_with_names(work, renamed))
            continue
        renamed[made] = f"{made}/fractal"
        found.append(_with_names(work, renamed))
        size = work.writes[made]
        found.append(transdata_work(renamed[made], size)._replace(writes={made: size}))
    return found


def _with_names(work: OpWork, names: dict[str, str]) -> OpWork:
    assert work.product is not None
    a, b = work.product.a, work.product.b
    product = work.product._replace(a=names.get(a, a), b=names.get(b, b))
    reads = {names.get(name, name): size for name, size in work.reads.items()}
    writes = {names.get(name, name): size for name, size in work.writes.items()}
    return work._replace(reads=reads, writes=writes, product=product)


def handed_in_fractal(around: Iterable[OpWork]) -> Iterator[str]:
    """The values that lie in fractal layout before a fused kernel has them changed."""
    return (name for work in around if work.op == "TransData" for name in work.reads)
