"""Lists the checks that could not run because a third-party tool is absent, or fails them.

Such a test skips with `NOT RUN: <tool>`. If KERNELFARM_REQUIRE_THIRD_PARTY is 1, as in CI, it fails
instead, unless the processor lacks a feature, which cannot be installed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.support.xdist_groups import without_group

PREFIX = "NOT RUN: "
PROCESSOR = "a processor with "
"""Begins what the processor lacks, as in `NOT RUN: a processor with AVX-512`."""
REQUIRE = "KERNELFARM_REQUIRE_THIRD_PARTY"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Iterator[None]:
    """Turns a check that did not run into a failure, where every check is required."""
    report = yield
    missing = missing_tool(report)
    if missing is not None and not missing.startswith(PROCESSOR) and os.environ.get(REQUIRE) == "1":
        report.outcome = "failed"
        report.longrepr = f"{PREFIX}{missing}, and {REQUIRE} is 1: install it"
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Lists the checks that did not run, each with the tool that it needs."""
    skipped = terminalreporter.getreports("skipped")
    checks = [(report.nodeid, m) for report in skipped if (m := missing_tool(report)) is not None]
    if not checks:
        return
    terminalreporter.section(f"{len(checks)} checks NOT RUN", sep="-", yellow=True)
    for name, missing in checks:
        terminalreporter.line(f"{PREFIX}{without_group(name)}: {missing}")


def missing_tool(report: pytest.TestReport) -> str | None:
    """The tool that a skipped check needs; None if it ran, or was skipped for another reason."""
    if not report.skipped or not isinstance(report.longrepr, tuple | list):
        return None
    reason = report.longrepr[2].removeprefix("Skipped: ")
    return reason.removeprefix(PREFIX) if reason.startswith(PREFIX) else None
