"""Children for tests of the supervisor."""

from __future__ import annotations

import sys
from pathlib import Path

from kernelfarm.processes.child import ChildSpec
from tests.support.farm import TIMEOUT_S

# Reports that it serves by a file, and its end by a line of another one.
PROGRAM = """
import pathlib, signal, sys, time
name, folder = sys.argv[1], pathlib.Path(sys.argv[2])
def end(*_):
    with (folder / "ends").open("a") as ends:
        ends.write(name + "\\n")
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
(folder / name).touch()
while True:
    signal.pause()
"""


def spec(name: str, folder: Path, program: str = PROGRAM) -> ChildSpec:
    async def probe() -> bool:
        return (folder / name).exists()

    argv = (sys.executable, "-c", program, name, str(folder))
    return ChildSpec(name, argv, (), probe, drain_s=TIMEOUT_S)
