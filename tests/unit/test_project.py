"""The operator project: its host code type-checked and run against stand-ins of the toolkit, its scripts with fakes."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atcfuse.codegen import GeneratedKernel, render_kernel
from atcfuse.diagnostics import UsageError
from atcfuse.kernel import load_kernels
from atcfuse.project import ProjectKernel, c_string, render_project
from atcfuse.twin import run_kernel

ROOT = Path(__file__).parents[2]
FLOAT, FLOAT16 = 1, 10
FLAGS = (
    "-std=c++17",
    "-Wall",
    "-Wextra",
    "-Werror",
    f"-I{ROOT / 'tests/toolkit_headers'}",
    f"-I{ROOT / 'kernels/twin'}",
)
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")


NORM_OPERANDS = ("x", "gamma", "w1", "w2", "b2", "y1", "y2")


def norm(
    names: Sequence[str] = NORM_OPERANDS, dtype: int = FLOAT16, soc: str = "Ascend910B1", **attributes: Any
) -> GeneratedKernel:
    spec = load_kernels(ROOT / "kernels")["layer_norm_qkv"]
    values = {"norm": "layer_norm", "epsilon": 1e-12, "num_projections": 2, "transposed": (0, 1), **attributes}
    return render_kernel(spec, values, dict.fromkeys(names, dtype), soc)


def attention(**attributes: Any) -> GeneratedKernel:
    spec = load_kernels(ROOT / "kernels")["attention"]
    values = {"num_heads": 4, "num_kv_heads": 4, "head_dim": 64, "v_head_dim": 64, "scale": 0.125}
    values |= {"softmax_precision": 1}
    values |= {f"{name}_layout": "BSH" for name in ("q", "k", "v", "out")} | attributes
    return render_kernel(spec, values, dict.fromkeys(("q", "k", "v", "bias", "out"), FLOAT16), "Ascend910B1")


def network(norm: bool) -> GeneratedKernel:
    values: dict[str, Any] = {"activation": "silu", "gating": "separate", "transposed": (0, 1, 0)}
    names = ["x", "w_up", "w_gate", "w_down", "b_down", "residual", "y"]
    if norm:
        values |= {"norm": "rms_norm", "epsilon": 1e-6, "add_normalized": 0}
        names += ["gamma", "normalized"]
    spec = load_kernels(ROOT / "kernels")["layer_norm_ffn" if norm else "ffn"]
    return render_kernel(spec, values, dict.fromkeys(names, FLOAT16), "Ascend910B1")


def project(*kernels: GeneratedKernel) -> dict[str, str]:
    return render_project([ProjectKernel(k, f"Fused{i}") for i, k in enumerate(kernels)], "Ascend910B1")


def write(files: Mapping[str, str], folder: Path) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def compile_and_run(folder: Path, main: str, *arguments: str, text: str = "") -> str:
    (folder / "main.cpp").write_text(main)
    subprocess.run(["g++", *FLAGS, "main.cpp", "-o", "main"], cwd=folder, check=True)
    done = subprocess.run([folder / "main", *arguments], input=text, capture_output=True, text=True, check=True)
    return done.stdout


@needs_compiler
@pytest.mark.slow
def test_host_code_and_plugins_type_check(tmp_path: Path) -> None:
    files = project(norm(), norm(dtype=FLOAT, epsilon=1e-5), attention(), attention(causal="top_left", mask_fill=-1e4))
    files |= project(network(norm=False), network(norm=True))
    write(files, tmp_path)
    sources = [n for n in files if n.endswith(".cpp") and not n.startswith("op_kernel/")]
    assert len(sources) == 12
    subprocess.run(["g++", *FLAGS, "-fsyntax-only", *sources], cwd=tmp_path, check=True)


def test_the_same_kernels_give_the_same_project_in_any_order() -> None:
    first, second = ProjectKernel(norm(), "FusedA"), ProjectKernel(attention(), "FusedB")
    assert render_project([first, second], "Ascend910B1") == render_project([second, first], "Ascend910B1")


def test_the_vendor_name_follows_the_content() -> None:
    def vendor(files: Mapping[str, str]) -> Any:
        presets = json.loads(files["CMakePresets.json"])
        return presets["configurePresets"][0]["cacheVariables"]["vendor_name"]["value"]

    one, other = project(norm()), project(norm(epsilon=1e-5))
    assert vendor(one) != vendor(other)
    assert vendor(one) == vendor(project(norm()))
    assert all(vendor(one) in one[name] for name in ("CMakeLists.txt", "build.sh", "README.md"))


def test_the_project_holds_the_kernel_that_the_twin_runs() -> None:
    kernel = norm()
    files = project(kernel)
    assert {name: files[f"op_kernel/{name}"] for name in kernel.files} == dict(kernel.files)
    assert {name for name in files if name.startswith("op_kernel/")} == {
        "op_kernel/CMakeLists.txt",
        *(f"op_kernel/{name}" for name in kernel.files),
    }


def test_the_readme_names_every_operator_and_the_flag_of_the_precision_mode() -> None:
    kernel = norm(dtype=FLOAT)
    files = render_project([ProjectKernel(kernel, "FusedX")], "Ascend910B3", "must_keep_origin_dtype")
    readme = files["README.md"]
    assert f"compile Ascend C operator: {kernel.op_type} success!" in readme
    assert "--soc_version=Ascend910B3 --precision_mode_v2=origin" in readme
    assert f"| `atcfuse::FusedX` | `{kernel.op_type}` |" in readme
    assert "| float32 | checked in the twin only |" in readme


def test_the_chinese_readme_says_the_same_things() -> None:
    """Every command, operator, table and number of a step of one is in the other; only words differ."""
    files = render_project([ProjectKernel(norm(), "FusedX"), ProjectKernel(attention(), "FusedY")], "Ascend910B3")
    english, chinese = files["README.md"], files["README.zh.md"]

    def commands(text: str) -> list[str]:
        return [line for line in text.splitlines() if line.startswith("       ")]

    def told(text: str) -> set[str]:
        return {span for span in re.findall(r"`([^`\n]+)`", text) if "<" not in span}

    assert commands(english) == commands(chinese)
    assert told(english) == told(chinese)
    assert re.findall(r"^\d\. ", english, re.M) == re.findall(r"^\d\. ", chinese, re.M)
    rows = [[line.count("|") for line in text.splitlines() if line.startswith("|")] for text in (english, chinese)]
    assert rows[0] == rows[1]
    assert not re.search(r"checked in|\btwin\b", chinese)


HOST_MAIN = """
#include "op_host/FUNCTION.cpp"
#include <iostream>
int main()
{
    ops::OpDef op = ops::recordedDefinitions().at(0);
    gert::InferShapeContext shapes;
    gert::TilingContext tiling;
    fe::PlatFormInfos platform;
    tiling.recordedPlatform = &platform;
    for (size_t i = 0; i < op.recordedInputs.size(); ++i) {
        int rank;
        std::cin >> rank;
        shapes.recordedInputs.emplace_back();
        tiling.recordedInputs.emplace_back();
        if (rank < 0) {
            continue;
        }
        shapes.recordedInputs.back() = std::make_shared<gert::Shape>();
        tiling.recordedInputs.back() = std::make_shared<gert::StorageShape>();
        gert::Shape& shape = *shapes.recordedInputs.back();
        shape.SetDimNum(rank);
        for (int axis = 0; axis < rank; ++axis) {
            int64_t dim;
            std::cin >> dim;
            shape.SetDim(axis, dim);
        }
        tiling.recordedInputs.back()->recordedShape = shape;
    }
    shapes.recordedOutputs.resize(op.recordedOutputs.size());
    if (op.recordedInferShape(&shapes) != ge::GRAPH_SUCCESS) {
        std::cout << "shapes refused\\n";
        return 0;
    }
    for (const gert::Shape& shape : shapes.recordedOutputs) {
        for (size_t axis = 0; axis < shape.GetDimNum(); ++axis) {
            std::cout << (axis ? "," : "") << shape.GetDim(axis);
        }
        std::cout << ' ';
    }
    if (op.recordedCore.recordedTiling(&tiling) != ge::GRAPH_SUCCESS) {
        std::cout << "tiling refused\\n";
        return 0;
    }
    std::cout << tiling.recordedBlocks << ' ' << tiling.recordedWorkspaces.at(0) << ' ' << op.recordedCore.recordedSoc;
    for (const ops::OpParamDef& input : op.recordedInputs) {
        std::cout << ' ' << input.recordedName << (input.recordedOption == ops::REQUIRED ? "!" : "?");
    }
}
"""


@needs_compiler
def test_host_code_infers_shapes_and_tiles_as_the_twin_does(tmp_path: Path, programs: Path) -> None:
    kernel = norm()
    write(project(kernel), tmp_path)
    main = HOST_MAIN.replace("FUNCTION", kernel.function)
    absent = "-1\n"
    known = f"3 2 5 40\n1 40\n{absent}2 40 70\n2 33 40\n{absent * 3}1 33\n{absent * 2}"
    answer = compile_and_run(tmp_path, main, text=known).split()
    rng = np.random.default_rng(0)
    shapes = {"x": (2, 5, 40), "gamma": (40,), "w1": (40, 70), "w2": (33, 40), "b2": (33,)}
    inputs = {name: rng.standard_normal(shape).astype(np.float16) for name, shape in shapes.items()}
    launch = run_kernel(kernel, inputs, cache=programs).launch
    required = {"x", "gamma", "w1", "w2", "b2"}
    names = [o.name for o in kernel.signature.spec.inputs]
    assert answer[:2] == ["2,5,70", "2,5,33"]
    assert answer[2:5] == [str(launch.blocks), str((16 << 20) + launch.workspace_bytes), "ascend910b"]
    assert answer[5:] == [name + ("!" if name in required else "?") for name in names]

    def ask(text: str) -> str:
        return subprocess.run([tmp_path / "main"], input=text, capture_output=True, text=True, check=True).stdout

    assert ask(known.replace("3 2 5 40", "3 -1 5 40")).startswith("-1,5,70 -1,5,33 ")
    assert ask(known.replace("3 2 5 40", "1 -2")).startswith("-2 -2 ")
    assert ask(known.replace("3 2 5 40", "3 2 5 41")) == "shapes refused\n"
    assert ask(known.replace("3 2 5 40", "9 1 1 1 1 1 1 1 5 40")) == "shapes refused\n"


PLUGIN_MAIN = """
#include "framework/onnx_plugin/FUNCTION_plugin.cpp"
#include <iostream>
int main(int argc, char** argv)
{
    const domi::OpRegistrationData& plugin = domi::recordedRegistrations().at(0);
    for (const ge::AscendString& origin : plugin.recordedOrigins) {
        std::cout << origin.GetString() << ' ';
    }
    std::cout << plugin.recordedType << '\\n';
    for (int i = 1; i < argc; ++i) {
        ge::Operator source;
        ge::Operator target;
        source.SetAttr("attribute", ge::AscendString(argv[i]));
        if (plugin.recordedParse(source, target) != domi::SUCCESS) {
            std::cout << "refused\\n";
            continue;
        }
        auto& ints = target.recordedInts;
        std::cout << ints["num_projections"].at(0) << ' ' << ints["transposed"].size() << ' '
                  << target.recordedTexts["norm"] << ' ' << std::hexfloat << target.recordedFloats["epsilon"].at(0)
                  << '\\n';
    }
}
"""


def node_json(**changes: Mapping[str, Any] | None) -> str:
    """A node's attributes as ATC's parser writes them."""
    entries: dict[str, Mapping[str, Any] | None] = {
        "norm": {"type": 3, "s": "layer_norm"},
        "epsilon": {"type": 1, "f": "1e-12"},
        "num_projections": {"type": 2, "i": 2},
        "transposed": {"type": 7, "ints": [0, 1]},
        **changes,
    }
    return json.dumps({"attribute": [{"name": n, **fields} for n, fields in entries.items() if fields is not None]})


@needs_compiler
def test_the_plugin_takes_its_own_nodes_and_refuses_others(tmp_path: Path) -> None:
    kernel = norm()
    write(project(kernel), tmp_path)
    nodes = {
        node_json(): "2 2 layer_norm 0x1.197998p-40",
        node_json(epsilon=None): "2 2 layer_norm 0x1.197998p-40",
        node_json(epsilon_hex={"type": 3, "s": float(np.float32(1e-12)).hex()}): "2 2 layer_norm 0x1.197998p-40",
        node_json(num_projections={"type": 2, "i": "2"}): "2 2 layer_norm 0x1.197998p-40",
        node_json(epsilon={"type": 1, "f": "1e-05"}): "refused",
        node_json(epsilon={"type": 1}): "refused",
        node_json(num_projections={"type": 2}): "refused",
        node_json(transposed={"type": 7, "ints": [1, 1]}): "refused",
        node_json(norm={"type": 3, "s": "rms_norm"}): "refused",
        '{"attribute": [': "refused",
        "": "refused",
    }
    first, *answers = compile_and_run(tmp_path, PLUGIN_MAIN.replace("FUNCTION", kernel.function), *nodes).splitlines()
    domains = ["atcfuse::1", *(f"ai.onnx::{opset}" for opset in range(8, 19))]
    assert first.split() == [*(f"{domain}::Fused0" for domain in domains), kernel.op_type]
    assert dict(zip(nodes, answers, strict=True)) == nodes


DISPATCH_MAIN = """
#include "framework/onnx_plugin/atcfuse_layer_norm_qkv_plugin.cpp"
#include <iostream>
int main(int argc, char** argv)
{
    const domi::OpRegistrationData& plugin = domi::recordedRegistrations().at(0);
    std::cout << plugin.recordedType << ' ' << plugin.recordedOrigins.size() << '\\n';
    for (int i = 1; i + 2 < argc; i += 3) {
        ge::Operator source;
        source.SetAttr("op_type", ge::AscendString("ai.onnx::13::FusedLayerNormQKV"));
        source.SetAttr("name", ge::AscendString("n0"));
        source.SetAttr("attribute", ge::AscendString(argv[i]));
        std::vector<ge::AscendString> inputs;
        for (const char* flag = argv[i + 1]; *flag != '\\0'; ++flag) {
            inputs.emplace_back(*flag == '1' ? "value" : "");
        }
        source.SetAttr("input", inputs);
        source.SetAttr("output", std::vector<ge::AscendString>(std::stoul(argv[i + 2]), ge::AscendString("y")));
        ge::Operator target("n0", "PartitionedCall");
        if (plugin.recordedParse(source, target) != domi::SUCCESS) {
            std::cout << "refused\\n";
            continue;
        }
        ge::Graph graph;
        if (plugin.recordedToGraph(target, graph) != domi::SUCCESS) {
            std::cout << "no graph\\n";
            continue;
        }
        const ge::Operator& made = graph.recordedOutputs.at(0).first;
        std::cout << target.recordedTexts["original_type"] << ' ' << target.recordedInputCount << ' '
                  << target.recordedOutputCount << ' ' << made.recordedType << ' ' << made.recordedName << ' '
                  << made.recordedInts.at("num_projections").at(0);
        for (const auto& input : made.recordedInputs) {
            std::cout << ' ' << input.first << '=' << input.second.recordedType
                      << input.second.recordedInts.at("index").at(0);
        }
        std::cout << ' ' << graph.recordedInputs.size() << ' ' << graph.recordedOutputs.at(0).second.size() << '\\n';
    }
}
"""


@needs_compiler
def test_one_plugin_tells_the_nodes_of_several_kernels_apart(tmp_path: Path) -> None:
    plain, close, wider = norm(), norm(epsilon=1.000001e-12), norm(("x", "w1", "w2", "y1", "y2", "normalized"))
    kernels = [ProjectKernel(k, "FusedLayerNormQKV") for k in (plain, close, wider)]
    write(render_project(kernels, "Ascend910B1"), tmp_path)
    hex_of = {k.op_type: float(k.signature.number("epsilon")).hex() for k in (plain, close)}
    exact = [node_json(epsilon_hex={"type": 3, "s": text}) for text in hex_of.values()]
    nodes = [
        (exact[0], "110110001", "2", plain),
        (exact[1], "110110001", "2", close),
        (node_json(), "100110000", "3", wider),
        (node_json(), "10011", "3", wider),
        (node_json(), "100110000", "2", None),
        (node_json(norm={"type": 3, "s": "rms_norm"}), "110110001", "2", None),
        (node_json(), "111110001", "2", None),
        ("[", "110110001", "2", None),
    ]
    arguments = [text for node in nodes for text in node[:3]]
    first, *answers = compile_and_run(tmp_path, DISPATCH_MAIN, *arguments).splitlines()
    assert first == "PartitionedCall 12"
    names = [o.name for o in plain.signature.spec.inputs]
    for (_, present, outputs, kernel), answer in zip(nodes, answers, strict=True):
        if kernel is None:
            assert answer == "refused"
            continue
        given = [f"{names[i]}=Data{i}" for i, flag in enumerate(present) if flag == "1"]
        node = f"ai.onnx::13::FusedLayerNormQKV {len(present)} {outputs} {kernel.op_type} n0 2"
        assert answer == " ".join([node, *given, str(len(given)), outputs])


def test_kernels_that_a_plugin_cannot_tell_apart_are_refused() -> None:
    def refused(*kernels: GeneratedKernel) -> str:
        with pytest.raises(UsageError) as caught:
            render_project([ProjectKernel(k, "FusedA") for k in kernels], "Ascend910B1")
        return str(caught.value)

    text = refused(norm(), norm(dtype=FLOAT))
    assert "ATF735: two kernels of FusedA differ in element types only (float16 and float32)" in text
    assert "--precision-mode force_fp16" in text
    assert "ATF730" in refused(norm(), norm())


READER_MAIN = """
#include "framework/onnx_plugin/atcfuse_attributes.h"
#include <cstdio>
#include <iostream>
#include <iterator>
int main()
{
    const std::string text{std::istreambuf_iterator<char>(std::cin), {}};
    atcfuse::Attributes a;
    if (!a.parse(text.c_str())) {
        std::puts("malformed");
        return 0;
    }
    std::printf("%lld %a %s %zu %zu", static_cast<long long>(a.integer("i", -7)), a.number("f", -7.0f),
                a.text("s", "absent").c_str(), a.integers("is", {1, 2, 3}).size(), a.numbers("fs", {}).size());
}
"""


@needs_compiler
def test_the_attribute_reader_reads_what_the_parser_writes(tmp_path: Path) -> None:
    write(project(norm()), tmp_path)

    def entries(*items: Mapping[str, Any]) -> str:
        return json.dumps({"attribute": items})

    exact = {"name": "f_hex", "s": "0x1.921fb6p+1"}
    rounded = {"name": "f", "type": 1, "f": "3.14159"}
    texts = {
        "{}": "-7 -0x1.cp+2 absent 3 0",
        entries({"name": "i"}, {"name": "f"}, {"name": "s"}, {"name": "is"}): "0 0x0p+0  0 0",
        entries({"name": "i", "i": -(2**63)}, rounded): "-9223372036854775808 0x1.921fap+1 absent 3 0",
        entries({"name": "i", "i": "12"}, exact, rounded): "12 0x1.921fb6p+1 absent 3 0",
        entries({"name": "f", "f": "-inf"}, {"name": "s", "s": 'a "b" \\ é'}): '-7 -inf a "b" \\ é 3 0',
        entries({"name": "is", "ints": ["4", 5]}, {"name": "fs", "floats": [1, 2.5, "3"]}): "-7 -0x1.cp+2 absent 2 3",
        '{"attribute": [{"name": "i", "i": 1}]} x': "malformed",
        '{"attribute": [{"name": "i" "i": 1}]}': "malformed",
        '{"attribute": [{"name": "s", "s": "open}]}': "malformed",
        "[" * 100_000: "malformed",
        "[1, 2]": "malformed",
    }
    compile_and_run(tmp_path, READER_MAIN, text="{}")
    for text, expected in texts.items():
        done = subprocess.run([tmp_path / "main"], input=text, capture_output=True, text=True, check=True)
        assert done.stdout.rstrip("\n") == expected, text


@needs_compiler
def test_hostile_attribute_values_stay_data(tmp_path: Path) -> None:
    hostile = 'BSH"; system("x"); //\n#include </etc/passwd> */ ??/ \\ é'
    signature = norm().signature
    kernel = replace(norm(), signature=replace(signature, attributes={**signature.attributes, "norm": hostile}))
    files = project(kernel)
    for name, text in files.items():
        if not name.startswith("op_kernel/"):
            assert "passwd>" not in text
    write(files, tmp_path)
    node = node_json(norm={"type": 3, "s": hostile})
    answers = compile_and_run(tmp_path, PLUGIN_MAIN.replace("FUNCTION", kernel.function), node, node_json())
    assert answers.split("\n", 1)[1] == f"2 2 {hostile} 0x1.197998p-40\nrefused\n"


def test_string_literals_escape_everything_unusual() -> None:
    assert c_string('a"1\n?é') == r'"a\0421\012\077\303\251"'


@pytest.mark.parametrize(
    ("code", "kernels", "soc", "mode"),
    [
        ("ATF731", ["Fused A"], "Ascend910B1", "force_fp16"),
        ("ATF731", ['A"); evil('], "Ascend910B1", "force_fp16"),
        ("ATF731", [""], "Ascend910B1", "force_fp16"),
        ("ATF732", ["FusedA"], "Ascend910A", "force_fp16"),
        ("ATF732", ["FusedA"], "Ascend310P3", "force_fp16"),
        ("ATF732", ["FusedA"], "Ascend910B1; rm -rf /", "force_fp16"),
        ("ATF733", ["FusedA"], "Ascend910B1", "force_fp61"),
        ("ATF734", [], "Ascend910B1", "force_fp16"),
    ],
)
def test_what_cannot_become_a_project(code: str, kernels: list[str], soc: str, mode: str) -> None:
    made = [ProjectKernel(norm(epsilon=10.0**-i), name) for i, name in enumerate(kernels, 4)]
    with pytest.raises(UsageError) as caught:
        render_project(made, soc, mode)
    assert [d.code for d in caught.value.diagnostics] == [code]


def test_a_kernel_whose_function_is_not_what_the_toolkit_derives_is_refused() -> None:
    wrong = replace(norm(), function="another_name")
    with pytest.raises(UsageError, match="ATF731"):
        project(wrong)


ASC_CONFIG = """
set(ASCEND_AUTOGEN_PATH ${CMAKE_BINARY_DIR}/autogen)
function(note)
    string(REPLACE "${CMAKE_SOURCE_DIR}/" "" line "${ARGN}")
    file(APPEND ${CMAKE_BINARY_DIR}/calls.txt "${line}\\n")
endfunction()
foreach(name package code_gen library package_add kernel_library)
    cmake_language(EVAL CODE "function(npu_op_${name})\\n note(${name} \\${ARGN})\\n endfunction()")
endforeach()
"""


@pytest.mark.skipif(shutil.which("cmake") is None, reason="needs CMake")
def test_the_cmake_project_hands_every_source_to_the_toolkit(tmp_path: Path) -> None:
    kernel = norm()
    write(project(kernel), tmp_path / "project")
    write({"compiler/tikcpp/ascendc_kernel_cmake/ASCConfig.cmake": ASC_CONFIG}, tmp_path / "cann")
    command = ["cmake", "-S", "project", "-B", "build", "-DCMAKE_CXX_COMPILER_WORKS=1"]
    environment = {**os.environ, "ASCEND_HOME_PATH": str(tmp_path / "cann")}
    subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, check=True)
    calls = (tmp_path / "build/calls.txt").read_text()
    assert "ENABLE_SOURCE_PACKAGE;True;ENABLE_BINARY_PACKAGE;True" in calls
    assert f"library;cust_onnx_parsers;ONNX_PLUGIN;./{kernel.function}_plugin.cpp" in calls.replace(
        "framework/onnx_plugin", "."
    )
    assert f"library;cust_optiling;TILING;op_host/{kernel.function}.cpp" in calls
    assert "kernel_library;ascendc_kernels;SRC_BASE;op_kernel;TILING_LIBRARY;cust_optiling" in calls


FAKE_TOOL = '#!/bin/bash\necho "$(basename "$0") $*" >> "$LOG"\n'
FAKE_CMAKE = FAKE_TOOL + 'mkdir -p "$PROJECT/build_out"; touch "$PROJECT/build_out/custom_opp_x.run"\n'
FAKE_MSOPGEN = (
    FAKE_TOOL
    + """
while [ "$1" != -out ]; do shift; done
mkdir -p "$2"/op_host "$2"/op_kernel "$2"/framework/onnx_plugin
touch "$2"/op_host/sample.cpp "$2"/op_host/CMakeLists.txt
echo '{"configurePresets": [{"cacheVariables": {"vendor_name": {"type": "STRING", "value": "customize"}}}]}' \
    > "$2"/CMakePresets.json
echo 'mkdir -p build_out && touch build_out/custom_opp_x.run' > "$2"/build.sh
"""
)


def run_build(tmp_path: Path, version: str | None, **extra: str) -> tuple[subprocess.CompletedProcess[str], str]:
    folder = tmp_path / "it has blanks"
    write(project(norm()), folder)
    write({"cmake": FAKE_CMAKE, "msopgen": FAKE_MSOPGEN}, tmp_path / "bin")
    for tool in ("cmake", "msopgen"):
        (tmp_path / "bin" / tool).chmod(0o755)
    (tmp_path / "cann").mkdir()
    if version is not None:
        write(
            {"x86_64-linux/ascend_toolkit_install.info": f"package_name=toolkit\nversion={version}\n"},
            tmp_path / "cann",
        )
    environment = {
        "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
        "LOG": str(tmp_path / "log"),
        "PROJECT": str(folder),
        "ASCEND_HOME_PATH": str(tmp_path / "cann"),
        **extra,
    }
    done = subprocess.run(["bash", folder / "build.sh"], env=environment, capture_output=True, text=True, check=False)
    log = tmp_path / "log"
    return done, log.read_text() if log.exists() else ""


def test_build_uses_the_toolkit_s_cmake_from_cann_9(tmp_path: Path) -> None:
    done, log = run_build(tmp_path, "9.0.RC1", JOBS="3")
    assert done.returncode == 0, done.stderr
    assert "msopgen" not in log
    assert "--target binary -j 3" in log
    assert "--target package -j 3" in log
    assert "-DASCEND_COMPUTE_UNIT=ascend910b -Dvendor_name=atcfuse" in log
    assert done.stdout.strip().endswith("build_out/custom_opp_x.run")


def test_build_lays_the_sources_over_a_skeleton_for_cann_8(tmp_path: Path) -> None:
    done, log = run_build(tmp_path, "8.2.RC1")
    assert done.returncode == 0, done.stderr
    assert "gen -i" in log
    assert "-f onnx -c ai_core-Ascend910B1 -lan cpp" in log
    skeleton = tmp_path / "it has blanks/build_out/msopgen"
    function = norm().function
    assert not (skeleton / "op_host/sample.cpp").exists()
    assert (skeleton / "op_host/CMakeLists.txt").exists()
    for name in (f"op_host/{function}.cpp", f"op_kernel/{function}.cpp", "framework/onnx_plugin/atcfuse_attributes.h"):
        assert (skeleton / name).exists(), name
    variables = json.loads((skeleton / "CMakePresets.json").read_text())["configurePresets"][0]["cacheVariables"]
    assert variables["vendor_name"]["value"].startswith("atcfuse")
    assert variables["ENABLE_SOURCE_PACKAGE"]["value"] == "True"


def test_build_goes_by_what_the_toolkit_contains_where_no_version_is_stated(tmp_path: Path) -> None:
    (tmp_path / "cann/lib/cmake").mkdir(parents=True)
    (tmp_path / "cann/lib/cmake/ASCConfig.cmake").touch()
    shutil.copytree(tmp_path / "cann", tmp_path / "kept")
    shutil.rmtree(tmp_path / "cann")
    done, log = run_build(tmp_path, None, ASCEND_HOME_PATH=str(tmp_path / "kept"))
    assert done.returncode == 0, done.stderr
    assert "taken for CANN 9" in done.stderr
    assert "msopgen" not in log


@pytest.mark.parametrize(
    ("version", "extra", "message"),
    [
        ("7.0.1", {}, "CANN 7 is too old"),
        ("9.0", {"ASCEND_HOME_PATH": ""}, "source the toolkit's set_env.sh first"),
        ("9.0", {"ASCEND_HOME_PATH": "/nowhere/at/all"}, "names no folder"),
        ("9.0", {"ATCFUSE_CANN_MAJOR": "nine"}, "not a CANN version: nine"),
    ],
)
def test_build_says_what_is_missing(tmp_path: Path, version: str, extra: dict[str, str], message: str) -> None:
    done, log = run_build(tmp_path, version, **extra)
    assert done.returncode == 1
    assert message in done.stderr
    assert log == ""
