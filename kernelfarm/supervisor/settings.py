"""Settings of a farm on one machine, and the environment that its children get."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

ALL_VENDORS = ("cpu", "cuda", "rocm", "ascend")


class SupervisorSettings(BaseSettings):
    """What `kernelfarm up` takes from the environment, prefix `KERNELFARM_`.

    `broker_url` and `cache_url` name servers that somebody else runs; without them the farm
    starts its own.
    """

    model_config = SettingsConfigDict(env_prefix="KERNELFARM_")

    frontend_listen: str = "127.0.0.1:50051"
    data_dir: Path = Path("~/.local/state/kernelfarm")
    broker_url: str | None = None
    cache_url: str | None = None
    start_timeout_s: float = 60.0
    probe_every_s: float = Field(default=1.0, gt=0)
    """How often each child is asked whether it serves, for as long as the farm lives."""
    hung_after_s: float = Field(default=10.0, gt=0)
    """A child that is silent for so long is killed and started again."""
    log_max_bytes: int = Field(default=64 * 1024 * 1024, gt=0)
    """A child's log is moved to `NAME.log.1` when it is larger."""
    tenants_file: Path | None = None
    """Who may call; None: whoever connects."""
    tls_cert_file: Path | None = None
    """The public certificate, which the frontend reads too."""
    signing: Literal["required", "off"] = "required"
    """`required` makes the farm's own keys; `off` states that it signs nothing."""


def default_cpu_workers() -> int:
    """Worker processes of the CPU queue: two at least, so that one slow kernel blocks nobody."""
    return min(8, max(2, _cores()))


def default_jobs_each() -> int:
    """Kernels that the worker of an accelerator compiles at once: three of them share the cores.

    Two at least, so that one process stays free of slow kernels.
    """
    return min(8, max(2, _cores() // 2))


def _cores() -> int:
    return len(os.sched_getaffinity(0))
