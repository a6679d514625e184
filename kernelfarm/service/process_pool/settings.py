"""Settings of services that work in child processes."""

from __future__ import annotations

from pydantic import Field

from kernelfarm.ir.work_budget import DEFAULT_WORK_STEPS
from kernelfarm.service.process_pool.limits import MIB, PoolLimits
from kernelfarm.service.settings import ServiceSettings


class WorkSettings(ServiceSettings):
    """What one piece of work may use: an import, a decomposition, an optimization."""

    max_work_steps: int = Field(default=DEFAULT_WORK_STEPS, gt=0)
    """Counted steps; equal requests end alike on every machine."""
    max_work_processor_s: float = Field(default=60.0, gt=0)
    """Processor time, for what the steps do not count."""
    max_work_memory_bytes: int = Field(default=4096 * MIB, ge=512 * MIB)
    """Address space of each child process."""
    max_waiting_work: int = Field(default=1024, gt=0)
    """Pieces of work of one tenant that wait for a process; more are told to come back."""

    def pool_limits(self, processes: int) -> PoolLimits:
        """The limits of a pool of so many processes."""
        return PoolLimits(
            processes=processes,
            max_processor_s=self.max_work_processor_s,
            max_memory_bytes=self.max_work_memory_bytes,
            max_waiting=self.max_waiting_work,
            max_idle_memory_bytes=self.max_work_memory_bytes // 4,
        )
