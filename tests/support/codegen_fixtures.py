"""Fixtures of code generation: a service and its worker, targets of this CPU, the interpreter."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterator

import pytest

from kernelfarm.internal.v1.codegen_service_pb2_grpc import CodegenServiceStub
from kernelfarm.service.channels import open_channel
from tests.support.codegen_processes import CodegenFarm, codegen_farm


@pytest.fixture(scope="session")
def codegen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CodegenFarm]:
    """The service and a worker of two processes; tests that hurt them start their own."""
    with codegen_farm(tmp_path_factory.mktemp("codegen")) as started:
        started.start_edge()
        started.start_worker(concurrency=2)
        yield started


@pytest.fixture
async def stub(codegen: CodegenFarm) -> AsyncIterator[CodegenServiceStub]:
    async with open_channel(codegen.address) as channel:
        yield CodegenServiceStub(channel)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Runs what asks for each target of this CPU once for each that it runs."""
    if "each_cpu_target" in metafunc.fixturenames:
        from tests.support.compiled_kernels import run_targets  # noqa: PLC0415 # imports llvmlite

        metafunc.parametrize("each_cpu_target", run_targets(), indirect=True, scope="module")


@pytest.fixture(scope="module")
def each_cpu_target(request: pytest.FixtureRequest) -> Iterator[str]:
    """Kernels that state no target are made for this one."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("KERNELFARM_HOST_TARGET", request.param)
        yield request.param


@pytest.fixture(scope="session", autouse=True)
def shared_interpreter() -> Iterator[None]:
    """The first test that needs Triton's interpreter starts it; the session's end ends it."""
    yield
    if "tests.support.triton_interpreter" in sys.modules:
        sys.modules["tests.support.triton_interpreter"].end_interpreter()
