"""The names of a call: what its log lines and errors carry to identify it."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any

REQUEST_ID_HEADER = "x-request-id"

# Ids appear in logs and trailers, so any id but a short plain word is replaced.
_PLAIN_ID = re.compile(r"[A-Za-z0-9._:/-]{1,128}")


class CallNames:
    """The method, the request id and further names of a call.

    Most calls are cache hits without a log line, so the request id is made when it is first read.
    It is that of the message, else that of the headers, else a new one.
    """

    __slots__ = ("_metadata", "_more", "_request_id", "method")

    def __init__(
        self, method: str, stated: object, metadata: Sequence[tuple[str, Any]], more: dict[str, str]
    ) -> None:
        self.method = method
        self._request_id = _plain_id(stated) if stated else ""
        self._metadata = metadata
        self._more = more

    @property
    def request_id(self) -> str:
        """The caller's id if it is a plain word; else one that is unique but not secret."""
        if not self._request_id:
            header = next((v for name, v in self._metadata if name == REQUEST_ID_HEADER), "")
            self._request_id = _plain_id(header) or f"{random.getrandbits(128):032x}"
            self._metadata = ()  # tasks that outlive the call keep its names
        return self._request_id

    def fields(self) -> dict[str, str]:
        """The fields of a log line."""
        return {"request_id": self.request_id, "method": self.method, **self._more}


_current: ContextVar[CallNames | None] = ContextVar("call_names", default=None)


def bind_call_names(names: CallNames) -> None:
    """Sets the names for the rest of this call, which runs in a task with its own context."""
    _current.set(names)


def current_request_id() -> str:
    """The request id of the call that this task serves; empty outside of a call."""
    names = _current.get()
    return names.request_id if names is not None else ""


def add_call_names(logger: Any, method: str, event: Any) -> Any:
    """A structlog processor that adds the names of the present call to a line."""
    names = _current.get()
    return event if names is None else {**names.fields(), **event}


def _plain_id(candidate: object) -> str:
    """The id if it is a plain word, else an empty text."""
    is_plain = isinstance(candidate, str) and candidate and _PLAIN_ID.fullmatch(candidate)
    return str(candidate) if is_plain else ""
