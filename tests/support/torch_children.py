"""New Python processes that have imported PyTorch: forks of one that did, which takes 5 s less.

For tests that need another client's process, not the start of one. A child has an environment,
standard streams, a session and random numbers of its own, and nothing of the test's process:
not kernelfarm's modules, no gRPC, no threads. All children of a test process have the umask, the
limits and the hash seed of its fork server; the test process has another hash seed.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.support.torch_fork_server import NUMBER_BYTES

_ROOT = Path(__file__).parents[2]
_SERVER = "import sys; from tests.support.torch_fork_server import main; main(int(sys.argv[1]))"
_READ_LATE = (
    *("KERNELFARM_", "GRPC_", "PYTEST_", "COLUMNS"),
    *("TRITON_CACHE_", "TRITON_DEFAULT_FP_FUSION"),
)
"""Prefixes of variables that interpreter, PyTorch and Triton do not read when they start."""
_READ_EARLY = ("KERNELFARM_INDUCTOR_CACHE",)
"""Variables among these that are read when PyTorch is imported."""
_LEAKS = re.compile(r"^nanobind: leaked .*^See https://nanobind\S*", re.DOTALL | re.MULTILINE)
"""What nanobind reports at the end of a fork: Triton, which PyTorch imports, is not freed."""
_starting = threading.Lock()


def start_python(
    arguments: Sequence[str], environment: Mapping[str, str] | None = None, **settings: Any
) -> subprocess.Popen[Any]:
    """A process that runs `python ARGUMENTS`: a fork, if a new process would be no different.

    It is a new process if the interpreter has options, or if the environment differs from the fork
    server's in a variable that an interpreter or PyTorch may read at its start. The errors of a
    fork end with a report of nanobind's, which `run_python` removes.

    Args:
        arguments: `-c CODE`, `-m MODULE` or a path, and the script's arguments.
        environment: all variables; by default, those of this process.
        settings: settings of `Popen`, of streams and their encoding only.
    """
    variables = dict(os.environ if environment is None else environment)
    with _starting:
        server = _server()
    has_options = arguments[0].startswith("-") and arguments[0] not in ("-c", "-m")
    if has_options or not server.may_fork(variables):
        return subprocess.Popen([sys.executable, *arguments], env=variables, **settings)
    return _Fork(server, list(arguments), variables, **settings)


def run_python(
    arguments: Sequence[str],
    environment: Mapping[str, str] | None = None,
    *,
    timeout_s: float | None = None,
) -> subprocess.CompletedProcess[str]:
    """As `start_python`; the text that the process wrote, and its status, once it ended.

    Raises:
        subprocess.TimeoutExpired: it did not end in time, and was killed.
    """
    pipe = subprocess.PIPE
    with start_python(arguments, environment, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            output, errors = process.communicate(timeout=timeout_s)
        except BaseException:
            process.kill()
            raise
    if isinstance(process, _Fork):
        errors = _LEAKS.sub("", errors)
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


class _Server:
    """The fork server of this process."""

    def __init__(self) -> None:
        self._environment = dict(os.environ)
        self._environment.pop("PYTHONHASHSEED", None)
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _SERVER, str(theirs.fileno())],
                cwd=_ROOT,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # an interrupt must not end it before its client
            )
        atexit.register(self._end, os.getpid())

    @property
    def pid(self) -> int:
        return self._process.pid

    def may_fork(self, environment: Mapping[str, str]) -> bool:
        """True if only variables differ that are read late."""
        differ = {name for name, _ in self._environment.items() ^ environment.items()}
        is_late = all(name.startswith(_READ_LATE) for name in differ)
        return is_late and differ.isdisjoint(_READ_EARLY)

    def fork(self, *descriptors: int) -> None:
        """Forks a child, which has these descriptors."""
        socket.send_fds(self._control, [b"f"], descriptors)

    def _end(self, owner: int) -> None:
        if os.getpid() == owner:
            self._control.close()
            self._process.wait()


@functools.cache
def _server() -> _Server:
    return _Server()


class _Fork(subprocess.Popen[Any]):
    """A child of the fork server, which reports its id and its status."""

    def __init__(
        self, server: _Server, arguments: list[str], environment: dict[str, str], **settings: Any
    ) -> None:
        self._server = server
        self._waiting = threading.Lock()
        self._reports, self._theirs = socket.socketpair()
        super().__init__([sys.executable, *arguments], env=environment, **settings)

    def _execute_child(self, args: list[str], *settings: Any) -> None:
        """Called by the constructor with its settings and the ends of its pipes."""
        environment, (p2cread, _, _, c2pwrite, _, errwrite) = settings[5], settings[9:15]
        streams = (p2cread, c2pwrite, errwrite)  # -1 stands for this process's own stream
        inherited = [number if end < 0 else end for number, end in enumerate(streams)]
        request = {
            "arguments": args[1:],
            "folder": str(Path.cwd()),
            "environment": environment,
        }
        with self._theirs:
            self._server.fork(self._theirs.fileno(), *inherited)
        self._reports.sendall(json.dumps(request).encode() + b"\n")
        self.pid = self._reported()
        self._close_pipe_fds(*settings[9:15])  # type: ignore[attr-defined] # as in `Popen`

    def _reported(self) -> int:
        """The next number that the server reports."""
        data = self._reports.recv(NUMBER_BYTES)
        if len(data) < NUMBER_BYTES:
            raise RuntimeError("the fork server has ended")
        return int.from_bytes(data, "little")

    def poll(self) -> int | None:
        """As `Popen.poll`."""
        if self._waiting.acquire(blocking=False):  # else another thread waits for the status
            try:
                self._receive_status(0)
            except BlockingIOError:
                pass
            finally:
                self._waiting.release()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """As `Popen.wait`; one thread at a time."""
        with self._waiting:
            try:
                return self._receive_status(timeout)
            except (BlockingIOError, TimeoutError):
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0) from None

    def _receive_status(self, timeout_s: float | None) -> int:
        if self.returncode is None:
            self._reports.settimeout(timeout_s)
            self.returncode = os.waitstatus_to_exitcode(self._reported())
            self._reports.close()
        return self.returncode
