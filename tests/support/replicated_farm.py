"""A farm of several replicas of each service, as the chart runs it, on addresses of loopback.

Frontends find the replicas of other services through a name server, which has the ready ones, as a
headless Service has. Clients have a name for all frontends, and one address that the frontends
share, as gateways of one pod do.
"""

from __future__ import annotations

import asyncio
import itertools
import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from kernelfarm.cache.embedded import EmbeddedServer, ServerRole, start_server
from kernelfarm.service.liveness import read_heartbeat
from kernelfarm.service.probes import is_serving
from kernelfarm.signing import Keyring
from kernelfarm.signing.key_files import PUBLIC_KEYS, read_keyring
from tests.support.codegen_processes import CodegenFarm, await_true, codegen_farm
from tests.support.headless_dns import HeadlessDns, headless_dns
from tests.support.ports import reserved_port

WORKER = "worker"
SERVICES = ("frontend", "optimizer", "codegen", WORKER)
_DOMAIN = "farm.test"
_WORKER_PROCESSES = 2


@dataclass
class Replica:
    """A running process; `address` is its own, which it has alone. A worker has none."""

    service: str
    name: str
    address: str
    process: subprocess.Popen[bytes]


@dataclass
class ReplicatedFarm:
    """The replicas by service, and how they start and end."""

    processes: CodegenFarm
    dns: HeadlessDns
    port: int
    endpoint: str
    """The address that all frontends share."""
    replicas: dict[str, list[Replica]] = field(default_factory=dict)
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    @property
    def name(self) -> str:
        """The endpoint that resolves to all frontends."""
        return self.target("frontend")

    @property
    def public_keys(self) -> Path:
        """The file of the farm's public keys."""
        return self.processes.folder / "keys" / PUBLIC_KEYS

    @property
    def keyring(self) -> Keyring:
        """The farm's public keys."""
        return read_keyring(self.public_keys)

    def target(self, service: str) -> str:
        """The target of a channel to all replicas of a service."""
        return self.dns.target(f"{service}.{_DOMAIN}", self.port)

    def start(self, service: str) -> Replica:
        """A new replica; returns when it is ready, and callers find it."""
        number = next(self._numbers)
        name = f"{service}-{number}"
        if service == WORKER:
            heartbeat = self.processes.folder / f"{name}.heartbeat"
            flags = ("--queue", "cpu", "--concurrency", str(_WORKER_PROCESSES))
            settings = {"worker_heartbeat_file": str(heartbeat)}
            process = self.processes.start("codegen_svc.worker", *flags, name=name, **settings)
            await_true(lambda: _takes_jobs(heartbeat), self.processes.log, name, process)
            replica = Replica(service, name, "", process)
        else:
            host = f"127.0.1.{number}"
            address = f"{host}:{self.port}"
            process = self.processes.start(
                f"{service}_svc", name=name, **self._listen(service, address)
            )
            await_true(lambda: asyncio.run(is_serving(address)), self.processes.log, name, process)
            self.dns.add(f"{service}.{_DOMAIN}", host)
            replica = Replica(service, name, address, process)
        self.replicas.setdefault(service, []).append(replica)
        return replica

    def end(self, replica: Replica, timeout_s: float) -> tuple[int, float]:
        """The exit status after SIGTERM, and the seconds that the drain took.

        The name server drops the replica when it gets the signal, as Kubernetes drops a pod.

        Raises:
            subprocess.TimeoutExpired: it does not end in time.
        """
        if replica.address:
            self.dns.remove(f"{replica.service}.{_DOMAIN}", replica.address.partition(":")[0])
        began_s = time.monotonic()
        replica.process.send_signal(signal.SIGTERM)
        status = replica.process.wait(timeout_s)
        self.replicas[replica.service].remove(replica)
        self.processes.processes.remove(replica.process)
        return status, time.monotonic() - began_s

    def restart_server(self, role: ServerRole, away_s: float) -> None:
        """Ends the cache or the broker by SIGTERM; starts an empty one at the same socket later."""
        running = self._server(role)
        path = Path(running.url.removeprefix("unix://"))
        running.stop()
        time.sleep(away_s)
        started = start_server(role, program=running.program, socket_path=path)
        if role is ServerRole.CACHE:
            self.processes.cache = started
        else:
            self.processes.broker = started

    def _server(self, role: ServerRole) -> EmbeddedServer:
        return self.processes.cache if role is ServerRole.CACHE else self.processes.broker

    def _listen(self, service: str, address: str) -> dict[str, str]:
        if service == "frontend":
            return {"frontend_listen": self.endpoint, "frontend_process_listen": address}
        return {f"{service}_listen": address}


@contextmanager
def replicated_farm(folder: Path, replicas: int, **settings: str) -> Iterator[ReplicatedFarm]:
    """A farm with so many ready replicas of each service."""
    with headless_dns() as dns, reserved_port() as port, reserved_port() as shared:
        targets = {
            f"{service}_address": dns.target(f"{service}.{_DOMAIN}", port)
            for service in ("optimizer", "codegen")
        }
        with codegen_farm(folder, **targets, **settings) as processes:
            farm = ReplicatedFarm(processes, dns, port, f"127.0.0.1:{shared}")
            with ThreadPoolExecutor() as threads:  # each takes seconds until it serves
                list(threads.map(farm.start, SERVICES * replicas))
            yield farm


def _takes_jobs(heartbeat: Path) -> bool:
    beat = read_heartbeat(heartbeat)
    return beat is not None and beat.is_fresh and beat.state == "serving"
