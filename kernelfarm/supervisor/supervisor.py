"""Runs a farm on one machine: starts its processes, keeps them alive, drains them."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kernelfarm.errors import UnavailableError
from kernelfarm.private_files import keep_private, make_private_folder
from kernelfarm.processes.child import Child, ChildSpec
from kernelfarm.supervisor.rotate_logs import rotate_logs
from kernelfarm.supervisor.status_file import STATUS_FILE, write_status


@dataclass(frozen=True, slots=True)
class FarmLayout:
    """The processes of a farm, in stages, in the order in which they drain.

    A process may use the processes of later stages. The last stage starts first, then all others
    together. The two log files of a process have at most `log_max_bytes` each.
    """

    endpoint: str
    data_dir: Path
    stages: tuple[tuple[ChildSpec, ...], ...]
    log_max_bytes: int = 64 * 1024 * 1024


class Supervisor:
    """Runs one farm; `report` is called with lines for people."""

    def __init__(self, layout: FarmLayout, report: Callable[[str], None]) -> None:
        self._layout = layout
        self._report = report
        self._state = "starting"
        self._has_reported_status_error = True
        self._stages = tuple(
            tuple(Child(spec, self._log_path(spec), self._changed) for spec in stage)
            for stage in layout.stages
        )

    @property
    def children(self) -> tuple[Child, ...]:
        """All children, in drain order."""
        return tuple(child for stage in self._stages for child in stage)

    async def run(self, announce: Callable[[], Awaitable[None]], start_timeout_s: float) -> None:
        """Starts the farm and serves until SIGTERM or SIGINT, then drains.

        `announce` is called once the farm serves.

        Raises:
            ChildFailedError: a child did not start; all others were stopped.
            UnavailableError: the farm did not serve in time.
        """
        stop = _stop_event()
        keepers: list[asyncio.Task[None]] = []
        logs = [child.log_path for child in self.children if child.log_path is not None]
        rotating = asyncio.create_task(rotate_logs(logs, self._layout.log_max_bytes))
        try:
            if await self._start(stop, start_timeout_s):
                keepers = [asyncio.create_task(child.keep_alive()) for child in self.children]
                self._enter("ready")
                await announce()
                await stop.wait()
        finally:
            await self._drain(stop)
            await asyncio.gather(*keepers)
            await _cancel(rotating)

    async def _start(self, stop: asyncio.Event, timeout_s: float) -> bool:
        """True when all children serve; False if a signal came first."""
        self._enter("starting")
        starting = asyncio.create_task(self._start_stages())
        stopping = asyncio.create_task(stop.wait())
        try:
            done, _ = await asyncio.wait(
                (starting, stopping), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
            )
            if starting in done:
                starting.result()
                return True
            if stopping in done:
                return False
            late = ", ".join(c.spec.name for c in self.children if not c.is_ready)
            raise UnavailableError(
                f"these processes do not serve after {timeout_s:.0f} s: {late}; see"
                f" {self._layout.data_dir}/logs"
            )
        finally:
            await _cancel(starting, stopping)

    async def _start_stages(self) -> None:
        # The Redis servers come first, because all others use them; they start in milliseconds.
        await self._start_together(self._stages[-1])
        await self._start_together(tuple(c for stage in self._stages[:-1] for c in stage))

    async def _start_together(self, children: tuple[Child, ...]) -> None:
        for child in children:
            await child.start()
        try:
            async with asyncio.TaskGroup() as waiting:
                for child in children:
                    waiting.create_task(child.wait_ready())
        except* UnavailableError as failures:
            raise failures.exceptions[0] from None

    async def _drain(self, stop: asyncio.Event) -> None:
        self._enter("draining")
        stop.clear()
        killing = asyncio.create_task(self._kill_on_second_signal(stop))
        for stage in self._stages:
            await asyncio.gather(*(child.stop() for child in stage))
        await _cancel(killing)
        self._enter("stopped")

    async def _kill_on_second_signal(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._report("second signal: killing all processes that are left")
        for child in self.children:
            child.kill()

    def _changed(self, line: str) -> None:
        self._report(line)
        self._write_status()

    def _enter(self, state: str) -> None:
        self._state = state
        self._write_status()

    def _write_status(self) -> None:
        """Writes the status file; a farm serves even if this fails."""
        try:
            write_status(self._layout.data_dir, self._state, self._layout.endpoint, self.children)
        except OSError as error:
            if self._has_reported_status_error:
                self._report(f"cannot write {STATUS_FILE}: {error.strerror}; it is out of date")
            self._has_reported_status_error = False
        else:
            self._has_reported_status_error = True

    def _log_path(self, spec: ChildSpec) -> Path:
        folder = self._layout.data_dir / "logs"
        make_private_folder(folder)
        path = folder / f"{spec.name}.log"
        if path.exists():  # the log of the last run
            path.replace(path.with_suffix(".log.1"))
        return path


@contextmanager
def exclusive_data_dir(data_dir: Path) -> Iterator[None]:
    """Locks the data directory, because two farms in it would overwrite each other's files.

    Raises:
        UnavailableError: another farm uses it.
        CallerError: other users may write into it.
    """
    make_private_folder(data_dir)
    for folder in (data_dir, data_dir / "keys", data_dir / "logs"):
        keep_private(folder)
    with (data_dir / "lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UnavailableError(
                f"another farm uses {data_dir} (see farm.json there); stop it or choose --data-dir"
            ) from None
        os.set_inheritable(lock.fileno(), False)
        yield


def _stop_event() -> asyncio.Event:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop


async def _cancel(*tasks: asyncio.Task[object]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
