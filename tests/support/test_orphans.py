"""A worker of pytest-xdist that crashes leaves no process behind, and no open output."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.farm import TIMEOUT_S, wait_until
from tests.support.processes import is_running

ROOT = Path(__file__).parents[2]
TESTS = """
import os, pathlib, signal, subprocess, sys

def test_that_crashes():
    # Its standard error is that of the run.
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
    pathlib.Path(__file__).with_name("child").write_text(str(child.pid))
    os.kill(os.getpid(), signal.SIGSEGV)

def test_that_passes():
    pass
"""


def test_what_a_crashed_worker_started_ends(tmp_path: Path) -> None:
    (tmp_path / "test_crash.py").write_text(TESTS)
    arguments = ("-n", "1", "-p", "tests.support.orphans", "--rootdir", str(tmp_path))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *arguments, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,  # reads until every process has closed it
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    assert "1 failed, 1 passed" in done.stdout
    child = int((tmp_path / "child").read_text())
    wait_until(lambda: not is_running(child), TIMEOUT_S, "the end of what the worker started")
