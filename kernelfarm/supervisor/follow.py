"""Copies growing log files to a stream, each line after the name of its process."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import TextIO

_PERIOD_S = 0.2


async def follow_logs(logs: Iterable[tuple[str, Path]], out: TextIO) -> None:
    """Copies new lines until it is cancelled; `logs` are names and paths."""
    positions = {path: (name, 0) for name, path in logs}
    while True:
        for path, (name, offset) in positions.items():
            positions[path] = (name, _copy_new_lines(path, name, offset, out))
        await asyncio.sleep(_PERIOD_S)


def _copy_new_lines(path: Path, name: str, offset: int, out: TextIO) -> int:
    if not path.exists():
        return offset
    if path.stat().st_size < offset:  # it was rotated
        offset = 0
    with path.open("rb") as file:
        file.seek(offset)
        whole = file.read().rpartition(b"\n")[0]
    if not whole:
        return offset
    for line in whole.decode("utf-8", "replace").splitlines():
        out.write(f"{name:<16} {line}\n")
    out.flush()
    return offset + len(whole) + 1
