"""The way to the farm: what arrives is checked, what fails says so in our own errors."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from concurrent import futures

import grpc
import pytest
import torch

from examples.real_inputs import h
from kernelfarm.client.farm.client import FarmClient
from kernelfarm.client.loaders.host_target import host_cpu_target
from kernelfarm.client.settings import client_settings
from kernelfarm.errors import (
    CallerError,
    DeadlineError,
    MalformedMessageError,
    NotFoundError,
    PoisonedBlobError,
    UnavailableError,
    UnknownTargetError,
)
from kernelfarm.v1 import compile_service_pb2 as pb
from kernelfarm.v1.compile_service_pb2_grpc import (
    CompileServiceServicer,
    add_CompileServiceServicer_to_server,
)
from tests.support.farm import TIMEOUT_S
from tests.support.traced_graphs import traced_one

CONTENT = b"0123456789" * 100
DIGEST = hashlib.sha256(CONTENT).digest()


class OddFarm(CompileServiceServicer):
    """Speaks the protocol and breaks one promise at a time."""

    def __init__(self) -> None:
        self.chunks: list[pb.ReadBlobsResponse] = []
        self.released = threading.Event()

    def ReadBlobs(self, request, context):  # noqa: N802 (the protocol's name)
        yield from self.chunks

    def Compile(self, request, context):  # noqa: N802 (the protocol's name)
        self.released.wait(TIMEOUT_S)
        yield from ()


@pytest.fixture
def odd() -> Iterator[tuple[OddFarm, FarmClient]]:
    servicer = OddFarm()
    server = grpc.server(futures.ThreadPoolExecutor(2))
    add_CompileServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with FarmClient(client_settings(endpoint=f"127.0.0.1:{port}", timeout_s=TIMEOUT_S)) as client:
        yield servicer, client
    servicer.released.set()
    server.stop(None).wait()


def chunk(data: bytes, offset: int = 0, index: int = 0) -> pb.ReadBlobsResponse:
    return pb.ReadBlobsResponse(index=index, offset_bytes=offset, data=data, is_last=True)


def test_blobs_arrive_whole_from_several_chunks(odd):
    servicer, client = odd
    servicer.chunks = [chunk(CONTENT[:300]), chunk(CONTENT[300:], 300)]
    assert client.read_blobs([DIGEST, DIGEST]) == {DIGEST: CONTENT}


@pytest.mark.parametrize(
    "chunks",
    [
        [chunk(CONTENT[:-1] + b"!")],
        [chunk(CONTENT[:-1])],
        [],
        [chunk(CONTENT[300:], 300), chunk(CONTENT[:300])],
        [chunk(CONTENT, index=1)],
    ],
    ids=["changed", "cut", "absent", "shuffled", "unasked"],
)
def test_a_blob_of_another_digest_is_refused(odd, chunks):
    servicer, client = odd
    servicer.chunks = chunks
    with pytest.raises((PoisonedBlobError, MalformedMessageError)):
        client.read_blobs([DIGEST])


def test_a_farm_that_does_not_finish_meets_the_deadline(odd):
    servicer, client = odd
    client.settings = client_settings(endpoint=client.settings.endpoint, timeout_s=0.3)
    with pytest.raises(DeadlineError):
        client.compile(traced_one(h, torch.randn(2, 3), torch.randn(2, 3)).graph, ["cpu:any"])
    assert not servicer.released.is_set()


def test_a_farm_that_answers_without_a_program_is_refused(odd):
    servicer, client = odd
    servicer.released.set()
    graph = traced_one(h, torch.randn(2, 3), torch.randn(2, 3)).graph
    with pytest.raises(MalformedMessageError, match="no program for"):
        client.compile(graph, ["cpu:any"])


def test_nobody_at_the_endpoint_is_unavailable_long_before_the_deadline():
    with FarmClient(client_settings(endpoint="127.0.0.1:9", timeout_s=3600.0)) as client:
        with pytest.raises(UnavailableError, match=r"127\.0\.0\.1:9"):
            client.capabilities()
        assert not client.connect(timeout_s=0.1)


def test_the_farm_reports_its_progress_and_where_the_program_came_from(endpoint):
    graph = traced_one(lambda a: (a * 2.25).sin().sum(0), torch.randn(5, 7)).graph
    stages: list[str] = []
    with FarmClient(client_settings()) as client:
        (first,) = client.compile(
            graph, [host_cpu_target()], on_progress=lambda event: stages.append(event.stage)
        )
        (second,) = client.compile(graph, [host_cpu_target()])
        found = client.lookup(first.key)
        with pytest.raises(NotFoundError):
            client.lookup(bytes(32))
        with pytest.raises(NotFoundError):
            client.read_blobs([bytes(32)])
    assert {"import", "decompose", "optimize", "codegen"} <= set(stages)
    assert (first.outcome, second.outcome, found.outcome) == ("miss", "hit", "hit")
    assert (first.key, first.plan) == (second.key, second.plan)
    assert second.codegen_jobs == 0


def test_the_farms_own_message_reaches_the_caller(endpoint):
    graph = traced_one(h, torch.randn(2, 3), torch.randn(2, 3)).graph
    with FarmClient(client_settings()) as client, pytest.raises(UnknownTargetError, match="abacus"):
        client.compile(graph, ["abacus:wood"])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"timeout_s": -1}, "KERNELFARM_TIMEOUT_S"),
        ({"mode": "sometimes"}, "KERNELFARM_MODE"),
    ],
)
def test_settings_that_cannot_be_used_are_named(settings, message):
    with pytest.raises(CallerError, match=message):
        client_settings(**settings)
