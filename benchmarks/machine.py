"""The machine and versions of a measurement."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from pathlib import Path


def machine() -> str:
    """The machine and versions of the measurement."""
    models = [
        line for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line
    ]
    return (
        f"{os.cpu_count()} cores of {models[0].partition(':')[2].strip()},"
        f" Python {platform.python_version()}, grpcio {version('grpcio')},"
        f" load average {os.getloadavg()[0]:.1f} before the benchmark"
    )
