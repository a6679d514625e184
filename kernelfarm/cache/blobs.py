"""How blobs lie in Redis: compressed, small ones whole, large ones in chunks under own keys.

    key       = FORM (8 bytes: content's length) DATA         for whole ones
              | FORM COUNT " " LENGTH                         for chunked ones, both decimal
    key:N     = chunk number N of the data
    FORM      = 0 whole, 1 chunked, 2 whole and zstd, 3 chunked and zstd

A chunk keeps every single command short: one blob of 50 MB would stop the server for everybody.
Readers know a blob's length before they decompress it, so that nothing grows beyond it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

from kernelfarm.errors import PoisonedBlobError

CHUNK_BYTES = 512 * 1024
MAX_BLOB_BYTES = 1 << 30
"""No blob is larger; whatever claims to be is not decompressed."""

_CHUNKED = 1
_ZSTD = 2
_FORMS = 4
_LENGTH_BYTES = 8
_ZSTD_LEVEL = 3
# Frames and dictionaries cost more than they save below this.
_SMALLEST_TO_COMPRESS = 128


def stored_parts(key: str, content: bytes) -> Iterator[tuple[str, bytes]]:
    """Keys and values to store for a blob; the one under `key` itself comes last.

    Readers look at `key` first, so that a blob that is half written does not exist yet.
    """
    form, data = _compressed(content)
    if len(data) <= CHUNK_BYTES:
        yield key, bytes([form]) + len(content).to_bytes(_LENGTH_BYTES) + data
        return
    starts = range(0, len(data), CHUNK_BYTES)
    for number, start in enumerate(starts):
        yield f"{key}:{number}", data[start : start + CHUNK_BYTES]
    yield key, bytes([form | _CHUNKED]) + f"{len(starts)} {len(content)}".encode()


def chunk_keys(key: str, head: bytes) -> list[str]:
    """Keys of the chunks that a stored head names; empty if the blob is whole.

    Raises:
        PoisonedBlobError: the head is of no form that we write.
    """
    if not _form(head) & _CHUNKED:
        return []
    return [f"{key}:{number}" for number in range(_counts(head)[0])]


def joined(sha256: bytes, head: bytes, chunks: Sequence[bytes | None]) -> bytes | None:
    """A blob's content from its stored parts, or None if a chunk was evicted.

    Raises:
        PoisonedBlobError: what is stored is not the content of this digest.
    """
    form = _form(head)
    if form & _CHUNKED:
        present = [chunk for chunk in chunks if chunk is not None]
        if len(present) < len(chunks):
            return None
        length, data = _counts(head)[1], b"".join(present)
    else:
        length = int.from_bytes(head[1 : 1 + _LENGTH_BYTES])
        data = head[1 + _LENGTH_BYTES :]
    content = _decompressed(data, length) if form & _ZSTD else data
    if len(content) != length or hashlib.sha256(content).digest() != sha256:
        raise PoisonedBlobError(f"what is stored as blob {sha256.hex()} is something else")
    return content


def _compressed(content: bytes) -> tuple[int, bytes]:
    """Form and data; what does not shrink stays as it is."""
    if len(content) < _SMALLEST_TO_COMPRESS:
        return 0, content
    import zstandard  # noqa: PLC0415 -- a client that imports a neighbour does not need it

    data = zstandard.ZstdCompressor(level=_ZSTD_LEVEL, write_content_size=True).compress(content)
    return (_ZSTD, data) if len(data) < len(content) else (0, content)


def _decompressed(data: bytes, length: int) -> bytes:
    import zstandard  # noqa: PLC0415 -- see `_compressed`

    if length > MAX_BLOB_BYTES:
        raise PoisonedBlobError(f"a blob claims {length} bytes; expected at most {MAX_BLOB_BYTES}")
    try:
        # The frame states its length: decompression makes so many bytes and no more.
        if zstandard.frame_content_size(data) != length:
            raise PoisonedBlobError(f"a compressed blob has another length than its {length} bytes")
        return zstandard.ZstdDecompressor().decompress(data, max_output_size=length)
    except zstandard.ZstdError as error:
        raise PoisonedBlobError(f"a stored blob cannot be decompressed: {error}") from error


def _form(head: bytes) -> int:
    if not head or head[0] >= _FORMS:
        raise PoisonedBlobError(f"a stored blob begins with {head[:1].hex()!r}; expected 00 to 03")
    return head[0]


def _counts(head: bytes) -> tuple[int, int]:
    try:
        count, length = (int(part) for part in head[1:].split())
    except ValueError as error:
        raise PoisonedBlobError(f"a stored blob's head is damaged: {error}") from error
    if not 0 < count <= MAX_BLOB_BYTES // CHUNK_BYTES + 1 or not 0 <= length <= MAX_BLOB_BYTES:
        raise PoisonedBlobError(f"a stored blob claims {count} chunks and {length} bytes")
    return count, length
