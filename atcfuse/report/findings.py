"""What other tools show of a run in place: diagnostics and what was kept, as SARIF, JUnit XML or code quality JSON."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree

from atcfuse import __version__
from atcfuse.diagnostics import Diagnostic, code_page
from atcfuse.report.document import Report
from atcfuse.report.groups import all_diagnostics
from atcfuse.report.names import printable, shorten

SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_LEVELS = {"error": "error", "warning": "warning", "info": "note"}
_TEXT_LIMIT = 1000
_GITLAB = {"error": "major", "warning": "minor", "info": "info"}


@dataclass(frozen=True)
class Finding:
    """One statement about a model: `severity` is error, warning or info, `node` "" where it is about no node."""

    code: str
    severity: str
    text: str
    hint: str = ""
    node: str = ""
    rule: str = ""


def of_diagnostics(diagnostics: Iterable[Diagnostic]) -> list[Finding]:
    """The findings of `atcfuse check`."""
    return [_finding(d.as_dict()) for d in diagnostics]


def of_report(report: Report) -> list[Finding]:
    """The diagnostics of a run, then everything it kept."""
    kept = [Finding(k["code"], "info", k["reason"], k["hint"] or "", k["anchor"], k["rule"]) for k in report["kept"]]
    return [*(_finding(d) for d in all_diagnostics(report)), *kept]


def _finding(entry: Any) -> Finding:
    text = "; ".join([entry["message"], *entry.get("notes", ())])
    return Finding(entry["code"], entry["severity"], text, entry.get("hint") or "")


def sarif(model: str, findings: Sequence[Finding]) -> str:
    """The findings as SARIF 2.1.0; the model is the file they are in, nodes are logical places of it."""
    codes = sorted({f.code for f in findings})
    driver = {"name": "atcfuse", "version": __version__, "rules": [_sarif_rule(code) for code in codes]}
    run = {"tool": {"driver": driver}, "results": [_sarif_result(model, f, codes) for f in findings]}
    document = {"$schema": SARIF_SCHEMA, "version": "2.1.0", "runs": [run]}
    return json.dumps(document, indent=2, sort_keys=True, ensure_ascii=True) + "\n"


def _sarif_rule(code: str) -> dict[str, Any]:
    page = code_page(code) or code
    title = page.splitlines()[0].removeprefix("# ").partition(": ")[2] or code
    return {"id": code, "shortDescription": {"text": title}, "help": {"text": page, "markdown": page}}


def _sarif_result(model: str, finding: Finding, codes: Sequence[str]) -> dict[str, Any]:
    place: dict[str, Any] = {"physicalLocation": {"artifactLocation": {"uri": _uri(model)}, "region": {"startLine": 1}}}
    if finding.node:
        place["logicalLocations"] = [{"fullyQualifiedName": printable(finding.node), "kind": "function"}]
    return {
        "ruleId": finding.code,
        "ruleIndex": codes.index(finding.code),
        "level": _LEVELS[finding.severity],
        "message": {"text": _sentence(finding)},
        "locations": [place],
    }


def _uri(model: str) -> str:
    from urllib.parse import quote

    return quote(model)


def _sentence(finding: Finding) -> str:
    where = f"{finding.node}: " if finding.node else ""
    rule = f" [{finding.rule}]" if finding.rule else ""
    return shorten(f"{where}{finding.text}{rule}{f'. {finding.hint}' if finding.hint else ''}", _TEXT_LIMIT)


def junit(model: str, findings: Sequence[Finding]) -> str:
    """The findings as JUnit XML: errors are failures, all else is skipped with its reason; none is one test passed."""
    failures = sum(f.severity == "error" for f in findings)
    counts = {"tests": max(len(findings), 1), "failures": failures, "skipped": len(findings) - failures, "errors": 0}
    attributes = {"name": f"atcfuse {printable(model)}", **{k: str(v) for k, v in counts.items()}}
    suites = ElementTree.Element("testsuites")
    suite = ElementTree.SubElement(suites, "testsuite", attributes)
    if not findings:
        ElementTree.SubElement(suite, "testcase", {"classname": "atcfuse", "name": "nothing to report"})
    for finding in findings:
        name = printable(finding.node) or finding.code
        case = ElementTree.SubElement(suite, "testcase", {"classname": f"atcfuse.{finding.code}", "name": name})
        kind = "failure" if finding.severity == "error" else "skipped"
        ElementTree.SubElement(case, kind, {"message": _sentence(finding)})
    ElementTree.indent(suites)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(suites, encoding="unicode") + "\n"


def code_quality(model: str, findings: Sequence[Finding]) -> str:
    """The findings as GitLab's code quality report."""
    entries = [
        {
            "description": _sentence(finding),
            "check_name": finding.code,
            "fingerprint": hashlib.sha256(f"{model}\0{finding.code}\0{_sentence(finding)}".encode()).hexdigest(),
            "severity": _GITLAB[finding.severity],
            "location": {"path": model, "lines": {"begin": 1}},
        }
        for finding in findings
    ]
    return json.dumps(entries, indent=2, sort_keys=True, ensure_ascii=True) + "\n"
