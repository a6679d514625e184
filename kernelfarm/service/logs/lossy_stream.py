"""A log stream that drops lines instead of raising errors: a full disk must not fail a request."""

from __future__ import annotations

from typing import TextIO


class LossyStream:
    """Writes to another stream; `lost` counts the writes that failed."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.lost = 0

    def write(self, text: str) -> int:
        """Writes a text; returns its length even if the write failed."""
        try:
            self._stream.write(text)
        except (OSError, ValueError):  # no space, a closed pipe, or a closed stream
            self.lost += 1
        return len(text)

    def flush(self) -> None:
        """Flushes the other stream; the next line retries a flush that failed."""
        try:
            self._stream.flush()
        except (OSError, ValueError):
            self.lost += 1
