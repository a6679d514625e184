"""A vendor outside of the tree: its "binary" is the kernel's text.

What a kernel's name begins with decides how its compilation goes, so that the farm's tests can look
at every ending. Gated kernels tell their process id in `$ECHO_GATES/<name>.pid` and go on when
`$ECHO_GATES/<name>.go` exists; each compilation appends a line to `$ECHO_GATES/<name>.log`.
"""

from __future__ import annotations

import hashlib
import os
import signal
import time
from pathlib import Path

from codegen_svc.backends.contract import ToolStatus
from kernelfarm.errors import KernelRejectedError
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
    "hungry": MemoryError("no more memory"),
}


class EchoBackend:
    """Listens to kernels and repeats them."""

    vendor = "echo"

    def tools(self) -> tuple[ToolStatus, ...]:
        return (ToolStatus("ear", "1.0", is_found=True, is_required=True),)

    def fingerprint(self) -> str:
        return hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:16]

    def makes_runnable_binaries(self) -> bool:
        return False

    def build(self, kernel: Kernel, target: TargetFacts) -> tuple[BuiltKernel, ...]:
        gates = Path(os.environ["ECHO_GATES"])
        with (gates / f"{kernel.name}.log").open("a") as log:
            log.write("compiled\n")
        kind = kernel.name.partition("_")[0]
        if kind in ENDINGS:
            raise ENDINGS[kind]
        if kind == "deadly":
            os.kill(os.getpid(), signal.SIGKILL)
        if kind == "gated":
            _pass_gate(gates, kernel.name)
        text = repr(kernel).encode()
        general = BuiltKernel(
            binary_stage="echo",
            stages=(StageText("source", text, True), StageText("echo", text[::-1], False)),
            launch=LaunchFacts(symbol=kernel.name),
        )
        aligned = GuardAtom(GuardSubject.PARAM_ADDRESS, 0, GuardOp.DIVISIBLE, 64)
        special = BuiltKernel("echo", general.stages, general.launch, guard=(aligned,))
        return special, general


def _pass_gate(gates: Path, name: str) -> None:
    (gates / f"{name}.pid.new").write_text(str(os.getpid()))
    (gates / f"{name}.pid.new").rename(gates / f"{name}.pid")
    while not (gates / f"{name}.go").exists():
        time.sleep(0.01)


BACKEND = EchoBackend()
