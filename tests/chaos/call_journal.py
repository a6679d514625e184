"""The output of load processes: a line of JSON when a call begins, and one when it ends.

Times come from the monotonic clock, which all processes of a machine share, so that times of calls
and faults can be compared.
"""

from __future__ import annotations

import itertools
import json
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

RIGHT, WRONG, NO_NUMBERS = "right", "wrong", "none"


@dataclass
class Ending:
    """How a call ended; the caller sets the fields."""

    status: str = "UNFINISHED"
    verdict: str = NO_NUMBERS
    detail: str = ""


class Journal:
    """Writes the lines of one load process."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._lock = threading.Lock()

    @contextmanager
    def call(self, kind: str, limit_s: float) -> Iterator[Ending]:
        """Records a call, which must end within `limit_s`."""
        number, ending = next(self._numbers), Ending()
        self._write(event="begin", id=number, kind=kind, limit_s=limit_s, time_s=time.monotonic())
        try:
            yield ending
        finally:
            self._write(
                event="end",
                id=number,
                status=ending.status,
                verdict=ending.verdict,
                detail=ending.detail[:300],
                time_s=time.monotonic(),
            )

    def _write(self, **line: object) -> None:
        text = json.dumps(line)
        with self._lock:
            sys.stdout.write(text + "\n")
            sys.stdout.flush()


def judged(*, is_right: bool) -> str:
    """The verdict on a result."""
    return RIGHT if is_right else WRONG
