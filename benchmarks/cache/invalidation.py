"""Invalidates many programs by one call to a gateway, and checks that none is found afterwards."""

from __future__ import annotations

import asyncio
import time

import grpc

from kernelfarm.client.farm.cache_client import CacheAdmin
from kernelfarm.v1 import compile_service_pb2 as api
from tests.support.gateways import (
    LOOKUP,
    TAG,
    Bench,
    looked_up,
    lookup_request,
    publish,
    running_gateways,
)

_CONTENT_BYTES = 256
_AT_ONCE = 64


async def time_invalidation(bench: Bench, entries: int) -> list[str]:
    """The result as lines of Markdown.

    Raises:
        RuntimeError: a program was not found before, or was found after.
    """
    keys = await publish(bench, entries, _CONTENT_BYTES)
    with running_gateways(bench) as (address, _):
        _expect(await _found(address, keys), entries, "before")
        _expect(await _found(address, keys[:1000]), min(entries, 1000), "before, from memory")
        with CacheAdmin(address) as admin:
            began_s = time.perf_counter()
            answer = admin.invalidate([TAG])
            took_ms = 1e3 * (time.perf_counter() - began_s)
        began_s = time.perf_counter()
        is_gone = looked_up(address, keys[0]) is None
        next_ms = 1e3 * (time.perf_counter() - began_s)
        if not is_gone or answer.gateways != 1:
            raise RuntimeError("a gateway served an invalidated program")
        _expect(await _found(address, keys), 0, "after")
    return [
        f"{entries:,} programs, each found before and none after: the call took {took_ms:.1f} ms"
        f" (it returns when every gateway has applied it); the look-up right after it, on a new"
        f" connection, {next_ms:.1f} ms."
    ]


async def _found(address: str, keys: list[bytes]) -> int:
    """How many programs a gateway finds."""
    async with grpc.aio.insecure_channel(address) as channel:
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, api.LookupResponse] = channel.unary_unary(
            LOOKUP, None, api.LookupResponse.FromString
        )

        async def is_found(key: bytes) -> bool:
            try:
                await call(lookup_request(key), timeout=60)
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.NOT_FOUND:
                    raise
                return False
            return True

        found = 0
        for first in range(0, len(keys), _AT_ONCE):
            part = keys[first : first + _AT_ONCE]
            found += sum(await asyncio.gather(*(is_found(key) for key in part)))
        return found


def _expect(found: int, expected: int, when: str) -> None:
    if found != expected:
        raise RuntimeError(f"{found} programs found {when}; expected {expected}")
