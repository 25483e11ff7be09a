"""The chips by the names that ATC's `--soc_version` takes."""

from __future__ import annotations

from atcfuse.diagnostics import UsageError, did_you_mean, error

SOC_NAMES = (
    "Ascend310B1",
    "Ascend310P1",
    "Ascend310P3",
    "Ascend910A",
    "Ascend910B1",
    "Ascend910B2",
    "Ascend910B3",
    "Ascend910B4",
    "Ascend910PremiumA",
    "Ascend910ProA",
    "Ascend910ProB",
)


def parse_soc(text: str) -> str:
    """A chip by name. Raises UsageError ATF130; names are case-sensitive, as they are in ATC."""
    if text in SOC_NAMES:
        return text
    exact = next((name for name in SOC_NAMES if name.casefold() == text.strip().casefold()), None)
    near = f'did you mean "{exact}"?' if exact else did_you_mean(text, SOC_NAMES)
    raise UsageError(error("ATF130", f"there is no chip {text!r}", hint=near or f"one of {', '.join(SOC_NAMES)}"))
