"""Reports: what a run did to a model, as JSON, text and Markdown; their comparison and the CI gate on it.

A report is a plain document of the schema `atcfuse.report/1` (`report.schema.json`). Everything here renders or
compares documents; nothing decides what fuses.
"""

from atcfuse.report.compare import DIFF_SCHEMA, Diff, diff, is_empty
from atcfuse.report.contract import SCHEMA, report_schema, validate
from atcfuse.report.diff_markdown import diff_markdown
from atcfuse.report.diff_text import diff_text
from atcfuse.report.document import Report, read_report, settings_of, to_json
from atcfuse.report.gate import gate, over_budget, regressions
from atcfuse.report.markdown import to_markdown
from atcfuse.report.text import to_line, to_text

diff_json = to_json
"""A difference as JSON text, as byte-stable as a report."""

__all__ = [
    "DIFF_SCHEMA",
    "SCHEMA",
    "Diff",
    "Report",
    "diff",
    "diff_json",
    "diff_markdown",
    "diff_text",
    "gate",
    "is_empty",
    "over_budget",
    "read_report",
    "regressions",
    "report_schema",
    "settings_of",
    "to_json",
    "to_line",
    "to_markdown",
    "to_text",
    "validate",
]
