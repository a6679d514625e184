"""Requests that carry graphs, parsed without them: a graph is parsed where its work can be ended.

An envelope (`protos/kernelfarm/internal/v1/envelopes.proto`) has the numbers and types of the
public message, but its graph is bytes. Registered in the public message's place, it is what
handlers get. Parsers merge a message that occurs several times, which is to put its serialized
forms together; so the graph's field is repeated, and `graph_of` joins it.

Protobuf copies what it parses, and again what is read from it. A large graph is therefore taken out
of the request's bytes before they are parsed: the event loop must not copy 30 MiB twice.
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
"""Fields of a large request that are looked at one by one; those of real ones are fewer."""
_LENGTH_DELIMITED = 2
_SIZES = {1: 8, 5: 4}
"""Bytes of the wire types that have a fixed size."""
_MAX_VARINT_BYTES = 10

Graph = bytes | memoryview
FieldsT = TypeVar("FieldsT", envelopes_pb2.CompileEnvelope, envelopes_pb2.ExplainMissEnvelope)


@dataclass(frozen=True, slots=True)
class Enveloped(Generic[FieldsT]):
    """A request that carries a graph: its other fields, and the graph as bytes (None: it has none).

    A large graph is a view into the request's bytes.
    """

    fields: FieldsT
    graph: Graph | None = field(repr=False)

    @property
    def request_id(self) -> str:
        """The id that the request bears; empty if it has none."""
        return str(getattr(self.fields, "request_id", ""))


class EnvelopeParser(Generic[FieldsT]):
    """Parses an envelope; it bears the public message's name in what is told of bad bytes."""

    def __init__(self, envelope: type[FieldsT], message: type[Message]) -> None:
        self._parse: Callable[[bytes], FieldsT] = envelope.FromString
        self._graph_field: int = envelope.DESCRIPTOR.fields_by_name["graph"].number
        self.__self__ = message  # as a bound `FromString` has it

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
    """Where a field begins, where its content does, and where it ends; None unless it occurs once.

    None too where the bytes are odd in any way, or have many fields: a parser has to tell.
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
    """Each field's tag, and where it begins, where its content does, and where it ends."""
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
    """A number, and where it ends."""
    value = 0
    for index in range(_MAX_VARINT_BYTES):
        byte = data[at + index]
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, at + index + 1
    raise ValueError("a number without an end")


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


def with_envelopes(add: Callable[[Any], None]) -> Callable[[grpc.aio.Server], None]:
    """What registers a service as `add` does, with envelopes for requests that carry graphs."""

    def add_to(server: grpc.aio.Server) -> None:
        add(_Registrar(server))

    return add_to


class _Registrar:
    """Stands for a server while generated code registers its methods there."""

    def __init__(self, server: Any) -> None:
        self._server = server

    def add_generic_rpc_handlers(self, handlers: object) -> None:
        """Nothing: the same handlers come by name."""

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, Any]) -> None:
        """Registers a service's methods."""
        changed = {name: _changed(service, name, found) for name, found in handlers.items()}
        generic = grpc.method_handlers_generic_handler(service, changed)
        self._server.add_generic_rpc_handlers((generic,))
        self._server.add_registered_method_handlers(service, changed)


def _changed(service: str, method: str, handler: Any) -> Any:
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
