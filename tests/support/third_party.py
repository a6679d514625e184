"""Third-party tools that tests need; a test whose tool is absent is listed as NOT RUN."""

from __future__ import annotations

import shutil
import subprocess

import pytest


def need(*names: str) -> None:
    """Skips the test with `NOT RUN: <tool>` for the first tool that is not on PATH."""
    for name in names:
        if shutil.which(name) is None:
            pytest.skip(f"NOT RUN: {name}")


def output_of(*command: str, text: str | None = None) -> str:
    """The output of a tool; if it fails, the test fails with its error output."""
    finished = subprocess.run(
        command, input=text, capture_output=True, text=True, timeout=120, check=False
    )
    assert finished.returncode == 0, f"{command[0]}: {finished.stderr[-3000:]}"
    return finished.stdout
