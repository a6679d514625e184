"""A stream for logs that loses lines rather than raise: a full disk must stop no request."""

from __future__ import annotations

from typing import TextIO


class LossyStream:
    """Writes to another stream what it takes; `lost` counts what it did not."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.lost = 0

    def write(self, text: str) -> int:
        """The length of the text, written or not."""
        try:
            self._stream.write(text)
        except (OSError, ValueError):  # no space, nobody reads any more, or closed
            self.lost += 1
        return len(text)

    def flush(self) -> None:
        """Passes on what is written; what cannot be is tried again with the next line."""
        try:
            self._stream.flush()
        except (OSError, ValueError):
            self.lost += 1
