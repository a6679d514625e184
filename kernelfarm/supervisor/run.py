"""Runs `kernelfarm up`: settings, directories, layout, supervisor."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from kernelfarm.errors import CallerError
from kernelfarm.processes.hang_rules import WatchTimes
from kernelfarm.processes.ports import bound_address
from kernelfarm.service.probes import reported_vendors
from kernelfarm.service.tenants.toml_file import read_tenants
from kernelfarm.signing.key_files import PUBLIC_KEYS, TRACE_KEY, make_keys
from kernelfarm.supervisor.follow import follow_logs
from kernelfarm.supervisor.layout import FarmConfig, farm_layout
from kernelfarm.supervisor.settings import (
    SupervisorSettings,
    default_cpu_workers,
    default_jobs_each,
)
from kernelfarm.supervisor.status_file import STATUS_FILE
from kernelfarm.supervisor.supervisor import Supervisor, exclusive_data_dir
from kernelfarm.targets import all_vendors


@dataclass(frozen=True, slots=True)
class FarmOptions:
    """The options of the command line; for None and 0, the settings apply.

    Without vendors, the farm has workers for all of them.
    """

    listen: str | None
    vendors: tuple[str, ...]
    cpu_workers: int
    data_dir: Path | None
    follow: bool
    frontends: int = 0
    tenants_file: Path | None = None
    has_metrics: bool = False


def run_farm(options: FarmOptions) -> None:
    """Runs a farm until SIGTERM or SIGINT; prints `READY <endpoint>` once it serves.

    Raises:
        CallerError: an option cannot be used.
        UnavailableError: a child did not start, or an address or directory is taken.
    """
    vendors = options.vendors or tuple(all_vendors())
    _check_vendors(vendors)
    settings = SupervisorSettings()
    if tenants_file := options.tenants_file or settings.tenants_file:
        read_tenants(tenants_file)  # checked here, because a frontend would only log the fault
    data_dir = (options.data_dir or settings.data_dir).expanduser().resolve()
    with exclusive_data_dir(data_dir), _private_dir() as run_dir:
        config = FarmConfig(
            endpoint=bound_address(options.listen or settings.frontend_listen),
            data_dir=data_dir,
            run_dir=run_dir,
            vendors=vendors,
            cpu_workers=options.cpu_workers or default_cpu_workers(),
            frontends=options.frontends or settings.frontend_processes,
            jobs_each=default_jobs_each(),
            broker_url=settings.broker_url,
            cache_url=settings.cache_url,
            is_signed=settings.signing == "required",
            tenants_file=options.tenants_file or settings.tenants_file,
            is_public_encrypted=settings.tls_cert_file is not None,
            watch=WatchTimes(
                every_s=settings.probe_every_s,
                probe_s=settings.hung_after_s / 2,
                hung_s=settings.hung_after_s,
                start_s=settings.start_timeout_s,
            ),
            log_max_bytes=settings.log_max_bytes,
            has_metrics=options.has_metrics,
        )
        if config.is_signed:
            make_keys(config.keys_dir)
            _print_line(f"public keys, for clients to pin: {config.keys_dir / PUBLIC_KEYS}")
            key = config.keys_dir / TRACE_KEY
            _print_line(f"for clients that publish traces: KERNELFARM_TRACE_KEY_FILE={key}")
        else:
            _print_line(
                "this farm signs nothing (KERNELFARM_SIGNING=off): clients cannot verify programs"
            )
        asyncio.run(_serve(config, settings.start_timeout_s, is_followed=options.follow))


async def _serve(config: FarmConfig, start_timeout_s: float, *, is_followed: bool) -> None:
    supervisor = Supervisor(farm_layout(config), _print_line)
    _print_line(f"starting {len(supervisor.children)} processes; logs in {config.data_dir}/logs")
    logs = [(child.spec.name, child.log_path) for child in supervisor.children if child.log_path]
    follower = asyncio.create_task(follow_logs(logs, sys.stderr)) if is_followed else None
    try:
        await supervisor.run(partial(_announce, config), start_timeout_s)
    finally:
        if follower is not None:
            follower.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await follower


async def _announce(config: FarmConfig) -> None:
    for vendor, has_toolchain in (await reported_vendors(config.codegen_address)).items():
        if not has_toolchain:
            _print_line(f"no toolchain for {vendor}: run `kernelfarm doctor` for how to install it")
    if config.has_metrics:
        _print_line(f"metrics: each process's address is in {config.data_dir / STATUS_FILE}")
    print(f"READY {config.endpoint}", flush=True)


def _print_line(line: str) -> None:
    with contextlib.suppress(OSError):  # the line is lost, but the farm serves
        print(f"kernelfarm: {line}", file=sys.stderr, flush=True)


def _check_vendors(vendors: tuple[str, ...]) -> None:
    known = all_vendors()
    unknown = [vendor for vendor in vendors if vendor not in known]
    if unknown or len(set(vendors)) != len(vendors):
        raise CallerError(
            f"vendors {','.join(vendors)!r}; expected some of {','.join(known)}, each once"
        )


@contextlib.contextmanager
def _private_dir() -> Iterator[Path]:
    # Not within the data directory: the paths of sockets have at most 107 bytes, and only this user
    # may connect to them.
    path = Path(tempfile.mkdtemp(prefix="kernelfarm-"))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
