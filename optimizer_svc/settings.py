"""Settings of the optimizer service, from the environment with prefix `KERNELFARM_`."""

from __future__ import annotations

from pydantic import Field

from kernelfarm.service.process_pool.settings import WorkSettings


class OptimizerSettings(WorkSettings):
    """All settings of the optimizer."""

    optimizer_listen: str = "127.0.0.1:50052"
    """Address of the optimizer: HOST:PORT, or unix:PATH."""
    optimizer_processes: int = Field(default=2, gt=0)
    """Graphs that are optimized at the same time, and as many heavy ones beside them; further
    graphs wait."""
