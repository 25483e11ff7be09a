"""Ascend C sources for one signature of a fused operator: the templates beside its `kernel.yaml`, filled in.

A kernel folder holds `<kernel>*.j2` templates; each becomes a file whose name starts with the kernel function's name
instead (`attention_tiling.h.j2` gives `<function>_tiling.h`). Every template sees

    op_type, function     the GE op type and the kernel function, as the toolkit's naming rule derives it
    attributes            every attribute of kernel.yaml, defaults filled in
    dtypes                C++ element type by operand name, present operands only
    present               operand name -> whether the node has it
    family                "910B" or "310P"
    c_float               filter: a number as an exact float literal

and what the kernel's own module (`registry.py`) adds. The tiling header must define, in a namespace named as the
file (`<function>_tiling`),

    struct Tiling;        plain data
    const char* inferShapes(const atcfuse::Shape* inputs, atcfuse::Shape* outputs);
    const char* computeTiling(const atcfuse::Platform&, const atcfuse::Shape* inputs, Tiling&, atcfuse::Launch&);

(nullptr, or why these shapes are refused), where `inputs` and `outputs` follow kernel.yaml; absent ones have rank -1.
The kernel function takes every input of kernel.yaml in that order (null where absent), the outputs that the node has,
workspace and tiling.
"""

from atcfuse.codegen.cache import KernelCache, kernel_cache
from atcfuse.codegen.chips import Support, status_of, support_of
from atcfuse.codegen.names import kernel_function
from atcfuse.codegen.node import FusedNode, fused_node
from atcfuse.codegen.render import GeneratedKernel, output_names, predict, refusal_of, render_driver, render_kernel
from atcfuse.codegen.signature import Signature

__all__ = [
    "FusedNode",
    "GeneratedKernel",
    "KernelCache",
    "Signature",
    "Support",
    "fused_node",
    "kernel_cache",
    "kernel_function",
    "output_names",
    "predict",
    "refusal_of",
    "render_driver",
    "render_kernel",
    "status_of",
    "support_of",
]
