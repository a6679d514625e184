"""Settings of the code generators' edge and of its workers, with prefix `KERNELFARM_`."""

from __future__ import annotations

import math
from pathlib import Path

from pydantic import Field, field_validator

from codegen_svc.sandbox.level import STRONGEST, required_mechanisms
from codegen_svc.sandbox.limits import SandboxLimits
from kernelfarm.service.signing import SigningSettings

_OUTPUT_BYTES = 256 << 20


class FarmSettings(SigningSettings):
    """Settings on which the edge and the workers must agree."""

    broker_url: str = "redis://127.0.0.1:6379/0"
    """URL of the Redis server of the job queues."""
    cache_url: str = "redis://127.0.0.1:6380/0"
    """URL of the Redis server of the cache."""
    namespace: str = Field(default="default", pattern=r"^[^{}/\s]{1,200}$")
    """Name of the farm, which is its namespace in the cache."""

    job_time_limit_s: float = Field(default=120.0, gt=0)
    """Longest compilation of one kernel; a longer one fails."""


class CodegenSettings(FarmSettings):
    """All settings of the edge."""

    codegen_listen: str = "127.0.0.1:50053"
    """Address of the edge: HOST:PORT, or unix:PATH."""

    queued_lease_ttl_s: float = Field(default=6.0, gt=0)
    """Time to live of the lease of a queued kernel. If an edge dies, another edge can queue its
    kernels after this time."""
    requeue_after_s: float = Field(default=5.0, gt=0)
    """If no worker took a queued job, it is queued again after this time, then after twice, ..."""
    broker_send_s: float = Field(default=15.0, gt=0)
    """How long a call waits until its job is sent, with all attempts and with the jobs before it. A
    supervisor replaces a broker that hangs in about this time."""
    no_worker_grace_s: float = Field(default=30.0, gt=0)
    """How long a job waits for a worker of its queue: for the first to report, or for a restart."""
    max_attempts: int = Field(default=2, gt=0)
    """A kernel that ended so many workers is quarantined."""
    quarantine_ttl_s: float = Field(default=600.0, gt=0)
    """For how long a quarantined kernel is refused."""
    max_jobs: int = Field(default=4096, gt=0)
    """Most in-flight kernels of one edge; further ones are refused with a retry status."""
    max_jobs_per_tenant: int = Field(default=2048, gt=0)
    """Most of these that one tenant may have."""
    queue_headroom: int = Field(default=0, ge=0)
    """Jobs that one edge may have in a queue beside two for each worker process; further jobs wait
    in its fair queue."""
    job_group_s: float = Field(default=0.25, ge=0)
    """Small kernels are sent to a worker in groups that are expected to compile for so long; with
    0, each is sent alone."""
    slow_kernel_s: float = Field(default=4.0, gt=0)
    """A kernel that is expected to compile longer is slow; slow kernels leave one worker process of
    a vendor free."""


class WorkerSettings(FarmSettings):
    """All settings of a worker."""

    quick_time_limit_s: float = Field(default=10.0, gt=0)
    """Processor time of a kernel that was not expected to be slow. If its compilation takes more,
    or three times as long by the clock, it is ended and compiled again as a slow one; that does not
    count as an attempt."""
    slow_niceness: int = Field(default=10, ge=0, le=19)
    """Niceness (see `nice`) of compiling slow kernels, and kernels of tenants that use more than
    others."""
    worker_lease_ttl_s: float = Field(default=5.0, gt=0)
    """Time to live of a worker's lease. If it dies, another takes its job after this time."""
    rejection_ttl_s: float = Field(default=600.0, gt=0)
    """How long the toolchain's refusal of a kernel is remembered."""
    bug_ttl_s: float = Field(default=60.0, gt=0)
    """How long a failure that is our own bug is remembered."""
    shortage_ttl_s: float = Field(default=2.0, gt=0)
    """How long a failure for lack of memory, disk or a tool is remembered."""
    sandbox_retry_s: float = Field(default=10.0, gt=0)
    """If a sandbox could not be started, it is tried again after this time, not for each job."""
    report_every_s: float = Field(default=4.0, gt=0)
    """How often a process that can take jobs reports itself; after three missing reports it counts
    as gone."""
    worker_wedged_after_s: float = Field(default=12.0, gt=0)
    """A worker ends itself if it requests no job for so long although the broker answers and one of
    its processes is free."""
    worker_heartbeat_file: Path | None = None
    """File that the worker touches while it takes jobs; see `kernelfarm.service.liveness`."""

    sandbox: str = STRONGEST
    """How compilations are confined. `strongest`: by every mechanism that the host offers.
    `required:` and some of `namespaces`, `landlock`, `seccomp` and `limits` joined by `+`: the
    worker does not start unless the host offers these."""
    sandbox_memory_bytes: int = Field(default=4 << 30, ge=1 << 29)
    """Memory of one compilation."""
    sandbox_file_bytes: int = Field(default=256 << 20, ge=1 << 20)
    """Bytes that one compilation may write to files, which are in memory if the host allows it."""
    sandbox_open_files: int = Field(default=256, ge=32)
    """Files that one process of a compilation may have open."""
    sandbox_processes: int = Field(default=64, ge=8)
    """Processes and threads of one compilation."""

    @field_validator("sandbox")
    @classmethod
    def _is_known(cls, value: str) -> str:
        required_mechanisms(value)
        return value

    def sandbox_limits(self) -> SandboxLimits:
        """The limits of one compilation."""
        return SandboxLimits(
            memory_bytes=self.sandbox_memory_bytes,
            processor_s=math.ceil(self.job_time_limit_s) + 1,
            file_bytes=self.sandbox_file_bytes,
            open_files=self.sandbox_open_files,
            processes=self.sandbox_processes,
            output_bytes=_OUTPUT_BYTES,
        )
