"""Chips as data: what a SoC file says of one, each figure with where it comes from.

A figure is either read somewhere (`source`) or assumed (`assumed: true`, with a reason); nothing in between. A file
may be `like` another chip: what it does not say itself is that chip's figure, and then assumed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from atcfuse.diagnostics import AtcfuseError, UsageError, did_you_mean, error
from atcfuse.strict_yaml import Value, read_documents

_CORES = ("split", "shared")
_LAYOUTS = ("nd", "fractal")
_CODE = ("calls", "operators")
_COUNTS = ("cube_cores", "vector_cores", "l0a", "l0b", "l0c", "l1", "ub", "l2", "icache", "block_bytes")
_ZERO_OR_MORE = ("l1_reserved", "ub_reserved", "cube_call_bytes", "vector_call_bytes")
_RATES = (
    *("cube_mhz", "vector_mhz", "ddr_read", "ddr_write", "l2_read", "l2_write"),
    *("cube_macs_float16", "cube_macs_float32", "cube_macs_int8", "vector_bytes", "occupancy"),
)
_RANGES = ("launch_us", "ddr_access_us", "cube_efficiency", "generated_cube")
_THRESHOLDS = ("min_saving_us",)
_SHARES = ("occupancy", "cube_efficiency", "generated_cube")
FIGURES = (*_COUNTS, *_ZERO_OR_MORE, *_RATES, *_RANGES, *_THRESHOLDS)
"""The figures of a chip, all of which a SoC file gives or takes from the chip it is like."""

_OPTIONAL = ("ddr_gb_s",)


@dataclass(frozen=True)
class Range:
    """A figure known from low to high."""

    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.low:g}" if self.low == self.high else f"{self.low:g} to {self.high:g}"


@dataclass(frozen=True)
class Origin:
    """Where a figure comes from: its source, or the reason for an assumption."""

    text: str
    assumed: bool


@dataclass(frozen=True)
class Device:
    """A chip. Sizes are bytes, rates bytes a cycle and core at the cube's clock, `cube_macs` multiply-adds a cycle and
    core by element type, `vector_bytes` what a vector instruction takes in a cycle.

    `cores` is "split" where cube and vector cores meet in global memory only, "shared" where one core has both units.
    `cube_layout` is "fractal" where the toolkit's products take and give fractal layout only: a change of layout stands
    between them and other operators. `family` names the generated kernels that run on it, None where there are none.
    `ub_reserved` and `l1_reserved` are not for kernels. `cube_efficiency` is what the toolkit's own products reach of
    the peak, `generated_cube` what generated ones reach of those. `cube_call_bytes` (a Matmul) and `vector_call_bytes`
    (a vector call) estimate code size; `code` tells whether they are about calls in a kernel's source or about the
    operators fused. `occupancy` bounds the use of L1 and UB, `min_saving_us` is the least saving worth a fusion.
    `tile_rows` is in no file: the rows that a run asks attention tiles to have, see `tiling.Platform`.
    """

    name: str
    summary: str
    family: str | None
    cores: str
    code: str
    cube_layout: str
    cube_cores: int
    vector_cores: int
    cube_mhz: float
    vector_mhz: float
    l0a: int
    l0b: int
    l0c: int
    l1: int
    l1_reserved: int
    ub: int
    ub_reserved: int
    l2: int
    icache: int
    block_bytes: int
    ddr_read: float
    ddr_write: float
    l2_read: float
    l2_write: float
    cube_macs_float16: float
    cube_macs_float32: float
    cube_macs_int8: float
    vector_bytes: float
    cube_call_bytes: int
    vector_call_bytes: int
    occupancy: float
    min_saving_us: float
    launch_us: Range
    ddr_access_us: Range
    cube_efficiency: Range
    generated_cube: Range
    origins: Mapping[str, Origin] = field(hash=False)
    tile_rows: int = 0

    @property
    def split(self) -> bool:
        """Whether cube and vector cores are apart, so that results of one reach the other through global memory."""
        return self.cores == "split"

    @property
    def ddr_gb_s(self) -> float:
        """What all cores together read from DDR, in 10^9 bytes a second."""
        return self.ddr_read * self.cube_mhz * self.cube_cores / 1000

    def cube_macs(self, dtype: str) -> float:
        """Multiply-adds a cycle and core; what the cube cannot multiply is cast to float16 first."""
        return {"float32": self.cube_macs_float32, "int8": self.cube_macs_int8}.get(dtype, self.cube_macs_float16)

    def origin(self, figure: str) -> str:
        """The figure's origin as the report says it."""
        found = self.origins[figure]
        return f"assumed: {found.text}" if found.assumed else found.text


def device_names() -> tuple[str, ...]:
    """The chips whose files ship with atcfuse, sorted; the articles' own last."""
    names = [f.name.removesuffix(".yaml") for f in _folder().iterdir() if f.name.endswith(".yaml")]
    return tuple(sorted(names, key=lambda name: (name.startswith("published"), name)))


def load_device(name_or_path: str) -> Device:
    """A chip by the name that ATC's `--soc_version` takes, or from a SoC file.

    Raises UsageError ATF160 for an unknown name, AtcfuseError with file, line and column for a mistake in a file.
    """
    path = Path(name_or_path)
    if path.suffix in (".yaml", ".yml"):
        return _read(path, name_or_path, ())
    return _read(_shipped(name_or_path), f"soc/{name_or_path}.yaml", ())


def _folder() -> Any:
    return resources.files("atcfuse") / "soc"


def _shipped(name: str) -> Path:
    names = device_names()
    if name in names:
        return Path(str(_folder() / f"{name}.yaml"))
    exact = next((n for n in names if n.casefold() in (name.casefold(), f"ascend{name}".casefold())), None)
    if name.casefold().startswith("ascend910_93"):
        hint = "no figures of Ascend910_93 are public: write a SoC file that is `like: Ascend910B1` with those you know"
        raise UsageError(error("ATF160", f"there is no chip {name!r}", hint=hint))
    near = f'did you mean "{exact}"?' if exact else did_you_mean(name, names)
    hint = near or f"one of {', '.join(names)}, or a file NAME.yaml"
    raise UsageError(error("ATF160", f"there is no chip {name!r}", hint=hint))


@dataclass(frozen=True)
class _Figure:
    value: float | Range
    origin: Origin


def _read(path: Path, shown: str, seen: tuple[str, ...]) -> Device:
    documents = read_documents(path, shown)
    if len(documents) != 1:
        raise AtcfuseError(error("ATF161", f"{shown} holds {len(documents)} documents", hint="one file, one chip"))
    keys = documents[0].fields(
        ("soc", "summary", "figures"), ("family", "cores", "code", "cube_layout", "like", "sources")
    )
    base = _base(keys.get("like"), seen)
    sources = {name: v.text() for name, _, v in keys["sources"].items()} if "sources" in keys else {}
    figures = {name: _figure(name, v, sources) for name, v in keys["figures"].fields((), FIGURES + _OPTIONAL).items()}
    family = _family(keys.get("family"), base)
    cores = _one_of(keys["cores"], _CORES) if "cores" in keys else base.cores if base else ""
    if not cores:
        raise documents[0].fail("ATF206", "the key 'cores' is missing", "add `cores: split` or `cores: shared`")
    code = _one_of(keys["code"], _CODE) if "code" in keys else base.code if base else "calls"
    layout = _one_of(keys["cube_layout"], _LAYOUTS) if "cube_layout" in keys else base.cube_layout if base else "nd"
    figures = _with_total_rate(_completed(figures, base, keys["figures"]))
    return Device(
        name=keys["soc"].text(),
        summary=keys["summary"].text(),
        family=family,
        cores=cores,
        code=code,
        cube_layout=layout,
        origins={name: f.origin for name, f in figures.items()},
        **{name: figures[name].value for name in FIGURES},  # type: ignore[arg-type]
    )


def _base(like: Value | None, seen: tuple[str, ...]) -> Device | None:
    if like is None:
        return None
    name = like.text()
    if name not in device_names():
        raise like.fail("ATF160", f"there is no chip {name!r}", did_you_mean(name, device_names()))
    if name in seen:
        raise like.fail(
            "ATF163", f"each is like the next: {', '.join((*seen, name))}", "one of them must give its figures itself"
        )
    return _read(_shipped(name), f"soc/{name}.yaml", (*seen, name))


def _family(value: Value | None, base: Device | None) -> str | None:
    if value is None:
        return base.family if base else None
    family = _one_of(value, ("910B", "310P", "none"))
    return None if family == "none" else family


def _one_of(value: Value, choices: tuple[str, ...]) -> str:
    text = value.text()
    if text not in choices:
        hint = did_you_mean(text, choices) or f"one of {', '.join(choices)}"
        raise value.fail("ATF162", f"expected {' or '.join(choices)}, found {text!r}", hint)
    return text


def _figure(name: str, value: Value, sources: Mapping[str, str]) -> _Figure:
    keys = value.fields((), ("value", "low", "high", "source", "assumed", "why"))
    return _Figure(_number(name, value, keys), _origin(value, keys, sources))


def _number(name: str, value: Value, keys: Mapping[str, Value]) -> float | Range:
    if name not in _RANGES:
        if "value" not in keys or "low" in keys or "high" in keys:
            raise value.fail("ATF162", f"{name} is one figure", f"write `{name}: {{value: …, source: …}}`")
        return _checked(name, keys["value"])
    if "value" in keys and not {"low", "high"} & keys.keys():
        only = _checked(name, keys["value"])
        return Range(only, only)
    if "value" in keys or not {"low", "high"} <= keys.keys():
        raise value.fail("ATF162", f"{name} is a range", f"write `{name}: {{low: …, high: …, source: …}}`")
    low, high = _checked(name, keys["low"]), _checked(name, keys["high"])
    if low > high:
        raise keys["low"].fail("ATF162", f"{name} goes from {low:g} down to {high:g}", "the low figure first")
    return Range(low, high)


def _checked(name: str, value: Value) -> float:
    number = value.number()
    whole = name in (*_COUNTS, *_ZERO_OR_MORE)
    least_is_zero = name in (*_ZERO_OR_MORE, *_RANGES, *_THRESHOLDS) and name not in _SHARES
    bounds = "from 0" if least_is_zero else "above 0 to 1" if name in _SHARES else "above 0"
    expected = f"a whole number {bounds}" if whole else f"a number {bounds}"
    good = isinstance(number, int if whole else (int, float)) and number != float("inf")
    if not good or isinstance(number, str) or number < 0 or (number == 0 and not least_is_zero):
        raise value.fail("ATF162", f"{name} must be {expected}, found {number!r}")
    if name in _SHARES and number > 1:
        raise value.fail("ATF162", f"{name} must be {expected}, found {number!r}", "a share, not a percentage")
    return number


def _origin(value: Value, keys: Mapping[str, Value], sources: Mapping[str, str]) -> Origin:
    assumed = "assumed" in keys and keys["assumed"].boolean()
    if assumed == ("source" in keys):
        found = "both a source and an assumption" if assumed else "neither a source nor an assumption"
        raise value.fail("ATF161", f"the figure has {found}", "write `source: …`, or `assumed: true` and `why: …`")
    if assumed:
        if "why" not in keys:
            raise value.fail("ATF161", "the assumption gives no reason", "add `why: …`")
        return Origin(keys["why"].text(), True)
    name, colon, entry = keys["source"].text().partition(":")
    if not colon:
        return Origin(name, False)
    if name not in sources:
        hint = did_you_mean(name, sources) or "name it under `sources:`"
        raise keys["source"].fail("ATF161", f"the source {name!r} is not in the list of sources", hint)
    return Origin(f"{sources[name]}: {entry.strip()}", False)


def _completed(figures: Mapping[str, _Figure], base: Device | None, where: Value) -> dict[str, _Figure]:
    """All figures, those of the base chip where the file has none of its own."""
    complete = dict(figures)
    for name in FIGURES:
        if name in complete:
            continue
        if base is None:
            if name in ("ddr_read", "ddr_write") and "ddr_gb_s" in complete:
                continue
            raise where.fail("ATF206", f"the key {name!r} is missing", f"add `{name}: …` here, or `like: CHIP` above")
        complete[name] = _Figure(getattr(base, name), Origin(f"as {base.name}: {base.origin(name)}", True))
    return complete


def _with_total_rate(figures: dict[str, _Figure]) -> dict[str, _Figure]:
    """The rates of each core, where the file gives the chip's total in GB/s instead."""
    total = figures.pop("ddr_gb_s", None)
    if total is None:
        return figures
    cores, mhz = figures["cube_cores"].value, figures["cube_mhz"].value
    rate = total.value * 1000 / (cores * mhz)  # type: ignore[operator]
    shown = f"{total.value:g} GB/s over {cores} cores at {mhz:g} MHz"
    origin = Origin(f"{shown}; {total.origin.text}", total.origin.assumed)
    return {**figures, "ddr_read": _Figure(rate, origin), "ddr_write": _Figure(rate, origin)}
