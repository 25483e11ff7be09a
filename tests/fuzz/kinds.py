"""The kinds of cases. Each draws one, runs it and gives its outcome, or raises what must never happen."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from copy import deepcopy
from functools import lru_cache
from pathlib import Path
from typing import Any

import elementwise_models
import generate
import generate_ffn
import generate_norms
import generate_rotary
import generate_sums
import infer_programs
import numpy as np
import onnx
import protobufs
import texts
from folders import ROOT
from judge import Task, Wrong, agree, command, compare, runs
from mutate import mutant
from networks import network
from pairwise import random_case

from atcfuse.compiler import optimize_proto, toolbox
from atcfuse.diagnostics import AtcfuseError, Span
from atcfuse.dims import symbol
from atcfuse.expr import evaluate, parse
from atcfuse.graph.dialect import normalise
from atcfuse.graph.feeds import read_interface
from atcfuse.graph.index import Model
from atcfuse.graph.infer import infer
from atcfuse.match.functions import functions_for
from atcfuse.options import Options
from atcfuse.report import read_report, validate
from atcfuse.resources import data_folder
from atcfuse.verify.plan import collect
from atcfuse.verify.session import Session

SAMPLES = sorted((ROOT / "sample_models").glob("*.onnx"))
SMALL = ROOT / "sample_models" / "bert_ts11_fp32_dynamic.onnx"
GOLDEN = ROOT / "tests" / "golden" / "report" / "bert.json"
GENERATORS: tuple[Any, ...] = (generate, generate_ffn, generate_norms, generate_rotary, generate_sums)
SOCS = ("Ascend910B1", "Ascend910B1", "Ascend310P3", "Ascend910A", "Ascend310B1")


def _switched(rng: random.Random) -> list[str]:
    """Options of `optimize`, sensible ones."""
    given: list[str] = ["-q", "--soc", rng.choice(SOCS), "--dialect", rng.choice(["atc", "portable", "portable"])]
    for options in (
        ["--min-saving", "0"],
        ["--no-kernels"],
        ["--tile-level", rng.choice(["small", "large"])],
        ["--precision-mode", "must_keep_origin_dtype"],
        ["--assume", "batch=3,sequence=17"],
        ["--keep-nodes", "*MatMul*"],
        ["--force", "ffn"],
        ["--keep-fp32", "Softmax"],
    ):
        if rng.random() < (0.5 if options[0] in ("--min-saving", "--no-kernels") else 0.1):
            given += options
    return given


def _fused(task: Task, path: Path) -> str:
    """Optimizes a model file and holds the result against it, and against itself optimized once more."""
    given = _switched(task.rng)
    out = path.with_suffix(".fused.onnx")
    said = command(task, "optimize", path, *given)
    if said.code:
        return said.label()
    problems = validate(read_report(path.with_suffix(".fused.report.json")))
    if problems:
        raise Wrong(f"the report is not of its schema: {problems[:3]}")
    if task.rng.random() < 0.2:
        again = task.folder / "again.onnx"
        if command(task, "optimize", out, "-o", again, *given).code == 0 and again.read_bytes() != out.read_bytes():
            raise Wrong("an optimized model, optimized again, changes")
    return agree(task, path, out)


def damaged_bytes(task: Task) -> str:
    """A sample model with bytes changed, for any command that reads models."""
    path = task.folder / "m.onnx"
    path.write_bytes(protobufs.damaged_bytes(task.rng.choice(SAMPLES).read_bytes(), task.rng))
    return _any_command(task, path)


def damaged_fields(task: Task) -> str:
    """A sample model with fields changed."""
    model = onnx.load(task.rng.choice(SAMPLES))
    protobufs.damage_fields(model, task.rng, task.rng.choice([1, 1, 2, 4]))
    path = task.folder / "m.onnx"
    path.write_bytes(model.SerializeToString())
    return _any_command(task, path)


def damaged_graphs(task: Task) -> str:
    """A small generated model with fields changed: more of these are still valid."""
    model = _generated(task.rng)[0] if task.rng.random() < 0.5 else network(task.rng).model
    protobufs.damage_fields(model, task.rng, task.rng.choice([1, 1, 2]))
    path = task.folder / "m.onnx"
    path.write_bytes(model.SerializeToString())
    return _any_command(task, path)


def _any_command(task: Task, path: Path) -> str:
    kind = task.rng.choice(["optimize"] * 7 + ["check", "explain", "restore", "diff", "kernels"])
    if kind == "optimize":
        return _fused(task, path)
    more = {
        "restore": ["-o", task.folder / "restored.onnx"],
        "diff": [SMALL],
        "kernels": ["-o", task.folder / "k"],
    }.get(kind, [])
    words = ["kernels", "generate"] if kind == "kernels" else [kind]
    return f"{kind}: {command(task, *words, path, *more).label()}"


@lru_cache(maxsize=16)
def _tools(soc: str, saving: float, kernels: bool) -> Any:
    return toolbox(Options(soc=soc, min_saving_us=saving, kernels=kernels, dialect="portable"))


def _optimized(task: Task, model: onnx.ModelProto, feeds: Any) -> str:
    """Optimizes a model in memory and compares on the given input sets."""
    tools = _tools(task.rng.choice(SOCS[1:3]), task.rng.choice([0.0, 0.0, 10.0]), task.rng.random() < 0.7)
    task.phase("optimizing")
    (task.folder / "m.onnx").write_bytes(model.SerializeToString())
    try:
        result = optimize_proto(deepcopy(model), tools)
    except AtcfuseError as exc:
        task.phase("onnxruntime on the original")
        if runs(model, task.folder):
            raise Wrong(f"refused, and onnxruntime loads it: {exc}") from exc
        return exc.diagnostics[0].code
    if task.rng.random() < 0.1 and optimize_proto(deepcopy(result.model), tools).model != result.model:
        raise Wrong("an optimized model, optimized again, changes")
    (task.folder / "m.fused.onnx").write_bytes(result.model.SerializeToString())
    task.phase("onnxruntime on the original")
    found = compare(task, model, lambda: result.model, task.folder, feeds)
    return f"{found}, {'fused' if result.report['fusions'] else 'nothing fused'}" if found == "equal" else found


def networks(task: Task) -> str:
    """A random network of transformer parts."""
    built = network(task.rng)
    return _optimized(task, built.model, built.feeds)


def _generated(rng: random.Random) -> tuple[onnx.ModelProto, Any]:
    module = rng.choice(GENERATORS)
    built = module.build(random_case(module.CHOICES, module.valid, rng), rng.randrange(100))
    return built.model, built.feeds


def mutants(task: Task) -> str:
    """A block that a rule fuses, in a random spelling, with up to three planted faults."""
    model, feeds = _generated(task.rng)
    return _optimized(task, _faulty(task, model, feeds[0], task.rng.choice([0, 1, 2, 3])), feeds)


def sample_mutants(task: Task) -> str:
    """A sample model with one to three planted faults, in its constants too."""
    model = normalise(onnx.load(task.rng.choice(SAMPLES)))
    if task.rng.random() < 0.6:
        _lift_constants(model)
    session, interface = Session(model, task.folder), read_interface(model)
    feeds = [f.values for f in collect(model, interface, lambda values: session.run(values, interface), 0).feeds]
    return _optimized(task, _faulty(task, model, feeds[0], task.rng.choice([1, 1, 2, 3])), feeds)


def _faulty(task: Task, model: onnx.ModelProto, feed: Any, faults: int) -> onnx.ModelProto:
    for _ in range(faults):
        task.phase("onnxruntime on the original")
        try:
            made = mutant(model, feed, task.rng)
        except Exception:  # onnxruntime refuses a faulty model with exceptions of no common base
            break
        model = made.model if made is not None else model
    return model


def _lift_constants(model: onnx.ModelProto) -> None:
    """Constant nodes become initializers, which faults are planted in."""
    for node in [n for n in model.graph.node if n.op_type == "Constant" and n.attribute[0].name == "value"]:
        model.graph.initializer.append(node.attribute[0].t)
        model.graph.initializer[-1].name = node.output[0]
        model.graph.node.remove(node)


def element_wise(task: Task) -> str:
    """A random graph of element-wise operators."""
    dtype = task.rng.choice([elementwise_models.FLOAT, elementwise_models.FLOAT, elementwise_models.FLOAT16])
    model, feed = elementwise_models.random_model(task.rng.randrange(2**32), dtype, task.rng.randint(4, 40))
    return _optimized(task, model, [feed])


def shape_arithmetic(task: Task) -> str:
    """A random graph of shape arithmetic, views and indexing."""
    task.phase("onnxruntime on the original")
    feed = infer_programs.feeds(task.rng.randint(0, 3), task.rng.randint(1, 3), task.rng.randint(-2, 4))
    model = infer_programs.grow(task.rng.randrange(2**32), task.rng.randint(5, 30), feed)
    return _optimized(task, model, [feed]) if model.graph.output else "empty"


def rules(task: Task) -> str:
    """A rule or fragment file of ours, damaged, as a user's."""
    path = task.rng.choice(sorted(data_folder("rules").rglob("*.yaml")))
    text = path.read_text("utf-8").replace(f"rule: {path.stem}\n", "rule: mine\n", 1)
    if task.rng.random() < 0.6:
        text = text.partition("\nexamples:")[0] + "\n"
    folder = task.folder / "rules"
    folder.mkdir()
    (folder / "mine.yaml").write_bytes(texts.damaged(text, task.rng))
    kind = task.rng.choice(["check", "check", "optimize", "optimize", "test"])
    if kind == "optimize":
        out = ["-o", task.folder / "out.onnx", "--no-kernels", "-q"]
        return f"optimize: {command(task, 'optimize', SMALL, '--rules', folder, *out).label()}"
    return f"{kind}: {command(task, 'rules', kind, '--rules', folder, *(['mine'] * (kind == 'test'))).label()}"


SWITCHES = (
    (
        "sw.json",
        '{"Switch": {"GraphFusion": {"ALL": "on", "FusedAttentionFusionPass": "off"}, "UBFusion": {"ALL": "off"}}}\n',
    ),
    ("sw.yaml", "Switch:\n  GraphFusion:\n    FusedAttentionFusionPass: on\n    ALL: off\n  UBFusion:\n    ALL: on\n"),
    ("sw.cfg", "FusedAttentionFusionPass:on\nGeluONNXFusionPass:off\nALL:off\n# a comment\n"),
)


def switches(task: Task) -> str:
    """A switch file of any form, damaged."""
    name, text = task.rng.choice(SWITCHES)
    path = task.folder / name
    path.write_bytes(texts.damaged(text, task.rng))
    if task.rng.random() < 0.3:
        out = ["-o", task.folder / "out.onnx", "--no-kernels", "-q"]
        return command(task, "optimize", SMALL, "--fusion-switch-file", path, *out).label()
    more = ["--for-atc", task.folder / "atc.json"] if task.rng.random() < 0.5 else []
    return command(task, "switches", path, *more).label()


@lru_cache(maxsize=1)
def _scope() -> Any:
    model = Model(onnx.load(SMALL))
    infer(model)
    return model.main


def expressions(task: Task) -> str:
    """A hundred random expressions of the rule language, values of some used by later ones."""
    scope = _scope()
    products = [n for n in scope.nodes if n.op == "MatMul"]
    x, scores = products[0].inputs[0], products[2].outputs[0]
    names: dict[str, Any] = {"x": x, "scores": scores, "H": 4, "B": symbol("batch"), "big": 10**30, "text": "abc"}
    names |= {"items": [x, scores], "none": None, "ratio": 0.5}
    functions = functions_for(scope)
    outcomes = {"read": 0, "refused": 0}
    for _ in range(100):
        text = texts.expression(task.rng)
        if task.rng.random() < 0.3:
            text = texts.damaged(text, task.rng).decode("utf-8", "replace")
        task.phase(f"expression {text[:1500]}")
        try:
            value = evaluate(parse(text, Span("mine.yaml", 1, 1)), names, functions)
        except AtcfuseError as exc:
            outcomes["refused"] += 1
            str(exc)
        else:
            outcomes["read"] += 1
            if task.rng.random() < 0.3:
                names[task.rng.choice(texts.NAMES)] = value
    return "done" if outcomes["read"] else "ATF212"


def socs(task: Task) -> str:
    """A SoC file of ours, damaged."""
    source = task.rng.choice(sorted((ROOT / "atcfuse" / "soc").glob("*.yaml")))
    path = task.folder / "mine.yaml"
    path.write_bytes(texts.damaged(source.read_text("utf-8"), task.rng))
    return command(task, "optimize", SMALL, "--soc", path, "-o", task.folder / "out.onnx", "-q").label()


KEEP = "[ByNodeName]\n/bert/encoder/layer.0/*\n*MatMul*\n\n[ByNodeType]\nSoftmax\nai.onnx::Add\n# a comment\n"


def keep_nodes(task: Task) -> str:
    """A file of nodes to keep, damaged, or a strange pattern."""
    path = task.folder / "keep.ini"
    path.write_bytes(texts.damaged(KEEP, task.rng))
    pattern = task.rng.choice([*texts.STRANGE, "[z-a]", "[!", "*" * 60 + "b", "a*" * 40 + "b", "[[", "**/x"])
    given = str(path) if task.rng.random() < 0.7 else pattern.replace("\x00", "")
    out = ["-o", task.folder / "out.onnx", "--no-kernels", "-q"]
    return command(task, "optimize", SMALL, f"--keep-nodes={given}", *out).label()


FORMATS = ("text", "markdown", "html", "sarif", "junit", "code-quality", "fusion-result")


def reports(task: Task) -> str:
    """A report, damaged, shown, compared and as a baseline."""
    document = json.loads(GOLDEN.read_text("utf-8"))
    for _ in range(task.rng.choice([1, 1, 2, 5])):
        _damage_json(document, task.rng)
    text = json.dumps(document, ensure_ascii=task.rng.random() < 0.5)
    path = task.folder / "r.json"
    path.write_bytes(
        texts.damaged(text, task.rng) if task.rng.random() < 0.3 else text.encode("utf-8", "surrogatepass")
    )
    kind = task.rng.choice(["report", "diff", "diff", "baseline"])
    if kind == "report":
        return command(task, "report", path, "--format", task.rng.choice(FORMATS)).label()
    if kind == "baseline":
        out = ["-o", task.folder / "out.onnx", "-q"]
        return command(task, "optimize", SMALL, "--baseline", path, "--max-regression", "5", *out).label()
    pair = [path, GOLDEN] if task.rng.random() < 0.5 else [GOLDEN, path]
    style = ["--format", task.rng.choice(["text", "markdown", "json"])]
    return command(task, "diff", *pair, *style, *["--fail-on", "regression"] * (task.rng.random() < 0.5)).label()


def _damage_json(value: Any, rng: random.Random) -> None:
    """Changes one place of a JSON document: another value, another kind of value, nothing at all."""
    places: list[tuple[Any, Any]] = []

    def walk(node: Any) -> None:
        for key in list(node) if isinstance(node, dict) else range(len(node)):
            places.append((node, key))
            if isinstance(node[key], (dict, list)):
                walk(node[key])

    walk(value)
    node, key = rng.choice(places)
    kind = rng.randrange(8)
    if kind == 0:
        del node[key]
    elif kind == 1 and isinstance(node, list):
        node.append(node[key])
    elif kind <= 3 and isinstance(node[key], str):
        node[key] = rng.choice([*texts.STRANGE, *protobufs.NAMES])
    else:
        node[key] = rng.choice([None, 0, -1, 1e308, 2**70, True, "", "x", [], {}, [1], {"x": 1}, 0.5, "ATF999"])


def inputs(task: Task) -> str:
    """An archive of inputs for `verify`, damaged."""
    arrays = {n: np.ones((2, 6), np.int64) for n in ("input_ids", "attention_mask", "token_type_ids")}
    path = task.folder / "in.npz"
    np.savez(path, **arrays)
    path.write_bytes(protobufs.damaged_bytes(path.read_bytes(), task.rng))
    return command(task, "verify", SMALL, SMALL, "--inputs", path).label()


STRANGE_OPTIONS = ("--assume", "--soc", "--dialect", "--keep-fp32", "--force", "--keep-nodes", "--precision-mode")
NUMBERS = ("--occupancy", "--min-saving", "--max-regression")


def arguments(task: Task) -> str:
    """`optimize` with options that say strange things."""
    line: list[str] = ["optimize", str(SMALL), "-q", "-o", str(task.folder / "out.onnx")]
    for _ in range(task.rng.choice([1, 1, 2])):
        if task.rng.random() < 0.3:
            values = ("0", "-1", "nan", "inf", "1e999", "", "x", "0.5", "9" * 400)
            line.append(f"{task.rng.choice(NUMBERS)}={task.rng.choice(values)}")
            continue
        good = task.rng.choice(["batch=1,seq=2", "Softmax,Add", "attention", "Ascend910B1", "sequence=99999999999"])
        value = texts.damaged(good, task.rng).decode("utf-8", "replace").replace("\0", "")
        line.append(f"{task.rng.choice(STRANGE_OPTIONS)}={value}")
    return command(task, *line).label()


Kind = Callable[[Task], str]
KINDS: dict[str, tuple[Kind, int]] = {
    "bytes of models": (damaged_bytes, 3),
    "fields of models": (damaged_fields, 4),
    "fields of small graphs": (damaged_graphs, 4),
    "networks": (networks, 6),
    "mutants": (mutants, 4),
    "mutants of sample models": (sample_mutants, 6),
    "element-wise graphs": (element_wise, 2),
    "shape arithmetic": (shape_arithmetic, 2),
    "rules": (rules, 3),
    "switch files": (switches, 2),
    "expressions": (expressions, 2),
    "SoC files": (socs, 1),
    "nodes to keep": (keep_nodes, 1),
    "reports": (reports, 2),
    "inputs": (inputs, 1),
    "arguments": (arguments, 1),
}
"""Every kind, and how many of its cases come for one of the others."""
