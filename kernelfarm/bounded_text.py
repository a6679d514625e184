"""Text of a client in messages and logs: short, and without control characters."""

from __future__ import annotations

import re

MESSAGE_BYTES = 1024
"""The maximum size of an error message in UTF-8; messages quote what a client sent.

gRPC's trailers have 8 KiB and contain the message twice: as text, in which a byte beyond ASCII
takes three bytes, and in the details, in base64.
"""

QUOTED_CHARS = 160
"""How many characters of a client's text a message quotes."""

_UNPRINTABLE = re.compile(
    r"[^\x20-\x7e\n\t\u00a0-\U0010ffff]|[\u2028\u2029\u202a-\u202e\u2066-\u2069]"
)
_CUT = " ...[{} characters left out]... "


def bounded(message: str, max_bytes: int = MESSAGE_BYTES) -> str:
    """A message of at most `max_bytes`, cut in its middle, with control characters escaped."""
    # The part that is cut anyway is not encoded, because a message may have megabytes.
    skipped = max(0, len(message) - 2 * max_bytes)
    data = _encoded(message[:max_bytes]) + _encoded(message[max_bytes + skipped :])
    if not skipped and len(data) <= max_bytes:
        return data.decode()
    left_bytes = max_bytes - len(_CUT.format(len(message) + len(data)))
    head_bytes = 2 * left_bytes // 3
    head = data[:head_bytes].decode(errors="ignore")
    tail = data[head_bytes - left_bytes :].decode(errors="ignore")
    cut = skipped + len(data.decode()) - len(head) - len(tail)
    return f"{head}{_CUT.format(cut)}{tail}"


def quoted(text: str) -> str:
    """A client's text for a message: shortened, in quotes, on one line."""
    if len(text) <= QUOTED_CHARS:
        return repr(text)
    half = QUOTED_CHARS // 2
    return f"{text[:half] + '...' + text[-half:]!r} ({len(text)} characters)"


def _encoded(text: str) -> bytes:
    return _UNPRINTABLE.sub(_escaped, text).encode("utf-8", "backslashreplace")


def _escaped(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode("ascii")
