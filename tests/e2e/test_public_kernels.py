"""Kernels of public packages (Liger, FlagGems), called in models, are compiled by the farm.

The packages are installed into a folder of the test, without their dependencies, so that the test
environment does not change. Without a package index, the test is listed as NOT RUN.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.farm import Farm
from tests.support.public_kernels.kernel import PINNED
from tests.support.torch_children import run_python

_TARGETS = ("cuda:sm_90a", "rocm:gfx942")
_INSTALL_S = 240
_COMPILE_S = 900
_FEWEST = 10

pytestmark = [pytest.mark.slow, pytest.mark.timeout(_INSTALL_S + _COMPILE_S)]


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the pinned packages."""
    folder = tmp_path_factory.mktemp("packages")
    words = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--no-input"]
    words += ["--no-deps", "--target", str(folder), *PINNED]
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=_INSTALL_S, check=False
        )
    except subprocess.TimeoutExpired:
        pytest.skip("NOT RUN: a package index that answers")
    if done.returncode:
        pytest.skip(f"NOT RUN: {' and '.join(PINNED[:2])}")
    return folder


def test_ten_public_kernels_in_models_compile_for_both_vendors(
    packages: Path, vendor_farm: Farm
) -> None:
    words = ("-m", "tests.support.public_kernels.captures", str(packages))
    where = ("--endpoint", vendor_farm.endpoint, *(w for t in _TARGETS for w in ("--target", t)))
    done = run_python((*words, *where), dict(os.environ), timeout_s=_COMPILE_S)

    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, dict[str, str]] = json.loads(done.stdout.splitlines()[-1])
    problems = {
        f"{name} for {target}": problem
        for name, of_target in found.items()
        for target, problem in of_target.items()
        if problem
    }
    assert not problems, json.dumps(problems, indent=1)
    assert len(found) >= _FEWEST
