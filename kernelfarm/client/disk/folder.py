"""Where the disk tier lies: a folder into which nobody but this user writes, or none at all."""

from __future__ import annotations

import os
import stat
import warnings
from contextlib import suppress
from pathlib import Path

from kernelfarm.client.settings import ClientSettings
from kernelfarm.errors import CallerError
from kernelfarm.private_files import FOLDER_MODE, keep_private

SUBFOLDERS = ("blobs", "programs", "traces", "farms")


class DiskTierWarning(UserWarning):
    """The disk tier is not used: other users could change what lies in it."""


def tier_folder(settings: ClientSettings) -> Path | None:
    """The disk tier's folder; None if it is turned off, or refused, which a warning tells."""
    try:
        return checked_tier_folder(settings)
    except CallerError as error:
        warnings.warn(
            f"kernelfarm: nothing is kept on disk: {error} (KERNELFARM_DISK_CACHE_DIR)",
            DiskTierWarning,
            stacklevel=2,
        )
        return None


def checked_tier_folder(settings: ClientSettings) -> Path | None:
    """The disk tier's folder; None if it is turned off.

    Rights of others to write are taken away where the folder is ours; the folders in it are for
    this user alone.

    Raises:
        CallerError: another user owns it, or others may write into it and it is not ours.
    """
    if not settings.disk_cache_bytes:
        return None
    root = settings.disk_cache_dir.expanduser()
    keep_private(root)
    for part in SUBFOLDERS:
        keep_private(root / part)
        with suppress(OSError):  # not there, or not ours
            found = (root / part).stat()
            if found.st_uid == os.geteuid() and stat.S_IMODE(found.st_mode) != FOLDER_MODE:
                (root / part).chmod(FOLDER_MODE)
    return root
