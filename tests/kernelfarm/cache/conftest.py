"""Real servers for the cache tests: each installed server of the matrix, or all of them.

Tests marked `one_server` take seconds on each server. They run on one server unless all are
requested: they test sequences of our scripts, and other tests run each script on every server.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from kernelfarm.cache import EdgeCache, Space
from kernelfarm.cache.embedded import EmbeddedServer, ServerProgram, ServerRole, start_server
from tests.support.redis_servers import server_named, wanted_servers


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Runs tests that use `program` on each server of the matrix, or on the first one found."""
    if "program" in metafunc.fixturenames:
        names = wanted_servers(metafunc.config)
        is_one_enough = metafunc.definition.get_closest_marker("one_server") is not None
        if is_one_enough and metafunc.config.getoption("--servers") != "all":
            names = names[:1]
        metafunc.parametrize("program", names, indirect=True, scope="session")


@pytest.fixture(scope="session")
def program(request: pytest.FixtureRequest) -> ServerProgram:
    """A server of the matrix."""
    return server_named(request.param)


@pytest.fixture(scope="session")
def server(program: ServerProgram) -> Iterator[EmbeddedServer]:
    started = start_server(ServerRole.CACHE, program=program)
    yield started
    started.stop()


@pytest.fixture
async def cache(server: EmbeddedServer, request: pytest.FixtureRequest) -> AsyncIterator[EdgeCache]:
    """The key space of kernels in a namespace of the test's own."""
    namespace = request.node.name
    async with EdgeCache(server.url, namespace=namespace, space=Space.KERNELS) as opened:
        yield opened
