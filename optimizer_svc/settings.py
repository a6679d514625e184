"""Settings of the optimizer service, from the environment with prefix `KERNELFARM_`."""

from __future__ import annotations

from pydantic import Field

from kernelfarm.service.process_pool.settings import WorkSettings


class OptimizerSettings(WorkSettings):
    """Everything that an operator of the optimizer may set."""

    optimizer_listen: str = "127.0.0.1:50052"
    """Address of the optimizer: HOST:PORT, or unix:PATH."""
    optimizer_processes: int = Field(default=2, gt=0)
    """Graphs optimized at once, and as many more heavy ones; others wait their turn."""
