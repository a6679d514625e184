"""Files that several processes share: written atomically, verified by digest.

    ROOT/blobs/HH/SHA256                                   blobs
    ROOT/programs/INCARNATION/NAMESPACE/KEY/VARIANT.json   entries, see `disk.tier`
    ROOT/traces/HH/DIGEST.trace                            traces, see `traces.cache`
    ROOT/farms/NAME.json, NAME.keys.json                   invalidations and keys of a farm

Readers take no lock: a file appears by a rename, and readers check its content. A blob is named by
its SHA-256, a trace by the digest of its Dynamo graph. All other files are sealed: they begin with
a SHA-256 over their name and content, so that a copy under another name is refused. A file that
another user may have written is not read. A killed process may leave a file `*.tmp`, which no
process reads and a sweep removes. Files are not flushed to disk: if a power failure damages one,
its digest shows it and the client fetches it again.
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
"""The farm accepts no larger message, and a trace is not larger than the message of its graph."""
_MAX_SEALED_BYTES = 16 << 20
_MAX_BLOB_BYTES = 1 << 30
_HEADER_LENGTH_BYTES = 8


def write_whole(path: Path, content: bytes) -> None:
    """Makes or replaces a file atomically.

    Raises:
        OSError: the folder cannot be written.
    """
    # `kernelfarm cache clear` may remove the folder between the two steps.
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
    """The content with its SHA-256 in front, for files that are not named by it."""
    return hashlib.sha256(content).digest() + content


def sealed_with_header(header: str, body: bytes) -> bytes:
    """A sealed header and body, for readers that check the header before they read the body."""
    text = header.encode()
    return sealed(len(text).to_bytes(_HEADER_LENGTH_BYTES, "little") + text + body)


def unsealed_with_header(stored: bytes) -> tuple[bytes, bytes]:
    """The header and the body of `sealed_with_header`.

    Raises:
        ValueError: they are damaged.
    """
    rest = unsealed(stored)
    length = int.from_bytes(rest[:_HEADER_LENGTH_BYTES], "little")
    content = rest[_HEADER_LENGTH_BYTES:]
    return content[:length], content[length:]


def unsealed(stored: bytes) -> bytes:
    """The content of a sealed file.

    Raises:
        ValueError: the content does not match its SHA-256.
    """
    digest, content = stored[:DIGEST_BYTES], stored[DIGEST_BYTES:]
    if hashlib.sha256(content).digest() != digest:
        raise ValueError(f"{len(stored)} bytes that do not match their SHA-256")
    return content


def write_sealed(path: Path, content: bytes) -> None:
    """Writes a small file atomically, with a SHA-256 over its name and its content.

    Raises:
        OSError: the folder cannot be written.
    """
    write_whole(path, _seal(path, content) + content)


def read_sealed(path: Path) -> bytes:
    """The content of a file that `write_sealed` wrote under this name.

    Raises:
        ValueError: the content or the name does not match the SHA-256.
        OSError: the file cannot be read, or another user may have written it.
    """
    stored = read_private(path, _MAX_SEALED_BYTES)
    content = stored[len(_seal(path, b"")) :]
    if stored != _seal(path, content) + content:
        raise ValueError(f"{path}: {len(stored)} bytes that do not match their SHA-256")
    return content


def _seal(path: Path, content: bytes) -> bytes:
    """The first line of a sealed file; as text, because people read these files."""
    name = path.name.encode()
    return hashlib.sha256(b"%d:%b%b" % (len(name), name, content)).hexdigest().encode() + b"\n"


class BlobFiles:
    """The blobs of a tier by SHA-256 (32 bytes)."""

    def __init__(self, root: Path) -> None:
        self.folder = root / "blobs"

    def path(self, sha256: bytes) -> Path:
        """The path of a blob."""
        name = sha256.hex()
        return self.folder / name[:2] / name

    def put(self, sha256: bytes, content: bytes) -> bool:
        """Stores a verified content; False if it is stored already.

        Raises:
            OSError: the folder cannot be written.
        """
        path = self.path(sha256)
        with suppress(ValueError, FileNotFoundError):  # `get` has removed a wrong content
            if self.get(sha256, len(content)) is not None:
                os.utime(path)  # a sweep removes old blobs that no entry names yet
                return False
        write_whole(path, content)
        return True

    def get(self, sha256: bytes, size_bytes: int | None = None) -> bytes | None:
        """A blob's content, of this size if it is known; None if it is not stored.

        Raises:
            ValueError: the content is wrong, or another user may have written it; it is removed.
        """
        path = self.path(sha256)
        try:
            content = read_private(path, _MAX_BLOB_BYTES if size_bytes is None else size_bytes)
        except FileNotFoundError:
            return None
        except OSError as error:
            remove(path)
            raise ValueError(f"{path} cannot be used: {error}") from error
        if hashlib.sha256(content).digest() != sha256:
            remove(path)
            raise ValueError(f"{path} had {len(content)} bytes with another digest")
        return content


def remove(path: Path) -> None:
    """Removes a file, or an empty folder of this name; ignores errors."""
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
