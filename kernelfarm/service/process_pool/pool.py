"""Runs jobs in child processes, fairly by tenant, and ends those that nobody waits for.

A job ends when its caller is cancelled (a deadline, a client that left, a drain), when it has used
its processor time or memory, or when its child hangs or dies: the child is killed, and another one
is forked at once. What ends is one attempt of one job, never the service.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from kernelfarm.errors import (
    KernelfarmError,
    UnavailableError,
    WorkMemoryError,
    WorkProcessError,
    WorkTimeError,
)
from kernelfarm.service.logs import get_logger
from kernelfarm.service.priority import LeftProcessor
from kernelfarm.service.process_pool.children import ForkServer, WorkProcess
from kernelfarm.service.process_pool.frames import FrameError
from kernelfarm.service.process_pool.lanes import Lanes, Ticket
from kernelfarm.service.process_pool.limits import PoolLimits

_LOOK_EVERY_S = 0.25
_LOOK_SOON_S = 0.02
_REFILL_AFTER_S = 1.0
_STAY_AFTER_S = 0.1


@dataclass(frozen=True, slots=True)
class Work:
    """One job: its name in the module's `JOBS`, and its arguments.

    `affinity` names what a child may remember of an earlier job (a digest); empty: nothing.
    """

    name: str
    parts: tuple[bytes | memoryview, ...]
    tenant: str = ""
    affinity: bytes = b""


class Meter:
    """What one job has used: `look` is told the child's processor time, and the time now."""

    def __init__(self, child_used_s: float, now_s: float) -> None:
        self._began_s = child_used_s
        self._moved_s = self._now_s = now_s
        self.used_s = 0.0

    def look(self, child_used_s: float, now_s: float) -> None:
        """Reads the clocks."""
        used_s = child_used_s - self._began_s
        if used_s > self.used_s:
            self.used_s, self._moved_s = used_s, now_s
        self._now_s = now_s

    @property
    def still_s(self) -> float:
        """For how long it has used nothing."""
        return self._now_s - self._moved_s


class _GivenUpError(Exception):
    """The job gave way to others; it begins again."""


class ProcessPool:
    """The work processes of one service."""

    def __init__(self, jobs_module: str, limits: PoolLimits) -> None:
        self._limits = limits
        self._server = ForkServer(jobs_module, limits)
        self._lanes = Lanes(limits.processes, limits.max_waiting, limits.heavy_after_s)
        self._idle: list[WorkProcess] = []
        self._busy: set[WorkProcess] = set()
        self._left_processor = LeftProcessor()
        self._staying: asyncio.TimerHandle | None = None
        self._refilling: asyncio.Task[None] | None = None
        self._is_closed = False

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids of the children."""
        return tuple(child.pid for child in (*self._idle, *self._busy))

    async def start(self) -> None:
        """Starts the processes; returns when they can work.

        Raises:
            UnavailableError: they do not start.
        """
        await self._server.start()
        self._refill()

    async def close(self) -> None:
        """Ends all processes, whatever they do."""
        self._is_closed = True
        if self._staying is not None:
            self._staying.cancel()
        if self._refilling is not None:
            self._refilling.cancel()
        for child in (*self._idle, *self._busy):
            child.kill()
        self._idle.clear()
        await self._server.close()

    async def run(self, work: Work) -> list[bytes]:
        """What the job gives; it is ended if this call is cancelled.

        Raises:
            KernelfarmError: what the job raised.
            WorkTimeError, WorkMemoryError: it used more than one job may.
            WorkProcessError: its child ended; the same job may be sent again.
            FarmFullError: too many jobs of this tenant wait.
        """
        is_heavy = sum(map(len, work.parts)) >= self._limits.heavy_bytes
        while True:
            ticket = Ticket(work.tenant)
            ticket.is_heavy = is_heavy
            await self._lanes.enter(ticket)
            try:
                return await self._attempt(work, ticket)
            except _GivenUpError:
                is_heavy = True
            finally:
                self._lanes.leave(ticket)

    async def _attempt(self, work: Work, ticket: Ticket) -> list[bytes]:
        is_heavy = ticket.is_heavy or self._lanes.must_stand_back(ticket.tenant)
        child = await self._take(work, is_heavy=is_heavy)
        ask = child.ask(work.name, work.affinity, work.parts, self._limits.max_answer_bytes)
        asking = asyncio.create_task(ask)
        is_kept = False
        try:
            await self._watch(child, asking, ticket)
            result = asking.result()
            is_kept = True
            return result
        except (WorkProcessError, FrameError) as error:
            get_logger().warning("work_process_ended", work=work.name, message=str(error))
            raise WorkProcessError(str(error)) from error
        except KernelfarmError as error:
            # The job's own error; one of memory leaves a child that holds much.
            is_kept = asking.done() and not isinstance(error, WorkMemoryError)
            raise
        finally:
            self._busy.discard(child)
            self._note_heavy()
            if is_kept and self._may_go_on(child):
                self._put_back(child)
            else:
                child.kill()
                asking.cancel()
            self._refill()

    async def _watch(
        self, child: WorkProcess, asking: asyncio.Task[list[bytes]], ticket: Ticket
    ) -> None:
        """Returns when the job is done; looks at what it uses meanwhile."""
        began_s = child.used_s()
        meter = Meter(began_s, asyncio.get_running_loop().time())
        while True:
            done, _ = await asyncio.wait(
                (asking, ticket.revoked),
                timeout=self._until_look_s(meter),
                return_when=asyncio.FIRST_COMPLETED,
            )
            if asking in done:
                ticket.used_s = child.used_s() - began_s
                return
            if ticket.revoked in done:
                raise _GivenUpError
            meter.look(child.used_s(), asyncio.get_running_loop().time())
            ticket.used_s = meter.used_s
            _check(meter, self._limits)
            if meter.used_s >= self._limits.heavy_after_s and not ticket.is_heavy:
                child.make_heavy()
                self._note_heavy()
                self._lanes.mark_heavy(ticket)

    def _until_look_s(self, meter: Meter) -> float:
        """A job is looked at when it may have become heavy, and then now and then."""
        until_s = self._limits.heavy_after_s - meter.used_s
        return max(until_s, _LOOK_SOON_S) if until_s > 0 else _LOOK_EVERY_S

    async def _take(self, work: Work, *, is_heavy: bool) -> WorkProcess:
        """An idle child, one that remembers something of this job if there is one."""
        for child in [child for child in self._idle if not child.is_alive]:
            self._idle.remove(child)
            child.kill()  # it has ended by itself: that lets go of what names it
        fitting = [child for child in self._idle if child.knows(work.affinity)]
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
        """Short jobs change nothing: moving threads costs time too."""
        heavy_jobs = sum(child.is_heavy for child in self._busy)
        if not self._left_processor.is_the_last(heavy_jobs):
            if self._staying is not None:
                self._staying.cancel()
                self._staying = None
            self._left_processor.leave()
        elif self._staying is None:
            loop = asyncio.get_running_loop()
            self._staying = loop.call_later(_STAY_AFTER_S, self._left_processor.stay)

    async def _forked(self) -> WorkProcess:
        if self._is_closed:
            raise UnavailableError("this service is being stopped; send the request again")
        return await self._server.fork()

    def _may_go_on(self, child: WorkProcess) -> bool:
        return (
            not self._is_closed
            and child.is_alive
            and child.memory_bytes <= self._limits.kept_memory_bytes
        )

    def _put_back(self, child: WorkProcess) -> None:
        """Keeps a child for later work: of each kind no more than there are slots."""
        self._idle.append(child)
        alike = [other for other in self._idle if other.is_heavy == child.is_heavy]
        for oldest in alike[: -self._limits.processes]:
            self._idle.remove(oldest)
            oldest.kill()

    def _refill(self) -> None:
        """Sees to it that a child is ready for each light slot."""
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
            self._put_back(child)


def _check(meter: Meter, limits: PoolLimits) -> None:
    """Passes a job that is within its limits.

    Raises:
        WorkTimeError: it used too much processor time.
        WorkProcessError: its child stands still.
    """
    if meter.used_s > limits.max_processor_s:
        raise WorkTimeError(
            f"the work on this request was ended after {limits.max_processor_s:.0f} s of processor"
            " time; split the model at a graph break"
        )
    if meter.still_s > limits.hung_after_s:
        raise WorkProcessError(
            f"the process that worked on this request stood still for {limits.hung_after_s:.0f} s;"
            " another one takes its place: send the request again"
        )
