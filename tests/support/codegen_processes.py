"""The codegen room as real processes: two Redis servers, an edge, workers with the echo vendor."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import redis

from kernelfarm.cache.embedded import EmbeddedServer, ServerProgram, ServerRole, start_server
from kernelfarm.signing.key_files import KERNEL_KEY, PUBLIC_KEYS, make_keys
from tests.support.farm import TIMEOUT_S
from tests.support.redis_servers import farm_server

PLUGIN = Path(__file__).parent / "echo_vendor"


@dataclass
class CodegenFarm:
    """Addresses and processes of a room; `folder` holds sockets and logs."""

    folder: Path
    settings: dict[str, str]
    broker: EmbeddedServer
    cache: EmbeddedServer
    program: ServerProgram | None = None
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def address(self) -> str:
        return f"unix:{self.folder}/edge"

    @property
    def blocked_jobs(self) -> Path:
        """What compilations of the echo vendor may write."""
        return self.folder / "gates"

    def start(self, *command: str, name: str) -> subprocess.Popen[bytes]:
        return self._start(["-m", *command], name)

    def start_code(self, code: str, name: str) -> subprocess.Popen[bytes]:
        return self._start(["-c", code], name)

    def _start(self, arguments: list[str], name: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, *arguments],
                env={**os.environ, **self.settings},
                stdout=log,
                stderr=log,
            )
        self.processes.append(process)
        return process

    def start_edge(self) -> subprocess.Popen[bytes]:
        edge = self.start("codegen_svc", name="edge")
        await_true(lambda: b'"listening"' in self.log("edge"), self.log, "edge", edge)
        return edge

    def start_worker(self, concurrency: int = 1, name: str = "worker") -> subprocess.Popen[bytes]:
        ready = self.log(name).count(b"worker_ready")
        flags = ("--queue", "echo", "--concurrency", str(concurrency))
        worker = self.start("codegen_svc.worker", *flags, name=name)
        reference = ready + concurrency
        is_ready = lambda: self.log(name).count(b"worker_ready") >= reference  # noqa: E731
        await_true(is_ready, self.log, name, worker)
        return worker

    def log(self, name: str) -> bytes:
        path = self.folder / f"{name}.log"
        return path.read_bytes() if path.exists() else b""

    def restart_servers(self) -> None:
        """Ends both servers and starts empty ones at the same sockets."""
        self.broker.stop()
        self.cache.stop()
        self.broker, self.cache = start_servers(self.folder, self.program)

    def restart_broker(self) -> None:
        """Starts an empty broker at the socket of the present one, which is ended first."""
        self.broker.stop()
        self.broker = start_broker(self.folder, self.program)

    def pid_of_blocked_job(self, kernel: str) -> int:
        """The worker process of a gated kernel's compilation; waits until it is there."""
        path = self.blocked_jobs / f"{kernel}.pid"
        await_true(path.exists, self.log, "worker")
        pid = int(path.read_text())
        path.unlink()
        return pid

    def release_job(self, kernel: str) -> None:
        (self.blocked_jobs / f"{kernel}.go").touch()

    def compilations(self, kernel: str) -> int:
        path = self.blocked_jobs / f"{kernel}.log"
        return path.read_text().count("compiled") if path.exists() else 0

    def stop(self) -> None:
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            try:
                process.wait(TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.broker.stop()
        self.cache.stop()


def start_servers(
    folder: Path, program: ServerProgram | None
) -> tuple[EmbeddedServer, EmbeddedServer]:
    """Broker and cache on one program; without, on what is on PATH and on the embedded one."""
    cache = start_server(ServerRole.CACHE, program=program, socket_path=folder / "cache")
    return start_broker(folder, program), cache


def start_broker(folder: Path, program: ServerProgram | None) -> EmbeddedServer:
    """A broker on a program, or on what is on PATH."""
    found = shutil.which("redis-server")
    on_path = ServerProgram(Path(found), "PATH") if found else None
    return start_server(
        ServerRole.BROKER, program=program or on_path, socket_path=folder / "broker"
    )


@contextmanager
def codegen_farm(
    folder: Path, program: ServerProgram | None = None, **settings: str
) -> Iterator[CodegenFarm]:
    """Servers only; the test starts the rest. `--farm-server` chooses the program."""
    program = program or farm_server()
    broker, cache = start_servers(folder, program)
    keys = folder / "keys"
    make_keys(keys)
    gates = folder / "gates"
    gates.mkdir()
    environment = {
        "KERNELFARM_KERNEL_KEY_FILE": str(keys / KERNEL_KEY),
        "KERNELFARM_TRUSTED_KEYS_FILE": str(keys / PUBLIC_KEYS),
        "KERNELFARM_BROKER_URL": broker.url,
        "KERNELFARM_CACHE_URL": cache.url,
        "KERNELFARM_CODEGEN_LISTEN": f"unix:{folder}/edge",
        "ECHO_GATES": str(gates),
        "PYTHONPATH": os.pathsep.join([str(PLUGIN), str(PLUGIN.parents[2])]),
        **{f"KERNELFARM_{name.upper()}": value for name, value in settings.items()},
    }
    room = CodegenFarm(folder, environment, broker, cache, program)
    try:
        yield room
    finally:
        room.stop()


def await_true(
    is_true: Callable[[], bool],
    log: Callable[[str], bytes],
    name: str,
    process: subprocess.Popen[bytes] | None = None,
) -> None:
    """Returns when the condition holds; a process of ours offers no other event to wait on."""
    deadline = time.monotonic() + TIMEOUT_S
    while not is_true():
        ended = process is not None and process.poll() is not None
        if ended or time.monotonic() > deadline:
            raise AssertionError(f"{name} did not get there:\n{log(name).decode()}")
        time.sleep(0.01)


def start_service(room: CodegenFarm, service: str, name: str, **settings: str) -> int:
    """The process id of a frontend, optimizer or edge that serves at the socket `name`."""
    before = dict(room.settings)
    room.settings[f"KERNELFARM_{service.upper()}_LISTEN"] = f"unix:{room.folder}/{name}"
    room.settings.update(settings)
    process = room.start(f"{service}_svc", name=name)
    room.settings.clear()
    room.settings.update(before)
    await_true(lambda: b'"listening"' in room.log(name), room.log, name, process)
    return process.pid


def stats_of(room: CodegenFarm) -> dict[str, int]:
    with redis.Redis.from_url(room.cache.url) as raw:
        return {name.decode(): int(n) for name, n in raw.hgetall("kf:{default}:stats").items()}
