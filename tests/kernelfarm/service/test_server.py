"""The base of each service, over a real socket: errors, sizes, request ids, drain."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from kernelfarm.errors import (
    FarmFullError,
    InvalidGraphError,
    KernelfarmError,
    MalformedMessageError,
    MessageTooLargeError,
    UnavailableError,
)
from kernelfarm.service.channels import channel_options, open_channel, translated_errors
from kernelfarm.service.server import RunningServer, ServiceRegistration, start_server
from kernelfarm.service.settings import ServiceSettings, load_settings
from kernelfarm.v1 import compile_service_pb2 as pb
from kernelfarm.v1 import compile_service_pb2_grpc as pb_grpc
from kernelfarm.v1 import graph_pb2
from tests.support.farm import TIMEOUT_S

COMPILE = "/kernelfarm.v1.CompileService/Compile"
LOOKUP = "/kernelfarm.v1.CompileService/Lookup"


class StubServicer(pb_grpc.CompileServiceServicer):
    """A service whose responses each test chooses."""

    def __init__(self, answer: Callable[[str], Any]) -> None:
        self.answer = answer
        self.entered = asyncio.Event()
        self.go_on = asyncio.Event()

    async def Lookup(self, request: pb.LookupRequest, context: Any) -> pb.LookupResponse:  # noqa: N802
        self.answer("lookup")
        return pb.LookupResponse()

    async def Compile(  # noqa: N802
        self, request: pb.CompileRequest, context: Any
    ) -> AsyncIterator[pb.CompileResponse]:
        yield pb.CompileResponse(stage=pb.StageEvent(stage="import"))
        self.entered.set()
        if request.request_id == "slow":
            await self.go_on.wait()
        self.answer("compile")
        yield pb.CompileResponse(stage=pb.StageEvent(stage="publish"))


def answer_well(method: str) -> None:
    """A handler that succeeds."""


def raising(error: Exception) -> Callable[[str], None]:
    def answer(method: str) -> None:
        raise error

    return answer


@asynccontextmanager
async def running(
    servicer: StubServicer, settings: ServiceSettings | None = None
) -> AsyncIterator[tuple[RunningServer, pb_grpc.CompileServiceAsyncStub]]:
    add = partial(pb_grpc.add_CompileServiceServicer_to_server, servicer)
    registration = ServiceRegistration("kernelfarm.v1.CompileService", add)
    settings = settings or ServiceSettings()
    server = await start_server("127.0.0.1:0", [registration], settings)
    async with open_channel(server.address) as channel:
        yield server, pb_grpc.CompileServiceStub(channel)
    await server.drain(0)


def rich_status(error: grpc.aio.AioRpcError) -> status_pb2.Status:
    trailers = dict(error.trailing_metadata())
    return status_pb2.Status.FromString(trailers["grpc-status-details-bin"])


def detail(status: status_pb2.Status, kind: Any) -> Any:
    found = kind()
    assert any(d.Is(kind.DESCRIPTOR) and d.Unpack(found) for d in status.details), kind
    return found


async def test_an_error_of_a_unary_method_carries_reason_delay_and_request_id() -> None:
    async with running(StubServicer(raising(FarmFullError("4096 jobs are queued")))) as (_, stub):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Lookup(pb.LookupRequest(), metadata=(("x-request-id", "req-7"),))
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    status = rich_status(caught.value)
    info = detail(status, error_details_pb2.ErrorInfo)
    assert (info.reason, info.domain) == ("FARM_FULL", "kernelfarm")
    assert detail(status, error_details_pb2.RetryInfo).retry_delay.ToMilliseconds() == 1000
    assert detail(status, error_details_pb2.RequestInfo).request_id == "req-7"


async def test_an_error_in_the_middle_of_a_stream_becomes_the_same_error_at_the_caller() -> None:
    error = InvalidGraphError("node 3 uses value 9, which nothing defines")
    async with running(StubServicer(raising(error))) as (_, stub):
        with (
            pytest.raises(InvalidGraphError, match="node 3 uses value 9") as caught,
            translated_errors("the frontend"),
        ):
            async for _response in stub.Compile(pb.CompileRequest(request_id="r1")):
                pass
    assert caught.value.__notes__ == ["request id: r1"]


async def test_a_call_that_ended_as_unavailable_is_not_repeated_by_the_channel() -> None:
    calls: list[str] = []

    def answer(method: str) -> None:
        calls.append(method)
        raise UnavailableError("no worker")

    async with running(StubServicer(answer)) as (_, stub):
        with pytest.raises(UnavailableError, match="no worker"), translated_errors("codegen"):
            await stub.Lookup(pb.LookupRequest())
    assert calls == ["lookup"]


async def test_another_exception_is_an_internal_error_without_details(capsys: Any) -> None:
    async with running(StubServicer(raising(KeyError("secret detail")))) as (_, stub):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Lookup(pb.LookupRequest())
    assert caught.value.code() is grpc.StatusCode.INTERNAL
    assert "secret" not in (caught.value.details() or "")
    assert "request id" in (caught.value.details() or "")
    log = "".join(capsys.readouterr())
    assert log.count("Traceback") == 1


@pytest.mark.parametrize("method", [COMPILE, LOOKUP])
async def test_a_truncated_message_is_refused_by_name_and_the_service_goes_on(method: str) -> None:
    whole = pb.CompileRequest(graph=graph_pb2.Graph(dialect="aten" * 9)).SerializeToString()
    async with running(StubServicer(answer_well)) as (server, stub):
        async with grpc.aio.insecure_channel(server.address) as raw:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await raw.unary_unary(method)(whole[:-3])
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        expected = "CompileRequest" if method == COMPILE else "LookupRequest"
        assert f"no kernelfarm.v1.{expected} message" in (caught.value.details() or "")
        assert f"{len(whole) - 3} bytes" in (caught.value.details() or "")
        info = detail(rich_status(caught.value), error_details_pb2.ErrorInfo)
        assert info.reason == MalformedMessageError.reason
        await stub.Lookup(pb.LookupRequest())


async def test_a_message_above_the_limit_is_refused_with_size_and_limit() -> None:
    limit = ServiceSettings().max_message_bytes
    huge = pb.CompileRequest(graph=graph_pb2.Graph(locations=["x" * limit]))
    async with running(StubServicer(answer_well)) as (_, stub):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async for _response in stub.Compile(huge):
                pass
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert f"{huge.ByteSize()} vs. {limit}" in (caught.value.details() or "")
        reported = f"{huge.ByteSize()} bytes.*at most {limit}"
        with (
            pytest.raises(MessageTooLargeError, match=reported),
            translated_errors("the frontend"),
        ):
            async for _response in stub.Compile(huge):
                pass
        await stub.Lookup(pb.LookupRequest())


async def test_a_service_that_does_not_run_is_unavailable() -> None:
    async with open_channel("127.0.0.1:1") as channel:
        stub = pb_grpc.CompileServiceStub(channel)
        with (
            pytest.raises(UnavailableError, match="the optimizer") as caught,
            translated_errors("the optimizer"),
        ):
            await stub.Lookup(pb.LookupRequest(), timeout=TIMEOUT_S)
    assert caught.value.retry_after_s


async def test_blocking_channels_translate_errors_too() -> None:
    async with running(StubServicer(raising(InvalidGraphError("cyclic")))) as (server, _):

        def call() -> None:
            with (
                grpc.insecure_channel(server.address, options=channel_options()) as channel,
                translated_errors("the farm"),
            ):
                pb_grpc.CompileServiceStub(channel).Lookup(pb.LookupRequest())

        with pytest.raises(InvalidGraphError, match="cyclic"):
            await asyncio.to_thread(call)


async def test_health_and_reflection_answer() -> None:
    async with (
        running(StubServicer(answer_well)) as (server, _),
        grpc.aio.insecure_channel(server.address) as channel,
    ):
        check = health_pb2_grpc.HealthStub(channel).Check
        for name in ("", "kernelfarm.v1.CompileService"):
            reply = await check(health_pb2.HealthCheckRequest(service=name))
            assert reply.status == health_pb2.HealthCheckResponse.SERVING
        ask = reflection_pb2.ServerReflectionRequest(list_services="")
        call = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo([ask])
        names = [s.name async for r in call for s in r.list_services_response.service]
        assert "kernelfarm.v1.CompileService" in names


async def test_a_draining_server_finishes_calls_in_flight_and_refuses_new_ones() -> None:
    servicer = StubServicer(answer_well)
    async with running(servicer) as (server, stub):
        call = stub.Compile(pb.CompileRequest(request_id="slow"))
        await servicer.entered.wait()
        drain = asyncio.create_task(server.drain(30))
        refused = await refuses_new_calls(server.address)
        assert refused
        assert not drain.done()
        servicer.go_on.set()
        stages = [response.stage.stage async for response in call]
        await drain
    assert stages == ["import", "publish"]


async def refuses_new_calls(address: str) -> bool:
    """True once a fresh connection is refused; the listener closes soon after the drain begins."""
    for _ in range(500):
        async with grpc.aio.insecure_channel(address) as channel:
            try:
                await pb_grpc.CompileServiceStub(channel).Lookup(
                    pb.LookupRequest(), timeout=TIMEOUT_S
                )
            except grpc.aio.AioRpcError as error:
                return error.code() is grpc.StatusCode.UNAVAILABLE
    return False


async def test_a_port_in_use_is_a_clear_error() -> None:
    async with running(StubServicer(answer_well)) as (server, _):
        with pytest.raises(UnavailableError, match=f"cannot listen on {server.address}"):
            await start_server(server.address, [], ServiceSettings())


def test_a_setting_that_cannot_be_used_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELFARM_MAX_MESSAGE_BYTES", "plenty")
    with pytest.raises(KernelfarmError, match=r"KERNELFARM_MAX_MESSAGE_BYTES.*plenty"):
        load_settings(ServiceSettings)


def test_a_setting_by_an_old_name_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELFARM_CPU_THREADS", "4")
    with pytest.raises(KernelfarmError, match=r"CPU_THREADS is KERNELFARM_CPU_PROCESSES now"):
        load_settings(ServiceSettings)
