"""The processes of a farm, the addresses by which they find each other, and their probes."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from kernelfarm.cache.embedded import ServerRole, find_server, server_command
from kernelfarm.private_files import make_private_folder
from kernelfarm.processes.child import ChildSpec
from kernelfarm.processes.hang_rules import DEFAULT_WATCH, WatchTimes
from kernelfarm.processes.ports import free_ports
from kernelfarm.service.liveness import read_heartbeat
from kernelfarm.service.probes import ServiceProbe
from kernelfarm.signing.key_files import KERNEL_KEY, PROGRAM_KEY, PUBLIC_KEYS
from kernelfarm.supervisor.supervisor import FarmLayout
from kernelfarm.targets import vendor_facts

_WORKER_DRAIN_S = 30.0
_SERVICE_DRAIN_S = 30.0
"""Longer than the services' own grace of 20 s, so that only services that hang get SIGKILL."""

_MAX_MEMORY_BYTES = {ServerRole.BROKER: 0, ServerRole.CACHE: 1 << 30}
"""The broker must not refuse messages; the cache evicts what is used least."""


@dataclass(frozen=True, slots=True)
class FarmConfig:
    """The configuration of a farm; if a URL is None, the farm starts that server itself.

    `jobs_each` is how many kernels the worker of an accelerator compiles at once. A signed farm has
    its keys in `keys_dir`.
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
    has_metrics: bool = False

    @property
    def optimizer_address(self) -> str:
        """The optimizer's address."""
        return f"unix:{self.run_dir}/optimizer.sock"

    @property
    def codegen_address(self) -> str:
        """The address of the code generators' edge."""
        return f"unix:{self.run_dir}/codegen.sock"

    @property
    def keys_dir(self) -> Path:
        """The folder of the farm's keys; clients may pin its `public.json`."""
        return self.data_dir / "keys"

    def socket(self, role: ServerRole) -> Path:
        """The socket of the farm's own broker or cache."""
        return self.run_dir / f"{role.value}.sock"


def farm_layout(config: FarmConfig) -> FarmLayout:
    """The farm's processes in drain order: frontends first, Redis servers last."""
    environment = _environment(config)
    service = partial(_service, environment=environment, watch=config.watch)
    stages = (
        tuple(_frontends(config, environment)),
        (service("codegen", "codegen_svc", config.codegen_address),),
        (service("optimizer", "optimizer_svc", config.optimizer_address),),
        tuple(_workers(config, environment)),
    )
    return FarmLayout(
        endpoint=config.endpoint,
        data_dir=config.data_dir,
        stages=(*_with_metrics(stages, config), tuple(_servers(config))),
        log_max_bytes=config.log_max_bytes,
    )


def _with_metrics(
    stages: tuple[tuple[ChildSpec, ...], ...], config: FarmConfig
) -> Iterator[tuple[ChildSpec, ...]]:
    """The processes, each with an address of its own for its metrics if the farm has metrics.

    Our own environment may name an address, which only one process could bind.
    """
    ports = iter(free_ports(sum(map(len, stages)) if config.has_metrics else 0))
    for stage in stages:
        addresses = [f"127.0.0.1:{next(ports)}" if config.has_metrics else "" for _ in stage]
        yield tuple(
            replace(
                spec,
                environment=(*spec.environment, ("KERNELFARM_METRICS_LISTEN", address)),
                metrics_address=address,
            )
            for spec, address in zip(stage, addresses, strict=True)
        )


def _environment(config: FarmConfig) -> tuple[tuple[str, str], ...]:
    """The settings by which the services find each other."""
    return (
        ("KERNELFARM_FRONTEND_LISTEN", config.endpoint),
        # Our own environment may say how many frontends the farm has. Each of them is one process:
        # otherwise it would start gateways, and would not answer at the address of its probe.
        ("KERNELFARM_FRONTEND_PROCESSES", "1"),
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
    """The setting of the tenants file, which only frontends read."""
    path = config.tenants_file
    return (("KERNELFARM_TENANTS_FILE", str(path.resolve())),) if path else ()


def _keys(config: FarmConfig) -> tuple[tuple[str, str], ...]:
    """The settings of the farm's signing keys and trusted keys."""
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
    """The frontends; several frontends, and those with TLS, have a socket each for their probe."""
    if config.frontends == 1 and not config.is_public_encrypted:
        yield _service("frontend", "frontend_svc", config.endpoint, environment, config.watch)
        return
    for number in range(config.frontends):
        address = f"unix:{config.run_dir}/frontend-{number}.sock"
        added = (*environment, ("KERNELFARM_FRONTEND_PROCESS_LISTEN", address))
        if number:  # only one process can serve the page at its address
            added = (*added, ("KERNELFARM_PAGE_LISTEN", ""))
        yield _service(f"frontend-{number}", "frontend_svc", address, added, config.watch)


def _workers(config: FarmConfig, environment: tuple[tuple[str, str], ...]) -> Iterator[ChildSpec]:
    for vendor in config.vendors:
        # If models wait for the vendor's kernels when they start (CPU), each worker has one slot
        # and a process of its own: if one dies, the others continue.
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
    """True if the worker's own state is `serving`, see `codegen_svc/worker/watchdog.py`."""
    beat = read_heartbeat(heartbeat)
    return beat is not None and beat.is_fresh and beat.state == "serving"


async def _is_heartbeat_fresh(heartbeat: Path) -> bool:
    """True also while the worker waits for the broker, because a restart would not help."""
    beat = read_heartbeat(heartbeat)
    return beat is not None and beat.is_fresh


def _servers(config: FarmConfig) -> Iterator[ChildSpec]:
    """The farm's own broker and cache, unless the configuration names others."""
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
    except OSError:  # the server does not listen yet
        return False
    try:
        writer.write(b"PING\r\n")
        return await reader.readline() == b"+PONG\r\n"
    except OSError:
        return False
    finally:
        writer.close()
