"""Running a model in onnxruntime on the CPU, as written or optimized, with its external tensors left on disk."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from atcfuse.diagnostics import AtcfuseError
from atcfuse.graph.feeds import BFLOAT16, Interface, ModelProto
from atcfuse.graph.feeds_bytes import model_bytes, raw_array
from atcfuse.graph.inline import inlined_copy
from atcfuse.verify.values import Value

THREADS = 2
"""A fixed number: how a reduction is divided among threads changes its last bits."""
MAX_MESSAGE = 240
TELLS_OVERLOADS = (1, 27)
"""The onnxruntime that tells functions of one name apart by their overload; older ones take any of them."""


class RuntimeFailure(Exception):
    """onnxruntime refused to load or run a model; the text is its message, shortened and without paths."""


class Session:
    """One loaded model. `close` frees its memory."""

    def __init__(self, model: ModelProto, base_dir: Path, optimized: bool = False) -> None:
        """Load a model in dialect `portable` whose external tensors lie in base_dir. Raises RuntimeFailure."""
        import onnxruntime as ort

        model = _runnable(model, ort.__version__)
        options = ort.SessionOptions()
        levels = ort.GraphOptimizationLevel
        options.graph_optimization_level = levels.ORT_ENABLE_ALL if optimized else levels.ORT_DISABLE_ALL
        options.log_severity_level = 4  # its errors reach us as exceptions, and some are expected
        options.intra_op_num_threads, options.inter_op_num_threads = THREADS, 1
        options.enable_cpu_mem_arena = options.enable_mem_pattern = False  # inputs differ in size from run to run
        # Loaded from bytes, so that nothing is copied beside the weights; this entry says where those are.
        folder = str(base_dir.resolve())
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", folder)
        self._base_dir = folder
        try:
            content, left_out = model_bytes(model)
            # onnxruntime reads these where they are, so they live as long as the session.
            self._kept = [
                ort.OrtValue.ortvalue_from_numpy_with_onnx_type(raw_array(t), t.data_type) for t in left_out.values()
            ]
            if left_out:
                options.add_external_initializers(list(left_out), self._kept)
            self._session = ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        except Exception as e:  # onnxruntime's exceptions share no base class
            raise RuntimeFailure(shorten(str(e), folder)) from e
        self.outputs = [o.name for o in self._session.get_outputs()]
        self._plain = not any(_is_bfloat16(v.type) for v in self._session.get_outputs())

    def run(self, values: Mapping[str, Value], interface: Interface) -> dict[str, Value]:
        """Run once; returns output name → array, list of arrays or mapping. Raises RuntimeFailure."""
        try:
            feed = {name: _fed(name, value, interface) for name, value in values.items()}
            if self._plain:
                return dict(zip(self.outputs, self._session.run(None, feed), strict=True))
            wrapped = {name: _as_ort_value(value) for name, value in feed.items()}
            results = self._session.run_with_ort_values(None, wrapped)
            return {name: _from_ort_value(r) for name, r in zip(self.outputs, results, strict=True)}
        except Exception as e:  # as above; a failing run is an answer here, not a defect
            raise RuntimeFailure(shorten(str(e), self._base_dir)) from e

    def close(self) -> None:
        """Free the session and the tensors that were lent to it."""
        del self._session
        self._kept.clear()


def _runnable(model: ModelProto, version: str) -> ModelProto:
    """The model as this onnxruntime takes it: fused nodes as what their functions say, where it mixes those up."""
    if tuple(map(int, version.split(".")[:2])) >= TELLS_OVERLOADS or not model.functions:
        return model
    try:
        return inlined_copy(model)
    except AtcfuseError as e:
        raise RuntimeFailure(shorten(str(e), "")) from e


def shorten(message: str, folder: str) -> str:
    """An onnxruntime message without its boilerplate, source locations and the folder of the model."""
    text = re.sub(r"\[ONNXRuntimeError\] : \d+ : (\w+) : ", "", message)
    text = re.sub(r"/\S*onnxruntime/\S*:\d+\s+", "", text).replace(folder, ".")
    text = " ".join(text.split())
    return text if len(text) <= MAX_MESSAGE else text[: MAX_MESSAGE - 1] + "…"


def _is_bfloat16(type_text: str) -> bool:
    return type_text == "tensor(bfloat16)"


def _fed(name: str, value: Value, interface: Interface) -> Value:
    spec = interface.input(name)
    if spec is None or spec.dtype != BFLOAT16:
        return value
    import onnxruntime as ort

    return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(np.ascontiguousarray(value), BFLOAT16)


def _as_ort_value(value: Value) -> Any:
    import onnxruntime as ort

    return ort.OrtValue.ortvalue_from_numpy(value) if isinstance(value, np.ndarray) else value


def _from_ort_value(value: Any) -> Value:
    if not _is_bfloat16(value.data_type()):
        return value.numpy()
    shape = tuple(value.shape())
    count = int(np.prod(shape, dtype=np.int64))
    bits = (
        np.array((ctypes.c_uint16 * count).from_address(value.data_ptr()), np.uint32)
        if count
        else np.zeros(0, np.uint32)
    )
    return (bits << 16).view(np.float32).reshape(shape)
