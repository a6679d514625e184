"""`examples/plain_client`: a program is compiled and run by a process that cannot import torch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.farm import TIMEOUT_S, Farm

ROOT = Path(__file__).parents[2]


def test_a_saved_graph_runs_without_torch(farm: Farm, without_torch: Path) -> None:
    command = [sys.executable, "-m", "examples.plain_client", "--endpoint", farm.endpoint]
    done = subprocess.run(
        [*command, "--keys", str(farm.keys / "public.json")],
        env={**os.environ, "PYTHONPATH": f"{without_torch}{os.pathsep}{ROOT}"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "for cpu:" in done.stdout
    assert "largest difference from NumPy" in done.stdout


def test_a_program_of_an_untrusted_key_is_not_loaded(
    farm: Farm, without_torch: Path, tmp_path: Path
) -> None:
    keys = tmp_path / "public.json"
    keys.write_text("[]")
    command = [sys.executable, "-m", "examples.plain_client", "--endpoint", farm.endpoint]
    done = subprocess.run(
        [*command, "--keys", str(keys)],
        env={**os.environ, "PYTHONPATH": f"{without_torch}{os.pathsep}{ROOT}"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode != 0
    assert "UntrustedKeyError" in done.stderr
