"""The frontend's child processes, for tests that need no farm."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from frontend_svc.flow.graph_job_client import GraphJobClient
from frontend_svc.settings import FrontendSettings
from kernelfarm.service.process_pool.pool import ProcessPool


@asynccontextmanager
async def cpu_work(processes: int = 1, **settings: object) -> AsyncIterator[GraphJobClient]:
    """A client of child processes of a frontend with these settings; they end with the block."""
    chosen = FrontendSettings(cpu_processes=processes, **settings)
    pool = ProcessPool("frontend_svc.graph_jobs", chosen.pool_limits(processes))
    try:
        await pool.start()
        yield GraphJobClient(pool, chosen)
    finally:
        await pool.close()
