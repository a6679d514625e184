"""The peer: a vendor's toolchain called directly in a pool of processes."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from types import TracebackType

from codegen_svc.backends.contract import Backend
from codegen_svc.backends.registry import find_backend
from codegen_svc.sandbox.warm_up import warm_up
from kernelfarm.internal.v1 import loops_pb2
from kernelfarm.ir.artifact import BuiltKernel
from kernelfarm.service.priority import yield_to_services
from kernelfarm.targets import target_facts
from kernelfarm.wire.job import job_from_bytes, job_to_bytes

_backend: list[Backend] = []
"""The backend of a process of the pool."""


class BarePool:
    """Some processes that compile kernels and return all stages; nothing is stored or confined."""

    def __init__(self, target: str, processes: int) -> None:
        self._target = target
        # As the workers of a farm, so that other programs on the machine slow both alike.
        self._pool = ProcessPoolExecutor(
            processes,
            mp_context=multiprocessing.get_context("spawn"),
            initializer=_begin,
            initargs=(target.partition(":")[0],),
        )

    def __enter__(self) -> BarePool:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._pool.shutdown(cancel_futures=True)

    def seconds(self, kernels: Sequence[loops_pb2.Kernel]) -> float:
        """Wall-clock seconds until all kernels are compiled."""
        jobs = [job_to_bytes(kernel, self._target) for kernel in kernels]
        began_s = time.perf_counter()
        for built in self._pool.map(_compile, jobs):
            if not built:
                raise RuntimeError("the toolchain returned no variant")
        return time.perf_counter() - began_s

    def pids(self) -> list[int]:
        """The process ids of the pool."""
        return list(self._pool._processes)


def _begin(vendor: str) -> None:
    yield_to_services()
    _backend.append(find_backend(vendor))
    warm_up(_backend[0])


def _compile(job: bytes) -> tuple[BuiltKernel, ...]:
    kernel, target = job_from_bytes(job)
    return _backend[0].build(kernel, target_facts(target))
