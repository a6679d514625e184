"""A farm without frontends: edge, worker, broker and cache as real processes."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from kernelfarm.internal.v1 import codegen_service_pb2 as api
from kernelfarm.internal.v1 import loops_pb2
from kernelfarm.internal.v1.codegen_service_pb2_grpc import CodegenServiceStub
from kernelfarm.service.channels import open_channel
from tests.support.codegen_processes import CodegenFarm, codegen_farm

KERNELS_OF_A_PROGRAM = 16
_TIMEOUT_S = 1200.0


class BareFarm:
    """The code generation service for one target, and one worker with some processes."""

    def __init__(self, farm: CodegenFarm, target: str, edge: subprocess.Popen[bytes]) -> None:
        self._farm = farm
        self._target = target
        self._worker_numbers = itertools.count()
        self._edge = edge
        self.worker: subprocess.Popen[bytes] | None = None

    def start_worker(self, processes: int) -> subprocess.Popen[bytes]:
        """Ends the last worker, and starts one with some processes."""
        if self.worker is not None:
            self._farm.kill(self.worker)
        name, vendor = f"worker-{next(self._worker_numbers)}", self._target.partition(":")[0]
        self.worker = self._farm.start_worker(processes, name, vendor)
        return self.worker

    def parts(self) -> dict[str, int]:
        """The process ids of the farm's parts, without the worker's descendants."""
        assert self.worker is not None
        return {
            "edge": self._edge.pid,
            "broker": self._farm.broker.process.pid,
            "cache": self._farm.cache.process.pid,
            "worker": self.worker.pid,
        }

    def seconds(self, kernels: Sequence[loops_pb2.Kernel], together: int = 0) -> float:
        """Wall-clock seconds until all kernels are compiled and published.

        Each request has the kernels of a program. All requests are sent at once, or `together` at a
        time, over a channel that is open.

        Raises:
            RuntimeError: a kernel was in the cache already.
        """
        size = KERNELS_OF_A_PROGRAM if together != 1 else 1
        requests = [
            api.BuildKernelsRequest(kernels=kernels[at : at + size], target=self._target)
            for at in range(0, len(kernels), size)
        ]
        return asyncio.run(self._seconds(requests, together or len(requests)))

    async def _seconds(self, requests: Sequence[api.BuildKernelsRequest], together: int) -> float:
        slots = asyncio.Semaphore(together)
        async with open_channel(self._farm.address) as channel:
            await channel.channel_ready()
            stub = CodegenServiceStub(channel)
            began_s = time.perf_counter()
            await asyncio.gather(*(_build(stub, slots, request) for request in requests))
            return time.perf_counter() - began_s


async def _build(
    stub: CodegenServiceStub, slots: asyncio.Semaphore, request: api.BuildKernelsRequest
) -> None:
    async with slots:
        async for built in stub.BuildKernels(request, timeout=_TIMEOUT_S):
            if not built.caused_job or not built.signed:
                raise RuntimeError("a kernel was not compiled by this request")


@contextmanager
def bare_farm(target: str, **environment: str) -> Iterator[BareFarm]:
    """An edge with an empty cache; the caller starts the worker.

    `environment` is that of all processes, besides this one's.
    """
    with (
        tempfile.TemporaryDirectory(prefix="kf-") as folder,
        codegen_farm(Path(folder)) as farm,
    ):
        farm.environment.update(environment)
        yield BareFarm(farm, target, farm.start_edge())
