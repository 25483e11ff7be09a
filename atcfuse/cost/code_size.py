"""How much code a kernel may be: calls in its source times bytes a call. Never a measurement: only the device compiler
knows what it makes of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from atcfuse.device import Device

_VECTOR = (
    r"Abs|Adds?|Axpy|BlockReduce\w+|Brcb|Cast|Compares?|CompareScalar|Copy|DataCopy(?:Pad)?|Divs?|Duplicate|Erf|Exp|"
    r"Gather(?:Mask)?|Gelu|Ln|Maxs?|Mins?|Muls?|MulAddDst|Not|Or|And|PairReduce\w+|PipeBarrier|Power|Reciprocal|"
    r"Reduce\w+|Relu|Rsqrt|Select|SetFlag|Sigmoid|Silu|Soft[Mm]ax\w*|Sqrt|Subs?|Swish|Tanh|Transpose|WaitFlag|"
    r"WholeReduce\w+"
)
# Every name begins with a capital, and Matmul with itself: most places are passed over without a look at the rest.
_CALL = re.compile(rf"(?<![\w.>:])(?=[A-Z])(?:AscendC::)?(?:{_VECTOR})\s*(?:<[^;()]*>)?\s*\(")
_MATMUL = re.compile(r"Matmul(?<!\wMatmul)\s*<")


def api_calls(source: str) -> dict[str, int]:
    """Call sites in a kernel's source: "vector" instructions, copies and waits; "cube" kinds of Matmul object."""
    code = re.sub(r"//[^\n]*|/\*.*?\*/", "", source, flags=re.DOTALL)
    return {"cube": len(_MATMUL.findall(code)), "vector": len(_CALL.findall(code))}


def code_bytes(calls: Mapping[str, int], device: Device) -> dict[str, int]:
    """Estimated code of the fullest cores. Cores apart load their own part each, shared ones all of it."""
    cube = calls.get("cube", 0) * device.cube_call_bytes
    vector = calls.get("vector", 0) * device.vector_call_bytes
    return {"cube core": cube, "vector core": vector} if device.split else {"core": cube + vector}
