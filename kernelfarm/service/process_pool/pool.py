"""Runs jobs in child processes, fairly among tenants, and ends jobs whose callers were cancelled.

A job ends early if its caller is cancelled (by a deadline, a disconnected client or a drain), if it
exceeds its processor time or memory, or if its child hangs or dies. The child is then killed, and
another one is forked at once. This ends one attempt of one job, never the service.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from kernelfarm import spans
from kernelfarm.errors import (
    KernelfarmError,
    UnavailableError,
    WorkMemoryError,
    WorkProcessError,
    WorkTimeError,
)
from kernelfarm.service.logs.logger import get_logger
from kernelfarm.service.priority import FreeProcessor
from kernelfarm.service.process_pool.children import ForkServer, WorkProcess
from kernelfarm.service.process_pool.frames import FrameError
from kernelfarm.service.process_pool.limits import PoolLimits
from kernelfarm.service.process_pool.slot_scheduler import SlotRequest, SlotScheduler

_CHECK_INTERVAL_S = 0.25
_FIRST_CHECK_S = 0.02
_REFILL_AFTER_S = 1.0
_STAY_AFTER_S = 0.1


@dataclass(frozen=True, slots=True)
class WorkItem:
    """One job: its name in the module's `JOBS`, and its arguments.

    `affinity` is a digest of state that a child may have kept from an earlier job, or empty. A
    warm-up job runs when no other job waits, and is preempted for them.
    """

    name: str
    parts: tuple[bytes | memoryview, ...]
    tenant: str = ""
    affinity: bytes = b""
    is_warm_up: bool = False


class CpuMeter:
    """The processor time of one job, from readings of the child's processor time and of a clock."""

    def __init__(self, child_used_s: float, now_s: float) -> None:
        self._began_s = child_used_s
        self._progressed_s = self._now_s = now_s
        self.used_s = 0.0

    def update(self, child_used_s: float, now_s: float) -> None:
        """Adds a reading: the child's processor time and the current time."""
        used_s = child_used_s - self._began_s
        if used_s > self.used_s:
            self.used_s, self._progressed_s = used_s, now_s
        self._now_s = now_s

    @property
    def stalled_s(self) -> float:
        """For how long the job has used no processor time."""
        return self._now_s - self._progressed_s


class _PreemptedError(Exception):
    """The job was preempted by others; it starts again later."""


class ProcessPool:
    """The work processes of one service."""

    def __init__(self, jobs_module: str, limits: PoolLimits) -> None:
        self._limits = limits
        self._server = ForkServer(jobs_module, limits)
        self._scheduler = SlotScheduler(limits.processes, limits.max_waiting, limits.heavy_after_s)
        self._idle: list[WorkProcess] = []
        self._busy: set[WorkProcess] = set()
        self._free_processor = FreeProcessor()
        self._staying: asyncio.TimerHandle | None = None
        self._refilling: asyncio.Task[None] | None = None
        self._is_closed = False

    @property
    def pids(self) -> tuple[int, ...]:
        """The process ids of the children."""
        return tuple(child.pid for child in (*self._idle, *self._busy))

    async def start(self) -> None:
        """Starts the fork server, and begins to fork children.

        Raises:
            UnavailableError: the fork server does not start.
        """
        await self._server.start()
        self._refill()

    async def close(self) -> None:
        """Kills all processes."""
        self._is_closed = True
        if self._staying is not None:
            self._staying.cancel()
        if self._refilling is not None:
            self._refilling.cancel()
        for child in (*self._idle, *self._busy):
            child.kill()
        self._idle.clear()
        await self._server.close()

    async def run(self, item: WorkItem) -> list[bytes]:
        """Runs a job and returns its results; a cancellation of this call ends the job.

        Raises:
            KernelfarmError: the job raised it.
            WorkTimeError, WorkMemoryError: the job used more than one job may.
            WorkProcessError: its child ended; the same job may be sent again.
            FarmFullError: too many jobs of this tenant wait.
        """
        is_heavy = sum(map(len, item.parts)) >= self._limits.heavy_bytes
        while True:
            request = SlotRequest(item.tenant, is_warm_up=item.is_warm_up)
            request.is_heavy = is_heavy or item.is_warm_up
            with spans.span("wait for a work process"):
                await self._scheduler.enter(request)
            try:
                with spans.span(f"work process: {item.name}"):
                    return await self._attempt(item, request)
            except _PreemptedError:
                is_heavy = True
            finally:
                self._scheduler.leave(request)

    async def _attempt(self, item: WorkItem, request: SlotRequest) -> list[bytes]:
        is_heavy = request.is_heavy or self._scheduler.must_stand_back(request.tenant)
        child = await self._take_child(item, is_heavy=is_heavy)
        call = child.run_job(item.name, item.affinity, item.parts, self._limits.max_answer_bytes)
        asking = asyncio.create_task(call)
        is_kept = False
        try:
            await self._watch(child, asking, request)
            result = asking.result()
            is_kept = True
            return result
        except (WorkProcessError, FrameError) as error:
            get_logger().warning("work_process_ended", work=item.name, message=str(error))
            raise WorkProcessError(str(error)) from error
        except KernelfarmError as error:
            # The job raised it. After a memory error, the child holds too much memory.
            is_kept = asking.done() and not isinstance(error, WorkMemoryError)
            raise
        finally:
            self._busy.discard(child)
            self._note_heavy()
            if is_kept and self._is_reusable(child):
                self._return_child(child)
            else:
                child.kill()
                asking.cancel()
            self._refill()

    async def _watch(
        self, child: WorkProcess, asking: asyncio.Task[list[bytes]], request: SlotRequest
    ) -> None:
        """Returns when the job is done; checks what it uses until then."""
        began_s = child.used_s()
        meter = CpuMeter(began_s, asyncio.get_running_loop().time())
        while True:
            done, _ = await asyncio.wait(
                (asking, request.preempted),
                timeout=self._next_check_s(meter),
                return_when=asyncio.FIRST_COMPLETED,
            )
            if asking in done:
                request.used_s = child.used_s() - began_s
                return
            if request.preempted in done:
                raise _PreemptedError
            meter.update(child.used_s(), asyncio.get_running_loop().time())
            request.used_s = meter.used_s
            _check(meter, self._limits)
            if meter.used_s >= self._limits.heavy_after_s and not request.is_heavy:
                child.make_heavy()
                self._note_heavy()
                self._scheduler.mark_heavy(request)

    def _next_check_s(self, meter: CpuMeter) -> float:
        """The time until the next check: when the job may become heavy, then at intervals."""
        until_s = self._limits.heavy_after_s - meter.used_s
        return max(until_s, _FIRST_CHECK_S) if until_s > 0 else _CHECK_INTERVAL_S

    async def _take_child(self, item: WorkItem, *, is_heavy: bool) -> WorkProcess:
        """An idle child, preferably one with state of this job's affinity, or a new child."""
        for child in [child for child in self._idle if not child.is_alive]:
            self._idle.remove(child)
            child.kill()  # it has ended by itself: this closes its descriptors
        fitting = [child for child in self._idle if child.has_affinity(item.affinity)]
        fitting = fitting or [child for child in self._idle if child.is_heavy == is_heavy]
        if fitting:
            child = fitting[0]
            self._idle.remove(child)
        else:
            child = await self._forked()
        if is_heavy:
            child.make_heavy()
        self._busy.add(child)
        self._note_heavy()
        return child

    def _note_heavy(self) -> None:
        """Moves the service's threads if heavy jobs last; for short jobs it would cost too much."""
        heavy_jobs = sum(child.is_heavy for child in self._busy)
        if not self._free_processor.is_the_last(heavy_jobs):
            if self._staying is not None:
                self._staying.cancel()
                self._staying = None
            self._free_processor.leave()
        elif self._staying is None:
            loop = asyncio.get_running_loop()
            self._staying = loop.call_later(_STAY_AFTER_S, self._free_processor.stay)

    async def _forked(self) -> WorkProcess:
        if self._is_closed:
            raise UnavailableError("this service is being stopped; send the request again")
        return await self._server.fork()

    def _is_reusable(self, child: WorkProcess) -> bool:
        return (
            not self._is_closed
            and child.is_alive
            and child.memory_bytes <= self._limits.max_idle_memory_bytes
        )

    def _return_child(self, child: WorkProcess) -> None:
        """Keeps a child for later jobs: of each kind, at most as many as there are slots."""
        self._idle.append(child)
        alike = [other for other in self._idle if other.is_heavy == child.is_heavy]
        for oldest in alike[: -self._limits.processes]:
            self._idle.remove(oldest)
            oldest.kill()

    def _refill(self) -> None:
        """Starts children if there are fewer than light slots."""
        is_running = self._refilling is not None and not self._refilling.done()
        if not self._is_closed and not is_running and self._is_short:
            self._refilling = asyncio.create_task(self._fill())

    @property
    def _is_short(self) -> bool:
        ready = sum(not child.is_heavy for child in (*self._idle, *self._busy))
        return ready < self._limits.processes

    async def _fill(self) -> None:
        while self._is_short and not self._is_closed:
            try:
                child = await self._forked()
            except UnavailableError as error:
                get_logger().warning("work_process_missing", message=str(error))
                await asyncio.sleep(_REFILL_AFTER_S)
                continue
            if self._is_closed:
                child.kill()
                return
            self._return_child(child)


def _check(meter: CpuMeter, limits: PoolLimits) -> None:
    """Checks that a job is within its limits.

    Raises:
        WorkTimeError: it used too much processor time.
        WorkProcessError: its child hangs.
    """
    if meter.used_s > limits.max_processor_s:
        raise WorkTimeError(
            f"the work on this request was ended after {limits.max_processor_s:.0f} s of processor"
            " time, the limit; split the model at a graph break"
        )
    if meter.stalled_s > limits.hung_after_s:
        raise WorkProcessError(
            f"the process that worked on this request hung for {limits.hung_after_s:.0f} s and was"
            " replaced; send the request again"
        )
