"""What the family scripts share: weights, export, clean-up and the checks every sample model has to pass."""

from __future__ import annotations

import math
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from masks import traceable_masks

FOLDER = Path(__file__).resolve().parent.parent
VOCAB = 96
NUMPY_TYPES = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(int64)": np.int64,
    "tensor(bool)": np.bool_,
}


@dataclass(frozen=True)
class Export:
    """A module with the example inputs and names it is exported with."""

    module: nn.Module
    inputs: Mapping[str, torch.Tensor]
    outputs: Sequence[str]
    axes: Mapping[str, Mapping[int, str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Sample:
    """One sample model: how it is made and what is known about it.

    `sizes` lists sets of values for the dynamic dimensions with which the model runs (one empty set for a static
    model), `ranges` the inclusive range of each integer input, `attention` and `norms` the number of
    softmax attentions and of layer or RMS normalizations.
    """

    family: str
    exporter: str  # "ts" or "dynamo"
    opset: int
    dtype: str  # "fp32" or "fp16"
    build: Callable[[torch.dtype], Export]
    attention: int
    norms: int
    what: str
    interesting: str
    sizes: Sequence[Mapping[str, int]] = ({},)
    ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def dynamic(self) -> bool:
        return any(self.sizes)

    @property
    def name(self) -> str:
        shape = "dynamic" if self.dynamic else "static"
        return f"{self.family}_{self.exporter}{self.opset}_{self.dtype}_{shape}"

    @property
    def path(self) -> Path:
        return FOLDER / f"{self.name}.onnx"


def randomize(module: nn.Module, gain: float = 1.5, overrides: Mapping[str, float] | None = None) -> None:
    """Give every parameter a value that a wrong fusion would show.

    Matrices get a standard deviation of gain / sqrt(fan-in), which keeps attention logits near 2: neither uniform nor
    one-hot, so that a scale off by a few percent changes the output. Norm scales and biases are not 1 and 0.
    `overrides` maps a part of a parameter's name to another gain. Tied parameters are drawn once.
    """
    for name, parameter in module.named_parameters():
        own = next((value for part, value in (overrides or {}).items() if part in name), gain)
        with torch.no_grad():
            if parameter.dim() >= 2:
                parameter.normal_(0.0, own / math.sqrt(fan_in(module, name, parameter)))
            elif name.endswith("bias"):
                parameter.normal_(0.0, 0.2)
            else:
                parameter.normal_(1.0, 0.2)


def fan_in(module: nn.Module, name: str, parameter: torch.Tensor) -> int:
    owner = module.get_submodule(name.rpartition(".")[0])
    if isinstance(owner, nn.Embedding):
        return 1
    return len(parameter) if isinstance(owner, Conv1D) else parameter[0].numel()


def tokens(*shape: int) -> torch.Tensor:
    return torch.randint(0, VOCAB, shape)


def export(sample: Sample, seed: int) -> tuple[nn.Module, onnx.ModelProto]:
    """Build, export and clean one sample; writes its file and returns the module and the model."""
    torch.manual_seed(seed)
    made = sample.build({"fp32": torch.float32, "fp16": torch.float16}[sample.dtype])
    module = made.module.eval()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        exporter = {"ts": export_torchscript, "dynamo": export_dynamo}[sample.exporter]
        exporter(module, made, sample)
    model = onnx.load(sample.path)
    strip_paths(model)
    onnx.save(model, sample.path)
    return module, model


def export_torchscript(module: nn.Module, made: Export, sample: Sample) -> None:
    with traceable_masks():
        torch.onnx.export(
            module,
            tuple(made.inputs.values()),
            sample.path,
            input_names=list(made.inputs),
            output_names=list(made.outputs),
            dynamic_axes={name: dict(axes) for name, axes in made.axes.items()},
            opset_version=sample.opset,
            dynamo=False,
        )


def export_dynamo(module: nn.Module, made: Export, sample: Sample) -> None:
    shapes = tuple(dict(made.axes.get(name, {})) for name in made.inputs)
    torch.onnx.export(
        module,
        tuple(made.inputs.values()),
        sample.path,
        input_names=list(made.inputs),
        output_names=list(made.outputs),
        dynamic_shapes=shapes if sample.dynamic else None,
        opset_version=sample.opset,
        external_data=False,
        dynamo=True,
        verbose=False,
    )


def strip_paths(model: onnx.ModelProto) -> None:
    """Remove what names files of the machine that exported: stack traces of the dynamo exporter."""
    holders = [model, model.graph, *model.graph.node, *model.graph.value_info, *model.graph.initializer]
    for holder in [*holders, *model.graph.input, *model.graph.output]:
        kept = [entry for entry in holder.metadata_props if not names_a_file(entry.value)]
        if len(kept) != len(holder.metadata_props):
            del holder.metadata_props[:]
            holder.metadata_props.extend(kept)
        if hasattr(holder, "doc_string") and names_a_file(holder.doc_string):
            holder.ClearField("doc_string")


def names_a_file(text: str) -> bool:
    return 'File "' in text or ".py:" in text or "site-packages" in text


# --- checks -----------------------------------------------------------------------------------------------------------


def check(sample: Sample, module: nn.Module, model: onnx.ModelProto, seed: int) -> str:
    """Hold the model against its description and, at all its sizes, against the module; returns a summary.

    Raises AssertionError where the model is not what is said of it, disagrees with the module, is not finite or would
    not show a wrong softmax scale.
    """
    onnx.checker.check_model(model, full_check=True)
    assert [entry.version for entry in model.opset_import if entry.domain == ""] == [sample.opset]
    blob = model.SerializeToString()
    for part in ("site-packages", sys.prefix, tempfile.gettempdir(), str(FOLDER), str(Path.home())):
        assert part.encode() not in blob, f"{sample.name} contains a path: {part}"
    assert len(blob) < 600_000, f"{sample.name} has {len(blob)} bytes"
    found = count(model)
    expected = (sample.attention, sample.norms)
    assert found == expected, f"{sample.name}: (attentions, norms) are {found}, declared {expected}"

    plain, wrong = session(blob), session(with_wrong_scale(model, 0.9).SerializeToString())
    tolerance = {"fp32": 1e-4, "fp16": 2e-2}[sample.dtype]
    changes, errors = [], []
    for sizes in sample.sizes:
        feeds = make_inputs(plain, sizes, sample.ranges, np.random.default_rng(seed))
        reference, changed = plain.run(None, feeds), wrong.run(None, feeds)
        assert all(np.isfinite(value).all() for value in reference), f"{sample.name} is not finite at {dict(sizes)}"
        errors.append(max(relative_change(*pair) for pair in zip(run(module, feeds), reference, strict=True)))
        changes.append(max(relative_change(*pair) for pair in zip(reference, changed, strict=True)))
    assert max(errors) < tolerance, f"{sample.name} differs from the module by {errors}"
    assert min(changes) > 0.02, f"{sample.name}: a 10 % wrong scale changes the output only by {changes}"
    facts = f"{len(blob):7d} bytes, {len(model.graph.node):4d} nodes, {max(errors):.0e} from torch"
    return f"{facts}, a 10 % scale error shows as {min(changes):.1%}"


def run(module: nn.Module, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    with torch.no_grad():
        outputs = module(*(torch.from_numpy(value) for value in feeds.values()))
    return [value.numpy() for value in (outputs if isinstance(outputs, tuple) else (outputs,))]


def session(blob: bytes) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    return ort.InferenceSession(blob, options, providers=["CPUExecutionProvider"])


def make_inputs(
    runner: ort.InferenceSession,
    sizes: Mapping[str, int],
    ranges: Mapping[str, tuple[int, int]],
    random: np.random.Generator,
) -> dict[str, np.ndarray]:
    """Inputs in range. Masks hide the end of the first sequence, so that no query is without a key, causal or not."""
    feeds: dict[str, np.ndarray] = {}
    for argument in runner.get_inputs():
        shape = [sizes[dim] if isinstance(dim, str) else dim for dim in argument.shape]
        dtype = NUMPY_TYPES[argument.type]
        if dtype is np.int64:
            low, high = ranges[argument.name]
            value = random.integers(low, high + 1, shape)
            if argument.name.endswith("attention_mask"):
                value[...] = 1
                value[0, shape[1] - shape[1] // 3 :] = 0
        elif dtype is np.bool_:
            value = np.zeros(shape, dtype)
            value[0, shape[1] - shape[1] // 3 :] = True
        else:
            value = random.standard_normal(shape)
        feeds[argument.name] = np.ascontiguousarray(value, dtype)
    return feeds


def relative_change(reference: np.ndarray, changed: np.ndarray) -> float:
    reference, changed = reference.astype(np.float64), changed.astype(np.float64)
    return float(np.abs(reference - changed).max() / np.abs(reference).max())


def count(model: onnx.ModelProto) -> tuple[int, int]:
    """Softmaxes, and LayerNormalization nodes plus spelled-out norms (the root of a mean with epsilon added)."""
    producer = {output: node for node in model.graph.node for output in node.output}

    def makers(node: onnx.NodeProto) -> list[onnx.NodeProto]:
        return [producer[value] for value in node.input if value in producer]

    def spelled_out(node: onnx.NodeProto) -> bool:
        sums = [maker for maker in makers(node) if node.op_type == "Sqrt" and maker.op_type == "Add"]
        return any(maker.op_type == "ReduceMean" for total in sums for maker in makers(total))

    ops = [node.op_type for node in model.graph.node]
    norms = ops.count("LayerNormalization") + sum(spelled_out(node) for node in model.graph.node)
    return ops.count("Softmax"), norms


def with_wrong_scale(model: onnx.ModelProto, factor: float) -> onnx.ModelProto:
    """The model with every softmax input multiplied by `factor`: what a fusion with a wrong scale would compute."""
    inferred = onnx.shape_inference.infer_shapes(model)
    types = {value.name: value.type.tensor_type.elem_type for value in inferred.graph.value_info}
    wrong = onnx.ModelProto()
    wrong.CopyFrom(model)
    del wrong.graph.node[:]
    for node in model.graph.node:
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        if node.op_type == "Softmax":
            logits, scale, scaled = node.input[0], f"{node.output[0]}_scale", f"{node.output[0]}_scaled"
            value = onnx.helper.make_tensor(scale, types[logits], [], [factor])
            wrong.graph.node.append(onnx.helper.make_node("Constant", [], [scale], value=value))
            wrong.graph.node.append(onnx.helper.make_node("Mul", [logits, scale], [scaled]))
            copy.input[0] = scaled
        wrong.graph.node.append(copy)
    return wrong
