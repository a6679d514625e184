"""Redis or Valkey servers that the chaos run starts itself, in the layout `apart`."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

import redis

from kernelfarm.cache.embedded import ServerRole, find_server, server_command
from tests.support.redis_of_process import client_of

_START_S = 20.0


@dataclass
class OwnServer:
    """A server at a TCP address and on a unix socket."""

    role: ServerRole
    folder: Path
    address: str
    port: int
    prefix: tuple[str, ...] = ()
    process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    @property
    def url(self) -> str:
        """The URL for the farm's settings."""
        return f"redis://{self.address}:{self.port}/0"

    @property
    def socket(self) -> Path:
        """The socket for faults: it works while the network is cut."""
        return self.folder / "s"

    def start(self) -> None:
        """Starts the server, empty; returns when it answers."""
        self.folder.mkdir(parents=True, exist_ok=True)
        most = 1 << 30 if self.role is ServerRole.CACHE else 0
        command = server_command(find_server(), self.role, self.folder, self.socket, most)
        listens = ("--port", str(self.port), "--bind", self.address, "--protected-mode", "no")
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [*self.prefix, *command, *listens], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        until_s = time.monotonic() + _START_S
        while time.monotonic() < until_s:
            with client_of(self.socket) as client, contextlib.suppress(redis.RedisError):
                client.ping()
                return
            time.sleep(0.05)
        raise RuntimeError(f"the server at {self.url} does not answer; see {self.folder}/log")

    def stop(self) -> None:
        """Ends the server by SIGKILL."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
