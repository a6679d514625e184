"""Limits of unauthenticated calls: health checks and open methods."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from grpc.aio import ServicerContext

from kernelfarm.errors import FarmFullError, MessageTooLargeError
from kernelfarm.service.inbound.bodies import Inbound, InboundLimits, RequestBody
from kernelfarm.service.rates import TokenBuckets

_BODIES = 4
_BODY_S = 1.0
_BODY_BYTES = 64 * 1024
_WAIT_S = 5.0
_CALLS_AT_ONCE = 500
_CALLS_PER_S = 200.0
_WATCHES = 64


class UnauthenticatedCalls:
    """Receives the bodies of unauthenticated calls: four small ones at a time, one per connection.

    Each connection may call 200 times a second. The limit is not per address, because probes and a
    flood may come through one proxy, and a refused probe restarts the server.
    """

    def __init__(self, limits: InboundLimits) -> None:
        few = replace(
            limits,
            bodies=_BODIES,
            bodies_per_sender=1,
            quick_s=_BODY_S,
            body_s=1.1 * _BODY_S,
            wait_s=_WAIT_S,
        )
        self._inbound = Inbound(few)
        self._buckets: TokenBuckets[str] = TokenBuckets(_CALLS_AT_ONCE, _CALLS_PER_S)
        self._watches = 0

    async def take(self, context: ServicerContext[Any, Any]) -> RequestBody:
        """Receives the body of a call.

        Raises:
            FarmFullError: its connection calls too often; the error says when to retry.
            MessageTooLargeError: the body is too large for an unauthenticated call.
        """
        peer = context.peer()
        if not self._buckets.take(peer):
            error = FarmFullError(
                f"{peer} sends too many calls without credentials; retry after the delay"
            )
            error.retry_after_s = self._buckets.retry_after_s(peer)
            raise error
        body = await self._inbound.take(peer, context.read)
        if body.size_bytes > _BODY_BYTES:
            body.release()
            raise MessageTooLargeError(
                f"the message without credentials has {body.size_bytes} bytes; expected at most"
                f" {_BODY_BYTES}"
            )
        return body

    def begin_watch(self) -> None:
        """Counts a health watch, a stream that stays open.

        Raises:
            FarmFullError: too many are open.
        """
        if self._watches >= _WATCHES:
            raise FarmFullError(
                f"{_WATCHES} streams watch the health of this server, the limit; call Check instead"
            )
        self._watches += 1

    def end_watch(self) -> None:
        """Ends the count of a health watch."""
        self._watches -= 1
