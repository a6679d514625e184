"""A check whose tool is absent is listed by name, and fails if every check is required."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.not_run import REQUIRE

ROOT = Path(__file__).parents[2]
CHECKS = """
import pytest
from tests.support.third_party import need

def test_that_frobnicate_accepts_it():
    need("frobnicate-19")

def test_that_is_skipped_for_another_reason():
    pytest.skip("a Tuesday")
"""


def run_checks(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_checks.py").write_text(CHECKS)
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "tests.support.not_run",
            "--rootdir",
            folder,
            folder,
        ],
        env={**os.environ, "PYTHONPATH": str(ROOT), REQUIRE: "", **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_missing_tool_is_listed_with_the_checks_that_need_it(tmp_path: Path) -> None:
    done = run_checks(tmp_path)
    assert done.returncode == pytest.ExitCode.OK
    assert "1 checks NOT RUN" in done.stdout
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("NOT RUN: "))
    assert line.endswith("test_that_frobnicate_accepts_it: frobnicate-19")


def test_a_missing_tool_is_a_failure_where_every_check_is_required(tmp_path: Path) -> None:
    done = run_checks(tmp_path, **{REQUIRE: "1"})
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    assert "1 failed, 1 skipped" in done.stdout
    assert "NOT RUN: frobnicate-19" in done.stdout
