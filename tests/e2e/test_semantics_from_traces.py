"""Graphs that begin from the farm's traces behave like traced ones: a slice of semantics."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SLICE = ("test_mutation.py", "test_shapes.py", "test_types.py")


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_semantics_hold_for_graphs_that_nobody_here_traced() -> None:
    files = [f"tests/e2e/semantics/{name}" for name in SLICE]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--warm-traces", "-p", "no:cacheprovider", *files],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-6000:]
    reported = re.search(r"(\d+) graphs began from traces", done.stdout)
    assert reported is not None and int(reported.group(1)) > 50, done.stdout[-2000:]
