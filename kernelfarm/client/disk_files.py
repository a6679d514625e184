"""Files that several processes share: written whole or not at all, found by content.

    ROOT/blobs/HH/SHA256                                   contents
    ROOT/programs/INCARNATION/NAMESPACE/KEY/VARIANT.json   entries, see `disk_tier`
    ROOT/traces/HH/DIGEST.trace                         what was traced, see `warm_start`
    ROOT/farms/NAME.json, NAME.keys.json                   what is known of a farm

Readers take no lock: a file appears by a rename, and its content is checked against its name. What
a process that is killed leaves behind is a file `*.tmp` that nobody reads and that a sweep removes.
Nothing is forced to disk: what a loss of power takes is seen by its digest, and fetched again.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from contextlib import suppress
from pathlib import Path

TEMPORARY = ".tmp"
_DIGEST_BYTES = 32


def write_whole(path: Path, content: bytes) -> None:
    """Makes or replaces a file so that nobody ever sees a part of it.

    Raises:
        OSError: the folder cannot be written.
    """
    # Removed folders (a sweep, `kernelfarm cache clear`) may go between the two steps.
    for is_last in (False, True):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            _write_beside(path, content)
        except FileNotFoundError:
            if is_last:
                raise
        else:
            return


def sealed(content: bytes) -> bytes:
    """A file's content behind its SHA-256, for files that are not named by it."""
    return hashlib.sha256(content).digest() + content


def unsealed(stored: bytes) -> bytes:
    """The content of a sealed file.

    Raises:
        ValueError: it is not what was sealed.
    """
    digest, content = stored[:_DIGEST_BYTES], stored[_DIGEST_BYTES:]
    if hashlib.sha256(content).digest() != digest:
        raise ValueError(f"{len(stored)} bytes that are not what was written")
    return content


class BlobFiles:
    """Contents by SHA-256 (32 bytes)."""

    def __init__(self, root: Path) -> None:
        self.folder = root / "blobs"

    def path(self, sha256: bytes) -> Path:
        """Where a content lies."""
        name = sha256.hex()
        return self.folder / name[:2] / name

    def put(self, sha256: bytes, content: bytes) -> bool:
        """Stores a content that was checked; False if it is there already.

        Raises:
            OSError: the folder cannot be written.
        """
        path = self.path(sha256)
        try:
            os.utime(path)  # so that no sweep takes it for an old one that nobody names
        except FileNotFoundError:
            pass
        else:
            return False
        write_whole(path, content)
        return True

    def get(self, sha256: bytes) -> bytes | None:
        """A content; None if it is not there.

        Raises:
            ValueError: what lay there is another content; it is removed.
        """
        path = self.path(sha256)
        try:
            content = path.read_bytes()
        except OSError:
            return None
        if hashlib.sha256(content).digest() != sha256:
            remove(path)
            raise ValueError(f"{path} held {len(content)} bytes of another digest")
        return content


def remove(path: Path) -> None:
    """Removes a file; one that is gone, or may not be removed, is left alone."""
    with suppress(OSError):
        path.unlink()


def _write_beside(path: Path, content: bytes) -> None:
    descriptor, name = tempfile.mkstemp(suffix=TEMPORARY, dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        os.replace(name, path)
    except BaseException:
        remove(Path(name))
        raise
