"""Models from text with named nodes, and runs in onnxruntime that compute what is written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort

Array = np.ndarray[Any, np.dtype[Any]]


FIRST_OF_OPSET_23 = tuple(map(int, ort.__version__.split(".")[:2])) < (1, 24)
"""Whether this onnxruntime, as 1.23, has kernels of opset 23's Attention and RotaryEmbedding that differ from the standard,
and ends the process on an Attention of its own that has no bias.
"""


def parsed(text: str) -> onnx.ModelProto:
    """The model of a text, its nodes named n0, n1, … in order."""
    model = onnx.parser.parse_model(text)
    for number, node in enumerate(model.graph.node):
        node.name = f"n{number}"
    return model


def plain_session(model: onnx.ModelProto) -> ort.InferenceSession:
    """A session without onnxruntime's own optimizations."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def run_plain(model: onnx.ModelProto, feed: Mapping[str, Any]) -> list[Array]:
    """The outputs without onnxruntime's own optimizations; what the model does not read may be in the feed."""
    session = plain_session(model)
    known = {i.name for i in session.get_inputs()}
    return list(session.run(None, {name: value for name, value in feed.items() if name in known}))
