"""Scheduling priority of processes that compile, beside services that answer."""

from __future__ import annotations

import os

_NICENESS = 10
"""Where a busy process is 10 steps nicer, Linux gives its processor at once to one that wakes up,
as a service does for each call; below that the service may wait for some milliseconds."""


def yield_to_services() -> None:
    """Lowers the priority of the calling process, for good, and that of processes it starts."""
    os.nice(_NICENESS)
