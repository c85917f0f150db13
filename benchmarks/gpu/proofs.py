"""Runs the tests that need a GPU, and says of each what it has shown."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

ROOT = Path(__file__).parents[2]


def prove(folders: list[str], limit_seconds: float) -> list[dict[str, Any]]:
    """The outcome of each test.

    Args:
        folders: of tests, from the repository's root.
        limit_seconds: for all of them together; what was not reached is not among the outcomes.
    """
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
        process = subprocess.Popen([*command, *folders], cwd=ROOT)
        try:
            process.wait(limit_seconds)
        except subprocess.TimeoutExpired:
            process.terminate()  # pytest still writes its report
            process.wait()
        return outcomes(report.read_text()) if report.exists() else []


def outcomes(report: str) -> list[dict[str, Any]]:
    """What a JUnit report tells of each test.

    Example:
        >>> case = '<testcase classname="tests.gpu.test_nccl" name="test_operations[2]" time="3.5"/>'
        >>> outcomes(f"<testsuites><testsuite>{case}</testsuite></testsuites>")
        [{'test': 'tests.gpu.test_nccl::test_operations[2]', 'seconds': 3.5, 'outcome': 'proven'}]
    """
    found = []
    for case in ElementTree.fromstring(report).iter("testcase"):
        told = {"test": f"{case.get('classname')}::{case.get('name')}", "seconds": float(case.get("time", 0))}
        why = next((one for one in case if one.tag in ("failure", "error", "skipped")), None)
        if why is None:
            found.append({**told, "outcome": "proven"})
        else:
            outcome = "skipped" if why.tag == "skipped" else "failed"
            found.append({**told, "outcome": outcome, "why": (why.get("message") or "")[:500]})
    return found
