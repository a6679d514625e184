"""What one tenant may send in a time while others are served too: a token bucket of bytes.

gRPC copies each body within the event loop, some 50 ms for 30 MiB, and a refused graph costs a
decode: a tenant that sends such calls without a pause would be all that others wait for. While
nobody else calls, nothing is held back.

A refusal is charged when the call ends. Calls in progress of a sender whose calls were refused
lately are therefore counted ahead, else all that wait would be let in at the same moment.

All others wait at once while one large body is copied, so a body of n times `large_bytes` counts as
n times its bytes: many requests of one megabyte, as a job of many ranks sends them, hurt nobody.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from kernelfarm.service.recent_callers import SHARED_S, RecentCallers

_MAX_SENDERS = 4096
"""Senders that are remembered; the one that sent nothing for longest is forgotten first."""


@dataclass(frozen=True, slots=True)
class ByteRateLimits:
    """A sender may be `burst_bytes` ahead of `bytes_per_s`; a failed call counts as a body of
    `failure_bytes`, a body of `small_bytes` as nothing. Others count as served for `shared_s` after
    their last call. Whatever a sender sent before, it may go on after `most_s`.
    """

    bytes_per_s: float = 32 * 1024 * 1024
    burst_bytes: float = 128 * 1024 * 1024
    failure_bytes: int = 4 * 1024 * 1024
    large_bytes: int = 2 * 1024 * 1024
    small_bytes: int = 4 * 1024
    shared_s: float = SHARED_S
    most_s: float = 14.0


class ByteRateLimiter:
    """Counts what each sender has sent lately; times are of one monotonic clock, in seconds."""

    def __init__(self, limits: ByteRateLimits) -> None:
        self._limits = limits
        self._most_bytes = limits.burst_bytes + limits.most_s * limits.bytes_per_s
        self._sent: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._latest_cost: OrderedDict[str, float] = OrderedDict()
        self._in_progress: dict[str, int] = {}
        self._refused: set[str] = set()
        self._callers = RecentCallers(limits.shared_s)

    def record_call(self, sender: str, now_s: float) -> None:
        """A sender calls."""
        self._callers.note(sender, now_s)

    def charge_body(self, sender: str, size_bytes: int, now_s: float) -> None:
        """Counts a body that a sender sent."""
        if size_bytes <= self._limits.small_bytes:
            return
        cost_bytes: float = size_bytes
        if size_bytes > self._limits.large_bytes:
            cost_bytes *= size_bytes / self._limits.large_bytes
            self._latest_cost[sender] = cost_bytes
            self._latest_cost.move_to_end(sender)
            if len(self._latest_cost) > _MAX_SENDERS:
                self._latest_cost.popitem(last=False)
        elif self._latest_cost:
            self._latest_cost.pop(sender, None)
        self._charge(sender, cost_bytes, now_s)

    def note_begin(self, sender: str) -> None:
        """A call's body is there."""
        self._in_progress[sender] = self._in_progress.get(sender, 0) + 1

    def note_end(self, sender: str) -> None:
        """A call of which `note_begin` was told has ended."""
        left = self._in_progress[sender] - 1
        if left:
            self._in_progress[sender] = left
        else:
            del self._in_progress[sender]

    def charge_failure(self, sender: str, now_s: float) -> None:
        """Counts a call that was refused for what the sender sent."""
        self._refused.add(sender)
        self._charge(sender, self._limits.failure_bytes, now_s)

    def is_spent(self, sender: str, now_s: float, arriving: int = 0) -> bool:
        """True if the sender has to wait: it sent too much lately, and others are served too.

        Its bodies that are arriving count as its latest one if that was large.
        """
        if sender not in self._sent:
            return False
        left_bytes = self._left_bytes(sender, now_s)
        if not left_bytes:
            self._forget(sender)
        elif sender in self._refused:
            left_bytes += self._in_progress.get(sender, 0) * self._limits.failure_bytes
        if arriving:
            left_bytes += arriving * self._latest_cost.get(sender, 0.0)
        return left_bytes > self._limits.burst_bytes and self.is_shared(sender, now_s)

    def is_shared(self, sender: str, now_s: float) -> bool:
        """True if others have called lately."""
        return self._callers.has_others(sender, now_s)

    def _charge(self, sender: str, cost_bytes: float, now_s: float) -> None:
        owed_bytes = self._left_bytes(sender, now_s) + cost_bytes
        self._sent[sender] = (min(owed_bytes, self._most_bytes), now_s)
        self._sent.move_to_end(sender)
        if len(self._sent) > _MAX_SENDERS:
            self._forget(next(iter(self._sent)))

    def _forget(self, sender: str) -> None:
        del self._sent[sender]
        self._refused.discard(sender)

    def _left_bytes(self, sender: str, now_s: float) -> float:
        """What the sender sent and time has not made good yet."""
        sent_bytes, when_s = self._sent.get(sender, (0.0, now_s))
        return max(0.0, sent_bytes - (now_s - when_s) * self._limits.bytes_per_s)
