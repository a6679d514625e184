"""What a worker reads from a supervisor: records, one for each end that it reports."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator

import pytest

from codegen_svc.sandbox.connection import (
    JOB_BEGINS,
    JOB_ENDED,
    RESULT_HEADER,
    SandboxProcess,
    TimeLimits,
)

USAGE = {"processor_s": 0.25, "memory_bytes": 1 << 20, "tasks": 1}
EXIT = {**USAGE, "exit": 0, "ended_for": "", "log": "refused"}


@pytest.fixture
def ends() -> Iterator[tuple[SandboxProcess, socket.socket]]:
    """A process that has sent the result of its job, and its supervisor's end."""
    jobs, job = os.pipe()
    result, results = os.pipe()
    supervision, supervisor = socket.socketpair()
    process = SandboxProcess(job, result, supervision)
    process.begin(b"job", TimeLimits(wall_s=5.0, processor_s=5), is_last=False)
    os.write(results, RESULT_HEADER.pack(2) + b"ok")
    yield process, supervisor
    process.close()
    supervisor.close()
    for descriptor in (jobs, results):
        os.close(descriptor)


def record(content: dict[str, object]) -> bytes:
    return json.dumps(content).encode() + b"\n"


@pytest.mark.parametrize("sent", [[USAGE], [EXIT], [USAGE, EXIT]])
def test_the_first_record_states_how_the_job_ended(
    ends: tuple[SandboxProcess, socket.socket], sent: list[dict[str, object]]
) -> None:
    """A process that ends right after its result causes two records, which may arrive together."""
    process, supervisor = ends
    reply = process.read(100)
    assert supervisor.recv(2) == JOB_BEGINS + JOB_ENDED
    supervisor.sendall(b"".join(map(record, sent)))
    end = process.end(reply)
    assert (reply.result, end.ended_for, end.processor_s) == (b"ok", "", 0.25)
    assert end.is_over == (sent[0] is EXIT)
    if len(sent) > 1:
        last = process.end(reply)
        assert (last.is_over, last.log) == (True, "refused")


@pytest.mark.parametrize("sent", [b"", b'{"processor_s"', b"not JSON\n"])
def test_a_lost_supervisor_is_reported(
    ends: tuple[SandboxProcess, socket.socket], sent: bytes
) -> None:
    process, supervisor = ends
    reply = process.read(100)
    supervisor.sendall(sent)
    supervisor.close()
    assert process.end(reply).ended_for == "its supervisor was lost"
