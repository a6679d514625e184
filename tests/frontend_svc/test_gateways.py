"""Several gateways on one port: they serve, apply invalidations, are replaced, and drain."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator

import grpc
import pytest

from kernelfarm.client.farm.cache_client import CacheAdmin
from kernelfarm.processes.ports import free_ports
from kernelfarm.service.probes import is_serving
from kernelfarm.v1 import compile_service_pb2 as api
from tests.support.farm import TIMEOUT_S, wait_until
from tests.support.gateways import (
    LOOKUP,
    TAG,
    Bench,
    lookup_request,
    publish,
    running_gateways,
    running_store,
    serving_pids,
)
from tests.support.scrapes import Samples, scrape_until, value

GATEWAYS = 4
CONNECTIONS = 24


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    with running_store() as started:
        yield started


async def answers(address: str, key: bytes) -> list[int | grpc.StatusCode]:
    """For each of many new connections the tier that served it, or the status of its error."""

    async def ask() -> int | grpc.StatusCode:
        options = [("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.insecure_channel(address, options=options) as channel:
            call = channel.unary_unary(LOOKUP, None, api.LookupResponse.FromString)
            try:
                answer = await call(lookup_request(key), wait_for_ready=True, timeout=TIMEOUT_S)
            except grpc.aio.AioRpcError as error:
                return error.code()
            return answer.program.tier

    return list(await asyncio.gather(*(ask() for _ in range(CONNECTIONS))))


async def test_after_invalidate_returned_none_of_four_gateways_serves_a_stale_program(
    bench: Bench,
) -> None:
    (key,) = await publish(bench, 1, 1000)
    with running_gateways(bench, GATEWAYS) as (address, pids):
        assert len(pids) == GATEWAYS
        seen = await answers(address, key)
        while seen != [api.CACHE_TIER_GATEWAY] * CONNECTIONS:  # until every gateway has cached it
            assert set(seen) <= {api.CACHE_TIER_GATEWAY, api.CACHE_TIER_STORE}
            seen = await answers(address, key)
        with CacheAdmin(address) as admin:
            answer = await asyncio.to_thread(admin.invalidate, [TAG])
        assert await answers(address, key) == [grpc.StatusCode.NOT_FOUND] * CONNECTIONS
        assert answer.gateways == GATEWAYS
    log = (bench.folder / f"gateways-{address}.log").read_text()
    assert log.count('"stopped"') == GATEWAYS, "SIGTERM drains them all"


def test_a_gateway_that_dies_is_replaced_while_the_others_serve(bench: Bench) -> None:
    with running_gateways(bench, 2) as (address, pids):
        parent = int(_parent_of(pids[0]))
        os.kill(pids[0], signal.SIGKILL)
        wait_until(lambda: asyncio.run(is_serving(address)), TIMEOUT_S, "the other one serves")
        wait_until(
            lambda: len(now := serving_pids(parent)) == 2 and pids[0] not in now,
            TIMEOUT_S,
            "a new gateway",
        )


def test_gateways_refuse_a_port_that_is_taken(bench: Bench) -> None:
    with (
        running_gateways(bench) as (address, _),
        pytest.raises(RuntimeError, match="cannot listen on"),
        running_gateways(bench, 2, frontend_listen=address),
    ):
        pass


def _parent_of(pid: int) -> str:
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[1]


async def test_the_metrics_of_all_gateways_are_one_page(bench: Bench) -> None:
    (key,) = await publish(bench, 1, 2000)
    metrics = f"127.0.0.1:{free_ports(1)[0]}"
    with running_gateways(bench, 2, metrics_listen=metrics) as (address, pids):
        await answers(address, key)
        samples = await asyncio.to_thread(
            scrape_until, metrics, lambda now: lookups(now) >= CONNECTIONS, "counted look-ups"
        )
        assert value(samples, "kernelfarm_farm_counters_up") == 1
        assert value(samples, "kernelfarm_child_processes") >= len(pids)
        assert value(samples, "kernelfarm_build_info", service="frontend") == 1


def lookups(samples: Samples) -> float:
    return value(samples, "kernelfarm_call_seconds_count", method="CompileService/Lookup")
