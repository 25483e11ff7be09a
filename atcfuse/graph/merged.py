"""The work of several nodes that run as one launch: what crosses its border, and all of its arithmetic."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from atcfuse.graph.index import Node, Scope
from atcfuse.graph.work import OpWork, Product


def merged_work(
    scope: Scope, members: Collection[int], works: Mapping[int, OpWork], op: str, vector_passes: int | None = None
) -> OpWork:
    """One launch of operator `op` for the nodes `members`: each external input read once, each result written once.

    `works` has the nodes one by one; at least one of them must be a launch. Views among the members are passed through:
    what they rearrange is read as it lies before them. `vector_passes`, where given, is how many vector instructions an
    element of the last node's result goes through, in place of the sum over the nodes.
    """
    ordered = [scope.nodes[i] for i in sorted(members, key=scope.positions.__getitem__)]
    launched = [(node, works[node.index]) for node in ordered if works[node.index].launches]
    source = _sources(ordered, works)
    made = {name for _, work in launched for name in work.writes}
    reads: dict[str, int] = {}
    for node, work in launched:
        for name, size in work.reads.items():
            root = source.get(name, name)
            if root not in made:  # a node that names an operand twice reads it twice, one kernel does not
                reads[root] = max(reads.get(root, 0), size // node.inputs.count(name))
    return OpWork(
        op=op,
        name=ordered[-1].name,
        reads=reads,
        writes=_written(scope, ordered, launched, source),
        cube_flops=sum(work.cube_flops for _, work in launched),
        vector_elements=_vector_elements(launched, vector_passes),
        dtype=_dtype(launched),
        product=_product(scope, launched, source, made),
        constants=frozenset(n for _, work in launched for n in work.constants if n in reads),
    )


_Launches = Sequence[tuple[Node, OpWork]]


def _sources(ordered: Sequence[Node], works: Mapping[int, OpWork]) -> dict[str, str]:
    """The value before the views among the members, by what they make."""
    source: dict[str, str] = {}
    for node in ordered:
        if not works[node.index].launches and node.inputs:
            source.update(dict.fromkeys(node.outputs, source.get(node.inputs[0], node.inputs[0])))
    return source


def _written(scope: Scope, ordered: Sequence[Node], launched: _Launches, source: Mapping[str, str]) -> dict[str, int]:
    """Results that are read outside, each once, under the name that is read there."""
    members = {node.index for node in ordered}
    sizes = {name: size for _, work in launched for name, size in work.writes.items()}
    found: dict[str, int] = {}
    seen: set[str] = set()
    for name in (output for node in ordered for output in node.outputs):
        root = source.get(name, name)
        if root not in sizes or root in seen:
            continue
        if scope.is_output(name) or any(reader.index not in members for reader in scope.readers(name)):
            seen.add(root)
            found[name] = sizes[root]
    return found


def _vector_elements(launched: _Launches, passes: int | None) -> int:
    if passes is None:
        return sum(work.vector_elements for _, work in launched)
    # Where passes are given the last node is element-wise: it counts each element of the result once.
    return passes * launched[-1][1].vector_elements if passes else 0


def _dtype(launched: _Launches) -> str:
    """That of the product where there is one; else float32 where a part computes in it."""
    products = [work.dtype for _, work in launched if work.product is not None]
    if products:
        return products[0]
    return "float32" if any(work.dtype == "float32" for _, work in launched) else launched[0][1].dtype


def _product(scope: Scope, launched: _Launches, source: Mapping[str, str], made: Collection[str]) -> Product | None:
    """The product among the nodes, its operands as they are read from outside."""
    product = next((work.product for _, work in launched if work.product is not None), None)
    if product is None:
        return None

    def outside(name: str) -> str:
        name = source.get(name, name)
        while name in made:  # a Transpose that the product takes in
            before = scope.producers[name].inputs[0]
            name = source.get(before, before)
        return name

    return product._replace(a=outside(product.a), b=outside(product.b))
