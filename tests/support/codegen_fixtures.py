"""Fixtures of code generation: an edge with a worker, the targets of this CPU, the interpreter."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterator

import pytest

from kernelfarm.internal.v1.codegen_service_pb2_grpc import CodegenServiceStub
from kernelfarm.service.channels import open_channel
from tests.support.codegen_processes import CodegenFarm, codegen_farm


@pytest.fixture(scope="session")
def codegen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CodegenFarm]:
    """An edge, and a worker of two processes; tests that hurt them start their own."""
    with codegen_farm(tmp_path_factory.mktemp("codegen")) as started:
        started.start_edge()
        started.start_worker(concurrency=2)
        yield started


@pytest.fixture
async def stub(codegen: CodegenFarm) -> AsyncIterator[CodegenServiceStub]:
    async with open_channel(codegen.address) as channel:
        yield CodegenServiceStub(channel)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Runs tests that use `each_cpu_target` once for each target that this CPU can run."""
    if "each_cpu_target" in metafunc.fixturenames:
        from tests.support.compiled_kernels import run_targets  # noqa: PLC0415 # imports llvmlite

        metafunc.parametrize("each_cpu_target", run_targets(), indirect=True, scope="module")


@pytest.fixture(scope="module")
def each_cpu_target(request: pytest.FixtureRequest) -> Iterator[str]:
    """The target of kernels that state none."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("KERNELFARM_HOST_TARGET", request.param)
        yield request.param


@pytest.fixture(scope="session", autouse=True)
def shared_interpreter() -> Iterator[None]:
    """Ends Triton's interpreter, which the first test that needs it starts, with the session."""
    yield
    if "tests.support.triton_interpreter" in sys.modules:
        sys.modules["tests.support.triton_interpreter"].end_interpreter()
