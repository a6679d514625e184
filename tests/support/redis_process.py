"""Redis and Valkey servers as processes of tests, with replicas."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from kernelfarm.cache.embedded import ServerProgram, ServerRole, server_command
from tests.support.farm import TIMEOUT_S, wait_until

# The library's own retries would take seconds while a server starts, or to report a refusal.
ONCE = Retry(NoBackoff(), 0)


class ServerEndedError(AssertionError):
    """A server ended before it answered; the message is its log."""


@contextmanager
def server_process(
    command: Sequence[str], log: Path, is_up: Callable[[], bool]
) -> Iterator[subprocess.Popen[bytes]]:
    """A server's process, once `is_up`; ends by SIGKILL.

    Raises:
        ServerEndedError: it ended before.
    """
    with log.open("ab") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)

    def is_up_or_ended() -> bool:
        if process.poll() is not None:
            raise ServerEndedError(log.read_text(errors="replace"))
        return is_up()

    try:
        wait_until(is_up_or_ended, TIMEOUT_S, "the server")
        yield process
    finally:
        process.kill()
        process.wait()


@contextmanager
def redis_process(program: ServerProgram, folder: Path) -> Iterator[redis.Redis]:
    """A client of a server at `folder`/s, which ends by SIGKILL; files that it saved stay."""
    folder.mkdir(exist_ok=True)
    command = server_command(program, ServerRole.CACHE, folder, folder / "s", 0)
    raw = redis.Redis(unix_socket_path=str(folder / "s"), retry=ONCE)
    flags = ("--repl-diskless-sync-delay", "0")
    with raw, server_process([*command, *flags], folder / "log", lambda: answers(raw)):
        yield raw


def answers(raw: redis.Redis) -> bool:
    """True if the server answers a ping."""
    try:
        return bool(raw.ping())
    except redis.exceptions.ConnectionError:
        return False


def replicate(replica: redis.Redis, primary: redis.Redis, folder: Path) -> None:
    """Makes a server the replica of another one, by TCP; returns when they are in sync."""
    port = primary.config_get("port")["port"]
    replica.replicaof("127.0.0.1", listen_by_tcp(primary) if port == "0" else port)
    wait_until(
        lambda: replica.info("replication")["master_link_status"] == "up", TIMEOUT_S, "a replica"
    )


def listen_by_tcp(raw: redis.Redis) -> int:
    """The port at which a running server listens from now on."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        try:
            raw.config_set("port", str(port))
        except redis.exceptions.ResponseError:  # another process took the port
            continue
        return port
