"""Checks that could not run because a tool of others is absent: told by name, or failed.

A test says so by skipping with `NOT RUN: <tool>`. Where KERNELFARM_REQUIRE_THIRD_PARTY is 1, as in
CI, that is a failure, but for what the processor lacks: nobody can install that.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

PREFIX = "NOT RUN: "
PROCESSOR = "a processor with "
"""Begins what the machine lacks, as in `NOT RUN: a processor with AVX-512`."""
REQUIRE = "KERNELFARM_REQUIRE_THIRD_PARTY"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Iterator[None]:
    """Makes a failure of a check that did not run, where every check is required."""
    report = yield
    missing = missing_tool(report)
    if missing is not None and not missing.startswith(PROCESSOR) and os.environ.get(REQUIRE) == "1":
        report.outcome = "failed"
        report.longrepr = f"{PREFIX}{missing}, and {REQUIRE} is 1: install it"
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Lists the checks that did not run, with what each of them misses."""
    skipped = terminalreporter.getreports("skipped")
    checks = [(report.nodeid, m) for report in skipped if (m := missing_tool(report)) is not None]
    if not checks:
        return
    terminalreporter.section(f"{len(checks)} checks NOT RUN", sep="-", yellow=True)
    for name, missing in checks:
        terminalreporter.line(f"{PREFIX}{name}: {missing}")


def missing_tool(report: pytest.TestReport) -> str | None:
    """What a skipped check misses; None if it ran, or was skipped for another reason."""
    if not report.skipped or not isinstance(report.longrepr, tuple | list):
        return None
    reason = report.longrepr[2].removeprefix("Skipped: ")
    return reason.removeprefix(PREFIX) if reason.startswith(PREFIX) else None
