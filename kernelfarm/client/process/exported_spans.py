"""The traces of a client process: begun once, exported at its end, paused around forks."""

from __future__ import annotations

import threading
import warnings

from kernelfarm import spans
from kernelfarm.client.process.exit import close_at_exit
from kernelfarm.client.process.forks import pause_at_forks
from kernelfarm.errors import CallerError

_SERVICE = "client"


class _Exporting:
    """The exporter of this process, whose channel does not survive a fork."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.has_begun = False

    def close(self) -> None:
        spans.end_export()

    def pause(self) -> bool:
        spans.end_export()
        return True

    def resume(self) -> None:
        """The next span begins a new exporter."""

    def renew(self) -> None:
        spans.drop_export()


_exporting = _Exporting()


def start_client_export() -> None:
    """Exports spans of the client if OTEL_EXPORTER_OTLP_ENDPOINT is set; warns if it cannot."""
    with _exporting.lock:
        if _exporting.has_begun:
            return
        _exporting.has_begun = True
    try:
        is_on = spans.start_export(_SERVICE)
    except CallerError as error:
        warnings.warn(f"{error}; this process exports no traces", stacklevel=2)
        return
    if is_on:
        spans.open_export()  # `pause_at_forks` needs an open channel
        close_at_exit(_exporting)
        pause_at_forks(_exporting)
