"""Operations of an administrator, and the end of the whole farm."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

from tests.chaos.fault import Fault, FaultContext

_COMMAND_S = 30


def farm_faults() -> Iterator[Fault]:
    """Restarts, invalidations and sweeps."""
    yield Fault("SIGTERM to the farm, started again", _restart)
    yield Fault("kill the supervisor, started again", _kill_supervisor)
    yield Fault("invalidate in the middle", _invalidate)
    yield Fault("sweep in the middle", _sweep)


def _restart(context: FaultContext) -> None:
    context.keep_workers_busy()
    code = context.farm.stop()
    if code:
        context.notes.append(f"the farm ended with {code}")
    context.farm.start()


def _kill_supervisor(context: FaultContext) -> None:
    """The children end by themselves: the kernel signals them when their parent dies."""
    left = [process for process in context.farm.processes() if process.is_running()][1:]
    process = context.farm.process
    assert process is not None
    process.kill()
    process.wait()
    for child in left:
        child.wait(_COMMAND_S)
    context.farm.start()


def _invalidate(context: FaultContext) -> None:
    _command(context, "invalidate", "op:aten.mul.Tensor")


def _sweep(context: FaultContext) -> None:
    _command(context, "sweep")


def _command(context: FaultContext, *arguments: str) -> None:
    ended = subprocess.run(
        [*context.farm.client_prefix(), sys.executable, "-m", "kernelfarm.cli", *arguments],
        env=context.farm.client_environment(),
        capture_output=True,
        text=True,
        timeout=_COMMAND_S,
        check=False,
    )
    if ended.returncode:
        context.notes.append(f"kernelfarm {arguments[0]}: {ended.stderr.strip()[-200:]}")
