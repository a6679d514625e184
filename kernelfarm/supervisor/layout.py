"""Which processes make a farm, how they find each other, and how each shows that it serves."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from kernelfarm.cache.embedded import ServerRole, find_server, server_command
from kernelfarm.private_files import make_private_folder
from kernelfarm.processes.child import ChildSpec
from kernelfarm.processes.hang_rules import DEFAULT_WATCH, WatchTimes
from kernelfarm.service.liveness import read_heartbeat
from kernelfarm.service.probes import ServiceProbe
from kernelfarm.signing.key_files import KERNEL_KEY, PROGRAM_KEY, PUBLIC_KEYS
from kernelfarm.supervisor.supervisor import FarmLayout
from kernelfarm.targets import vendor_facts

_WORKER_DRAIN_S = 30.0
_SERVICE_DRAIN_S = 30.0
"""Above the services' own grace of 20 s: SIGKILL is for those that hang."""

_MAX_MEMORY_BYTES = {ServerRole.BROKER: 0, ServerRole.CACHE: 1 << 30}
"""The broker must refuse no message; the cache forgets what was used least."""


@dataclass(frozen=True, slots=True)
class FarmConfig:
    """What farm is wanted; a URL that is None means a server of our own.

    `jobs_each` is how many kernels a worker of an accelerator's queue compiles at once. A farm that
    is signed has its keys in `keys_dir`.
    """

    endpoint: str
    data_dir: Path
    run_dir: Path
    vendors: tuple[str, ...]
    cpu_workers: int
    jobs_each: int
    broker_url: str | None
    cache_url: str | None
    is_signed: bool = True
    tenants_file: Path | None = None
    is_public_encrypted: bool = False
    frontends: int = 1
    watch: WatchTimes = DEFAULT_WATCH
    log_max_bytes: int = 64 * 1024 * 1024

    @property
    def optimizer_address(self) -> str:
        """Where the optimizer listens."""
        return f"unix:{self.run_dir}/optimizer.sock"

    @property
    def codegen_address(self) -> str:
        """Where the code generators' edge listens."""
        return f"unix:{self.run_dir}/codegen.sock"

    @property
    def keys_dir(self) -> Path:
        """Where the farm's keys lie; `public.json` there is for clients to pin."""
        return self.data_dir / "keys"

    def socket(self, role: ServerRole) -> Path:
        """The socket of one of our own servers."""
        return self.run_dir / f"{role.value}.sock"


def farm_layout(config: FarmConfig) -> FarmLayout:
    """The children in drain order: edge first, servers last."""
    environment = _environment(config)
    service = partial(_service, environment=environment, watch=config.watch)
    return FarmLayout(
        endpoint=config.endpoint,
        data_dir=config.data_dir,
        stages=(
            tuple(_frontends(config, environment)),
            (service("codegen", "codegen_svc", config.codegen_address),),
            (service("optimizer", "optimizer_svc", config.optimizer_address),),
            tuple(_workers(config, environment)),
            tuple(_servers(config)),
        ),
        log_max_bytes=config.log_max_bytes,
    )


def _environment(config: FarmConfig) -> tuple[tuple[str, str], ...]:
    """How the rooms find each other."""
    return (
        ("KERNELFARM_FRONTEND_LISTEN", config.endpoint),
        ("KERNELFARM_OPTIMIZER_LISTEN", config.optimizer_address),
        ("KERNELFARM_OPTIMIZER_ADDRESS", config.optimizer_address),
        ("KERNELFARM_CODEGEN_LISTEN", config.codegen_address),
        ("KERNELFARM_CODEGEN_ADDRESS", config.codegen_address),
        (
            "KERNELFARM_BROKER_URL",
            config.broker_url or f"unix://{config.socket(ServerRole.BROKER)}",
        ),
        ("KERNELFARM_CACHE_URL", config.cache_url or f"unix://{config.socket(ServerRole.CACHE)}"),
        *(_keys(config) if config.is_signed else ()),
        *_tenants(config),
    )


def _tenants(config: FarmConfig) -> tuple[tuple[str, str], ...]:
    """Who may call; the frontend alone reads it."""
    path = config.tenants_file
    return (("KERNELFARM_TENANTS_FILE", str(path.resolve())),) if path else ()


def _keys(config: FarmConfig) -> tuple[tuple[str, str], ...]:
    """Whom the rooms believe, and what they sign with: the farm's own keys."""
    return (
        ("KERNELFARM_PROGRAM_KEY_FILE", str(config.keys_dir / PROGRAM_KEY)),
        ("KERNELFARM_KERNEL_KEY_FILE", str(config.keys_dir / KERNEL_KEY)),
        ("KERNELFARM_TRUSTED_KEYS_FILE", str(config.keys_dir / PUBLIC_KEYS)),
    )


def _service(
    name: str,
    module: str,
    address: str,
    environment: tuple[tuple[str, str], ...],
    watch: WatchTimes,
) -> ChildSpec:
    return ChildSpec(
        name=name,
        argv=(sys.executable, "-m", module),
        environment=environment,
        probe=ServiceProbe(address, watch.probe_s),
        drain_s=_SERVICE_DRAIN_S,
        watch=watch,
    )


def _frontends(config: FarmConfig, environment: tuple[tuple[str, str], ...]) -> Iterator[ChildSpec]:
    """The public service; of several, or behind TLS, each has a socket that tells its health."""
    if config.frontends == 1 and not config.is_public_encrypted:
        yield _service("frontend", "frontend_svc", config.endpoint, environment, config.watch)
        return
    for number in range(config.frontends):
        own = f"unix:{config.run_dir}/frontend-{number}.sock"
        added = (*environment, ("KERNELFARM_FRONTEND_PROCESS_LISTEN", own))
        yield _service(f"frontend-{number}", "frontend_svc", own, added, config.watch)


def _workers(config: FarmConfig, environment: tuple[tuple[str, str], ...]) -> Iterator[ChildSpec]:
    for vendor in config.vendors:
        has_process_per_job = vendor_facts(vendor).has_process_per_job
        processes, concurrency = (
            (config.cpu_workers, 1) if has_process_per_job else (1, config.jobs_each)
        )
        arguments = ("--queue", vendor, "--concurrency", str(concurrency))
        for number in range(processes):
            name = f"worker-{vendor}-{number}"
            heartbeat = config.run_dir / f"{name}.heartbeat"
            yield ChildSpec(
                name=name,
                argv=(sys.executable, "-m", "codegen_svc.worker", *arguments),
                environment=(*environment, ("KERNELFARM_WORKER_HEARTBEAT_FILE", str(heartbeat))),
                probe=partial(_is_taking_jobs, heartbeat),
                is_alive=partial(_is_heartbeat_fresh, heartbeat),
                drain_s=_WORKER_DRAIN_S,
                probe_every_s=0.1,
                watch=config.watch,
                liveness_files=(heartbeat,),
            )


async def _is_taking_jobs(heartbeat: Path) -> bool:
    """True if the worker has reported, and asks the broker for jobs or works on as many as it can.

    It says so itself: see `codegen_svc/worker/watchdog.py`.
    """
    beat = read_heartbeat(heartbeat)
    return beat is not None and beat.is_fresh and beat.state == "serving"


async def _is_heartbeat_fresh(heartbeat: Path) -> bool:
    """True also while it waits for the broker: to start it again would not help."""
    beat = read_heartbeat(heartbeat)
    return beat is not None and beat.is_fresh


def _servers(config: FarmConfig) -> Iterator[ChildSpec]:
    """Our own broker and cache, unless somebody else runs them."""
    for role, url in ((ServerRole.BROKER, config.broker_url), (ServerRole.CACHE, config.cache_url)):
        if url is None:
            path = config.socket(role)
            folder = config.run_dir / role.value
            make_private_folder(folder)
            command = server_command(find_server(), role, folder, path, _MAX_MEMORY_BYTES[role])
            yield ChildSpec(
                name=f"redis-{role.value}",
                argv=tuple(command),
                environment=(),
                probe=partial(_answers_ping, path),
                watch=config.watch,
            )


async def _answers_ping(path: Path) -> bool:
    try:
        reader, writer = await asyncio.open_unix_connection(path)
    except OSError:  # not there yet, or not listening yet
        return False
    try:
        writer.write(b"PING\r\n")
        return await reader.readline() == b"+PONG\r\n"
    except OSError:
        return False
    finally:
        writer.close()
