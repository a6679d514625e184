"""Files and folders that only this user can change, whatever the umask is.

A file is opened once; its owner, mode and kind are checked on that descriptor, so that no other
file can replace it between check and use. Files of the superuser are accepted: the superuser can
change all files anyway.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

from kernelfarm.errors import CallerError

FOLDER_MODE = 0o700
READABLE_FOLDER_MODE = 0o755
"""For folders whose content all users may read, such as public keys."""
FILE_MODE = 0o600
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def make_private_folder(path: Path, mode: int = FOLDER_MODE) -> None:
    """Makes a folder and its missing parents, each with this mode, whatever the umask is.

    Existing folders are not changed; see `keep_private`.

    Raises:
        OSError: the folder cannot be made.
    """
    try:
        path.mkdir(mode)
    except FileNotFoundError:
        if path.parent == path:
            raise
        make_private_folder(path.parent, mode)
        with suppress(FileExistsError):  # another process has just made it
            path.mkdir(mode)
    except FileExistsError:
        if not path.is_dir():
            raise
        return
    path.chmod(mode)  # the umask may have removed bits of the mode


def keep_private(path: Path) -> None:
    """Checks that only this user can write into a folder; revokes others' rights on own folders.

    Three kinds of folder pass as they are: one with the sticky bit, because others can neither
    rename nor remove this user's files in it; one that does not exist; and, for the superuser, one
    of another user, because containers mount such folders.

    Raises:
        CallerError: another user owns it, or others may write into it; the message says what to do.
    """
    try:
        found = path.stat()
    except OSError:
        return
    mode = stat.S_IMODE(found.st_mode)
    if os.geteuid() != 0 and not _is_trusted(found.st_uid):
        raise CallerError(
            f"{path} belongs to user {found.st_uid}, expected {os.geteuid()}: the owner of a folder"
            " can replace its files; choose a folder of your own, or change its owner (chown)"
        )
    if not mode & _OTHERS_WRITE or mode & stat.S_ISVTX:
        return
    try:
        if found.st_uid != os.geteuid():
            raise PermissionError(f"it belongs to user {found.st_uid}")
        path.chmod(mode & ~_OTHERS_WRITE)
    except OSError as error:
        raise CallerError(
            f"other users may write into {path} (mode {mode:o}) and can replace its files:"
            f" run chmod go-w {path}, or choose a folder inside it that you own"
        ) from error


def read_private(path: Path, max_bytes: int) -> bytes:
    """The content of a file that only this user or the superuser can have written.

    Raises:
        FileNotFoundError: there is no such file.
        PermissionError: it is not a regular file, belongs to another user, or others may write it.
        OSError: it is a link, is larger than `max_bytes`, or cannot be read.
    """
    # O_NONBLOCK: opening a pipe or a device must not wait for its other end.
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise PermissionError(f"{path} is not a regular file")
        if not _is_trusted(found.st_uid) or found.st_mode & _OTHERS_WRITE:
            raise PermissionError(
                f"another user may have written {path}: owner {found.st_uid}, mode"
                f" {stat.S_IMODE(found.st_mode):o}"
            )
        content = file.read(max_bytes + 1) if found.st_size <= max_bytes else None
    if content is None or len(content) > max_bytes:
        raise OSError(f"{path} has {found.st_size} bytes; expected at most {max_bytes}")
    return content


def _is_trusted(uid: int) -> bool:
    return uid in (os.geteuid(), 0)
