"""`python -m codegen_svc.sandbox.probe`: prints the confinement level that this host offers."""

from __future__ import annotations

import subprocess
import sys
from typing import Final

from codegen_svc.sandbox.level import ConfinementLevel, parse_level
from codegen_svc.sandbox.restrictions import reached_level
from kernelfarm.errors import UnavailableError

_WITHIN_S: Final = 60.0


def probed_level() -> ConfinementLevel:
    """The confinement level that this host offers, tried in a process of its own.

    Raises:
        UnavailableError: the process fails.
    """
    command = [sys.executable, "-m", "codegen_svc.sandbox.probe"]
    try:
        shown = subprocess.run(
            command, capture_output=True, text=True, timeout=_WITHIN_S, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise UnavailableError(f"the sandbox cannot be tried: {error}") from error
    return parse_level(shown.stdout.strip())


if __name__ == "__main__":
    sys.stdout.write(f"{reached_level()}\n")
