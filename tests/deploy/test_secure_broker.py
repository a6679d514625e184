"""The broker of the secure overlay: edge and workers may do their work, others nothing."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import redis
from kombu import Queue

from codegen_svc.celery_app import JobQueue, QueuedGroup, QueuedJob, make_app
from codegen_svc.settings import CodegenSettings, WorkerSettings
from kernelfarm.cache.embedded import ServerRole, embedded_program, find_server, server_command
from kernelfarm.internal.v1.codegen_service_pb2_grpc import CodegenServiceStub
from kernelfarm.service.channels import open_channel
from kernelfarm.service.probes import reported_vendors
from tests.support.codegen_calls import build
from tests.support.codegen_processes import codegen_farm
from tests.support.farm import TIMEOUT_S
from tests.support.fresh_kernels import fresh_kernel
from tests.support.ports import reserved_port
from tests.support.redis_process import ONCE, answers, server_process


@dataclass(frozen=True)
class Broker:
    """A server with the users that the script made, at a port of this machine."""

    port: int
    passwords: dict[str, str]

    def url(self, user: str) -> str:
        return f"redis://{user}:{self.passwords[user]}@127.0.0.1:{self.port}/0"

    def client(self, user: str) -> redis.Redis:
        return redis.Redis.from_url(self.url(user), driver_info=None, retry=ONCE)


@pytest.fixture(scope="module", params=["the host's server", "the wheel's server"])
def broker(
    made: tuple[Path, str],
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> Iterator[Broker]:
    # Old servers do not know CLIENT SETINFO and so record no refusal of it; the wheel's is new.
    program = find_server() if request.param == "the host's server" else embedded_program()
    assert program is not None
    folder = tmp_path_factory.mktemp("broker")
    reported = re.findall(
        r"KERNELFARM_(\w+)_PASSWORD=(\w+)", (made[0] / "passwords.env").read_text()
    )
    command = server_command(program, ServerRole.BROKER, folder, folder / "s", 0)
    users = made[0] / "broker-users.acl"
    with reserved_port() as port:
        flags = ["--port", str(port), "--bind", "127.0.0.1", "--aclfile", str(users)]
        running = Broker(port, {user.lower(): password for user, password in reported})
        with (
            running.client("operator") as operator,
            server_process([*command, *flags], folder / "log", lambda: answers(operator)),
        ):
            yield running


def test_a_client_without_a_user_is_refused(broker: Broker) -> None:
    for command in (b"PING", b"LPUSH cpu {}", b"LLEN cpu", b"FLUSHALL", b"KEYS *"):
        with socket.create_connection(("127.0.0.1", broker.port)) as raw:
            raw.sendall(command + b"\r\n")
            assert raw.recv(100).startswith(b"-NOAUTH"), command
    guessing = redis.Redis(port=broker.port, username="producer", password="guessed", retry=ONCE)
    with pytest.raises(redis.exceptions.AuthenticationError, match=r"WRONGPASS|invalid username"):
        guessing.ping()
    refused(broker)


@pytest.mark.parametrize("user", ["producer", "consumer"])
def test_no_service_may_do_what_only_operators_do(broker: Broker, user: str) -> None:
    with broker.client(user) as raw:
        for command in (
            ("FLUSHALL",), ("CONFIG", "GET", "*"), ("KEYS", "*"), ("ACL", "LIST"), ("SHUTDOWN",),
            ("CLIENT", "KILL", "TYPE", "normal"), ("EVAL", "return 1", 0),
        ):  # fmt: skip
            with pytest.raises(redis.exceptions.NoPermissionError):
                raw.execute_command(*command)
    assert refused(broker)


def test_the_sender_of_jobs_may_not_take_any(broker: Broker) -> None:
    with broker.client("producer") as raw, pytest.raises(redis.exceptions.NoPermissionError):
        raw.brpop(["cpu"], 1)
    assert refused(broker) == {("producer", "brpop")}


async def test_kernels_are_compiled_with_a_user_for_each_role(
    broker: Broker, tmp_path: Path
) -> None:
    with codegen_farm(tmp_path) as service:
        service.start_edge(broker_url=broker.url("producer"))
        service.start_worker(broker_url=broker.url("consumer"))
        async with asyncio.timeout(TIMEOUT_S):
            while "echo" not in await reported_vendors(service.address):
                await asyncio.sleep(0.05)
        async with open_channel(service.address) as channel:
            stub = CodegenServiceStub(channel)
            built = await build(stub, fresh_kernel("plain_a"), fresh_kernel("plain_b"))
    assert all(response.signed for response in built.values()) and len(built) == 2
    assert refused(broker) == set()


async def test_a_job_that_a_worker_took_and_lost_is_queued_again(broker: Broker) -> None:
    """Kombu's own code does this; a worker runs it every 5 s and when its connection closes."""
    queue = JobQueue(CodegenSettings(broker_url=broker.url("producer"), signing="off"))
    await queue.send(QueuedGroup("lost", "default", (QueuedJob(b"k" * 32, 1),)))
    queue.close()
    app = make_app(WorkerSettings(broker_url=broker.url("consumer"), signing="off"))
    for _ in range(2):
        with app.connection_for_read() as connection, connection.channel() as channel:
            found = Queue("lost", channel=channel).get()
            assert found is not None
            channel.qos.restore_visible(num=10)
            assert channel.client.llen("lost") == 0
        with broker.client("operator") as raw:
            assert raw.llen("lost") == 1
    with app.connection_for_read() as connection, connection.channel() as channel:
        Queue("lost", channel=channel).get().ack()
    with broker.client("operator") as raw:
        assert (raw.llen("lost"), raw.hlen("unacked")) == (0, 0)
    assert refused(broker) == set()


def refused(broker: Broker) -> set[tuple[str, str]]:
    """What the broker refused and to which of its users; clears the record."""
    with broker.client("operator") as raw:
        found = {(entry["username"], entry["object"]) for entry in raw.acl_log()}
        raw.acl_log_reset()
    return found
