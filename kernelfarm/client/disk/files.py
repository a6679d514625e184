"""Files that several processes share: written whole or not at all, found by content.

    ROOT/blobs/HH/SHA256                                   contents
    ROOT/programs/INCARNATION/NAMESPACE/KEY/VARIANT.json   entries, see `disk.tier`
    ROOT/traces/HH/DIGEST.trace                         what was traced, see `warm_start`
    ROOT/farms/NAME.json, NAME.keys.json                   what is known of a farm

Readers take no lock: a file appears by a rename, and its content is checked against its name.
Blobs are named by their SHA-256, traces by the digest of what they answer; the rest is sealed: its
SHA-256 is over its name too, so that a copy under another name is refused. What another user may
have written is not read. What a process that is killed leaves behind is a file `*.tmp` that nobody
reads and that a sweep removes. Nothing is forced to disk: what a loss of power takes is seen by its
digest, and fetched again.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from contextlib import suppress
from pathlib import Path

from kernelfarm.digest import DIGEST_BYTES
from kernelfarm.private_files import make_private_folder, read_private

TEMPORARY = ".tmp"
MAX_TRACE_BYTES = 64 << 20
"""The farm takes no larger message, and a trace holds no more than its graph."""
_MAX_SEALED_BYTES = 16 << 20
_MAX_BLOB_BYTES = 1 << 30


def write_whole(path: Path, content: bytes) -> None:
    """Makes or replaces a file so that nobody ever sees a part of it.

    Raises:
        OSError: the folder cannot be written.
    """
    # Removed folders (a sweep, `kernelfarm cache clear`) may go between the two steps.
    for is_last in (False, True):
        make_private_folder(path.parent)
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
    digest, content = stored[:DIGEST_BYTES], stored[DIGEST_BYTES:]
    if hashlib.sha256(content).digest() != digest:
        raise ValueError(f"{len(stored)} bytes that are not what was written")
    return content


def write_sealed(path: Path, content: bytes) -> None:
    """Writes a small file whole, with a SHA-256 over its name and its content.

    Raises:
        OSError: the folder cannot be written.
    """
    write_whole(path, _seal(path, content) + content)


def read_sealed(path: Path) -> bytes:
    """The content of a file that `write_sealed` wrote under this name.

    Raises:
        ValueError: it is not what was written there.
        OSError: it cannot be read, or may be another user's.
    """
    stored = read_private(path, _MAX_SEALED_BYTES)
    content = stored[len(_seal(path, b"")) :]
    if stored != _seal(path, content) + content:
        raise ValueError(f"{path}: {len(stored)} bytes that are not what was written there")
    return content


def _seal(path: Path, content: bytes) -> bytes:
    """A line of text: such files are looked at by people."""
    name = path.name.encode()
    return hashlib.sha256(b"%d:%b%b" % (len(name), name, content)).hexdigest().encode() + b"\n"


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
        with suppress(ValueError, FileNotFoundError):  # another content lay there; it is gone now
            if self.get(sha256, len(content)) is not None:
                os.utime(path)  # so that no sweep takes it for an old one that nobody names
                return False
        write_whole(path, content)
        return True

    def get(self, sha256: bytes, size_bytes: int | None = None) -> bytes | None:
        """A content, of this size where it is known; None if it is not there.

        Raises:
            ValueError: what lay there is another content, or may be another user's; it is removed.
        """
        path = self.path(sha256)
        try:
            content = read_private(path, _MAX_BLOB_BYTES if size_bytes is None else size_bytes)
        except FileNotFoundError:
            return None
        except OSError as error:
            remove(path)
            raise ValueError(f"{path} is not to be read: {error}") from error
        if hashlib.sha256(content).digest() != sha256:
            remove(path)
            raise ValueError(f"{path} held {len(content)} bytes of another digest")
        return content


def remove(path: Path) -> None:
    """Removes a file, or an empty folder in its place; what may not be removed is left alone."""
    with suppress(OSError):
        path.unlink()
    with suppress(OSError):
        path.rmdir()


def _write_beside(path: Path, content: bytes) -> None:
    descriptor, name = tempfile.mkstemp(suffix=TEMPORARY, dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        os.replace(name, path)
    except BaseException:
        remove(Path(name))
        raise
