"""A supervised process: starts it, restarts it if it ends or hangs, stops it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, ClassVar

from kernelfarm.errors import UnavailableError
from kernelfarm.processes.hang_rules import DEFAULT_WATCH, HangDetector, WatchTimes

_BOUND_EXEC = Path(__file__).with_name("bound_exec.py")
_FIRST_DELAY_S = 0.1
_LAST_DELAY_S = 5.0
_STEADY_S = 20.0
"""After a child has run for this time, its restart delay is reset."""
_MAX_KILLED_STARTS = 3
"""How often a child may be killed during its start. A child that ends by itself is not restarted
then, because it would end again for the same reason."""
_QUOTED_LINES = 15
_QUOTED_BYTES = 64 * 1024


class ChildFailedError(UnavailableError):
    """A process of the farm ended before it served; the message quotes its last log lines."""

    reason: ClassVar[str] = "CHILD_FAILED"


class _KilledError(ChildFailedError):
    """A signal ended the process, so another start may succeed."""


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """What to run; `environment` is added to ours, `probe` returns whether the process serves.

    `is_alive` returns whether it works although it does not serve; without it, `probe` decides. A
    process that does not work for some time is killed. `probe_every_s` is the pause between probes
    during the start, `drain_s` the time between SIGTERM and SIGKILL. `liveness_files` are the
    heartbeat files of the process, which are removed before each start. `metrics_address` is where
    it serves its metrics, or empty.
    """

    name: str
    argv: tuple[str, ...]
    environment: tuple[tuple[str, str], ...]
    probe: Callable[[], Awaitable[bool]]
    drain_s: float = 10.0
    probe_every_s: float = 0.02
    is_alive: Callable[[], Awaitable[bool]] | None = None
    watch: WatchTimes = DEFAULT_WATCH
    liveness_files: tuple[Path, ...] = ()
    metrics_address: str = ""


class Child:
    """A process that is restarted until `stop`; without `log_path` it writes to our stderr."""

    def __init__(
        self, spec: ChildSpec, log_path: Path | None, on_change: Callable[[str], None]
    ) -> None:
        self.spec = spec
        self.log_path = log_path
        self.restarts = 0
        self.is_ready = False
        self._on_change = on_change
        self._process: asyncio.subprocess.Process | None = None
        self._stopping = asyncio.Event()

    @property
    def pid(self) -> int | None:
        """Its process id; None while it is down."""
        process = self._process
        return process.pid if process is not None and process.returncode is None else None

    async def start(self) -> None:
        """Starts the process in a group of its own, so that Ctrl-C does not reach it directly.

        Not in a session of its own: Linux may share the processors among sessions first
        (`sched_autogroup_enabled`), and priorities then mean nothing between two of them.
        """
        for file in self.spec.liveness_files:
            file.unlink(missing_ok=True)
        parent = str(os.getpid())
        with contextlib.ExitStack() as files:
            log = self._open_log(files)
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-IS", str(_BOUND_EXEC), parent, *self.spec.argv),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=sys.stderr if log is None else log,
                stderr=log,
                env=child_environment(self.spec.environment),
                process_group=0,
            )

    def _open_log(self, files: contextlib.ExitStack) -> BinaryIO | None:
        """The open log file; None if there is none, or if it cannot be opened."""
        if self.log_path is None:
            return None
        try:
            return files.enter_context(self.log_path.open("ab"))
        except OSError as error:
            self._on_change(f"{self.spec.name} has no log: {self.log_path}: {error.strerror}")
            return None

    async def wait_ready(self) -> None:
        """Waits until the process serves; if it is killed before, it is restarted.

        Raises:
            ChildFailedError: the process ended by itself before, or was killed repeatedly.
        """
        delay_s = _FIRST_DELAY_S
        for _ in range(_MAX_KILLED_STARTS):
            with contextlib.suppress(_KilledError):
                await self._until_ready()
                return
            self._on_change(f"{self.spec.name} was killed as it started; again in {delay_s:.1f} s")
            await asyncio.sleep(delay_s)
            delay_s = min(delay_s * 2, _LAST_DELAY_S)
            self.restarts += 1
            await self.start()
        await self._until_ready()

    async def _until_ready(self) -> None:
        while not await self._answers(self.spec.probe):
            if self.pid is None:
                code = None if self._process is None else self._process.returncode
                kind = _KilledError if code is not None and code < 0 else ChildFailedError
                raise kind(self._exit_message())
            await asyncio.sleep(self.spec.probe_every_s)
        self.is_ready = True

    async def keep_alive(self) -> None:
        """Restarts the process each time it ends or hangs, with a growing delay, until `stop`."""
        watching = asyncio.create_task(self._watch())
        try:
            await self._keep_alive()
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    async def _keep_alive(self) -> None:
        clock = asyncio.get_running_loop().time
        delay_s = _FIRST_DELAY_S
        while True:
            started = clock()
            code = await self._wait()
            self._kill_group()  # the processes that it started
            if self._stopping.is_set():
                return
            if clock() - started > _STEADY_S:
                delay_s = _FIRST_DELAY_S
            self.is_ready = False
            self._on_change(f"{self.spec.name} ended ({_how(code)}); again in {delay_s:.1f} s")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), delay_s)
                return
            delay_s = min(delay_s * 2, _LAST_DELAY_S)
            await self._start_again()

    async def _start_again(self) -> None:
        self.restarts += 1
        await self.start()
        if self._stopping.is_set():  # `stop` was called before and found no process
            await self.stop()
            return
        with contextlib.suppress(ChildFailedError):  # `keep_alive` reports its end
            await self._until_ready()
            self._on_change(f"{self.spec.name} serves again (pid {self.pid})")

    async def _watch(self) -> None:
        """Probes the process while it runs, and kills it if it hangs."""
        clock = asyncio.get_running_loop().time
        detector = HangDetector(self.spec.watch)
        while not self._stopping.is_set():
            slept_from_s = clock()
            await asyncio.sleep(self.spec.watch.every_s)
            process, pid, began_s = self._process, self.pid, clock()
            if pid is None:
                continue
            detector.sees(pid, has_served=self.is_ready)
            is_ready = await self._answers(self.spec.probe)
            is_alive = is_ready or (
                self.spec.is_alive is not None and await self._answers(self.spec.is_alive)
            )
            if self._process is not process or self.pid is None or self._stopping.is_set():
                continue  # it has ended, or is being stopped
            self._set_ready(is_ready)
            slept_s = began_s - slept_from_s
            if detector.hangs(is_alive=is_alive, slept_s=slept_s, began_s=began_s, ended_s=clock()):
                self._on_change(f"{self.spec.name} hangs (pid {pid}); killed")
                self._kill_group()  # a stopped process does not handle SIGTERM

    async def _answers(self, probe: Callable[[], Awaitable[bool]]) -> bool:
        try:
            return await asyncio.wait_for(probe(), self.spec.watch.probe_s)
        except Exception:  # any error of a probe means no answer, and must not end the watch
            return False

    def _set_ready(self, is_ready: bool) -> None:
        if is_ready != self.is_ready:
            self.is_ready = is_ready
            self._on_change(f"{self.spec.name} {'serves again' if is_ready else 'does not serve'}")

    async def stop(self) -> None:
        """Sends SIGTERM, and SIGKILL after `drain_s`; returns when the process has ended."""
        self._stopping.set()
        if self.pid is None:
            return
        self._send(signal.SIGTERM)
        self._send(signal.SIGCONT)  # so that a stopped process ends too
        try:
            await asyncio.wait_for(self._wait(), self.spec.drain_s)
        except TimeoutError:
            self._on_change(f"{self.spec.name} did not drain in {self.spec.drain_s:.0f} s; killed")
            self._kill_group()
            await self._wait()

    def kill(self) -> None:
        """Sends SIGKILL now."""
        self._stopping.set()
        self._kill_group()

    async def _wait(self) -> int:
        if self._process is None:
            return 0
        return await self._process.wait()

    def _send(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                self._process.send_signal(number)

    def _kill_group(self) -> None:
        """Sends SIGKILL to the process and to all processes of its session."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):  # no process is left
                os.killpg(self._process.pid, signal.SIGKILL)

    def _exit_message(self) -> str:
        code = None if self._process is None else self._process.returncode
        head = f"{self.spec.name} did not start ({_how(code)})"
        if self.log_path is None:
            return f"{head}; see its output above"
        head = f"{head}; the end of {self.log_path}:"
        return "\n".join([head, *(f"  {line}" for line in last_lines(self.log_path))])


def last_lines(path: Path) -> list[str]:
    """The last lines of a log file, which show why a process ended."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _QUOTED_BYTES))
        text = file.read().decode("utf-8", "replace")
    return text.splitlines()[-_QUOTED_LINES:] or ["(empty)"]


def _how(code: int | None) -> str:
    if code is not None and code < 0:
        return f"killed by {signal.Signals(-code).name}"
    return f"exit code {code}"


def child_environment(added: tuple[tuple[str, str], ...]) -> dict[str, str]:
    """Our environment, overridden by a child's own variables."""
    return {**os.environ, "PYTHONUNBUFFERED": "1", **dict(added)}
