"""A farm under test: how it is started again, its processes, its servers, its disks.

Together: all on loopback and unix sockets, the servers supervised by the farm. Apart: clients, farm
and each server in network namespaces of their own, between which a fault may cut.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from kernelfarm.cache.embedded import ServerRole
from tests.chaos.network_namespaces import Switch
from tests.chaos.servers import OwnServer
from tests.support.redis_of_process import socket_of

VENDOR_WORKERS = 2
_STOP_S = 120.0
_CLIENTS, _FARM, _BROKER, _CACHE = "clients", "farm", "broker", "cache"


@dataclass
class Ground:
    """One farm; the processes of a restarted one are found through it all the same."""

    folder: Path
    vendors: str
    frontends: int
    switch: Switch | None = None
    servers: dict[ServerRole, OwnServer] = field(default_factory=dict)
    process: subprocess.Popen[str] | None = None
    endpoint: str = ""
    admin_token: str = field(default_factory=lambda: secrets.token_hex(16))

    @property
    def data_dir(self) -> Path:
        """The farm's data directory."""
        return self.folder / "farm"

    @property
    def client_disk(self) -> Path:
        """The disk cache of one of the clients."""
        return self.folder / "client-disk"

    def start(self) -> None:
        """Starts the farm, and returns when it says that it serves."""
        self.data_dir.mkdir(parents=True, exist_ok=True)
        self.client_disk.mkdir(parents=True, exist_ok=True)
        address = self.switch.address(_FARM) if self.switch else "127.0.0.1"
        listen = self.endpoint or f"{address}:{_free_port()}"
        command = [sys.executable, "-m", "kernelfarm.cli", "up", "--listen", listen]
        command += ["--vendors", self.vendors, "--data-dir", str(self.data_dir)]
        command += ["--workers", str(VENDOR_WORKERS), "--frontends", str(self.frontends)]
        prefix = self.switch.prefix(_FARM) if self.switch else ()
        with (self.folder / "up.log").open("a") as errors:
            self.process = subprocess.Popen(
                [*prefix, *command],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=self._environment(),
            )
        assert self.process.stdout is not None
        with self.process.stdout as reported:
            line = reported.readline()
        if not line.startswith("READY "):
            log = (self.folder / "up.log").read_text()[-4000:]
            raise RuntimeError(f"the farm did not start:\n{log}")
        self.endpoint = line.split()[1]

    def stop(self) -> int:
        """SIGTERM and the exit status; what does not end in time is killed."""
        process = self._running()
        process.send_signal(signal.SIGTERM)
        try:
            return process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()
            return -int(signal.SIGKILL)

    def kill(self) -> None:
        """Ends every process of the farm at once."""
        for process in self.family():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._running().wait()

    def status(self) -> dict[str, Any]:
        """What the farm's status file says; no children if it cannot be read."""
        try:
            return dict(json.loads((self.data_dir / "farm.json").read_text()))
        except (OSError, ValueError):
            return {"state": "unknown", "children": {}}

    def children(self, prefix: str = "") -> dict[str, psutil.Process]:
        """The supervised processes that run, by name."""
        found = {}
        for name, child in sorted(self.status()["children"].items()):
            if name.startswith(prefix) and child["pid"]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    found[name] = psutil.Process(child["pid"])
        return found

    def descendants(self, prefix: str = "") -> list[psutil.Process]:
        """Processes that the supervised ones started: pools, compilers."""
        found = []
        for child in self.children(prefix).values():
            with contextlib.suppress(psutil.NoSuchProcess):
                found += child.children(recursive=True)
        return sorted(found, key=lambda process: process.pid)

    def family(self) -> list[psutil.Process]:
        """The supervisor and all its descendants."""
        try:
            parent = psutil.Process(self._running().pid)
            return [parent, *parent.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def restarts(self) -> int:
        """How often children were started again, as the status file tells."""
        return sum(child["restarts"] for child in self.status()["children"].values())

    def server_socket(self, role: ServerRole) -> Path | None:
        """Where a server can be reached; None while it is down."""
        if role in self.servers:
            return self.servers[role].socket
        process = self.children(f"redis-{role.value}").get(f"redis-{role.value}")
        return None if process is None else socket_of(process)

    def client_prefix(self) -> tuple[str, ...]:
        """What stands before a client's command."""
        return self.switch.prefix(_CLIENTS) if self.switch else ()

    def client_environment(self) -> dict[str, str]:
        """The environment of clients: they trust the farm's keys and keep nothing on disk."""
        return {
            **os.environ,
            "KERNELFARM_ENDPOINT": self.endpoint,
            "KERNELFARM_TRUSTED_KEYS_FILE": str(self.data_dir / "keys" / "public.json"),
            "KERNELFARM_ADMIN_TOKEN": self.admin_token,
            "KERNELFARM_DISK_CACHE_BYTES": "0",
            "KERNELFARM_DISK_CACHE_DIR": str(self.client_disk),
            "OMP_NUM_THREADS": "1",
        }

    def _environment(self) -> dict[str, str]:
        urls = {
            f"KERNELFARM_{role.value.upper()}_URL": server.url
            for role, server in self.servers.items()
        }
        return {
            **os.environ,
            "KERNELFARM_START_TIMEOUT_S": "180",
            "KERNELFARM_ADMIN_TOKEN": self.admin_token,
            **urls,
        }

    def _running(self) -> subprocess.Popen[str]:
        if self.process is None:
            raise RuntimeError("the farm was never started")
        return self.process


@contextlib.contextmanager
def farm_together(folder: Path, vendors: str, frontends: int) -> Iterator[Ground]:
    """A running farm with servers of its own."""
    ground = Ground(folder, vendors, frontends)
    with _running(ground):
        yield ground


@contextlib.contextmanager
def farm_apart(folder: Path, vendors: str, frontends: int) -> Iterator[Ground]:
    """A running farm whose parts are in network namespaces; for root."""
    parts = (_CLIENTS, _FARM, _BROKER, _CACHE)
    with Switch(f"kf{os.getpid()}", parts) as switch, contextlib.ExitStack() as stack:
        ground = Ground(folder, vendors, frontends, switch)
        for role, port in ((ServerRole.BROKER, 6379), (ServerRole.CACHE, 6380)):
            server = OwnServer(
                *(role, folder / role.value, switch.address(role.value), port),
                switch.prefix(role.value),
            )
            stack.callback(server.stop)
            server.start()
            ground.servers[role] = server
        with _running(ground):
            yield ground


@contextlib.contextmanager
def _running(ground: Ground) -> Iterator[None]:
    try:
        ground.start()
        yield
    finally:
        if ground.process is not None and ground.process.poll() is None:
            ground.kill()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
