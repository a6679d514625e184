"""Brokers and caches that are down, empty, full or paused, or drop their connections."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterator

import psutil
import redis

from kernelfarm.cache.embedded import ServerRole
from tests.chaos.fault import Fault, FaultContext, Undo
from tests.support.redis_of_process import client_of

_OUTAGE_S = 8.0
_PAUSE_MS = 8_000
_FULL_BYTES = 3 << 20
_FULL_FOR_S = 8.0
_POLL_S = 0.02


def server_faults() -> Iterator[Fault]:
    """Each fault of a server."""
    for role in ServerRole:
        yield Fault(
            f"{role.value} away for 8 s while workers compile",
            functools.partial(_outage, role=role),
        )
        commands: tuple[tuple[str, Callable[[redis.Redis], object]], ...] = (
            ("FLUSHALL", lambda client: client.flushall()),
            ("SCRIPT FLUSH", lambda client: client.script_flush()),
            ("CLIENT KILL of all", _kill_clients),
        )
        for name, command in commands:
            begin = functools.partial(_at_work, role=role, command=command)
            yield Fault(f"{name} at the {role.value}", begin)
        paused = functools.partial(_at_work, role=role, command=_pause)
        yield Fault(f"{role.value} answers nobody for 8 s", paused, _PAUSE_MS / 1000)
    yield Fault("the cache is full for 8 s", _full_cache, _FULL_FOR_S)


def _outage(context: FaultContext, role: ServerRole) -> None:
    """Stops a server for some seconds; it is empty afterwards."""
    context.keep_workers_busy()
    own = context.farm.servers.get(role)
    until_s = time.monotonic() + _OUTAGE_S
    if own is not None:
        own.stop()
        time.sleep(_OUTAGE_S)
        own.start()
        return
    while time.monotonic() < until_s:  # the farm restarts it each time
        for process in context.farm.children(f"redis-{role.value}").values():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        time.sleep(_POLL_S)


def _at_work(
    context: FaultContext, role: ServerRole, command: Callable[[redis.Redis], object]
) -> None:
    context.keep_workers_busy()
    path = context.farm.server_socket(role)
    if path is None:
        context.notes.append("the server was down")
        return
    with client_of(path) as client:
        command(client)


def _kill_clients(client: redis.Redis) -> None:
    for kind in ("normal", "pubsub"):
        client.client_kill_filter(_type=kind, skipme=True)


def _pause(client: redis.Redis) -> None:
    client.client_pause(_PAUSE_MS)


def _full_cache(context: FaultContext) -> Undo | None:
    path = context.farm.server_socket(ServerRole.CACHE)
    if path is None:
        context.notes.append("the server was down")
        return None
    with client_of(path) as client:
        before = int(client.config_get("maxmemory")["maxmemory"] or 0)
        client.config_set("maxmemory", _FULL_BYTES)

    def restore_limit() -> None:
        now = context.farm.server_socket(ServerRole.CACHE)
        if now is not None:
            with client_of(now) as client:
                client.config_set("maxmemory", before)

    return restore_limit
