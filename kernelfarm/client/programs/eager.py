"""The warning that a graph runs eager: once for each kind of reason."""

from __future__ import annotations

import threading
import warnings

from kernelfarm.client.settings import ClientSettings
from kernelfarm.errors import KernelfarmError, UnavailableError


class KernelfarmWarning(UserWarning):
    """A graph runs eager although kernelfarm is its backend."""


_lock = threading.Lock()
_warned: set[str] = set()


def warn_eager(error: KernelfarmError, settings: ClientSettings) -> None:
    """Warns that a graph runs eager, unless this process has warned of the same kind of reason."""
    kind = "farm" if isinstance(error, UnavailableError) else error.reason
    with _lock:
        if kind in _warned:
            return
        _warned.add(kind)
    warnings.warn(_text(error, settings), KernelfarmWarning, stacklevel=2)


def reset_warnings() -> None:
    """Allows one more warning for each kind of reason."""
    with _lock:
        _warned.clear()


def _text(error: KernelfarmError, settings: ClientSettings) -> str:
    strict = 'to make this an error: options={"strict": True} or KERNELFARM_MODE=strict'
    if isinstance(error, UnavailableError):
        return (
            f"kernelfarm: no farm answers at {settings.endpoint}, so graphs run eager: {error}. "
            f"Start one with `kernelfarm up`, or set KERNELFARM_ENDPOINT; {strict}"
        )
    return (
        f"kernelfarm: a graph runs eager: {error}. Further graphs with this kind of reason "
        f"({error.reason}) run eager without a warning; {strict}"
    )
