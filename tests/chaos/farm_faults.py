"""What operators do, and the end of the whole farm."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

from tests.chaos.fault import Fault, Scene

_COMMAND_S = 30


def farm_faults() -> Iterator[Fault]:
    """Restarts, invalidations, sweeps."""
    yield Fault("SIGTERM to the farm, started again", _restart)
    yield Fault("kill the supervisor, started again", _kill_supervisor)
    yield Fault("invalidate in the middle", _invalidate)
    yield Fault("sweep in the middle", _sweep)


def _restart(scene: Scene) -> None:
    scene.keep_workers_busy()
    code = scene.ground.stop()
    if code:
        scene.notes.append(f"the farm ended with {code}")
    scene.ground.start()


def _kill_supervisor(scene: Scene) -> None:
    """Its children end by themselves: they are told when their parent dies."""
    left = [process for process in scene.ground.family() if process.is_running()][1:]
    process = scene.ground.process
    assert process is not None
    process.kill()
    process.wait()
    for child in left:
        child.wait(_COMMAND_S)
    scene.ground.start()


def _invalidate(scene: Scene) -> None:
    _command(scene, "invalidate", "op:aten.mul.Tensor")


def _sweep(scene: Scene) -> None:
    _command(scene, "sweep")


def _command(scene: Scene, *arguments: str) -> None:
    ended = subprocess.run(
        [*scene.ground.client_prefix(), sys.executable, "-m", "kernelfarm.cli", *arguments],
        env=scene.ground.client_environment(),
        capture_output=True,
        text=True,
        timeout=_COMMAND_S,
        check=False,
    )
    if ended.returncode:
        scene.notes.append(f"kernelfarm {arguments[0]}: {ended.stderr.strip()[-200:]}")
