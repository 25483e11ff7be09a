"""The command line: `atcfuse COMMAND …`. Commands parse, call and print; they decide nothing."""

from atcfuse.cli.app import cli, main, run

__all__ = ["cli", "main", "run"]
