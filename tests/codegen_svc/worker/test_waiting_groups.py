"""A worker process that has built its message goes on with those that wait in the queue."""

from __future__ import annotations

import asyncio
import base64
import json
import signal
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from kernelfarm.internal.v1.codegen_service_pb2_grpc import CodegenServiceStub
from tests.support.codegen_calls import build_fresh
from tests.support.codegen_processes import SHORT_LEASES, CodegenFarm, codegen_farm
from tests.support.farm import until

TAKEN = b'"waiting_group_taken"'


@pytest.fixture(scope="module")
def codegen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CodegenFarm]:
    """An edge with place for several messages in the queue; tests start workers."""
    settings = {**SHORT_LEASES, "queue_headroom": "8", "requeue_after_s": "60", "job_group_s": "0"}
    with codegen_farm(tmp_path_factory.mktemp("waiting"), **settings) as started:
        started.start_edge()
        yield started


@pytest.fixture(scope="module")
def worker(codegen: CodegenFarm) -> Iterator[subprocess.Popen[bytes]]:
    """A worker with one process, whose log is `worker`; the last test stops it."""
    started = codegen.start_worker(worker_heartbeat_file=str(codegen.folder / "heartbeat"))
    yield started
    codegen.kill(started)


def _logged(codegen: CodegenFarm) -> tuple[int, int]:
    """How many waiting messages the worker has taken, and how many messages it refused."""
    log = codegen.log("worker")
    return log.count(TAKEN), log.count(b'"message_refused"')


async def _queued(codegen: CodegenFarm, count: int) -> None:
    with redis.Redis.from_url(codegen.broker.url) as raw:
        await until(lambda: raw.llen("echo") >= count, f"{count} messages wait")


async def test_one_task_builds_the_kernels_of_all_messages_that_wait(
    codegen: CodegenFarm, stub: CodegenServiceStub, worker: subprocess.Popen[bytes]
) -> None:
    taken, _ = _logged(codegen)
    gate = asyncio.create_task(build_fresh(stub, "gated_all"))
    await asyncio.to_thread(codegen.pid_of_blocked_job, "gated_all")
    names = ["plain_w0", "plain_w1", "plain_w2"]
    calls = [asyncio.create_task(build_fresh(stub, name)) for name in names]
    await _queued(codegen, 3)
    codegen.release_job("gated_all")
    assert all(response.signed for response in await asyncio.gather(gate, *calls))
    assert [codegen.compilations(name) for name in names] == [1, 1, 1]
    assert _logged(codegen)[0] - taken == 3


@pytest.mark.parametrize(
    "kind", ["no JSON", "no message", "bad headers", "no jobs", "a pickle", "another task"]
)
async def test_another_message_is_refused_and_the_next_one_is_built(
    codegen: CodegenFarm, stub: CodegenServiceStub, worker: subprocess.Popen[bytes], kind: str
) -> None:
    _, refused = _logged(codegen)
    name = f"gated_{kind.replace(' ', '_')}"
    gate = asyncio.create_task(build_fresh(stub, name))
    await asyncio.to_thread(codegen.pid_of_blocked_job, name)
    call = asyncio.create_task(build_fresh(stub, f"plain{name}"))
    await _queued(codegen, 1)
    with redis.Redis.from_url(codegen.broker.url) as raw:
        raw.rpush("echo", _other_message(kind, json.loads(raw.lindex("echo", 0))))
    codegen.release_job(name)
    assert (await gate).signed and (await call).signed
    assert _logged(codegen)[1] - refused == 1


def _other_message(kind: str, message: dict[str, Any]) -> bytes:
    match kind:
        case "no JSON":
            return b"\x80\x04N."
        case "no message":
            return b"{}"
        case "bad headers":
            return json.dumps({**message, "headers": ["compression"]}).encode()
        case "no jobs":
            body = base64.b64encode(json.dumps([["default", [7]], {}, {}]).encode()).decode()
            return json.dumps({**message, "body": body}).encode()
        case "a pickle":
            return json.dumps(
                {**message, "content-type": "application/x-python-serialize"}
            ).encode()
    headers = {**message["headers"], "task": "celery.backend_cleanup"}
    return json.dumps({**message, "headers": headers}).encode()


async def test_a_worker_that_is_asked_to_stop_takes_no_message_more(
    codegen: CodegenFarm, stub: CodegenServiceStub, worker: subprocess.Popen[bytes]
) -> None:
    taken, _ = _logged(codegen)
    gate = asyncio.create_task(build_fresh(stub, "gated_drained"))
    await asyncio.to_thread(codegen.pid_of_blocked_job, "gated_drained")
    call = asyncio.create_task(build_fresh(stub, "plain_left"))
    await _queued(codegen, 1)
    worker.send_signal(signal.SIGTERM)
    state = codegen.folder / "heartbeat"
    await until(lambda: b"draining" in state.read_bytes(), "the worker drains")
    codegen.release_job("gated_drained")
    assert (await gate).signed
    assert await asyncio.to_thread(worker.wait, 60) == 0
    assert (_logged(codegen)[0], codegen.compilations("plain_left")) == (taken, 0)
    other = await asyncio.to_thread(codegen.start_worker, 1, "other")
    assert (await call).signed
    codegen.kill(other)
