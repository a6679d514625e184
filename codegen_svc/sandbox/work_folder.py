"""The folder that a worker's compilations write to, and the removal of folders left behind.

A worker holds a lock on its folder. The lock ends with the worker, however it ends, so a folder
whose lock is free belongs to no running worker.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

_PREFIX: Final = "kernelfarm-compilations-"
_ATTEMPTS: Final = 16


class WorkFolder:
    """A new folder that only this user can read."""

    def __init__(self) -> None:
        """Creates it, and removes the folders of ended workers.

        Raises:
            OSError: it cannot be created.
        """
        remove_leftovers()
        for _ in range(_ATTEMPTS):
            self.path = Path(tempfile.mkdtemp(prefix=_PREFIX))
            self._lock = _locked(self.path)
            if self._lock >= 0 and self.is_there():
                return
            self.remove()  # another worker removed it before it was locked
        raise FileExistsError(f"other workers remove {_PREFIX}* as soon as it is created")

    def is_there(self) -> bool:
        """True if the path still leads to the folder that was created."""
        return _is_at(self._lock, self.path)

    def remove(self) -> None:
        """Removes it and its content; may be called twice."""
        if self._lock >= 0:
            if self.is_there():
                shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock)
            self._lock = -1


def remove_leftovers() -> None:
    """Removes this user's folders whose workers have ended."""
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        lock = _locked(path)
        if lock >= 0:
            if _is_at(lock, path):
                shutil.rmtree(path, ignore_errors=True)
            os.close(lock)


def _locked(path: Path) -> int:
    """A descriptor that holds the lock of a folder of this user; -1 if it is not free."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags)
    except OSError:
        return -1
    with contextlib.suppress(OSError):
        if os.fstat(descriptor).st_uid == os.geteuid():
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
    os.close(descriptor)
    return -1


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except OSError:
        return False
