"""Loading and saving: external data stays on disk, and every mistake ends with its own code."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import threading
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from google.protobuf import json_format
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import ModelProto, TensorProto, helper, parser, printer

from atcfuse.diagnostics import AtcfuseError, code_page
from atcfuse.files import Transaction
from atcfuse.graph import external, store, wire

MODEL = """
<ir_version: 8, opset_import: ["" : 17], producer_name: "torch", metadata_props: ["a": "b"]>
g (float[2] x, bool c) => (float[2] y) {
  w = Constant <value = float[2] {1.0, 2.0}> ()
  y = If (c) <
    then_branch = t () => (float[2] a) { a = Add (x, w) },
    else_branch = e () => (float[2] b) { b = Mul (x, w) }
  >
}
"""

ADD = '<ir_version: 8, opset_import: ["" : 17]> g (float[4] x) => (float[4] y) {{ y = Add (x, {}) }}'


def small_model() -> ModelProto:
    return parser.parse_model(MODEL)


def external_tensor(name: str, array: np.ndarray, **entry: object) -> TensorProto:
    tensor = TensorProto(name=name, data_type=helper.np_dtype_to_tensor_dtype(array.dtype), dims=array.shape)
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in entry.items():
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def external_model(location: str = "w.bin", **entry: object) -> ModelProto:
    """y = x + w, with w of 4 floats outside."""
    model = parser.parse_model(ADD.format("w"))
    entry = {"offset": 4, "length": 16, **entry}
    kept = {key: value for key, value in entry.items() if value is not None}
    model.graph.initializer.append(external_tensor("w", np.zeros(4, np.float32), location=location, **kept))
    return model


def saved(folder: Path, model: ModelProto, name: str = "m.onnx") -> Path:
    path = folder / name
    path.write_bytes(model.SerializeToString())
    return path


def refused(path: Path) -> list[str]:
    with pytest.raises(AtcfuseError) as caught:
        store.load(path)
    assert caught.value.exit_code == 1
    for diagnostic in caught.value.diagnostics:
        assert code_page(diagnostic.code) is not None
    return [d.code for d in caught.value.diagnostics]


def message(path: Path) -> str:
    with pytest.raises(AtcfuseError) as caught:
        store.load(path)
    return str(caught.value)


# What is no model


def test_the_hash_is_that_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [], [])
    data = helper.make_model(graph).SerializeToString()
    path.write_bytes(data)
    model, digest = store.load_hashed(path)
    assert (model, digest) == (store.load(path), hashlib.sha256(data).hexdigest())
    path.write_bytes(data[:-1])
    with pytest.raises(AtcfuseError):
        store.load_hashed(path)
    assert not [t for t in threading.enumerate() if t.name.startswith("sha256")]


def test_missing_files(tmp_path: Path) -> None:
    (tmp_path / "bert.onnx").write_bytes(b"x")
    (tmp_path / "dangling.onnx").symlink_to(tmp_path / "gone.onnx")
    assert refused(tmp_path / "no.onnx") == ["ATF101"]
    assert refused(tmp_path / "bert.onnx" / "below") == ["ATF101"]
    assert 'did you mean "bert.onnx"?' in message(tmp_path / "bret.onnx")
    assert "gone.onnx" in message(tmp_path / "dangling.onnx")


def test_folders_and_special_files(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"x")
    os.mkfifo(tmp_path / "pipe")
    assert refused(tmp_path) == ["ATF102"]
    assert "m.onnx" in message(tmp_path)
    assert refused(tmp_path / "pipe") == ["ATF103"]
    assert refused(Path("nul\0character")) == ["ATF103"]


def test_a_file_without_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refuse)
    assert refused(saved_path := saved(tmp_path, small_model())) == ["ATF103"]
    assert "Permission denied" in message(saved_path)


def test_empty_and_too_large_files(tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(b"")
    with (tmp_path / "huge").open("wb") as stream:
        os.truncate(stream.fileno(), 2**31)
    assert refused(tmp_path / "empty") == ["ATF104"]
    assert refused(tmp_path / "huge") == ["ATF116"]


@pytest.mark.parametrize(
    ("data", "code", "says"),
    [
        (printer.to_text(small_model()).encode(), "ATF107", "ONNX text syntax"),
        (str(small_model()).encode(), "ATF107", "protobuf text format"),
        (json_format.MessageToJson(small_model()).encode(), "ATF107", "an ONNX model in JSON"),
        (json.dumps({"Switch": {}}).encode(), "ATF107", "not a model"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "ATF107", "Git LFS"),
        ("<html>nicht gefunden: ä</html>".encode() * 400, "ATF107", "is a text file"),
        (b"PK\x03\x04" + bytes(50), "ATF106", "PyTorch"),
        (b"IMOD" + bytes(50), "ATF106", ".om"),
        (b"\xff" * 100, "ATF106", "is not an ONNX model"),
        (bytes(100), "ATF106", "is not an ONNX model"),
        (b"\x08\x08\x3a\x04\xff\xff\xff\xff", "ATF106", "damaged"),
        (b"\x08\x08", "ATF108", "without an ONNX graph"),
        (b"\x08\x08\x3a\x00", "ATF108", "without an ONNX graph"),
        (TensorProto(name="t", dims=[2], data_type=1).SerializeToString(), "ATF106", "is not an ONNX model"),
    ],
)
def test_files_of_another_kind(tmp_path: Path, data: bytes, code: str, says: str) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(data)
    assert refused(path) == [code]
    assert says in message(path)


def test_every_truncation_is_noticed_or_leaves_a_readable_model(tmp_path: Path) -> None:
    whole = small_model().SerializeToString()
    path = tmp_path / "m.onnx"
    outcomes = set()
    for size in range(1, len(whole)):
        path.write_bytes(whole[:size])
        try:
            store.load(path)  # cut between two fields, after the graph
            outcomes.add("read")
        except AtcfuseError as exc:
            outcomes.update(d.code for d in exc.diagnostics)
    assert outcomes == {"read", "ATF105", "ATF108"}


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_mutated_models_end_with_a_code_or_load(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    whole = bytearray(small_model().SerializeToString())
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.mktemp("mutated") / "m.onnx"
    path.write_bytes(whole)
    try:
        model = store.load(path)
    except AtcfuseError as exc:
        codes = [d.code for d in exc.diagnostics]
    else:
        codes = []
        assert ModelProto.FromString(store.save_bytes(model)) == model
    assert all(code_page(code) for code in codes)


def field(number: int, payload: bytes) -> bytes:
    """A length-delimited field; protobuf itself refuses to build messages nested as deep as a file can nest them."""
    length, size = bytearray(), len(payload)
    while size > 127:
        length.append(size & 127 | 128)
        size >>= 7
    return bytes([number << 3 | 2, *length, size]) + payload


def nested(depth: int) -> bytes:
    """A model of `depth` bodies, each the attribute of a node in the one around it."""
    is_graph = b"\xa0\x01\x05"
    graph = field(1, helper.make_node("Neg", ["x"], ["y"]).SerializeToString())
    for _ in range(depth):
        graph = field(1, field(5, field(6, graph) + is_graph))
    return b"\x08\x08" + field(7, graph)


def test_nesting_guard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.onnx"

    def load_nested(depth: int) -> Path:
        path.write_bytes(nested(depth))
        return path

    assert store.load(load_nested(30))
    assert refused(load_nested(60)) == ["ATF112"]
    assert refused(load_nested(10_000)) == ["ATF112"]
    monkeypatch.setattr(store, "MAX_SCOPE_DEPTH", 20)
    assert store.load(load_nested(20))
    assert refused(load_nested(21)) == ["ATF112"]


def test_node_count_guard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "MAX_NODES", 4)
    assert store.load(saved(tmp_path, small_model()))  # 2 nodes and 1 in each branch
    monkeypatch.setattr(store, "MAX_NODES", 3)
    assert refused(saved(tmp_path, small_model())) == ["ATF116"]


@pytest.mark.parametrize("name", [b"NODE", b"VALUE", b"DIMENSION", b"ATTRIBUTE", b"TENSOR", b"BODY_NODE", b"DOMAIN"])
def test_names_that_are_not_text(tmp_path: Path, name: bytes) -> None:
    body = helper.make_graph([helper.make_node("Neg", ["VALUE"], ["b"], name="BODY_NODE")], "body", [], [])
    node = helper.make_node("If", ["VALUE"], ["y"], name="NODE", then_branch=body, ATTRIBUTE=1)
    value = helper.make_tensor_value_info("VALUE", TensorProto.FLOAT, ["DIMENSION"])
    tensor = helper.make_tensor("TENSOR", TensorProto.FLOAT, [1], [1.0])
    graph = helper.make_graph([node], "g", [value], [value], [tensor])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("DOMAIN", 1)])
    path = saved(tmp_path, model)
    assert store.load(path) == model
    path.write_bytes(path.read_bytes().replace(name, b"\xff" * len(name)))
    assert refused(path) == ["ATF117"]


# External data


def test_external_data_is_checked_but_not_read(tmp_path: Path) -> None:
    with (tmp_path / "w.bin").open("wb") as stream:
        os.truncate(stream.fileno(), 2**40)  # a terabyte of hole: reading it would not go unnoticed
    model = external_model(length=None)
    model.graph.initializer[0].dims[0] = 2**37
    loaded = store.load(saved(tmp_path, model))
    assert loaded == model
    assert not loaded.graph.initializer[0].raw_data


@pytest.mark.parametrize(
    ("location", "entry", "codes"),
    [
        ("w.bin", {}, []),
        ("w.bin", {"offset": None, "length": None}, []),
        ("w.bin", {"length": 0, "checksum": "abc"}, []),
        ("./w.bin", {}, []),
        ("sub/w.bin", {}, []),
        ("inner", {}, []),
        ("gone.bin", {}, ["ATF109"]),
        ("w.bin", {"offset": 5}, ["ATF110"]),
        ("w.bin", {"offset": 2**62}, ["ATF110"]),
        ("/etc/passwd", {}, ["ATF111"]),
        ("../w.bin", {}, ["ATF111"]),
        ("sub/../w.bin", {}, ["ATF111"]),
        ("..\\w.bin", {}, ["ATF111"]),
        ("C:\\w.bin", {}, ["ATF111"]),
        ("outer", {}, ["ATF111"]),
        ("outer_folder/w.bin", {}, ["ATF111"]),
        ("sub", {}, ["ATF111"]),
        ("pipe", {}, ["ATF111"]),
        ("", {}, ["ATF115"]),
        ("w\0.bin", {}, ["ATF115"]),
        ("w.bin", {"offset": -1}, ["ATF115"]),
        ("w.bin", {"offset": "0x4"}, ["ATF115"]),
        ("w.bin", {"offset": " 4"}, ["ATF115"]),
        ("w.bin", {"length": "٣"}, ["ATF115"]),
        ("w.bin", {"length": 15}, ["ATF115"]),
        ("w.bin", {"offset": 10**30}, ["ATF115"]),
    ],
)
def test_external_entries(tmp_path: Path, location: str, entry: dict[str, object], codes: list[str]) -> None:
    folder = tmp_path / "model"
    (folder / "sub").mkdir(parents=True)
    for path in (tmp_path / "w.bin", folder / "w.bin", folder / "sub" / "w.bin"):
        path.write_bytes(bytes(20))
    (folder / "inner").symlink_to("sub/w.bin")
    (folder / "outer").symlink_to("../w.bin")
    (folder / "outer_folder").symlink_to("..")
    os.mkfifo(folder / "pipe")
    path = saved(folder, external_model(location, **entry))
    if codes:
        assert refused(path) == codes
    else:
        assert store.load(path)


def test_a_repeated_key_and_text_outside_are_refused(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(bytes(20))
    model = external_model()
    model.graph.initializer[0].external_data.add(key="location", value="w.bin")
    assert refused(saved(tmp_path, model)) == ["ATF115"]
    model = external_model()
    model.graph.initializer[0].data_type = TensorProto.STRING
    assert refused(saved(tmp_path, model)) == ["ATF115"]


def test_external_data_is_found_wherever_a_tensor_can_be(tmp_path: Path) -> None:
    def tensor(name: str) -> TensorProto:
        return external_tensor(name, np.zeros(1, np.float32), location=name)

    model = small_model()
    body = helper.make_graph([], "b", [], [], [tensor("body")])
    model.graph.node.append(helper.make_node("Constant", [], ["k"], value=tensor("attribute")))
    model.graph.node.append(helper.make_node("If", ["c"], [], then_branch=body))
    model.graph.initializer.append(tensor("main"))
    model.graph.sparse_initializer.add().values.CopyFrom(tensor("sparse"))
    model.functions.add(name="f", domain="local").node.add().attribute.add(
        name="value", type=onnx.AttributeProto.TENSOR, t=tensor("function")
    )
    model.training_info.add().initialization.initializer.append(tensor("training"))
    text = message(saved(tmp_path, model))
    for place in ("body", "attribute", "main", "sparse", "function", "training"):
        assert f"{place!r} is missing" in text


def test_one_finding_a_file(tmp_path: Path) -> None:
    model = external_model("gone.bin")
    model.graph.initializer.append(external_tensor("v", np.zeros(4, np.float32), location="gone.bin"))
    assert refused(saved(tmp_path, model)) == ["ATF109"]


def test_a_linked_model_finds_its_data_as_in_a_hub_cache(tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    (tmp_path / "snapshot").mkdir()
    (tmp_path / "blobs" / "77aa").write_bytes(bytes(20))
    saved(tmp_path / "blobs", external_model(), "33bb")
    (tmp_path / "snapshot" / "m.onnx").symlink_to("../blobs/33bb")
    assert "symbolic link to" in message(tmp_path / "snapshot" / "m.onnx")
    (tmp_path / "snapshot" / "w.bin").symlink_to("../blobs/77aa")
    assert store.load(tmp_path / "snapshot" / "m.onnx")


@pytest.mark.parametrize(
    ("data_type", "dims", "size"),
    [
        (TensorProto.FLOAT, [2, 3], 24),
        (TensorProto.BFLOAT16, [3], 6),
        (TensorProto.INT4, [3], 2),
        (TensorProto.COMPLEX128, [], 16),
        (TensorProto.BOOL, [0, 5], 0),
        (TensorProto.STRING, [5], None),
        (999, [5], None),
    ],
)
def test_byte_size(data_type: int, dims: list[int], size: int | None) -> None:
    assert external.byte_size(TensorProto(data_type=data_type, dims=dims)) == size


# Writing


def write(model: ModelProto, out: Path, source: Path | None, **options: object) -> list[str]:
    with Transaction([source] if source else []) as outputs:
        return [d.code for d in store.write(model, outputs, out, source, **options)]  # type: ignore[arg-type]


def data_model(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "w.bin").write_bytes(bytes(4) + np.arange(4, dtype="<f4").tobytes())
    return saved(folder, external_model(checksum="abc"))


def sums(path: Path) -> list[float]:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": np.ones(4, np.float32)})[0].tolist()


def test_data_comes_along_and_the_result_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, out = data_model(tmp_path / "in"), tmp_path / "out" / "new.onnx"
    out.parent.mkdir()
    seen: list[tuple[Path, int, int]] = []
    monkeypatch.setattr(external, "_reflink", lambda *_: False)
    model = store.load(source)
    assert write(model, out, source, progress=lambda *call: seen.append(call)) == ["ATF605"]
    assert {p.name for p in out.parent.iterdir()} == {"new.onnx", "w.bin"}
    assert seen == [(out.parent / "w.bin", 20, 20)]
    assert sums(out) == [1, 2, 3, 4]
    # onnx refuses external data with several hard links, in the copy and in the original alike.
    for written in (out, source):
        assert onnx.load(written).graph.initializer[0].raw_data
    assert [p.key for p in store.load(out).graph.initializer[0].external_data] == ["location", "offset", "length"]


def test_data_in_a_folder_below_comes_along_there(tmp_path: Path) -> None:
    source = data_model(tmp_path / "in")
    (tmp_path / "in" / "deep" / "er").mkdir(parents=True)
    os.rename(tmp_path / "in" / "w.bin", tmp_path / "in" / "deep" / "er" / "w.bin")
    source = saved(tmp_path / "in", external_model("deep/er/w.bin"))
    (tmp_path / "out").mkdir()
    write(store.load(source), tmp_path / "out" / "m.onnx", source)
    assert sums(tmp_path / "out" / "m.onnx") == [1, 2, 3, 4]


def test_folders_made_for_data_go_when_the_run_fails(tmp_path: Path) -> None:
    (tmp_path / "in" / "deep").mkdir(parents=True)
    (tmp_path / "in" / "deep" / "w.bin").write_bytes(bytes(20))
    source = saved(tmp_path / "in", external_model("deep/w.bin"))
    (tmp_path / "out").mkdir()
    with pytest.raises(RuntimeError, match="boom"), Transaction() as outputs:
        store.write(store.load(source), outputs, tmp_path / "out" / "m.onnx", source)
        raise RuntimeError("boom")
    assert list((tmp_path / "out").iterdir()) == []


def test_data_in_the_same_folder_stays_untouched(tmp_path: Path) -> None:
    source = data_model(tmp_path)
    before = (tmp_path / "w.bin").stat()
    write(store.load(source), tmp_path / "new.onnx", source)
    after = (tmp_path / "w.bin").stat()
    assert (after.st_ino, after.st_mtime_ns, after.st_nlink) == (before.st_ino, before.st_mtime_ns, 1)
    assert sums(tmp_path / "new.onnx") == [1, 2, 3, 4]


def test_a_copy_that_is_there_already_is_kept_and_another_file_refused(tmp_path: Path) -> None:
    source, out = data_model(tmp_path / "in"), tmp_path / "out" / "m.onnx"
    out.parent.mkdir()
    (out.parent / "w.bin").write_bytes((tmp_path / "in" / "w.bin").read_bytes())
    write(store.load(source), out, source)
    (out.parent / "w.bin").write_bytes(bytes(20))
    old = out.read_bytes()
    with pytest.raises(AtcfuseError) as caught:
        write(external_model(), out, source)
    assert caught.value.diagnostics[0].code == "ATF118"
    assert (out.parent / "w.bin").read_bytes() == bytes(20)
    assert out.read_bytes() == old


def test_the_model_is_never_written_over_its_own_data(tmp_path: Path) -> None:
    source = data_model(tmp_path)
    before = (tmp_path / "w.bin").read_bytes()
    with pytest.raises(AtcfuseError) as caught:
        write(store.load(source), tmp_path / "w.bin", source)
    assert (caught.value.diagnostics[0].code, caught.value.exit_code) == ("ATF123", 2)
    assert (tmp_path / "w.bin").read_bytes() == before


def test_a_copy_keeps_holes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "link", lambda *_: (_ for _ in ()).throw(OSError(18, "cross-device link")))
    monkeypatch.setattr(external, "_reflink", lambda *_: False)
    (tmp_path / "in").mkdir()
    (tmp_path / "out").mkdir()
    with (tmp_path / "in" / "w.bin").open("wb") as stream:
        stream.seek(2**36)
        stream.write(b"end")
        stream.truncate(2**36 + 2**20)
    if (tmp_path / "in" / "w.bin").stat().st_blocks * 512 > 2**20:
        pytest.skip("this filesystem has no holes")
    source = saved(tmp_path / "in", external_model())
    write(store.load(source), tmp_path / "out" / "m.onnx", source)
    copied = tmp_path / "out" / "w.bin"
    with copied.open("rb") as stream:
        stream.seek(2**36)
        assert stream.read(5) == b"end\0\0"
    assert copied.stat().st_size == 2**36 + 2**20
    assert copied.stat().st_blocks * 512 < 2**21


def weights_model() -> tuple[ModelProto, dict[str, bytes]]:
    model = parser.parse_model(ADD.format("small"))
    contents = {"small": np.arange(4, dtype="<f4").tobytes()}
    for name, count in (("odd", 1001), ("page", 2**18), ("last", 300)):
        contents[name] = np.full(count, len(name), "<f4").tobytes()
    for name, raw in contents.items():
        model.graph.initializer.add(name=name, data_type=TensorProto.FLOAT, dims=[len(raw) // 4], raw_data=raw)
    return model, contents


def test_a_model_above_the_limit_gets_its_weights_outside(tmp_path: Path) -> None:
    model, contents = weights_model()
    before = model.SerializeToString()
    out = tmp_path / "big.onnx"
    assert write(model, out, None, limit=100_000) == ["ATF126"]
    assert model.SerializeToString() == before
    assert {p.name for p in tmp_path.iterdir()} == {"big.onnx", "big.onnx.data"}
    assert sums(out) == [1, 2, 3, 4]
    tensors = {t.name: t for t in store.load(out).graph.initializer}
    assert tensors["small"].raw_data == contents["small"]
    data = (tmp_path / "big.onnx.data").read_bytes()
    for name in ("odd", "page", "last"):
        ref = external.reference(tensors[name])
        assert data[ref.offset : ref.offset + (ref.length or 0)] == contents[name]
        assert ref.offset % (4096 if name == "page" else 64) == 0
    onnx.load(out)
    onnx.checker.check_model(str(out))


def test_weights_that_cannot_move_are_refused(tmp_path: Path) -> None:
    model = small_model()
    model.graph.initializer.append(helper.make_tensor("typed", TensorProto.FLOAT, [9999], [0.5] * 9999))
    with pytest.raises(AtcfuseError) as caught:
        write(model, tmp_path / "m.onnx", None, limit=20_000)
    assert caught.value.diagnostics[0].code == "ATF125"
    assert list(tmp_path.iterdir()) == []


def test_moved_weights_do_not_take_the_name_of_present_data(tmp_path: Path) -> None:
    model, _ = weights_model()
    model.graph.initializer.append(external_tensor("w", np.zeros(4, np.float32), location="big.onnx.data"))
    (tmp_path / "big.onnx.data").write_bytes(bytes(16))
    source = saved(tmp_path, model)
    write(store.load(source), tmp_path / "big.onnx", source, limit=100_000)
    assert (tmp_path / "big.onnx.data").read_bytes() == bytes(16)
    assert store.load(tmp_path / "big.onnx")


# Bytes


def test_bytes_are_those_of_protobuf_and_keep_everything() -> None:
    for model in (small_model(), external_model(), weights_model()[0]):
        model.graph.doc_string = "doc"
        model.functions.add(name="f", domain="local")
        data = store.save_bytes(model)
        assert data == model.SerializeToString(deterministic=True)
        assert ModelProto.FromString(data) == model


def test_fields_of_a_newer_onnx_survive(tmp_path: Path) -> None:
    newer = b"\xfa\x3f\x03new"  # field 1023
    model = ModelProto.FromString(weights_model()[0].SerializeToString() + newer)
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString())
    assert newer in store.save_bytes(store.load(path))


def test_a_producer_that_is_not_text_survives(tmp_path: Path) -> None:
    model, _ = weights_model()
    model.producer_name = "PRODUCER"
    path = saved(tmp_path, model)
    path.write_bytes(path.read_bytes().replace(b"PRODUCER", b"\xff" * 8))
    assert store.save_bytes(store.load(path)) == path.read_bytes()


def test_chunks_hold_one_weight_each() -> None:
    model, contents = weights_model()
    message = wire.Message(model)
    chunks = list(message.chunks())
    assert sum(map(len, chunks)) == message.size
    assert max(map(len, chunks)) < len(contents["page"]) + 100


def test_the_written_file_is_private_to_nobody(tmp_path: Path) -> None:
    write(small_model(), tmp_path / "m.onnx", None)
    (tmp_path / "plain").write_bytes(b"")
    assert stat.S_IMODE((tmp_path / "m.onnx").stat().st_mode) == stat.S_IMODE((tmp_path / "plain").stat().st_mode)


@pytest.mark.parametrize("version", [0, -1, -(2**63), 2**40])
def test_an_opset_that_is_none(tmp_path: Path, version: int) -> None:
    model = small_model()
    model.opset_import[0].version = version
    assert refused(saved(tmp_path, model)) == ["ATF129"]


def test_a_stored_tensor_of_negative_size(tmp_path: Path) -> None:
    model = small_model()
    model.graph.initializer.append(TensorProto(name="w", data_type=1, dims=[2, -3], raw_data=b""))
    assert refused(saved(tmp_path, model)) == ["ATF130"]
