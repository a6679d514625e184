"""The secrets that `deploy/make_secrets.sh` makes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.known_variables import ROOT


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """A folder that the script made, and the token that it printed."""
    folder = tmp_path_factory.mktemp("deploy") / "secrets"
    command = [str(ROOT / "deploy/make_secrets.sh"), str(folder), "farm.example", "kf-kernelfarm"]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    ended = subprocess.run(
        command, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    yield folder, ended.stdout.split()[-1]
    again = subprocess.run(command, capture_output=True, text=True, check=False)
    assert again.returncode == 1 and "nothing was changed" in again.stderr
