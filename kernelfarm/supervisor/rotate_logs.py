"""Rotates the logs of a farm's processes: each has a current file and one older file."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

_PERIOD_S = 5.0


async def rotate_logs(paths: Iterable[Path], max_bytes: int) -> None:
    """Checks the files periodically, until it is cancelled."""
    checked = tuple(paths)
    while True:
        for path in checked:
            await asyncio.to_thread(rotate, path, max_bytes)
        await asyncio.sleep(_PERIOD_S)


def rotate(path: Path, max_bytes: int) -> None:
    """Moves the content of a log to `NAME.log.1` if it is larger than `max_bytes`.

    The process keeps the file open for appending, so the content is copied and the file truncated.
    If the disk is full, the content is lost, and its space is free at once.
    """
    with suppress(OSError):
        if path.stat().st_size <= max_bytes:
            return
        with suppress(OSError):
            shutil.copyfile(path, path.with_suffix(".log.1"))
        os.truncate(path, 0)
