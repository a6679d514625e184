"""A codegen room that the farm's tests share; tests that hurt it start their own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from kernelfarm.internal.v1.codegen_service_pb2_grpc import CodegenServiceStub
from kernelfarm.service.channels import open_channel
from tests.farm.processes import CodegenRoom, codegen_room


@pytest.fixture(scope="session")
def room(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CodegenRoom]:
    """A room with an edge and a worker of two processes."""
    with codegen_room(tmp_path_factory.mktemp("room")) as started:
        started.start_edge()
        started.start_worker(concurrency=2)
        yield started


@pytest.fixture
async def stub(room: CodegenRoom) -> AsyncIterator[CodegenServiceStub]:
    async with open_channel(room.address) as channel:
        yield CodegenServiceStub(channel)
