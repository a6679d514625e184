"""Parses requests without their graphs; a graph is parsed in a child process, which can be killed.

An envelope (`protos/kernelfarm/internal/v1/envelopes.proto`) has the field numbers and types of the
public message, but its graph is bytes. It is registered instead of the public message, so handlers
receive envelopes. If a message field occurs several times, parsers merge the occurrences, which
equals parsing their concatenation. Therefore the graph field is repeated, and `graph_of` joins it.

Protobuf copies bytes when it parses them, and again when they are read. Therefore a large graph is
cut out of the request before parsing: the event loop must not copy 30 MiB twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import grpc
from google.protobuf.message import Message

from kernelfarm.internal.v1 import envelopes_pb2
from kernelfarm.v1 import cache_service_pb2, compile_service_pb2

_LARGE_BYTES = 64 * 1024
_MAX_FIELDS = 128
"""The most fields of a large request that are scanned; real requests have fewer."""
_LENGTH_DELIMITED = 2
_SIZES = {1: 8, 5: 4}
"""Wire type -> bytes, for types of a fixed size."""
_MAX_VARINT_BYTES = 10

Graph = bytes | memoryview
FieldsT = TypeVar("FieldsT", envelopes_pb2.CompileEnvelope, envelopes_pb2.ExplainMissEnvelope)


@dataclass(frozen=True, slots=True)
class Enveloped(Generic[FieldsT]):
    """A request that carries a graph: its other fields, and the graph as bytes, or None.

    A large graph is a view of the request's bytes.
    """

    fields: FieldsT
    graph: Graph | None = field(repr=False)

    @property
    def request_id(self) -> str:
        """The id that the request states; empty if it states none."""
        return str(getattr(self.fields, "request_id", ""))


class EnvelopeParser(Generic[FieldsT]):
    """Parses an envelope; errors about malformed bytes name the public message."""

    def __init__(self, envelope: type[FieldsT], message: type[Message]) -> None:
        self._parse: Callable[[bytes], FieldsT] = envelope.FromString
        self._graph_field: int = envelope.DESCRIPTOR.fields_by_name["graph"].number
        self.__self__ = message  # as bound methods `FromString` have it; errors read its name

    def __call__(self, data: bytes) -> Enveloped[FieldsT]:
        """The request.

        Raises:
            DecodeError: the bytes are no envelope.
        """
        if len(data) >= _LARGE_BYTES:
            span = _only_span(data, self._graph_field)
            if span is not None:
                begin, content, end = span
                others = data[:begin] + data[end:]
                if len(others) < _LARGE_BYTES:
                    return Enveloped(self._parse(others), memoryview(data)[content:end])
        fields = self._parse(data)
        return Enveloped(fields, graph_of(fields))


def _only_span(data: bytes, number: int) -> tuple[int, int, int] | None:
    """The begin of a field, the begin of its content, and its end; None unless it occurs once.

    Also None for malformed bytes or too many fields: then the parser decides.
    """
    found = None
    fields_read = 0
    try:
        for tag, begin, content, end in _field_spans(data):
            fields_read += 1
            if fields_read > _MAX_FIELDS:
                return None
            if tag >> 3 == number:
                if found is not None or tag & 7 != _LENGTH_DELIMITED:
                    return None
                found = begin, content, end
    except (IndexError, ValueError):
        return None
    return found


def _field_spans(data: bytes) -> Iterator[tuple[int, int, int, int]]:
    """For each field its tag, its begin, the begin of its content, and its end."""
    at = 0
    while at < len(data):
        begin = at
        tag, at = _varint(data, at)
        kind = tag & 7
        if kind == 0:
            content, (_, at) = at, _varint(data, at)
        else:
            size = _SIZES.get(kind)
            if size is None:
                if kind != _LENGTH_DELIMITED:
                    raise ValueError("a group")
                size, at = _varint(data, at)
            content, at = at, at + size
        if at > len(data):
            raise ValueError("a field beyond the end")
        yield tag, begin, content, at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A varint, and the position after it."""
    value = 0
    for index in range(_MAX_VARINT_BYTES):
        byte = data[at + index]
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, at + index + 1
    raise ValueError("a varint without an end")


_PARSERS: Mapping[tuple[str, str], EnvelopeParser[Any]] = {
    ("kernelfarm.v1.CompileService", "Compile"): EnvelopeParser(
        envelopes_pb2.CompileEnvelope, compile_service_pb2.CompileRequest
    ),
    ("kernelfarm.v1.CacheService", "ExplainMiss"): EnvelopeParser(
        envelopes_pb2.ExplainMissEnvelope, cache_service_pb2.ExplainMissRequest
    ),
}


def graph_of(
    envelope: envelopes_pb2.CompileEnvelope | envelopes_pb2.ExplainMissEnvelope,
) -> bytes | None:
    """The serialized graph that a request carries; None if it carries none."""
    pieces = envelope.graph
    if len(pieces) == 1:
        return pieces[0]
    return b"".join(pieces) if pieces else None


def with_envelopes(add: Callable[[Any], None]) -> Callable[[Any], None]:
    """Registers a service as `add` does, but with envelopes for requests that carry graphs."""

    def add_to(server: Any) -> None:
        add(_Registrar(server))

    return add_to


class _Registrar:
    """Receives the handlers that generated code registers, and replaces parsers of envelopes."""

    def __init__(self, server: Any) -> None:
        self._server = server

    def add_generic_rpc_handlers(self, handlers: object) -> None:
        """Does nothing: the same handlers are registered by name."""

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, Any]) -> None:
        """Registers a service's methods."""
        changed = {name: _with_envelope(service, name, found) for name, found in handlers.items()}
        self._server.add_registered_method_handlers(service, changed)


def _with_envelope(service: str, method: str, handler: Any) -> Any:
    parser = _PARSERS.get((service, method))
    if parser is None:
        return handler
    if handler.response_streaming:
        return grpc.unary_stream_rpc_method_handler(
            handler.unary_stream, parser, handler.response_serializer
        )
    return grpc.unary_unary_rpc_method_handler(
        handler.unary_unary, parser, handler.response_serializer
    )
