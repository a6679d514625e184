"""A vendor outside of the tree: its "binary" is the kernel's text.

The first word of a kernel's name decides how its compilation ends, so that tests can provoke every
end. If `$ECHO_GATES/ending` exists, its content is that word for all kernels.

A gated kernel writes its worker's process id to `$ECHO_GATES/<name>.pid` and continues when
`$ECHO_GATES/<name>.go` exists. A differing kernel has another binary each time. Each compilation
appends a line to `$ECHO_GATES/<name>.log`. A nosy kernel tries each access that
`$ECHO_GATES/wishes.json` lists, and reports the results in its notes.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from codegen_svc.backends.contract import ToolNeeds, ToolStatus
from kernelfarm.errors import KernelRejectedError, UnavailableError
from kernelfarm.ir.artifact import (
    BuiltKernel,
    GuardAtom,
    GuardOp,
    GuardSubject,
    LaunchFacts,
    StageText,
)
from kernelfarm.ir.loop_ir import Kernel
from kernelfarm.targets import TargetFacts

ENDINGS = {
    "rejected": KernelRejectedError("this chip has no such instruction"),
    "buggy": ZeroDivisionError("division by zero"),
    "toolless": UnavailableError("the tool is away"),
}


# This module is loaded by the worker's child before it is confined.
WORKER_PID = os.getppid()


class EchoBackend:
    """Compiles kernels to their own text."""

    vendor = "echo"

    def __init__(self) -> None:
        self._kernels = 0

    def tools(self) -> tuple[ToolStatus, ...]:
        return (ToolStatus("ear", "1.0", is_found=True, is_required=True),)

    def needs(self) -> ToolNeeds:
        gates = os.environ.get("ECHO_GATES")
        stays = os.environ.get("ECHO_STAYS", "")
        return ToolNeeds(
            writable=(Path(gates),) if gates else (),
            starts_programs=stays != "ahead",
            takes_many_jobs=bool(stays),
        )

    def fingerprint(self) -> str:
        return hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:16]

    def makes_runnable_binaries(self) -> bool:
        return False

    def build(self, kernel: Kernel, target: TargetFacts) -> tuple[BuiltKernel, ...]:
        self._kernels += kernel.name != "warm_up"
        gates = Path(os.environ["ECHO_GATES"])
        with (gates / f"{kernel.name}.log").open("a") as log:
            log.write("compiled\n")
        ending = gates / "ending"
        kind = ending.read_text() if ending.exists() else kernel.name.partition("_")[0]
        if kind in ENDINGS:
            raise ENDINGS[kind]
        if kind in ATTACKS:
            ATTACKS[kind]()
        if kind == "gated":
            _wait_for_release(gates, kernel.name)
        notes = _pry(gates) if kind == "nosy" else ()
        if kind == "counted":
            notes = (f"kernel {self._kernels} of its process", *os.listdir(tempfile.gettempdir()))
            Path(tempfile.gettempdir(), "left").touch()
        text = repr(kernel).encode()
        if kind == "differing":
            text += os.urandom(8)
        general = BuiltKernel(
            binary_stage="echo",
            stages=(StageText("source", text, True), StageText("echo", text[::-1], False)),
            launch=LaunchFacts(symbol=kernel.name),
            notes=notes,
        )
        aligned = GuardAtom(GuardSubject.PARAM_ADDRESS, 0, GuardOp.DIVISIBLE, 64)
        special = BuiltKernel("echo", general.stages, general.launch, guard=(aligned,))
        return special, general


def _wait_for_release(gates: Path, name: str) -> None:
    (gates / f"{name}.pid.new").write_text(str(WORKER_PID))
    (gates / f"{name}.pid.new").rename(gates / f"{name}.pid")
    while not (gates / f"{name}.go").exists():
        time.sleep(0.01)


def _crash() -> None:
    ctypes.string_at(0)


def _abort() -> None:
    os.abort()


def _hog() -> None:
    held = []
    while True:
        held.append(bytearray(64 << 20))


def _share_out() -> None:
    """Allocates in many processes what one process may not allocate alone."""
    for _ in range(16):
        if os.fork() == 0:
            held = bytearray(256 << 20)
            signal.pause()
            del held
    signal.pause()


def _spin() -> None:
    while True:
        pass


def _work() -> None:
    ends_s = time.process_time() + 0.15
    while time.process_time() < ends_s:
        pass


def _leave_child() -> None:
    if os.fork() == 0:
        if os.fork() == 0:
            signal.pause()
        os._exit(0)
    os.wait()


def _bomb() -> None:
    while True:
        os.fork()


def _fill() -> None:
    for number in range(1000):
        with open(Path(tempfile.gettempdir(), str(number)), "wb") as file:
            file.write(bytes(64 << 20))


def _open_all() -> None:
    kept = [os.open("/dev/null", os.O_RDONLY) for _ in range(100_000)]
    os.closerange(min(kept), max(kept))


def _lose_home() -> None:
    shutil.rmtree(os.environ["TMPDIR"])
    tempfile.mkdtemp()


def _leave() -> None:
    os._exit(3)


ATTACKS: dict[str, Callable[[], None]] = {
    "crash": _crash,
    "abort": _abort,
    "hog": _hog,
    "sharing": _share_out,
    "spin": _spin,
    "works": _work,
    "littering": _leave_child,
    "homeless": _lose_home,
    "bomb": _bomb,
    "fill": _fill,
    "opens": _open_all,
    "leave": _leave,
}


def _pry(gates: Path) -> tuple[str, ...]:
    wishes = json.loads((gates / "wishes.json").read_text())
    trials: dict[str, Callable[[], object]] = {
        "scratch": lambda: Path(tempfile.gettempdir(), "mine").write_text("mine"),
        "kill the worker": lambda: os.kill(WORKER_PID, signal.SIGKILL),
        "kill the zygote": lambda: os.kill(os.getppid(), signal.SIGKILL),
        "new session": os.setsid,
    }
    for path in wishes["read"]:
        trials[f"read {path}"] = lambda p=path: Path(p).read_bytes()
    for path in wishes["write"]:
        trials[f"write {path}"] = lambda p=path: Path(p).write_bytes(b"mine")
    for path in wishes["unix"]:
        trials[f"connect {path}"] = lambda p=path: socket.socket(socket.AF_UNIX).connect(p)
    for port in wishes["tcp"]:
        trials[f"connect {port}"] = lambda p=port: socket.create_connection(("127.0.0.1", p), 5)
    for number in wishes["calls"]:
        trials[f"call {number}"] = lambda n=number: _system_call(n)
    secrets = [value for value in wishes["secrets"] if value in os.environ.values()]
    return (*(f"{name}: {_tried(trial)}" for name, trial in trials.items()), f"secrets: {secrets}")


def _system_call(number: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(number, 0, 0, 0, 0, 0) < 0:
        raise OSError(ctypes.get_errno(), "system call")


def _tried(trial: Callable[[], object]) -> str:
    try:
        trial()
    except OSError as error:
        return f"refused {type(error).__name__} {error.errno}"
    return "granted"


BACKEND = EchoBackend()
