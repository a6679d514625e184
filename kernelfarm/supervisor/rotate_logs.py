"""Keeps the logs of a farm's children small: each has its last part, and the part before."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

_PERIOD_S = 5.0


async def rotate_logs(paths: Iterable[Path], max_bytes: int) -> None:
    """Looks at the files now and then until it is cancelled."""
    checked = tuple(paths)
    while True:
        for path in checked:
            await asyncio.to_thread(rotate, path, max_bytes)
        await asyncio.sleep(_PERIOD_S)


def rotate(path: Path, max_bytes: int) -> None:
    """Moves what a log holds to `NAME.log.1` once it is too large.

    Its process goes on to write to the same open file, by appending: so the content is copied and
    the file cut. If the disk is full there is no copy, and the space is free at once.
    """
    with suppress(OSError):
        if path.stat().st_size <= max_bytes:
            return
        with suppress(OSError):
            shutil.copyfile(path, path.with_suffix(".log.1"))
        os.truncate(path, 0)
