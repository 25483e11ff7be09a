"""Models made to exhaust the machine or to read other files, and paths that are links, long or in Chinese."""

from __future__ import annotations

import resource
import shutil
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from cli_support import SAMPLES, files
from onnx import TensorProto, helper

node = helper.make_node


def _model(nodes: list[onnx.NodeProto], shape: tuple[object, ...] = (4,)) -> onnx.ModelProto:
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n in "xy"]
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    return helper.make_model(helper.make_graph(nodes, "g", values[:1], values[1:]), opset_imports=imports, ir_version=8)


def _function(name: str, calls: list[str]) -> onnx.FunctionProto:
    """A function that calls others one after the other; Neg where it calls none."""
    values = ["a", *(f"v{i}" for i in range(1, len(calls))), "b"]
    nodes = [node(c, [values[i]], [values[i + 1]], domain="local") for i, c in enumerate(calls)] or [
        node("Neg", ["a"], ["b"])
    ]
    return helper.make_function(
        "local", name, ["a"], ["b"], nodes, [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    )


def _calls(*functions: onnx.FunctionProto) -> onnx.ModelProto:
    model = _model([node(functions[-1].name, ["x"], ["y"], domain="local")])
    model.functions.extend(functions)
    return model


def _repeated(
    first: list[onnx.NodeProto], step: Callable[[int], list[onnx.NodeProto]], times: int, last: str
) -> list[onnx.NodeProto]:
    return [
        *first,
        *(n for i in range(times) for n in step(i)),
        node("Cast", [last], ["f"], to=1),
        node("Add", ["x", "f"], ["y"]),
    ]


def _ints(name: str, *values: int) -> onnx.NodeProto:
    return node("Constant", [], [name], value_ints=list(values))


BOMBS = {
    "functions that call themselves": lambda: _calls(_function("f", ["f"])),
    "functions in a circle": lambda: _calls(_function("f", ["g"]), _function("g", ["f"])),
    "functions that double": lambda: _calls(*(_function(f"f{i}", [f"f{i - 1}"] * 2 if i else []) for i in range(60))),
    "an attribute of a million numbers": lambda: _model([node("Transpose", ["x"], ["y"], perm=list(range(1_000_000)))]),
    "a hundred thousand operands": lambda: _model([node("Sum", ["x"] * 100_000, ["y"])]),
    "a name of megabytes": lambda: _model([node("Neg", ["x"], ["y"], name="n" * 3_000_000)]),
    "dims beyond counting": lambda: _model([node("Abs", ["x"], ["a"]), node("Exp", ["a"], ["y"])], (2**62,) * 8),
    "a fill beyond memory": lambda: _model([_ints("s", 2**40, 2**20), node("ConstantOfShape", ["s"], ["z"]), node("Add", ["z", "x"], ["y"])]),
    "a repeat beyond memory": lambda: _model([_ints("s", 2**45), node("Tile", ["x", "s"], ["y"])]),
    "a constant that doubles": lambda: _model(_repeated([_ints("c0", 1, 2)], lambda i: [node("Concat", [f"c{i}"] * 2, [f"c{i + 1}"], axis=0)], 60, "c60")),
    "a number that squares": lambda: _model(_repeated([_ints("c0", 2**40)], lambda i: [node("Mul", [f"c{i}"] * 2, [f"c{i + 1}"])], 60, "c60")),
    "a size that squares": lambda: _model(_repeated([node("Shape", ["x"], ["c0"])], lambda i: [node("Mul", [f"c{i}"] * 2, [f"c{i + 1}"])], 60, "c60"), ("n",)),
    "sizes in sizes": lambda: _model(
        _repeated(
            [node("Shape", ["x"], ["c0"]), _ints("k", 3)],
            lambda i: [node("Max", [f"c{i}", "k"], [f"u{i}"]), node("Min", [f"c{i}", "k"], [f"l{i}"]), node("Mul", [f"u{i}", f"l{i}"], [f"v{i}"]), node("Div", [f"v{i}", f"u{i}"], [f"c{i + 1}"])],
            40, "c40",
        ),
        ("n",),
    ),
}  # fmt: skip


USUAL = (
    "functions that double",
    "a hundred thousand operands",
    "dims beyond counting",
    "a constant that doubles",
    "sizes in sizes",
)


@pytest.mark.parametrize("what", [pytest.param(k, marks=[] if k in USUAL else pytest.mark.slow) for k in BOMBS])
def test_a_bomb_goes_off_in_nobodys_hands(atcfuse, tmp_path, what):
    path = tmp_path / "m.onnx"
    path.write_bytes(BOMBS[what]().SerializeToString())
    before = resource.getrusage(resource.RUSAGE_SELF)
    outcome = atcfuse("optimize", path, "--dry-run", "-q")
    after = resource.getrusage(resource.RUSAGE_SELF)
    assert outcome.code == 0, outcome.err
    assert after.ru_utime - before.ru_utime < 20
    assert after.ru_maxrss - before.ru_maxrss < 500_000  # KiB


SECRET = b"the-secret-" * 10


@pytest.mark.parametrize("how", ["absolute", "above", "link", "linked folder"])
@pytest.mark.parametrize("where", ["weight", *(pytest.param(k, marks=pytest.mark.slow) for k in ("number", "body"))])
def test_no_command_reads_a_file_outside_of_the_models_folder(atcfuse, tmp_path, how, where):
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "secret").write_bytes(SECRET)
    location = {
        "absolute": str(tmp_path / "secret"),
        "above": "../secret",
        "link": "inner",
        "linked folder": "sub/secret",
    }[how]
    (folder / "inner").symlink_to("../secret")
    (folder / "sub").symlink_to("..")
    tensor = TensorProto(
        name="w", data_type=1, dims=[1] if where == "number" else [2, 4], data_location=TensorProto.EXTERNAL
    )
    tensor.external_data.add(key="location", value=location)
    tensor.external_data.add(key="length", value="4" if where == "number" else "32")
    model = _model([node("Mul", ["x", "w"], ["y"], name="n")])
    if where == "body":
        model = _model([node("Constant", [], ["w"], value=tensor), node("Mul", ["x", "w"], ["y"])])
    else:
        model.graph.initializer.append(tensor)
    path = folder / "m.onnx"
    path.write_bytes(model.SerializeToString())
    for command in (
        ["optimize"],
        ["optimize", "--verify"],
        ["check"],
        ["explain"],
        ["verify", path],
        ["diff", path],
        ["restore", "-o", folder / "r.onnx"],
        ["kernels", "generate"],
        ["kernels", "run"],
    ):
        outcome = atcfuse(
            command[0],
            *([command[1]] if command[0] == "kernels" else []),
            path,
            *command[1 + (command[0] == "kernels") :],
        )
        assert outcome.code == 1, command
        assert "ATF111" in outcome.err
        assert "the-secret" not in outcome.out + outcome.err
    assert sorted(p.name for p in folder.iterdir()) == ["inner", "m.onnx", "sub"]


@pytest.mark.parametrize(
    "name", ["模型 一号.onnx", "a b'c\"d$(id);&.onnx", "-rf.onnx", "x.ONNX", ".onnx", "n" * 225 + ".onnx"]
)
def test_names_of_files(atcfuse, tmp_path, name):
    path = tmp_path / name
    shutil.copy(SAMPLES / "bert_ts11_fp32_dynamic.onnx", path)
    outcome = atcfuse("optimize", path, "--no-kernels", "-q")
    assert outcome.code == 0, outcome.err
    assert len(files(tmp_path)) == 5


def test_a_name_that_leaves_no_room_for_the_outputs(atcfuse, tmp_path):
    path = tmp_path / ("n" * 245 + ".onnx")
    shutil.copy(SAMPLES / "bert_ts11_fp32_dynamic.onnx", path)
    outcome = atcfuse("optimize", path, "-q")
    assert outcome.code == 1
    assert "ATF124" in outcome.err
    assert len(files(tmp_path)) == 1
    assert atcfuse("optimize", path, "-q", "--no-kernels", "-o", tmp_path / "short.onnx").code == 0


def test_links_are_followed_on_both_sides(atcfuse, tmp_path):
    for folder in ("models", "outputs", "links"):
        (tmp_path / folder).mkdir()
    shutil.copy(SAMPLES / "bert_ts11_fp32_dynamic.onnx", tmp_path / "models" / "m.onnx")
    (tmp_path / "links" / "in.onnx").symlink_to("../models/m.onnx")
    (tmp_path / "outputs" / "real.onnx").write_bytes(b"old")
    (tmp_path / "links" / "out.onnx").symlink_to("../outputs/real.onnx")
    (tmp_path / "links" / "loop.onnx").symlink_to("loop.onnx")
    links: Path = tmp_path / "links"
    assert atcfuse("optimize", links / "in.onnx", "-o", links / "out.onnx", "-q", "--no-kernels").code == 0
    assert (links / "out.onnx").is_symlink()
    assert onnx.load(tmp_path / "outputs" / "real.onnx").graph.node
    assert "ATF10" in atcfuse("optimize", links / "loop.onnx").err
    assert atcfuse("optimize", links / "in.onnx", "-o", links / "loop.onnx", "-q").code in (0, 1)
