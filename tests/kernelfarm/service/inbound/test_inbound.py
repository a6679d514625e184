"""Requests of unauthenticated and refused callers: memory, log and slots stay bounded."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
from google.rpc import status_pb2
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from kernelfarm.bounded_text import MESSAGE_BYTES
from kernelfarm.errors import (
    BodyTooSlowError,
    InvalidGraphError,
    KernelfarmError,
    UnauthenticatedError,
)
from kernelfarm.service.channels import channel_options
from kernelfarm.v1 import compile_service_pb2 as pb
from kernelfarm.v1 import graph_pb2
from kernelfarm.wire.status import error_from_rpc
from tests.support.farm import TIMEOUT_S, wait_until

COMPILE, LOOKUP = "/kernelfarm.v1.CompileService/Compile", "/kernelfarm.v1.CompileService/Lookup"
CAPABILITIES = "/kernelfarm.v1.CompileService/GetCapabilities"
HEALTH = "/grpc.health.v1.Health/Check"

MIB = 2**20
# An unknown field of 30 MiB: a message of every type.
BIG = b"\x7a\x80\x80\x80\x0f" + bytes(30 * MIB)


@dataclass(frozen=True)
class StubServicer:
    """A server in a process of its own, and the tokens of its two tenants."""

    address: str
    tokens: tuple[str, ...]
    process: subprocess.Popen[str]
    log: Path

    def memory_bytes(self, what: str = "VmRSS") -> int:
        """Its memory now, or at its peak (VmHWM)."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(what))

    @contextlib.contextmanager
    def channel(self) -> Iterator[grpc.Channel]:
        """A connection of its own."""
        options = [*channel_options(), ("grpc.use_local_subchannel_pool", 1)]
        with grpc.insecure_channel(self.address, options=options) as channel:
            yield channel


@contextlib.contextmanager
def running_service(folder: Path, files: int = 0, **environment: str) -> Iterator[StubServicer]:
    """A running service; `files` limits its open files."""

    log = folder / "service.log"
    command = [sys.executable, "-m", "tests.kernelfarm.service.inbound.inbound_server", str(folder)]
    if files:
        command = ["sh", "-c", f'ulimit -n {files}; exec "$@"', "sh", *command]
    with (
        log.open("w") as errors,
        subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**os.environ, **environment},
        ) as process,
    ):
        assert process.stdout is not None and process.stdin is not None
        address, *tokens = process.stdout.readline().split()
        try:
            yield StubServicer(address, tuple(tokens), process, log)
        finally:
            process.stdin.close()
            try:
                process.wait(TIMEOUT_S)
            finally:
                process.kill()


@pytest.fixture
def service(tmp_path: Path) -> Iterator[StubServicer]:
    """A service whose memory no other test has used."""
    with running_service(tmp_path) as started:
        yield started


@pytest.fixture(scope="module")
def shared_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StubServicer]:
    """A service for tests that do not measure it."""
    with running_service(tmp_path_factory.mktemp("service")) as started:
        yield started


def call(channel: grpc.Channel, method: str, data: bytes, token: str = "") -> str:
    """The status of a call, without its response."""
    metadata = (("authorization", f"Bearer {token}"),) if token else ()
    stub = channel.unary_stream(method)  # a unary method answers a stream of one
    try:
        list(stub(data, metadata=metadata, timeout=TIMEOUT_S))
    except grpc.RpcError as error:
        return error.code().name
    return "OK"


def flood(service: StubServicer, method: str, number: int) -> Counter[str]:
    """Sends large messages at once, over four connections and without a token."""
    with contextlib.ExitStack() as stack, ThreadPoolExecutor(number) as pool:
        channels = [stack.enter_context(service.channel()) for _ in range(4)]
        reported = pool.map(lambda n: call(channels[n % 4], method, BIG), range(number))
        return Counter(reported)


def refusal(service: StubServicer, data: bytes, token: str) -> KernelfarmError:
    with service.channel() as channel:
        try:
            metadata = (("authorization", f"Bearer {token}"),)
            list(channel.unary_stream(COMPILE)(data, metadata=metadata, timeout=TIMEOUT_S))
        except grpc.RpcError as error:
            trailers = dict(error.trailing_metadata())
            assert status_pb2.Status.FromString(trailers["grpc-status-details-bin"]).details
            assert "x-request-id" in trailers
            return error_from_rpc(error)
    raise AssertionError("accepted")


def graph_of(op: str) -> bytes:
    graph = graph_pb2.Graph(nodes=[graph_pb2.Node(op=op)])
    return pb.CompileRequest(graph=graph).SerializeToString()


def test_the_body_of_an_unauthenticated_caller_is_not_received(service: StubServicer) -> None:
    """On 3c2bd51 13 of them took 670 MB, and 200 some 6 GB."""
    before = service.memory_bytes()
    assert flood(service, COMPILE, 20) == {"UNAUTHENTICATED": 20}
    assert flood(service, "/no.such.Service/Method", 20) == {"UNIMPLEMENTED": 20}
    assert service.memory_bytes("VmHWM") - before < 40 * MIB


# One code receives the bodies of both.
@pytest.mark.parametrize("method", [CAPABILITIES, pytest.param(HEALTH, marks=pytest.mark.slow)])
def test_an_open_method_receives_little_at_a_time(service: StubServicer, method: str) -> None:
    before = service.memory_bytes()
    # Too large, or, on a busy machine, too slow.
    assert set(flood(service, method, 20)) <= {"RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED"}
    # Four bodies, which are copied once when they are whole.
    assert service.memory_bytes("VmHWM") - before < 4 * 3 * 32 * MIB
    with service.channel() as channel:
        assert call(channel, method, b"") == "OK"


def test_refused_calls_leave_nothing_behind(service: StubServicer) -> None:
    """On 3c2bd51 each kept its request until the collector ran, once in a long while."""
    data = graph_of("x" * 129_000)
    with service.channel() as channel:
        for _ in range(20):
            assert call(channel, COMPILE, data, service.tokens[0]) == "INVALID_ARGUMENT"
        before = service.memory_bytes()
        for _ in range(300):
            assert call(channel, COMPILE, data, service.tokens[0]) == "INVALID_ARGUMENT"
    assert service.memory_bytes() - before < 20 * MIB


@pytest.mark.parametrize("letter", ["x", "é", "\U0001f600", "\n", "\0", "%"])
def test_status_and_details_arrive_whatever_the_message_quotes(
    shared_service: StubServicer, letter: str
) -> None:
    """On 3c2bd51 they were larger than gRPC's trailers may be: the client saw another status."""
    size = 30 * MIB if letter == "x" else 100_000
    graph = graph_of(letter * (size // len(letter.encode())))
    error = refusal(shared_service, graph, shared_service.tokens[0])
    assert isinstance(error, InvalidGraphError)
    assert "unknown operator" in str(error) or "left out" in str(error)
    assert len(str(error).encode()) <= MESSAGE_BYTES
    assert "\0" not in str(error)


def test_a_slow_sender_is_aborted_and_delays_no_other(tmp_path: Path) -> None:
    stop = threading.Event()

    def never() -> Iterator[bytes]:
        stop.wait(TIMEOUT_S)
        yield b""

    limits = {"KERNELFARM_BODY_TIMEOUT_S": "1", "KERNELFARM_MAX_BODIES": "4"}
    metadata = lambda token: (("authorization", f"Bearer {token}"),)  # noqa: E731
    with running_service(tmp_path, **limits) as service, service.channel() as channel:
        slow = [
            channel.stream_unary(LOOKUP).future(
                never(), metadata=metadata(service.tokens[0]), timeout=TIMEOUT_S
            )
            for _ in range(8)
        ]
        for token in service.tokens * 5:
            assert call(channel, LOOKUP, b"", token) == "OK"
        errors = [error_from_rpc(each.exception(TIMEOUT_S)) for each in slow]
        stop.set()
        assert Counter(type(error) for error in errors)[BodyTooSlowError] > 0
        assert {error.reason for error in errors} <= {"BODY_TOO_SLOW", "FARM_FULL"}
        assert call(channel, LOOKUP, b"", service.tokens[0]) == "OK"


def test_reflection_needs_credentials(shared_service: StubServicer) -> None:
    ask = reflection_pb2.ServerReflectionRequest(list_services="")
    with shared_service.channel() as channel:
        reflect = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo
        with pytest.raises(grpc.RpcError) as caught:
            list(reflect(iter([ask]), timeout=TIMEOUT_S))
        assert isinstance(error_from_rpc(caught.value), UnauthenticatedError)
        metadata = (("authorization", f"Bearer {shared_service.tokens[0]}"),)
        (answer,) = reflect(iter([ask]), metadata=metadata, timeout=TIMEOUT_S)
    names = {service.name for service in answer.list_services_response.service}
    assert "kernelfarm.v1.CompileService" in names


def test_the_log_of_refused_calls_stays_small(shared_service: StubServicer) -> None:
    service, data = shared_service, graph_of("x" * 3_000)
    with service.channel() as channel:
        for _ in range(400):
            assert call(channel, COMPILE, data, service.tokens[0]) == "INVALID_ARGUMENT"
        assert call(channel, COMPILE, graph_of("y"), service.tokens[1]) == "INVALID_ARGUMENT"
        for _ in range(400):
            assert call(channel, COMPILE, data) == "UNAUTHENTICATED"

        def is_reported() -> bool:
            assert call(channel, COMPILE, data) == "UNAUTHENTICATED"
            return '"suppressed"' in service.log.read_text()

        # A line of a kind may come each second; it has the number of those that may not.
        wait_until(is_reported, TIMEOUT_S, "the number of lines that were dropped")
    text = service.log.read_text()
    assert len(text) < 200_000, "800 calls wrote 1.7 MB on 3c2bd51"
    assert '"tenant": "beta"' in text, "one tenant's refusals hide no other's"


def test_reflection_can_be_switched_off(tmp_path: Path) -> None:
    ask = reflection_pb2.ServerReflectionRequest(list_services="")
    with (
        running_service(tmp_path, KERNELFARM_REFLECTION="false") as service,
        service.channel() as channel,
    ):
        reflect = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo
        metadata = (("authorization", f"Bearer {service.tokens[0]}"),)
        with pytest.raises(grpc.RpcError) as caught:
            list(reflect(iter([ask]), metadata=metadata, timeout=TIMEOUT_S))
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize("sent", [b"", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"])
def test_idle_connections_block_no_caller(tmp_path: Path, sent: bytes) -> None:
    """On 3c2bd51 no other caller could connect, and the service could not open a file."""
    with running_service(tmp_path, files=256) as service, contextlib.ExitStack() as stack:
        host, port = service.address.split(":")
        for _ in range(300):
            idle = stack.enter_context(socket.create_connection((host, int(port)), TIMEOUT_S))
            idle.sendall(sent)

        def is_answered() -> bool:
            with service.channel() as channel:
                return call(channel, LOOKUP, b"", service.tokens[0]) == "OK"

        wait_until(is_answered, 30, "an answer beside 300 idle connections")
        assert len(os.listdir(f"/proc/{service.process.pid}/fd")) < 256


def test_a_caller_keeps_its_connection_beside_idle_ones(tmp_path: Path) -> None:
    with running_service(tmp_path, files=256) as service, contextlib.ExitStack() as stack:
        host, port = service.address.split(":")
        channel = stack.enter_context(service.channel())
        assert call(channel, LOOKUP, b"", service.tokens[0]) == "OK"
        (connection,) = connections_to(int(port))
        idles = [
            stack.enter_context(socket.create_connection((host, int(port)), TIMEOUT_S))
            for _ in range(160)  # more than three quarters of what the service accepts: 192
        ]

        def is_closed(idle: socket.socket) -> bool:
            idle.setblocking(False)
            try:
                while idle.recv(4096):  # what the service sent before it closed the connection
                    pass
                return True
            except BlockingIOError:
                return False
            except ConnectionError:
                return True

        def are_closed() -> bool:
            return call(channel, LOOKUP, b"", service.tokens[0]) == "OK" and all(
                map(is_closed, idles)
            )

        wait_until(are_closed, TIMEOUT_S, "the end of idle connections")
        assert connection in connections_to(int(port)), "the caller lost its connection"


def connections_to(port: int) -> set[int]:
    """The local ports of this machine's established connections to a port.

    Connectivity of a channel is reported by a thread, after calls have used a connection.
    """
    tables = [Path(f"/proc/net/{name}").read_text() for name in ("tcp", "tcp6")]
    rows = [line.split()[1:4] for table in tables for line in table.splitlines()[1:]]
    is_to, established = f":{port:04X}", "01"
    return {
        int(own.rpartition(":")[2], 16)
        for own, peer, state in rows
        if peer.endswith(is_to) and state == established
    }
