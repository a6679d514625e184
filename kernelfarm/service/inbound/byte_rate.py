"""A token bucket of bytes for each sender, which limits it while others are served too.

gRPC copies each body within the event loop (about 50 ms for 30 MiB), and an invalid graph costs a
decode. A sender of such calls without a pause would delay all others. A sender that calls alone is
not limited.

A failure is charged when its call ends. The calls in progress of a sender whose calls failed
recently are therefore charged in advance. Otherwise all its waiting calls would be admitted at
once.

All other calls wait while one large body is copied, so a body of n times `large_bytes` counts as n
times its bytes. Many requests of one megabyte, such as those of a job with many ranks, are not
slowed down.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from kernelfarm.service.recent_callers import SHARED_S, RecentCallers

_MAX_SENDERS = 4096
"""Senders that are counted; beyond this number, the least recently charged one is evicted."""


@dataclass(frozen=True, slots=True)
class ByteRateLimits:
    """Limits of each sender while others call.

    A sender may be `burst_bytes` ahead of `bytes_per_s`. A failed call counts as a body of
    `failure_bytes`, and a body of up to `small_bytes` as nothing. Other senders count as calling
    for `shared_s` after their last call. A sender waits at most `most_s`, whatever it has sent.
    """

    bytes_per_s: float = 32 * 1024 * 1024
    burst_bytes: float = 128 * 1024 * 1024
    failure_bytes: int = 4 * 1024 * 1024
    large_bytes: int = 2 * 1024 * 1024
    small_bytes: int = 4 * 1024
    shared_s: float = SHARED_S
    most_s: float = 14.0


class ByteRateLimiter:
    """Counts what each sender has sent recently; times are of one monotonic clock, in seconds."""

    def __init__(self, limits: ByteRateLimits) -> None:
        self._limits = limits
        self._most_bytes = limits.burst_bytes + limits.most_s * limits.bytes_per_s
        self._sent: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._latest_cost: OrderedDict[str, float] = OrderedDict()
        self._in_progress: dict[str, int] = {}
        self._failed: set[str] = set()
        self._callers = RecentCallers(limits.shared_s)

    def record_call(self, sender: str, now_s: float) -> None:
        """Records that a sender calls."""
        self._callers.note(sender, now_s)

    def charge_body(self, sender: str, size_bytes: int, now_s: float) -> None:
        """Charges a sender for a body."""
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
        """Records that a call's body has arrived."""
        self._in_progress[sender] = self._in_progress.get(sender, 0) + 1

    def note_end(self, sender: str) -> None:
        """Records the end of a call that `note_begin` recorded."""
        left = self._in_progress[sender] - 1
        if left:
            self._in_progress[sender] = left
        else:
            del self._in_progress[sender]

    def charge_failure(self, sender: str, now_s: float) -> None:
        """Charges a sender for a call that failed because of what it sent."""
        self._failed.add(sender)
        self._charge(sender, self._limits.failure_bytes, now_s)

    def is_spent(self, sender: str, now_s: float, arriving: int = 0) -> bool:
        """True if the sender has to wait, because it sent too much recently and others call too.

        If its latest body was large, each of its `arriving` bodies counts as much.
        """
        if sender not in self._sent:
            return False
        left_bytes = self._left_bytes(sender, now_s)
        if not left_bytes:
            self._evict(sender)
        elif sender in self._failed:
            left_bytes += self._in_progress.get(sender, 0) * self._limits.failure_bytes
        if arriving:
            left_bytes += arriving * self._latest_cost.get(sender, 0.0)
        return left_bytes > self._limits.burst_bytes and self.is_shared(sender, now_s)

    def is_shared(self, sender: str, now_s: float) -> bool:
        """True if others have called recently."""
        return self._callers.has_others(sender, now_s)

    def _charge(self, sender: str, cost_bytes: float, now_s: float) -> None:
        owed_bytes = self._left_bytes(sender, now_s) + cost_bytes
        self._sent[sender] = (min(owed_bytes, self._most_bytes), now_s)
        self._sent.move_to_end(sender)
        if len(self._sent) > _MAX_SENDERS:
            self._evict(next(iter(self._sent)))

    def _evict(self, sender: str) -> None:
        del self._sent[sender]
        self._failed.discard(sender)

    def _left_bytes(self, sender: str, now_s: float) -> float:
        """The charged bytes of a sender, less what its rate has allowed since."""
        sent_bytes, when_s = self._sent.get(sender, (0.0, now_s))
        return max(0.0, sent_bytes - (now_s - when_s) * self._limits.bytes_per_s)
