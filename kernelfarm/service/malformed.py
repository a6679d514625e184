"""Parses request bytes; malformed bytes raise an error that names the expected message."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from google.protobuf.message import DecodeError

from kernelfarm.errors import MalformedMessageError

Parse = Callable[[bytes], Any]


def has_request_id(parse: Parse | None) -> bool:
    """True if the messages that `parse` returns have a field `request_id`."""
    descriptor = _descriptor_of(parse)
    return descriptor is not None and "request_id" in descriptor.fields_by_name


def parser_of(parse: Parse | None) -> Parse:
    """A function that parses a request's bytes with `parse`; without `parse` they stay bytes.

    The function raises MalformedMessageError if the bytes are not a message of the type.
    """
    if parse is None:
        return bytes
    expected = getattr(_descriptor_of(parse), "full_name", "protobuf")
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


def _descriptor_of(parse: Parse | None) -> Any:
    """The descriptor of a parser's message; generated parsers are bound to its class."""
    return getattr(getattr(parse, "__self__", None), "DESCRIPTOR", None)
