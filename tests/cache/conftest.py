"""Real servers for the cache tests: the embedded one, and the one on PATH."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from kernelfarm.cache import KernelCache, Space
from kernelfarm.cache.embedded import (
    EmbeddedServer,
    Role,
    ServerProgram,
    embedded_program,
    start_server,
)

PROGRAMS = {
    "embedded": embedded_program(),
    "path": (found := shutil.which("redis-server")) and ServerProgram(Path(found), "PATH"),
    # One more server for a wider check by hand, such as a Redis 6.2.
    "extra": (extra := os.environ.get("KERNELFARM_TEST_REDIS"))
    and ServerProgram(Path(extra), "extra"),
}


@pytest.fixture(scope="session", params=[name for name, found in PROGRAMS.items() if found])
def server(request: pytest.FixtureRequest) -> Iterator[EmbeddedServer]:
    started = start_server(Role.CACHE, program=PROGRAMS[request.param])
    yield started
    started.stop()


@pytest.fixture
async def cache(
    server: EmbeddedServer, request: pytest.FixtureRequest
) -> AsyncIterator[KernelCache]:
    """The kernel space of a namespace that is the test's own."""
    namespace = request.node.name
    async with KernelCache(server.url, namespace=namespace, space=Space.KERNELS) as opened:
        yield opened
