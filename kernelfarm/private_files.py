"""Files and folders that nobody but this user can change, whatever the umask is.

A file is read by one descriptor: owner, mode and kind are checked on what is read, so that nothing
can be put in its place between the check and the use. The superuser may own what we read: it can
change everything of ours anyhow.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

from kernelfarm.errors import CallerError

FOLDER_MODE = 0o700
READABLE_FOLDER_MODE = 0o755
"""For what all may read, such as public keys."""
FILE_MODE = 0o600
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def make_private_folder(path: Path, mode: int = FOLDER_MODE) -> None:
    """Makes a folder and its missing parents, each of this mode, whatever the umask is.

    Folders that exist already are left as they are; see `keep_private`.

    Raises:
        OSError: it cannot be made.
    """
    try:
        path.mkdir(mode)
    except FileNotFoundError:
        if path.parent == path:
            raise
        make_private_folder(path.parent, mode)
        with suppress(FileExistsError):  # another process made it meanwhile
            path.mkdir(mode)
    except FileExistsError:
        if not path.is_dir():
            raise
        return
    path.chmod(mode)  # a umask may have taken from the mode what we need


def keep_private(path: Path) -> None:
    """Passes a folder into which only this user writes; takes the right from others if it is ours.

    Where the sticky bit is set others can neither rename nor remove what is ours: such a folder
    passes. So does one that does not exist, and for the superuser one that belongs to a user, as
    folders do that a container mounts.

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
            f"{path} belongs to user {found.st_uid}, expected {os.geteuid()}: who owns a folder can"
            " replace what lies in it; choose a folder of your own, or change its owner (chown)"
        )
    if not mode & _OTHERS_WRITE or mode & stat.S_ISVTX:
        return
    try:
        if found.st_uid != os.geteuid():
            raise PermissionError(f"it belongs to user {found.st_uid}")
        path.chmod(mode & ~_OTHERS_WRITE)
    except OSError as error:
        raise CallerError(
            f"other users may write into {path} (mode {mode:o}), and can replace what lies in it:"
            f" run chmod go-w {path}, or choose a folder within it that is yours"
        ) from error


def read_private(path: Path, max_bytes: int) -> bytes:
    """The content of a file that nobody but this user, or the superuser, can have written.

    Raises:
        FileNotFoundError: there is none.
        PermissionError: it is no plain file, is another user's, or others may write it.
        OSError: it is a link, is larger than `max_bytes`, or cannot be read.
    """
    # Opening a pipe or a device must not wait for whoever is at its other end.
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise PermissionError(f"{path} is no plain file")
        if not _is_trusted(found.st_uid) or found.st_mode & _OTHERS_WRITE:
            raise PermissionError(
                f"{path} may be another user's: owner {found.st_uid}, mode"
                f" {stat.S_IMODE(found.st_mode):o}"
            )
        content = file.read(max_bytes + 1) if found.st_size <= max_bytes else None
    if content is None or len(content) > max_bytes:
        raise OSError(f"{path} has {found.st_size} bytes; expected at most {max_bytes}")
    return content


def _is_trusted(uid: int) -> bool:
    return uid in (os.geteuid(), 0)
