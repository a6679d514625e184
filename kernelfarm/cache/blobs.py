"""The stored form of blobs: compressed; large ones in chunks, each under a key of its own.

    key       = FORM LENGTH DATA          a whole blob; LENGTH in 8 bytes, big-endian
              | FORM COUNT " " LENGTH     a blob of COUNT chunks; both numbers in decimal
    key:N     = chunk number N of the data
    FORM      = 0 whole, 1 chunked, 2 whole and zstd, 3 chunked and zstd
    LENGTH    = bytes of the content before compression

Chunks keep each command short: one command with 50 MB would block the server for all clients.
Readers know a blob's length before they decompress it, so decompression cannot exceed it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence

from kernelfarm.cache.redis_keys import RedisKeys
from kernelfarm.errors import PoisonedBlobError

CHUNK_BYTES = 512 * 1024
MAX_BLOB_BYTES = 1 << 30
"""The size limit of a blob; data that states a larger size is not decompressed."""

_CHUNKED = 1
_ZSTD = 2
_FORMS = 4
_LENGTH_BYTES = 8
_ZSTD_LEVEL = 3
# For smaller contents, the overhead of the format exceeds the gain.
_SMALLEST_TO_COMPRESS = 128


def encoded_all(contents: Mapping[bytes, bytes], redis_keys: RedisKeys) -> list[tuple[str, bytes]]:
    """The keys and values to store for some blobs by digest."""
    return [
        item
        for sha256, content in contents.items()
        for item in encoded(redis_keys.blob(sha256), content)
    ]


def encoded(key: str, content: bytes) -> Iterator[tuple[str, bytes]]:
    """The keys and values to store for a blob; the value under `key` itself comes last.

    Readers read `key` first, so they do not see a blob that is half written.
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
    """The keys of a blob's chunks, from the value under its key; empty if the blob is whole.

    Raises:
        PoisonedBlobError: the value has an unknown form.
    """
    if not _form(head) & _CHUNKED:
        return []
    return [f"{key}:{number}" for number in range(_counts(head)[0])]


def decoded(sha256: bytes, head: bytes, chunks: Sequence[bytes | None]) -> bytes | None:
    """A blob's content from the value under its key and its chunks; None if a chunk was evicted.

    Raises:
        PoisonedBlobError: the stored content has another digest.
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
        raise PoisonedBlobError(f"the content stored as blob {sha256.hex()} has another digest")
    return content


def _compressed(content: bytes) -> tuple[int, bytes]:
    """Form and data; a content that does not shrink is stored as it is."""
    if len(content) < _SMALLEST_TO_COMPRESS:
        return 0, content
    import zstandard  # noqa: PLC0415 -- clients import this package without it

    data = zstandard.ZstdCompressor(level=_ZSTD_LEVEL, write_content_size=True).compress(content)
    return (_ZSTD, data) if len(data) < len(content) else (0, content)


def _decompressed(data: bytes, length: int) -> bytes:
    import zstandard  # noqa: PLC0415 -- see `_compressed`

    if length > MAX_BLOB_BYTES:
        raise PoisonedBlobError(f"a blob states {length} bytes; expected at most {MAX_BLOB_BYTES}")
    try:
        # The frame states its length, and decompression stops there.
        if zstandard.frame_content_size(data) != length:
            raise PoisonedBlobError(f"a compressed blob states another length than {length} bytes")
        return zstandard.ZstdDecompressor().decompress(data, max_output_size=length)
    except zstandard.ZstdError as error:
        raise PoisonedBlobError(f"a stored blob cannot be decompressed: {error}") from error


def _form(head: bytes) -> int:
    if not head or head[0] >= _FORMS:
        raise PoisonedBlobError(f"a stored blob begins with {head[:1].hex()!r}; expected 00 to 03")
    return head[0]


def _counts(head: bytes) -> tuple[int, int]:
    try:
        count, length = (int(word) for word in head[1:].split())
    except ValueError as error:
        raise PoisonedBlobError(f"a stored blob's number of chunks is damaged: {error}") from error
    if not 0 < count <= MAX_BLOB_BYTES // CHUNK_BYTES + 1 or not 0 <= length <= MAX_BLOB_BYTES:
        raise PoisonedBlobError(f"a stored blob states {count} chunks and {length} bytes")
    return count, length
