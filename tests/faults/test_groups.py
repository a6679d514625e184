"""Jobs of one message: what happens to one of them does not affect the others."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import Iterator

import pytest
import redis

from kernelfarm.errors import KernelLimitError
from kernelfarm.internal.v1 import codegen_service_pb2 as pb
from kernelfarm.internal.v1 import loops_pb2
from kernelfarm.internal.v1.codegen_service_pb2_grpc import CodegenServiceStub
from kernelfarm.service.channels import open_channel
from tests.support.codegen_calls import TARGET, build
from tests.support.codegen_processes import SHORT_LEASES, CodegenFarm, codegen_farm
from tests.support.farm import TIMEOUT_S, until
from tests.support.fresh_kernels import fresh_kernel

GIVEN_BACK = b'"job_given_back"'
"""The event of a job that was adopted while the one before it compiled, which then took long."""


@pytest.fixture(scope="module")
def codegen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CodegenFarm]:
    """An edge that sends many jobs in one message, and one worker process.

    The worker finds no kernel slow in the time of a test: it would leave a gated kernel that holds
    it up, and compile those that wait.
    """
    settings = {**SHORT_LEASES, "job_group_s": "2", "quick_time_limit_s": "600"}
    with codegen_farm(tmp_path_factory.mktemp("groups"), **settings) as started:
        started.environment["ECHO_STAYS"] = "ahead"
        started.start_edge()
        started.start_worker()
        yield started


def kernels(*names: str) -> list[loops_pb2.Kernel]:
    return [fresh_kernel(name) for name in names]


async def ends(
    stub: CodegenServiceStub, *wanted: loops_pb2.Kernel
) -> list[pb.BuildKernelsResponse | BaseException]:
    """How each kernel ends, asked for by a call of its own, all at once."""

    async def one(kernel: loops_pb2.Kernel) -> pb.BuildKernelsResponse:
        return (await build(stub, kernel))[0]

    return await asyncio.gather(*map(one, wanted), return_exceptions=True)


def attempts(codegen: CodegenFarm) -> int:
    """The attempts that count for keys now."""
    with redis.Redis.from_url(codegen.cache.url) as raw:
        return sum(raw.scard(key) for key in raw.keys("kf:{default}:tries:k:*"))


def known_jobs(codegen: CodegenFarm) -> set[bytes]:
    """The keys of all jobs that the edges have sent, or hold until they may send them.

    Look-ups that return apart make several groups of one call, and an edge sends only two groups
    for each process of a worker.
    """
    logs = codegen.log("edge") + codegen.log("edge2")
    lines = (line for line in logs.splitlines() if re.search(rb'"job_(queued|waiting)"', line))
    return {key for line in lines for key in re.findall(rb'"key": "([0-9a-f]+)"', line)}


async def test_results_of_a_group_stream_as_they_appear(
    stub: CodegenServiceStub, codegen: CodegenFarm
) -> None:
    await build(stub, *kernels("plain_first"))  # look-ups then come back in their order
    wanted = kernels("plain_s0", "plain_s1", "gated_s2", "plain_s3")
    call = stub.BuildKernels(pb.BuildKernelsRequest(kernels=wanted, target=TARGET))
    first = {(await call.read()).index for _ in range(2)}
    assert first == {0, 1}
    codegen.release_job("gated_s2")
    assert {(await call.read()).index for _ in range(2)} == {2, 3}
    # The first job may be sent alone if its look-up returns before those of the others.
    assert re.search(rb'"together": [234]', codegen.log("edge"))


async def test_a_death_in_a_group_counts_one_attempt_of_one_kernel(
    stub: CodegenServiceStub, codegen: CodegenFarm
) -> None:
    names = ["plain_d0", "gated_d1", "plain_d2", "plain_d3"]
    before, given_back = codegen.counters(), codegen.log("worker").count(GIVEN_BACK)
    call = asyncio.create_task(build(stub, *kernels(*names)))
    pid = await asyncio.to_thread(codegen.pid_of_blocked_job, "gated_d1")
    await until(lambda: codegen.counters()["k.published"] > before["k.published"], "the first")
    await until(lambda: codegen.log("worker").count(GIVEN_BACK) > given_back, "the next given back")
    # The worker adopts and releases the jobs behind it one after the other.
    await until(lambda: attempts(codegen) == 1, "only the blocked job has begun")
    os.kill(pid, signal.SIGKILL)
    # Until then the process of the first compilation may live, and would begin the next kernel.
    await until(lambda: codegen.compilations("gated_d1") == 2, "another compilation")
    codegen.release_job("gated_d1")
    built = await call
    assert all(built[number].signed for number in range(4))
    assert [codegen.compilations(name) for name in names] == [1, 2, 1, 1]
    after = codegen.counters()
    grown = {name: after[name] - before.get(name, 0) for name in ("k.published", "k.takeovers")}
    assert grown == {"k.published": 4, "k.takeovers": 1}
    assert attempts(codegen) == 0


@pytest.mark.parametrize("kind", ["rejected", "buggy", "crash"])
async def test_a_failure_in_a_group_is_that_of_one_kernel(
    stub: CodegenServiceStub, codegen: CodegenFarm, kind: str
) -> None:
    names = [f"plain_{kind}0", f"{kind}_1", f"plain_{kind}2", f"plain_{kind}3"]
    given_back = codegen.log("worker").count(GIVEN_BACK)
    first, bad, third, last = await ends(stub, *kernels(*names))
    assert isinstance(bad, Exception)
    for good in (first, third, last):
        assert isinstance(good, pb.BuildKernelsResponse) and good.signed
    # A kernel that is given back because the one before it takes long may have begun by then.
    most = 1 + codegen.log("worker").count(GIVEN_BACK) - given_back
    assert all(1 <= codegen.compilations(name) <= most for name in (names[0], *names[2:]))


async def test_a_kernel_found_slow_in_a_group_starts_again_alone(
    stub: CodegenServiceStub, codegen: CodegenFarm
) -> None:
    names = ["plain_w0", "gated_w1", "plain_w2"]
    occupied = asyncio.create_task(build(stub, *kernels("gated_w")))
    await asyncio.to_thread(codegen.pid_of_blocked_job, "gated_w")
    impatient = await asyncio.to_thread(
        codegen.start_worker, 1, "impatient", quick_time_limit_s="0.5"
    )
    slow = codegen.counters().get("k.slow_kernels", 0)
    call = asyncio.create_task(build(stub, *kernels(*names)))
    await until(lambda: codegen.counters().get("k.slow_kernels", 0) > slow, "found slow")
    await until(lambda: codegen.compilations("gated_w1") == 2, "another compilation")
    codegen.release_job("gated_w1")
    built = await call
    assert all(built[number].signed for number in range(3))
    assert [codegen.compilations(name) for name in names] == [1, 2, 1]
    codegen.kill(impatient)
    codegen.release_job("gated_w")
    await occupied


async def test_kernels_behind_a_long_one_go_to_another_worker(
    stub: CodegenServiceStub, codegen: CodegenFarm
) -> None:
    names = ["plain_b0", "gated_b1", "plain_b2", "plain_b3"]
    call = stub.BuildKernels(pb.BuildKernelsRequest(kernels=kernels(*names), target=TARGET))
    await asyncio.to_thread(codegen.pid_of_blocked_job, "gated_b1")
    other = await asyncio.to_thread(codegen.start_worker, 1, "second")
    assert {(await call.read()).index for _ in range(3)} == {0, 2, 3}
    codegen.release_job("gated_b1")
    assert (await call.read()).index == 1
    codegen.kill(other)


async def test_a_caller_that_gives_up_ends_nothing_of_a_group(
    stub: CodegenServiceStub, codegen: CodegenFarm
) -> None:
    wanted = kernels("gated_c0", "plain_c1", "plain_c2")
    call = asyncio.create_task(build(stub, *wanted))
    await asyncio.to_thread(codegen.pid_of_blocked_job, "gated_c0")
    later = asyncio.create_task(build(stub, wanted[2]))
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    codegen.release_job("gated_c0")
    assert not (await later)[0].caused_job
    assert not (await build(stub, wanted[1]))[0].caused_job
    assert codegen.compilations("plain_c1") == codegen.compilations("plain_c2") == 1


async def test_two_edges_with_overlapping_groups_compile_each_kernel_once(
    stub: CodegenServiceStub, codegen: CodegenFarm
) -> None:
    await asyncio.to_thread(codegen.start_service, "codegen", "edge2")
    names = [f"plain_o{number}" for number in range(12)]
    wanted = kernels(*names)
    before = len(known_jobs(codegen))
    gate = asyncio.create_task(build(stub, *kernels("gated_o")))
    await asyncio.to_thread(codegen.pid_of_blocked_job, "gated_o")
    async with open_channel(f"unix:{codegen.folder}/edge2") as channel:
        calls = [
            asyncio.create_task(build(stub, *wanted[:8])),
            asyncio.create_task(build(CodegenServiceStub(channel), *wanted[4:])),
        ]
        await until(lambda: len(known_jobs(codegen)) == before + 1 + 12, "all jobs")
        codegen.release_job("gated_o")
        one, other = await asyncio.gather(*calls)
    await gate
    assert (len(one), len(other)) == (8, 8)
    assert [codegen.compilations(name) for name in names] == [1] * len(names)
    caused = [response.caused_job for found in (one, other) for response in found.values()]
    assert sum(caused) == len(names)


async def test_a_lost_message_of_a_group_is_sent_again(
    stub: CodegenServiceStub, codegen: CodegenFarm
) -> None:
    before = len(known_jobs(codegen))
    gate = asyncio.create_task(build(stub, *kernels("gated_l")))
    await asyncio.to_thread(codegen.pid_of_blocked_job, "gated_l")
    names = ["plain_l0", "plain_l1", "plain_l2"]
    call = asyncio.create_task(build(stub, *kernels(*names)))
    await until(lambda: len(known_jobs(codegen)) == before + 1 + 3, "all jobs")
    with redis.Redis.from_url(codegen.broker.url) as raw:
        await until(lambda: raw.delete("echo") == 1, "a message in the broker")
    codegen.release_job("gated_l")
    await gate
    async with asyncio.timeout(TIMEOUT_S):
        assert all(response.signed for response in (await call).values())
    assert [codegen.compilations(name) for name in names] == [1, 1, 1]


async def test_a_kernel_that_ends_its_workers_is_refused_and_the_rest_of_its_group_is_not(
    stub: CodegenServiceStub, codegen: CodegenFarm
) -> None:
    wanted = kernels("plain_q0", "gated_q1", "plain_q2")
    calls = asyncio.create_task(ends(stub, *wanted))
    with redis.Redis.from_url(codegen.cache.url) as raw:
        running = lambda: [  # noqa: E731
            lease
            for lease in raw.keys("kf:{default}:l:k:*")
            if raw.hget(lease, "state") == b"running"
        ]
        for _ in range(2):
            pid = await asyncio.to_thread(codegen.pid_of_blocked_job, "gated_q1")
            # The kernel before it is published while it compiles.
            await until(lambda: len(running()) == 1, "it is alone")
            os.kill(pid, signal.SIGKILL)
            for lease in running():
                raw.pexpire(lease, 1)  # as if the lease of the dead process had ended
    first, deadly, last = await calls
    assert isinstance(deadly, KernelLimitError) and "ended its echo worker" in str(deadly)
    assert isinstance(first, pb.BuildKernelsResponse) and first.signed
    assert isinstance(last, pb.BuildKernelsResponse) and last.signed
    assert codegen.compilations("plain_q2") == 1
