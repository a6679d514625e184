"""One process compiles several kernels of one namespace; none affects the next one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kernelfarm.errors import KernelRejectedError
from kernelfarm.internal.v1.codegen_service_pb2_grpc import CodegenServiceStub
from kernelfarm.v1 import artifact_pb2
from tests.support.codegen_calls import artifacts_of, build_fresh
from tests.support.codegen_processes import CodegenFarm, codegen_farm

FIRST, SECOND = "kernel 1 of its process", "kernel 2 of its process"
MOST = 128


@pytest.fixture(scope="module")
def codegen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CodegenFarm]:
    # A tenant that uses much gets a process of a lower priority; here all have the same one.
    times = {"quick_time_limit_s": "1", "job_time_limit_s": "2.5", "slow_niceness": "0"}
    with codegen_farm(tmp_path_factory.mktemp("reuse"), **times) as started:
        started.environment["ECHO_STAYS"] = "1"
        started.start_edge()
        started.start_worker()
        yield started


async def build(stub: CodegenServiceStub, name: str, tenant: str) -> artifact_pb2.Artifact:
    response = await build_fresh(stub, name, namespace=f"default/{tenant}")
    return artifacts_of(response)[-1]


async def notes(stub: CodegenServiceStub, name: str, tenant: str) -> list[str]:
    return list((await build(stub, f"counted_{name}", tenant)).notes)


async def test_a_process_never_serves_two_namespaces(stub: CodegenServiceStub) -> None:
    assert await notes(stub, "a0", "acme") == [FIRST]
    assert await notes(stub, "a1", "acme") == [SECOND], "and the folder of each is empty"
    assert await notes(stub, "b0", "beta") == [FIRST]
    assert await notes(stub, "a2", "acme") == [FIRST]


async def test_a_process_ends_after_its_number_of_kernels(stub: CodegenServiceStub) -> None:
    counts = [(await notes(stub, f"m{number}", "many"))[0] for number in range(MOST + 1)]
    assert counts[-2:] == [f"kernel {MOST} of its process", FIRST]


@pytest.mark.parametrize(
    ("kind", "reported"),
    [("rejected", "no such instruction"), ("crash", "SIGSEGV"), ("spin", "longer than")],
)
async def test_a_process_ends_after_an_error(
    kind: str, reported: str, codegen: CodegenFarm, stub: CodegenServiceStub
) -> None:
    assert await notes(stub, f"before_{kind}", kind) == [FIRST]
    with pytest.raises(KernelRejectedError, match=reported):
        await build(stub, f"{kind}_second", kind)
    assert codegen.compilations(f"{kind}_second") == 2, "only a fresh process may refuse a kernel"
    assert await notes(stub, f"after_{kind}", kind) == [FIRST]
    assert codegen.log("worker").count(b"worker_ready") == 1, "the worker's process goes on"


async def test_a_process_whose_kernel_left_a_child_behind_is_replaced(
    stub: CodegenServiceStub,
) -> None:
    assert (await build(stub, "littering_first", "litter")).stages
    assert await notes(stub, "after_littering", "litter") == [FIRST]


async def test_each_kernel_has_its_own_limit_of_processor_time(
    codegen: CodegenFarm, stub: CodegenServiceStub
) -> None:
    for number in range(12):
        assert (await build(stub, f"works_{number}", "busy")).stages
        assert codegen.compilations(f"works_{number}") == 1
    assert (await notes(stub, "after_works", "busy"))[0] == "kernel 13 of its process"
