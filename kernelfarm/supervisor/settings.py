"""The settings of a farm on one machine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class SupervisorSettings(BaseSettings):
    """The settings that `kernelfarm up` reads from the environment."""

    model_config = SettingsConfigDict(env_prefix="KERNELFARM_")

    frontend_listen: str = "127.0.0.1:50051"
    """The public address of the farm, HOST:PORT; port 0 means any free port."""
    frontend_processes: int = Field(default=1, gt=0)
    """Number of frontends that share the public address; `--frontends` overrides it."""
    data_dir: Path = Path("~/.local/state/kernelfarm")
    """The folder of the farm's keys, logs and status file."""
    broker_url: str | None = None
    """The broker; unset: the farm starts its own Redis server."""
    cache_url: str | None = None
    """The cache; unset: the farm starts its own Redis server."""
    start_timeout_s: float = 60.0
    """The farm stops if not all of its processes serve after this time."""
    probe_every_s: float = Field(default=1.0, gt=0)
    """The interval between probes of each process."""
    hung_after_s: float = Field(default=10.0, gt=0)
    """A process that answers no probe for this time is killed and restarted."""
    log_max_bytes: int = Field(default=64 * 1024 * 1024, gt=0)
    """A process's log is moved to `NAME.log.1` when it is larger."""
    tenants_file: Path | None = None
    """The tenants who may call; unset: every caller that connects."""
    tls_cert_file: Path | None = None
    """The public certificate, which the frontend reads too."""
    signing: Literal["required", "off"] = "required"
    """With `required`, the farm makes its own signing keys; with `off`, it signs nothing."""


def default_cpu_workers() -> int:
    """The number of CPU workers: at least two, so that a slow kernel does not block the others."""
    return min(8, max(2, _cores()))


def default_jobs_each() -> int:
    """How many kernels the worker of an accelerator compiles at once.

    Three such workers share the cores. Each has at least two processes, so that one stays free of
    slow kernels.
    """
    return min(8, max(2, _cores() // 2))


def _cores() -> int:
    return len(os.sched_getaffinity(0))
