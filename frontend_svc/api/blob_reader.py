"""Reads blobs from the cache in chunks for gRPC."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass

from frontend_svc.api.byte_budget import ByteBudget
from frontend_svc.cache.tiered_programs import TieredProgramCache

MAX_CHUNK_BYTES = 512 * 1024


@dataclass(frozen=True, slots=True)
class Chunk:
    """The bytes of blob number `index` from `offset_bytes` on."""

    index: int
    offset_bytes: int
    data: bytes
    is_last: bool


async def read_blobs(
    programs: TieredProgramCache, digests: tuple[bytes, ...], budget: ByteBudget
) -> AsyncGenerator[Chunk]:
    """The blobs in the order of the digests; an empty blob is one empty chunk.

    Close the generator when done: until then, a blob counts against the budget.

    Raises:
        NotFoundError: a blob is not stored.
        PoisonedBlobError: other content was stored under the digest.
        FarmFullError: the budget is used up by other calls; the error states when to retry.
    """
    for index, digest in enumerate(digests):
        content = await programs.blob(digest)
        with budget.held(len(content)):
            for offset_bytes in range(0, max(len(content), 1), MAX_CHUNK_BYTES):
                end_bytes = offset_bytes + MAX_CHUNK_BYTES
                data = content[offset_bytes:end_bytes]
                yield Chunk(index, offset_bytes, data, is_last=end_bytes >= len(content))
