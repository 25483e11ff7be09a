"""What the family scripts share: weights, export, clean-up and the checks every sample model has to pass."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import torch
from masks import traceable_masks
from torch import nn

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
                fan_in = 1 if is_embedding(module, name) else parameter[0].numel()
                parameter.normal_(0.0, own / math.sqrt(fan_in))
            elif name.endswith("bias"):
                parameter.normal_(0.0, 0.2)
            else:
                parameter.normal_(1.0, 0.2)


def is_embedding(module: nn.Module, parameter_name: str) -> bool:
    owner = module.get_submodule(parameter_name.rpartition(".")[0])
    return isinstance(owner, nn.Embedding)


def tokens(*shape: int) -> torch.Tensor:
    return torch.randint(0, VOCAB, shape)


def export(sample: Sample, seed: int) -> onnx.ModelProto:
    """Build, export and clean one sample; writes its file and returns the model."""
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
    return model


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


def check(sample: Sample, model: onnx.ModelProto, seed: int) -> str:
    """Raise AssertionError unless the model is valid, runs at all its sizes and shows a wrong scale; returns a summary."""
    onnx.checker.check_model(model, full_check=True)
    blob = model.SerializeToString()
    for part in (b"site-packages", b"/home/", b"/usr/", b"/root/", b"/work/", b"/tmp/", b"/opt/"):
        assert part not in blob, f"{sample.name} contains a path: {part!r}"
    assert len(blob) < 600_000, f"{sample.name} has {len(blob)} bytes"
    found = count(model)
    expected = (sample.attention, sample.norms)
    assert found == expected, f"{sample.name}: (attentions, norms) are {found}, declared {expected}"

    plain, wrong = session(blob), session(with_wrong_scale(model, 0.9).SerializeToString())
    changes = []
    for sizes in sample.sizes:
        feeds = make_inputs(plain, sizes, sample.ranges, np.random.default_rng(seed))
        reference, changed = plain.run(None, feeds), wrong.run(None, feeds)
        for value in reference:
            assert np.isfinite(value).all(), f"{sample.name} has non-finite outputs at {dict(sizes)}"
        changes.append(max(relative_change(*pair) for pair in zip(reference, changed, strict=True)))
    assert min(changes) > 0.02, f"{sample.name}: a 10 % wrong scale changes the output only by {changes}"
    return f"{len(blob):7d} bytes, {len(model.graph.node):4d} nodes, 10 % scale error shows as {min(changes):.1%}"


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
    """Inputs in range; a mask keeps its last position in every row, so that no row is fully masked."""
    feeds: dict[str, np.ndarray] = {}
    for argument in runner.get_inputs():
        shape = [sizes[dim] if isinstance(dim, str) else dim for dim in argument.shape]
        dtype = NUMPY_TYPES[argument.type]
        if dtype is np.int64:
            low, high = ranges[argument.name]
            value = random.integers(low, high + 1, shape)
            if argument.name.endswith("attention_mask"):
                value[...] = 1
                value[0, : shape[1] // 3] = 0
        elif dtype is np.bool_:
            value = np.zeros(shape, dtype)
            value[0, : shape[1] // 3] = True
        else:
            value = random.standard_normal(shape)
        feeds[argument.name] = np.ascontiguousarray(value, dtype)
    return feeds


def relative_change(reference: np.ndarray, changed: np.ndarray) -> float:
    reference, changed = reference.astype(np.float64), changed.astype(np.float64)
    return float(np.abs(reference - changed).max() / np.abs(reference).max())


def count(model: onnx.ModelProto) -> tuple[int, int]:
    """Softmaxes, and LayerNormalization nodes plus spelled-out norms (a Sqrt over a mean, epsilon added or not)."""
    nodes = model.graph.node
    producer = {output: node for node in nodes for output in node.output}

    def ancestors(node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
        yield from (producer[value] for value in node.input if value in producer)

    spelled = 0
    for node in nodes:
        if node.op_type == "Sqrt":
            parents = list(ancestors(node))
            if parents and parents[0].op_type == "Add":
                parents = list(ancestors(parents[0]))
            spelled += any(parent.op_type == "ReduceMean" for parent in parents)
    ops = [node.op_type for node in nodes]
    return ops.count("Softmax"), ops.count("LayerNormalization") + spelled


def with_wrong_scale(model: onnx.ModelProto, factor: float) -> onnx.ModelProto:
    """The model with every softmax input multiplied by `factor`: what a fusion with a wrong scale would compute."""
    wrong = onnx.ModelProto()
    wrong.CopyFrom(model)
    del wrong.graph.node[:]
    for node in model.graph.node:
        if node.op_type == "Softmax":
            logits, scaled = node.input[0], f"{node.output[0]}_wrong"
            half, like = f"{scaled}_float", f"{scaled}_factor"
            wrong.graph.node.extend(
                [
                    onnx.helper.make_node("Cast", [logits], [half], to=onnx.TensorProto.FLOAT),
                    onnx.helper.make_node("Constant", [], [like], value_float=factor),
                    onnx.helper.make_node("Mul", [half, like], [f"{scaled}_product"]),
                ]
            )
            dtype = softmax_type(model, node)
            wrong.graph.node.append(onnx.helper.make_node("Cast", [f"{scaled}_product"], [scaled], to=dtype))
            changed = wrong.graph.node.add()
            changed.CopyFrom(node)
            changed.input[0] = scaled
        else:
            wrong.graph.node.add().CopyFrom(node)
    return wrong


def softmax_type(model: onnx.ModelProto, node: onnx.NodeProto) -> int:
    inferred = onnx.shape_inference.infer_shapes(model)
    types = {value.name: value.type.tensor_type.elem_type for value in inferred.graph.value_info}
    return types[node.input[0]]
