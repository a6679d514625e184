"""The folder of the disk tier: only this user may write into it, else there is no tier."""

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
    """The disk tier is off because other users could change its files."""


def tier_folder(settings: ClientSettings) -> Path | None:
    """The disk tier's folder; None if the tier is off, or refused with a warning."""
    try:
        return checked_tier_folder(settings)
    except CallerError as error:
        warnings.warn(
            f"kernelfarm: the disk tier is off: {error} (KERNELFARM_DISK_CACHE_DIR)",
            DiskTierWarning,
            stacklevel=2,
        )
        return None


def checked_tier_folder(settings: ClientSettings) -> Path | None:
    """The disk tier's folder; None if the tier is off.

    On folders of this user, the call revokes the write permissions of others, and all permissions
    of others on the subfolders.

    Raises:
        CallerError: another user owns the folder, or others may write into a folder of another
            user.
    """
    if not settings.disk_cache_bytes:
        return None
    root = settings.disk_cache_dir.expanduser()
    keep_private(root)
    for part in SUBFOLDERS:
        keep_private(root / part)
        with suppress(OSError):  # it does not exist, or is another user's
            found = (root / part).stat()
            if found.st_uid == os.geteuid() and stat.S_IMODE(found.st_mode) != FOLDER_MODE:
                (root / part).chmod(FOLDER_MODE)
    return root
