"""A Redis or Valkey server as a process of its own, with replicas."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from kernelfarm.cache.embedded import ServerProgram, ServerRole, server_command
from tests.support.farm import TIMEOUT_S, wait_until


@contextmanager
def redis_process(program: ServerProgram, folder: Path) -> Iterator[redis.Redis]:
    """A server at `folder`/s; SIGKILL at the end, and what it saved stays."""
    folder.mkdir(exist_ok=True)
    command = server_command(program, ServerRole.CACHE, folder, folder / "s", 0)
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(
            [*command, "--repl-diskless-sync-delay", "0"], stdout=log, stderr=log
        )
    # One that tries once: the library's own retries would go on for seconds while it starts.
    raw = redis.Redis(unix_socket_path=str(folder / "s"), retry=Retry(NoBackoff(), 0))
    try:
        wait_until(lambda: answers(raw), TIMEOUT_S, "the server")
        yield raw
    finally:
        raw.close()
        process.kill()
        process.wait()


def answers(raw: redis.Redis) -> bool:
    try:
        return bool(raw.ping())
    except redis.exceptions.ConnectionError:
        return False


def replicate(replica: redis.Redis, primary: redis.Redis, folder: Path) -> None:
    """Makes a server follow another one; returns once it does. Replicas follow by TCP alone."""
    port = primary.config_get("port")["port"]
    replica.replicaof("127.0.0.1", listen_by_tcp(primary) if port == "0" else port)
    wait_until(
        lambda: replica.info("replication")["master_link_status"] == "up", TIMEOUT_S, "a replica"
    )


def listen_by_tcp(raw: redis.Redis) -> int:
    """The port at which a server listens from now on."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        try:
            raw.config_set("port", str(port))
        except redis.exceptions.ResponseError:  # somebody took it meanwhile
            continue
        return port
