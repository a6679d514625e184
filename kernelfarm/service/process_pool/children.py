"""The service's side of a pool's processes: the fork server, and the children that it forks."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import socket
import sys
import time
from collections import deque

from kernelfarm.errors import (
    InternalError,
    UnavailableError,
    WorkProcessError,
    error_from_facts,
)
from kernelfarm.service.logs.logger import get_logger
from kernelfarm.service.priority import leave_a_processor, yield_to_all
from kernelfarm.service.process_pool.frames import (
    FACTS,
    FrameError,
    FrameKind,
    Parts,
    receive_within,
    send_over,
    unpacked_facts,
)
from kernelfarm.service.process_pool.limits import PoolLimits
from kernelfarm.service.settings import ENV_PREFIX

_START_S = 120.0
_HELLO_BYTES = 64
_READ_AHEAD_BYTES = 1 << 20
_REMEMBERED = 4
_ENDED = "the process that worked on this request ended; send the request again"


class WorkProcess:
    """One child process; `has_affinity` says whether it may have state of an earlier job."""

    def __init__(
        self, pid: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.pid = pid
        self.is_heavy = False
        self.memory_bytes = 0
        self._reader = reader
        self._writer = writer
        self._affinities: deque[bytes] = deque(maxlen=_REMEMBERED)
        self._handle = _handle_of(pid)
        self._is_killed = False

    @property
    def is_alive(self) -> bool:
        """False once the process has ended."""
        if self._reader.at_eof() or self._writer.is_closing():
            return False
        if self._handle is None:
            return True
        poll = select.poll()
        poll.register(self._handle, select.POLLIN)  # readable once the process has ended
        return not poll.poll(0)

    def has_affinity(self, affinity: bytes) -> bool:
        """True if one of its last jobs had this affinity."""
        return bool(affinity) and affinity in self._affinities

    def used_s(self) -> float:
        """The processor time that it has used; the current time if the system has no such clock."""
        if sys.platform == "linux":
            with contextlib.suppress(OSError):
                # clock_getcpuclockid(3): the clock of another process, by its id.
                return time.clock_gettime((~self.pid << 3) | 2)
        return time.monotonic()

    def make_heavy(self) -> None:
        """Lowers its priority below light work; only privileged processes could undo this."""
        if not self.is_heavy:
            self.is_heavy = True
            yield_to_all(self.pid)
            leave_a_processor(self.pid)

    def kill(self) -> None:
        """Kills the process; a second call does nothing."""
        if self._is_killed:
            return
        self._is_killed = True
        self._writer.close()
        if self._handle is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            return
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._handle, signal.SIGKILL)
        os.close(self._handle)
        self._handle = None

    async def run_job(
        self, name: str, affinity: bytes, parts: Parts, max_bytes: int
    ) -> list[bytes]:
        """Runs a job and returns its results.

        Raises:
            KernelfarmError: the job raised it.
            WorkProcessError: the child ended.
            FrameError: the results have more than `max_bytes`, or are malformed.
            InternalError: the job raised another exception, which is logged.
        """
        if affinity and affinity not in self._affinities:
            self._affinities.append(affinity)
        try:
            await send_over(self._writer, FrameKind.WORK, [name.encode(), *parts])
            kind, reply = await receive_within(self._reader, max_bytes)
        except (EOFError, OSError) as error:
            raise WorkProcessError(_ENDED) from error
        self.memory_bytes = int(reply[0])
        if kind is FrameKind.RESULT:
            return reply[1:]
        if kind is FrameKind.ERROR:
            facts = unpacked_facts(reply[1:])
            for trace in reply[1 + FACTS :]:
                text = trace.decode("utf-8", "replace")
                get_logger().warning("work_refused", work=name, message=facts.message, trace=text)
            raise error_from_facts(facts)
        get_logger().error("work_failed", work=name, trace=reply[1].decode("utf-8", "replace"))
        raise InternalError("internal error: report it with the request id")


class ForkServer:
    """The fork server of a pool, which starts children; it is restarted when it has ended."""

    def __init__(self, jobs_module: str, limits: PoolLimits) -> None:
        self._module = jobs_module
        self._limits = limits
        self._process: asyncio.subprocess.Process | None = None
        self._control: socket.socket | None = None
        self._ended: list[asyncio.subprocess.Process] = []
        self._is_closed = False
        self._starting = asyncio.Lock()

    @property
    def pid(self) -> int | None:
        """Its process id; None while it is down."""
        process = self._process
        return process.pid if process is not None and process.returncode is None else None

    async def start(self) -> None:
        """Starts it unless it runs; returns when it can fork.

        Raises:
            UnavailableError: it does not start; its last lines on stderr say why.
        """
        async with self._starting:
            if self.pid is None:
                await self._start()

    async def fork(self) -> WorkProcess:
        """Starts a child and returns it when it is ready to work.

        Raises:
            UnavailableError: no child can be started.
        """
        await self.start()
        server = self._process
        parent_socket, child_socket = socket.socketpair()
        with child_socket:
            try:
                self._send(child_socket)
            except WorkProcessError:
                parent_socket.close()
                raise
        parent_socket.setblocking(False)
        reader, writer = await asyncio.open_unix_connection(
            sock=parent_socket, limit=_READ_AHEAD_BYTES
        )
        try:
            async with asyncio.timeout(self._limits.hung_after_s):
                _, (pid,) = await receive_within(reader, _HELLO_BYTES)
        except (TimeoutError, EOFError, OSError, FrameError) as error:
            writer.close()
            if self._process is server:  # it hangs or has ended; the next call restarts it
                self.kill()
            raise WorkProcessError(
                "no process for this work could be started; send the request again"
            ) from error
        except BaseException:
            writer.close()  # the child reads the end of the socket, and ends
            raise
        return WorkProcess(int(pid), reader, writer)

    def kill(self) -> None:
        """Kills it and all its children."""
        if self._control is not None:
            self._control.close()
            self._control = None
        process, self._process = self._process, None
        if process is None:
            return
        self._ended.append(process)
        with contextlib.suppress(ProcessLookupError):
            process.kill()

    async def close(self) -> None:
        """Kills it, prevents a restart, and returns when it and its predecessors have ended."""
        self._is_closed = True
        self.kill()
        async with self._starting:  # another task may have started it in the meantime
            self.kill()
            await self._reap()

    def _send(self, child_socket: socket.socket) -> None:
        if self._control is None:
            raise WorkProcessError("this service is being stopped; send the request again")
        try:
            socket.send_fds(self._control, [b"f"], [child_socket.fileno()])
        except OSError as error:  # it has ended, or hangs
            self.kill()
            raise WorkProcessError(
                "no process for this work could be started; send the request again"
            ) from error

    async def _reap(self) -> None:
        while self._ended:
            await self._ended.pop().wait()

    async def _start(self) -> None:
        if self._is_closed:
            raise UnavailableError("this service is being stopped; send the request again")
        self.kill()
        await self._reap()
        control, child_socket = socket.socketpair()
        with child_socket:
            number = str(child_socket.fileno())
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "kernelfarm.service.process_pool.fork_server"),
                *(number, str(os.getpid()), self._module, str(self._limits.max_memory_bytes)),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                pass_fds=(child_socket.fileno(),),
                env=_environment(),
                process_group=0,  # the service handles the signals of a terminal
            )
        try:
            await self._until_ready(control)
        except BaseException:
            control.close()
            self.kill()
            raise
        self._control = control

    async def _until_ready(self, control: socket.socket) -> None:
        control.setblocking(False)
        try:
            async with asyncio.timeout(_START_S):
                byte = await asyncio.get_running_loop().sock_recv(control, 1)
        except (TimeoutError, OSError) as error:
            raise UnavailableError(
                f"the process that imports {self._module} did not start within {_START_S:.0f} s"
            ) from error
        if byte != b"R":
            raise UnavailableError(
                f"the process that imports {self._module} ended; see its last lines on stderr"
            )


def _environment() -> dict[str, str]:
    """Our environment without the farm's settings, which contain tokens and paths of keys."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ENV_PREFIX)}
    # One thread each, because other threads do not survive a fork, and the pool counts processes.
    return {**kept, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


def _handle_of(pid: int) -> int | None:
    """A pidfd, which no later process with the same id can have; None if the system has none."""
    if hasattr(os, "pidfd_open"):
        with contextlib.suppress(OSError):
            return os.pidfd_open(pid)
    return None
