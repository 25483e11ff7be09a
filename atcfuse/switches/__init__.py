"""Fusion switch files: which fusions are on.

The file is the one a user passes to ATC's `--fusion_switch_file`: JSON, legacy `Name:on|off` lines, or (read by atcfuse
only) YAML of the JSON's shape. It is read with ATC's semantics, traps included: what makes ATC reject the file is an
error here, what ATC accepts but reads otherwise than it looks is a warning.
"""

from __future__ import annotations

from atcfuse.switches.model import NO_SWITCHES, Kind, Switches, SwitchState, describe, explain_switch
from atcfuse.switches.reader import read_switches

__all__ = ["Kind", "NO_SWITCHES", "SwitchState", "Switches", "describe", "explain_switch", "read_switches"]
