"""A farm under test: its processes, servers and disks, and how it restarts.

Together: all on loopback and unix sockets, and the farm supervises its servers. Apart: clients,
farm and each server have network namespaces of their own, which a fault may disconnect.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from examples.farm import start_farm
from kernelfarm.cache.embedded import ServerRole
from tests.chaos.network_namespaces import Switch
from tests.chaos.servers import OwnServer
from tests.support.processes import kill_tree, process_tree
from tests.support.redis_of_process import socket_of

VENDOR_WORKERS = 2
_STOP_S = 120.0
_CLIENTS, _FARM, _BROKER, _CACHE = "clients", "farm", "broker", "cache"


@dataclass
class FarmUnderTest:
    """A farm that may be restarted; methods refer to the present processes."""

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
        """Starts the farm; returns when it serves."""
        self.client_disk.mkdir(parents=True, exist_ok=True)
        address = self.switch.address(_FARM) if self.switch else "127.0.0.1"
        started = start_farm(
            self.data_dir,
            *("--vendors", self.vendors, "--workers", str(VENDOR_WORKERS)),
            *("--frontends", str(self.frontends)),
            listen=self.endpoint or f"{address}:0",
            prefix=self.switch.prefix(_FARM) if self.switch else (),
            environment=self._environment(),
            log=self.folder / "up.log",  # the data folder may be on a disk that becomes full
        )
        self.endpoint, self.process = started.endpoint, started.process

    def stop(self) -> int:
        """The exit status after SIGTERM; kills the farm if it does not end in time."""
        process = self._running()
        process.send_signal(signal.SIGTERM)
        try:
            return process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()
            return -int(signal.SIGKILL)

    def kill(self) -> None:
        """Ends every process of the farm by SIGKILL."""
        kill_tree(self._running().pid)
        self._running().wait()

    def status(self) -> dict[str, Any]:
        """The content of the status file; without children if it cannot be read."""
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
        """Processes that supervised processes started: pools and compilers."""
        children = self.children(prefix).values()
        found = [process for child in children for process in process_tree(child.pid)[1:]]
        return sorted(found, key=lambda process: process.pid)

    def processes(self) -> list[psutil.Process]:
        """The supervisor and all its descendants."""
        return process_tree(self._running().pid)

    def restarts(self) -> int:
        """How often children were restarted, by the status file."""
        return sum(child["restarts"] for child in self.status()["children"].values())

    def server_socket(self, role: ServerRole) -> Path | None:
        """The socket of a server; None while it is down."""
        if role in self.servers:
            return self.servers[role].socket
        process = self.children(f"redis-{role.value}").get(f"redis-{role.value}")
        return None if process is None else socket_of(process)

    def client_prefix(self) -> tuple[str, ...]:
        """The prefix of a client's command."""
        return self.switch.prefix(_CLIENTS) if self.switch else ()

    def client_environment(self) -> dict[str, str]:
        """The environment of clients: they trust the farm's keys, and store nothing on disk."""
        return {
            **os.environ,
            "KERNELFARM_ENDPOINT": self.endpoint,
            "KERNELFARM_TRUSTED_KEYS_FILE": str(self.data_dir / "keys" / "public.json"),
            "KERNELFARM_ADMIN_TOKEN": self.admin_token,
            "KERNELFARM_DISK_CACHE_BYTES": "0",
            "KERNELFARM_DISK_CACHE_DIR": str(self.client_disk),
        }

    def _environment(self) -> dict[str, str]:
        urls = {
            f"KERNELFARM_{role.value.upper()}_URL": server.url
            for role, server in self.servers.items()
        }
        return {
            "KERNELFARM_START_TIMEOUT_S": "180",
            "KERNELFARM_ADMIN_TOKEN": self.admin_token,
            **urls,
        }

    def _running(self) -> subprocess.Popen[str]:
        if self.process is None:
            raise RuntimeError("the farm was never started")
        return self.process


@contextlib.contextmanager
def farm_together(folder: Path, vendors: str, frontends: int) -> Iterator[FarmUnderTest]:
    """A running farm that supervises its own servers."""
    farm = FarmUnderTest(folder, vendors, frontends)
    with _running(farm):
        yield farm


@contextlib.contextmanager
def farm_apart(folder: Path, vendors: str, frontends: int) -> Iterator[FarmUnderTest]:
    """A running farm in network namespaces; needs root."""
    parts = (_CLIENTS, _FARM, _BROKER, _CACHE)
    with Switch(f"kf{os.getpid()}", parts) as switch, contextlib.ExitStack() as stack:
        farm = FarmUnderTest(folder, vendors, frontends, switch)
        for role, port in ((ServerRole.BROKER, 6379), (ServerRole.CACHE, 6380)):
            server = OwnServer(
                *(role, folder / role.value, switch.address(role.value), port),
                switch.prefix(role.value),
            )
            stack.callback(server.stop)
            server.start()
            farm.servers[role] = server
        with _running(farm):
            yield farm


@contextlib.contextmanager
def _running(farm: FarmUnderTest) -> Iterator[None]:
    try:
        farm.start()
        yield
    finally:
        if farm.process is not None and farm.process.poll() is None:
            farm.kill()
