"""The work of one unfused node: bytes, cube and vector operations, derived from shapes. Exact where an operator says it
all, estimated (`VECTOR_PASSES`) where the toolkit's kernel is not known.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from atcfuse.graph.facts import Fact
from atcfuse.graph.index import Node, Scope
from atcfuse.graph.traffic import BEYOND_COUNTING, Kind, KindsOf, Sizes, element_bits, kinds, scope_bodies

VECTOR_PASSES: Mapping[str, int] = {
    **dict.fromkeys(("Softmax", "LogSoftmax"), 5),  # maximum, difference, exponential, sum, quotient
    **dict.fromkeys(("LayerNormalization", "InstanceNormalization", "GroupNormalization"), 10),
    **dict.fromkeys(("RMSNormalization", "SimplifiedLayerNormalization"), 7),
    "BatchNormalization": 2,
    "Erf": 23,
    "Gelu": 27,
    **dict.fromkeys(("Sigmoid", "Softplus"), 4),
    **dict.fromkeys(("Tanh", "HardSwish", "Mish", "Elu", "Selu"), 6),
    "Swish": 5,
    **dict.fromkeys(("Pow", "Mod"), 8),
    "Sin": 27,
    "Cos": 34,
    **dict.fromkeys(("CumSum", "TopK"), 8),
}
"""Vector instructions an element passes through, where it is not one. Erf, Sin and Cos: as in the toolkit's own
implementation, the others counted from their definitions; an estimate for the toolkit's kernels."""

MORE_IN_ATC: Mapping[str, int] = {
    "LayerNormalization": 2,
    **dict.fromkeys(("RMSNormalization", "SimplifiedLayerNormalization"), 5),
}
"""Launches that ATC may make of an operator beside the one it counts as. The plugin of LayerNormalization broadcasts
scale and shift to all rows; whether that is done when the model is built is not documented. The others it has no plugin
for: an exporter writes them in six operators for an opset that ATC reads."""

MOVES = frozenset(
    {"Transpose", "Concat", "Split", "Slice", "Gather", "GatherND", "GatherElements", "Expand", "Tile", "Pad"}
    | {"ScatterND", "ScatterElements", "DepthToSpace", "SpaceToDepth", "ConstantOfShape", "Range", "EyeLike"}
    | {"OneHot", "Resize", "Dropout"}
)
"""Operators that only move elements."""

_WIDE = frozenset({"Softmax", "LogSoftmax", "LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization"})
_WIDE_PREFIX = "Reduce"
_FLOAT32 = 1
_NAMES = {1: "float32", 2: "uint8", 3: "int8", 6: "int32", 7: "int64", 9: "bool", 10: "float16", 16: "bfloat16"}


class Product(NamedTuple):
    """A matrix product: `batch` times [m, k]·[k, n], the operands' value names, bytes of an element.

    A right operand that all batches share counts as one batch of more rows.
    """

    batch: int
    m: int
    n: int
    k: int
    a: str = "a"
    b: str = "b"
    element_bytes: int = 2

    @property
    def flops(self) -> int:
        """Multiplications and additions."""
        return 2 * self.batch * self.m * self.n * self.k


_NOTHING: Mapping[str, int] = MappingProxyType({})


class OpWork(NamedTuple):
    """One unfused node. `reads` and `writes` are bytes by value, each input once a mention, each output once.

    `vector_elements` counts elements once for every vector instruction that they pass, in `dtype`. `constants` are the
    inputs known before the run. Views and host nodes have no launches and no work. `added` tells a conversion that the
    toolkit puts in, which is no node of the model.
    """

    op: str
    name: str
    reads: Mapping[str, int] = _NOTHING
    writes: Mapping[str, int] = _NOTHING
    cube_flops: int = 0
    vector_elements: int = 0
    dtype: str = "float16"
    product: Product | None = None
    constants: frozenset[str] = frozenset()
    launches: int = 1
    added: bool = False

    @property
    def tensor_bytes(self) -> int:
        """Inputs once, outputs once."""
        return sum(self.reads.values()) + sum(self.writes.values())


NO_WORK = OpWork("", "", launches=0)
"""That of all nodes that are no launches."""


_Figures: TypeAlias = dict[tuple[str, Fact, Fact], tuple[int, str]]
"""Vector elements and element type of the computation by operator and by facts of the first input and output."""


def work_of(
    scope: Scope,
    node: Node,
    sizes: Sizes,
    kind: Kind = "launch",
    narrow: bool = False,
    known: _Figures | None = None,
) -> OpWork:
    """The work of a node; `kind` is what `traffic.kinds` says of it. Values of unknown size count no bytes.

    `narrow` counts float32 and bfloat16 as the float16 that ATC makes of them by default (force_fp16). `known` are
    figures of nodes that are alike, with the same sizes and `narrow`.
    """
    if kind != "launch":
        return NO_WORK
    known = {} if known is None else known
    reads: dict[str, int] = {}
    constants: list[str] = []
    for name in node.inputs:
        if name in reads:
            reads[name] += _bytes(scope, name, sizes, narrow)
        elif name:
            reads[name] = _bytes(scope, name, sizes, narrow)
            made = name in scope.producers and name not in scope.alias  # what a node makes is no tensor
            if scope.fact(name).is_constant or (not made and scope.tensor(name) is not None):
                constants.append(name)
    product = _product(scope, node, sizes, narrow) if node.op in ("MatMul", "Gemm") else None
    key = node.op, scope.fact(node.input(0)), scope.fact(node.outputs[0])
    if key not in known:
        known[key] = _vector_elements(scope, node, sizes), _dtype(scope, node, node.outputs[0], narrow)
    elements, dtype = known[key]
    return OpWork(
        op=node.op,
        name=node.name,
        reads=reads,
        writes={name: _bytes(scope, name, sizes, narrow) for name in node.outputs if name},
        cube_flops=product.flops if product else _conv_flops(scope, node, sizes) if "Conv" in node.op else 0,
        vector_elements=elements,
        dtype=dtype,
        product=product,
        constants=frozenset(constants),
    )


WorksOf = Callable[[Scope], Mapping[int, OpWork]]
"""The work of every node of a scope by its index; nodes that run as one launch have one and the same."""


class NodeWorks:
    """The work of nodes one by one, worked out once a scope. Facts must be known before the first question."""

    def __init__(self, sizes: Sizes, narrow: bool = False, kinds_of: KindsOf = kinds) -> None:
        self._sizes, self._narrow, self._kinds_of = sizes, narrow, kinds_of
        self._found: dict[int, tuple[Scope, dict[int, OpWork]]] = {}
        self._figures: _Figures = {}

    def __call__(self, scope: Scope) -> Mapping[int, OpWork]:
        """The work of every node of a scope by its index."""
        if id(scope) not in self._found:
            known = self._kinds_of(scope)
            sizes, narrow, figures = self._sizes, self._narrow, self._figures
            works = {n.index: work_of(scope, n, sizes, known[n.index], narrow, figures) for n in scope.nodes}
            self._found[id(scope)] = scope, works
        return self._found[id(scope)][1]

    def adopt(self, scope: Scope, other: Scope, likes: Sequence[int]) -> None:
        """Notes the work of a scope's nodes: that of nodes of another one that they are alike, with their own names."""
        known = self(other)
        works = {n.index: _alike(known[likes[n.index]], other.nodes[likes[n.index]], n) for n in scope.nodes}
        self._found[id(scope)] = scope, works


def renamed(work: OpWork, pairs: Sequence[tuple[Node, Node]]) -> OpWork:
    """The work of nodes by that of others which they are alike; `pairs` are each of those and the node like it."""
    names: dict[str, str] = {}
    for like, node in pairs:
        names.update(zip(like.inputs, node.inputs, strict=True))
        names.update(zip(like.outputs, node.outputs, strict=True))
    product = work.product
    return OpWork(
        op=work.op,
        name=pairs[-1][1].name,
        reads={names[name]: size for name, size in work.reads.items()},
        writes={names[name]: size for name, size in work.writes.items()},
        cube_flops=work.cube_flops,
        vector_elements=work.vector_elements,
        dtype=work.dtype,
        product=None if product is None else product._replace(a=names[product.a], b=names[product.b]),
        constants=frozenset([names[name] for name in work.constants]) if work.constants else work.constants,
    )


def _alike(work: OpWork, like: Node, node: Node) -> OpWork:
    """The work of a node by that of one it is alike."""
    if work is NO_WORK or (node.inputs == like.inputs and node.outputs == like.outputs):
        return work
    return renamed(work, [(like, node)])


def works_of(scope: Scope, found: WorksOf) -> list[OpWork]:
    """The work of a graph in execution order; of the branches of an `If` the costlier one counts, as in `measure`.

    Nodes that run as one launch count once, where the last of them stands.
    """
    known = found(scope)
    last = {id(known[index]): index for index in scope.order}
    works: list[OpWork] = []
    for index in scope.order:
        node = scope.nodes[index]
        bodies = [works_of(body, found) for body in scope_bodies(scope, node)] if scope.bodies else []
        if node.op == "If" and bodies:
            bodies = [max(bodies, key=lambda body: (sum(w.launches for w in body), sum(w.tensor_bytes for w in body)))]
        for body in bodies:
            works += body
        if not bodies and last[id(known[index])] == index:
            works.append(known[index])
    return works


def cast_work(value: str, elements: int, source_bytes: int, target_bytes: int) -> OpWork:
    """A precision cast that the toolkit puts behind a value."""
    made = f"{value}/cast"
    reads, writes = {value: elements * source_bytes}, {made: elements * target_bytes}
    return OpWork("Cast", made, reads, writes, 0, elements, added=True)


def transdata_work(value: str, size: int) -> OpWork:
    """A change between ND and fractal layout behind a value that 310P's cube operators make or read."""
    made = f"{value}/transdata"
    return OpWork("TransData", made, {value: size}, {made: size}, added=True)


def _bytes(scope: Scope, name: str, sizes: Sizes, narrow: bool) -> int:
    fact = scope.fact(name)
    size = sizes.bytes_of(fact) or 0
    return size // 2 if narrow and fact.dtype == _FLOAT32 else size


def _dtype(scope: Scope, node: Node, output: str, narrow: bool) -> str:
    """The element type of the computation: that of the first input, float32 where sums run inside."""
    dtype = scope.fact(node.inputs[0] if node.inputs else output).dtype
    if node.op in _WIDE or node.op.startswith(_WIDE_PREFIX):
        return "float32"
    name = _NAMES.get(dtype or scope.fact(output).dtype, "float32")
    return "float16" if narrow and name in ("float32", "bfloat16") else name


def _shape(scope: Scope, name: str, sizes: Sizes) -> tuple[int, ...] | None:
    return sizes.shape(scope, name)


def _count(shape: Sequence[int]) -> int:
    return min(math.prod(shape), BEYOND_COUNTING)


def _product(scope: Scope, node: Node, sizes: Sizes, narrow: bool) -> Product | None:
    """What a MatMul or Gemm multiplies."""
    a, b = _shape(scope, node.input(0), sizes), _shape(scope, node.input(1), sizes)
    if not a or not b:
        return None
    size = max(element_bits(scope.fact(node.input(0)).dtype) // 8, 1)
    size = min(size, 2) if narrow else size
    if node.op == "Gemm":
        if len(a) != 2 or len(b) != 2:
            return None
        m, k = reversed(a) if node.attributes.get("transA") else a
        n = b[0] if node.attributes.get("transB") else b[1]
        return Product(1, m, n, k, node.input(0), node.input(1), size)
    rows, k = (1, a[0]) if len(a) == 1 else (a[-2], a[-1])
    columns = 1 if len(b) == 1 else b[-1]
    batch = max(_count(a[:-2]), _count(b[:-2]))
    if _count(b[:-2]) == 1:
        return Product(1, batch * rows, columns, k, node.input(0), node.input(1), size)
    return Product(batch, rows, columns, k, node.input(0), node.input(1), size)


def _conv_flops(scope: Scope, node: Node, sizes: Sizes) -> int:
    """Two for every weight that an output element meets."""
    if node.op not in ("Conv", "ConvTranspose"):
        return 0
    weight = _shape(scope, node.input(1), sizes)
    meeting = _shape(scope, node.outputs[0] if node.op == "Conv" else node.input(0), sizes)
    if not weight or not meeting:
        return 0
    # Conv: [out, in / group, …] for every output element; ConvTranspose: [in, out / group, …] for every input element.
    return 2 * _count(meeting) * _count(weight[1:])


def _vector_elements(scope: Scope, node: Node, sizes: Sizes) -> int:
    # Gemm's bias goes through the cube's own bias buffer.
    if node.op in MOVES or node.op in ("MatMul", "Gemm", "Conv", "ConvTranspose"):
        return 0
    passed = node.input(0) if node.op.startswith(_WIDE_PREFIX) else node.outputs[0]
    return VECTOR_PASSES.get(node.op, 1) * _count(_shape(scope, passed, sizes) or (0,))
