"""Settings of the code generators' edge and of its workers, with prefix `KERNELFARM_`."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from kernelfarm.service.signing import SigningSettings


class FarmSettings(SigningSettings):
    """What edge and workers must agree on."""

    broker_url: str = "redis://127.0.0.1:6379/0"
    cache_url: str = "redis://127.0.0.1:6380/0"
    namespace: str = Field(default="default", pattern=r"^[^{}/\s]{1,200}$")

    job_time_limit_s: float = Field(default=120.0, gt=0)
    """A kernel that compiles longer is given up; its worker process is ended."""


class CodegenSettings(FarmSettings):
    """Everything that an operator of the edge may set."""

    codegen_listen: str = "127.0.0.1:50053"

    queued_lease_ttl_s: float = Field(default=6.0, gt=0)
    """An edge that dies loses its queued kernels to the next that wants them after this time."""
    requeue_after_s: float = Field(default=5.0, gt=0)
    """A queued job that no worker took is queued again after this time, then after twice, ..."""
    no_worker_grace_s: float = Field(default=30.0, gt=0)
    """How long a job waits for a first worker of its queue to report, or for one that is started
    again."""
    max_attempts: int = Field(default=2, gt=0)
    """A kernel that ended so many workers is refused."""
    quarantine_ttl_s: float = Field(default=600.0, gt=0)
    """For how long it is refused."""
    max_jobs: int = Field(default=4096, gt=0)
    """Kernels that one edge has in flight; more are told to come back."""
    max_jobs_of_a_tenant: int = Field(default=2048, gt=0)
    """Of these, kernels of one tenant."""
    queue_places: int = Field(default=8, gt=0)
    """Jobs that one edge has in a queue beside two for each worker; tenants take turns for them."""


class WorkerSettings(FarmSettings):
    """Everything that an operator of a worker may set."""

    worker_lease_ttl_s: float = Field(default=5.0, gt=0)
    """A worker that dies loses its job to the next one after this time."""
    rejection_ttl_s: float = Field(default=600.0, gt=0)
    """How long a kernel that the toolchain refuses is refused without asking again."""
    bug_ttl_s: float = Field(default=60.0, gt=0)
    """How long a failure that is our own bug is told without trying again."""
    shortage_ttl_s: float = Field(default=2.0, gt=0)
    """How long a failure for want of memory, disk or a tool is told without trying again."""
    report_every_s: float = Field(default=4.0, gt=0)
    """How often a process that can take jobs says so; three reports are lost before it counts as
    gone."""
    worker_wedged_after_s: float = Field(default=12.0, gt=0)
    """A worker ends itself if it asks for no job for so long, although the broker answers and one
    of its processes is free."""
    worker_heartbeat_file: Path | None = None
    """What the worker touches while it takes jobs, for probes: `kernelfarm.service.liveness`."""
