"""Bytes that are no message become an error that says what was expected."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from google.protobuf.message import DecodeError

from kernelfarm.errors import MalformedMessageError

Parse = Callable[[bytes], Any]


def parser_of(parse: Parse | None) -> Parse:
    """Parses a request's bytes, as `parse` does (None: they stay bytes).

    What it gives raises MalformedMessageError where the bytes are no message.
    """
    if parse is None:
        return bytes
    # Generated parsers are bound to their message class, which knows its full name.
    descriptor = getattr(getattr(parse, "__self__", None), "DESCRIPTOR", None)
    expected = getattr(descriptor, "full_name", "protobuf")
    message_of = parse

    def parse_request(data: bytes) -> Any:
        try:
            return message_of(data)
        except DecodeError as error:
            raise MalformedMessageError(
                f"{len(data)} bytes that are no {expected} message"
                f" (truncated, or of another type): {error}"
            ) from None

    return parse_request
