"""The recent callers of a server: whether a caller is the only one, or shares it with others."""

from __future__ import annotations

SHARED_S = 5.0
"""A caller counts as recent for this time after its last call."""


class RecentCallers:
    """Keeps the last two different callers; times are of one monotonic clock, in seconds."""

    def __init__(self, shared_s: float = SHARED_S) -> None:
        self._shared_s = shared_s
        self._latest = ("", float("-inf"))
        self._other = ("", float("-inf"))

    def note(self, caller: str, now_s: float) -> None:
        """Records a call."""
        if self._latest[0] != caller:
            self._other = self._latest
        self._latest = (caller, now_s)

    def has_others(self, caller: str, now_s: float) -> bool:
        """True if another caller called recently."""
        both = (self._latest, self._other)
        return any(name != caller and now_s - when_s < self._shared_s for name, when_s in both)
