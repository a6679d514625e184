"""Code generation as real processes: two Redis servers, an edge, and workers of the echo vendor."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import redis

from kernelfarm.cache.embedded import EmbeddedServer, ServerProgram, ServerRole, start_server
from kernelfarm.signing.key_files import KERNEL_KEY, PROGRAM_KEY, PUBLIC_KEYS, make_keys
from tests.support.farm import TIMEOUT_S
from tests.support.processes import kill_tree
from tests.support.redis_servers import farm_server

PLUGIN = Path(__file__).parent / "echo_vendor"

# For tests that wait until a lease expires. Holders renew them each 0.8 to 1 s: with shorter ones,
# a busy machine would lose leases of live holders.
SHORT_LEASES = {"worker_lease_ttl_s": "2.5", "queued_lease_ttl_s": "3", "requeue_after_s": "1"}


@dataclass
class CodegenFarm:
    """A cache, a broker and the processes that use them; `folder` holds sockets and logs.

    `environment` is what each started process gets besides this process's own environment.
    """

    folder: Path
    environment: dict[str, str]
    broker: EmbeddedServer
    cache: EmbeddedServer
    program: ServerProgram | None = None
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    services: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    """Frontends, optimizers and edges by the socket that they were started at."""

    @property
    def address(self) -> str:
        """Where the edge listens."""
        return f"unix:{self.folder}/edge"

    @property
    def blocked_jobs(self) -> Path:
        """The folder in which gated kernels of the echo vendor report, and wait to be released."""
        return self.folder / "gates"

    def start(self, *command: str, name: str, **settings: str) -> subprocess.Popen[bytes]:
        """Runs a module with arguments; its output goes to the log `name`."""
        return self._start(["-m", *command], name, settings)

    def start_code(self, code: str, name: str) -> subprocess.Popen[bytes]:
        """Runs a program text; its output goes to the log `name`."""
        return self._start(["-c", code], name, {})

    def start_edge(self, **settings: str) -> subprocess.Popen[bytes]:
        """An edge that serves at `address`."""
        return self.start_service("codegen", "edge", **settings)

    def start_service(self, service: str, name: str, **settings: str) -> subprocess.Popen[bytes]:
        """A frontend, optimizer or edge (`codegen`) that serves at the socket `name`."""
        expected = self.log(name).count(b'"listening"') + 1
        listen = {f"{service}_listen": f"unix:{self.folder}/{name}"}
        process = self.start(f"{service}_svc", name=name, **listen, **settings)
        self.services[name] = process
        is_up = lambda: self.log(name).count(b'"listening"') >= expected  # noqa: E731
        await_true(is_up, self.log, name, process)
        return process

    def start_worker(
        self, concurrency: int = 1, name: str = "worker", queue: str = "echo", **settings: str
    ) -> subprocess.Popen[bytes]:
        """A worker whose processes are all ready for jobs."""
        expected = self.log(name).count(b"worker_ready") + concurrency
        flags = ("--queue", queue, "--concurrency", str(concurrency))
        worker = self.start("codegen_svc.worker", *flags, name=name, **settings)
        is_ready = lambda: self.log(name).count(b"worker_ready") >= expected  # noqa: E731
        await_true(is_ready, self.log, name, worker)
        return worker

    def log(self, name: str) -> bytes:
        """A process's output so far."""
        path = self.folder / f"{name}.log"
        return path.read_bytes() if path.exists() else b""

    def restart_servers(self) -> None:
        """Ends both servers and starts empty ones at the same sockets."""
        self.broker.stop()
        self.cache.stop()
        self.broker, self.cache = start_servers(self.folder, self.program)

    def restart_broker(self) -> None:
        """Ends the broker, if it still runs, and starts an empty one at the same socket."""
        self.broker.stop()
        self.broker = start_broker(self.folder, self.program)

    def pid_of_blocked_job(self, kernel: str) -> int:
        """The worker process in which a gated kernel waits; returns when it is there."""
        path = self.blocked_jobs / f"{kernel}.pid"
        await_true(path.exists, self.log, "worker")
        pid = int(path.read_text())
        path.unlink()
        return pid

    def release_job(self, kernel: str) -> None:
        """Lets a gated kernel go on, now and in every later attempt."""
        (self.blocked_jobs / f"{kernel}.go").touch()

    def compilations(self, kernel: str) -> int:
        """How often the compilation of a kernel has begun."""
        path = self.blocked_jobs / f"{kernel}.log"
        return path.read_text().count("compiled") if path.exists() else 0

    def cache_keys(self, pattern: str) -> set[bytes]:
        """The keys of the cache that match, without the key prefix of the farm."""
        with redis.Redis.from_url(self.cache.url) as raw:
            prefix = "kf:{default}:"
            return {key[len(prefix) :] for key in raw.keys(f"{prefix}{pattern}")}

    def counters(self) -> dict[str, int]:
        """The counters of the cache, by key space and name: `k.published`."""
        with redis.Redis.from_url(self.cache.url) as raw:
            return {name.decode(): int(n) for name, n in raw.hgetall("kf:{default}:stats").items()}

    def kill(self, *processes: subprocess.Popen[bytes]) -> None:
        """Ends processes, with all that they started, by SIGKILL."""
        kill_tree(*(process.pid for process in processes if process.poll() is None))
        for process in processes:
            process.wait()
            self.processes.remove(process)

    def end(self) -> None:
        """Ends all processes by SIGKILL, and both servers."""
        self.kill(*self.processes)
        self.broker.stop()
        self.cache.stop()

    def _start(
        self, arguments: list[str], name: str, settings: dict[str, str]
    ) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, *arguments],
                env={**os.environ, **self.environment, **_variables(settings)},
                stdout=log,
                stderr=log,
            )
        self.processes.append(process)
        return process


@contextmanager
def codegen_farm(
    folder: Path, program: ServerProgram | None = None, **settings: str
) -> Iterator[CodegenFarm]:
    """Both servers, and settings for all processes; the test starts edges and workers.

    `program` is the program of both servers; without it, `--farm-server` chooses one.
    """
    program = program or farm_server()
    broker, cache = start_servers(folder, program)
    keys, gates, temporary = folder / "keys", folder / "gates", folder / "tmp"
    make_keys(keys)
    gates.mkdir()
    temporary.mkdir()
    environment = {
        **_variables(
            {
                "kernel_key_file": str(keys / KERNEL_KEY),
                "program_key_file": str(keys / PROGRAM_KEY),
                "trusted_keys_file": str(keys / PUBLIC_KEYS),
                "broker_url": broker.url,
                "cache_url": cache.url,
                "optimizer_address": f"unix:{folder}/optimizer",
                "codegen_address": f"unix:{folder}/edge",
            }
        ),
        "ECHO_GATES": str(gates),
        "PYTHONPATH": os.pathsep.join([str(PLUGIN), str(PLUGIN.parents[2])]),
        "TMPDIR": str(temporary),  # what killed workers leave behind goes with the test's folder
        **_variables(settings),
    }
    farm = CodegenFarm(folder, environment, broker, cache, program)
    try:
        yield farm
    finally:
        farm.end()


@contextmanager
def program_farm(folder: Path) -> Iterator[CodegenFarm]:
    """An edge, a worker and an optimizer, with short leases; the test starts frontends."""
    with codegen_farm(folder, lease_ttl_s="3", **SHORT_LEASES) as farm:
        optimizer = partial(farm.start_service, "optimizer", "optimizer")
        with ThreadPoolExecutor() as threads:  # each takes seconds until it serves
            starts = (farm.start_edge, farm.start_worker, optimizer)
            list(threads.map(lambda start: start(), starts))
        yield farm


def start_servers(
    folder: Path, program: ServerProgram | None
) -> tuple[EmbeddedServer, EmbeddedServer]:
    """Broker and cache; without a program, on `redis-server` of PATH and on the embedded server."""
    cache = start_server(ServerRole.CACHE, program=program, socket_path=folder / "cache")
    return start_broker(folder, program), cache


def start_broker(folder: Path, program: ServerProgram | None) -> EmbeddedServer:
    """A broker; without a program, on `redis-server` of PATH."""
    found = shutil.which("redis-server")
    on_path = ServerProgram(Path(found), "PATH") if found else None
    return start_server(
        ServerRole.BROKER, program=program or on_path, socket_path=folder / "broker"
    )


def await_true(
    is_true: Callable[[], bool],
    log: Callable[[str], bytes],
    name: str,
    process: subprocess.Popen[bytes] | None = None,
) -> None:
    """Returns when the condition holds; fails with the log if it never does or the process ends."""
    deadline = time.monotonic() + TIMEOUT_S
    while not is_true():
        ended = process is not None and process.poll() is not None
        if ended or time.monotonic() > deadline:
            raise AssertionError(f"{name} did not get there:\n{log(name).decode()}")
        time.sleep(0.01)


def _variables(settings: dict[str, str]) -> dict[str, str]:
    """Settings as variables of the environment."""
    return {f"KERNELFARM_{name.upper()}": value for name, value in settings.items()}
