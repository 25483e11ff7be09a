"""What is written beside a model: a project for exactly its fused nodes, and tests of every kernel that hold."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from onnx import TensorProto, helper

from atcfuse.artifacts import NodeKernel, distinct, kernel_files, model_project, node_kernels
from atcfuse.codegen import GeneratedKernel
from atcfuse.compiler import optimize_proto, toolbox
from atcfuse.device import load_device
from atcfuse.diagnostics import AtcfuseError, UsageError
from atcfuse.estimate import Kernels
from atcfuse.graph.feeds import ModelProto, read_interface, read_model
from atcfuse.graph.index import Model
from atcfuse.graph.infer import infer
from atcfuse.graph.store import load
from atcfuse.kernel import KernelSpec, load_kernels
from atcfuse.options import Options
from atcfuse.planner import KernelWork
from atcfuse.precision import DEFAULT_MODE
from atcfuse.reference import bfloat16_bits, bfloat16_values
from atcfuse.vectors import decode, encode, signature_model
from atcfuse.verify.kernels import run_kernels
from atcfuse.verify.session import Session

ROOT = Path(__file__).parents[2]
SAMPLES = ROOT / "sample_models"
NAMES = sorted(yaml.safe_load((SAMPLES / "models.yaml").read_text(encoding="utf-8")))
SOC = "Ascend910B1"
KEEP = "must_keep_origin_dtype"
FLAGS = ["-std=c++17", "-Wall", "-Wextra", "-Werror", f"-I{ROOT}/tests/toolkit_headers", f"-I{ROOT}/kernels/twin"]
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")


@cache
def specs() -> Mapping[str, KernelSpec]:
    return load_kernels(ROOT / "kernels")


@cache
def fused_bytes(name: str, soc: str, mode: str) -> bytes:
    tools = toolbox(Options(dialect="portable", soc=soc, precision_mode=mode))
    model = load(SAMPLES / name)
    optimize_proto(model, tools, SAMPLES / name, name)
    return model.SerializeToString()


def fused(name: str, soc: str = SOC, mode: str = DEFAULT_MODE) -> ModelProto:
    """A sample model, optimized."""
    return read_model(fused_bytes(name, soc, mode))


def kernels_of(name: str, soc: str = SOC, mode: str = DEFAULT_MODE) -> tuple[list[NodeKernel], int]:
    """The kernels of its fused nodes, and its opset."""
    model = Model(fused(name, soc, mode))
    infer(model)
    return node_kernels(model, specs(), soc, mode), model.opset


@pytest.mark.parametrize("mode", [DEFAULT_MODE, KEEP])
@pytest.mark.parametrize("name", NAMES)
def test_every_fused_node_of_every_sample_has_a_kernel(name: str, mode: str) -> None:
    nodes, opset = kernels_of(name, SOC, mode)
    assert nodes
    assert [n.refusal for n in nodes if n.refusal] == []
    files = kernel_files(nodes, opset, SOC, mode)
    functions = {k.function for _, k in distinct(nodes)}
    sources = {Path(f).stem for f in files if f.startswith("op_kernel/") and f.endswith(".cpp")}
    assert sources == functions
    plugins = [f for f in files if f.endswith("_plugin.cpp")]
    assert len(plugins) == len({n.op for n in nodes})
    for _, kernel in distinct(nodes):
        assert f"tests/{kernel.op_type}/model.onnx" in files


def test_the_precision_mode_decides_the_element_type() -> None:
    def elements(mode: str) -> set[int]:
        signatures = [kernel.signature for _, kernel in distinct(kernels_of(BERT, SOC, mode)[0])]
        return {dtype for s in signatures for dtype in s.dtypes.values()} & {1, 10, 16}

    assert elements(DEFAULT_MODE) == {10}
    assert elements(KEEP) == {1}


BERT = "bert_ts17_fp32_dynamic.onnx"
WHISPER = "whisper_dynamo17_fp16_dynamic.onnx"


def test_a_model_gives_the_same_files_in_every_dialect_and_twice() -> None:
    from atcfuse.graph.dialect import to_dialect

    model = fused(WHISPER)
    first = model_project(model, None, specs(), SOC)
    to_dialect(model, "atc")
    assert model_project(model, None, specs(), SOC) == first


def test_a_model_without_fused_nodes_needs_no_project() -> None:
    project = model_project(load(SAMPLES / BERT), SAMPLES / BERT, specs(), SOC)
    assert (project.files, project.fused) == ({}, 0)


def test_a_chip_without_kernels_has_no_project() -> None:
    model = Model(fused(BERT))
    infer(model)
    nodes = node_kernels(model, specs(), "Ascend910A")
    assert {n.kernel for n in nodes} == {None}
    assert all("no generated kernels for Ascend910A" in str(n.refusal) for n in nodes)
    assert kernel_files(nodes, 17, "Ascend910A") == {}


def test_exact_floats_reach_the_plugin_but_no_kernel() -> None:
    nodes, _ = kernels_of(BERT)
    norm = next(n for n in nodes if n.op == "FusedLayerNormQKV" and n.kernel is not None)
    assert norm.attributes["epsilon_hex"] == float(np.float32(1e-12)).hex()
    assert norm.kernel is not None
    assert "epsilon_hex" not in norm.kernel.signature.attributes


def test_nodes_that_differ_in_element_types_only_are_refused() -> None:
    half, whole = (kernels_of(BERT, SOC, mode)[0] for mode in (DEFAULT_MODE, KEEP))
    with pytest.raises(UsageError, match="ATF735"):
        kernel_files([*half, *whole], 17, SOC, KEEP)


@pytest.mark.parametrize("mode", [DEFAULT_MODE, KEEP])
@pytest.mark.parametrize("name", NAMES)
def test_the_expected_results_are_those_of_onnxruntime(name: str, mode: str) -> None:
    """The vectors come from numpy in float64, onnxruntime runs the operator's meaning."""
    nodes, opset = kernels_of(name, SOC, mode)
    files = kernel_files(nodes, opset, SOC, mode)
    for _, kernel in distinct(nodes):
        folder = f"tests/{kernel.op_type}"
        content = files[f"{folder}/model.onnx"]
        assert isinstance(content, bytes)
        model = read_model(content)
        interface = read_interface(model)
        feeds = {i.name: read(files, f"{folder}/inputs/{i.name}.bin", i) for i in interface.inputs}
        found = Session(model, Path()).run(feeds, interface)
        assert set(found) == {o.name for o in kernel.signature.spec.outputs if kernel.signature.has(o.name)}
        for output, got in found.items():
            data = files[f"{folder}/expected/{output}.bin"]
            assert isinstance(data, bytes)
            want = np.frombuffer(data, got.dtype).reshape(got.shape).astype(np.float64)
            assert np.isfinite(want).all()
            assert want.std() > 0.01 or fills(kernel, got.dtype)
            limit = (2e-5 if got.dtype == np.float32 else 2e-3) * np.abs(want).max()
            assert np.abs(got - want).max() <= limit


def fills(kernel: GeneratedKernel, dtype: Any) -> bool:
    """Whether an expression multiplies with what its type cannot hold, so that only 0 times it is finite."""
    text = str(kernel.signature.attributes.get("expression", ""))
    numbers = [float.fromhex(n) for n in re.findall(r"-?0x[0-9a-f.]+p[+-]\d+", text)]
    return any(abs(n) > float(np.finfo(dtype).max) for n in numbers)


def read(files: Mapping[str, str | bytes], name: str, spec: Any) -> Any:
    """An input of a one-op model, whose extents are all known."""
    from atcfuse.graph.feeds import numpy_dtype
    from atcfuse.verify.sizes import concrete_shape

    data = files[name]
    assert isinstance(data, bytes)
    shape = concrete_shape(spec, {})
    assert shape is not None
    return np.frombuffer(data, numpy_dtype(spec.dtype)).reshape(shape)


def test_vectors_are_exact_in_every_element_type() -> None:
    values = np.arange(-127, 128) / 64
    for dtype in (1, 10, 16):
        assert np.array_equal(decode(encode(values, dtype), dtype), values)


def test_bfloat16_rounds_to_the_nearest_even() -> None:
    values = np.array([1.0, 1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20, -np.inf, np.nan, 3.4e38])
    got = bfloat16_values(bfloat16_bits(values))
    assert np.array_equal(got, [1.0, 1.0, 1 + 2**-6, 1 + 2**-7, -np.inf, np.nan, np.inf], equal_nan=True)


def test_a_model_of_one_signature_takes_any_shape() -> None:
    nodes, opset = kernels_of(BERT)
    node, kernel = next((n, k) for n, k in distinct(nodes) if n.op == "FusedAttention")
    model = signature_model(kernel.signature, node.attributes, opset)
    interface = read_interface(model)
    heads, width = kernel.signature.integer("num_heads"), kernel.signature.integer("head_dim")
    feeds = {name: np.ones((1, s, heads * width), np.float16) for name, s in (("q", 3), ("k", 6), ("v", 6))}
    feeds["bias"] = np.zeros((1, 1, 1, 6), np.float16)
    session = Session(model, Path())
    assert session.run(feeds, interface)["out"].shape == (1, 3, heads * width)


@needs_compiler
@pytest.mark.parametrize(
    "name",
    [
        "bart_ts15_fp32_dynamic.onnx",
        pytest.param(WHISPER, marks=pytest.mark.slow),
        pytest.param("t5_ts14_fp32_dynamic.onnx", marks=pytest.mark.slow),
    ],
)
def test_projects_of_self_and_cross_attention_type_check(name: str, tmp_path: Path) -> None:
    nodes, opset = kernels_of(name)
    files = kernel_files(nodes, opset, SOC)
    for path, data in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(data if isinstance(data, bytes) else data.encode())
    sources = [f for f in files if f.endswith(".cpp") and not f.startswith("op_kernel/")]
    subprocess.run(["g++", *FLAGS, "-fsyntax-only", *sources], cwd=tmp_path, check=True)
    shared = {op for op in {n.op for n in nodes} if sum(n.op == op for n, _ in distinct(nodes)) > 1}
    assert "FusedLayerNormQKV" in shared
    text = "".join(str(files[f]) for f in files if f.endswith("_plugin.cpp"))
    assert text.count('REGISTER_CUSTOM_OP("PartitionedCall")') == len(shared)


FAMILIES = [
    (BERT, "/bert/encoder/layer.0/attention/self/FusedAttention", SOC, DEFAULT_MODE),
    pytest.param("gpt2_ts14_fp32_dynamic.onnx", None, SOC, KEEP, marks=pytest.mark.slow),
    (WHISPER, "FusedAttention_node_softmax_2", SOC, DEFAULT_MODE),
    ("t5_ts14_fp32_dynamic.onnx", "/t5/encoder/final_layer_norm/FusedLayerNormQKV", SOC, DEFAULT_MODE),
    ("llama_dynamo18_fp32_dynamic.onnx", "FusedAttention_node_Softmax_220", SOC, DEFAULT_MODE),
    ("vit_ts14_fp16_dynamic.onnx", None, "Ascend310P3", DEFAULT_MODE),
]


@needs_compiler
@pytest.mark.parametrize(("name", "node", "soc", "mode"), FAMILIES)
def test_kernels_agree_with_onnxruntime(name: str, node: str | None, soc: str, mode: str, programs: Path) -> None:
    model = fused(name, soc, mode)
    found = run_kernels(model, SAMPLES / name, specs(), soc=soc, precision_mode=mode, node=node, cache=programs)
    assert found.ok, [str(d) for d in found.diagnostics]
    assert found.runs
    for run in found.runs:
        assert run.counted == run.predicted
        assert run.worst is not None
        assert run.worst.max_rel < 1e-2


@needs_compiler
@pytest.mark.parametrize(
    ("name", "soc"),
    [
        pytest.param(name, soc, marks=() if (name, soc) == (BERT, SOC) else pytest.mark.slow)
        for name in NAMES
        for soc in (SOC, "Ascend310P3")
    ],
)
def test_what_reports_predict_of_every_fused_node_is_what_the_twin_measures(
    name: str, soc: str, programs: Path
) -> None:
    """Bytes at global memory and the peak of every on-chip memory, planned as `optimize` plans them."""
    model = fused(name, soc, DEFAULT_MODE)
    device = load_device(soc)
    if not kernels_of(name, soc)[0]:
        return
    found = run_kernels(model, SAMPLES / name, specs(), soc=soc, cache=programs)
    planner = Kernels(device, Options())
    assert found.runs
    for run in found.runs:
        signature, counted = run.kernel.signature, run.counted
        assert counted is not None, run.failure
        work = planner.work(signature.spec, signature.attributes, signature.dtypes, run.shapes)
        assert isinstance(work, KernelWork)
        assert work.tensor_bytes == counted["tensor_bytes_read"] + counted["tensor_bytes_written"]
        assert work.workspace_read == counted["workspace_bytes_read"]
        assert work.workspace_written == counted["workspace_bytes_written"]
        assert work.workspace_footprint == counted["workspace_footprint"]
        assert dict(work.peak) == {memory: counted[memory] for memory in work.peak}


@needs_compiler
def test_a_wrong_kernel_is_told(monkeypatch: pytest.MonkeyPatch, programs: Path) -> None:
    import atcfuse.verify.kernels as module

    right = module.run_kernel

    def wrong(*args: Any, **kwargs: Any) -> Any:
        from dataclasses import replace

        result = right(*args, **kwargs)
        counters = {**result.counters, "tensor_bytes_read": result.counters["tensor_bytes_read"] + 2}
        return replace(result, outputs={k: v * v.dtype.type(1.1) for k, v in result.outputs.items()}, counters=counters)

    monkeypatch.setattr(module, "run_kernel", wrong)
    name, node, soc, mode = FAMILIES[0]
    model = fused(name, soc, mode)
    found = run_kernels(model, SAMPLES / name, specs(), soc=soc, precision_mode=mode, node=node, cache=programs)
    assert not found.ok
    assert {d.code for d in found.diagnostics} == {"ATF741", "ATF742"}
    assert "tensor_bytes_read: predicted" in str(found.diagnostics[1])


@needs_compiler
def test_inputs_that_do_not_run_are_told() -> None:
    ids = np.zeros((1, 7), np.int64)
    inputs = {"input_ids": ids, "attention_mask": ids[:, :5], "token_type_ids": ids}
    with pytest.raises(AtcfuseError, match="ATF740"):
        run_kernels(fused(BERT), SAMPLES / BERT, specs(), soc=SOC, inputs=inputs)


@needs_compiler
def test_a_node_in_a_body_is_named_and_left_out() -> None:
    nodes, opset = kernels_of(BERT)
    node, kernel = next((n, k) for n, k in distinct(nodes) if n.op == "FusedAttention")
    model = signature_model(kernel.signature, node.attributes, opset)
    branch = helper.make_graph(list(model.graph.node), "branch", [], list(model.graph.output))
    choice = helper.make_node("If", ["wanted"], ["out"], "choice", then_branch=branch, else_branch=branch)
    del model.graph.node[:]
    model.graph.node.append(choice)
    model.graph.input.append(helper.make_tensor_value_info("wanted", TensorProto.BOOL, []))
    found = run_kernels(model, Path("m.onnx"), specs(), soc=SOC)
    assert found.ok
    assert found.runs == ()
    assert [d.code for d in found.diagnostics] == ["ATF739", "ATF739"]


@pytest.mark.parametrize(
    ("op", "folder", "names"),
    [
        ("FusedAttention", "attention", ("kernel.cpp", "tiling.h", "host.h")),
        ("FusedLayerNormQKV", "norm", ("kernel.cpp", "tiling.h", "host.h", "op_host.cpp", "plugin.cpp")),
    ],
)
def test_generated_sources(op: str, folder: str, names: tuple[str, ...], golden: Callable[[str, str], None]) -> None:
    nodes, opset = kernels_of(BERT)
    kernel = next(k for n, k in distinct(nodes) if n.op == op)
    files = kernel_files([n for n in nodes if n.kernel is kernel], opset, SOC)
    sources = {
        "kernel.cpp": f"op_kernel/{kernel.function}.cpp",
        "tiling.h": f"op_kernel/{kernel.function}_tiling.h",
        "host.h": f"op_kernel/{kernel.function}_host.h",
        "op_host.cpp": f"op_host/{kernel.function}.cpp",
        "plugin.cpp": f"framework/onnx_plugin/{kernel.function}_plugin.cpp",
    }
    hidden = kernel.op_type[-10:]  # a hash over all the rest, which would hide what changed
    for path in names:
        text = str(files[sources[path]]).replace(kernel.op_type, kernel.op_type.removesuffix(hidden))
        golden(f"kernels/{folder}/{path}", text.replace(f"_{hidden.lower()}", ""))


def test_a_dispatching_plugin(golden: Callable[[str, str], None]) -> None:
    nodes, opset = kernels_of(WHISPER)
    files = kernel_files(nodes, opset, SOC)
    text = str(files["framework/onnx_plugin/atcfuse_attention_plugin.cpp"])
    for number, op_type in enumerate(sorted(k.op_type for n, k in distinct(nodes) if n.op == "FusedAttention")):
        text = text.replace(op_type, f"{op_type[:-10]}{number}")
    golden("kernels/dispatch_plugin.cpp", text)
