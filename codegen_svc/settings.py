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
    """What edge and workers must agree on."""

    broker_url: str = "redis://127.0.0.1:6379/0"
    cache_url: str = "redis://127.0.0.1:6380/0"
    namespace: str = Field(default="default", pattern=r"^[^{}/\s]{1,200}$")

    job_time_limit_s: float = Field(default=120.0, gt=0)
    """A kernel that compiles longer is given up."""


class CodegenSettings(FarmSettings):
    """Everything that an operator of the edge may set."""

    codegen_listen: str = "127.0.0.1:50053"

    queued_lease_ttl_s: float = Field(default=6.0, gt=0)
    """An edge that dies loses its queued kernels to the next that wants them after this time."""
    requeue_after_s: float = Field(default=5.0, gt=0)
    """A queued job that no worker took is queued again after this time, then after twice, ..."""
    broker_send_s: float = Field(default=15.0, gt=0)
    """How long a call waits until the broker has a job, retries and the jobs before it included:
    about the time in which a supervisor replaces a broker that hangs."""
    no_worker_grace_s: float = Field(default=30.0, gt=0)
    """How long a job waits for a first worker of its queue to report, or for one that is started
    again."""
    max_attempts: int = Field(default=2, gt=0)
    """A kernel that ended so many workers is refused."""
    quarantine_ttl_s: float = Field(default=600.0, gt=0)
    """For how long it is refused."""
    max_jobs: int = Field(default=4096, gt=0)
    """Kernels that one edge has in flight; more are told to come back."""
    max_jobs_per_tenant: int = Field(default=2048, gt=0)
    """Of these, kernels of one tenant."""
    queue_headroom: int = Field(default=0, ge=0)
    """Jobs that one edge has in a queue beside two for each worker process; others take turns."""
    slow_kernel_s: float = Field(default=4.0, gt=0)
    """Kernels that are expected to compile longer leave one worker process of a vendor free."""


class WorkerSettings(FarmSettings):
    """Everything that an operator of a worker may set."""

    quick_time_limit_s: float = Field(default=10.0, gt=0)
    """A kernel that was not expected to be slow and takes more processor time, or three times as
    long by the clock, is ended, and compiled again as a slow one; that counts as no attempt."""
    slow_niceness: int = Field(default=10, ge=0, le=19)
    """How much lower the priority of slow kernels, and of those of tenants that use more than
    others, is than that of the rest, as `nice` counts."""
    worker_lease_ttl_s: float = Field(default=5.0, gt=0)
    """A worker that dies loses its job to the next one after this time."""
    rejection_ttl_s: float = Field(default=600.0, gt=0)
    """How long a kernel that the toolchain refuses is refused without asking again."""
    bug_ttl_s: float = Field(default=60.0, gt=0)
    """How long a failure that is our own bug is told without trying again."""
    shortage_ttl_s: float = Field(default=2.0, gt=0)
    """How long a failure for want of memory, disk or a tool is told without trying again."""
    sandbox_retry_s: float = Field(default=10.0, gt=0)
    """How long a worker waits before it starts a sandbox again that could not be started."""
    report_every_s: float = Field(default=4.0, gt=0)
    """How often a process that can take jobs says so; three reports are lost before it counts as
    gone."""
    worker_wedged_after_s: float = Field(default=12.0, gt=0)
    """A worker ends itself if it asks for no job for so long, although the broker answers and one
    of its processes is free."""
    worker_heartbeat_file: Path | None = None
    """What the worker touches while it takes jobs, for probes: `kernelfarm.service.liveness`."""

    sandbox: str = STRONGEST
    """How compilations are confined: `strongest`: by whatever the host offers; or the least that
    must be reached, else the worker does not start: `required:` and some of `namespaces`,
    `landlock`, `seccomp` and `limits` joined by `+`."""
    sandbox_memory_bytes: int = Field(default=4 << 30, ge=1 << 29)
    """Memory of one compilation."""
    sandbox_file_bytes: int = Field(default=256 << 20, ge=1 << 20)
    """What one compilation may write to files; they lie in memory where the host can."""
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
        """The bounds of one compilation."""
        return SandboxLimits(
            memory_bytes=self.sandbox_memory_bytes,
            processor_s=math.ceil(self.job_time_limit_s) + 1,
            file_bytes=self.sandbox_file_bytes,
            open_files=self.sandbox_open_files,
            processes=self.sandbox_processes,
            output_bytes=_OUTPUT_BYTES,
        )
