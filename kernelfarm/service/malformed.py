"""Bytes that are no message, carried as a value to where errors are translated.

gRPC answers a request that its deserializer refuses with INTERNAL and no hint. Parsing is therefore
wrapped: a failure becomes a `Malformed` value, and the interceptor raises it inside the handler.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import DecodeError

from kernelfarm.errors import MalformedMessageError


@dataclass(frozen=True, slots=True)
class Malformed:
    """A request that could not be parsed: what was expected, how long it was, what failed."""

    expected: str
    size_bytes: int
    fault: str

    def error(self) -> MalformedMessageError:
        """The error that the caller sees."""
        return MalformedMessageError(
            f"{self.size_bytes} bytes that are no {self.expected} message"
            f" (truncated, or of another type): {self.fault}"
        )


def parse_or_mark(parse: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """A deserializer that gives the message, or `Malformed` where `parse` refuses the bytes."""
    # Generated parsers are bound to their message class, which knows its full name.
    descriptor = getattr(getattr(parse, "__self__", None), "DESCRIPTOR", None)
    expected = getattr(descriptor, "full_name", "protobuf")

    def parse_request(data: bytes) -> Any:
        try:
            return parse(data)
        except DecodeError as error:
            return Malformed(expected, len(data), str(error))

    return parse_request
