"""The settings of services that run jobs in child processes."""

from __future__ import annotations

from pydantic import Field

from kernelfarm.ir.work_budget import DEFAULT_WORK_STEPS
from kernelfarm.service.process_pool.limits import MIB, PoolLimits
from kernelfarm.service.settings import ServiceSettings


class WorkSettings(ServiceSettings):
    """Limits of one job: an import, a decomposition or an optimization."""

    max_work_steps: int = Field(default=DEFAULT_WORK_STEPS, gt=0)
    """The work budget of a job in steps; equal requests use equal numbers on every machine."""
    max_work_processor_s: float = Field(default=60.0, gt=0)
    """The processor time of a job, for work that the steps do not count."""
    max_work_memory_bytes: int = Field(default=4096 * MIB, ge=512 * MIB)
    """The address space of each child process."""
    max_waiting_work: int = Field(default=1024, gt=0)
    """How many jobs of one tenant may wait for a process; further requests are refused and may be
    repeated."""

    def pool_limits(self, processes: int) -> PoolLimits:
        """The limits of a pool with this number of processes."""
        return PoolLimits(
            processes=processes,
            max_processor_s=self.max_work_processor_s,
            max_memory_bytes=self.max_work_memory_bytes,
            max_waiting=self.max_waiting_work,
            max_idle_memory_bytes=self.max_work_memory_bytes // 4,
        )
