"""Settings of the optimizer service, from the environment with prefix `KERNELFARM_`."""

from __future__ import annotations

from pydantic import Field

from kernelfarm.service.settings import ServiceSettings


class OptimizerSettings(ServiceSettings):
    """Everything that an operator of the optimizer may set."""

    optimizer_listen: str = "127.0.0.1:50052"
    optimizer_threads: int = Field(default=2, gt=0)
    """Graphs optimized at once; more wait their turn."""
