"""Channels between services: calls reach every replica, also one that connects later."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from functools import partial
from typing import Any

from kernelfarm.errors import NoAnswerError
from kernelfarm.service.channels import open_channel, translated_errors
from kernelfarm.service.server import RunningServer, ServiceRegistration, start_server
from kernelfarm.service.settings import ServiceSettings
from kernelfarm.v1 import compile_service_pb2 as pb
from kernelfarm.v1 import compile_service_pb2_grpc as pb_grpc
from tests.support.farm import TIMEOUT_S


class Replica(pb_grpc.CompileServiceServicer):
    """Counts its calls by the address of the caller's connection."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()

    async def Lookup(self, request: pb.LookupRequest, context: Any) -> pb.LookupResponse:  # noqa: N802
        self.calls[context.peer()] += 1
        return pb.LookupResponse()


async def started(replica: Replica, **settings: float) -> RunningServer:
    add = partial(pb_grpc.add_CompileServiceServicer_to_server, replica)
    registration = ServiceRegistration("kernelfarm.v1.CompileService", add)
    stated = ServiceSettings(**settings)  # type: ignore[arg-type]
    return await start_server("127.0.0.1:0", [registration], stated)


async def test_calls_are_balanced_among_the_addresses_of_a_name() -> None:
    replicas = (Replica(), Replica())
    servers = [await started(replica) for replica in replicas]
    address = f"ipv4:{','.join(server.address for server in servers)}"
    async with asyncio.timeout(TIMEOUT_S), open_channel(address) as channel:
        stub = pb_grpc.CompileServiceStub(channel)
        while not all(replica.calls for replica in replicas):
            await stub.Lookup(pb.LookupRequest())
        await servers[0].drain(5.0)
        # The service that remains answers every call.
        before = replicas[1].calls.total()
        for _ in range(10):
            await stub.Lookup(pb.LookupRequest(), wait_for_ready=True)
        assert replicas[1].calls.total() == before + 10
    await servers[1].drain(5.0)


async def test_a_connection_ends_at_its_age_and_calls_fail_only_in_a_way_that_is_repeated() -> None:
    replica = Replica()
    server = await started(replica, connection_age_s=0.2)
    async with asyncio.timeout(TIMEOUT_S), open_channel(server.address) as channel:
        stub = pb_grpc.CompileServiceStub(channel)
        while len(replica.calls) < 3:
            # A call that begins as its connection ends may fail; callers repeat it.
            with suppress(NoAnswerError), translated_errors("the server"):
                await stub.Lookup(pb.LookupRequest(), wait_for_ready=True)
    await server.drain(5.0)
