"""The worker's side of its zygote: starts it without credentials, gets children from it."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from typing import Final

from codegen_svc.sandbox.connection import SandboxProcess
from codegen_svc.sandbox.hello import ZygoteHello
from codegen_svc.sandbox.limits import SandboxLimits
from codegen_svc.sandbox.work_folder import WorkFolder
from kernelfarm.errors import ErrorFacts, UnavailableError, error_from_facts

# A toolchain's first import, if its files are not in the page cache.
_START_WITHIN_S: Final = 180.0
# The next child is forked already; a zygote that takes longer to pass it on is replaced.
_CHILD_WITHIN_S: Final = 10.0
_END_WITHIN_S: Final = 5.0
_HELLO_BYTES: Final = 1 << 16
_SECRET: Final = re.compile(
    r"KERNELFARM_|SECRET|TOKEN|PASSW|CREDENTIAL|_KEY|REDIS|BROKER|AWS_|_URL$", re.IGNORECASE
)
# The path of a vendor's tool is no secret, and its backend needs it.
_KEPT: Final = frozenset({"KERNELFARM_TRITON_ADAPTER_OPT"})


def scrubbed_environment() -> dict[str, str]:
    """The environment without settings of the farm and without possible secrets."""
    return {
        name: value
        for name, value in os.environ.items()
        if name in _KEPT or not _SECRET.search(name)
    }


class ZygoteProcess:
    """A running zygote that has sent its first message."""

    def __init__(self, vendor: str, limits: SandboxLimits) -> None:
        """Starts it and waits until its toolchain is warm.

        Raises:
            KernelfarmError: the toolchain is missing or does not work; the message says why.
            UnavailableError: the process cannot be started, ended early, or took too long.
        """
        # The worker removes it: a zygote may have mounted a file system over it, or be killed.
        self._folder = _own_folder()
        try:
            self._socket, there = socket.socketpair()
            with there:
                self._process = self._started(vendor, limits, there)
        except OSError as error:
            self._folder.remove()
            raise _unstarted(error) from error
        try:
            self.hello = self._hello(vendor)
        except BaseException:
            self.close()
            raise

    def child(self) -> SandboxProcess:
        """A confined child that waits for its job.

        Raises:
            OSError: the zygote is gone.
        """
        self._socket.settimeout(_CHILD_WITHIN_S)
        self._socket.sendall(b"n")
        word, descriptors, _, _ = socket.recv_fds(self._socket, 1, 3)
        if word != b"c" or len(descriptors) != 3:
            raise ConnectionResetError("the zygote sent no child")
        job, result, supervision = descriptors
        return SandboxProcess(job, result, socket.socket(fileno=supervision))

    def is_whole(self) -> bool:
        """True if its process runs and its folder still exists."""
        return self._process.poll() is None and self._folder.is_there()

    def close(self, timeout_s: float = _END_WITHIN_S) -> None:
        """Ends it and its children, by force after the timeout."""
        self._socket.close()
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._folder.remove()

    def _started(
        self, vendor: str, limits: SandboxLimits, there: socket.socket
    ) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "codegen_svc.sandbox.zygote", "--vendor", vendor]
        command += ["--socket", str(there.fileno()), "--limits", limits.to_json()]
        command += ["--folder", str(self._folder.path)]
        return subprocess.Popen(
            command,
            pass_fds=(there.fileno(),),
            stdin=subprocess.DEVNULL,
            env=scrubbed_environment(),
        )

    def _hello(self, vendor: str) -> ZygoteHello:
        self._socket.settimeout(_START_WITHIN_S)
        line = b""
        try:
            while not line.endswith(b"\n") and len(line) < _HELLO_BYTES:
                part = self._socket.recv(_HELLO_BYTES)
                if not part:
                    break
                line += part
        except TimeoutError:
            line = b""
        if not line.endswith(b"\n"):
            raise UnavailableError(f"the {vendor} toolchain's process ended before it was ready")
        hello = ZygoteHello.from_bytes(line)
        if hello.reason:
            status = UnavailableError.status if hello.reason == UnavailableError.reason else ""
            raise error_from_facts(ErrorFacts(status, hello.reason, hello.message, None))
        return hello


def _own_folder() -> WorkFolder:
    try:
        return WorkFolder()
    except OSError as error:
        raise _unstarted(error) from error


def _unstarted(error: OSError) -> UnavailableError:
    return UnavailableError(f"the toolchain's process cannot be started: {error}")
