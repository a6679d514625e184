"""What is answered without credentials: health, and the methods that are open; little at a time."""

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
    """Calls of nobody in particular: four small bodies at a time, one for each connection.

    Each connection may call 200 times a second. Not each address: probes and a flood may come
    through one proxy, and a probe that is refused restarts the server.
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
        """The body of a call.

        Raises:
            FarmFullError: its connection calls too often; the error tells when to come again.
            MessageTooLargeError: nobody in particular sends so much.
        """
        peer = context.peer()
        if not self._buckets.take(peer):
            error = FarmFullError(f"too many calls of {peer} without credentials")
            error.retry_after_s = self._buckets.retry_after_s(peer)
            raise error
        body = await self._inbound.take(peer, context.read)
        if body.size_bytes > _BODY_BYTES:
            body.release()
            raise MessageTooLargeError(
                f"a message of {body.size_bytes} bytes without credentials; expected at most"
                f" {_BODY_BYTES}"
            )
        return body

    def begin_watch(self) -> None:
        """Counts a stream that stays open.

        Raises:
            FarmFullError: there are too many.
        """
        if self._watches >= _WATCHES:
            raise FarmFullError(f"{_WATCHES} streams watch this server's health; ask with Check")
        self._watches += 1

    def end_watch(self) -> None:
        """Ends `begin_watch`."""
        self._watches -= 1
