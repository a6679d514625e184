"""Which processes make a farm, how they find each other, and how each shows that it serves."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from kernelfarm.cache.embedded import Role, find_server, server_command
from kernelfarm.private_files import make_private_folder
from kernelfarm.processes.child import ChildSpec
from kernelfarm.processes.hang_rules import DEFAULT_WATCH, WatchTimes
from kernelfarm.service.liveness import last_beat
from kernelfarm.service.probes import ServiceProbe
from kernelfarm.signing.key_files import KERNEL_KEY, PROGRAM_KEY, PUBLIC_KEYS
from kernelfarm.supervisor.supervisor import FarmLayout

_WORKER_DRAIN_S = 30.0
_SERVICE_DRAIN_S = 30.0
"""Above the services' own grace of 20 s: SIGKILL is for those that hang."""

_MAX_MEMORY_BYTES = {Role.BROKER: 0, Role.CACHE: 1 << 30}
"""The broker must refuse no message; the cache forgets what was used least."""


@dataclass(frozen=True, slots=True)
class FarmPlan:
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

    def socket(self, role: Role) -> Path:
        """The socket of one of our own servers."""
        return self.run_dir / f"{role.value}.sock"


def farm_layout(plan: FarmPlan) -> FarmLayout:
    """The children in drain order: edge first, servers last."""
    environment = _environment(plan)
    service = partial(_service, environment=environment, watch=plan.watch)
    return FarmLayout(
        endpoint=plan.endpoint,
        data_dir=plan.data_dir,
        stages=(
            tuple(_frontends(plan, environment)),
            (service("codegen", "codegen_svc", plan.codegen_address),),
            (service("optimizer", "optimizer_svc", plan.optimizer_address),),
            tuple(_workers(plan, environment)),
            tuple(_servers(plan)),
        ),
        log_max_bytes=plan.log_max_bytes,
    )


def _environment(plan: FarmPlan) -> tuple[tuple[str, str], ...]:
    """How the rooms find each other."""
    return (
        ("KERNELFARM_FRONTEND_LISTEN", plan.endpoint),
        ("KERNELFARM_OPTIMIZER_LISTEN", plan.optimizer_address),
        ("KERNELFARM_OPTIMIZER_ADDRESS", plan.optimizer_address),
        ("KERNELFARM_CODEGEN_LISTEN", plan.codegen_address),
        ("KERNELFARM_CODEGEN_ADDRESS", plan.codegen_address),
        ("KERNELFARM_BROKER_URL", plan.broker_url or f"unix://{plan.socket(Role.BROKER)}"),
        ("KERNELFARM_CACHE_URL", plan.cache_url or f"unix://{plan.socket(Role.CACHE)}"),
        *(_keys(plan) if plan.is_signed else ()),
        *_tenants(plan),
    )


def _tenants(plan: FarmPlan) -> tuple[tuple[str, str], ...]:
    """Who may call; the frontend alone reads it."""
    path = plan.tenants_file
    return (("KERNELFARM_TENANTS_FILE", str(path.resolve())),) if path else ()


def _keys(plan: FarmPlan) -> tuple[tuple[str, str], ...]:
    """Whom the rooms believe, and what they sign with: the farm's own keys."""
    return (
        ("KERNELFARM_PROGRAM_KEY_FILE", str(plan.keys_dir / PROGRAM_KEY)),
        ("KERNELFARM_KERNEL_KEY_FILE", str(plan.keys_dir / KERNEL_KEY)),
        ("KERNELFARM_TRUSTED_KEYS_FILE", str(plan.keys_dir / PUBLIC_KEYS)),
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


def _frontends(plan: FarmPlan, environment: tuple[tuple[str, str], ...]) -> Iterator[ChildSpec]:
    """The public service; of several, or behind TLS, each has a socket that tells its health."""
    if plan.frontends == 1 and not plan.is_public_encrypted:
        yield _service("frontend", "frontend_svc", plan.endpoint, environment, plan.watch)
        return
    for number in range(plan.frontends):
        own = f"unix:{plan.run_dir}/frontend-{number}.sock"
        added = (*environment, ("KERNELFARM_FRONTEND_OWN_LISTEN", own))
        yield _service(f"frontend-{number}", "frontend_svc", own, added, plan.watch)


def _workers(plan: FarmPlan, environment: tuple[tuple[str, str], ...]) -> Iterator[ChildSpec]:
    for vendor in plan.vendors:
        # Somebody waits for CPU kernels while a model starts: processes of their own, so that one
        # that dies leaves others. Kernels for accelerators are mostly compiled ahead.
        processes, concurrency = (plan.cpu_workers, 1) if vendor == "cpu" else (1, plan.jobs_each)
        arguments = ("--queue", vendor, "--concurrency", str(concurrency))
        for number in range(processes):
            name = f"worker-{vendor}-{number}"
            heartbeat = plan.run_dir / f"{name}.heartbeat"
            yield ChildSpec(
                name=name,
                argv=(sys.executable, "-m", "codegen_svc.worker", *arguments),
                environment=(*environment, ("KERNELFARM_WORKER_HEARTBEAT_FILE", str(heartbeat))),
                probe=partial(_takes_jobs, heartbeat),
                is_alive=partial(_beats, heartbeat),
                drain_s=_WORKER_DRAIN_S,
                probe_every_s=0.1,
                watch=plan.watch,
                proofs=(heartbeat,),
            )


async def _takes_jobs(heartbeat: Path) -> bool:
    """True if the worker has reported, and asks the broker for jobs or works on as many as it can.

    It says so itself: see `codegen_svc/worker/watchdog.py`.
    """
    beat = last_beat(heartbeat)
    return beat is not None and beat.is_fresh and beat.state == "serving"


async def _beats(heartbeat: Path) -> bool:
    """True also while it waits for the broker: to start it again would not help."""
    beat = last_beat(heartbeat)
    return beat is not None and beat.is_fresh


def _servers(plan: FarmPlan) -> Iterator[ChildSpec]:
    """Our own broker and cache, unless somebody else runs them."""
    for role, url in ((Role.BROKER, plan.broker_url), (Role.CACHE, plan.cache_url)):
        if url is None:
            path = plan.socket(role)
            folder = plan.run_dir / role.value
            make_private_folder(folder)
            command = server_command(find_server(), role, folder, path, _MAX_MEMORY_BYTES[role])
            yield ChildSpec(
                name=f"redis-{role.value}",
                argv=tuple(command),
                environment=(),
                probe=partial(_answers_ping, path),
                watch=plan.watch,
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
