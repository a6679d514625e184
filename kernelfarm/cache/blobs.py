"""How blobs lie in Redis: small ones whole, large ones in chunks under keys of their own.

A chunk keeps every single command short: one blob of 50 MB would stop the server for everybody.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

CHUNK_BYTES = 1024 * 1024

_WHOLE = b"\x00"
_CHUNKED = b"\x01"


def stored_parts(key: str, content: bytes) -> Iterator[tuple[str, bytes]]:
    """Keys and values to store for a blob; the one under `key` itself comes last.

    Readers look at `key` first, so that a blob that is half written does not exist yet.
    """
    if len(content) <= CHUNK_BYTES:
        yield key, _WHOLE + content
        return
    starts = range(0, len(content), CHUNK_BYTES)
    for number, start in enumerate(starts):
        yield f"{key}:{number}", content[start : start + CHUNK_BYTES]
    yield key, _CHUNKED + str(len(starts)).encode()


def chunk_keys(key: str, head: bytes) -> list[str]:
    """Keys of the chunks that a stored head names; empty if the blob is whole."""
    if not head.startswith(_CHUNKED):
        return []
    return [f"{key}:{number}" for number in range(int(head[1:]))]


def joined(head: bytes, chunks: Sequence[bytes | None]) -> bytes | None:
    """A blob's content from its stored parts, or None if a chunk was evicted."""
    if head.startswith(_WHOLE):
        return head[1:]
    present = [chunk for chunk in chunks if chunk is not None]
    return b"".join(present) if len(present) == len(chunks) else None
