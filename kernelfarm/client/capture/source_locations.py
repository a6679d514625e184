"""The locations of traced nodes in the user's code, as a table of short texts."""

from __future__ import annotations

import re

from torch import fx

_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)\n\s*([^\n]*)')
_LONGEST_CODE_CHARS = 120


class LocationTable:
    """Numbers locations from 1; 0 means that torch recorded no location."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {"": 0}
        self._by_trace: dict[str, int] = {"": 0}

    def number_of(self, node: fx.Node) -> int:
        """The number of a node's location."""
        trace = node.meta.get("stack_trace") or ""
        known = self._by_trace.get(trace)
        if known is None:
            text = _innermost(trace)
            known = self._by_trace[trace] = self._numbers.setdefault(text, len(self._numbers))
        return known

    def texts(self) -> tuple[str, ...]:
        """The locations in order, number 1 first."""
        return tuple(self._numbers)[1:]


def _innermost(trace: str) -> str:
    frames = _FRAME.findall(trace)
    if not frames:
        return ""
    path, line, function, code = frames[-1]
    # The file name is enough to find the line; the farm does not need the directories.
    name = path.replace("\\", "/").rpartition("/")[2]
    return f"{name}:{line} in {function}: {code[:_LONGEST_CODE_CHARS]}".rstrip(": ")
