"""Limits on request bodies: how many arrive at once, and how many bytes are held in memory.

gRPC returns a body only when all of it has arrived, so its size is not known before. A call's body
therefore waits in HTTP/2 flow control (at most one stream window, 64 KiB) until it gets a slot:

  wait    up to `wait_s` for one of `bodies` slots, which senders get in rotation; each sender has
          at most `bodies_per_sender`, and `bodies_per_sender_shared` while others call
  arrive  within `quick_s`, as almost all bodies do; a slower body gives its slot back and counts
          as a message of the largest size, or is aborted if that exceeds the limit of held bytes
  abort   after `body_s`, whatever has arrived
  hold    counted with its true size until its call ends
  charge  to its sender, who waits after too many bytes or errors while others call (`byte_rate`)

So at most `bodies` quick messages arrive at once, and slow senders do not delay others.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from kernelfarm.errors import BodyTooSlowError, FarmFullError, NoMessageError
from kernelfarm.service.inbound.byte_rate import ByteRateLimiter, ByteRateLimits
from kernelfarm.service.memory import LARGE_BYTES, MemoryTrimmer
from kernelfarm.service.metrics.declarations import INBOUND_BYTES

_CHECK_INTERVAL_S = 0.1

_MAX_WAITING = 1024
"""Calls of one sender that wait for a slot, with up to 64 KiB each."""

Receive = Callable[[], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class InboundLimits:
    """How much may arrive and be held at once, in total and for one sender."""

    message_bytes: int
    held_bytes: int
    held_bytes_per_sender: int
    bodies: int = 64
    bodies_per_sender: int = 16
    bodies_per_sender_shared: int = 2
    quick_s: float = 0.25
    body_s: float = 30.0
    wait_s: float = 10.0
    byte_rate: ByteRateLimits = field(default_factory=ByteRateLimits)


class Inbound:
    """Counts one server's inbound bytes.

    A sender is the name of a tenant, or the address of an unauthenticated caller.
    """

    def __init__(self, limits: InboundLimits) -> None:
        self._limits = limits
        self._held: dict[str, int] = {}
        self._byte_rate = ByteRateLimiter(limits.byte_rate)
        self._receive_slots = _ReceiveSlots(limits, self._byte_rate)
        self._arriving: dict[RequestBody, float] = {}
        self._is_watching = False
        self._trimmer = MemoryTrimmer()
        self.held_bytes = 0

    async def take(self, sender: str, receive: Receive) -> RequestBody:
        """Receives a call's body; release it when the call has ended.

        Raises:
            FarmFullError: too much is arriving or held; the error says when to retry.
            BodyTooSlowError: the body did not arrive in time.
            NoMessageError: the call ended without a body.
        """
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        self._byte_rate.record_call(sender, now_s)
        if not self._receive_slots.try_acquire(sender, now_s):
            await self._receive_slots.acquire(sender)
            now_s = loop.time()
        body = RequestBody(self, sender, asyncio.current_task(loop))
        self._arriving[body] = now_s
        if not self._is_watching:
            self._is_watching = True
            loop.call_later(_CHECK_INTERVAL_S, self._check_arriving, loop)
        try:
            data = await receive()
        except asyncio.CancelledError:
            if (error := body.abort_error()) is None:
                raise
            raise error from None
        finally:
            self._arrived(body)
        if not isinstance(data, bytes):
            raise NoMessageError("the call ended without a message; expected one message")
        size_bytes = len(data)
        if size_bytes > self._limits.byte_rate.small_bytes:  # a cache hit has a small body
            self._byte_rate.charge_body(sender, size_bytes, loop.time())
        try:
            self._hold(sender, size_bytes)
        except FarmFullError:
            self._trimmer.schedule()
            raise
        body.fill(data)
        self._byte_rate.note_begin(sender)
        return body

    def charge_failure(self, sender: str) -> None:
        """Charges a sender for a call that failed because of what it sent."""
        self._byte_rate.charge_failure(sender, asyncio.get_running_loop().time())

    def record_metrics(self) -> None:
        """Records the held bytes and their limit."""
        INBOUND_BYTES.labels("held").set(self.held_bytes)
        INBOUND_BYTES.labels("limit").set(self._limits.held_bytes)

    def end(self, sender: str, size_bytes: int) -> None:
        """Ends the count of a call whose body was received."""
        self._byte_rate.note_end(sender)
        self._release(sender, size_bytes)

    def _release(self, sender: str, size_bytes: int) -> None:
        """Subtracts held bytes."""
        if size_bytes >= LARGE_BYTES:
            self._trimmer.schedule()
        self.held_bytes -= size_bytes
        left = self._held.get(sender, 0) - size_bytes
        if left > 0:
            self._held[sender] = left
        else:
            self._held.pop(sender, None)  # a sender of empty bodies has no item

    def _hold(self, sender: str, size_bytes: int) -> None:
        mine, limits = self._held.get(sender, 0), self._limits
        if self.held_bytes and self.held_bytes + size_bytes > limits.held_bytes:
            raise FarmFullError(
                f"this server serves requests of {self.held_bytes} bytes; it holds at most"
                f" {limits.held_bytes}: retry after the delay"
            )
        if mine and mine + size_bytes > limits.held_bytes_per_sender:
            raise FarmFullError(
                f"this server serves requests of {mine} bytes of this caller; it holds at most"
                f" {limits.held_bytes_per_sender} for one tenant: retry after the delay"
            )
        self.held_bytes += size_bytes
        self._held[sender] = mine + size_bytes

    def _check_arriving(self, loop: asyncio.AbstractEventLoop) -> None:
        """Checks the bodies that are arriving, the oldest first; most arrive between two checks."""
        now_s = loop.time()
        for body, began_s in list(self._arriving.items()):
            age_s = now_s - began_s
            if age_s < self._limits.quick_s:
                break
            self._check_slow(body, age_s)
        self._is_watching = bool(self._arriving)
        if self._is_watching:
            loop.call_later(_CHECK_INTERVAL_S, self._check_arriving, loop)

    def _check_slow(self, body: RequestBody, age_s: float) -> None:
        limits = self._limits
        if age_s >= limits.body_s:
            error = f"the request did not arrive within {limits.body_s:g} s; send it again"
            body.abort(BodyTooSlowError(error))
        elif body.is_slow:
            return
        elif not body.is_late:
            # If the event loop was busy, the body may have arrived already: check once more.
            body.is_late = True
        else:
            try:
                self._hold(body.sender, limits.message_bytes)
            except FarmFullError as error:
                body.abort(error.with_traceback(None))
                return
            body.is_slow = True
            self._receive_slots.release(body.sender)

    def _arrived(self, body: RequestBody) -> None:
        del self._arriving[body]
        if body.is_slow:
            self._release(body.sender, self._limits.message_bytes)
        else:
            self._receive_slots.release(body.sender)


class RequestBody:
    """The bytes of one message: arriving, then held until `release`."""

    __slots__ = (
        "_data",
        "_error",
        "_inbound",
        "_size_bytes",
        "_task",
        "is_late",
        "is_slow",
        "sender",
    )

    def __init__(self, inbound: Inbound, sender: str, task: asyncio.Task[object] | None) -> None:
        self._inbound = inbound
        self._data: bytes | None = None
        self._error: Exception | None = None
        self._size_bytes = 0
        self._task = task
        self.sender = sender
        self.is_late = False
        self.is_slow = False

    @property
    def size_bytes(self) -> int:
        """The size of the message, also after `pop`."""
        return self._size_bytes

    def fill(self, data: bytes) -> None:
        """Sets the bytes that have arrived."""
        self._data, self._size_bytes, self._task = data, len(data), None

    def pop(self) -> bytes:
        """Returns the bytes and drops its reference to them; they still count until `release`."""
        data, self._data = self._data, None
        return data or b""

    def release(self) -> None:
        """Ends the count of its bytes."""
        self._inbound.end(self.sender, self._size_bytes)

    def abort(self, error: Exception) -> None:
        """Ends the arrival of the body with an error."""
        if self._error is None and self._task is not None:
            self._error = error
            self._task.cancel()

    def abort_error(self) -> Exception | None:
        """The error of `abort`; None if its task was cancelled for another reason."""
        error, self._error = self._error, None
        if error is not None and self._task is not None:
            self._task.uncancel()
        self._task = None
        return error


class _ReceiveSlots:
    """Slots to receive a body; senders that wait get them in rotation."""

    def __init__(self, limits: InboundLimits, byte_rate: ByteRateLimiter) -> None:
        self._limits = limits
        self._byte_rate = byte_rate
        self._will_serve = False
        self._in_use = 0
        self._in_use_by: dict[str, int] = {}
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    def try_acquire(self, sender: str, now_s: float) -> bool:
        """Takes a slot if one is free and no other call of the sender waits."""
        if sender in self._waiting or not self._is_free(sender, now_s):
            return False
        self._occupy(sender)
        return True

    async def acquire(self, sender: str) -> None:
        queue = self._waiting.setdefault(sender, deque())
        if len(queue) >= _MAX_WAITING:
            raise FarmFullError(
                f"{len(queue)} requests of this caller wait to be received; retry after the delay"
            )
        waiter = asyncio.get_running_loop().create_future()
        queue.append(waiter)
        self._serve_soon()
        try:
            async with asyncio.timeout(self._limits.wait_s):
                await waiter
        except BaseException as error:
            self._cancel_wait(sender, waiter)
            if isinstance(error, TimeoutError):
                raise FarmFullError(
                    "too many requests arrive at once; retry after the delay"
                ) from None
            raise

    def release(self, sender: str) -> None:
        self._in_use -= 1
        left = self._in_use_by[sender] - 1
        if left:
            self._in_use_by[sender] = left
        else:
            del self._in_use_by[sender]
        if self._waiting:
            self._serve()

    def _serve_soon(self) -> None:
        """Repeats `_serve` while calls wait, because a sender's allowance grows with time."""
        if self._waiting and not self._will_serve:
            self._will_serve = True
            asyncio.get_running_loop().call_later(_CHECK_INTERVAL_S, self._serve_again)

    def _serve_again(self) -> None:
        self._will_serve = False
        self._serve()
        self._serve_soon()

    def _cancel_wait(self, sender: str, waiter: asyncio.Future[None]) -> None:
        """Ends a wait that was cancelled or timed out."""
        queue = self._waiting.get(sender)
        if waiter.done() and not waiter.cancelled():
            self.release(sender)  # it got its slot at the same moment
        elif queue is not None and waiter in queue:
            queue.remove(waiter)
            if not queue:
                del self._waiting[sender]

    def _serve(self) -> None:
        now_s = asyncio.get_running_loop().time()
        for sender in list(self._waiting):
            if self._in_use >= self._limits.bodies:
                return
            queue = self._waiting[sender]
            while queue and queue[0].done():
                queue.popleft()
            if queue and self._is_free(sender, now_s):
                self._occupy(sender)
                queue.popleft().set_result(None)
            if queue:
                self._waiting.move_to_end(sender)
            else:
                del self._waiting[sender]

    def _is_free(self, sender: str, now_s: float) -> bool:
        limits = self._limits
        if self._in_use >= limits.bodies:
            return False
        mine = self._in_use_by.get(sender, 0)
        if mine >= limits.bodies_per_sender:
            return False
        if mine >= limits.bodies_per_sender_shared and self._byte_rate.is_shared(sender, now_s):
            return False
        return not self._byte_rate.is_spent(sender, now_s, mine)

    def _occupy(self, sender: str) -> None:
        self._in_use += 1
        self._in_use_by[sender] = self._in_use_by.get(sender, 0) + 1
