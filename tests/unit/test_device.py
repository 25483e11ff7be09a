"""SoC files: every figure has an origin, mistakes have a place, names are ATC's."""

from __future__ import annotations

from pathlib import Path

import pytest

from atcfuse.device import FIGURES, Device, Range, device_names, load_device
from atcfuse.diagnostics import AtcfuseError, UsageError

CHIP = """\
soc: Test1
summary: a chip
like: Ascend910B1
sources: {sheet: the data sheet}
figures:
  cube_cores: {value: 20, source: "sheet: page 3"}
  launch_us: {low: 1, high: 2, assumed: true, why: a guess}
"""


def load(tmp_path: Path, text: str) -> Device:
    (tmp_path / "chip.yaml").write_text(text)
    return load_device(str(tmp_path / "chip.yaml"))


@pytest.mark.parametrize("name", device_names())
def test_every_shipped_chip_has_all_figures_with_an_origin(name: str) -> None:
    device = load_device(name)
    assert device.name == name
    assert set(device.origins) == set(FIGURES)
    assert all(origin.text for origin in device.origins.values())
    assert all(device.origin(f).startswith("assumed: ") == o.assumed for f, o in device.origins.items())


def test_the_chips_that_must_be_there_are() -> None:
    chips = {"Ascend910A", "Ascend910B1", "Ascend910B4", "Ascend310P3", "Ascend310B1"}
    assert chips | {"published-attention", "published-autofusion", "published-elementwise"} <= set(device_names())


def test_default_chip_has_the_figures_of_its_platform_file() -> None:
    device = load_device("Ascend910B1")
    assert (device.cube_cores, device.vector_cores, device.split) == (24, 48, True)
    assert (device.ub - device.ub_reserved, device.l2, device.icache) == (188_160, 192 << 20, 32 << 10)
    assert device.ddr_gb_s == pytest.approx(1420.8)
    assert not device.origins["ub"].assumed
    assert device.origin("l2") == "CANN platform_config/Ascend910B1.ini: l2_size"
    assert device.origins["launch_us"].assumed


@pytest.mark.parametrize("name", ["Ascend910B2", "Ascend910B3", "Ascend910B4"])
def test_chips_without_a_trustworthy_file_are_assumptions_throughout(name: str) -> None:
    assert all(origin.assumed for origin in load_device(name).origins.values())


def test_what_is_taken_from_another_chip_is_assumed(tmp_path: Path) -> None:
    device = load(tmp_path, CHIP)
    assert (device.cube_cores, device.launch_us, device.l2) == (20, Range(1, 2), 192 << 20)
    assert device.origin("cube_cores") == "the data sheet: page 3"
    assert device.origin("l2").startswith("assumed: as Ascend910B1: ")
    assert (device.family, device.cores) == ("910B", "split")


def test_a_total_rate_replaces_the_rate_of_a_core(tmp_path: Path) -> None:
    device = load(tmp_path, CHIP + '  ddr_gb_s: {value: 740, source: "sheet: page 4"}\n')
    assert device.ddr_gb_s == pytest.approx(740)
    assert device.ddr_read == device.ddr_write == pytest.approx(740_000 / (20 * 1850))
    assert "page 4" in device.origin("ddr_read")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("Ascend910B9", 'did you mean "Ascend910B'),
        ("ascend910b1", 'did you mean "Ascend910B1"?'),
        ("910B4", 'did you mean "Ascend910B4"?'),
        ("published-atention", 'did you mean "published-attention"?'),
        ("Kirin", "one of Ascend310, "),
        ("Ascend910_9391", "no figures of Ascend910_93 are public"),
    ],
)
def test_unknown_names_get_a_hint(name: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        load_device(name)
    (found,) = caught.value.diagnostics
    assert found.code == "ATF160"
    assert found.hint.startswith(hint)


@pytest.mark.parametrize(
    ("old", "new", "code", "place"),
    [
        ("value: 20", "value: -20", "ATF162", "6:23"),
        ("value: 20", "value: 2.5", "ATF162", "6:23"),
        ("value: 20", "value: many", "ATF162", "6:23"),
        ("low: 1, high: 2", "low: 3, high: 2", "ATF162", "7:20"),
        ("low: 1, high: 2", "low: 1", "ATF162", "7:14"),
        ("cube_cores: {value: 20", "cube_cores: {low: 20, high: 30", "ATF162", "6:15"),
        ("cube_cores: {value: 20", "occupancy: {value: 80", "ATF162", "6:22"),
        (', source: "sheet: page 3"', "", "ATF161", "6:15"),
        (', source: "sheet: page 3"', ', source: "sheet: page 3", assumed: true', "ATF161", "6:15"),
        (', source: "sheet: page 3"', ", assumed: false", "ATF161", "6:15"),
        ("sheet: page 3", "shet: page 3", "ATF161", "6:35"),
        (", why: a guess", "", "ATF161", "7:14"),
        ("cube_cores", "cube_core", "ATF202", "6:3"),
        ("like: Ascend910B1", "like: Ascend910B", "ATF160", "3:7"),
        ("like: Ascend910B1\n", "cores: split\n", "ATF206", "6:3"),
        ("like: Ascend910B1\n", "cores: both\n", "ATF162", "3:8"),
    ],
)
def test_mistakes_have_a_code_and_a_place(tmp_path: Path, old: str, new: str, code: str, place: str) -> None:
    assert old in CHIP
    with pytest.raises(AtcfuseError) as caught:
        load(tmp_path, CHIP.replace(old, new))
    (found,) = caught.value.diagnostics
    assert (found.code, str(found.span)) == (code, f"{tmp_path / 'chip.yaml'}:{place}")


def test_two_chips_in_a_file_and_missing_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(AtcfuseError) as caught:
        load(tmp_path, f"{CHIP}---\n{CHIP}")
    assert caught.value.diagnostics[0].code == "ATF161"
    with pytest.raises(AtcfuseError) as caught:
        load_device(str(tmp_path / "none.yaml"))
    assert caught.value.diagnostics[0].code == "ATF200"


def test_a_circle_of_likenesses_ends_in_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atcfuse.device._folder", lambda: tmp_path)
    for name, other in (("A", "B"), ("B", "A")):
        (tmp_path / f"{name}.yaml").write_text(CHIP.replace("Test1", name).replace("Ascend910B1", other))
    with pytest.raises(AtcfuseError) as caught:
        load_device("A")
    assert caught.value.diagnostics[0].code == "ATF163"


def test_devices_can_be_keys() -> None:
    assert len({load_device("Ascend910B1"), load_device("Ascend910B1"), load_device("Ascend910B2")}) == 2
